//go:build linux

package image

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/providers/local"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// engineShell is the source of the one program of the images that are built here.
// It is their shell: what its line says it does.
const engineShell = `package main

import (
	"fmt"
	"net"
	"os"
	"time"
)

func main() {
	line := os.Args[len(os.Args)-1]
	fmt.Println("line", line)
	switch line {
	case "make":
		os.MkdirAll("/opt/tool", 0o755)
		os.WriteFile("/opt/tool/made", []byte("made"), 0o644)
	case "net":
		all, _ := net.Interfaces()
		for _, i := range all {
			fmt.Println("interface", i.Name)
		}
	case "fail":
		fmt.Fprintln(os.Stderr, "because")
		os.Exit(3)
	case "wait":
		time.Sleep(time.Hour)
	case "look":
		made, _ := os.ReadFile("/opt/tool/made")
		file, _ := os.ReadFile("/etc/tool/conf")
		link, _ := os.Readlink("/etc/tool/link")
		dir, _ := os.Getwd()
		fmt.Println(string(made), string(file), link, dir, os.Getenv("FROM_FILE"), os.Getenv("MINE"), os.Getuid() != 0)
	}
}
`

// engineCase is an engine that images are built with here.
type engineCase struct {
	name      string // of the subtest
	engine    string
	installed bool // by .ci/run: there it must work
	env       map[string]string
	steps     [3]int // of goodSteps how many are told of; of the failing file which fails, of how many
	status    string // of a step that ends with 3
}

var engineCases = []engineCase{
	{name: "podman", engine: "podman", installed: true, steps: [3]int{7, 4, 5}, status: "exit status 3"},
	{name: "buildah", engine: "buildah", installed: true, steps: [3]int{7, 4, 5}, status: "exit status 3"},
	{name: "docker", engine: "docker", env: map[string]string{"DOCKER_BUILDKIT": "0"}, steps: [3]int{7, 4, 5}, status: "non-zero code: 3"},
	{name: "buildkit", engine: "docker", env: map[string]string{"DOCKER_BUILDKIT": "1"}, steps: [3]int{5, 3, 4}, status: "exit code: 3"},
}

// eachEngine runs a test with every engine that works here.
func eachEngine(t *testing.T, test func(t *testing.T, b *engineBuild)) {
	for _, c := range engineCases {
		t.Run(c.name, func(t *testing.T) { test(t, newEngineBuild(t, c)) })
	}
}

// engineBuild has a provider, an engine that works, and a folder with a program.
type engineBuild struct {
	engineCase
	p     *local.Provider
	dir   string
	lines []string
	kinds []string
	onto  func(providers.BuildEvent)
}

func newEngineBuild(t *testing.T, c engineCase) *engineBuild {
	t.Helper()
	b := &engineBuild{engineCase: c, dir: t.TempDir()}
	for k, v := range c.env {
		t.Setenv(k, v)
	}
	if err := b.start(t); err != nil {
		if c.installed && os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	b.write(t, "src/main.go", engineShell)
	cmd := exec.Command("go", "build", "-buildvcs=false", "-o", filepath.Join(b.dir, "shell"), filepath.Join(b.dir, "src/main.go"))
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	b.write(t, "etc/conf", "conf")
	if err := os.Symlink("conf", filepath.Join(b.dir, "etc/link")); err != nil {
		t.Fatal(err)
	}
	b.p = openLocal(t, stateDir(t))
	before := b.inEngine(t)
	t.Cleanup(func() {
		after := b.inEngine(t)
		// A daemon ends the step of a build that nobody waits for a little later.
		for end := time.Now().Add(20 * time.Second); b.engine == "docker" && after != before && time.Now().Before(end); after = b.inEngine(t) {
			time.Sleep(100 * time.Millisecond)
		}
		if after != before {
			t.Errorf("the engine holds\n%s\nand before\n%s", after, before)
		}
	})
	return b
}

// start makes sure that the engine works.
func (b *engineBuild) start(t *testing.T) error {
	t.Helper()
	// Of the runtimes of containers, runc works with every kind of control groups.
	if path, err := exec.LookPath("runc"); err == nil {
		conf := filepath.Join(t.TempDir(), "containers.conf")
		if err := os.WriteFile(conf, fmt.Appendf(nil, "[engine]\nruntime = \"runc\"\ncgroup_manager = \"cgroupfs\"\n[engine.runtimes]\nrunc = [%q]\n", path), 0o644); err != nil {
			t.Fatal(err)
		}
		t.Setenv("CONTAINERS_CONF", conf)
	}
	if _, err := exec.LookPath(b.engine); err != nil {
		return err
	}
	if b.engine != "docker" {
		if out, err := exec.Command(b.engine, "info").CombinedOutput(); err != nil {
			return fmt.Errorf("%s does not work: %w: %s", b.engine, err, out)
		}
		return nil
	}
	if exec.Command("docker", "version").Run() != nil {
		if err := serveDocker(t); err != nil {
			return err
		}
	}
	out, err := exec.Command("docker", "version", "--format", "{{range .Server.Components}}{{.Name}} {{end}}").CombinedOutput()
	if err != nil || strings.Contains(string(out), "Podman") {
		return fmt.Errorf("what answers docker is not its daemon: %s, %w", out, err)
	}
	if b.env["DOCKER_BUILDKIT"] == "1" {
		if out, err := exec.Command("docker", "build", "--help").CombinedOutput(); err != nil || !strings.Contains(string(out), "--progress") {
			return errors.New("docker has no BuildKit: its component buildx is not there")
		}
	}
	return nil
}

// serve runs a daemon of this test alone until it has ended, and returns when ask
// succeeds.
func serve(t *testing.T, host string, cmd *exec.Cmd) error {
	t.Helper()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
		select {
		case <-done:
		case <-time.After(20 * time.Second):
			t.Error("the daemon of the test did not end by itself")
		}
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		<-done
	})
	t.Setenv("DOCKER_HOST", host)
	t.Setenv("DOCKER_CONTEXT", "")
	for range 150 {
		if exec.Command("docker", "version").Run() == nil {
			return nil
		}
		select {
		case <-done:
			return fmt.Errorf("%s does not run here: %s", filepath.Base(cmd.Path), out.Bytes()[max(0, out.Len()-600):])
		case <-time.After(100 * time.Millisecond):
		}
	}
	return fmt.Errorf("%s does not answer", filepath.Base(cmd.Path))
}

