package sandboxfn

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"
)

// snapshotSandbox is a sandbox of which there can be snapshots here, with the
// options given. At the end no snapshot may be left.
func snapshotSandbox(t *testing.T, o *CreateOptions) *Sandbox {
	t.Helper()
	sb := localSandboxWith(t, o)
	t.Cleanup(func() {
		for s, err := range sb.client.Snapshots(context.Background(), nil) {
			if err != nil {
				t.Error(err)
				return
			}
			t.Errorf("snapshot %s is left", s.ID)
		}
	})
	return sb
}

// fromSnapshot skips where the kernel has no overlays in user namespaces.
func fromSnapshot(t *testing.T, err error) {
	t.Helper()
	if errors.Is(err, ErrNotSupported) && os.Getenv("CI") != "true" {
		t.Skip(err)
	}
	must(t, err)
}

func inside(t *testing.T, sb *Sandbox, script string) string {
	t.Helper()
	out, err := sb.Command(t.Context(), "sh", "-c", script).Output()
	if err != nil {
		var exit *ExitError
		if errors.As(err, &exit) {
			t.Errorf("%s: %s", script, exit.Stderr)
		}
		t.Errorf("%s: %v", script, err)
	}
	return strings.TrimSpace(string(out))
}

func TestSnapshot(t *testing.T) {
	sb := snapshotSandbox(t, nil)
	c := sb.client
	inside(t, sb, "echo one >~/file")
	o := &SnapshotOptions{Name: "first", Metadata: map[string]string{"k": "v"}}
	first, err := sb.Snapshot(t.Context(), o)
	must(t, err)
	if first.Name != "first" || first.SandboxID != sb.ID() || first.Provider != "local" || first.Metadata["k"] != "v" || time.Since(first.CreatedAt) > time.Minute {
		t.Errorf("%+v", first)
	}
	inside(t, sb, "echo two >~/file")
	second, err := sb.Snapshot(t.Context(), nil)
	must(t, err)

	var ids []string
	for s, err := range c.Snapshots(t.Context(), &SnapshotListOptions{PageSize: 1}) {
		must(t, err)
		ids = append(ids, s.ID)
	}
	if len(ids) != 2 || ids[0] != second.ID || ids[1] != first.ID {
		t.Errorf("listed %q, want %q, %q", ids, second.ID, first.ID)
	}
	for range Snapshots(WithClient(t.Context(), c), &SnapshotListOptions{SandboxID: "other"}) {
		t.Error("a snapshot of another sandbox")
	}

	child, err := c.Create(t.Context(), &CreateOptions{Snapshot: first.ID})
	if err != nil {
		must(t, c.DeleteSnapshot(t.Context(), first.ID))
		must(t, c.DeleteSnapshot(t.Context(), second.ID))
		fromSnapshot(t, err)
	}
	defer child.Close()
	must(t, c.DeleteSnapshot(t.Context(), first.ID)) // while it is in use
	must(t, DeleteSnapshot(WithClient(t.Context(), c), second.ID))
	if err := c.DeleteSnapshot(t.Context(), first.ID); !errors.Is(err, ErrNotFound) {
		t.Errorf("deleted twice: %v", err)
	}
	if got := inside(t, child, "cat ~/file"); got != "one" {
		t.Errorf("the child has %q", got)
	}
	if _, err := c.Create(t.Context(), &CreateOptions{Snapshot: first.ID}); !errors.Is(err, ErrNotFound) {
		t.Errorf("from a snapshot that is gone: %v", err)
	}
	must(t, sb.Close())
	if _, err := sb.Snapshot(t.Context(), nil); !errors.Is(err, ErrKilled) {
		t.Errorf("of one that is gone: %v", err)
	}
}

