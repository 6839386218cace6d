package sandboxfn

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// sandboxPool is a pool of real sandboxes, of a client of its own.
func sandboxPool(t *testing.T, o PoolOptions) *Pool {
	t.Helper()
	localSandbox(t) // or skip
	o.Client = localClient(t)
	p, err := NewPool(&o)
	must(t, err)
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("close pool: %v", err)
		}
		for info, err := range o.Client.List(context.Background(), nil) {
			t.Errorf("left: %v, %v", info, err)
		}
	})
	return p
}

func output(t *testing.T, sb *Sandbox, script string) string {
	t.Helper()
	out, err := sb.Shell(t.Context(), script).Output()
	must(t, err)
	return string(out)
}

func taken(t *testing.T, p *Pool) *Sandbox {
	t.Helper()
	sb, err := p.Get(t.Context())
	must(t, err)
	return sb
}

// A sandbox is used once, and the next is ready already.
func TestPoolUsedOnce(t *testing.T) {
	p := sandboxPool(t, PoolOptions{Spare: 1})
	waitFor(t, patience, "the spare one", func() bool { return p.Stats().Idle == 1 })
	seen := map[string]bool{}
	for range 3 {
		sb := taken(t, p)
		if seen[sb.ID()] {
			t.Error("it was used before")
		}
		seen[sb.ID()] = true
		if out := output(t, sb, "ls; touch mark"); out != "" {
			t.Errorf("it holds %q", out)
		}
		must(t, p.Put(sb))
		must(t, sb.Close()) // a second time
		if err := sb.Command(t.Context(), "true").Run(); err == nil || !strings.Contains(err.Error(), "given back to its pool") {
			t.Errorf("handle after Close: %v", err)
		}
		waitFor(t, patience, "the spare one", func() bool { return p.Stats().Idle == 1 })
	}
	if s := p.Stats(); s.Hits != 3 || s.Misses != 0 || s.HitRate() != 1 || s.Discarded != 3 || s.InUse != 0 {
		t.Errorf("%+v", s)
	}
}

func TestPoolReuse(t *testing.T) {
	var prepared, resets atomic.Int64
	p := sandboxPool(t, PoolOptions{
		Max: 1, MaxUses: 3,
		Prepare: func(ctx context.Context, sb *Sandbox) error {
			prepared.Add(1)
			return sb.FS(ctx).WriteFile("ready", []byte("x"), 0)
		},
		Reset: func(ctx context.Context, sb *Sandbox) error {
			resets.Add(1)
			return sb.FS(ctx).RemoveAll("mark")
		},
	})
	ids := map[string]bool{}
	for range 4 {
		sb := taken(t, p)
		ids[sb.ID()] = true
		cmd := sb.Command(t.Context(), "sleep", "100")
		must(t, cmd.Start())
		if out := output(t, sb, "ls; touch mark"); out != "ready\n" {
			t.Errorf("it holds %q", out)
		}
		must(t, sb.Close())
		if err := cmd.Wait(); err == nil {
			t.Error("the command outlived the use")
		}
	}
	waitFor(t, patience, "the last reset", func() bool { return resets.Load() == 3 }) // not after the last use of one
	if len(ids) != 2 || prepared.Load() != 2 {
		t.Errorf("%d sandboxes, %d prepared; want 2, 2", len(ids), prepared.Load())
	}
}

// What is dead, fails its check or its reset, or is too old is not handed out.
func TestPoolDropsWhatIsBad(t *testing.T) {
	bad := errors.New("bad")
	var checkFails, resetFails atomic.Bool
	p := sandboxPool(t, PoolOptions{
		MaxUses: NoLimit, MaxAge: time.Hour,
		Check: func(ctx context.Context, sb *Sandbox) error {
			if checkFails.CompareAndSwap(true, false) {
				return bad
			}
			return sb.Command(ctx, "true").Run()
		},
		Reset: func(context.Context, *Sandbox) error {
			if resetFails.CompareAndSwap(true, false) {
				return bad
			}
			return nil
		},
	})
	again := func(what string, same bool, spoil func(*Sandbox)) {
		t.Helper()
		sb := taken(t, p)
		spoil(sb)
		must(t, sb.Close())
		waitFor(t, patience, "the end of its use", func() bool { return p.Stats().InUse == 0 })
		next := taken(t, p)
		if got := next.ID() == sb.ID(); got != same {
			t.Errorf("%s: the same sandbox %v, want %v", what, got, same)
		}
		must(t, next.Close())
		waitFor(t, patience, "the end of its use", func() bool { return p.Stats().InUse == 0 })
	}
	again("good", true, func(*Sandbox) {})
	again("killed through the handle", false, func(sb *Sandbox) { must(t, sb.Kill(t.Context())) })
	again("killed by somebody", false, func(sb *Sandbox) { must(t, p.client.Kill(t.Context(), sb.ID())) })
	again("check", false, func(*Sandbox) { checkFails.Store(true) })
	again("reset", false, func(*Sandbox) { resetFails.Store(true) })
	again("age", false, func(*Sandbox) {
		p.stock.mu.Lock()
		for x := range p.stock.all {
			x.st.old = time.Now().Add(-time.Second)
		}
		p.stock.mu.Unlock()
	})
}

