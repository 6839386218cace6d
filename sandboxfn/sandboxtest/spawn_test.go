package sandboxtest_test

import (
	"context"
	"errors"
	"os"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/sandboxtest"
)

func TestSpawn(t *testing.T) {
	inModes(t, func(t *testing.T, ctx context.Context) {
		good, bad := double.Spawn(ctx, 21), double.Spawn(ctx, -1)
		if good.ID() == bad.ID() || good.ID() == "" {
			t.Errorf("ids are %q and %q", good.ID(), bad.ID())
		}
		for range 2 {
			if got, err := good.Wait(ctx); got != 42 || err != nil {
				t.Errorf("got %d, %v", got, err)
			}
			if _, err := bad.Wait(ctx); !errors.Is(err, os.ErrInvalid) {
				t.Errorf("got %v", err)
			}
		}
		boom := obey.Spawn(ctx, order{What: "panic"})
		_, err := boom.Wait(ctx)
		if i, _ := sandboxfn.InfoFrom(err); i.CallID != boom.ID() {
			t.Errorf("the call is %q, its error says %+v", boom.ID(), i)
		}
		<-good.Done()
		if got, done, err := good.Poll(); got != 42 || !done || err != nil {
			t.Errorf("got %d, %t, %v", got, done, err)
		}
		good.Cancel(errEmpty) // too late
		if got, err := good.Wait(ctx); got != 42 || err != nil {
			t.Errorf("got %d, %v", got, err)
		}
	})
}

func TestSpawnDoesNotBlock(t *testing.T) {
	bubble(t, nil, func(t *testing.T, ctx context.Context, g *gate, in func(int) at) {
		c := held.Spawn(ctx, in(0))
		if _, done, err := c.Poll(); done || err != nil {
			t.Errorf("got %t, %v", done, err)
		}
		synctest.Wait()
		wctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if _, err := c.Wait(wctx); !errors.Is(err, sandboxfn.ErrDeadline) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		if g.running.Load() != 1 {
			t.Error("the end of Wait's context has ended the call")
		}
		cause := errors.New("changed my mind")
		c.Cancel(cause)
		if _, err := c.Wait(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		if len(g.causes) != 1 || g.causes[0].Error() != cause.Error() {
			t.Errorf("the function's causes: %v", g.causes)
		}

		sctx, end := context.WithCancel(ctx)
		c = held.Spawn(sctx, in(1))
		synctest.Wait()
		end()
		if _, err := c.Wait(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		c = held.Spawn(sctx, in(2)) // what is wrong from the beginning is the call's error as well
		if _, err := c.Wait(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
}

// Calls that are dropped end, and are freed.
func TestSpawnDropped(t *testing.T) {
	ctx := sandboxtest.Process(t)
	freed := make(chan int, 100)
	for i := range 100 {
		c := double.Spawn(ctx, i)
		runtime.AddCleanup(c, func(i int) { freed <- i }, i)
	}
	deadline := time.After(patience)
	for n := 0; n < 100; {
		runtime.GC()
		select {
		case <-freed:
			n++
		case <-deadline:
			t.Fatalf("%d of 100 calls were freed", n)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func TestGather(t *testing.T) {
	inModes(t, func(t *testing.T, ctx context.Context) {
		var calls []*sandboxfn.Call[int]
		for i := range 50 {
			calls = append(calls, double.Spawn(ctx, i))
		}
		calls = append(calls, calls[3]) // one may be there twice
		got, err := sandboxfn.Gather(ctx, calls...)
		if err != nil || len(got) != 51 || got[49] != 98 || got[50] != 6 {
			t.Errorf("got %v, %v", got, err)
		}
		calls = append(calls, double.Spawn(ctx, -1))
		if got, err := sandboxfn.Gather(ctx, calls...); got != nil || !errors.Is(err, os.ErrInvalid) {
			t.Errorf("got %v, %v", got, err)
		}
	})
}

func TestGatherCancelsTheRest(t *testing.T) {
	bubble(t, []int{0}, func(t *testing.T, ctx context.Context, g *gate, in func(int) at) {
		calls := []*sandboxfn.Call[int]{held.Spawn(ctx, in(0)), held.Spawn(ctx, in(1)), held.Spawn(ctx, in(2))}
		synctest.Wait()
		calls = append(calls, double.Spawn(ctx, -1))
		got, err := sandboxfn.Gather(ctx, calls...)
		if got != nil || !errors.Is(err, os.ErrInvalid) {
			t.Errorf("got %v, %v", got, err)
		}
		if len(g.causes) != 2 || !slices.ContainsFunc(g.causes, func(c error) bool { return errors.Is(c, os.ErrInvalid) }) {
			t.Errorf("causes are %v", g.causes)
		}
	})
	bubble(t, []int{0}, func(t *testing.T, ctx context.Context, g *gate, in func(int) at) {
		calls := []*sandboxfn.Call[int]{held.Spawn(ctx, in(0)), held.Spawn(ctx, in(1))}
		synctest.Wait()
		gctx, cancel := context.WithCancel(ctx)
		cancel()
		if _, err := sandboxfn.Gather(gctx, calls...); !errors.Is(err, sandboxfn.ErrCancelled) || len(g.causes) != 1 {
			t.Errorf("got %v; causes are %v", err, g.causes)
		}
	})
}