func TestSnapshotOptions(t *testing.T) {
	sb := localSandbox(t)
	for _, o := range []SnapshotOptions{{Name: "a\x00b"}, {Metadata: map[string]string{"": "v"}}, {Name: strings.Repeat("x", 1<<20)}} {
		if _, err := sb.Snapshot(t.Context(), &o); !errors.Is(err, ErrOption) {
			t.Errorf("%.40q: %v", o, err)
		}
	}
	for _, id := range []string{"", "a\x00"} {
		if err := sb.client.DeleteSnapshot(t.Context(), id); !errors.Is(err, ErrOption) {
			t.Errorf("delete %q: %v", id, err)
		}
		if err := sb.client.Hibernate(t.Context(), id); !errors.Is(err, ErrOption) {
			t.Errorf("hibernate %q: %v", id, err)
		}
	}
	for _, err := range sb.client.Snapshots(t.Context(), &SnapshotListOptions{PageSize: -1}) {
		if !errors.Is(err, ErrOption) {
			t.Error(err)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := sb.Snapshot(ended, nil); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	for s := range sb.client.Snapshots(t.Context(), nil) {
		t.Errorf("snapshot %s is left", s.ID)
	}
}

func TestFork(t *testing.T) {
	sb := snapshotSandbox(t, &CreateOptions{
		Env: map[string]string{"COLOUR": "blue"}, Metadata: map[string]string{"k": "v"}, Memory: 200 * MiB, Lifetime: 10 * time.Minute,
	})
	inside(t, sb, "echo start >~/file; echo t >/tmp/t")
	forks, err := sb.Fork(t.Context(), 3, nil)
	fromSnapshot(t, err)
	seen := map[string]bool{sb.ID(): true}
	for _, f := range forks {
		closeAtEnd(t, f)
		if seen[f.ID()] {
			t.Errorf("id %s twice", f.ID())
		}
		seen[f.ID()] = true
		if got := inside(t, f, "cat ~/file /tmp/t; echo $COLOUR; echo "+f.ID()+" >~/file; cat ~/file"); got != "start\nt\nblue\n"+f.ID() {
			t.Errorf("%q", got)
		}
		i, err := f.Info(t.Context())
		must(t, err)
		if i.Metadata["k"] != "v" || i.Memory != 200*MiB || time.Until(i.ExpiresAt) < 9*time.Minute {
			t.Errorf("%+v", i)
		}
	}
	if got := inside(t, sb, "cat ~/file"); got != "start" {
		t.Errorf("the parent has %q", got)
	}

	// A fork of a fork, by a handle that did not create it, with other options.
	other, err := sb.client.Connect(t.Context(), forks[0].ID(), nil)
	must(t, err)
	defer other.Close()
	again, err := other.Fork(t.Context(), 1, &ForkOptions{Create: &CreateOptions{Env: map[string]string{"COLOUR": "red"}}})
	must(t, err)
	closeAtEnd(t, again[0])
	if got := inside(t, again[0], "cat ~/file; echo $COLOUR"); got != forks[0].ID()+"\nred" {
		t.Errorf("%q", got)
	}
	plain, err := other.Fork(t.Context(), 1, nil)
	must(t, err)
	closeAtEnd(t, plain[0])
	if i, err := plain[0].Info(t.Context()); err != nil || i.Metadata["k"] != "v" || i.Memory != 200*MiB {
		t.Errorf("%+v, %v", i, err)
	}
}

// TestForkAllOrNothing counts the sandboxes after forks that cannot be made.
func TestForkAllOrNothing(t *testing.T) {
	sb := snapshotSandbox(t, nil)
	count := func() (n int) {
		for _, err := range sb.client.List(context.Background(), nil) {
			must(t, err)
			n++
		}
		return n
	}
	for _, n := range []int{0, -1, maxForks + 1} {
		if _, err := sb.Fork(t.Context(), n, nil); !errors.Is(err, ErrOption) {
			t.Errorf("%d forks: %v", n, err)
		}
	}
	for _, o := range []CreateOptions{{Template: "base"}, {RequestID: "x"}, {Snapshot: "s"}, {CPU: -1}, {GPU: "any"}} {
		if _, err := sb.Fork(t.Context(), 2, &ForkOptions{Create: &o}); !errors.Is(err, ErrOption) && !errors.Is(err, ErrNotSupported) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if _, err := sb.Fork(t.Context(), 3, &ForkOptions{Create: &CreateOptions{Require: []string{"nosuchprotection"}}}); !errors.Is(err, ErrRequire) {
		t.Errorf("with a protection that is none: %v", err)
	}
	for _, after := range []time.Duration{5 * time.Millisecond, 40 * time.Millisecond, 90 * time.Millisecond, 150 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(t.Context(), after)
		forks, err := sb.Fork(ctx, 12, nil)
		cancel()
		switch {
		case err == nil:
			for _, f := range forks {
				must(t, f.Close())
			}
		case !errors.Is(err, context.DeadlineExceeded):
			fromSnapshot(t, err)
		}
	}
	if n := count(); n != 1 {
		t.Errorf("%d sandboxes, want the parent alone", n)
	}
}

func TestHibernate(t *testing.T) {
	sb := snapshotSandbox(t, &CreateOptions{Env: map[string]string{"COLOUR": "blue"}})
	c := sb.client
	other, err := c.Connect(t.Context(), sb.ID(), nil)
	must(t, err)
	elsewhere := sameState(t, c) // a client that is not told
	stranger, err := elsewhere.Connect(t.Context(), sb.ID(), nil)
	must(t, err)
	inside(t, sb, "echo kept >~/file")
	running := sb.Command(t.Context(), "sleep", "1000")
	must(t, running.Start())

	must(t, sb.Hibernate(t.Context()))
	if err := running.Wait(); err == nil {
		t.Error("a command outlives it")
	}
	for name, h := range map[string]*Sandbox{"created": sb, "connected": other, "of another client": stranger} {
		_, readErr := h.FS(t.Context()).ReadFile("/etc/passwd")
		for what, err := range map[string]error{"command": h.Command(t.Context(), "true").Run(), "read": readErr} {
			if e, ok := errors.AsType[*Error](err); !ok || !errors.Is(err, ErrPaused) || !strings.Contains(e.Suggestion, "connect to it") {
				t.Errorf("%s, %s: %v", name, what, err)
			}
		}
		if i, err := h.Info(t.Context()); err != nil || i.State != StateStopped {
			t.Errorf("%s: %+v, %v", name, i, err)
		}
		if err := h.Hibernate(t.Context()); !errors.Is(err, ErrPaused) {
			t.Errorf("%s, twice: %v", name, err)
		}
		must(t, h.Close()) // does not kill
	}
	if err := Hibernate(WithClient(t.Context(), c), sb.ID()); !errors.Is(err, ErrPaused) {
		t.Errorf("by id: %v", err)
	}
	listed := false
	for i, err := range c.List(t.Context(), &ListOptions{States: []State{StateStopped}}) {
		must(t, err)
		listed = listed || i.ID == sb.ID()
	}
	if !listed {
		t.Error("it is in no list")
	}

	woken, err := c.Connect(t.Context(), sb.ID(), nil)
	if err != nil {
		must(t, c.Kill(t.Context(), sb.ID()))
		fromSnapshot(t, err)
	}
	if got := inside(t, woken, "cat ~/file; echo $COLOUR"); got != "kept\nblue" {
		t.Errorf("%q", got)
	}
	must(t, c.Hibernate(t.Context(), woken.ID()))
	must(t, c.Kill(t.Context(), woken.ID()))
	if _, err := c.Connect(t.Context(), woken.ID(), nil); err == nil || errors.Is(err, ErrPaused) {
		t.Errorf("after its end: %v", err)
	}
}

// sameState is another client of the same state directory.
func sameState(t *testing.T, c *Client) *Client {
	t.Helper()
	o := c.opts
	d, err := NewClient(&ClientOptions{Provider: o.Provider, StateDir: o.StateDir, CacheDir: o.CacheDir})
	must(t, err)
	t.Cleanup(func() { must(t, d.Close()) })
	return d
}

// TestHibernateOfPool lets a pool go on with others.
func TestHibernateOfPool(t *testing.T) {
	sb := localSandbox(t)
	p, err := NewPool(&PoolOptions{Client: sb.client, Max: 1, MaxUses: NoLimit})
	must(t, err)
	defer p.Close()
	lent, err := p.Get(t.Context())
	must(t, err)
	must(t, lent.Hibernate(t.Context()))
	if err := lent.Command(t.Context(), "true").Run(); !errors.Is(err, ErrPaused) {
		t.Error(err)
	}
	must(t, lent.Close())
	next, err := p.Get(t.Context())
	must(t, err)
	inside(t, next, "true")
	if next.ID() == lent.ID() {
		t.Error("the same again")
	}
	must(t, next.Close())
	i, err := lent.Info(t.Context())
	if err != nil || i.State != StateStopped {
		t.Errorf("%+v, %v", i, err)
	}
	must(t, lent.Kill(t.Context()))
}

// TestSnapshotNotSupported asks a provider that has none of this.
func TestSnapshotNotSupported(t *testing.T) {
	sb := hostSandbox(t)
	_, snapshotErr := sb.Snapshot(t.Context(), nil)
	_, forkErr := sb.Fork(t.Context(), 1, nil)
	for what, err := range map[string]error{
		"snapshot": snapshotErr, "fork": forkErr, "hibernate": sb.Hibernate(t.Context()),
		"delete": sb.client.DeleteSnapshot(t.Context(), "x"), "hibernate by id": sb.client.Hibernate(t.Context(), "x"),
	} {
		if !errors.Is(err, ErrNotSupported) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, err := range sb.client.Snapshots(t.Context(), nil) {
		if !errors.Is(err, ErrNotSupported) {
			t.Error(err)
		}
	}
	must(t, sb.Command(t.Context(), "true").Run())
}
