package acceptance

import (
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/sbtest"
	"github.com/agent-sandbox/sandbox-go/sandboxfn"
	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// TestCodeForeign runs cells in real sandboxes whose runtime knows nothing of us: the
// interpreter is started from outside, in processes of its own.
func TestCodeForeign(t *testing.T) {
	sbtest.NeedSandbox(t)
	c, err := sandboxfn.NewClient(&sandboxfn.ClientOptions{Provider: "foreign"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	sb, err := c.Create(t.Context(), &sandboxfn.CreateOptions{Memory: 256 * sandboxfn.MiB})
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Close()
	err = sb.Command(t.Context(), "python3", "-c", "pass").Run()
	if errors.Is(err, sandboxfn.ErrCommandNotFound) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	run := func(code string, timeout time.Duration) *sandboxfn.Execution {
		t.Helper()
		e, err := sb.RunCode(t.Context(), code, &sandboxfn.CodeOptions{Timeout: timeout})
		if err != nil {
			t.Fatalf("%s: %v", code, err)
		}
		if e.Via != "process" {
			t.Errorf("%s: via %s", code, e.Via)
		}
		return e
	}
	if e := run("import os, subprocess\nx = 41\nsubprocess.run(['echo', 'child'])\nx + 1", 0); e.Text() != "42" || strings.Join(e.Stdout, "") != "child\n" {
		t.Errorf("got %+v", e)
	}
	for _, code := range []string{"while True: pass", "subprocess.run(['sleep', '1000'])", "os.system('sleep 1000')"} {
		if e := run(code, 300*time.Millisecond); e.Error == nil || e.Error.Name != "TimeoutError" || !strings.Contains(e.Error.Value, "kept") {
			t.Errorf("%s: got %+v", code, e.Error)
		}
		if e := run("x", 0); e.Text() != "41" {
			t.Errorf("%s: the state is lost: %+v", code, e)
		}
	}
	rep, err := sb.Report(t.Context())
	if err == nil && rep.Limits["memory"] != "none" && rep.Limits["memory"] != "" {
		e := run("all = [b'x' * (1 << 20) for _ in range(2048)]", 0)
		if e.Error == nil || e.Error.Name != "ContextDied" || e.Error.Value != "out of memory" {
			t.Errorf("at the memory limit: got %+v", e)
		}
		if e := run("1 + 1", 0); e.Text() != "2" || !e.Restarted {
			t.Errorf("afterwards: %+v", e)
		}
	}
}

// TestCodePrestart: an interpreter that the template names runs before the first cell.
func TestCodePrestart(t *testing.T) {
	sbtest.NeedSandbox(t)
	ctx := t.Context()
	buildGoverned(t, &model.Template{Name: "prestarted", Interpreter: model.Interpreter{Prestart: []string{"bash"}}})
	sb, err := sandboxfn.Create(ctx, &sandboxfn.CreateOptions{Template: "prestarted"})
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Close()
	var running []sandboxfn.ProcessInfo
	for end := time.Now().Add(time.Minute); len(running) == 0 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if running, err = sb.Processes(ctx); err != nil {
			t.Fatal(err)
		}
	}
	e, err := sb.RunCode(ctx, "echo $$", &sandboxfn.CodeOptions{Language: "bash"})
	if err != nil || len(running) != 1 || strings.Join(e.Stdout, "") != strconv.Itoa(running[0].Pid)+"\n" {
		t.Errorf("the cell ran in %+v, %v; before it there was %+v", e, err, running)
	}
}
