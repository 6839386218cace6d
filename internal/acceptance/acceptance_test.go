// Package acceptance runs annotated functions in real local sandboxes and
// checks what a user of the library sees.
package acceptance

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/gen/gentest"
	"github.com/agent-sandbox/sandbox-go/internal/acceptance/fns"
	"github.com/agent-sandbox/sandbox-go/internal/sbtest"
	"github.com/agent-sandbox/sandbox-go/sandboxfn"
)

func TestMain(m *testing.M) { os.Exit(sbtest.Main(m)) }

func TestEverySignature(t *testing.T) {
	sbtest.NeedSandbox(t)
	for _, c := range gentest.Table() {
		t.Run(c.Name, func(t *testing.T) {
			want, wantErr := c.Plain(t.Context())
			got, gotErr := c.Remote(t.Context())
			if diff := gentest.Diff(got, gotErr, want, wantErr); diff != "" {
				t.Errorf("(-sandbox +plain):\n%s", diff)
			}
		})
	}
}

func TestErrorIdentity(t *testing.T) {
	sbtest.NeedSandbox(t)
	_, err := fns.Checked(t.Context(), 3)
	if !errors.Is(err, fns.ErrOdd) || err.Error() != "check 3: odd" {
		t.Errorf("got %v", err)
	}
}

// TestPrinting prints 10 MB from the function, its init and a child.
func TestPrinting(t *testing.T) {
	sbtest.NeedSandbox(t)
	const n = 10 << 20
	var stdout, stderr bytes.Buffer
	f := fns.NoisyFunc.With(sandboxfn.Options{
		Env:    map[string]string{"FNS_INIT_NOISE": fmt.Sprint(n)},
		Stdout: &stdout, Stderr: &stderr,
	})
	got, err := f.Call(t.Context(), n)
	if err != nil || got != n {
		t.Fatalf("got %d, %v", got, err)
	}
	want := slices.Concat(bytes.Repeat([]byte{'i'}, n), []byte("\x00\xff raw bytes in init\n"),
		bytes.Repeat([]byte{'o'}, n), make([]byte, n))
	if !bytes.Equal(stdout.Bytes(), want) {
		t.Errorf("standard output: %d bytes, want %d", stdout.Len(), len(want))
	}
	if !bytes.Equal(stderr.Bytes(), bytes.Repeat([]byte{'e'}, n)) {
		t.Errorf("standard error: %d bytes, want %d", stderr.Len(), n)
	}
}

// TestEnds lets a worker end in every way there is: each gives its own error,
// and the next call works.
func TestEnds(t *testing.T) {
	sbtest.NeedSandbox(t)
	lost := func(check func(*sandboxfn.WorkerLostError) bool) func(error) bool {
		return func(err error) bool {
			e, ok := errors.AsType[*sandboxfn.WorkerLostError](err)
			return ok && errors.Is(err, sandboxfn.ErrWorkerLost) && e.Started && check(e)
		}
	}
	for _, c := range []struct {
		name string
		call func(context.Context) error
		want func(error) bool
	}{
		{"cancelled", func(ctx context.Context) error {
			ctx, cancel := context.WithCancelCause(ctx)
			cause := errors.New("changed my mind")
			time.AfterFunc(100*time.Millisecond, func() { cancel(cause) })
			_, err := fns.Sleep(ctx, 10*time.Second, true, "")
			if context.Cause(ctx) != cause {
				return errors.New("cause lost")
			}
			return err
		}, func(err error) bool { return errors.Is(err, context.Canceled) }},
		{"deadline", func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
			defer cancel()
			_, err := fns.Sleep(ctx, 10*time.Second, false, "")
			return err
		}, func(err error) bool { return errors.Is(err, context.DeadlineExceeded) }},
		{"timeout of the call", func(ctx context.Context) error {
			_, err := fns.SleepFunc.With(sandboxfn.Options{Timeout: 200 * time.Millisecond}).
				Call(ctx, fns.SleepArgs{D: 10 * time.Second, Stubborn: true})
			return err
		}, func(err error) bool {
			return errors.Is(err, context.DeadlineExceeded) && errors.Is(err, sandboxfn.ErrTimeout)
		}},
		{"panic", func(ctx context.Context) error {
			_, err := fns.BlowUp(ctx, "boom")
			return err
		}, func(err error) bool {
			e, ok := errors.AsType[*sandboxfn.PanicError](err)
			return ok && strings.Contains(err.Error(), "boom") && strings.Contains(fmt.Sprintf("%+v", e), "fns.blowUp")
		}},
		{"os.Exit", func(ctx context.Context) error { return fns.Exit(ctx, 7) },
			lost(func(e *sandboxfn.WorkerLostError) bool {
				return e.ExitCode == 7 && strings.Contains(e.Stderr, "last words")
			})},
		{"killed from outside", func(ctx context.Context) error {
			_, err := fns.Kill(ctx)
			return err
		}, lost(func(e *sandboxfn.WorkerLostError) bool { return e.Signal == "killed" && !e.OOM })},
		{"out of memory", func(ctx context.Context) error {
			_, err := fns.Hog(ctx, 2048)
			return err
		}, lost(func(e *sandboxfn.WorkerLostError) bool { return e.OOM })},
	} {
		t.Run(c.name, func(t *testing.T) {
			start := time.Now()
			err := c.call(t.Context())
			if err == nil || !c.want(err) {
				t.Errorf("%T %+v", err, err)
			}
			if took := time.Since(start); took > 20*time.Second {
				t.Errorf("took %v", took)
			}
			if sum, err := fns.Add(t.Context(), 1, 2); err != nil || sum != 3 {
				t.Errorf("next call: %d, %v", sum, err)
			}
		})
	}
}

