package sandboxfn

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/runtime/code/drivers"
)

// drivenSandbox is a sandbox of which only the process API is there, and the folder
// for its temporary files.
func drivenSandbox(t *testing.T, env map[string]string) (sb *Sandbox, tmp string) {
	t.Helper()
	tmp = t.TempDir()
	all := map[string]string{"TMPDIR": tmp}
	maps.Copy(all, env)
	return create(t, foreignSandbox(t).client, &CreateOptions{Env: all}), tmp
}

// drivenCell runs a cell in a sandbox that has no interpreter of its own.
func drivenCell(t *testing.T, sb *Sandbox, lang, code string, timeout time.Duration) *Execution {
	t.Helper()
	e, err := sb.RunCode(t.Context(), code, &CodeOptions{Language: lang, Timeout: timeout, Env: map[string]string{"A": "q\"%\n"}})
	if err != nil {
		t.Fatalf("%s: %v", code, err)
	}
	if e.Via != "process" {
		t.Errorf("%s: via %q", code, e.Via)
	}
	return e
}

// TestCodeDriven: what the languages do where the driver is started from outside.
// Output, also of children, stays apart; interrupts keep the state.
func TestCodeDriven(t *testing.T) {
	for _, c := range []struct {
		lang, program               string
		set, get, fails, fault      string
		both                        string // prints "out\n" and "err\n", each by itself and by a child
		waits, computes, child, dir string
	}{
		{"python", "python3", "import os, sys, subprocess\nx = 5", "print(x, repr(os.environ['A']))", "1/0", "ZeroDivisionError",
			"print('out'); print('err', file=sys.stderr); subprocess.run('echo out; echo err >&2', shell=True);",
			"import time; time.sleep(1000)", "while True: pass", "subprocess.run(['sleep', '1000'])", "import os; print(os.getcwd())"},
		{"javascript", "node", "const x = 5; undefined", "console.log(x, JSON.stringify(process.env.A))", "throw new TypeError('no')", "TypeError",
			"console.log('out'); console.error('err'); require('child_process').execSync('echo out; echo err >&2', { stdio: 'inherit' }); undefined",
			"await new Promise(() => {})", "while (true) {}", "require('child_process').execSync('sleep 1000')", "console.log(process.cwd())"},
		{"bash", "bash", "x=5", `echo "$x" "$A"`, "(exit 3)", "ExitCode",
			"echo out; echo err >&2; sh -c 'echo out; echo err >&2'",
			"sleep 1000; echo no", "while :; do :; done", "sh -c 'sleep 1000'", "pwd"},
	} {
		t.Run(c.lang, func(t *testing.T) {
			need(t, c.program)
			sb, tmp := drivenSandbox(t, nil)
			drivenCell(t, sb, c.lang, c.set, 0)
			if e := drivenCell(t, sb, c.lang, c.get, 0); !strings.HasPrefix(strings.Join(e.Stdout, ""), "5 ") || !strings.Contains(strings.Join(e.Stdout, ""), "q") || e.Count != 2 {
				t.Errorf("got %+v", e)
			}
			if e := drivenCell(t, sb, c.lang, c.both, 0); strings.Join(e.Stdout, "") != "out\nout\n" || strings.Join(e.Stderr, "") != "err\nerr\n" || e.Error != nil {
				t.Errorf("got %+v", e)
			}
			if e := drivenCell(t, sb, c.lang, c.fails, 0); e.Error == nil || e.Error.Name != c.fault {
				t.Errorf("got %+v", e)
			}
			for _, code := range []string{c.waits, c.computes, c.child} {
				e := drivenCell(t, sb, c.lang, code, 300*time.Millisecond)
				if e.Error == nil || e.Error.Name != "TimeoutError" || !strings.Contains(e.Error.Value, "kept") {
					t.Errorf("%s: got %+v", code, e.Error)
				}
				if e := drivenCell(t, sb, c.lang, c.get, 0); !strings.HasPrefix(strings.Join(e.Stdout, ""), "5 ") {
					t.Errorf("%s: the state is lost: %+v", code, e)
				}
			}
			one, err := sb.Code(t.Context(), c.lang, &CodeContextOptions{Dir: "/usr"})
			if err != nil {
				t.Fatal(err)
			}
			if e, err := one.Run(t.Context(), c.dir, nil); err != nil || strings.TrimSpace(strings.Join(e.Stdout, "")) != "/usr" || one.Dir != "/usr" || e.Count != 1 {
				t.Errorf("got %+v, %v, %q", e, err, one.Dir)
			}
			if err := one.Close(); err != nil {
				t.Error(err)
			}
			if _, err := one.Run(t.Context(), c.dir, nil); !errors.Is(err, ErrProcessGone) {
				t.Errorf("got %v", err)
			}
			processes := 0
			for range sb.CodeContexts(t.Context()) {
				processes++
			}
			if processes != 1 {
				t.Errorf("%d contexts", processes)
			}
			for ctx := range sb.CodeContexts(t.Context()) {
				ctx.Close()
			}
			// Another handle has contexts of its own, which end with it.
			other, err := sb.client.Connect(t.Context(), sb.ID(), nil)
			if err != nil {
				t.Fatal(err)
			}
			drivenCell(t, other, c.lang, c.set, 0)
			if err := other.Close(); err != nil {
				t.Error(err)
			}
			// Nothing is left: no process, no file.
			driversGone(t, sb, tmp)
		})
	}
}

