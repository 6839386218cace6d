//go:build linux

package local

import (
	"os"
	"runtime"
)

// A spawner starts programs from one thread. What a thread has (its Landlock
// domain, on some kernels its control group) is what its children start with,
// and Go moves goroutines between threads, so that nothing else may start one.
type spawner struct {
	work chan func()
}

// newSpawner starts the thread and runs prepare on it. The thread lives as long
// as the process.
func newSpawner(prepare func() error) (*spawner, error) {
	s := &spawner{make(chan func())}
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread is not fit for other goroutines
		failed <- prepare()
		for f := range s.work {
			f()
		}
	}()
	return s, <-failed
}

// run calls f on the thread and waits for it.
func (s *spawner) run(f func()) {
	done := make(chan struct{})
	s.work <- func() {
		defer close(done)
		f()
	}
	<-done
}

// spawn is os.StartProcess on the thread. It is a process.Spawner.
func (s *spawner) spawn(name string, argv []string, attr *os.ProcAttr) (p *os.Process, err error) {
	s.run(func() { p, err = os.StartProcess(name, argv, attr) })
	return p, err
}
