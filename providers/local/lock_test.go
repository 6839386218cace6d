//go:build linux

package local

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
)

func TestTryLock(t *testing.T) {
	tr := testTree(t)
	a, err := tr.boxes.tryLock("l")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tr.boxes.tryLock("l"); !errors.Is(err, errBusy) {
		t.Errorf("second lock: %v", err)
	}
	if _, err := tr.boxes.newLock("l"); !errors.Is(err, errBusy) {
		t.Errorf("new lock over an old one: %v", err)
	}
	a.Close()
	b, err := tr.boxes.tryLock("l")
	if err != nil {
		t.Fatal(err)
	}
	b.Close()
}

// Lock files are removed while others are about to lock them: at no time may
// two hold what they think is the same lock.
func TestLockExcludes(t *testing.T) {
	tr := testTree(t)
	var holders atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 500 {
				f, err := tr.boxes.tryLock("l")
				if errors.Is(err, errBusy) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				if n := holders.Add(1); n != 1 {
					t.Errorf("%d hold the lock", n)
				}
				holders.Add(-1)
				tr.boxes.remove("l")
				f.Close()
			}
		})
	}
	wg.Wait()
}
