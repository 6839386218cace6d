package sandboxfn

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// watchUntil watches dir, runs do once the watch is set, and returns what came up
// to the event that done accepts.
func watchUntil(t *testing.T, sb *Sandbox, dir string, o WatchOptions, do func(), done func(Event) bool) []Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	o.Started = func() { wg.Go(do) }
	var got []Event
	for ev, err := range sb.Watch(ctx, dir, &o) {
		if err != nil {
			t.Fatalf("%v, after %v", err, got)
		}
		got = append(got, ev)
		if done(ev) {
			return got
		}
	}
	t.Fatal("the watch ended quietly")
	return nil
}

func TestWatch(t *testing.T) {
	onEach(t, func(t *testing.T, sb *Sandbox) {
		ctx := t.Context()
		f, dir := sb.FS(ctx), workDir(t, sb)
		// What is moved away from a new directory before that is watched is not
		// there for anybody, so a/b/c is there from the start.
		must(t, sb.Shell(ctx, "mkdir -p "+dir+"/a/b/c").Run())
		script := "cd " + dir + "; mkdir -p d/e; echo x > a/b/c/f; mv a/b/c/f a/g; chmod 600 a/g; rm a/g; touch end"
		got := watchUntil(t, sb, dir, WatchOptions{Recursive: true, IncludeEntry: true}, func() {
			if err := sb.Shell(ctx, script).Run(); err != nil {
				t.Error(err)
			}
		}, func(ev Event) bool { return ev.Name == "end" })
		var text []string
		for _, ev := range got {
			text = append(text, fmt.Sprint(ev.Op, " ", ev.Name))
			if ev.Entry != nil && (ev.Op == OpRemove || ev.Op == OpRename) {
				t.Errorf("%v %s has an entry", ev.Op, ev.Name)
			}
		}
		for _, want := range []string{
			"create d", "create d/e", "create a/b/c/f", "rename a/b/c/f", "create a/g", "chmod a/g", "remove a/g", "create end",
		} {
			if !slices.Contains(text, want) {
				t.Errorf("no %q in %q", want, text)
			}
		}
		if e := got[len(got)-1].Entry; e == nil || e.Name() != "end" || e.IsDir() || e.Sys().(*FileStat).Path != dir+"/end" {
			t.Errorf("the entry of the last event is %v", e)
		}
		// A path means what it means elsewhere, and a file of FS shows as one.
		must(t, f.MkdirAll("watched", 0))
		got = watchUntil(t, sb, "~/watched", WatchOptions{}, func() { must(t, f.WriteFile("watched/ü f", []byte("x"), 0)) },
			func(ev Event) bool { return ev.Op == OpWrite })
		for _, ev := range got {
			if ev.Name != "ü f" || ev.Entry != nil {
				t.Errorf("got %v %q", ev.Op, ev.Name)
			}
		}
		for name, want := range map[string]error{dir + "/none": fs.ErrNotExist, dir + "/end": ErrFileKind, "": ErrFile, "a\x00": ErrFile} {
			n := 0
			for _, err := range sb.Watch(ctx, name, nil) {
				var pe *fs.PathError
				if n++; !errors.Is(err, want) || !errors.As(err, &pe) {
					t.Errorf("%q: got %v", name, err)
				}
			}
			if n != 1 {
				t.Errorf("%q: %d values", name, n)
			}
		}
	})
}

// Ending the context, closing the handle and losing the connection are errors;
// leaving the loop is not, and nothing is left of it.
func TestWatchEnds(t *testing.T) {
	var mu sync.Mutex
	var conns []net.Conn
	p := &hostProvider{wrap: func(c net.Conn) net.Conn {
		mu.Lock()
		defer mu.Unlock()
		conns = append(conns, c)
		return c
	}}
	sb := create(t, hostClient(t, p, nil), nil)
	dir := workDir(t, sb)
	ends := func(ctx context.Context, started func()) error {
		n := 0
		var last error
		for ev, err := range sb.Watch(ctx, dir, &WatchOptions{Started: started}) {
			if n++; err == nil {
				t.Errorf("got %v", ev)
			}
			last = err
		}
		if n != 1 {
			t.Errorf("%d values", n)
		}
		return last
	}
	ctx, cancel := context.WithCancel(t.Context())
	if err := ends(ctx, cancel); !errors.Is(err, context.Canceled) || CodeOf(err) != "E5004" {
		t.Errorf("cancelled: %v", err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := ends(ctx, nil); !errors.Is(err, ErrTimeout) {
		t.Errorf("deadline: %v", err)
	}
	cut := func() {
		mu.Lock()
		defer mu.Unlock()
		for _, c := range conns {
			c.Close()
		}
	}
	if err := ends(t.Context(), cut); !errors.Is(err, ErrConnectionLost) {
		t.Errorf("cut: %v", err)
	}
	for range sb.Watch(t.Context(), dir, &WatchOptions{Started: func() { must(t, sb.FS(t.Context()).WriteFile(dir+"/f", nil, 0)) }}) {
		break
	}
	if err := ends(t.Context(), func() { must(t, sb.Close()) }); !errors.Is(err, ErrKilled) {
		t.Errorf("closed: %v", err)
	}
	if err := ends(t.Context(), nil); !errors.Is(err, ErrKilled) {
		t.Errorf("after that: %v", err)
	}
}

// A loop that is slower than the changes learns that it missed some, after all
// that it did not miss.
func TestWatchSlowLoop(t *testing.T) {
	sb := hostSandbox(t)
	dir := workDir(t, sb)
	var names [2]string
	for i := range names {
		names[i] = dir + "/" + strings.Repeat("n", 200) + strconv.Itoa(i)
		must(t, os.WriteFile(names[i], nil, 0o644))
	}
	var last error
	n := 0
	started := func() { must(t, os.Chmod(names[0], 0o644)) }
	for _, err := range sb.Watch(t.Context(), dir, &WatchOptions{Started: started}) {
		if last = err; err != nil {
			break
		}
		if n++; n == 1 {
			// The queues on the way fill up meanwhile: the server's holds 65,536, and
			// with long names the socket takes only some more. Where the server gets no
			// processor, that of the kernel is full first, with 16,384.
			for i := range 100_000 {
				must(t, os.Chmod(names[i%2], 0o600))
			}
		}
	}
	if !errors.Is(last, ErrMissed) || n < 16_384 {
		t.Errorf("after %d events: %v", n, last)
	}
}
