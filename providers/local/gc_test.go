//go:build linux

package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// deadEntry leaves what a sandbox whose init is dead leaves.
func deadEntry(t *testing.T, tr *tree, id, why string) {
	t.Helper()
	e, lock, err := tr.newEntry(id)
	if err != nil {
		t.Fatal(err)
	}
	defer e.close()
	defer lock.Close()
	block, lease, err := leaseBlock(tr.ids)
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Close()
	if err := e.save(fileConfig, savedConfig{ID: id, Block: block}); err != nil {
		t.Fatal(err)
	}
	if err := e.save(fileState, savedState{initID: newInitID(1<<29, 1)}); err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{fileRuntime, fileControl} {
		l, err := e.listen(s)
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
	}
	if f, err := e.dir.open(fileEnd, unix.O_WRONLY|unix.O_CREAT|unix.O_APPEND, 0o600); err == nil {
		f.Close()
	}
	if why != "" {
		if err := e.noteEnd(why); err != nil {
			t.Fatal(err)
		}
		e.noteEnd("later")
	}
}

func checkEmpty(t *testing.T, tr *tree) {
	t.Helper()
	for name, d := range map[string]*folder{"boxes": tr.boxes, "ids": tr.ids} {
		if names, err := d.allNames(); err != nil || len(names) != 0 {
			t.Errorf("%s holds %q, %v", name, names, err)
		}
	}
}

// Every kind of end is told apart afterwards.
func TestCollectRecords(t *testing.T) {
	tr := testTree(t)
	for why, want := range map[string]error{
		endExpired: errdefs.ErrExpired, endKilled: errdefs.ErrKilled, endClient: errdefs.ErrKilled, "": errdefs.ErrCrashed,
	} {
		id := sandboxID("")
		deadEntry(t, tr, id, why)
		if err := tr.collectID(id); err != nil {
			t.Fatal(err)
		}
		if err := tr.gone("get", id); !errors.Is(err, want) {
			t.Errorf("%q: %v", why, err)
		}
	}
	if err := tr.gone("get", sandboxID("")); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("never there: %v", err)
	}
	checkEmpty(t, tr)
}

// A creator that died at any step leaves a part of an entry; collecting takes
// every part.
func TestCollectParts(t *testing.T) {
	tr := testTree(t)
	for i, prepare := range []func(dir string) error{
		func(dir string) error { return nil },
		func(dir string) error { return os.WriteFile(dir+"/lock", nil, 0o600) },
		func(dir string) error { return os.WriteFile(dir+"/config.json", []byte("{\"id\":"), 0o600) },
		func(dir string) error { return os.WriteFile(dir+"/.config.json.1.x", nil, 0o600) },
		func(dir string) error { return os.WriteFile(dir+"/state.json", []byte("{}"), 0o600) },
		func(dir string) error { return os.Symlink("/etc", dir+"/config.json") },
		func(dir string) error { return os.MkdirAll(dir+"/a/b/c", 0o700) },
	} {
		id := sandboxID(fmt.Sprint(i))
		dir := filepath.Join(tr.path, "boxes", id)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := prepare(dir); err != nil {
			t.Fatal(err)
		}
	}
	if err := tr.collect(t.Context()); err != nil {
		t.Error(err)
	}
	checkEmpty(t, tr)
}

// The lock decides, not the files: what lives is not touched.
func TestCollectSparesTheLiving(t *testing.T) {
	tr := testTree(t)
	id := sandboxID("")
	e, lock, err := tr.newEntry(id)
	if err != nil {
		t.Fatal(err)
	}
	defer e.close()
	if err := tr.collect(t.Context()); err != nil {
		t.Error(err)
	}
	if _, _, err := tr.newEntry(id); !errors.Is(err, errBusy) {
		t.Errorf("second entry: %v", err)
	}
	if _, err := tr.openEntry(id); err != nil {
		t.Error(err)
	}
	lock.Close()
	if err := tr.collect(t.Context()); err != nil {
		t.Error(err)
	}
	checkEmpty(t, tr)
}

// Entries are made while several collectors run: a maker must get one that
// stays, and nothing may be left in the end.
func TestCollectorsAtOnce(t *testing.T) {
	root := testRoot(t)
	stop := make(chan struct{})
	var collectors, makers sync.WaitGroup
	for range 3 {
		tr, err := openTree(root)
		if err != nil {
			t.Fatal(err)
		}
		defer tr.close()
		collectors.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := tr.collect(t.Context()); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	tr, err := openTree(root)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.close()
	for range 4 {
		makers.Go(func() {
			for range 100 {
				id := sandboxID("")
				e, lock, err := tr.newEntry(id)
				if err != nil {
					t.Error(err)
					return
				}
				if err := e.save(fileConfig, savedConfig{ID: id, Block: -1}); err != nil {
					t.Error("the entry was taken away:", err)
				}
				e.close()
				lock.Close() // dies
			}
		})
	}
	makers.Wait()
	close(stop)
	collectors.Wait()
	if err := tr.collect(t.Context()); err != nil {
		t.Error(err)
	}
	checkEmpty(t, tr)
}

// The same id is made by many at once: one succeeds at a time.
func TestNewEntryOnce(t *testing.T) {
	tr := testTree(t)
	id := sandboxID("one")
	var mu sync.Mutex
	made := 0
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			e, lock, err := tr.newEntry(id)
			if errors.Is(err, errBusy) {
				return
			}
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			made++
			mu.Unlock()
			time.Sleep(50 * time.Millisecond)
			e.close()
			_ = lock // held to the end of the test
			t.Cleanup(func() { lock.Close() })
		})
	}
	wg.Wait()
	if made != 1 {
		t.Errorf("%d were made", made)
	}
}

func TestEndedIsBounded(t *testing.T) {
	tr := testTree(t)
	var last string
	for range 6000 {
		last = sandboxID("")
		if err := tr.recordEnd(endRecord{ID: last, Why: endKilled, At: time.Now()}); err != nil {
			t.Fatal(err)
		}
	}
	var st unix.Stat_t
	if err := unix.Fstatat(tr.base.fd(), fileEnded, &st, 0); err != nil || st.Size > endedLimit/2 {
		t.Errorf("%d bytes, %v", st.Size, err)
	}
	if _, ok := tr.ended(last); !ok {
		t.Error("the newest record is lost")
	}
	old := sandboxID("")
	if err := tr.recordEnd(endRecord{ID: old, At: time.Now().Add(-2 * endedAge)}); err != nil {
		t.Fatal(err)
	}
	if _, ok := tr.ended(old); ok {
		t.Error("an old record is still used")
	}
}

func TestSocketWithLongPath(t *testing.T) {
	root := testRoot(t)
	for range 4 {
		root = filepath.Join(root, randomText(100))
	}
	tr, err := openTree(root)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.close()
	e, lock, err := tr.newEntry(sandboxID(""))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	defer e.close()
	l, err := e.listen(fileRuntime)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := e.dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if _, err := e.listen(fileRuntime); err == nil {
		t.Error("a second listener took the socket")
	}
	if _, err := os.Stat(filepath.Join(root, "local")); errors.Is(err, fs.ErrNotExist) {
		t.Error("not in the long directory")
	}
}