// TestGrace checks that a function which ignores its context is stopped, so
// that what it would do later never happens.
func TestGrace(t *testing.T) {
	sbtest.NeedSandbox(t)
	const mark = "/tmp/mark"
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err := fns.Sleep(ctx, time.Second, true, mark)
	if took := time.Since(start); !errors.Is(err, context.DeadlineExceeded) || took > 20*time.Second {
		t.Errorf("%v after %v", err, took)
	}
}

func TestWarm(t *testing.T) {
	sbtest.NeedSandbox(t)
	pid, host, err := fns.Pid(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if p, h, err := fns.Pid(t.Context()); err != nil || p != pid || h != host {
			t.Fatalf("worker %d on %s, want %d on %s (%v)", p, h, pid, host, err)
		}
	}
	const n = 4
	var hosts sync.Map
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			_, err := fns.Sleep(t.Context(), 300*time.Millisecond, false, "")
			hosts.Store(err, true)
		})
	}
	start := time.Now()
	wg.Wait()
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("parallel calls took %v", took)
	}
}

func TestLargeValues(t *testing.T) {
	sbtest.NeedSandbox(t)
	for _, n := range []int{0, 1, 64 << 10, 5 << 20, 33 << 20} {
		data := make([]byte, n)
		rand.Read(data)
		got, err := fns.Echo(t.Context(), data)
		if err != nil || !bytes.Equal(got, data) || (got == nil) != (data == nil) {
			t.Errorf("%d bytes: got %d, %v", n, len(got), err)
		}
	}
	_, err := fns.EchoFunc.With(sandboxfn.Options{MaxPayload: 64 * sandboxfn.KiB}).Call(t.Context(), make([]byte, 1<<20))
	if !errors.Is(err, sandboxfn.ErrPayloadTooLarge) || !strings.Contains(err.Error(), "data") {
		t.Errorf("over the limit: %v", err)
	}
}

func TestEnvironment(t *testing.T) {
	sbtest.NeedSandbox(t)
	t.Setenv("HOST_SECRET", "do not leak")
	env, err := fns.LookEnv(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range env {
		if strings.HasPrefix(kv, "SANDBOX_WORKER") || strings.Contains(kv, "do not leak") {
			t.Errorf("environment has %s", kv)
		}
	}
	if !slices.Contains(env, "FROM_DIRECTIVE=yes") {
		t.Errorf("environment lacks the directive's: %v", env)
	}
}

func TestBadOptions(t *testing.T) {
	for _, c := range []struct {
		name string
		o    sandboxfn.Options
		want error
		text string
	}{
		{"provider", sandboxfn.Options{Provider: "fly"}, sandboxfn.ErrUnknownProvider, "local"},
		{"template", sandboxfn.Options{Template: "nope"}, sandboxfn.ErrTemplateNotFound, "nope"},
		{"network", sandboxfn.Options{Network: "all"}, sandboxfn.ErrOption, "host"},
		{"memory", sandboxfn.Options{Memory: 1}, sandboxfn.ErrOption, "memory"},
		{"retries", sandboxfn.Options{Retries: 3}, sandboxfn.ErrOption, "idempotent"},
		{"env", sandboxfn.Options{Env: map[string]string{"A=B": "c"}}, sandboxfn.ErrOption, "A=B"},
		{"timeout", sandboxfn.Options{Timeout: -5 * time.Second}, sandboxfn.ErrOption, "timeout"},
	} {
		_, err := fns.AddFunc.With(c.o).Call(t.Context(), fns.AddArgs{A: 1, B: 2})
		if !errors.Is(err, c.want) || !strings.Contains(strings.ToLower(err.Error()), strings.ToLower(c.text)) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
