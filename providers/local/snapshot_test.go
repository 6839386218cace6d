//go:build linux

package local

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// snapshotProvider is a provider on which nothing is left, no layer either, when
// the test has removed its sandboxes and snapshots.
func snapshotProvider(t *testing.T) *Provider {
	t.Helper()
	needOverlay(t)
	p := testProvider(t)
	t.Cleanup(func() {
		page, err := p.ListSnapshots(context.Background(), providers.SnapshotListRequest{})
		if err != nil {
			t.Error(err)
			return
		}
		for _, s := range page.Snapshots {
			if err := p.DeleteSnapshot(context.Background(), s.ID); err != nil {
				t.Error("delete:", err)
			}
		}
	})
	return p
}

func layerNames(t *testing.T, p *Provider) []string {
	t.Helper()
	names, err := p.tree.layers.allNames()
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(names, func(n string) bool { return n == layersLock })
}

func snapshot(t *testing.T, p *Provider, id string) *providers.Snapshot {
	t.Helper()
	s, err := p.Snapshot(t.Context(), id, providers.SnapshotRequest{})
	if err != nil {
		t.Fatal("snapshot:", err)
	}
	return s
}

func mustSh(t *testing.T, sb *providers.Sandbox, script string) string {
	t.Helper()
	out, end := sh(t, sb, "exec 2>&1; "+script)
	if end.ExitCode != 0 {
		t.Errorf("%s: exit code %d: %s", script, end.ExitCode, out)
	}
	return out
}

// treeOf lists what is in the places of a sandbox.
const treeOf = `cd /; find home/user tmp var/tmp -mindepth 1 \( -type d -printf '%P %y %m %u %T@\n' -o -printf '%P %y %m %u %s %T@ %l\n' \) | sort; getfattr -R -d home/user 2>/dev/null; true`

func TestSnapshotKeepsFiles(t *testing.T) {
	p := snapshotProvider(t)
	a := create(t, p, providers.CreateRequest{Places: []providers.Place{{Path: "/data", Dir: true}, {Path: "/etc-file"}}})
	mustSh(t, a, `set -e
cd /home/user; mkdir -p d/e; echo content > d/e/f; ln d/e/f link; ln -s /etc/passwd out; chmod 640 d/e/f; chmod 700 d
touch -d @1000000000.5 d/e/f; mkfifo pipe; truncate -s 400M sparse; echo x >> sparse; printf '\001' > "$(printf 'odd\nname')"
cp /bin/true setuid; chmod 6755 setuid; touch secret; chmod 0 secret; mkdir shut; touch shut/in; chmod 0 shut
echo t > /tmp/t; echo v > /var/tmp/v; echo r > /run/r || true; echo data > /data/file; echo etc > /etc-file; touch .wh.gone`)
	want := mustSh(t, a, "rm -f /home/user/pipe; chmod u-s,g-s /home/user/setuid;"+treeOf)
	mustSh(t, a, "mkfifo /home/user/pipe; chmod 6755 /home/user/setuid; touch -r /home/user /home/user/pipe")
	s := snapshot(t, p, a.ID)
	if !strings.HasPrefix(s.ID, snapshotPrefix) || s.SandboxID != a.ID || s.Size == 0 || s.Size > 100<<20 {
		t.Errorf("%+v", s)
	}
	mustSh(t, a, "echo changed > /home/user/d/e/f; rm -r /home/user/shut || true; echo go on")

	b := create(t, p, providers.CreateRequest{Snapshot: s.ID})
	if got := mustSh(t, b, treeOf); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if out := mustSh(t, b, "cd /home/user; cat d/e/f link /data/file /etc-file; stat -c %h link; echo more >> /etc-file; echo w > /data/w; ls /run/r 2>/dev/null || echo none; tail -c 2 sparse"); out != "content\ncontent\ndata\netc\n2\nnone\nx\n" {
		t.Errorf("%q", out)
	}
	if out := mustSh(t, a, "cat /home/user/d/e/f /etc-file; ls /data"); out != "changed\netc\nfile\n" {
		t.Errorf("writes reach the parent: %q", out)
	}
}

