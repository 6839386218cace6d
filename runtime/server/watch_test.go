//go:build linux

package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	pb "github.com/agent-sandbox/sandbox-go/internal/pb/filesystem"
)

// watching is a watch under way.
type watching struct {
	watched
	cancel context.CancelFunc
	done   chan struct{}
	err    error // how it ended, once done is closed
}

// watch opens a watch that ends with the test. It returns when it is set.
func (r *rig) watch(t testing.TB, req *pb.WatchDirRequest, headers ...string) *watching {
	t.Helper()
	w := &watching{done: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	w.cancel = cancel
	msg := connect.NewRequest(req)
	for i := 0; i+1 < len(headers); i += 2 {
		msg.Header().Set(headers[i], headers[i+1])
	}
	stream, err := r.files.WatchDir(ctx, msg)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(w.done)
		defer stream.Close()
		for stream.Receive() {
			w.add(stream.Msg())
		}
		w.err = stream.Err()
	}()
	t.Cleanup(w.stop)
	w.until(t, "the watch is set", func() bool { return w.has("start") || w.over() })
	return w
}

func (w *watching) add(m *pb.WatchDirResponse) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch e := m.GetEvent().(type) {
	case *pb.WatchDirResponse_Start:
		w.events = append(w.events, "start")
	case *pb.WatchDirResponse_Keepalive:
		w.events = append(w.events, "keepalive")
	case *pb.WatchDirResponse_Filesystem:
		w.events = append(w.events, eventText(e.Filesystem))
	}
}

func (w *watching) stop() {
	w.cancel()
	<-w.done
}

func (w *watching) over() bool {
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

func (w *watched) has(event string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Contains(w.events, event)
}

// all are the changes so far.
func (w *watched) all() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(w.events), func(e string) bool { return e == "start" || e == "keepalive" })
}

// expect waits for each of the events.
func (w *watching) expect(t testing.TB, events ...string) {
	t.Helper()
	for _, e := range events {
		w.until(t, e, func() bool { return w.has(e) })
	}
}

// ends waits for the end and returns its code.
func (w *watching) ends(t testing.TB) string {
	t.Helper()
	w.until(t, "the end of the watch", w.over)
	return codeOf(w.err)
}