// TestCodeDrivenQueue: cells of one context at once run one after the other, and none
// gets what is another's; one whose caller leaves holds up nobody.
func TestCodeDrivenQueue(t *testing.T) {
	need(t, "bash")
	sb, _ := drivenSandbox(t, nil)
	drivenCell(t, sb, "bash", "n=0", 0)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := sb.RunCode(ctx, "echo on; sleep 1000", &CodeOptions{Language: "bash", OnStdout: func(string) { cancel() }})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	var all sync.WaitGroup
	for i := range 10 {
		all.Go(func() {
			id := strconv.Itoa(i)
			e, err := sb.RunCode(t.Context(), "echo "+id+"; sleep .01; echo "+id+" >&2; n=$((n+1))", &CodeOptions{Language: "bash"})
			if err != nil || strings.Join(e.Stdout, "") != id+"\n" || strings.Join(e.Stderr, "") != id+"\n" {
				t.Errorf("%d: got %+v, %v", i, e, err)
			}
		})
	}
	all.Wait()
	if e := drivenCell(t, sb, "bash", "echo $n", 0); strings.Join(e.Stdout, "") != "10\n" || e.Count != 13 {
		t.Errorf("got %+v", e)
	}
}

// TestCodeDrivenLimits: there are 32 contexts at most, and one that nobody uses for
// too long is removed with its process, but not while a cell runs.
func TestCodeDrivenLimits(t *testing.T) {
	need(t, "bash")
	sb, _ := drivenSandbox(t, nil)
	var last *CodeContext
	for range drivers.MaxContexts {
		c, err := sb.Code(t.Context(), "bash", nil)
		if err != nil {
			t.Fatal(err)
		}
		last = c
	}
	for what, make := range map[string]func() error{
		"context":      func() error { _, err := sb.Code(t.Context(), "bash", nil); return err },
		"default one":  func() error { _, err := sb.RunCode(t.Context(), "1", &CodeOptions{Language: "bash"}); return err },
		"another call": func() error { _, err := sb.RunCode(t.Context(), "1", nil); return err },
	} {
		if err := make(); CodeOf(err) != "E3000" || !strings.Contains(err.Error(), "at most 32") {
			t.Errorf("%s too many: got %v", what, err)
		}
	}
	if _, err := last.Run(t.Context(), "true", nil); err != nil {
		t.Errorf("one of them: %v", err)
	}
	last.Close()
	sb.codes.testOnlyIdle.Store(int64(time.Second))
	busy, err := sb.Code(t.Context(), "bash", nil)
	if err != nil {
		t.Fatal(err)
	}
	if e, err := busy.Run(t.Context(), "sleep 2; echo done", nil); err != nil || strings.Join(e.Stdout, "") != "done\n" {
		t.Errorf("a cell that takes longer: %+v, %v", e, err)
	}
	waitFor(t, patience, "the context is removed", func() bool { return len(sb.listDriven()) == drivers.MaxContexts-1 })
	if _, err := busy.Run(t.Context(), "true", nil); !errors.Is(err, ErrProcessGone) {
		t.Errorf("a removed one: %v", err)
	}
	if err := busy.Restart(t.Context()); !errors.Is(err, ErrProcessGone) {
		t.Errorf("restart of a removed one: %v", err)
	}
	if err := busy.Close(); err != nil {
		t.Errorf("close of a removed one: %v", err)
	}
	for c := range sb.CodeContexts(t.Context()) {
		c.Close()
	}
	// Default contexts are made anew, without the state.
	drivenCell(t, sb, "bash", "x=5", 0)
	waitFor(t, patience, "the processes end", func() bool {
		left, err := sb.envd.Processes(t.Context())
		return err == nil && len(left) == 0 && len(sb.listDriven()) == 0
	})
	if e := drivenCell(t, sb, "bash", "echo \"[$x]\"", 0); strings.Join(e.Stdout, "") != "[]\n" || e.Count != 1 || e.Restarted {
		t.Errorf("got %+v", e)
	}
}

