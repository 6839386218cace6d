package sandboxtest_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/sandboxtest"
)

// noMap stays nil: writing to it panics.
var noMap map[string]int

type order struct {
	What string
	Path string
	For  time.Duration
}

// patience is how long something is waited for that comes at once on a machine
// that has nothing else to do.
const patience = 20 * time.Second

// obey does what it is told: it is the function in which things go wrong.
var obey = declareWith("obey", sandboxfn.Options{Timeout: 20 * time.Second, Grace: 300 * time.Millisecond}, doOrder)

var obeyAgain = declareWith("obeyAgain", sandboxfn.Options{Idempotent: true, Backoff: sandboxfn.Backoff{First: time.Millisecond, Max: time.Millisecond, Factor: 1}}, doOrder)

func doOrder(ctx context.Context, o order) (string, error) {
	note := func(text string) {
		f, err := os.OpenFile(o.Path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err == nil {
			fmt.Fprintln(f, text)
			f.Close()
		}
	}
	switch o.What {
	case "pid":
		return fmt.Sprint(os.Getpid()), nil
	case "panic":
		panic("boom")
	case "panic with an error":
		panic(fmt.Errorf("wrapped: %w", errEmpty))
	case "nil map":
		noMap["x"] = 1
	case "goexit":
		runtime.Goexit()
	case "exit":
		fmt.Fprintln(os.Stderr, "last words")
		os.Exit(3)
	case "kill":
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	case "overflow":
		debug.SetMaxStack(1 << 20)
		var f func(int) int
		f = func(n int) int { return f(n+1) + 1 }
		return fmt.Sprint(f(0)), nil
	case "sleep":
		time.Sleep(o.For)
		note("woke up")
	case "wait":
		select {
		case <-ctx.Done():
			note(fmt.Sprint("cause ", context.Cause(ctx)))
			return "", ctx.Err()
		case <-time.After(o.For):
		}
	case "wait and answer":
		<-ctx.Done()
		return "partial", fmt.Errorf("gave up: %w", ctx.Err())
	case "foreign result":
		// A frame of a result in parts, of a call that there never was, and 1 MiB of its 8.
		header := func(length int, typ, flags byte) []byte {
			b := binary.LittleEndian.AppendUint32(nil, uint32(length))
			return binary.LittleEndian.AppendUint64(append(b, typ, flags, 0, 0), 1000)
		}
		table := binary.AppendUvarint(binary.AppendUvarint(nil, 8<<20), 0)
		wire := append(append(header(len(table), 3, 1), table...), header(1<<20, 6, 0)...)
		for wire = append(wire, make([]byte, 1<<20)...); len(wire) > 0; {
			n, err := syscall.Write(3, wire)
			if err != nil && err != syscall.EAGAIN {
				return "", err
			}
			wire = wire[max(n, 0):]
		}
	case "stop later":
		time.AfterFunc(o.For, func() { syscall.Kill(os.Getpid(), syscall.SIGSTOP) })
	case "deadline":
		d, ok := ctx.Deadline()
		return fmt.Sprint(ok, time.Until(d).Round(time.Second)), nil
	case "note and die":
		note("ran")
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	case "note and die once":
		b, _ := os.ReadFile(o.Path)
		note("ran")
		if len(b) == 0 {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
		return "done", nil
	case "transient":
		b, _ := os.ReadFile(o.Path)
		note("ran")
		if bytes.Count(b, []byte("\n")) < 2 {
			return "", sandboxfn.Transient(errEmpty)
		}
		return "done", nil
	case "bad result":
		return strings.Repeat("x", 600<<20), nil
	}
	return "ok", nil
}

func workerPid(t *testing.T, ctx context.Context) string {
	t.Helper()
	pid, err := obey.Call(ctx, order{What: "pid"})
	if err != nil {
		t.Fatalf("the next call: %v", err)
	}
	return pid
}

func TestWorkerStaysWarm(t *testing.T) {
	ctx := sandboxtest.Process(t)
	if a, b := workerPid(t, ctx), workerPid(t, ctx); a != b {
		t.Errorf("calls ran in %s and %s, want one worker", a, b)
	}
}

func TestPanic(t *testing.T) {
	ctx := sandboxtest.Process(t)
	for what, want := range map[string]string{
		"panic":               "boom",
		"panic with an error": "wrapped: empty",
		"nil map":             "assignment to entry in nil map",
		"goexit":              "the function called runtime.Goexit",
	} {
		t.Run(what, func(t *testing.T) {
			before := workerPid(t, ctx)
			got, err := obey.Call(ctx, order{What: what})
			var p *sandboxfn.PanicError
			if !errors.As(err, &p) || p.Value != want || got != "" {
				t.Fatalf("got %q, %v", got, err)
			}
			if !strings.Contains(p.Stack, "doOrder") || strings.Contains(p.Stack, "recover.go") {
				t.Errorf("stack does not begin in the function:\n%s", p.Stack)
			}
			if !errors.Is(err, sandboxfn.ErrPanic) || sandboxfn.CodeOf(err) != "E9012" {
				t.Errorf("no E9012: %v", err)
			}
			if s := fmt.Sprintf("%+v", err); !strings.Contains(s, p.Stack) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%%+v is %q, text is %q", s, err)
			}
			if workerPid(t, ctx) == before {
				t.Error("the worker was used again")
			}
		})
	}
}

func TestWorkerDies(t *testing.T) {
	ctx := sandboxtest.Process(t)
	for _, c := range []struct {
		what   string
		code   int
		signal string
		stderr string
	}{
		{"exit", 3, "", "last words\n"},
		{"kill", -1, "killed", ""},
		{"overflow", 2, "", "stack overflow"},
	} {
		t.Run(c.what, func(t *testing.T) {
			_, err := obey.With(sandboxfn.Options{Log: sandboxfn.LogDiscard}).Call(ctx, order{What: c.what})
			var l *sandboxfn.WorkerLostError
			if !errors.As(err, &l) {
				t.Fatalf("got %v", err)
			}
			if !l.Started || l.ExitCode != c.code || l.Signal != c.signal || l.OOM {
				t.Errorf("got %+v", l)
			}
			if c.what != "overflow" && l.Stderr != c.stderr || len(l.Stderr) > 8<<10 {
				t.Errorf("stderr %q, want %q", l.Stderr, c.stderr)
			}
			if !errors.Is(err, sandboxfn.ErrWorkerLost) || errors.Is(err, sandboxfn.ErrMemoryLimit) {
				t.Errorf("not E9006: %v", err)
			}
			workerPid(t, ctx)
		})
	}
}

// A worker cannot fill the memory of the caller with what nobody waits for.
func TestForeignResultIsRefused(t *testing.T) {
	ctx := sandboxtest.Process(t)
	_, err := obey.With(sandboxfn.Options{MaxPayload: 64 * sandboxfn.KiB}).Call(ctx, order{What: "foreign result"})
	if !errors.Is(err, sandboxfn.ErrWorkerLost) || !strings.Contains(err.Error(), "message over the limit") {
		t.Errorf("got %v", err)
	}
	workerPid(t, ctx)
}

// A worker that dies between two calls costs the next call nothing.
func TestKilledBetweenCalls(t *testing.T) {
	ctx := sandboxtest.Process(t)
	for range 20 {
		pid := 0
		fmt.Sscan(workerPid(t, ctx), &pid)
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		for syscall.Kill(pid, 0) == nil {
			time.Sleep(100 * time.Microsecond)
		}
		workerPid(t, ctx)
	}
}

func TestDeadline(t *testing.T) {
	for mode, begin := range map[string]func(testing.TB) context.Context{"in process": sandboxtest.InProcess, "process": sandboxtest.Process} {
		for _, what := range []string{"wait", "sleep"} {
			t.Run(mode+"/"+what, func(t *testing.T) {
				t.Parallel() // it waits
				ctx := begin(t)
				if mode == "in process" && what == "sleep" {
					t.Skip("a function that ignores its context can't be stopped here")
				}
				f := obey
				if what == "wait" { // it has as long as the machine needs
					f = obey.With(sandboxfn.Options{Grace: patience})
				}
				f.Call(ctx, order{What: "pid"}) // the start of a worker is not what is measured
				path := filepath.Join(t.TempDir(), "side effect")
				dctx, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
				defer cancel()
				begin := time.Now()
				_, err := f.Call(dctx, order{What: what, Path: path, For: 6 * time.Second})
				const most = 5 * time.Second
				if took := time.Since(begin); took > most || took < 290*time.Millisecond {
					t.Errorf("returned after %v", took)
				}
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("got %v", err)
				}
				workerPid(t, ctx)
				time.Sleep(time.Until(begin.Add(7 * time.Second)))
				b, _ := os.ReadFile(path)
				if want := map[string]string{"wait": "cause context deadline exceeded\n", "sleep": ""}[what]; string(b) != want {
					t.Errorf("side effects %q, want %q", b, want)
				}
			})
		}
	}
}

