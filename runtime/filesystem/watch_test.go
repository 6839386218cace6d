//go:build linux

package filesystem

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	pb "github.com/agent-sandbox/sandbox-go/internal/pb/filesystem"
	"github.com/agent-sandbox/sandbox-go/runtime/account"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testService is a service and the context of a request by its user.
func testService(t *testing.T) (*Service, context.Context) {
	t.Helper()
	users := account.NewBook("", false)
	u, err := users.Lookup("")
	if err != nil {
		t.Fatal(err)
	}
	s := New(Options{Users: users})
	t.Cleanup(s.Close)
	return s, account.NewContext(t.Context(), u)
}

func create(t *testing.T, s *Service, ctx context.Context, dir string) string {
	t.Helper()
	resp, err := s.CreateWatcher(ctx, connect.NewRequest(&pb.CreateWatcherRequest{Path: dir}))
	if err != nil {
		t.Fatal(err)
	}
	return resp.Msg.GetWatcherId()
}

func ask(s *Service, ctx context.Context, id string) ([]*pb.FilesystemEvent, error) {
	resp, err := s.GetWatcherEvents(ctx, connect.NewRequest(&pb.GetWatcherEventsRequest{WatcherId: id}))
	if err != nil {
		return nil, err
	}
	return resp.Msg.GetEvents(), nil
}

func TestPolledWatcherExpires(t *testing.T) {
	s, ctx := testService(t)
	s.watchers.pollTimeout = 50 * time.Millisecond
	id := create(t, s, ctx, t.TempDir())
	deadline := time.Now().Add(20 * time.Second)
	for {
		s.watchers.mu.Lock()
		left := len(s.watchers.open)
		s.watchers.mu.Unlock()
		if left == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("it is still there")
		}
		time.Sleep(5 * time.Millisecond)
	}
	if _, err := ask(s, ctx, id); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("got %v", err)
	}
	if dirs, bytes := s.watchers.dirs.Load(), s.watchers.bytes.Load(); dirs != 0 || bytes != 0 {
		t.Errorf("%d directories and %d bytes are still counted", dirs, bytes)
	}
}

func TestClosedServiceWatchesNothing(t *testing.T) {
	s, ctx := testService(t)
	create(t, s, ctx, t.TempDir())
	s.Close()
	if _, err := s.CreateWatcher(ctx, connect.NewRequest(&pb.CreateWatcherRequest{Path: "/"})); connect.CodeOf(err) != connect.CodeUnavailable {
		t.Errorf("got %v", err)
	}
}

// The kernel says so when it dropped events, and the watch passes it on.
func TestKernelOverflow(t *testing.T) {
	w := &watcher{queue: newChanges(new(atomic.Int64)), root: -1}
	if err := w.handle([]notice{{wd: -1, mask: unix.IN_Q_OVERFLOW}}); !errors.Is(err, errMissed) {
		t.Errorf("got %v", err)
	}
}

func TestChangesAreBounded(t *testing.T) {
	var bytes atomic.Int64
	a, b := newChanges(&bytes), newChanges(&bytes)
	long := strings.Repeat("n", 4000)
	n := 0
	for ; ; n++ {
		if err := a.put(change{fmt.Sprint(long, n), pb.EventType_EVENT_TYPE_WRITE}); err != nil {
			if !errors.Is(err, errMissed) {
				t.Fatal(err)
			}
			a.fail(err)
			break
		}
	}
	if held := bytes.Load(); held > maxChangeBytes || held < maxChangeBytes-8000 {
		t.Errorf("%d bytes are held", held)
	}
	if err := b.put(change{long, pb.EventType_EVENT_TYPE_WRITE}); !errors.Is(err, errMissed) {
		t.Errorf("another watch: got %v", err)
	}
	for n > 0 {
		list, err := a.take(100)
		if err != nil {
			t.Fatalf("%d are missing: %v", n, err)
		}
		n -= len(list)
	}
	for range 2 {
		if _, err := a.take(100); !errors.Is(err, errMissed) {
			t.Errorf("after the last one: got %v", err)
		}
	}
	a.close()
	if held := bytes.Load(); held != 0 {
		t.Errorf("%d bytes are still held", held)
	}
	for range 3 {
		if err := b.put(change{"same", pb.EventType_EVENT_TYPE_WRITE}); err != nil {
			t.Fatal(err)
		}
	}
	if list, _ := b.take(100); len(list) != 1 {
		t.Errorf("the same change counts %d times", len(list))
	}
	b.put(change{"left", pb.EventType_EVENT_TYPE_WRITE})
	b.close()
	if held := bytes.Load(); held != 0 {
		t.Errorf("%d bytes are still held", held)
	}
}

