//go:build linux

package local

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/providers"
)

// held is what a process holds.
type held struct{ descriptors, goroutines, children, mounts int }

// count counts what this process holds. Of the mounts, which all programs of the
// machine make and remove, those below the directories of the test count.
func count(t *testing.T) held {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return held{len(fds), runtime.NumGoroutine(), len(childrenOf(os.Getpid())), strings.Count(string(mounts), " "+filepath.Dir(t.TempDir())+"/")}
}

func (h held) within(o held) bool {
	return h.descriptors <= o.descriptors && h.goroutines <= o.goroutines && h.children <= o.children && h.mounts <= o.mounts
}

// checkReturned waits until no more is held than before.
func checkReturned(t *testing.T, before held) {
	t.Helper()
	after := count(t)
	for deadline := time.Now().Add(20 * time.Second); !after.within(before) && time.Now().Before(deadline); after = count(t) {
		time.Sleep(20 * time.Millisecond)
	}
	if !after.within(before) {
		t.Errorf("before %+v, after %+v", before, after)
	}
}

// Rounds of create, call and kill leave nothing behind: no process, mount,
// group, descriptor, goroutine or file.
func TestRounds(t *testing.T) {
	p := testProvider(t)
	var ids []string
	round := func() {
		sb := create(t, p, providers.CreateRequest{})
		ids = append(ids, sb.ID)
		if out, _ := sh(t, sb, "echo ok"); out != "ok\n" {
			t.Fatalf("got %q", out)
		}
		if err := p.Kill(t.Context(), sb.ID); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		round()
	}
	before := count(t)
	for range scaled(10, 100, 1000) {
		round()
	}
	checkReturned(t, before)
	checkNothingLeft(t, p.root)
	checkNoGroups(t, p.groups(), ids)
}

// Many are made and killed at once.
func TestManyAtOnce(t *testing.T) {
	p := testProvider(t)
	var wg sync.WaitGroup
	for range scaled(8, 24, 64) {
		wg.Go(func() {
			sb, err := p.Create(t.Context(), providers.CreateRequest{})
			if err != nil {
				t.Error(err)
				return
			}
			if out, _, err := shell(t.Context(), sb, "echo ok"); out != "ok\n" || err != nil {
				t.Errorf("got %q, %v", out, err)
			}
			if err := p.Kill(t.Context(), sb.ID); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	checkNothingLeft(t, p.root)
}
