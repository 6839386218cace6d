//go:build linux

package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/agent-sandbox/sandbox-go/runtime/command"
	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// mainVariable makes this test program be one that is its own runtime.
const mainVariable = "RUNTIME_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(mainVariable) != "" {
		r := command.NewRegistry()
		if err := command.Register(r, "pid", func(context.Context, struct{}) (int, error) { return os.Getpid(), nil }, nil); err != nil {
			panic(err)
		}
		Main(&Options{Commands: r})
	}
	goleak.VerifyTestMain(m)
}

// program is this test program as a runtime of its own.
type program struct {
	*exec.Cmd
	t      *testing.T
	socket string
	http   *http.Client
	stderr bytes.Buffer // complete after end
	read   chan struct{}
}

func startProgram(t *testing.T, flags uintptr, env []string, args ...string) *program {
	t.Helper()
	dir, err := os.MkdirTemp("", "rt")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	p := &program{t: t, socket: filepath.Join(dir, "s"), read: make(chan struct{})}
	p.Cmd = exec.Command("/proc/self/exe", append([]string{"--listen", "unix:" + p.socket}, args...)...)
	p.Env = append([]string{mainVariable + "=1", "PATH=" + os.Getenv("PATH") + ":/of/the/image"}, env...)
	p.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
	if uid := os.Geteuid(); flags != 0 && uid != 0 {
		p.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		p.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}}
		p.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	errs, err := p.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		if flags != 0 && os.Getenv("CI") == "" {
			t.Skipf("no pid name space on this machine: %v", err)
		}
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Process.Kill() })
	up := make(chan bool, 1)
	go func() {
		defer close(p.read)
		lines := bufio.NewScanner(errs)
		for lines.Scan() {
			p.stderr.WriteString(lines.Text() + "\n")
			if strings.Contains(lines.Text(), "listening on unix:") {
				up <- true
			}
		}
		close(up)
	}()
	if !<-up {
		<-p.read
		t.Fatalf("it does not serve: %s", p.stderr.String())
	}
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", p.socket)
	}}
	t.Cleanup(tr.CloseIdleConnections)
	p.http = &http.Client{Transport: tr}
	return p
}

