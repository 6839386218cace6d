package acceptance

import (
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/acceptance/fns"
	"github.com/agent-sandbox/sandbox-go/internal/sbtest"
	"github.com/agent-sandbox/sandbox-go/sandboxfn"
)

// TestPauseDuringCall pauses the sandbox of a running call, which then returns
// after the resumption as if nothing had been.
func TestPauseDuringCall(t *testing.T) {
	sbtest.NeedSandbox(t)
	type result struct {
		slept time.Duration
		err   error
	}
	done := make(chan result, 1)
	marker := t.TempDir() // makes the call's sandbox one of its own
	f := fns.SleepFunc.With(sandboxfn.Options{Env: map[string]string{"PAUSE_TEST": marker}})
	before := map[string]bool{}
	for i, err := range sandboxfn.List(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		before[i.ID] = true
	}
	const call = 4 * time.Second // time enough to find its sandbox
	go func() {
		slept, err := f.Call(t.Context(), fns.SleepArgs{D: call})
		done <- result{slept, err}
	}()
	// The pool may have made one for the next call too.
	var made []*sandboxfn.Sandbox
	for deadline := time.Now().Add(20 * time.Second); !working(t, made); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the call has no worker")
		}
		for i, err := range sandboxfn.List(t.Context(), nil) {
			if err != nil || before[i.ID] {
				continue
			}
			before[i.ID] = true
			sb, err := sandboxfn.Connect(t.Context(), i.ID, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer sb.Close()
			made = append(made, sb)
		}
	}
	for _, sb := range made {
		if err := sb.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case r := <-done:
		t.Fatalf("returned from a paused sandbox: %+v", r)
	case <-time.After(call + 500*time.Millisecond):
	}
	for _, sb := range made {
		if err := sb.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case r := <-done:
		if r.err != nil || r.slept < call {
			t.Errorf("%+v", r)
		}
	case <-time.After(30 * time.Second):
		t.Error("the call does not return")
	}
}

// working reports whether a worker has been started in one of them.
func working(t *testing.T, sbs []*sandboxfn.Sandbox) bool {
	for _, sb := range sbs {
		list, err := sb.Processes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(list) > 0 {
			return true
		}
	}
	return false
}
