package sandboxfn

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// TestCode: the three ways are alike.
func TestCode(t *testing.T) {
	if _, err := exec.LookPath("/usr/bin/python3"); err != nil {
		t.Skip("no /usr/bin/python3")
	}
	onEach(t, func(t *testing.T, sb *Sandbox) { checkCode(t, sb, "runtime") })
	t.Run("foreign", func(t *testing.T) {
		sb, _ := drivenSandbox(t, nil)
		checkCode(t, sb, "process")
	})
}

func checkCode(t *testing.T, sb *Sandbox, via string) {
	ctx := t.Context()
	e, err := sb.RunCode(ctx, "x = 20\nprint('hi')\nx + 1", nil)
	if err != nil {
		t.Fatal(err)
	}
	if e.Text() != "21" || strings.Join(e.Stdout, "") != "hi\n" || e.Count != 1 || e.Error != nil || e.Via != via {
		t.Errorf("got %+v", e)
	}
	var seen string
	var shown []*CodeResult
	e, err = sb.RunCode(ctx, "class P:\n    def _repr_png_(self): return b'\\x89PNG'\nprint(x); display(P()); 1/0", &CodeOptions{
		Env: map[string]string{"A": "b"}, OnStdout: func(s string) { seen += s }, OnResult: func(r *CodeResult) { shown = append(shown, r) },
	})
	if err != nil {
		t.Fatal(err)
	}
	if e.Error == nil || e.Error.Name != "ZeroDivisionError" || !strings.Contains(e.Error.Traceback, "Traceback") || seen != "20\n" || len(shown) != 1 {
		t.Fatalf("got %+v, %q", e, seen)
	}
	if png, err := shown[0].PNG(); string(png) != "\x89PNG" || err != nil || strings.Join(shown[0].Formats(), " ") != "png text" {
		t.Errorf("got %q, %v, %v", png, err, shown[0].Formats())
	}
	c, err := sb.Code(ctx, "python", &CodeContextOptions{Dir: "/usr"})
	if err != nil {
		t.Fatal(err)
	}
	if e, err = c.Run(ctx, "import os; y = 1; os.getcwd()", nil); err != nil || e.Text() != "/usr" || c.Dir != "/usr" {
		t.Errorf("got %+v, %v", e, err)
	}
	found := 0
	for c, err := range sb.CodeContexts(ctx) {
		if err != nil || c.Language != "python" {
			t.Errorf("got %+v, %v", c, err)
		}
		found++
	}
	if found != 2 {
		t.Errorf("%d contexts", found)
	}
	if err := c.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	if e, err = c.Run(ctx, "y", nil); err != nil || e.Error == nil || e.Error.Name != "NameError" {
		t.Errorf("got %+v, %v", e, err)
	}
	e, err = c.Run(ctx, "while True: pass", &CodeOptions{Timeout: 200 * time.Millisecond})
	if err != nil || e.Error == nil || e.Error.Name != "TimeoutError" {
		t.Errorf("got %+v, %v", e, err)
	}
	if e, err = c.Run(ctx, "import os; os._exit(4)", nil); err != nil || e.Error == nil || e.Error.Name != "ContextDied" {
		t.Errorf("got %+v, %v", e, err)
	}
	if e, err = c.Run(ctx, "1", nil); err != nil || !e.Restarted || e.Count != 1 {
		t.Errorf("got %+v, %v", e, err)
	}
	for range 2 {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := c.Run(ctx, "1", nil); !errors.Is(err, ErrProcessGone) {
		t.Errorf("got %v", err)
	}
	if _, err := sb.RunCode(ctx, "1", &CodeOptions{Language: "cobol"}); err == nil || !strings.Contains(err.Error(), "python") {
		t.Errorf("got %v", err)
	}
	// The end of ctx interrupts.
	over, cancel := context.WithCancel(ctx)
	_, err = sb.RunCode(over, "print('on')\nwhile True: pass", &CodeOptions{OnStdout: func(string) { cancel() }})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if e, err := sb.RunCode(ctx, "x", nil); err != nil || e.Text() != "20" {
		t.Errorf("got %+v, %v", e, err)
	}
}

// TestCodeMemoryLimit: a cell that the sandbox's memory limit ends says so, and the
// next one runs.
func TestCodeMemoryLimit(t *testing.T) {
	if _, err := exec.LookPath("/usr/bin/python3"); err != nil {
		t.Skip("no /usr/bin/python3")
	}
	sb := localSandboxWith(t, &CreateOptions{Memory: 256 * MiB})
	rep, err := sb.Report(t.Context())
	must(t, err)
	if rep.Limits["memory"] == "none" || rep.Limits["memory"] == "" {
		t.Skipf("memory cannot be limited here: %+v", rep.Degraded)
	}
	e, err := sb.RunCode(t.Context(), "all = [b'x' * (1 << 20) for _ in range(2048)]", nil)
	if err != nil || e.Error == nil || e.Error.Name != "ContextDied" || e.Error.Value != "out of memory" {
		t.Errorf("got %+v, %v", e, err)
	}
	if e, err := sb.RunCode(t.Context(), "1 + 1", nil); err != nil || e.Text() != "2" || !e.Restarted {
		t.Errorf("afterwards: %+v, %v", e, err)
	}
}