func TestTimeoutOption(t *testing.T) {
	ctx := sandboxtest.Process(t)
	// left is the time that a function has, of the most that it may have.
	left := func(ctx context.Context, f sandboxfn.Func[order, string], most time.Duration) {
		t.Helper()
		got, err := f.Call(ctx, order{What: "deadline"})
		text, _ := strings.CutPrefix(got, "true ")
		if d, perr := time.ParseDuration(text); err != nil || perr != nil || d <= most/2 || d > most {
			t.Errorf("time that is left in the function: %q, %v; want nearly %v", got, err, most)
		}
	}
	left(ctx, obey.With(sandboxfn.Options{Timeout: 100 * time.Second}), 100*time.Second)
	f := obey.With(sandboxfn.Options{Timeout: 200 * time.Millisecond})
	_, err := f.Call(ctx, order{What: "sleep", For: 5 * time.Second})
	if sandboxfn.CodeOf(err) != "E9013" || !errors.Is(err, sandboxfn.ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if !strings.Contains(fmt.Sprint(err), "timed out after 200ms") {
		t.Errorf("text is %v", err)
	}
	if got, err := f.With(sandboxfn.Options{Timeout: sandboxfn.NoTimeout}).Call(ctx, order{What: "deadline"}); !strings.HasPrefix(got, "false") || err != nil {
		t.Errorf("without a timeout: %q, %v", got, err)
	}
	dctx, cancel := context.WithTimeout(ctx, 100*time.Second)
	defer cancel()
	for _, o := range []sandboxfn.Options{{Timeout: 40 * time.Second}, {Timeout: 400 * time.Second}} {
		left(dctx, obey.With(o), min(o.Timeout, 100*time.Second)) // the earlier of the two
	}
}

// The timeout covers the sending of arguments, which a worker that has stopped
// does not take.
func TestTimeoutWhileArgumentsAreSent(t *testing.T) {
	ctx := sandboxtest.Process(t)
	path := filepath.Join(t.TempDir(), "note")
	pid := workerPid(t, ctx)
	if _, err := obey.Call(ctx, order{What: "stop later", For: time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		if strings.Contains(string(stat), ") T ") {
			break
		}
		if err != nil || time.Now().After(end) {
			t.Fatalf("the worker has not stopped: %q, %v", stat, err)
		}
	}
	begin := time.Now()
	f := obey.With(sandboxfn.Options{Timeout: 300 * time.Millisecond})
	done := make(chan error, 1)
	go func() {
		_, err := f.Call(ctx, order{What: strings.Repeat("y", 10<<20), Path: path})
		done <- err
	}()
	select {
	case err := <-done:
		if sandboxfn.CodeOf(err) != "E9013" || !errors.Is(err, sandboxfn.ErrTimeout) {
			t.Errorf("got %v", err)
		}
		if took := time.Since(begin); took > patience {
			t.Errorf("returned after %v", took)
		}
	case <-time.After(2 * patience):
		t.Fatal("the call does not return")
	}
	workerPid(t, ctx)
}

func TestCancel(t *testing.T) {
	ctx := sandboxtest.Process(t)
	before := workerPid(t, ctx)
	path := filepath.Join(t.TempDir(), "note")
	patient := obey.With(sandboxfn.Options{Grace: patience}) // the machine may be slow, the function is not
	cctx, cancel := context.WithCancelCause(ctx)
	time.AfterFunc(50*time.Millisecond, func() { cancel(errEmpty) })
	_, err := patient.Call(cctx, order{What: "wait", Path: path, For: time.Minute})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	// A caller waits 100 ms for the answer, and the next call as long as the grace.
	if after, err := patient.With(sandboxfn.Options{Workers: sandboxfn.Workers{Max: 1}}).Call(ctx, order{What: "pid"}); after != before || err != nil {
		t.Errorf("a function that observes its context cost its worker: %v", err)
	}
	if b, _ := os.ReadFile(path); string(b) != "cause empty\n" {
		t.Errorf("the function saw %q", b)
	}

	for i := 1; ; i++ {
		cctx, cancel = context.WithCancelCause(ctx)
		time.AfterFunc(50*time.Millisecond, func() { cancel(errEmpty) })
		got, err := patient.Call(cctx, order{What: "wait and answer"})
		if sandboxfn.CodeOf(err) == "E9014" && i < 10 {
			continue // the answer came too late
		}
		if got != "partial" || !errors.Is(err, context.Canceled) || err.Error() != "gave up: context canceled" {
			t.Errorf("the function's own answer: %q, %v", got, err)
		}
		break
	}

	cctx, cancel = context.WithCancelCause(ctx)
	time.AfterFunc(50*time.Millisecond, func() { cancel(errEmpty) })
	_, err = obey.Call(cctx, order{What: "sleep", For: 5 * time.Second})
	if sandboxfn.CodeOf(err) != "E9014" || !errors.Is(err, context.Canceled) || !errors.Is(err, errEmpty) {
		t.Errorf("a function that ignores it: %v", err)
	}

	cancel(nil)
	if _, err = obey.Call(cctx, order{What: "pid"}); sandboxfn.CodeOf(err) != "E9014" {
		t.Errorf("cancelled before: %v", err)
	}
	workerPid(t, ctx)
}

func lines(t *testing.T, path string) int {
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Count(b, []byte("\n"))
}

func TestAtMostOnce(t *testing.T) {
	ctx := sandboxtest.Process(t)
	path := filepath.Join(t.TempDir(), "log")
	_, err := obey.Call(ctx, order{What: "note and die", Path: path})
	var l *sandboxfn.WorkerLostError
	if !errors.As(err, &l) || !l.Started || !strings.Contains(err.Error(), "outcome is unknown") {
		t.Errorf("got %v", err)
	}
	if n := lines(t, path); n != 1 {
		t.Errorf("ran %d times, want once", n)
	}
}

func TestIdempotentIsRepeated(t *testing.T) {
	ctx := sandboxtest.Process(t)
	for what, want := range map[string]int{"note and die once": 2, "note and die": 3, "transient": 3} {
		t.Run(what, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "log")
			got, err := obeyAgain.Call(ctx, order{What: what, Path: path})
			if what == "note and die" {
				if !errors.Is(err, sandboxfn.ErrWorkerLost) {
					t.Errorf("got %v", err)
				}
			} else if got != "done" || err != nil {
				t.Errorf("got %q, %v", got, err)
			}
			if n := lines(t, path); n != want {
				t.Errorf("ran %d times, want %d", n, want)
			}
		})
	}
	t.Run("transient without the mark", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "log")
		_, err := obey.Call(ctx, order{What: "transient", Path: path})
		if !errors.Is(err, errEmpty) || err.Error() != "empty" || lines(t, path) != 1 {
			t.Errorf("got %v after %d runs", err, lines(t, path))
		}
	})
	t.Run("no retries", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "log")
		_, err := obeyAgain.With(sandboxfn.Options{Retries: sandboxfn.NoRetries}).Call(ctx, order{What: "transient", Path: path})
		if !errors.Is(err, errEmpty) || lines(t, path) != 1 {
			t.Errorf("got %v after %d runs", err, lines(t, path))
		}
	})
}

