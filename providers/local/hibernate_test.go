//go:build linux

package local

import (
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

func TestHibernate(t *testing.T) {
	for _, detached := range []bool{false, true} {
		t.Run(map[bool]string{false: "attached", true: "detached"}[detached], func(t *testing.T) { testHibernate(t, detached) })
	}
}

func testHibernate(t *testing.T, detached bool) {
	p := snapshotProvider(t)
	a := create(t, p, providers.CreateRequest{
		Detached: detached, Env: map[string]string{"KEPT": "yes"}, Metadata: map[string]string{"m": "1"},
		Resources: providers.Resources{MemoryMiB: 256, Processes: 77},
		Network:   &providers.NetworkPolicy{Mode: netNone}, Volumes: []providers.Volume{{Name: "v", Path: "/data"}},
		Places: []providers.Place{{Path: "/place", Dir: true}}, Lifetime: time.Hour,
	})
	mustSh(t, a, "echo 1 > /home/user/f; echo 2 > /place/f; echo 3 > /data/f; mkdir -m 700 /tmp/d; sleep 1000 >/dev/null 2>&1 & true")
	token := a.Data.Token.Reveal()
	for round := range 3 {
		if err := p.Hibernate(t.Context(), a.ID); err != nil {
			t.Fatal("hibernate:", err)
		}
		if err := p.Hibernate(t.Context(), a.ID); errdefs.CodeOf(err) != "E2024" {
			t.Errorf("once more: %v", err)
		}
		if _, err := p.Snapshot(t.Context(), a.ID, providers.SnapshotRequest{}); errdefs.CodeOf(err) != "E2024" {
			t.Errorf("snapshot: %v", err)
		}
		sb, err := p.Get(t.Context(), a.ID)
		if err != nil || sb.State != providers.StateStopped || !sb.ExpiresAt.IsZero() || sb.Metadata["m"] != "1" || sb.Data.Dial != nil {
			t.Fatalf("%+v, %v", sb, err)
		}
		for _, c := range []struct {
			states []providers.State
			want   int
		}{{nil, 0}, {[]providers.State{providers.StateStopped}, 1}, {[]providers.State{providers.StateRunning}, 0}} {
			page, err := p.List(t.Context(), providers.ListRequest{States: c.states})
			if err != nil || len(page.Sandboxes) != c.want {
				t.Errorf("list %v: %d, %v", c.states, len(page.Sandboxes), err)
			}
		}
		// Another process sees the same, and collects.
		other := openProvider(t, p.root)
		if err := other.GC(t.Context()); err != nil {
			t.Error("gc:", err)
		}
		if names, err := p.tree.ids.names(); err != nil || len(names) != 0 {
			t.Errorf("leases %q, %v", names, err)
		}
		q := p
		if round == 1 {
			q = other
		}
		sb, err = q.Connect(t.Context(), a.ID, providers.ConnectRequest{})
		if err != nil {
			t.Fatal("connect:", err)
		}
		if sb.ID != a.ID || sb.Data.Token.Reveal() != token || !sb.CreatedAt.Equal(a.CreatedAt) || sb.Metadata["m"] != "1" || sb.Resources != a.Resources || time.Until(sb.ExpiresAt) < 50*time.Minute {
			t.Errorf("%+v", sb)
		}
		out := mustSh(t, sb, "cat /home/user/f /place/f /data/f; echo $KEPT; stat -c '%a %U' /tmp/d; cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c '[s]leep 1000 ' || true; ls /sys/class/net 2>/dev/null; echo more >> /home/user/f")
		if want := strings.Repeat("more\n", round); out != "1\n"+want+"2\n3\nyes\n700 user\n0\n" {
			t.Errorf("round %d: %q", round, out)
		}
		if round == 1 && !detached {
			// It is attached to whoever woke it.
			if err := p.Hibernate(t.Context(), a.ID); err != nil {
				t.Fatal(err)
			}
			if err := other.Close(); err != nil {
				t.Fatal(err)
			}
			if _, err := p.Connect(t.Context(), a.ID, providers.ConnectRequest{Lifetime: 2 * time.Hour}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := p.Hibernate(t.Context(), a.ID); err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(t.Context(), a.ID); err != nil {
		t.Fatal("kill:", err)
	}
	if _, err := p.Connect(t.Context(), a.ID, providers.ConnectRequest{}); errdefs.CodeOf(err) != "E2022" {
		t.Errorf("connect after kill: %v", err)
	}
	if err := p.Kill(t.Context(), a.ID); errdefs.CodeOf(err) != "E2020" {
		t.Errorf("kill after kill: %v", err)
	}
	if names := layerNames(t, p); len(names) != 0 {
		t.Errorf("layers %q are left", names)
	}
}

// TestHibernateLocked looks at a sandbox that hibernates while somebody else
// looks after it: a collector, or for a moment any process that is being
// started.
func TestHibernateLocked(t *testing.T) {
	p := snapshotProvider(t)
	a := create(t, p, providers.CreateRequest{Lifetime: time.Hour})
	if err := p.Hibernate(t.Context(), a.ID); err != nil {
		t.Fatal(err)
	}
	e, err := p.tree.openEntry(a.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer e.close()
	var lock *os.File
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if lock, err = e.dir.tryLock(fileLock); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	if sb, err := p.Get(t.Context(), a.ID); err != nil || sb.State != providers.StateStopped {
		t.Errorf("%+v, %v", sb, err)
	}
	page, err := p.List(t.Context(), providers.ListRequest{States: []providers.State{providers.StateStopped}})
	if err != nil || len(page.Sandboxes) != 1 {
		t.Errorf("%+v, %v", page, err)
	}
	for name, err := range map[string]error{
		"hibernate": p.Hibernate(t.Context(), a.ID),
		"pause":     p.Pause(t.Context(), a.ID),
		"snapshot":  func() error { _, err := p.Snapshot(t.Context(), a.ID, providers.SnapshotRequest{}); return err }(),
		"report":    func() error { _, err := p.Report(t.Context(), a.ID); return err }(),
	} {
		if errdefs.CodeOf(err) != "E2024" {
			t.Errorf("%s: %v", name, err)
		}
	}
	lock.Close()
	if _, err := p.Connect(t.Context(), a.ID, providers.ConnectRequest{}); err != nil {
		t.Error(err)
	}
	if err := p.Kill(t.Context(), a.ID); err != nil {
		t.Error(err)
	}
}

// TestWakeTogether wakes from several sides at once: one sandbox comes of it.
func TestWakeTogether(t *testing.T) {
	p := snapshotProvider(t)
	a := create(t, p, providers.CreateRequest{Detached: true})
	if err := p.Hibernate(t.Context(), a.ID); err != nil {
		t.Fatal(err)
	}
	q := openProvider(t, p.root)
	var wg sync.WaitGroup
	var outs [6]string
	var errs [6]error
	for i := range outs {
		wg.Go(func() {
			sb, err := []*Provider{p, q}[i%2].Connect(t.Context(), a.ID, providers.ConnectRequest{})
			if err != nil {
				errs[i] = err
				return
			}
			outs[i], _, errs[i] = shell(t.Context(), sb, "readlink /proc/self/ns/pid")
		})
	}
	wg.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(t.Context(), a.ID); err != nil {
		t.Error(err)
	}
	if len(slices.Compact(outs[:])) != 1 {
		t.Errorf("%q", outs)
	}
}

// TestWakeFails starts a sandbox whose volume cannot be made: it stays as it was.
func TestWakeFails(t *testing.T) {
	p := snapshotProvider(t)
	a := create(t, p, providers.CreateRequest{Volumes: []providers.Volume{{Name: "v", Path: "/data"}}})
	mustSh(t, a, "echo 1 > /home/user/f")
	if err := p.Hibernate(t.Context(), a.ID); err != nil {
		t.Fatal(err)
	}
	vols, err := p.tree.base.sub(volumesDir)
	if err != nil {
		t.Fatal(err)
	}
	defer vols.close()
	if err := errors.Join(vols.clear(), vols.write("v", nil)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := p.Connect(t.Context(), a.ID, providers.ConnectRequest{}); err == nil {
			t.Fatal("woken")
		}
		if sb, err := p.Get(t.Context(), a.ID); err != nil || sb.State != providers.StateStopped {
			t.Fatalf("%+v, %v", sb, err)
		}
	}
	if err := vols.remove("v"); err != nil {
		t.Fatal(err)
	}
	sb, err := p.Connect(t.Context(), a.ID, providers.ConnectRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if out := mustSh(t, sb, "cat /home/user/f"); out != "1\n" {
		t.Errorf("%q", out)
	}
}
