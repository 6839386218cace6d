package templates

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agent-sandbox/sandbox-go/templates/model"
)

const flatSpelling = `
name: web-app
version: 1.2.0
description: an app
base: node:22-slim
system_packages: [git, ca-certificates]
python_packages: ["numpy>=1,<3"]
node_packages: [typescript@5.6.2]
copy_files: ["app:/app"]
commands:
  - |
    set -e
    npm ci --prefix /app
  - echo "$HOME" > '/tmp/a b'
build_network: [registry.example.com]
env: {PORT: 3000, QUOTED: "a \"b\" $c \\d 'e'"}
ports: [8080, 3000]
network: none
cpu_count: 2
memory_mb: 2GiB
resources: {disk: 10240, lifetime: 300}
workdir: /app
user: node
shell: /bin/bash
start: node "server.js"
readiness_probe: {type: tcp, port: 3000, timeout: 30}
healthcheck: {command: curl -f localhost, interval: 1m}
capabilities: [shell, files]
policy:
  files: {read: [/app], write: []}
  commands: {deny: [git push]}
custom_commands:
  greet: {cmd: "echo {name}", timeout: none, args: [{name: name, type: string, default: you}]}
`

const nestedSpelling = `
version: "1"
metadata: {name: web-app, version: 1.2.0, description: an app}
base: {image: "node:22-slim"}
build:
  run:
    - "set -e\nnpm ci --prefix /app"
    - echo "$HOME" > '/tmp/a b'
  copy: [{src: app, dest: /app}]
  npm_install: [typescript@5.6.2]
  pip_install: ["numpy>=1,<3"]
  apt_install: [git, ca-certificates]
  env: {PORT: "3000"}
  network: [registry.example.com]
env: {QUOTED: "a \"b\" $c \\d 'e'"}
resources: {cpu: 2, memory: 2048, disk: 10GiB, timeout: 5m}
network: {ports: [8080, 3000], reach: none}
sandbox:
  workdir: /app
  user: node
  shell: /bin/bash
  startup_command: node "server.js"
  readiness_probe: {port: 3000, timeout: 30s}
server: {disable: ["dev_tools.code_*", terminal, ports]}
policy:
  files: {read: [/app], write: []}
  commands: {deny: [{program: git, args: [push]}]}
commands:
  greet: {run: "echo {name}", timeout: none, args: [{name: name, default: you}]}
health: {command: curl -f localhost, interval: 60}
`

func goSpelling() Builder {
	you := "you"
	return Image("node:22-slim").Name("web-app").Version("1.2.0").Describe("an app").
		Apt("git", "ca-certificates").Pip("numpy>=1,<3").Npm("typescript@5.6.2").
		Copy("app", "/app").
		Run("set -e\nnpm ci --prefix /app").
		Run(`echo "$HOME" > '/tmp/a b'`).
		BuildNetwork("registry.example.com").
		Env(map[string]string{"PORT": "3000"}).Env(map[string]string{"QUOTED": `a "b" $c \d 'e'`}).
		Expose(8080).Expose(3000).Network("none").
		Resources(model.Resources{CPU: 2, MemoryMB: 2048, DiskMB: 10240, Lifetime: 5 * time.Minute}).
		Workdir("/app").User("node").Shell("/bin/bash").Start(`node "server.js"`).
		Ready(model.Probe{Port: 3000, Timeout: 30 * time.Second}).
		Health(model.Health{Command: "curl -f localhost", Interval: time.Minute}).
		Capabilities("shell", "files").
		Policy(model.Policy{Files: model.FilePolicy{Read: []string{"/app"}, Write: []string{}}, Commands: model.CommandPolicy{Deny: []model.CommandRule{{Program: "git", Args: []string{"push"}}}}}).
		Command("greet", model.Command{Run: "echo {name}", Timeout: -1, Args: []model.Arg{{Name: "name", Default: &you}}})
}

