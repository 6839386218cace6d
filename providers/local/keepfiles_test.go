//go:build linux

package local

import (
	"context"
	"testing"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// TestHibernateHolds ends the context of a hibernation in the moment after which
// nobody can give up any more: the sandbox is asleep then, with its files.
func TestHibernateHolds(t *testing.T) {
	p := snapshotProvider(t)
	a := create(t, p, providers.CreateRequest{})
	mustSh(t, a, "echo 1 > /home/user/f")
	e, err := p.tree.openEntry(a.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer e.close()
	var conf savedConfig
	if err := e.load(fileConfig, &conf); err != nil {
		t.Fatal(err)
	}
	for _, late := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		c, err := p.tree.takeFiles(ctx, e, opHibernate, &conf)
		if err != nil {
			t.Fatal(err)
		}
		defer c.close()
		if !late {
			cancel()
			if err := c.hold(); err == nil {
				t.Error("a hibernation goes on after it was given up")
			}
			c.close()
			mustSh(t, a, "cat /home/user/f")
			continue
		}
		if err := c.hold(); err != nil {
			t.Fatal(err)
		}
		cancel()
		if err := c.commit(); err != nil {
			t.Errorf("commit: %v", err)
		}
	}
	// There was no file to start from.
	if _, err := p.Get(t.Context(), a.ID); errdefs.CodeOf(err) == "" {
		t.Errorf("sandbox goes on: %v", err)
	}
}

// TestWakeUndone closes a provider at the end of a wake: the sandbox sleeps on.
func TestWakeUndone(t *testing.T) {
	for _, detached := range []bool{false, true} {
		p := snapshotProvider(t)
		a := create(t, p, providers.CreateRequest{Detached: detached})
		mustSh(t, a, "echo 1 > /home/user/f")
		if err := p.Hibernate(t.Context(), a.ID); err != nil {
			t.Fatal(err)
		}
		closed := func(v bool) {
			p.mu.Lock()
			p.closed = v
			p.mu.Unlock()
		}
		e, err := p.tree.openEntry(a.ID)
		if err != nil {
			t.Fatal(err)
		}
		defer e.close()
		lock, err := e.dir.tryLock(fileLock)
		if err != nil {
			t.Fatal(err)
		}
		o, err := p.wakeOrder(t.Context(), p.tree, e, 0)
		if err != nil {
			t.Fatal(err)
		}
		closed(true)
		_, err = p.build(t.Context(), p.tree, e, lock, o)
		closed(false)
		if errdefs.CodeOf(err) != "E8000" {
			t.Errorf("wake: %v", err)
		}
		sb, err := p.Connect(t.Context(), a.ID, providers.ConnectRequest{})
		if err != nil {
			t.Fatal("connect:", err)
		}
		if out := mustSh(t, sb, "cat /home/user/f"); out != "1\n" {
			t.Errorf("%q", out)
		}
		if err := p.Kill(t.Context(), a.ID); err != nil {
			t.Error(err)
		}
	}
}