// serveDocker runs docker's daemon, which only root can.
func serveDocker(t *testing.T) error {
	t.Helper()
	path, err := exec.LookPath("dockerd")
	if err != nil {
		return fmt.Errorf("no daemon answers docker, and there is none to start: %w", err)
	}
	if os.Getuid() != 0 {
		return errors.New("no daemon answers docker, and only root can start one")
	}
	dir := shortDir(t)
	host := "unix://" + filepath.Join(dir, "s")
	return serve(t, host, exec.Command(path, "--iptables=false", "--ip6tables=false", "--bridge=none", "--storage-driver=vfs", "--data-root="+filepath.Join(dir, "data"),
		"--exec-root="+filepath.Join(dir, "exec"), "--pidfile="+filepath.Join(dir, "pid"), "--host="+host))
}

// shortDir is a folder that sockets have room in.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "eng")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func (b *engineBuild) write(t *testing.T, name, text string) {
	t.Helper()
	name = filepath.Join(b.dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// build builds steps over the program. What is told is noted.
func (b *engineBuild) build(ctx context.Context, m model.Template, steps string) (*providers.Template, error) {
	m.Name, m.BuildNetwork = "byengine", "none"
	m.Dockerfile = "FROM scratch\nCOPY shell /bin/sh\n" + steps
	b.lines, b.kinds = nil, nil
	return b.p.BuildTemplate(ctx, providers.TemplateBuild{Model: &m, Engine: b.engine, Files: os.DirFS(b.dir), Progress: func(e providers.BuildEvent) {
		b.kinds = append(b.kinds, fmt.Sprintf("%s %d/%d", e.Kind, e.Step, e.Steps))
		if e.Kind != providers.BuildDone {
			b.lines = append(b.lines, e.Text)
		}
		if b.onto != nil {
			b.onto(e)
		}
	}})
}

// inEngine is all that the engine has of images and containers, the steps that run,
// and temporary folders.
func (b *engineBuild) inEngine(t *testing.T) string {
	t.Helper()
	ask := map[string][][]string{
		"podman":  {{"images", "--all", "--quiet"}, {"ps", "--all", "--external", "--quiet"}},
		"buildah": {{"images", "--all", "--quiet"}, {"containers", "--all", "--quiet"}},
		"docker":  {{"images", "--all", "--quiet"}, {"ps", "--all", "--quiet"}},
	}
	var all []byte
	for _, args := range ask[b.engine] {
		out, err := exec.Command(b.engine, args...).Output()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, out...)
	}
	names, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, n := range names {
		if line, _ := os.ReadFile(n); string(line) == "/bin/sh\x00-c\x00wait\x00" {
			all = append(all, n...)
		}
	}
	for _, pattern := range []string{"sandbox-build-*", "buildah*"} {
		left, _ := filepath.Glob(filepath.Join(cmp.Or(os.Getenv("TMPDIR"), "/var/tmp"), pattern))
		all = append(all, strings.Join(left, "\n")...)
	}
	return string(all)
}