// The two forms of files and the chain in Go give one model and one Dockerfile.
func TestSpellings(t *testing.T) {
	flat, err := Parse([]byte(flatSpelling), "flat.yaml")
	if err != nil {
		t.Fatal(err)
	}
	nested, err := Parse([]byte(nestedSpelling), "nested.yaml")
	if err != nil {
		t.Fatal(err)
	}
	chain, err := goSpelling().Template()
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(flat, nested); d != "" {
		t.Errorf("the nested form differs from the flat one:\n%s", d)
	}
	if d := cmp.Diff(flat, chain); d != "" {
		t.Errorf("the chain differs from the flat form:\n%s", d)
	}
	want, err := os.ReadFile("testdata/web-app.Dockerfile")
	if err != nil && !*update {
		t.Fatal(err)
	}
	for i, m := range []*model.Template{flat, nested, chain} {
		got, err := Dockerfile(m)
		if err != nil {
			t.Fatal(err)
		}
		if *update && i == 0 {
			want = []byte(got)
			if err := os.WriteFile("testdata/web-app.Dockerfile", want, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got != string(want) {
			t.Errorf("spelling %d gives another Dockerfile:\n%s", i, got)
		}
	}
}

// A chain is a value: what is added to a fork is not in the other one, and what the
// caller changes later is not in the template.
func TestBuilderFork(t *testing.T) {
	env := map[string]string{"A": "1"}
	packages := []string{"git"}
	base := Image("debian:12").Name("fork").Apt(packages...).Env(env).Expose(1)
	env["A"], packages[0] = "2", "x"
	left := base.Run("left").Env(map[string]string{"A": "l"}).Expose(2)
	right := base.Run("right").Expose(3)
	var got []string
	for _, b := range []Builder{base, left, right} {
		m, err := b.Template()
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%v %d %s %v %v", m.Build[0].Apt, len(m.Build), m.Build[len(m.Build)-1].Run, m.Env, m.Ports))
	}
	if want := []string{"[git] 1  map[A:1] [1]", "[git] 2 left map[A:l] [1 2]", "[git] 2 right map[A:1] [1 3]"}; !cmp.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Mistakes of a chain are told together, each at its line of Go.
func TestBuilderMistakes(t *testing.T) {
	_, err := Image("BAD IMAGE").Name("x").
		Apt("-y").
		Expose(0).
		Command("c", model.Command{Run: "x {y}"}).
		Template()
	invalid, ok := errors.AsType[*Invalid](err)
	if !ok || len(invalid.Problems) != 4 {
		t.Fatalf("error %v", err)
	}
	for i, p := range invalid.Problems {
		if filepath.Base(p.File) != "spell_test.go" || p.Line == 0 || i > 0 && p.Line != invalid.Problems[i-1].Line+1 {
			t.Errorf("problem %d is at %s:%d", i, p.File, p.Line)
		}
	}
	if _, err := (Builder{}).Template(); err == nil || !strings.Contains(err.Error(), "no name") {
		t.Errorf("an empty chain: %v", err)
	}
}

func TestDockerfileSteps(t *testing.T) {
	m, err := Image("debian:12@sha256:"+strings.Repeat("a", 64)).Name("x").
		Run("true").Copy("a[1]*$x.txt", "/d/$HOME").Apt("zsh", "git=1:2.39", "git=1:2.39").Run("[ -f x ] && echo y").Run("--mount x").Run("cat <<EOF").Run(`echo \`).
		Pip("it's", "a[b]>1; python_version<'3'").Template()
	if err != nil {
		t.Fatal(err)
	}
	got, err := Dockerfile(m)
	if err != nil {
		t.Fatal(err)
	}
	want := `FROM debian:12@sha256:` + strings.Repeat("a", 64) + `
RUN true
COPY ["a[[]1][*]\\$x.txt", "/d/\\$HOME"]
RUN apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends git=1:2.39 zsh && rm -rf /var/lib/apt/lists/*
RUN ["/bin/sh", "-c", "[ -f x ] && echo y"]
RUN ["/bin/sh", "-c", "--mount x"]
RUN ["/bin/sh", "-c", "cat <<EOF"]
RUN ["/bin/sh", "-c", "echo \\"]
RUN PIP_BREAK_SYSTEM_PACKAGES=1 PIP_ROOT_USER_ACTION=ignore python3 -m pip install --no-cache-dir --no-input --disable-pip-version-check 'a[b]>1; python_version<'"'"'3'"'"'' 'it'"'"'s'
`
	if got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	for what, b := range map[string]Builder{"a line break": Image("a").Name("x").Env(map[string]string{"A": "b\nc"}), "a base": From("o/r").Name("x")} {
		if m, err := b.Template(); err != nil {
			t.Errorf("%s: %v", what, err)
		} else if out, err := Dockerfile(m); err == nil {
			t.Errorf("%s: no error:\n%s", what, out)
		}
	}
	if out, err := Dockerfile(&model.Template{Name: "x", Dockerfile: "FROM y\n"}); err != nil || out != "FROM y\n" {
		t.Errorf("the folder's own Dockerfile: %q, %v", out, err)
	}
}

// An engine builds what Dockerfile writes, and finds in it what the template says.
func TestDockerfileEngine(t *testing.T) {
	engine := ""
	for _, e := range []string{"podman", "docker"} {
		if exec.Command(e, "info").Run() == nil {
			engine = e
			break
		}
	}
	if engine == "" {
		t.Skip("no engine answers: neither podman info nor docker info succeeds")
	}
	m, err := From("base").Set(func(t *model.Template) { t.Base = model.Base{} }).Name("engine").Env(map[string]string{"QUOTED": `a "b" $c \d 'e'`}).
		Workdir("/w d").Copy("a.txt", "sub/").Run("set -e\nprintf '%s' \"$QUOTED\" > q").Template()
	if err != nil {
		t.Fatal(err)
	}
	text, err := Dockerfile(m)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, data := range map[string]string{"Dockerfile": text, "a.txt": "a"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	tag := "sandbox-templates-test"
	if out, err := exec.Command(engine, "build", "-t", tag, dir).CombinedOutput(); err != nil {
		t.Skipf("%s cannot build here (no network?): %v\n%s", engine, err, out)
	}
	defer exec.Command(engine, "rmi", "-f", tag).Run()
	out, err := exec.Command(engine, "run", "--rm", tag, "sh", "-c", "cat q; cat sub/a.txt").Output()
	if err != nil || string(out) != `a "b" $c \d 'e'a` {
		t.Errorf("the image holds %q, %v", out, err)
	}
}