func check(t testing.TB, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

func write(p, content string) error { return os.WriteFile(p, []byte(content), 0o644) }

// model is what a client knows that only listens: the names that are there.
func eventModel(events []string) []string {
	names := map[string]bool{}
	for _, e := range events {
		kind, name, _ := strings.Cut(e, " ")
		switch kind {
		case "CREATE":
			names[name] = true
		case "REMOVE", "RENAME":
			maps.DeleteFunc(names, func(n string, _ bool) bool { return n == name || strings.HasPrefix(n, name+"/") })
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// tree lists what is below dir.
func tree(t testing.TB, dir string) []string {
	t.Helper()
	var out []string
	check(t, filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
		if p != dir {
			out = append(out, strings.TrimPrefix(p, dir+"/"))
		}
		return err
	}))
	slices.Sort(out)
	return out
}

// The case of a tree that is made quickly below a watch, and 10,000 files in it.
func TestWatchTree(t *testing.T) {
	r := newRig(t, nil)
	dir := r.opts.DefaultWorkDir
	w := r.watch(t, &pb.WatchDirRequest{Path: dir, Recursive: true})
	check(t, os.MkdirAll(dir+"/a/b/c", 0o755), write(dir+"/a/b/c/f", "x"))
	w.expect(t, "CREATE a", "CREATE a/b", "CREATE a/b/c", "CREATE a/b/c/f", "WRITE a/b/c/f")
	check(t, os.Rename(dir+"/a/b/c/f", dir+"/a/g"), os.Chmod(dir+"/a/g", 0o600), os.Remove(dir+"/a/g"))
	w.expect(t, "RENAME a/b/c/f", "CREATE a/g", "CHMOD a/g", "REMOVE a/g")
	for i := range 10_000 {
		check(t, write(fmt.Sprintf("%s/a/b/%d", dir, i), "x"))
		if i%1000 == 0 {
			check(t, os.MkdirAll(fmt.Sprintf("%s/deep%d/x/y", dir, i), 0o755), write(fmt.Sprintf("%s/deep%d/x/y/z", dir, i), "z"))
		}
	}
	check(t, write(dir+"/last", "x"))
	w.expect(t, "WRITE last")
	if got, want := eventModel(w.all()), tree(t, dir); !slices.Equal(got, want) {
		t.Errorf("the events tell of %d names, there are %d", len(got), len(want))
	}
	for i := 0; i < 10_000; i += 100 {
		if e := fmt.Sprintf("WRITE a/b/%d", i); !w.has(e) {
			t.Fatalf("no %q", e)
		}
	}
}

// Several writers make, fill, rename and remove at once; who listens knows what
// is there in the end.
func TestWatchUnderLoad(t *testing.T) {
	r := newRig(t, nil)
	dir := r.opts.DefaultWorkDir
	w := r.watch(t, &pb.WatchDirRequest{Path: dir, Recursive: true})
	var wg sync.WaitGroup
	for n := range 4 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(1, uint64(n)))
			for range 800 {
				// The folders are the same for all, so that each gets in the way of
				// the others: errors are part of it.
				p := dir
				for range 1 + rnd.IntN(3) {
					p = path.Join(p, string(rune('a'+rnd.IntN(3))))
				}
				switch rnd.IntN(6) {
				case 0, 1:
					os.MkdirAll(p, 0o755)
				case 2, 3:
					os.MkdirAll(path.Dir(p), 0o755)
					write(fmt.Sprintf("%s/f%d", path.Dir(p), rnd.IntN(10)), "x")
				case 4:
					from := fmt.Sprintf("%s/f%d", p, rnd.IntN(10))
					os.Rename(from, fmt.Sprintf("%s/f%d", path.Dir(p), rnd.IntN(10)))
				case 5:
					os.RemoveAll(p)
				}
			}
		})
	}
	wg.Wait()
	check(t, write(dir+"/last", "x"))
	w.expect(t, "WRITE last")
	if got, want := eventModel(w.all()), tree(t, dir); !slices.Equal(got, want) {
		t.Errorf("the events tell of\n%q, there are\n%q", got, want)
	}
}

