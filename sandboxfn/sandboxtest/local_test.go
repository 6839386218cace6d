package sandboxtest_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
)

// local returns a context under which calls run in sandboxes of this machine.
func local(t testing.TB) context.Context {
	t.Helper()
	c, err := sandboxfn.NewClient(&sandboxfn.ClientOptions{Provider: "local", StateDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	ctx := sandboxfn.WithClient(t.Context(), c)
	if _, err := double.Call(ctx, 1); errors.Is(err, sandboxfn.ErrIsolation) && os.Getenv("CI") != "true" {
		t.Skipf("no sandboxes on this machine: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	return ctx
}

func TestCallsInSandboxes(t *testing.T) {
	ctx := local(t)
	t.Run("values", func(t *testing.T) {
		for _, e := range echoes {
			t.Run(e.name, func(t *testing.T) { e.run(t, ctx) })
		}
	})
	t.Run("warm", func(t *testing.T) {
		if a, b := workerPid(t, ctx), workerPid(t, ctx); a != b {
			t.Errorf("calls ran in %s and %s", a, b)
		}
	})
	t.Run("error", func(t *testing.T) {
		if _, err := fail.Call(ctx, "sentinel"); err != errEmpty {
			t.Errorf("got %v", err)
		}
	})
	t.Run("output", func(t *testing.T) {
		for _, how := range []string{"function", "child"} {
			out, _, o := capture(sandboxfn.Options{})
			if _, err := shout.With(o).Call(ctx, how); err != nil {
				t.Fatal(err)
			}
			if want := loud(how); !bytes.Equal(out.Bytes(), want) {
				t.Errorf("%s: got %d bytes, want %d, or they differ%s", how, out.Len(), len(want), notes(out))
			}
		}
		out, _, o := capture(sandboxfn.Options{Env: map[string]string{envNoisy: "1"}})
		if _, err := shout.With(o).Call(ctx, "nothing"); err != nil || !bytes.Equal(out.Bytes(), loud("init")) {
			t.Errorf("init: got %d bytes, %v%s", out.Len(), err, notes(out))
		}
	})
	t.Run("panic", func(t *testing.T) {
		_, err := obey.Call(ctx, order{What: "panic"})
		if p, ok := errors.AsType[*sandboxfn.PanicError](err); !ok || p.Value != "boom" {
			t.Errorf("got %v", err)
		}
		workerPid(t, ctx)
	})
	t.Run("exit", func(t *testing.T) {
		_, err := obey.With(sandboxfn.Options{Stderr: io.Discard}).Call(ctx, order{What: "exit"})
		if l, ok := errors.AsType[*sandboxfn.WorkerLostError](err); !ok || l.ExitCode != 3 || !l.Started || l.Stderr != "last words\n" {
			t.Errorf("got %+v", err)
		}
		workerPid(t, ctx)
	})
	t.Run("kill", func(t *testing.T) {
		_, err := obey.Call(ctx, order{What: "kill"})
		if l, ok := errors.AsType[*sandboxfn.WorkerLostError](err); !ok || l.Signal != "killed" || l.OOM {
			t.Errorf("got %+v", err)
		}
		workerPid(t, ctx)
	})
	t.Run("deadline", func(t *testing.T) {
		dctx, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		defer cancel()
		begin := time.Now()
		_, err := obey.Call(dctx, order{What: "sleep", For: time.Minute})
		if took := time.Since(begin); !errors.Is(err, context.DeadlineExceeded) || took > 20*time.Second {
			t.Errorf("got %v after %v", err, took)
		}
		workerPid(t, ctx)
	})
}

var hog = declare("hog", func(_ context.Context, mib int) (int, error) {
	var all [][]byte
	for range mib {
		b := make([]byte, 1<<20)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		all = append(all, b)
	}
	return len(all), nil
})

func TestMemoryLimit(t *testing.T) {
	ctx := local(t)
	sb, err := sandboxfn.Create(ctx, &sandboxfn.CreateOptions{Memory: 128 * sandboxfn.MiB})
	if err != nil {
		t.Fatal(err)
	}
	report, err := sb.Report(ctx)
	sb.Close()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range report.Degraded {
		if d.What == "memory" {
			t.Skipf("this machine does not let us limit memory: %s", d.Why)
		}
	}
	_, err = hog.With(sandboxfn.Options{Memory: 128 * sandboxfn.MiB}).Call(ctx, 512)
	l, ok := errors.AsType[*sandboxfn.WorkerLostError](err)
	if !ok || !l.OOM || !errors.Is(err, sandboxfn.ErrMemoryLimit) {
		t.Errorf("got %+v", err)
	}
	if n, err := hog.With(sandboxfn.Options{Memory: 128 * sandboxfn.MiB}).Call(ctx, 10); n != 10 || err != nil {
		t.Errorf("the next call: %d, %v", n, err)
	}
}