func TestManyCallers(t *testing.T) {
	ctx := sandboxtest.Process(t)
	f := double.With(sandboxfn.Options{Workers: sandboxfn.Workers{Max: 3}})
	errs := make(chan error, 16)
	for i := range 16 {
		go func() {
			for j := range 50 {
				n := i*1000 + j
				got, err := f.Call(ctx, n)
				if err == nil && got != 2*n {
					err = fmt.Errorf("double(%d) = %d", n, got)
				}
				if err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	for range 16 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for name, o := range map[string]sandboxfn.Options{
		"timeout":     {Timeout: 25 * time.Hour},
		"negative":    {Timeout: -5},
		"retries":     {Retries: 3},
		"workers":     {Workers: sandboxfn.Workers{Min: 5, Max: 2}},
		"log":         {Log: "loud"},
		"max payload": {MaxPayload: 5},
		"backoff":     {Backoff: sandboxfn.Backoff{First: time.Second}},
	} {
		for mode, begin := range map[string]func(testing.TB) context.Context{"in process": sandboxtest.InProcess, "process": sandboxtest.Process} {
			if _, err := obey.With(o).Call(begin(t), order{}); sandboxfn.CodeOf(err) != "E2011" {
				t.Errorf("%s, %s: %v", name, mode, err)
			}
		}
	}
}

func TestInitFails(t *testing.T) {
	ctx := sandboxtest.Process(t)
	f := double.With(sandboxfn.Options{Env: map[string]string{envBadInit: "1"}, Log: sandboxfn.LogDiscard})
	_, err := f.Call(ctx, 1)
	want := "E9015 sandboxtest_test.Double: step hello: E9006 worker exited with status 2; the function had not been started; it wrote: panic: no configuration"
	if !errors.Is(err, sandboxfn.ErrWorkerStart) || !strings.HasPrefix(fmt.Sprint(err), want) {
		t.Errorf("got %v", err)
	}
	if l, ok := errors.AsType[*sandboxfn.WorkerLostError](err); !ok || l.Started {
		t.Errorf("got %#v", err)
	}
}

const envBadInit = "SANDBOXTEST_BAD_INIT"

func init() {
	if os.Getenv(envBadInit) != "" {
		panic("no configuration")
	}
}