// Folders are moved about while others are made in them; in the end each is
// watched under the name it has.
func TestWatchMovedFolders(t *testing.T) {
	r := newRig(t, nil)
	dir := t.TempDir()
	outside := t.TempDir()
	check(t, os.MkdirAll(dir+"/a/x/y", 0o755), os.MkdirAll(outside+"/in/sub", 0o755), write(outside+"/in/sub/f", "x"))
	w := r.watch(t, &pb.WatchDirRequest{Path: dir, Recursive: true})
	check(t, os.Rename(dir+"/a", dir+"/b"), write(dir+"/b/x/y/f", "x"))
	w.expect(t, "RENAME a", "CREATE b", "CREATE b/x/y/f", "WRITE b/x/y/f")
	if w.has("CREATE b/x") {
		t.Error("what was known is told again")
	}
	check(t, os.Rename(dir+"/b/x", dir+"/x"), write(dir+"/x/y/g", "x"))
	w.expect(t, "RENAME b/x", "CREATE x", "CREATE x/y/g")
	// Over an empty folder, which is then gone.
	check(t, os.Mkdir(dir+"/empty", 0o755), unix.Rename(dir+"/x", dir+"/empty"), write(dir+"/empty/y/h", "x"))
	w.expect(t, "RENAME x", "CREATE empty/y/h")
	// In and out again.
	check(t, os.Rename(outside+"/in", dir+"/in"), write(dir+"/in/sub/g", "x"))
	w.expect(t, "CREATE in", "CREATE in/sub", "CREATE in/sub/f", "WRITE in/sub/f", "CREATE in/sub/g")
	check(t, os.Rename(dir+"/in", outside+"/out"))
	w.expect(t, "RENAME in")
	check(t, write(outside+"/out/sub/unseen", "x"))
	check(t, os.Mkdir(dir+"/in", 0o755), write(dir+"/in/new", "x"))
	w.expect(t, "CREATE in/new")
	for _, e := range w.all() {
		if strings.Contains(e, "unseen") {
			t.Errorf("got %q", e)
		}
	}
	var wg sync.WaitGroup
	for n := range 4 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(2, uint64(n)))
			for range 500 {
				pick := func() string {
					p := dir
					for range 1 + rnd.IntN(3) {
						p = path.Join(p, string(rune('p'+rnd.IntN(4))))
					}
					return p
				}
				switch rnd.IntN(3) {
				case 0:
					os.MkdirAll(pick(), 0o755)
				case 1:
					unix.Rename(pick(), pick())
				case 2:
					os.Rename(pick(), fmt.Sprintf("%s/%d-%d", outside, n, rnd.Int()))
				}
			}
		})
	}
	wg.Wait()
	for _, p := range tree(t, dir) {
		if st, err := os.Stat(dir + "/" + p); err == nil && st.IsDir() {
			check(t, write(dir+"/"+p+"/probe", "x"))
			w.expect(t, "CREATE "+p+"/probe")
		}
	}
	if w.over() {
		t.Errorf("the watch ended: %v", w.err)
	}
}

func TestWatchOneFolder(t *testing.T) {
	r := newRig(t, nil)
	dir := r.opts.DefaultWorkDir
	check(t, os.MkdirAll(dir+"/w/sub", 0o755))
	w := r.watch(t, &pb.WatchDirRequest{Path: dir + "/w", IncludeEntry: true})
	check(t, write(dir+"/w/sub/hidden", "x"), write(dir+"/w/a\xffb", "x"), os.Symlink("nowhere", dir+"/w/link"))
	w.until(t, "both names", func() bool { return strings.Contains(fmt.Sprint(w.all()), "CREATE link") })
	for _, e := range w.all() {
		name := strings.Fields(e)[1]
		if !strings.Contains(e, dir+"/w/"+name) || strings.Contains(e, "hidden") {
			t.Errorf("got %q", e)
		}
	}
	check(t, os.Chmod(dir+"/w", 0o700), os.Rename(dir+"/w", dir+"/v"))
	w.until(t, "the folder was renamed", func() bool { return w.has("RENAME .") })
	check(t, write(dir+"/v/after", "x"))
	if got := w.all(); strings.Contains(fmt.Sprint(got), "after") || !strings.Contains(fmt.Sprint(got), "CHMOD .") {
		t.Errorf("got %q", got)
	}
}

// The kernel no longer says where a folder is when one above it was moved.
func TestWatchOfUnreachableFolder(t *testing.T) {
	r := newRig(t, nil)
	dir := r.opts.DefaultWorkDir
	check(t, os.MkdirAll(dir+"/above/w", 0o755))
	w := r.watch(t, &pb.WatchDirRequest{Path: dir + "/above/w", Recursive: true})
	check(t, os.Rename(dir+"/above", dir+"/elsewhere"), write(dir+"/elsewhere/w/f", "x"))
	w.expect(t, "CREATE f")
	check(t, os.Mkdir(dir+"/elsewhere/w/sub", 0o755))
	if got := w.ends(t); got != "resource_exhausted E4007" || !w.has("CREATE sub") {
		t.Errorf("got %s, %q", got, w.all())
	}
}

