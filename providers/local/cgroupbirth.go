//go:build linux

package local

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// cgroupHome is a group that init is in.
type cgroupHome struct {
	dir     string
	version int
}

// born calls start, which clones a process with attr, so that it is in the groups
// of init from the beginning. To move a process the kernel waits for all others
// that fork or end, which takes several milliseconds; a thread that moves itself,
// and a clone into a group (since Linux 5.7), wait for nobody. Where neither can be
// done the process is moved: it does nothing yet.
// With passing the thread of the caller ends soon, and may be moved.
func (g *cgroup) born(attr *syscall.SysProcAttr, passing bool, start func() (*os.Process, error)) (*os.Process, error) {
	var tasks []*os.File
	defer func() {
		for _, f := range tasks {
			f.Close()
		}
	}()
	inside := true
	for _, h := range g.homes {
		name, flags := "tasks", unix.O_WRONLY
		if h.version == 2 {
			name, flags = "", unix.O_PATH|unix.O_DIRECTORY
		}
		f, err := openGroupFile(filepath.Join(h.dir, name), flags)
		if err != nil {
			inside = false
			break
		}
		if h.version == 2 { // there is one such tree
			defer f.Close()
			attr.UseCgroupFD, attr.CgroupFD = true, int(f.Fd())
			continue
		}
		tasks = append(tasks, f)
	}
	if !inside {
		attr.UseCgroupFD = false
		return g.startAndJoin(start)
	}
	var p *os.Process
	var err error
	clone := func() {
		for _, f := range tasks {
			inside = inside && writePid(f, 0) == nil
		}
		if inside {
			p, err = start()
			inside = err == nil || !attr.UseCgroupFD // it may be that which failed
		}
	}
	if len(tasks) == 0 || passing {
		clone()
	} else {
		onPassingThread(clone)
	}
	if inside {
		return p, err
	}
	attr.UseCgroupFD = false
	return g.startAndJoin(start)
}

func (g *cgroup) startAndJoin(start func() (*os.Process, error)) (*os.Process, error) {
	p, err := start()
	if err != nil {
		return nil, err
	}
	if err := g.join(p.Pid); err != nil {
		_ = p.Kill()
		return nil, errors.Join(&joinError{err}, wait(p))
	}
	return p, nil
}

// joinError says that a process was made and could not be moved.
type joinError struct{ err error }

func (e *joinError) Error() string { return "move init to its control groups: " + e.err.Error() }
func (e *joinError) Unwrap() error { return e.err }

// join moves the process into the groups of init.
func (g *cgroup) join(pid int) error {
	for _, h := range g.homes {
		if err := writeCgroup(h.dir, "cgroup.procs", strconv.Itoa(pid)); err != nil {
			return err
		}
	}
	return nil
}

func openGroupFile(path string, flags int) (*os.File, error) {
	fd, err := retryEINTR(func() (int, error) { return unix.Open(path, flags|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

// onPassingThread runs f on a thread that ends afterwards, whatever f has done to
// it.
func onPassingThread(f func()) {
	done := make(chan struct{})
	var run func()
	run = func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// The first thread never ends, and what it is in counts for the memory
			// of all. While it waits the other goroutine is on another one.
			go run()
			<-done
			runtime.UnlockOSThread()
			return
		}
		defer close(done)
		f() // Go ends the thread of a goroutine that ends without unlocking it
	}
	go run()
	<-done
}
