//go:build linux

package local

import (
	"errors"
	"os"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A cradle is a thread of the client in a network namespace of its own, whose
// loopback device is up: an init that is cloned there begins in it. To make such a
// namespace takes as long as everything else that comes before the clone, and is
// done at the same time. It belongs to the user namespace of the client, so that
// nobody in the sandbox can ever have a capability over it; a list of rules, for
// which init has to have one, needs a namespace of init's own.
type cradle struct {
	made  chan error
	work  chan func()   // closed: there is nothing to do
	ended chan struct{} // closed when the thread is not needed any more
}

// newCradle begins to make one; close ends it.
func newCradle() *cradle {
	c := &cradle{made: make(chan error, 1), work: make(chan func()), ended: make(chan struct{})}
	go func() {
		defer close(c.ended)
		onPassingThread(func() {
			err := unix.Unshare(unix.CLONE_NEWNET)
			if err == nil {
				err = loopbackUp()
			}
			c.made <- err
			if f, ok := <-c.work; ok && err == nil {
				f()
			}
		})
	}()
	return c
}

// ready waits for the namespace, once, and reports whether there is one. Nil is not
// ready.
func (c *cradle) ready() bool { return c != nil && <-c.made == nil }

// run calls f on the thread, once, and waits for it. The cradle must be ready.
func (c *cradle) run(f func()) {
	done := make(chan struct{})
	c.work <- func() {
		defer close(done)
		f()
	}
	<-done
}

func (c *cradle) close() {
	if c != nil {
		close(c.work)
		<-c.ended
	}
}

// loopbackUp brings up the loopback device in the namespace of the thread.
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	req := ifreqUp("lo")
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCSIFFLAGS, uintptr(unsafe.Pointer(&req[0]))); e != 0 {
		return os.NewSyscallError("ioctl", e)
	}
	return nil
}

// makeCradle begins to make one where it can serve: for root, and where nothing
// has to be done to the namespace later.
func (o *order) makeCradle() *cradle {
	if o.mapping != mapBlock || o.network != netLoopback || o.engine != engineNative {
		return nil
	}
	return newCradle()
}

// checkNetwork makes sure that a process is not in the network of the client.
func checkNetwork(pid int) error {
	ours, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return err
	}
	theirs, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/ns/net")
	if err == nil && theirs == ours {
		err = errors.New("it is in the network of its client")
	}
	return err
}
