//go:build linux

package local

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/providers"
)

// keptAs runs a test with every mapping of users that this process can make
// sandboxes with.
func keptAs(t *testing.T, f func(t *testing.T, kind mapKind)) {
	t.Helper()
	needOverlay(t)
	kind := mappingKind()
	f(t, kind)
	if kind != mapSubid {
		return
	}
	// What the mapping is was found out once: another process sees no newuidmap.
	c := exec.Command(os.Args[0], "-test.v", "-test.run=^"+t.Name()+"$")
	c.Env = append(os.Environ(), "PATH=/nowhere")
	if out, err := c.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("without newuidmap: %v\n%s", err, out)
	}
}

// Root inside is a user like others, without capabilities.
const (
	makeAsRoot = `set -e; umask 022
mkdir -p /root/deep/shut; echo root > /root/deep/shut/f; chmod 700 /root/deep/shut; ln -s f /root/deep/shut/soft
echo mine > /tmp/of-root; ln /tmp/of-root /tmp/hard; mkdir -m 711 /tmp/d; echo key > /tmp/d/key; chmod 600 /tmp/d/key; mkdir -m 777 /tmp/both /tmp/gone; touch /tmp/gone/x`
	makeAsUser = `set -e; umask 022
mkdir -m 711 /home/user/d; echo x > /home/user/d/x; chmod 0 /home/user/d/x; echo y > /tmp/y; echo z > /tmp/both/z; mkdir -m 0 /home/user/shut`

	findOwned = `cd /; find root home/user tmp var/tmp -printf '%p %y %m %U:%G %l\n' 2>/dev/null | sort`
)

// TestOwnersAreKept looks at files of root and others in sandboxes that start
// with files, through one that hibernated, and after layers were made one.
func TestOwnersAreKept(t *testing.T) { keptAs(t, testOwners) }

func testOwners(t *testing.T, kind mapKind) {
	p := snapshotProvider(t)
	a := create(t, p, providers.CreateRequest{})
	as := func(sb *providers.Sandbox, user, script string) string {
		t.Helper()
		if user == "root" && kind == mapSingle {
			return ""
		}
		out, end, err := commandAs(t.Context(), sb, user, "/bin/sh", "-c", "exec 2>&1; "+script)
		if err != nil || end.ExitCode != 0 {
			t.Fatalf("%s: %v, %+v: %s", script, err, end, out)
		}
		return out
	}
	look := func(sb *providers.Sandbox) string {
		t.Helper()
		return as(sb, "user", findOwned) + as(sb, "root", findOwned+"; cat /root/deep/shut/f /tmp/of-root /tmp/d/key")
	}
	if kind == mapSingle {
		as(a, "user", "mkdir /tmp/both")
	}
	as(a, "root", makeAsRoot)
	as(a, "user", makeAsUser)
	want := look(a)
	s := snapshot(t, p, a.ID)
	b := create(t, p, providers.CreateRequest{Snapshot: s.ID})
	if got := look(b); got != want {
		t.Errorf("a child has\n%s\nwant\n%s", got, want)
	}
	if kind != mapSingle {
		if out, end := sh(t, b, "cat /tmp/d/key || ls /root/deep || echo x > /tmp/of-root || rm -f /tmp/of-root"); end.ExitCode == 0 {
			t.Errorf("user can read or write what belongs to root: %q", out)
		}
	}
	as(b, "root", "set -e; echo more >> /root/deep/shut/f; echo more >> /tmp/d/key; rm -r /tmp/gone; mkdir -m 755 /tmp/gone; touch /tmp/gone/y")
	as(b, "user", "set -e; chmod 600 /home/user/d/x; echo more >> /home/user/d/x; chmod 0 /home/user/d/x; rmdir /home/user/shut; rm /tmp/both/z")
	want = look(b)
	if err := p.Hibernate(t.Context(), b.ID); err != nil {
		t.Fatal("hibernate:", err)
	}
	b, err := p.Connect(t.Context(), b.ID, providers.ConnectRequest{})
	if err != nil {
		t.Fatal("wake:", err)
	}
	if got := look(b); got != want {
		t.Errorf("a sandbox that was woken has\n%s\nwant\n%s", got, want)
	}
	for i := range maxLayers + 1 {
		as(b, "user", "echo x > /home/user/x"+strings.Repeat("x", i))
		s := snapshot(t, p, b.ID)
		next := create(t, p, providers.CreateRequest{Snapshot: s.ID})
		if err := p.Kill(t.Context(), b.ID); err != nil {
			t.Fatal(err)
		}
		if err := p.DeleteSnapshot(t.Context(), s.ID); err != nil {
			t.Fatal(err)
		}
		b = next
	}
	if n := len(layerNames(t, p)); n > maxLayers {
		t.Errorf("%d layers", n)
	}
	as(b, "user", "rm /home/user/x*")
	if got := look(b); got != want {
		t.Errorf("after many sandboxes\n%s\nwant\n%s", got, want)
	}
}

// TestLayerOwnersOutside says who files of layers belong to on the machine.
func TestLayerOwnersOutside(t *testing.T) {
	keptAs(t, func(t *testing.T, kind mapKind) {
		p := snapshotProvider(t)
		a := create(t, p, providers.CreateRequest{})
		mustSh(t, a, "echo x > /home/user/x")
		snapshot(t, p, a.ID)
		name := filepath.Join(p.tree.path, layersDir, layerNames(t, p)[0])
		owner := func(at string) (uid uint32) {
			var st unix.Stat_t
			if err := unix.Lstat(filepath.Join(name, at), &st); err != nil {
				t.Error(err)
			}
			return st.Uid
		}
		root, user := uint32(os.Geteuid()), uint32(os.Geteuid())
		switch kind {
		case mapBlock:
			root, user = volumeIDs, volumeIDs+userID
		case mapSubid:
			tools, err := subidTools()
			if err != nil {
				t.Fatal(err)
			}
			root = uint32(tools.uids.start)
		}
		if got := owner("tmp"); got != root {
			t.Errorf("/tmp belongs to %d, want %d", got, root)
		}
		if got := owner("home%2Fuser/x"); got != user {
			t.Errorf("a file of user belongs to %d, want %d", got, user)
		}
	})
}
