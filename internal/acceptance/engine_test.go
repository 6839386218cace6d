package acceptance

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/acceptance/placed"
	"github.com/agent-sandbox/sandbox-go/internal/sbtest"
	"github.com/agent-sandbox/sandbox-go/sandboxfn"
)

// imageShell is the one program of an image: its shell, and its tool.
const imageShell = `package main

import (
	"fmt"
	"os"
)

func main() {
	switch line := os.Args[len(os.Args)-1]; line {
	case "make":
		os.MkdirAll("/opt/tool", 0o755)
		os.WriteFile("/opt/tool/made", []byte("by make"), 0o644)
	case "look":
		made, _ := os.ReadFile("/opt/tool/made")
		dir, _ := os.Getwd()
		fmt.Println(string(made), os.Getenv("PLACED_IMAGE"), dir)
	}
}
`

// imageCommands builds the commands of this module that have to do with templates.
func imageCommands(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, pkg := range map[string]string{"sandbox": "../../sandboxfn/cmd/sandbox", "sandboxd": "../../runtime/cmd/sandboxd"} {
		if out, err := exec.Command("go", "build", "-buildvcs=false", "-o", filepath.Join(dir, name), pkg).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	return dir
}

// buildImage builds the template placed-image with an engine and the command, for
// the state directory of the environment.
func buildImage(t *testing.T, commands string) {
	t.Helper()
	engine := ""
	var why []string
	for _, e := range []string{"podman", "buildah"} {
		if out, err := exec.Command(e, "info").CombinedOutput(); err != nil {
			why = append(why, fmt.Sprintf("%s: %v: %s", e, err, out))
			continue
		}
		engine = e
		break
	}
	if engine == "" {
		if os.Getenv("CI") != "" {
			t.Fatal("no engine: ", why)
		}
		t.Skip("no engine: ", why)
	}
	if path, err := exec.LookPath("runc"); err == nil { // works with every kind of control groups
		conf := filepath.Join(t.TempDir(), "containers.conf")
		if err := os.WriteFile(conf, fmt.Appendf(nil, "[engine]\nruntime = \"runc\"\ncgroup_manager = \"cgroupfs\"\n[engine.runtimes]\nrunc = [%q]\n", path), 0o644); err != nil {
			t.Fatal(err)
		}
		t.Setenv("CONTAINERS_CONF", conf)
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"src/main.go":   imageShell,
		"template.yaml": "name: placed-image\nbuild_network: none\n",
		"Dockerfile":    "FROM scratch\nCOPY shell /bin/sh\nCOPY lib /\nENV PLACED_IMAGE=set\nWORKDIR /work\nRUN make\n",
	} {
		name = filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("go", "build", "-buildvcs=false", "-o", filepath.Join(dir, "shell"), filepath.Join(dir, "src/main.go"))
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	copyLibraries(t, filepath.Join(dir, "lib"))
	cmd = exec.Command(filepath.Join(commands, "sandbox"), "template", "build", "--engine", engine, dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// copyLibraries copies what this program needs to run, when it is not static: it
// is the worker of its functions.
func copyLibraries(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(dir, "tmp"), 0o755); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("ldd", "/proc/self/exe").Output()
	if self, serr := os.Executable(); serr == nil {
		out, err = exec.Command("ldd", self).Output()
	}
	if err != nil {
		return // static
	}
	for _, from := range regexp.MustCompile(`/\S+`).FindAllString(string(out), -1) {
		text, err := os.ReadFile(from)
		to := filepath.Join(dir, from)
		if err := errors.Join(err, os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, text, 0o755)); err != nil {
			t.Fatal(err)
		}
	}
}

// A function runs in a sandbox of a template that an engine has built.
func TestEngineFunction(t *testing.T) {
	sbtest.NeedSandbox(t)
	if p := cmp.Or(os.Getenv(sbtest.ProviderVariable), "local"); p != "local" {
		t.Skip("provider ", p)
	}
	if _, err := placed.InImage(t.Context()); !errors.Is(err, sandboxfn.ErrTemplateNotFound) {
		t.Errorf("before it is built: %v", err)
	}
	buildImage(t, imageCommands(t))
	defer func() {
		if err := sandboxfn.RemoveTemplate(context.Background(), "placed-image"); err != nil {
			t.Error(err)
		}
	}()
	if got, err := placed.InImage(t.Context()); got != "by make set /work" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
}

// The gateway makes sandboxes from a template that an engine has built.
func TestEngineGateway(t *testing.T) {
	sbtest.NeedSandbox(t)
	commands := imageCommands(t)
	t.Setenv("SANDBOX_STATE_DIR", filepath.Join(t.TempDir(), "state"))
	url, key := startGateway(t, filepath.Join(commands, "sandboxd"))
	c, err := sandboxfn.NewClient(&sandboxfn.ClientOptions{Provider: "e2b", APIURL: url, APIKey: sandboxfn.NewSecret(key)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Create(t.Context(), &sandboxfn.CreateOptions{Template: "placed-image"}); !errors.Is(err, sandboxfn.ErrTemplateNotFound) {
		t.Errorf("before it is built: %v", err)
	}
	buildImage(t, commands)
	sb, err := c.Create(t.Context(), &sandboxfn.CreateOptions{Template: "placed-image"})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := sb.Command(t.Context(), "/bin/sh", "look").Output(); string(got) != "by make set /work\n" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if err := sb.Close(); err != nil {
		t.Error(err)
	}
	if out, err := exec.Command(filepath.Join(commands, "sandbox"), "template", "rm", "placed-image").CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// startGateway serves the gateway until the test has ended.
func startGateway(t *testing.T, program string) (url, key string) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	cmd := exec.Command(program, "serve", "--listen", "unix:"+socket)
	var stdout bytes.Buffer
	cmd.Stdout = &stdout
	errs, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	listening := make(chan struct{}, 1)
	ended := make(chan error, 1)
	var log strings.Builder // complete after ended
	go func() {
		for lines := bufio.NewScanner(errs); lines.Scan(); {
			log.WriteString(lines.Text() + "\n")
			if strings.HasPrefix(lines.Text(), "sandboxd: listening on ") {
				listening <- struct{}{}
			}
		}
		ended <- cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := <-ended; err != nil || t.Failed() {
			t.Errorf("the gateway: %v\n%s", err, log.String())
		}
	})
	select {
	case <-listening:
		key, err := exec.Command(program, "key", "create", "engine").Output()
		if err != nil {
			t.Fatal(err)
		}
		return "unix:" + socket, strings.TrimPrefix(strings.TrimSpace(string(key)), "E2B_API_KEY=")
	case <-time.After(30 * time.Second):
		t.Fatal("the gateway does not listen")
		return "", ""
	}
}
