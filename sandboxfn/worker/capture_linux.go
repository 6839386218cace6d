package worker

import (
	"os"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// Capture takes what a worker process on this machine prints, as the runtime of
// a sandbox does: it counts before it takes, so that a worker that finds its
// pipe empty finds everything in the counter. Package sandboxfn uses it for
// workers without a sandbox.
type Capture struct {
	counts *[2]uint64 // shared with the worker
	mem    []byte
	pipes  [2]*os.File // the ends that are read

	// What the worker is given: its standard output and error, and the counters.
	// They are the caller's to close.
	Stdout, Stderr, Counters *os.File
}

// NewCapture makes the pipes and the counters.
func NewCapture() (_ *Capture, err error) {
	c := &Capture{}
	defer func() {
		if err != nil {
			c.CloseGiven()
			c.Close()
		}
	}()
	if c.Counters, err = unnamed(); err != nil {
		return nil, err
	}
	if err = c.Counters.Truncate(16); err != nil {
		return nil, err
	}
	c.mem, err = syscall.Mmap(int(c.Counters.Fd()), 0, 16, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	c.counts = (*[2]uint64)(unsafe.Pointer(&c.mem[0]))
	if c.pipes[0], c.Stdout, err = os.Pipe(); err != nil {
		return nil, err
	}
	if c.pipes[1], c.Stderr, err = os.Pipe(); err != nil {
		return nil, err
	}
	return c, nil
}

// unnamed makes a file without a name, wherever one can be made.
func unnamed() (*os.File, error) {
	var first error
	for _, dir := range []string{os.TempDir(), "/dev/shm", "."} {
		f, err := os.CreateTemp(dir, "sandboxfn-counters-")
		if err == nil {
			return f, os.Remove(f.Name())
		}
		if first == nil {
			first = err
		}
	}
	return nil, first
}

// CloseGiven closes what the worker was given, in this process.
func (c *Capture) CloseGiven() {
	for _, f := range []*os.File{c.Stdout, c.Stderr, c.Counters} {
		if f != nil {
			f.Close()
		}
	}
}

// Ended says that the worker has ended: Take then hands on what is in the pipe at
// that moment, and does not wait for descendants that hold it or go on printing.
func (c *Capture) Ended() {
	for _, r := range c.pipes {
		r.SetReadDeadline(time.Unix(1, 0))
	}
}

// Close frees the pipes and the counters. It is called after the last Take.
func (c *Capture) Close() {
	for _, r := range c.pipes {
		if r != nil {
			r.Close()
		}
	}
	if c.mem != nil {
		syscall.Munmap(c.mem)
		c.mem, c.counts = nil, nil
	}
}

// Take hands on what comes out of a stream, 0 the output and 1 the error, until
// nobody can write to it any more, or Ended. to must not keep the bytes.
func (c *Capture) Take(stream int, to func([]byte)) {
	raw, err := c.pipes[stream].SyscallConn()
	if err != nil {
		return
	}
	buf := make([]byte, 64<<10)
	take := func(fd uintptr, most int) int {
		n := min(most, len(buf))
		atomic.AddUint64(&c.counts[stream], uint64(n))
		n, _ = syscall.Read(int(fd), buf[:n])
		return max(n, 0)
	}
	for end := false; !end; {
		got := 0
		err := raw.Read(func(fd uintptr) bool {
			n, hup := waiting(fd)
			if n == 0 {
				end = hup
				return hup
			}
			got = take(fd, n)
			return true
		})
		if err != nil {
			break
		}
		if got > 0 {
			to(buf[:got])
		}
	}
	// What is still there, and no more: others may fill the pipe for ever.
	left, got := 0, 0
	if raw.Control(func(fd uintptr) { left, _ = waiting(fd) }) != nil {
		return
	}
	for ; left > 0; left -= got {
		if err := raw.Control(func(fd uintptr) { got = take(fd, left) }); err != nil || got == 0 {
			return
		}
		to(buf[:got])
	}
}

// waiting is how many bytes are in a pipe, and whether nobody can write more.
func waiting(fd uintptr) (n int, hup bool) {
	// poll(2)
	poll := struct {
		fd              int32
		events, revents int16
	}{fd: int32(fd)}
	const pollHup = 0x10
	var zero syscall.Timespec
	syscall.RawSyscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&poll)), 1, uintptr(unsafe.Pointer(&zero)), 0, 0, 0)
	var size int32
	syscall.RawSyscall(syscall.SYS_IOCTL, fd, syscall.TIOCINQ, uintptr(unsafe.Pointer(&size)))
	return int(size), poll.revents&pollHup != 0
}
