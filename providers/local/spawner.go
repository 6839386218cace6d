//go:build linux

package local

import (
	"fmt"
	"os"
	"runtime"
	"sync"
)

// A spawner starts programs from one thread. What a thread has (its Landlock
// domain, on some kernels its control group) is what its children start with,
// and Go moves goroutines between threads, so that nothing else may start one.
type spawner struct {
	setup []func() error // what has to be done on the thread before anything is started
	once  sync.Once
	work  chan func()
}

func newSpawner() *spawner { return &spawner{work: make(chan func())} }

// before has f run on the thread before it starts anything. It must not be called
// after start, run or spawn.
func (s *spawner) before(f func() error) { s.setup = append(s.setup, f) }

// start starts the thread, unless there is one, and waits until it is fit to start
// programs. It lives as long as the process. A failure means that a protection
// is missing, so it ends the sandbox.
func (s *spawner) start() {
	s.once.Do(func() {
		ready := make(chan struct{})
		go func() {
			runtime.LockOSThread() // for good: the thread is not fit for other goroutines
			for _, f := range s.setup {
				if err := f(); err != nil {
					fmt.Fprintln(os.Stderr, "sandbox: the thread that starts commands cannot be restricted:", err)
					os.Exit(1)
				}
			}
			close(ready)
			for f := range s.work {
				f()
			}
		}()
		<-ready
	})
}

// run calls f on the thread and waits for it.
func (s *spawner) run(f func()) {
	s.start()
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
