//go:build linux

package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/internal/envd"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

func diskRequest(diskMiB int64) providers.CreateRequest {
	return providers.CreateRequest{Scratch: scratchDisk, Resources: providers.Resources{MemoryMiB: 128, DiskMiB: diskMiB}}
}

// What is written to disk may be more than the memory, is measured, and is gone
// with the sandbox, whatever it consists of.
func TestDiskScratch(t *testing.T) {
	p := testProvider(t)
	sb := create(t, p, diskRequest(512))
	r, err := p.Report(t.Context(), sb.ID)
	if err != nil || r.Scratch != scratchSoft || r.Limits["disk"] != scratchSoft || !slices.ContainsFunc(r.Degraded, func(d providers.Degradation) bool { return d.What == "scratch" }) {
		t.Errorf("report: %+v, %v", r, err)
	}
	out, end := sh(t, sb, `set -e
		head -c 160M /dev/zero > ~/big; wc -c < ~/big
		echo one > /tmp/a; echo two > /var/tmp/b; cat /tmp/a /var/tmp/b
		grep -E ' (/tmp|/home/user) ' /proc/self/mounts | grep -c nosuid,nodev
		cd /tmp; d=$(head -c 255 /dev/zero | tr '\0' d); chain=$d; for i in 1 2 3 4 5 6 7 8 9 10 11 12 13; do chain=$chain/$d; done
		for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do mkdir -p n/$chain; if [ -d top ]; then mv top n/$chain/; fi; mv n top; done
		mkdir -p closed/in; touch closed/in/file; chmod 0 closed/in closed; echo done`)
	if out != "167772160\none\ntwo\n2\ndone\n" {
		t.Errorf("%q %+v", out, end)
	}
	eventually(t, "the right use of the disk", func() bool {
		u, err := p.Usage(t.Context(), sb.ID)
		if err != nil {
			t.Fatal(err)
		}
		return u.DiskTotal == 512<<20 && u.DiskUsed > 160<<20 && u.DiskUsed < 170<<20
	})
	if err := p.Kill(t.Context(), sb.ID); err != nil {
		t.Error(err)
	}
}

// Who writes too much is killed and told why; what is there can be removed, and
// then there is room again.
func TestDiskScratchLimit(t *testing.T) {
	p := testProvider(t)
	sb := create(t, p, diskRequest(16))
	for _, script := range []string{
		"i=0; while true; do head -c 1M /dev/zero > ~/f$i; i=$((i+1)); sleep .02; done",
		"cd; mkdir d; chmod 755 d; while true; do head -c 1M /dev/zero >> d/f$((i+=1)); sleep .02; done",
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		_, end, err := shell(ctx, sb, script)
		cancel()
		if err != nil || end.Exited || !end.NoSpace || end.MemoryLimit {
			t.Fatalf("%s: %+v, %v", script, end, err)
		}
		c, err := envd.New(&envd.Options{Dial: sb.Data.Dial, Token: sb.Data.Token.Reveal()})
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.WriteFile(t.Context(), "/home/user/upload", strings.NewReader(strings.Repeat("x", 1<<20)), 1<<20, nil)
		c.Close()
		if !errors.Is(err, errdefs.ErrNoSpace) {
			t.Errorf("upload to a full disk: %v", err)
		}
		out, end := sh(t, sb, "sleep 2.5; rm -rf ~/* && echo removed")
		if out != "removed\n" || end.NoSpace {
			t.Errorf("afterwards: %q %+v", out, end)
		}
		eventually(t, "the right use of the disk", func() bool {
			u, err := p.Usage(t.Context(), sb.ID)
			return err == nil && u.DiskUsed < 1<<20
		})
	}
	out, _ := sh(t, sb, "head -c 17M /dev/zero > ~/big; wc -c < ~/big")
	if !strings.Contains(out, "16777216\n") {
		t.Errorf("one large file: %q", out)
	}
}

// Files without content count too.
func TestDiskScratchFiles(t *testing.T) {
	p := testProvider(t)
	sb := create(t, p, diskRequest(64))
	_, end := sh(t, sb, "mkdir /tmp/d; cd /tmp/d; touch seed; i=0; while true; do mkdir $i; (cd $i; seq 1 500 | xargs touch); i=$((i+1)); done")
	if !end.NoSpace {
		t.Errorf("end: %+v", end)
	}
}

func TestDiskScratchRefuses(t *testing.T) {
	p := testProvider(t)
	req := diskRequest(1 << 40)
	if _, err := p.Create(t.Context(), req); !errors.Is(err, errdefs.ErrOption) {
		t.Errorf("more than there is: %v", err)
	}
	for _, name := range []string{"scratch", "disk"} {
		req := diskRequest(16)
		req.Require = []string{name}
		if _, err := p.Create(t.Context(), req); errdefs.CodeOf(err) != "E2012" {
			t.Errorf("required %s: %v", name, err)
		}
		req.Scratch = scratchMemory
		if sb, err := p.Create(t.Context(), req); err != nil {
			t.Errorf("required %s, in memory: %v", name, err)
		} else if err := p.Kill(t.Context(), sb.ID); err != nil {
			t.Error(err)
		}
	}
	req = diskRequest(16)
	req.Scratch = "cloud"
	if _, err := p.Create(t.Context(), req); !errors.Is(err, errdefs.ErrOption) {
		t.Errorf("unknown: %v", err)
	}
}