func TestWatchStaysInside(t *testing.T) {
	r := newRig(t, nil)
	dir := r.opts.DefaultWorkDir
	check(t, os.MkdirAll(dir+"/w/sub", 0o755), os.MkdirAll(dir+"/outside/deep", 0o755), os.Symlink("../outside", dir+"/w/before"))
	w := r.watch(t, &pb.WatchDirRequest{Path: dir + "/w", Recursive: true})
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			os.MkdirAll(dir+"/w/swap", 0o755)
			os.Remove(dir + "/w/swap")
			os.Symlink(dir+"/outside", dir+"/w/swap")
			os.Remove(dir + "/w/swap")
		}
	})
	for i := range 2000 {
		check(t, write(fmt.Sprintf("%s/outside/deep/secret%d", dir, i), "x"))
	}
	close(stop)
	wg.Wait()
	check(t, write(dir+"/w/sub/last", "x"))
	w.expect(t, "CREATE sub/last")
	for _, e := range w.all() {
		if strings.Contains(e, "secret") || strings.Contains(e, "deep") {
			t.Fatalf("the watch reports %q", e)
		}
	}
}

func TestWatchRights(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Run("as another user", func(t *testing.T) {
			r := newRig(t, func(o *Options) { o.CanSwitchUser, o.DefaultUser = true, "nobody" })
			dir := r.opts.DefaultWorkDir
			openWay(t, dir)
			check(t, os.Mkdir(dir+"/w", 0o777), os.Chmod(dir+"/w", 0o777))
			testRights(t, r, dir+"/w")
		})
		return
	}
	r := newRig(t, nil)
	testRights(t, r, r.opts.DefaultWorkDir)
}

// openWay lets everybody get to dir.
func openWay(t *testing.T, dir string) {
	t.Helper()
	for d := dir; d != "/"; d = path.Dir(d) {
		st, err := os.Stat(d)
		check(t, err)
		if st.Mode()&0o111 != 0o111 {
			check(t, os.Chmod(d, st.Mode()|0o111))
		}
	}
}

func testRights(t *testing.T, r *rig, dir string) {
	check(t, os.Mkdir(dir+"/closed", 0o300), os.Mkdir(dir+"/open", 0o755))
	_, err := r.files.CreateWatcher(t.Context(), connect.NewRequest(&pb.CreateWatcherRequest{Path: dir + "/closed"}))
	if got := codeOf(err); got != "permission_denied E4002" {
		t.Errorf("watching a folder that may not be read: got %s", got)
	}
	w := r.watch(t, &pb.WatchDirRequest{Path: dir, Recursive: true})
	check(t, write(dir+"/closed/unseen", "x"), write(dir+"/open/seen", "x"))
	w.expect(t, "CREATE open/seen")
	if strings.Contains(fmt.Sprint(w.all()), "unseen") {
		t.Errorf("got %q", w.all())
	}
	check(t, os.Chmod(dir+"/closed", 0o755))
	w.expect(t, "CHMOD closed", "CREATE closed/unseen", "WRITE closed/unseen")
	check(t, write(dir+"/closed/new", "x"))
	w.expect(t, "CREATE closed/new")
}

func TestWatchOfUploads(t *testing.T) {
	r := newRig(t, nil)
	dir := r.opts.DefaultWorkDir
	check(t, os.Mkdir(dir+"/sub", 0o755))
	w := r.watch(t, &pb.WatchDirRequest{Path: dir, Recursive: true})
	for _, content := range []string{"first", "second"} {
		if got := r.upload(t, dir+"/sub/f", strings.NewReader(content)); got != "200" {
			t.Fatal(got)
		}
	}
	r.http.Post("http://sandbox/files?path="+dir+"/broken", "application/octet-stream", failing{})
	check(t, write(dir+"/.upload-mine", "x"))
	w.expect(t, "CREATE .upload-mine")
	events := once(w.all())
	want := "CREATE sub/f CHMOD sub/f WRITE sub/f CREATE sub/f CHMOD sub/f WRITE sub/f CREATE .upload-mine"
	if got := strings.Join(events, " "); !strings.HasPrefix(got, want) {
		t.Errorf("got %q", events)
	}
	for _, e := range events {
		if strings.Contains(e, ".upload-") && !strings.Contains(e, "mine") {
			t.Errorf("got %q", e)
		}
	}
}

