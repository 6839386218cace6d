package worker

import (
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/agent-sandbox/sandbox-go/internal/envelope"
)

// conn is the connection to the caller. It uses blocking system calls: one
// goroutine reads and has nothing else to do, and the way through the poller
// costs two more system calls and a switch for each message.
type conn struct{ fd int }

func closeOnExec(fd int) { syscall.CloseOnExec(fd) }

func openConn(fd int) (io.ReadWriter, error) {
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil {
		return nil, os.NewSyscallError("fstat", err)
	}
	if st.Mode&syscall.S_IFMT != syscall.S_IFSOCK {
		return nil, syscall.ENOTSOCK
	}
	if err := syscall.SetNonblock(fd, false); err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	syscall.CloseOnExec(fd)
	return &conn{fd}, nil
}

func (c *conn) Read(p []byte) (int, error) {
	for {
		n, err := syscall.Read(c.fd, p)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return 0, os.NewSyscallError("read", err)
		case n == 0 && len(p) > 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
}

func (c *conn) Write(p []byte) (int, error) {
	done := 0
	for done < len(p) {
		// MSG_NOSIGNAL: a caller that is gone is an error, not a signal.
		n, _, errno := syscall.Syscall6(syscall.SYS_SENDTO, uintptr(c.fd), uintptr(unsafe.Pointer(&p[done])), uintptr(len(p)-done), syscall.MSG_NOSIGNAL, 0, 0)
		switch errno {
		case 0:
			done += int(n)
		case syscall.EINTR:
		default:
			return done, os.NewSyscallError("sendto", errno)
		}
	}
	return done, nil
}

// maxBuffers is how many buffers one gather write takes (IOV_MAX).
const maxBuffers = 1024

// WriteBuffers writes all of bufs with as few system calls as it can.
func (c *conn) WriteBuffers(bufs net.Buffers) error {
	iov := make([]syscall.Iovec, 0, min(len(bufs), maxBuffers))
	for len(bufs) > 0 {
		iov = iov[:0]
		for _, b := range bufs[:min(len(bufs), maxBuffers)] {
			if len(b) > 0 {
				iov = append(iov, syscall.Iovec{Base: unsafe.SliceData(b), Len: uint64(len(b))})
			}
		}
		if len(iov) == 0 {
			return nil
		}
		msg := syscall.Msghdr{Iov: &iov[0], Iovlen: uint64(len(iov))}
		n, _, errno := syscall.Syscall(syscall.SYS_SENDMSG, uintptr(c.fd), uintptr(unsafe.Pointer(&msg)), syscall.MSG_NOSIGNAL)
		if errno == syscall.EINTR {
			continue
		}
		if errno != 0 {
			return os.NewSyscallError("sendmsg", errno)
		}
		for n > 0 {
			k := min(int(n), len(bufs[0]))
			bufs[0] = bufs[0][k:]
			n -= uintptr(k)
			if len(bufs[0]) == 0 {
				bufs = bufs[1:]
			}
		}
		for len(bufs) > 0 && len(bufs[0]) == 0 {
			bufs = bufs[1:]
		}
	}
	return nil
}

// output knows how much has been written to the standard streams. The other end
// counts what it takes out of each pipe, before it takes it, so an empty pipe
// means that the counter holds everything.
type output struct {
	counts *[2]uint64
	pipe   [2]pipeID
}

// pipeID tells one pipe from others; the zero value is no pipe.
type pipeID struct{ dev, ino uint64 }

// pipeAt is the pipe that a descriptor is.
func pipeAt(fd int) pipeID {
	var st syscall.Stat_t
	if syscall.Fstat(fd, &st) != nil || st.Mode&syscall.S_IFMT != syscall.S_IFIFO {
		return pipeID{}
	}
	return pipeID{uint64(st.Dev), st.Ino}
}

// maxWait bounds the pause between two looks at output that is still to be taken.
const maxWait = time.Millisecond

func openOutput(fd int) (*output, error) {
	syscall.CloseOnExec(fd)
	b, err := syscall.Mmap(fd, 0, 16, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	o := &output{counts: (*[2]uint64)(unsafe.Pointer(&b[0]))}
	for i := range o.pipe {
		o.pipe[i] = pipeAt(i + 1)
	}
	syscall.Close(fd)
	return o, nil
}

// counters waits until what has been written is counted, and returns how much
// that is.
func (o *output) counters() envelope.Counters {
	if o.counts == nil {
		return envelope.Counters{}
	}
	for i, pipe := range o.pipe {
		if pipe != (pipeID{}) {
			o.drain(i)
		}
	}
	return envelope.Counters{Stdout: atomic.LoadUint64(&o.counts[0]), Stderr: atomic.LoadUint64(&o.counts[1])}
}

// drain waits until everything that has been written to a stream is counted. No
// clock ends it: who takes the output is alive as long as this worker is of any
// use, and a call that is answered too early has lost what was not counted. It
// does not wait for what a child goes on printing, nor for the pipe of others
// that a function has put in the place of its output.
func (o *output) drain(stream int) {
	var goal uint64 // no less than has been written
	for wait := 5 * time.Microsecond; ; wait = min(2*wait, maxWait) {
		var n int32
		_, _, errno := syscall.RawSyscall(syscall.SYS_IOCTL, uintptr(stream+1), syscall.TIOCINQ, uintptr(unsafe.Pointer(&n)))
		if errno != 0 || n == 0 {
			return
		}
		taken := atomic.LoadUint64(&o.counts[stream]) // after n: what is taken meanwhile is in both
		if goal == 0 {
			goal = taken + uint64(n)
		}
		if taken >= goal || pipeAt(stream+1) != o.pipe[stream] {
			return
		}
		time.Sleep(wait)
	}
}