func (p *program) command(name, token string) (int, string) {
	p.t.Helper()
	req, err := http.NewRequestWithContext(p.t.Context(), http.MethodPost, "http://sandbox/commands/"+name, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := p.http.Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	defer res.Body.Close()
	var a struct {
		Stdout string
		Result json.RawMessage
	}
	if err := json.NewDecoder(res.Body).Decode(&a); err != nil {
		p.t.Fatal(err)
	}
	return res.StatusCode, a.Stdout + string(a.Result)
}

// end ends it with a signal and returns its status.
func (p *program) end() int {
	p.t.Helper()
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	<-p.read
	p.Wait()
	return p.ProcessState.ExitCode()
}

func writeTemplate(t *testing.T, m *model.Template) string {
	t.Helper()
	m.Format = model.Version
	b, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "template.json")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestProgramThatIsItsOwnRuntime(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	pidFile := filepath.Join(dir, "pid")
	file := writeTemplate(t, &model.Template{
		Workdir: dir, Env: map[string]string{"FROM": "template"}, Start: "echo $$ > pid.part; mv pid.part pid; exec sleep 1000",
		Commands: map[string]model.Command{"env": {Run: "env"}},
	})
	const token = "token-of-this-program"
	p := startProgram(t, 0, []string{envToken + "=" + token, "PASSED=yes", "CLOUD_KEY=platform", envTemplate + "=" + file}, "--pass", "PASSED")
	if status, _ := p.command("env", "wrong"); status != http.StatusUnauthorized {
		t.Errorf("without the token: %d", status)
	}
	status, out := p.command("env", token)
	env := parseEnv(out)
	if status != 200 || env["FROM"] != "template" || env["PASSED"] != "yes" || !strings.HasSuffix(env["PATH"], ":/of/the/image") {
		t.Errorf("%d %v", status, env)
	}
	if strings.Contains(out, token) || strings.Contains(out, "CLOUD_KEY") || strings.Contains(out, mainVariable) {
		t.Errorf("commands get what is the runtime's: %s", out)
	}
	if status, out := p.command("pid", token); status != 200 || out != strconv.Itoa(p.Process.Pid) {
		t.Errorf("%d %s, want %d", status, out, p.Process.Pid)
	}
	// Only root can look at all: the process is not dumpable.
	b, err := os.ReadFile("/proc/" + strconv.Itoa(p.Process.Pid) + "/environ")
	if err == nil && (bytes.Contains(b, []byte(token)) || !bytes.Contains(b, []byte("PASSED=yes"))) {
		t.Errorf("environ: %q", b)
	}
	if os.Geteuid() == 0 && err != nil {
		t.Error(err)
	}
	eventually(t, "the command of the template runs", func() bool { _, err := os.Stat(pidFile); return err == nil })
	if code := p.end(); code != 0 {
		t.Errorf("status %d: %s", code, p.stderr.String())
	}
	waitGone(t, pidFile)
	if strings.Contains(p.stderr.String(), token) {
		t.Errorf("the log holds the token: %s", p.stderr.String())
	}
}

func TestProgramAsPid1(t *testing.T) {
	t.Parallel()
	file := writeTemplate(t, &model.Template{Workdir: t.TempDir(), Commands: map[string]model.Command{
		"parent": {Run: "echo $PPID", Shell: true},
	}})
	// Without a token, on a socket of its own.
	p := startProgram(t, syscall.CLONE_NEWPID, nil, "--template", file)
	if status, out := p.command("pid", ""); status != 200 || out != "1" {
		t.Errorf("%d %s", status, out)
	}
	if status, out := p.command("parent", ""); status != 200 || out != "1\n" {
		t.Errorf("%d %s", status, out)
	}
	if code := p.end(); code != 0 {
		t.Errorf("status %d: %s", code, p.stderr.String())
	}
}

func TestCanSwitch(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		files map[string]string
		want  bool
	}{
		"root":      {map[string]string{"setgroups": "allow\n", "status": "Name:\tx\nCapEff:\t00000000000000c0\n"}, true},
		"no setgid": {map[string]string{"setgroups": "allow\n", "status": "CapEff:\t0000000000000080\n"}, false},
		"denied":    {map[string]string{"setgroups": "deny\n", "status": "CapEff:\t000001ffffffffff\n"}, false},
		"no proc":   {nil, true},
	} {
		dir := t.TempDir()
		for file, text := range c.files {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := canSwitch(dir); got != (c.want && os.Geteuid() == 0) {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestProgramRefuses(t *testing.T) { // not parallel: what this process starts while a server in it starts a command can be taken for part of that
	bad := filepath.Join(t.TempDir(), "bad.json")
	if err := os.WriteFile(bad, []byte(`{"format":`), 0o600); err != nil {
		t.Fatal(err)
	}
	newer := writeTemplate(t, &model.Template{})
	if err := os.WriteFile(newer, []byte(`{"format":999}`), 0o600); err != nil {
		t.Fatal(err)
	}
	wrong := writeTemplate(t, &model.Template{Commands: map[string]model.Command{"x": {Run: "echo {y}"}}})
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args   string
		status int
		want   string
	}{
		{"--help", 0, "usage: "},
		{"--nope", 2, "no option --nope"},
		{"--listen", 2, "a value is missing after --listen"},
		{"--listen 127.0.0.1:0", 2, "there is no access token, and 127.0.0.1:0 is open to others"},
		{"--listen unix:relative", 2, "absolute"},
		{"--listen unix:/no/such/dir/s", 2, "no such file"},
		{"--token-file /no/such", 2, "no such file"},
		{"--token-file " + empty, 2, "is empty"},
		{"--listen unix:/tmp/x --template " + bad, 2, "E2004"},
		{"--listen unix:/tmp/x --template " + newer, 2, "has format 999"},
		{"--template " + wrong + " --listen unix:" + filepath.Join(t.TempDir(), "s"), 2, "command x: its line asks for {y}"},
		{"--pass NOT_SET", 2, "this variable is not set"},
		{"--pass SANDBOX_SERVER_LISTEN", 2, "settings of the runtime"},
	} {
		cmd := exec.Command("/proc/self/exe", strings.Fields(c.args)...)
		cmd.Env = []string{mainVariable + "=1"}
		timer := time.AfterFunc(30*time.Second, func() { cmd.Process.Kill() })
		out, _ := cmd.CombinedOutput()
		timer.Stop()
		if cmd.ProcessState.ExitCode() != c.status || !strings.Contains(string(out), c.want) {
			t.Errorf("%s: %d %s, want %d %q", c.args, cmd.ProcessState.ExitCode(), out, c.status, c.want)
		}
	}
}
