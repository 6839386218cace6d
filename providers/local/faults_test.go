//go:build linux

package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// envMounts says that the mounts of this process are its own.
const envMounts = "LOCAL_TEST_MOUNTS"

// inMounts reports whether this process has mounts of its own. If not it runs the
// test, which must be one without a parent, in one that has.
func inMounts(t *testing.T) bool {
	t.Helper()
	needIsolation(t)
	if os.Getenv(envMounts) != "" {
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			t.Fatal("make mounts private:", err)
		}
		return true
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=5m")
	cmd.Env = append(os.Environ(), envMounts+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	if uid, gid := os.Geteuid(), os.Getegid(); uid != 0 {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}}
		cmd.SysProcAttr.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN}
	}
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	switch {
	case err != nil:
		t.Error("in a process with mounts of its own:", err)
	case strings.Contains(string(out), "--- SKIP: "+t.Name()+" "):
		t.Skip("skipped in a process with mounts of its own")
	}
	return false
}

// smallDisk is a file system in memory with the state directory of a provider.
type smallDisk struct{ dir string }

func newSmallDisk(t *testing.T) smallDisk {
	t.Helper()
	d := smallDisk{testRoot(t)}
	if err := unix.Mount("small", d.dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=700"); err != nil {
		t.Fatal("mount:", err)
	}
	t.Cleanup(func() { unix.Unmount(d.dir, unix.MNT_DETACH) })
	if err := os.WriteFile(filepath.Join(d.dir, "filler"), make([]byte, 1<<14), 0o600); err != nil {
		t.Fatal(err)
	}
	return d
}

const roomy = 10_000

// leave makes the disk so small that this much is free.
func (d smallDisk) leave(t *testing.T, blocks, inodes int) {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(d.dir, &st); err != nil {
		t.Fatal(err)
	}
	used := (st.Blocks - st.Bfree) * uint64(st.Bsize)
	options := fmt.Sprintf("size=%d,nr_inodes=%d", used+uint64(blocks)*uint64(st.Bsize), st.Files-st.Ffree+uint64(inodes))
	if err := unix.Mount("small", d.dir, "", unix.MS_REMOUNT|unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		t.Fatal("remount with", options, err)
	}
}

