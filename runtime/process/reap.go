//go:build linux

package process

import (
	"os"
	"os/signal"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// reaper collects every dead child of this process, which as pid 1 gets the
// orphans of all others, and hands the statuses of commands to their owners.
// It looks before it takes: a child is collected by the handle of its command,
// or by number once it is sure that it is no command.
//
// Commands have somebody who waits for each, where the kernel allows it: they
// come to collect without the way over a signal.
type reaper struct {
	starting sync.RWMutex  // held for reading from before a fork until the child is known
	mu       sync.Mutex    // held from looking at a dead child until it is collected
	known    map[int]*proc // guarded by mu
	again    bool          // there may be more dead children than were looked at; guarded by mu

	chld chan os.Signal
	quit chan struct{}
	wg   sync.WaitGroup
}

func newReaper() *reaper {
	r := &reaper{known: map[int]*proc{}, chld: make(chan os.Signal, 1), quit: make(chan struct{})}
	r.wg.Go(func() {
		// Here, because the first call in a process makes a thread and waits for it.
		signal.Notify(r.chld, unix.SIGCHLD)
		defer signal.Stop(r.chld)
		r.collectAll() // children may have died before we listened
		for {
			select {
			case <-r.chld:
				r.collectAll()
			case <-r.quit:
				return
			}
		}
	})
	return r
}

func (r *reaper) close() {
	close(r.quit)
	r.wg.Wait()
}

// add makes the owner of a child known; starting is held. It is left alone until
// it is taken or attended.
func (r *reaper) add(p *proc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known[p.pid] = p
}

// attended says that p may be collected by whoever sees first that it is dead.
func (r *reaper) attended(p *proc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p.attended = true
	r.lookAgain()
}

// takeBrief collects p, which is dead and was never attended.
func (r *reaper) takeBrief(p *proc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.known, p.pid)
	p.reap()
	r.lookAgain()
}

// lookAgain has the children looked at that could not be seen behind one that was
// to be left alone; mu is held.
func (r *reaper) lookAgain() {
	if r.again {
		r.again = false
		select {
		case r.chld <- unix.SIGCHLD:
		default:
		}
	}
}

// collect collects p, which is dead, unless that has been done.
func (r *reaper) collect(p *proc) {
	if r.take(p.pid, p) {
		p.complete()
	}
}

// take collects p, which is dead, if it is what is known by this number.
func (r *reaper) take(pid int, p *proc) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known[pid] != p {
		return false
	}
	delete(r.known, pid)
	p.reap()
	return true
}

// collectAll takes all children that are dead now.
func (r *reaper) collectAll() {
	for {
		pid, p := r.next()
		if pid <= 0 {
			return
		}
		if p == nil {
			p = r.stranger(pid)
		}
		if p != nil {
			p.complete()
		}
	}
}

// next finds a dead child and collects it if it is a command. The number is 0 also
// for one that is to be left alone.
func (r *reaper) next() (pid int, p *proc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pid = deadChild()
	switch p = r.known[pid]; {
	case p == nil:
	case !p.attended:
		r.again = true
		return 0, nil
	default:
		delete(r.known, pid)
		p.reap()
	}
	return pid, p
}

// stranger collects a dead child that is no command, or the command that it is
// after all, which it returns: its start may have been under way when it was
// seen.
func (r *reaper) stranger(pid int) *proc {
	r.starting.Lock()
	defer r.starting.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	// A start that failed collects its child itself.
	if !isDead(pid) {
		return nil
	}
	p := r.known[pid]
	switch {
	case p == nil:
		_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
		return nil
	case !p.attended:
		return nil // the next look leaves it alone
	}
	delete(r.known, pid)
	p.reap()
	return p
}

// Codes of SIGCHLD, sigaction(2), for a child that stops.
const (
	childTrapped = 4
	childStopped = 5
)

// deadChild is the number of a child that has died and was not collected, 0
// when there is none. The child stays as it is.
//
// A child can ask its parent to trace it. Then its stops are reported here like
// its end, and nobody would let it go on: it is killed.
func deadChild() int {
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		switch err {
		case nil:
			pid := siginfoPid(&info)
			if pid == 0 || !stops(&info) {
				return pid
			}
			_ = unix.Kill(pid, unix.SIGKILL) // an error means that it is dead by now
			// One that cannot die yet must not keep the others from being seen
			// for longer than this takes.
			time.Sleep(time.Millisecond)
		case unix.EINTR:
		default:
			return 0
		}
	}
}

// isDead reports whether this child has died and was not collected. Which one
// deadChild finds of several is up to the kernel: it need not be the same twice.
func isDead(pid int) bool {
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			return err == nil && siginfoPid(&info) == pid && !stops(&info)
		}
	}
}

// stops reports whether a child has stopped and not died.
func stops(info *unix.Siginfo) bool { return info.Code == childTrapped || info.Code == childStopped }

// siginfoPid is si_pid, sigaction(2): the first field of a union that comes
// after three ints and is aligned like a pointer.
func siginfoPid(info *unix.Siginfo) int {
	const word = unsafe.Sizeof(uintptr(0))
	const offset = (3*4 + word - 1) &^ (word - 1)
	return int(*(*int32)(unsafe.Add(unsafe.Pointer(info), offset)))
}
