package acceptance

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/acceptance/fns"
	"github.com/agent-sandbox/sandbox-go/internal/sbtest"
	"github.com/agent-sandbox/sandbox-go/sandboxfn"
)

// manyInputs is how many calls are mapped while workers are killed.
const manyInputs = 10_000

// TestManyWithKills maps over 10,000 inputs while a worker is killed every
// 100 ms. Each input has one outcome: its result, its own error, or E9006.
func TestManyWithKills(t *testing.T) {
	sbtest.NeedSandbox(t)
	ctx, killed := killWorkers(t)
	work := fns.WorkFunc.With(sandboxfn.Options{Workers: sandboxfn.Workers{Max: 6}})
	n, lost := 0, 0
	for got, err := range work.Map(ctx, inputs) {
		switch want, wantErr := outcome(n); {
		case errors.Is(err, sandboxfn.ErrWorkerLost):
			if _, ok := errors.AsType[*sandboxfn.WorkerLostError](err); !ok {
				t.Errorf("%d: %v", n, err)
			}
			lost++
		case got != want || (err == nil) != (wantErr == "") || err != nil && (err.Error() != wantErr || !errors.Is(err, fns.ErrOdd)):
			t.Errorf("%d: got %d, %v", n, got, err)
		}
		n++
	}
	if n != manyInputs {
		t.Errorf("%d pairs for %d inputs", n, manyInputs)
	}
	t.Logf("%d calls were lost with %d workers", lost, killed())
	if lost > killed() {
		t.Errorf("%d calls were lost with %d workers", lost, killed())
	}
}

// TestManyWithKillsAgain is the same with a function that may run again: all
// succeed.
func TestManyWithKillsAgain(t *testing.T) {
	sbtest.NeedSandbox(t)
	ctx, killed := killWorkers(t)
	work := fns.WorkFunc.With(sandboxfn.Options{
		Workers: sandboxfn.Workers{Max: 6}, Idempotent: true, Retries: 10,
		Backoff: sandboxfn.Backoff{First: time.Millisecond, Max: 10 * time.Millisecond, Factor: 2},
	})
	seen := make([]bool, manyInputs)
	for i, r := range work.MapUnordered(ctx, inputs) {
		if seen[i] {
			t.Errorf("%d has two pairs", i)
		}
		seen[i] = true
		want, wantErr := outcome(i)
		if r.Value != want || (r.Err == nil) != (wantErr == "") || r.Err != nil && r.Err.Error() != wantErr {
			t.Errorf("%d: got %d, %v", i, r.Value, r.Err)
		}
	}
	if i := slices.Index(seen, false); i >= 0 {
		t.Errorf("%d has no pair", i)
	}
	t.Logf("%d workers were killed", killed())
}

func inputs(yield func(int) bool) {
	for i := range manyInputs {
		if !yield(i) {
			return
		}
	}
}

// outcome is what comes of an input when nothing happens to its worker.
func outcome(n int) (result int, text string) {
	if n%100 == 37 {
		return 0, fmt.Sprintf("work %d: %v", n, fns.ErrOdd)
	}
	return 3 * n, ""
}

// killWorkers kills one of the workers of ctx's client every 100 ms, until the
// end of the test, but leaves a few, for those that start in their place may take
// longer than that. killed reports how many; there are as many when it returns,
// and no more after it.
func killWorkers(t *testing.T) (ctx context.Context, killed func() int) {
	const few = 3
	others := workers(t) // of the default client
	ours := func() []int {
		return slices.DeleteFunc(workers(t), func(pid int) bool { return slices.Contains(others, pid) })
	}
	c, err := sandboxfn.NewClient(nil)
	if err != nil {
		t.Fatal(err)
	}
	quit := make(chan struct{})
	n := 0
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				return
			case <-tick.C:
				if pids := ours(); len(pids) > few && syscall.Kill(pids[rand.IntN(len(pids))], syscall.SIGKILL) == nil {
					n++
				}
			}
		}
	})
	stop := sync.OnceFunc(func() {
		close(quit)
		wg.Wait()
	})
	t.Cleanup(func() {
		stop()
		if err := c.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if left := ours(); len(left) > 0 {
			t.Errorf("workers %v are left", left)
		}
	})
	return sandboxfn.WithClient(t.Context(), c), func() int {
		stop()
		if n < 5 {
			t.Errorf("%d workers were killed: too few to show anything", n)
		}
		return n
	}
}

// workers lists the worker processes of this test: what runs this executable
// below the first processes of its sandboxes.
func workers(t *testing.T) []int {
	var pids []int
	for _, init := range childrenOf(t, os.Getpid()) {
		for _, pid := range childrenOf(t, init) {
			if cmd, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); strings.HasPrefix(string(cmd), "/run/sandbox/bin/") {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

func childrenOf(t *testing.T, pid int) []int {
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Error(err)
	}
	var pids []int
	for _, list := range lists {
		text, _ := os.ReadFile(list) // a thread that has ended has none
		for f := range strings.FieldsSeq(string(text)) {
			if n, err := strconv.Atoi(f); err == nil {
				pids = append(pids, n)
			}
		}
	}
	return pids
}