func TestTooManyDirectories(t *testing.T) {
	s, ctx := testService(t)
	dir := t.TempDir()
	for _, name := range []string{"a", "b"} {
		if err := os.Mkdir(dir+"/"+name, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s.watchers.dirs.Store(maxWatchedDirs - 2)
	_, err := s.CreateWatcher(ctx, connect.NewRequest(&pb.CreateWatcherRequest{Path: dir, Recursive: true}))
	if connect.CodeOf(err) != connect.CodeResourceExhausted {
		t.Errorf("got %v", err)
	}
	if left := s.watchers.dirs.Load(); left != maxWatchedDirs-2 {
		t.Errorf("%d directories are counted", left)
	}
}

// A name in a watched tree that became a link leads nowhere.
func TestResolveBelow(t *testing.T) {
	dir := t.TempDir()
	for name, to := range map[string]string{"link": "real", "out": "/", "up": ".."} {
		if err := os.Symlink(to, dir+"/"+name); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(dir+"/real/sub", 0o755); err != nil {
		t.Fatal(err)
	}
	g := guard{}
	root, err := g.openPath(unix.AT_FDCWD, dir, unix.O_DIRECTORY)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(root)
	for rel, ok := range map[string]bool{
		"": true, "real": true, "real/sub": true, "real/..": true,
		"link": false, "link/sub": false, "out": false, "out/etc": false, "up": false, "..": false, "real/../..": false, "/etc": false, "none": false,
	} {
		fd, err := resolveBelow(root, rel, unix.O_PATH|unix.O_DIRECTORY)
		if (err == nil) != ok {
			t.Errorf("%q: got %v", rel, err)
		}
		if err == nil {
			unix.Close(fd)
		}
	}
	if e := g.entryBelow(root, "out/etc", dir, account.NewBook("", false).Names()); e != nil {
		t.Errorf("got %v", e)
	}
	if e := g.entryBelow(root, "out", dir, account.NewBook("", false).Names()); e == nil || e.GetPath() != dir+"/out" {
		t.Errorf("got %v", e)
	}
}

func TestNetworkTypes(t *testing.T) {
	for _, magic := range []uint32{0x6969, 0xff534d42, 0x517b, 0xfe534d42, 0x65735546} { // what envd refuses
		if networkTypes[magic] == "" {
			t.Errorf("%#x is taken for local", magic)
		}
	}
	for _, magic := range []uint32{unix.EXT4_SUPER_MAGIC, unix.TMPFS_MAGIC, unix.OVERLAYFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.XFS_SUPER_MAGIC} {
		if networkTypes[magic] != "" {
			t.Errorf("%#x is taken for a network", magic)
		}
	}
}

func TestUploadNames(t *testing.T) {
	u := newUploads()
	first := u.begin()
	u.end(first)
	if !u.known(first) || u.known(uploadPrefix+"mine") || u.known("f") {
		t.Error("the wrong names are hidden")
	}
	for range rememberedUploads {
		u.end(u.begin())
	}
	if u.known(first) || len(u.names) != rememberedUploads {
		t.Errorf("%d names are remembered", len(u.names))
	}
}

func FuzzParseNotices(f *testing.F) {
	one := binary.NativeEndian.AppendUint32(nil, 1)
	one = binary.NativeEndian.AppendUint32(one, unix.IN_CREATE)
	one = binary.NativeEndian.AppendUint32(one, 7)
	one = binary.NativeEndian.AppendUint32(one, 16)
	one = append(one, "name\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"...)
	f.Add(one)
	f.Add(append(one, one...))
	f.Add(one[:20])
	f.Fuzz(func(t *testing.T, b []byte) {
		list, err := parseNotices(b)
		size := len(list) * unix.SizeofInotifyEvent
		for _, e := range list {
			if strings.Contains(e.name, "\x00") {
				t.Errorf("name %q", e.name)
			}
			size += len(e.name)
		}
		if size > len(b) || err == nil && len(b) > 0 && len(list) == 0 {
			t.Errorf("%d events of %d bytes, %v", len(list), len(b), err)
		}
	})
}

// FuzzWatchTree has folders come, go and move in any order: the tree never loses
// count and always ends.
func FuzzWatchTree(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11})
	f.Add([]byte{0x10, 0x21, 0x32, 0x83, 0x44, 0xc5, 0x10, 0x91})
	f.Fuzz(func(t *testing.T, ops []byte) {
		var dirs atomic.Int64
		live := map[int32]bool{1: true}
		tree := &watchTree{
			byWd: map[int32]*watchedDir{}, moving: map[uint32]*watchedDir{}, dirs: &dirs, drop: func(wd int32) { delete(live, wd) },
		}
		tree.place(nil, "", 1, inode{})
		for i, op := range ops {
			d := tree.byWd[int32(op&7)+1]
			if d == nil {
				continue
			}
			name := string(rune('a' + op>>3&3))
			switch op >> 5 {
			case 0, 1, 2: // a folder appears, new or known
				wd := int32(i&7) + 1
				live[wd] = true
				if tree.byWd[wd] == nil && wd == 1 {
					continue // the first one is gone
				}
				tree.place(d, name, wd, inode{})
			case 3:
				if sub := d.below[name]; sub != nil {
					tree.move(sub, uint32(op>>3))
				}
			case 4:
				if sub := tree.moving[uint32(op>>3)]; sub != nil {
					tree.attach(sub, d, name)
				}
			case 5:
				if sub := d.below[name]; sub != nil {
					tree.forget(sub)
				}
			case 6:
				tree.expect(d, name)
			case 7:
				tree.settled()
			}
			if int(dirs.Load()) != len(tree.byWd) || len(live) < len(tree.byWd) {
				t.Fatalf("%d counted, %d known, %d watched", dirs.Load(), len(tree.byWd), len(live))
			}
			for wd, d := range tree.byWd {
				if d.wd != wd || d.parent != nil && d.parent.below[d.name] != d {
					t.Fatalf("folder %d is not where it says", wd)
				}
				tree.path(d)
			}
		}
		tree.clear()
		if dirs.Load() != 0 {
			t.Errorf("%d are still counted", dirs.Load())
		}
	})
}