// content lists what is on the disk, but for what is made once.
func (d smallDisk) content(t *testing.T) string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(d.dir, func(path string, e fs.DirEntry, err error) error {
		switch name := filepath.Base(path); {
		case errors.Is(err, fs.ErrPermission):
			return fs.SkipDir
		case err != nil:
			return err
		case name == layersLock, name == storeLock, name == fileEnded, name == lockEnded, name == volumesDir:
		default:
			out = append(out, strings.TrimPrefix(path, d.dir))
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	return strings.Join(out, "\n")
}

// untilRoom does something with more and more room, from none, until it succeeds,
// and undoes it: first with few blocks, then with few files. Each failure has to
// say that the disk is full, and to leave what was there; after looks at more.
func (d smallDisk) untilRoom(t *testing.T, do, undo func() error, after func()) {
	t.Helper()
	for _, few := range []string{"blocks", "files"} {
		before := d.content(t)
		for free := 0; ; free++ {
			room := map[string]int{"blocks": roomy, "files": roomy}
			room[few] = free
			d.leave(t, room["blocks"], room["files"])
			err := do()
			d.leave(t, roomy, roomy)
			if err == nil {
				t.Logf("%d free %s are enough", free, few)
				if free == 0 {
					t.Errorf("done with no free %s", few)
				}
				if err := undo(); err != nil {
					t.Fatal("undo:", err)
				}
				break
			}
			if code := errdefs.CodeOf(err); code != "E4004" && code != "E2000" || !errors.Is(err, unix.ENOSPC) {
				t.Errorf("with %d free %s: code %q, %v", free, few, code, err)
			}
			if got := d.content(t); got != before {
				t.Fatalf("%d free %s: after %v there is\n%s\nbefore there was\n%s", free, few, err, got, before)
			}
			after()
			if free == 200 {
				t.Fatal("it never succeeds: ", err)
			}
		}
	}
}

// TestStateDiskFull has too little room in the state directory for everything that a
// provider does there, at every point where that may be noticed.
func TestStateDiskFull(t *testing.T) {
	if !inMounts(t) {
		return
	}
	d := newSmallDisk(t)
	p := openProvider(t, d.dir)
	if err := p.Kill(t.Context(), create(t, p, providers.CreateRequest{}).ID); err != nil {
		t.Fatal(err)
	}
	var ids []string
	nothing := func() {}
	creation := func(req providers.CreateRequest) (do, undo func() error) {
		return func() error {
				req.RequestID = fmt.Sprint("full ", len(ids))
				ids = append(ids, sandboxID(req.RequestID))
				_, err := p.Create(t.Context(), req)
				return err
			}, func() error {
				return p.Kill(t.Context(), ids[len(ids)-1])
			}
	}
	t.Run("create", func(t *testing.T) {
		do, undo := creation(providers.CreateRequest{})
		d.untilRoom(t, do, undo, nothing)
	})
	t.Run("volume", func(t *testing.T) {
		do, undo := creation(providers.CreateRequest{Volumes: []providers.Volume{{Name: "v", Path: "/data"}}})
		v := filepath.Join(d.dir, "local", volumesDir, "v")
		remove := func() error { // an empty volume stays, and is one
			names, err := os.ReadDir(filepath.Dir(v))
			if err == nil && slices.ContainsFunc(names, func(e fs.DirEntry) bool { return e.Name() != "v" }) {
				t.Errorf("volumes: %v", names)
			}
			return os.RemoveAll(v)
		}
		d.untilRoom(t, func() error {
			err := do()
			if err != nil {
				remove()
			}
			return err
		}, func() error { return errors.Join(undo(), remove()) }, nothing)
	})
	t.Run("artifact", func(t *testing.T) {
		a := testArtifact(t, strings.Repeat("program", 5000))
		d.untilRoom(t, func() error {
			_, err := p.store.add(t.Context(), a)
			return err
		}, func() error { return p.store.collect(time.Now().Add(time.Hour), nil) }, nothing)
	})
	t.Run("kill", func(t *testing.T) {
		// What takes away makes room, so it needs none.
		id := create(t, p, providers.CreateRequest{}).ID
		if err := p.tree.base.remove(fileEnded); err != nil {
			t.Fatal(err)
		}
		d.leave(t, 0, 0)
		err := p.Kill(t.Context(), id)
		d.leave(t, roomy, roomy)
		if err != nil {
			t.Error(err)
		}
		checkNothingLeft(t, d.dir)
	})
	t.Run("files", func(t *testing.T) { fullKeepingFiles(t, d, p) })
	checkNothingLeft(t, d.dir)
	checkNoGroups(t, p.groups(), ids)
}

// fullKeepingFiles takes snapshots, hibernates and wakes without room.
func fullKeepingFiles(t *testing.T, d smallDisk, p *Provider) {
	needOverlay(t)
	sb := create(t, p, providers.CreateRequest{Lifetime: time.Hour})
	mustSh(t, sb, "cd /home/user; head -c 20000 /dev/zero > file; mkdir dir; echo kept > dir/f")
	works := func() {
		t.Helper()
		got, err := p.Get(t.Context(), sb.ID)
		if err != nil || got.State != providers.StateRunning {
			t.Fatalf("%+v, %v", got, err)
		}
		if out := mustSh(t, got, "cat /home/user/dir/f"); out != "kept\n" {
			t.Errorf("%q", out)
		}
	}
	var s *providers.Snapshot
	d.untilRoom(t, func() (err error) {
		s, err = p.Snapshot(t.Context(), sb.ID, providers.SnapshotRequest{Name: "full"})
		return err
	}, func() error { return p.DeleteSnapshot(t.Context(), s.ID) }, func() {
		if page, err := p.ListSnapshots(t.Context(), providers.SnapshotListRequest{}); err != nil || len(page.Snapshots) > 0 {
			t.Errorf("listed: %+v, %v", page, err)
		}
		works()
	})
	hibernate := func() error { return p.Hibernate(t.Context(), sb.ID) }
	wake := func() error {
		_, err := p.Connect(t.Context(), sb.ID, providers.ConnectRequest{})
		return err
	}
	d.untilRoom(t, hibernate, wake, works)
	works()
	if err := hibernate(); err != nil {
		t.Fatal(err)
	}
	d.untilRoom(t, wake, hibernate, func() {
		if got, err := p.Get(t.Context(), sb.ID); err != nil || got.State != providers.StateStopped {
			t.Fatalf("%+v, %v", got, err)
		}
	})
	if err := wake(); err != nil {
		t.Fatal(err)
	}
	works()
	if err := p.Kill(t.Context(), sb.ID); err != nil {
		t.Error(err)
	}
	if names := layerNames(t, p); len(names) > 0 {
		t.Errorf("layers %q are left", names)
	}
}

// TestStateReadOnly looks at living sandboxes in a state directory that cannot be
// written: they are seen and end when told to, and errors say what is wrong.
func TestStateReadOnly(t *testing.T) {
	if !inMounts(t) {
		return
	}
	d := newSmallDisk(t)
	p := openProvider(t, d.dir)
	a, b := create(t, p, providers.CreateRequest{}), create(t, p, providers.CreateRequest{Detached: true})
	ns := namespaceOf(t, d.dir, b.ID)

	view := testRoot(t)
	if err := unix.Mount(d.dir, view, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(view, unix.MNT_DETACH) })
	if err := unix.Mount("", view, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, ""); err != nil {
		t.Fatal(err)
	}
	q := openProvider(t, view)
	listed := func(q *Provider, want ...string) {
		t.Helper()
		page, err := q.List(t.Context(), providers.ListRequest{})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, sb := range page.Sandboxes {
			got = append(got, sb.ID)
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("listed %q, want %q", got, want)
		}
	}
	readOnly := func(what string, err error) {
		t.Helper()
		if errdefs.CodeOf(err) != "E2000" || !errors.Is(err, unix.EROFS) {
			t.Errorf("%s: code %q, %v", what, errdefs.CodeOf(err), err)
		}
	}
	listed(q, a.ID, b.ID)
	if got, err := q.Connect(t.Context(), a.ID, providers.ConnectRequest{}); err != nil {
		t.Error("connect:", err)
	} else if out, _ := sh(t, got, "echo ok"); out != "ok\n" {
		t.Errorf("%q", out)
	}
	_, err := q.Create(t.Context(), providers.CreateRequest{})
	readOnly("create", err)
	if probeOverlay(t.Context()) == nil {
		_, err = q.Snapshot(t.Context(), a.ID, providers.SnapshotRequest{})
		readOnly("snapshot", err)
		readOnly("hibernate", q.Hibernate(t.Context(), a.ID))
	}
	// Its process ends; what it leaves waits for somebody who can remove it.
	p.mu.Lock()
	c := p.live[b.ID]
	p.mu.Unlock()
	if err := q.Kill(t.Context(), b.ID); err != nil && !errors.Is(err, unix.EROFS) {
		t.Error("kill:", err)
	}
	<-c.done
	if left := processesIn(ns); len(left) > 0 {
		t.Errorf("alive: %q", left)
	}
	listed(q, a.ID)
	listed(p, a.ID)
	if err := p.Kill(t.Context(), a.ID); err != nil {
		t.Error(err)
	}
	checkNothingLeft(t, d.dir)
	if _, err := New(providers.Config{StateDir: view}); err != nil {
		t.Error(err)
	}
}