func TestPoolPrepareFails(t *testing.T) {
	bad := errors.New("no licence")
	p := sandboxPool(t, PoolOptions{Prepare: func(context.Context, *Sandbox) error { return bad }})
	if _, err := p.Get(t.Context()); !errors.Is(err, bad) {
		t.Errorf("got %v", err)
	}
	slow := sandboxPool(t, PoolOptions{StartTimeout: 50 * time.Millisecond, Prepare: func(ctx context.Context, _ *Sandbox) error {
		<-ctx.Done()
		return ctx.Err()
	}})
	if _, err := slow.Get(t.Context()); CodeOf(err) != "E5002" || !errors.Is(err, ErrTimeout) || !strings.Contains(err.Error(), "StartTimeout") {
		t.Errorf("got %v", err)
	}
}

// Users share Max sandboxes, one each, and wait for what comes back.
func TestPoolAtOnce(t *testing.T) {
	p := sandboxPool(t, PoolOptions{Min: 1, Max: 3, MaxUses: NoLimit})
	var using sync.Map
	var wg sync.WaitGroup
	for range 12 {
		wg.Go(func() {
			sb, err := p.Get(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			if _, twice := using.LoadOrStore(sb.ID(), true); twice {
				t.Error("two have the same sandbox")
			}
			if err := sb.Command(t.Context(), "true").Run(); err != nil {
				t.Error(err)
			}
			using.Delete(sb.ID())
			if err := sb.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if s := p.Stats(); s.Created > 3 || s.Hits+s.Misses != 12 || s.Idle != s.Created || s.InUse != 0 {
		t.Errorf("%+v", s)
	}
}

func TestPoolClose(t *testing.T) {
	p := sandboxPool(t, PoolOptions{Max: 1})
	sb := taken(t, p)
	waiting := make(chan error, 1)
	go func() {
		_, err := p.Get(context.Background())
		waiting <- err
	}()
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := p.Get(short); !errors.Is(err, context.DeadlineExceeded) || CodeOf(err) != "E5002" {
		t.Errorf("a Get whose context ends: %v", err)
	}
	must(t, p.Close())
	must(t, p.Close())
	if err := <-waiting; CodeOf(err) != "E2000" || !strings.Contains(fmt.Sprint(err), "the pool is closed") {
		t.Errorf("a Get that waited: %v", err)
	}
	if err := sb.Command(t.Context(), "true").Run(); err == nil {
		t.Error("a sandbox in use outlived its pool")
	}
	must(t, sb.Close())
	if _, err := p.Get(t.Context()); CodeOf(err) != "E2000" {
		t.Errorf("Get after Close: %v", err)
	}
}

func TestPoolOptions(t *testing.T) {
	for _, o := range []PoolOptions{
		{Max: -1}, {Max: 1001}, {Min: 3, Max: 2}, {Min: -1}, {Spare: -1}, {Idle: -2}, {MaxAge: -1}, {MaxAge: time.Millisecond}, {MaxUses: -2}, {StartTimeout: -1},
		{Create: CreateOptions{Detached: true}}, {Create: CreateOptions{RequestID: "x"}}, {Create: CreateOptions{Lifetime: time.Hour}},
	} {
		if _, err := NewPool(&o); CodeOf(err) != "E2011" {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// A provider that lacks something is not asked for it.
func TestLackingProvider(t *testing.T) {
	p := &hostProvider{}
	c := hostClient(t, p, nil)
	for want, o := range map[string]CreateOptions{
		"has no volumes": {Volumes: []Volume{{Name: "a", Path: "/data"}}},
		"has no images":  {Image: "alpine"},
		"has no GPUs":    {GPU: "A10"},
	} {
		_, err := c.Create(t.Context(), &o)
		if !errors.Is(err, ErrNotSupported) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if len(p.boxes) != 0 {
		t.Errorf("%d sandboxes were made", len(p.boxes))
	}
}