func TestSnapshotOfChild(t *testing.T) {
	p := snapshotProvider(t)
	a := create(t, p, providers.CreateRequest{})
	mustSh(t, a, "cd /home/user; mkdir keep gone; echo 1 > keep/one; echo 2 > keep/two; echo 3 > gone/three; echo old > file")
	sa := snapshot(t, p, a.ID)
	b := create(t, p, providers.CreateRequest{Snapshot: sa.ID})
	mustSh(t, b, "cd /home/user; rm keep/one; rm -r gone; mkdir gone; echo new > gone/four; echo new > file; mv keep/two two")
	sb := snapshot(t, p, b.ID)
	c := create(t, p, providers.CreateRequest{Snapshot: sb.ID})
	const look = "cd /home/user; find . -type f | sort; cat file gone/four two"
	const want = "./file\n./gone/four\n./two\nnew\nnew\n2\n"
	if out := mustSh(t, c, look); out != want {
		t.Errorf("%q", out)
	}
	// The same files, without a change, are the same snapshot.
	sc := snapshot(t, p, c.ID)
	if n := len(layerNames(t, p)); n != 2 || sc.Size != 0 {
		t.Errorf("%d layers, and a snapshot of nothing has %d bytes", n, sc.Size)
	}
	// Whoever is made from a snapshot does not need it, nor the parent.
	for _, id := range []string{sa.ID, sb.ID, sc.ID} {
		if err := p.DeleteSnapshot(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range []string{a.ID, b.ID} {
		if err := p.Kill(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	if out := mustSh(t, c, look); out != want {
		t.Errorf("after the end of its parents: %q", out)
	}
	if n := len(layerNames(t, p)); n != 2 {
		t.Errorf("%d layers are left, and one sandbox needs 2", n)
	}
	if err := p.Kill(t.Context(), c.ID); err != nil {
		t.Fatal(err)
	}
	if names := layerNames(t, p); len(names) != 0 {
		t.Errorf("nobody needs %q", names)
	}
	for _, id := range []string{sa.ID, "snapnone", "", "../boxes", "snap" + randomText(idLength)} {
		if err := p.DeleteSnapshot(t.Context(), id); errdefs.CodeOf(err) != "E2020" {
			t.Errorf("delete %q: %v", id, err)
		}
		if id == "" {
			continue
		}
		if _, err := p.Create(t.Context(), providers.CreateRequest{Snapshot: id}); errdefs.CodeOf(err) != "E2020" || !strings.Contains(err.Error(), clip(id)) {
			t.Errorf("create from %q: %v", id, err)
		}
	}
}

func TestSnapshotOfPaused(t *testing.T) {
	p := snapshotProvider(t)
	a := create(t, p, providers.CreateRequest{})
	mustSh(t, a, "echo x > /home/user/x; (while :; do date > /tmp/date; sleep 0.01; done) >/dev/null 2>&1 &")
	if err := p.Pause(t.Context(), a.ID); err != nil {
		t.Fatal(err)
	}
	s := snapshot(t, p, a.ID)
	if sb, err := p.Get(t.Context(), a.ID); err != nil || sb.State != providers.StatePaused {
		t.Errorf("%+v, %v", sb, err)
	}
	if _, err := p.Connect(t.Context(), a.ID, providers.ConnectRequest{}); err != nil {
		t.Fatal(err)
	}
	snapshot(t, p, a.ID)
	if sb, err := p.Get(t.Context(), a.ID); err != nil || sb.State != providers.StateRunning {
		t.Errorf("%+v, %v", sb, err)
	}
	mustSh(t, a, "a=$(stat -c %Z /tmp/date); for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 0.2; [ $(stat -c %Z /tmp/date) != $a ] && exit 0; done; exit 1")
	b := create(t, p, providers.CreateRequest{Snapshot: s.ID})
	if out := mustSh(t, b, "cat /home/user/x; ps ax 2>/dev/null | grep -c [d]ate"+" || true"); !strings.HasPrefix(out, "x\n") {
		t.Errorf("%q", out)
	}
}

// TestLongChain goes beyond the number of layers that sandboxes start from.
func TestLongChain(t *testing.T) {
	p := snapshotProvider(t)
	sb := create(t, p, providers.CreateRequest{})
	mustSh(t, sb, "cd /home/user; mkdir d; echo 0 > d/0; ln d/0 d/hard; ln -s 0 d/soft; chmod 710 d")
	for i := 1; i <= maxLayers+2; i++ {
		s := snapshot(t, p, sb.ID)
		next := create(t, p, providers.CreateRequest{Snapshot: s.ID})
		if err := errors.Join(p.Kill(t.Context(), sb.ID), p.DeleteSnapshot(t.Context(), s.ID)); err != nil {
			t.Fatal(err)
		}
		sb = next
		mustSh(t, sb, "cd /home/user; n=$(ls | grep -c ^n); touch n$n; [ $n = 0 ] || rm n$((n-1)); mkdir -p dir; echo "+strings.Repeat("x", i)+" > dir/last")
	}
	if out := mustSh(t, sb, "cd /home/user; cat d/0 d/hard d/soft; stat -c %a d; wc -c < dir/last; ls | wc -l"); out != "0\n0\n0\n710\n35\n4\n" && !strings.HasPrefix(out, "0\n0\n0\n710\n35\n") {
		t.Errorf("%q", out)
	}
	if n := len(layerNames(t, p)); n > maxLayers {
		t.Errorf("%d layers", n)
	}
}

// TestMountPointInSnapshot puts a link where a volume is to be seen.
func TestMountPointInSnapshot(t *testing.T) {
	p := snapshotProvider(t)
	a := create(t, p, providers.CreateRequest{})
	outside := t.TempDir()
	if err := os.Chmod(outside, 0o777); err != nil {
		t.Fatal(err)
	}
	mustSh(t, a, "cd /home/user; ln -s "+outside+" trap; mkdir plain")
	s := snapshot(t, p, a.ID)
	_, err := p.Create(t.Context(), providers.CreateRequest{Snapshot: s.ID, Volumes: []providers.Volume{{Name: "v", Path: "/home/user/trap/in"}}})
	if err == nil {
		t.Error("a volume was put where a link leads")
	}
	if names, err := os.ReadDir(outside); err != nil || len(names) > 0 {
		t.Errorf("outside: %v, %v", names, err)
	}
	b := create(t, p, providers.CreateRequest{Snapshot: s.ID, Volumes: []providers.Volume{{Name: "v", Path: "/home/user/plain/new/v"}}})
	mustSh(t, b, "echo x > /home/user/plain/new/v/x; echo y > /home/user/plain/new/y")
	if b, err := os.ReadFile(filepath.Join(p.tree.path, volumesDir, "v", "x")); err != nil || string(b) != "x\n" {
		t.Errorf("%q, %v", b, err)
	}
}

// TestTwentyForks starts many sandboxes from one snapshot at once. Each writes over
// the same file and sees what it wrote itself.
func TestTwentyForks(t *testing.T) {
	p := snapshotProvider(t)
	a := create(t, p, providers.CreateRequest{})
	mustSh(t, a, "echo parent > /home/user/f")
	s := snapshot(t, p, a.ID)
	var forks [20]*providers.Sandbox
	var wg sync.WaitGroup
	for i := range forks {
		wg.Go(func() {
			sb, err := p.Create(t.Context(), providers.CreateRequest{Snapshot: s.ID})
			if err != nil {
				t.Error(err)
				return
			}
			forks[i] = sb
			if out, _, err := shell(t.Context(), sb, "cat /home/user/f; echo $SANDBOX_ID > /home/user/f"); err != nil || out != "parent\n" {
				t.Errorf("fork starts with %q, %v", out, err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	for _, sb := range forks {
		if out := mustSh(t, sb, "cat /home/user/f"); out != sb.ID+"\n" {
			t.Errorf("%s sees %q", sb.ID, out)
		}
	}
	if out := mustSh(t, a, "cat /home/user/f"); out != "parent\n" {
		t.Errorf("the parent sees %q", out)
	}
}