const goodSteps = "COPY etc /etc/tool/\nENV FROM_FILE=1\nWORKDIR /work\nRUN make\nRUN net\n"

// What an engine has built is used as what the provider builds, and built once.
func TestEngineBuild(t *testing.T) { eachEngine(t, testEngineBuild) }

func testEngineBuild(t *testing.T, b *engineBuild) {
	m := model.Template{Env: map[string]string{"MINE": "2"}, Policy: model.Policy{Files: model.FilePolicy{MaxBytes: 1 << 20}}}
	first, err := b.build(t.Context(), m, goodSteps)
	if err != nil {
		t.Fatal(err)
	}
	told := "\n" + strings.Join(b.lines, "\n") + "\n"
	for _, want := range []string{"\nRUN make\nline make\n", "\ninterface lo\n"} {
		if !strings.Contains(told, want) {
			t.Errorf("not told %q: %s", want, told)
		}
	}
	if strings.Count(told, "\ninterface ") != 1 {
		t.Errorf("the build has a network: %s", told)
	}
	n := b.steps[0]
	if got := strings.Join(b.kinds, ", "); !strings.HasPrefix(got, fmt.Sprintf("started 1/%[1]d, ", n)) || !strings.HasSuffix(got, fmt.Sprintf("done %[1]d/%[1]d, done 0/%[1]d", n)) {
		t.Errorf("told: %s", got)
	}
	if first.Size < 1<<20 {
		t.Errorf("its size is %d", first.Size)
	}
	look := func(template string) {
		t.Helper()
		sb, err := b.p.Create(t.Context(), providers.CreateRequest{Template: template})
		if err != nil {
			t.Fatal(err)
		}
		const want = "line look\nmade conf conf /work 1 2 true\n"
		if got := run(t, sb, "/bin/sh", "-c", "look"); got != want {
			t.Errorf("in the sandbox: %q, want %q", got, want)
		}
		if err := b.p.Kill(t.Context(), sb.ID); err != nil {
			t.Error(err)
		}
	}
	look("byengine")

	again, err := b.build(t.Context(), m, goodSteps)
	if got := strings.Join(b.kinds, ", "); err != nil || got != "cached 1/1, done 0/1" || again.Digest != first.Digest {
		t.Errorf("the same again: %s, %v", got, err)
	}
	// What is not of the image is kept without the engine.
	m.Description = "another"
	other, err := b.build(t.Context(), m, goodSteps)
	if err != nil || b.kinds[0] != "cached 1/1" || other.Digest == first.Digest {
		t.Errorf("another description: %q, %v", b.kinds, err)
	}
	look("byengine")
	// A file of the folder is.
	b.write(t, "unused", "x")
	if _, err = b.build(t.Context(), m, goodSteps); err != nil || b.kinds[0] != fmt.Sprintf("started 1/%d", n) {
		t.Errorf("another file: %q, %v", b.kinds, err)
	}
	look("byengine")
	// Steps of the provider go on from it, and keep what it is made of.
	child := &model.Template{Name: "child", Base: model.Base{From: "byengine"}, Build: []model.Step{{Run: "make"}}}
	if _, err := b.p.BuildTemplate(t.Context(), providers.TemplateBuild{Model: child}); err != nil {
		t.Fatal(err)
	}
	if err := b.p.RemoveTemplate(t.Context(), "byengine"); err != nil {
		t.Error(err)
	}
	look("child")
	if err := b.p.RemoveTemplate(t.Context(), "child"); err != nil {
		t.Error(err)
	}
}

func TestEngineFails(t *testing.T) { eachEngine(t, testEngineFails) }