func TestWatchOverflowIsSaid(t *testing.T) {
	r := newRig(t, nil)
	dir := r.opts.DefaultWorkDir
	names := []string{"a", "b"}
	for _, name := range names {
		check(t, write(dir+"/"+name, ""))
	}
	id := r.poller(t, dir)
	const many = 80_000
	for i := range many {
		check(t, unix.Chmod(dir+"/"+names[i%2], 0o600))
	}
	got := 0
	deadline := time.Now().Add(20 * time.Second)
	for {
		resp, err := r.files.GetWatcherEvents(t.Context(), connect.NewRequest(&pb.GetWatcherEventsRequest{WatcherId: id}))
		if err != nil {
			if code := codeOf(err); code != "resource_exhausted E4007" {
				t.Fatalf("got %s", code)
			}
			break
		}
		for _, e := range resp.Msg.GetEvents() {
			if text, want := eventText(e), "CHMOD "+names[got%2]; text != want {
				t.Fatalf("event %d is %q", got, text)
			}
			got++
		}
		if got == many {
			t.Skip("all changes were taken in time") // a client that asks this often
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d events, and no word of the rest", got)
		}
	}
	// It stays said, and does not keep the watcher from being removed.
	_, err := r.files.GetWatcherEvents(t.Context(), connect.NewRequest(&pb.GetWatcherEventsRequest{WatcherId: id}))
	if code := codeOf(err); code != "resource_exhausted E4007" {
		t.Errorf("the second time: got %s", code)
	}
	_, err = r.files.RemoveWatcher(t.Context(), connect.NewRequest(&pb.RemoveWatcherRequest{WatcherId: id}))
	check(t, err)
}

// poller makes a polled watcher.
func (r *rig) poller(t testing.TB, dir string) string {
	t.Helper()
	resp, err := r.files.CreateWatcher(t.Context(), connect.NewRequest(&pb.CreateWatcherRequest{Path: dir, Recursive: true}))
	check(t, err)
	return resp.Msg.GetWatcherId()
}

func TestWatchersAreLimited(t *testing.T) {
	r := newRig(t, nil)
	dir := r.opts.DefaultWorkDir
	var polled []string
	for range 32 {
		polled = append(polled, r.poller(t, dir))
	}
	var streams []*watching
	for range 32 {
		streams = append(streams, r.watch(t, &pb.WatchDirRequest{Path: dir}))
	}
	_, err := r.files.CreateWatcher(t.Context(), connect.NewRequest(&pb.CreateWatcherRequest{Path: dir}))
	if got := codeOf(err); got != "resource_exhausted E4000" {
		t.Errorf("one too many: got %s", got)
	}
	// A client that leaves frees its place.
	streams[0].stop()
	eventually(t, "there is a place again", func() bool {
		resp, err := r.files.CreateWatcher(t.Context(), connect.NewRequest(&pb.CreateWatcherRequest{Path: dir}))
		if err == nil {
			polled = append(polled, resp.Msg.GetWatcherId())
		}
		return err == nil
	})
	for _, id := range polled {
		_, err := r.files.RemoveWatcher(t.Context(), connect.NewRequest(&pb.RemoveWatcherRequest{WatcherId: id}))
		check(t, err)
	}
	r.poller(t, dir) // left for the end of the server
	check(t, r.Shutdown(t.Context()))
	for i, w := range streams[1:] {
		if got := w.ends(t); got != "unavailable " && !errors.Is(w.err, context.Canceled) {
			t.Fatalf("stream %d: got %s", i, got)
		}
	}
}