// Snapshots and hibernation keep what lies on disk.
func TestDiskScratchKept(t *testing.T) {
	needOverlay(t)
	root := testRoot(t)
	p := openProvider(t, root)
	sb := create(t, p, diskRequest(64))
	sh(t, sb, "echo kept > ~/file; mkdir ~/gone; touch ~/gone/x")
	s, err := p.Snapshot(t.Context(), sb.ID, providers.SnapshotRequest{})
	if err != nil {
		t.Fatal(err)
	}
	req := diskRequest(64)
	req.Snapshot = s.ID
	fork := create(t, p, req)
	if out, _ := sh(t, fork, "cat ~/file; rm -r ~/gone; echo more >> ~/file; ls ~"); out != "kept\nfile\n" {
		t.Errorf("fork: %q", out)
	}
	if err := p.Hibernate(t.Context(), fork.ID); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(root, "local", "boxes", fork.ID, dirScratch)); len(left) > 0 {
		t.Errorf("while it is stopped: %v", left)
	}
	fork, err = p.Connect(t.Context(), fork.ID, providers.ConnectRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if out, _ := sh(t, fork, "cat ~/file; ls ~"); out != "kept\nmore\nfile\n" {
		t.Errorf("woken: %q", out)
	}
	for _, id := range []string{sb.ID, fork.ID} {
		if err := p.Kill(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
	if err := p.DeleteSnapshot(t.Context(), s.ID); err != nil {
		t.Error(err)
	}
	checkNothingLeft(t, root)
}

// What a crashed sandbox has on disk is collected.
func TestDiskScratchCollected(t *testing.T) {
	root := testRoot(t)
	p := openProvider(t, root)
	req := diskRequest(64)
	req.Detached = true
	own := "touch /tmp/mine; "
	if mappingKind() != mapSingle {
		req.User = "root"
		own = "mkdir -p /root/a/b; touch /root/a/b/c; chown -R 5:5 /root/a; chmod -R go= /root/a; "
	}
	sb := create(t, p, req)
	sh(t, sb, own+"cd /tmp; i=0; while [ $i -lt 300 ]; do mkdir deep && cd deep; i=$((i+1)); done; touch bottom; chmod 0 .")
	var state savedState
	t2, done, err := p.begin(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	e, err := t2.openEntry(sb.ID)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.load(fileState, &state); err != nil {
		t.Fatal(err)
	}
	e.close()
	done()
	if err := p.Close(); err != nil { // nobody watches it any more
		t.Fatal(err)
	}
	if err := unix.Kill(state.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	q := openProvider(t, root)
	eventually(t, "nothing is left", func() bool {
		reapStrays()
		if _, err := q.List(t.Context(), providers.ListRequest{}); err != nil {
			t.Fatal(err)
		}
		if err := q.collect(t.Context()); err != nil {
			t.Fatal(err)
		}
		left, err := filepath.Glob(filepath.Join(root, "local", "boxes", "*"))
		return err == nil && len(left) == 0
	})
	checkNothingLeft(t, root)
}

func TestDiskSize(t *testing.T) {
	for _, c := range []struct{ asked, free, want int64 }{
		{0, 100 << 30, defaultDisk}, {0, 4 << 30, 1 << 30}, {0, 0, minScratch},
		{5, 5 << 20, 5 << 20}, {6, 6<<20 - 1, -1}, {1 << 50, 1 << 40, -1}, {-1, 1 << 40, -1},
	} {
		got, err := diskSize(c.asked, c.free)
		if c.want < 0 && !errors.Is(err, errdefs.ErrOption) || c.want >= 0 && (err != nil || got != c.want) {
			t.Errorf("%d MiB of %d: %d, %v", c.asked, c.free, got, err)
		}
	}
}

func TestMeasureTree(t *testing.T) {
	dir := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.WriteFile(filepath.Join(dir, "a"), make([]byte, 1<<20), 0o600))
	must(os.Link(filepath.Join(dir, "a"), filepath.Join(dir, "b")))
	must(os.Symlink("/usr", filepath.Join(dir, "link")))
	must(os.Truncate(filepath.Join(dir, "a"), 1<<30)) // a hole takes nothing
	deep := dir
	for i := range 10 {
		deep = filepath.Join(deep, fmt.Sprint(i))
		must(os.Mkdir(deep, 0o700))
		must(os.WriteFile(filepath.Join(deep, "x"), []byte("x"), 0o600))
	}
	f, err := os.Open(dir)
	must(err)
	defer f.Close()
	u, err := measureTree(f)
	if err != nil || u.inodes != 22 || u.bytes < 1<<20 || u.bytes > 2<<20 {
		t.Errorf("%+v, %v", u, err)
	}
}

func TestWatchRoom(t *testing.T) {
	w := newScratchWatch(nil, 100, nil, slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err := errors.Join(w.room(60), w.room(40)); err != nil {
		t.Error(err)
	}
	if err := w.room(1); err != unix.ENOSPC {
		t.Errorf("beyond the limit: %v", err)
	}
	w.settle(diskUse{bytes: 10})
	if err := w.room(90); err != nil {
		t.Error(err)
	}
}
