//go:build linux

package local

import (
	"runtime"
	"sync"
)

// threadReserve is how many threads init keeps for itself where processes are not
// limited by a group: there its own threads count with those of the commands, and
// the Go runtime ends a process that needs a thread and gets none.
const threadReserve = 32

// keepThreads makes threads. The Go runtime never ends the ones that wait for work,
// and takes one of them before it makes another.
func keepThreads(n int) {
	var all, done sync.WaitGroup
	all.Add(n)
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