// TestCodeDrivenCancelled: a context that could not be made, because its caller left,
// does not stay.
func TestCodeDrivenCancelled(t *testing.T) {
	need(t, "bash")
	sb, _ := drivenSandbox(t, nil)
	if _, err := sb.Code(t.Context(), "bash", nil); err != nil { // the way is known now
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 40 {
		if _, err := sb.Code(ctx, "bash", nil); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	}
	if n := len(sb.listDriven()); n != 1 {
		t.Errorf("%d contexts", n)
	}
}

// TestCodeDrivenCutOff: a start that is given up, wherever it is, leaves nothing in the
// sandbox.
func TestCodeDrivenCutOff(t *testing.T) {
	need(t, "bash")
	sb, tmp := drivenSandbox(t, nil)
	drivenCell(t, sb, "bash", "true", 0) // the way is known now
	var all sync.WaitGroup
	for i := range 120 {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*250*time.Microsecond)
			defer cancel()
			c, err := sb.Code(ctx, "bash", nil)
			if err == nil {
				c.Close()
			} else if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v", err)
			}
		})
		if i%4 == 3 {
			all.Wait()
		}
	}
	for _, c := range sb.listDriven() {
		sb.dropDriven(c)
	}
	driversGone(t, sb, tmp)
}

// TestCodeDrivenMissing: a language whose program is not there, and one that nobody
// knows.
func TestCodeDrivenMissing(t *testing.T) {
	bin := t.TempDir()
	for _, tool := range []string{"sh", "mktemp", "mkfifo", "cat", "rm"} {
		for _, dir := range []string{"/bin", "/usr/bin"} {
			if _, err := os.Stat(filepath.Join(dir, tool)); err == nil {
				os.Symlink(filepath.Join(dir, tool), filepath.Join(bin, tool))
				break
			}
		}
	}
	sb, tmp := drivenSandbox(t, map[string]string{"PATH": bin})
	if _, err := sb.RunCode(t.Context(), "1", nil); !errors.Is(err, ErrInterpreterMissing) || !strings.Contains(err.Error(), "install python3") {
		t.Errorf("got %v", err)
	}
	if _, err := sb.Code(t.Context(), "js", nil); !errors.Is(err, ErrInterpreterMissing) {
		t.Errorf("got %v", err)
	}
	if _, err := sb.Code(t.Context(), "cobol", nil); CodeOf(err) != "E3011" {
		t.Errorf("got %v", err)
	}
	n := 0
	for range sb.CodeContexts(t.Context()) {
		n++
	}
	if n != 1 { // the default one, which may find its program later
		t.Errorf("%d contexts", n)
	}
	if left, err := filepath.Glob(filepath.Join(tmp, "sandbox-code-*")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// portedHost is a provider of sandboxes whose port 49999 is elsewhere.
type portedHost struct {
	*hostProvider
	url string
}

func (p *portedHost) Capabilities(ctx context.Context) (providers.Capabilities, error) {
	c, err := p.hostProvider.Capabilities(ctx)
	c.Set = map[providers.Capability]bool{providers.CapPorts: true}
	return c, err
}

func (p *portedHost) Port(context.Context, string, int) (providers.Endpoint, error) {
	return providers.Endpoint{URL: p.url}, nil
}

// TestCodeWay: what serves port 49999 is used, also when it refuses; where nothing
// does, the interpreter is started from outside.
func TestCodeWay(t *testing.T) {
	need(t, "bash")
	refused := httptest.NewServer(nil)
	refused.Close()
	for name, c := range map[string]struct {
		health int // zero: nothing listens
		via    string
		fails  bool
	}{
		"serves": {200, "port", false}, "refuses the token": {401, "", true}, "breaks": {500, "", true},
		"no such path": {404, "process", false}, "no such port": {502, "process", false}, "nothing listens": {0, "process", false},
	} {
		t.Run(name, func(t *testing.T) {
			sb, _ := drivenSandbox(t, nil)
			url := refused.URL
			if c.health != 0 {
				srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path == "/execute" && c.health == http.StatusOK {
						w.Write([]byte(`{"type":"stdout","text":"port\n"}` + "\n" + `{"type":"end_of_execution"}` + "\n"))
						return
					}
					w.WriteHeader(c.health)
				}))
				t.Cleanup(srv.Close)
				url = srv.URL
			}
			sb.provider = &portedHost{sb.provider.(*hostProvider), url}
			e, err := sb.RunCode(t.Context(), "echo process", &CodeOptions{Language: "bash"})
			if c.fails {
				if err == nil || errors.Is(err, ErrInterpreterMissing) || len(sb.listDriven()) != 0 {
					t.Errorf("got %+v, %v", e, err)
				}
				return
			}
			if err != nil || e.Via != c.via || strings.Join(e.Stdout, "") != c.via+"\n" {
				t.Errorf("got %+v, %v", e, err)
			}
		})
	}
}

// driversGone waits until drivers have left neither folders in tmp nor processes.
func driversGone(t *testing.T, sb *Sandbox, tmp string) {
	t.Helper()
	waitFor(t, patience, "the folders of drivers are removed", func() bool {
		left, err := filepath.Glob(filepath.Join(tmp, "sandbox-code-*"))
		return err == nil && len(left) == 0
	})
	waitFor(t, patience, "the processes end", func() bool {
		left, err := sb.envd.Processes(t.Context())
		return err == nil && len(left) == 0
	})
}
