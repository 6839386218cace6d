//go:build linux

package local

import (
	"os"
	"runtime"
	"sync"
)

// threadReserve is how many threads init has for itself where processes are not
// limited by a group: there its own threads count with those of the commands, and
// the Go runtime ends a process that needs a thread and gets none.
func threadReserve() int { return 32 + 2*runtime.NumCPU() }

// spareThreads are left of the reserve for commands that start and for threads that
// the Go runtime ends.
const spareThreads = 8

// keepThreads makes threads until this process has n, but for some that are spared.
// The Go runtime never ends the ones that wait for work, and takes one of them before
// it makes another.
func keepThreads(n int) {
	have, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return
	}
	n -= len(have) + spareThreads
	var all, done sync.WaitGroup
	all.Add(max(n, 0))
	for range n {
		done.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			all.Done()
			all.Wait() // each has its own now
		})
	}
	done.Wait()
}