func testEngineFails(t *testing.T, b *engineBuild) {
	if _, err := b.build(t.Context(), model.Template{}, "RUN make\n"); err != nil {
		t.Fatal(err)
	}
	_, err := b.build(t.Context(), model.Template{}, "RUN make\nRUN fail\nRUN make\n")
	se, ok := errors.AsType[*providers.BuildStepError](err) // its two streams have no order
	if errdefs.CodeOf(err) != "E7010" || !ok || se.Step != b.steps[1] || se.Steps != b.steps[2] || se.Text != "RUN fail" || !strings.Contains(se.Status, b.status) ||
		!slices.Contains(se.Last, "line fail") || !slices.Contains(se.Last, "because") {
		t.Errorf("got %v, %+v", err, se)
	}
	if _, err := b.build(t.Context(), model.Template{}, "NONSENSE x\n"); errdefs.CodeOf(err) != "E7010" || !strings.Contains(err.Error(), "NONSENSE") {
		t.Errorf("got %v", err)
	}
	b.write(t, ".dockerignore", "etc/hidden\n")
	b.write(t, "etc/hidden", "hidden")
	if _, err := b.build(t.Context(), model.Template{}, "COPY etc/hidden /hidden\n"); errdefs.CodeOf(err) != "E7010" || !strings.Contains(err.Error(), "hidden") {
		t.Errorf("a file that is left out: %v", err)
	}
	// The shell of the image prints, as one does that finds them not.
	if _, err := b.build(t.Context(), model.Template{Requires: []string{"absent"}}, "RUN make\n"); errdefs.CodeOf(err) != "E7010" || !strings.Contains(err.Error(), "absent") {
		t.Errorf("without a program that it requires: %v", err)
	}
	// The earlier one is there still.
	s, err := b.p.FindTemplate(t.Context(), "byengine")
	if err != nil || strings.Contains(s.Model.Dockerfile, "fail") || len(s.Model.Requires) > 0 {
		t.Errorf("found %v, %v", s, err)
	}
}

func TestEngineCancelled(t *testing.T) { eachEngine(t, testEngineCancelled) }

func testEngineCancelled(t *testing.T, b *engineBuild) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	b.onto = func(e providers.BuildEvent) {
		if e.Text == "line wait" { // the step runs
			cancel()
		}
	}
	_, err := b.build(ctx, model.Template{}, "RUN make\nRUN wait\n")
	if !errors.Is(err, context.Canceled) || !strings.Contains(strings.Join(b.lines, "\n"), "line wait") {
		t.Errorf("got %v after %q", err, b.lines)
	}
	if _, err := b.p.FindTemplate(t.Context(), "byengine"); errdefs.CodeOf(err) != "E2001" {
		t.Errorf("found: %v", err)
	}
}

func TestEngineRefuses(t *testing.T) {
	p := openLocal(t, stateDir(t))
	build := func(m model.Template, engine string) error {
		m.Name = "refused"
		_, err := p.BuildTemplate(t.Context(), providers.TemplateBuild{Model: &m, Engine: engine})
		return err
	}
	t.Setenv("DOCKER_HOST", "unix:///nonexistent")
	const file = "FROM scratch\nCOPY x /x\n"
	if err := build(model.Template{}, "podman"); errdefs.CodeOf(err) != "E2011" {
		t.Errorf("without a Dockerfile: %v", err)
	}
	if err := build(model.Template{Dockerfile: file}, "kitchen"); errdefs.CodeOf(err) != "E2011" {
		t.Errorf("an engine that is none: %v", err)
	}
	if err := build(model.Template{Dockerfile: file, BuildNetwork: "example.com:443"}, ""); errdefs.CodeOf(err) != "E8004" {
		t.Errorf("network rules: %v", err)
	}
	bin := t.TempDir()
	t.Setenv("PATH", bin)
	err := build(model.Template{Dockerfile: file}, "")
	if e, ok := errors.AsType[*errdefs.Error](err); !ok || e.Code != "E8004" || !strings.Contains(e.Suggestion, "install podman") {
		t.Errorf("without an engine: %v", err)
	}
	for _, c := range []struct{ engine, prints, says, hint string }{
		{"podman", "echo it is broken >&2; exit 125", "it is broken", "make podman info work"},
		{"buildah", "echo {}", "no folder of its store", "make buildah info work"},
		{"docker", "echo Cannot connect >&2; exit 1", "Cannot connect", "make docker version work"},
		{"docker", "echo null", "no daemon", "make docker version work"},
		{"docker", `echo '{"Version": "4.3.1", "Components": [{"Name": "Podman Engine"}]}'`, "podman answers", "make docker version work"},
	} {
		program := filepath.Join(bin, c.engine)
		if err := os.WriteFile(program, []byte("#!/bin/sh\n"+c.prints+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"", "auto", c.engine} {
			err := build(model.Template{Dockerfile: file}, want)
			if e, ok := errors.AsType[*errdefs.Error](err); !ok || e.Code != "E8004" || !strings.Contains(err.Error(), c.says) || !strings.Contains(e.Suggestion, c.hint) {
				t.Errorf("engine %q of %s, which does not work: %v", want, c.prints, err)
			}
		}
		if err := os.Remove(program); err != nil {
			t.Fatal(err)
		}
	}
}
