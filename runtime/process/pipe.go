//go:build linux

package process

import (
	"encoding/binary"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// counter is the file a worker finds the number of bytes in that the runtime
// has taken from its outputs: two little-endian uint64, stdout and stderr. A
// nil *counter counts nothing.
type counter struct {
	f     *os.File
	taken [outputs]uint64 // each written by the reader of that pipe only
}

func newCounter() (*counter, error) {
	fd, err := unix.MemfdCreate("output-counter", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	c := &counter{f: os.NewFile(uintptr(fd), "output-counter")}
	if err := c.f.Truncate(8 * outputs); err != nil {
		c.f.Close()
		return nil, err
	}
	return c, nil
}

// add makes n more bytes of output i visible as taken. It comes before the
// bytes leave the pipe: who finds the pipe empty then finds them counted.
func (c *counter) add(i, n int) {
	if c == nil {
		return
	}
	c.taken[i] += uint64(n)
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], c.taken[i])
	// A failure leaves the count too low, which costs a worker a wait.
	_, _ = c.f.WriteAt(b[:], int64(8*i))
}

func (c *counter) close() {
	if c != nil {
		c.f.Close()
	}
}

var chunks = sync.Pool{New: func() any { b := make([]byte, chunkSize); return &b }}

// pipe reads one output of a process, which may be a terminal.
type pipe struct {
	i     int
	fd    int      // what open makes f of
	f     *os.File // nil before open
	raw   syscall.RawConn
	out   *output
	count *counter
	done  chan struct{} // closed: the process has ended
	term  *terminal     // f is its master; nil for a pipe
}

// newPipe makes the pipe of output i and returns its other end, which is for the
// new process alone.
func newPipe(i int, p *proc) (*pipe, *os.File, error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, os.NewSyscallError("pipe2", err)
	}
	return &pipe{i: i, fd: fds[0], out: p.out, count: p.count, done: p.done}, os.NewFile(uintptr(fds[1]), "output"), nil
}

// open makes the pipe ready to be read without a thread that waits. Nobody has
// to wait for this before a process is started.
func (p *pipe) open() error {
	if p.f == nil {
		// A new pipe has no other flag that could be lost.
		if _, err := unix.FcntlInt(uintptr(p.fd), unix.F_SETFL, unix.O_NONBLOCK); err != nil {
			return os.NewSyscallError("fcntl", err)
		}
		p.f = os.NewFile(uintptr(p.fd), "output")
	}
	var err error
	p.raw, err = p.f.SyscallConn()
	return err
}

// close is for a pipe that is not read.
func (p *pipe) close() {
	if p.f == nil {
		unix.Close(p.fd)
		return
	}
	p.f.Close()
}

// run copies until the process has ended and what it left in the pipe is read,
// then calls complete. A pipe that others still hold is then read on to
// nowhere, so that they are not killed for writing to it.
func (p *pipe) run(complete func()) {
	defer p.f.Close()
	for open := true; open; {
		open = p.read()
		select {
		case <-p.done:
			p.term.hangUp()
			open = open && p.drain(p.holds())
			complete()
			if open {
				p.discard()
			}
			return
		default:
		}
	}
	if p.term != nil {
		<-p.done
		p.term.hangUp()
	}
	complete()
}

// read waits for output, the end of the pipe or that of the process, and copies
// one chunk. It reports whether there can be more.
func (p *pipe) read() (open bool) {
	var buf *[]byte
	n := 0
	open = true
	err := p.raw.Read(func(fd uintptr) bool {
		var ready bool
		if ready, open = readable(fd); ready && open {
			// Taken no earlier, so that a quiet pipe holds no buffer.
			buf = chunks.Get().(*[]byte)
			n = p.take(fd, *buf)
		}
		return ready
	})
	if buf != nil {
		p.out.write(p.i, (*buf)[:n])
		chunks.Put(buf)
	}
	if err != nil {
		// The deadline wakes us when the process ends; anything else means
		// that the file is closed.
		return os.IsTimeout(err)
	}
	return open
}

// readable reports whether a read would return at once, and whether the pipe
// can still give something.
func readable(fd uintptr) (ready, open bool) {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	if err != nil || n == 0 {
		return false, true
	}
	return true, fds[0].Revents&unix.POLLIN != 0
}

// take reads what is in the pipe now, in this order: its size, the count, then
// exactly these bytes.
func (p *pipe) take(fd uintptr, buf []byte) int {
	n := len(buf)
	if p.term == nil {
		n = min(inPipe(fd), n)
		if n == 0 {
			return 0
		}
		p.count.add(p.i, n)
	}
	read := 0
	for read < n {
		m, err := unix.Read(int(fd), buf[read:n])
		if err == unix.EINTR {
			continue
		}
		if err != nil || m <= 0 {
			break
		}
		read += m
	}
	return read
}

func inPipe(fd uintptr) int {
	// FIONREAD has the number of TIOCINQ, ioctl_tty(2).
	n, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ)
	if err != nil {
		return 0
	}
	return n
}

// holds is how much is in the pipe now, in bytes.
func (p *pipe) holds() int {
	left := terminalBuffer // a terminal does not say how much it holds
	if p.term == nil {
		if err := p.control(func(fd uintptr) { left = inPipe(fd) }); err != nil {
			return 0
		}
	}
	return left
}

// control calls f with the descriptor of the pipe, which may be open or not yet.
func (p *pipe) control(f func(fd uintptr)) error {
	if p.raw != nil {
		return p.raw.Control(f)
	}
	f(uintptr(p.fd))
	return nil
}

// drain copies what was in the pipe when it was asked: no more, or a child that
// goes on printing would delay the end for ever. It reports whether others
// hold the pipe.
func (p *pipe) drain(left int) (open bool) {
	if left > 0 {
		buf := chunks.Get().(*[]byte)
		defer chunks.Put(buf)
		for left > 0 {
			n := 0
			err := p.control(func(fd uintptr) { n = p.take(fd, (*buf)[:min(left, len(*buf))]) })
			if err != nil || n == 0 {
				break
			}
			p.out.write(p.i, (*buf)[:n])
			left -= n
		}
	}
	open = true
	err := p.control(func(fd uintptr) { _, open = readable(fd) })
	return open && err == nil
}

// discard empties the pipe until its last writer has closed it.
func (p *pipe) discard() {
	if err := p.f.SetReadDeadline(time.Time{}); err != nil {
		return
	}
	buf := make([]byte, 4<<10)
	for {
		if _, err := p.f.Read(buf); err != nil {
			return
		}
	}
}
