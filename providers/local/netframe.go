//go:build linux

package local

import (
	"encoding/binary"
	"io"
	"math"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// An insideConn is a connection that a program in a sandbox has made: a
// *net.TCPConn, or a [framedConn] to where it was made.
type insideConn interface {
	net.Conn
	CloseWrite() error
	SetLinger(seconds int) error
}

// A framedConn carries a connection of TCP over a socket of another kind, ends
// included: what is written goes in frames of two bytes of length and so many
// of data, none for the end. An end without that frame is a reset.
type framedConn struct {
	*net.UnixConn
	at netip.AddrPort // what the program connected to

	head  [2]byte
	got   int // of head
	left  int // of a frame
	ended bool

	abort atomic.Bool // close without the last frame

	mu    sync.Mutex // held while a frame is written; guards the rest
	final bool       // nothing can follow
}

var (
	_ insideConn = (*framedConn)(nil)
	_ insideConn = (*net.TCPConn)(nil)
)

// Read returns io.EOF where the other end was said to be one, else
// io.ErrUnexpectedEOF.
func (c *framedConn) Read(p []byte) (int, error) {
	for c.left == 0 {
		if c.ended {
			return 0, io.EOF
		}
		n, err := c.UnixConn.Read(c.head[c.got:])
		if c.got += n; c.got == len(c.head) {
			c.got, c.left = 0, int(binary.BigEndian.Uint16(c.head[:]))
			c.ended = c.left == 0
		} else if err != nil {
			return 0, unexpectedEOF(err)
		}
	}
	n, err := c.UnixConn.Read(p[:min(len(p), c.left)])
	c.left -= n
	return n, unexpectedEOF(err)
}

func unexpectedEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Write sends p in frames. After an error nothing can be written.
func (c *framedConn) Write(p []byte) (n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for n < len(p) {
		if c.final {
			return n, net.ErrClosed
		}
		part := p[n:min(len(p), n+math.MaxUint16)]
		head := binary.BigEndian.AppendUint16(nil, uint16(len(part)))
		frame := net.Buffers{head, part}
		if _, err := frame.WriteTo(c.UnixConn); err != nil {
			c.final = true
			return n, err
		}
		n += len(part)
	}
	return n, nil
}

// CloseWrite says that nothing follows. The other direction goes on.
func (c *framedConn) CloseWrite() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.final {
		return nil
	}
	c.final = true
	_, err := c.UnixConn.Write([]byte{0, 0})
	return err
}

// SetLinger with zero makes Close a reset. Other values mean nothing.
func (c *framedConn) SetLinger(seconds int) error {
	if seconds == 0 {
		c.abort.Store(true)
	}
	return nil
}

// Close closes the connection, and does not wait for a Write: one that goes on
// makes it a reset.
func (c *framedConn) Close() error {
	if c.abort.Load() || !c.mu.TryLock() {
		return c.UnixConn.Close()
	}
	defer c.mu.Unlock()
	if raw, err := c.SyscallConn(); err == nil && !c.final {
		c.final = true
		_ = raw.Control(func(fd uintptr) { // also after a deadline
			send := func() error { return unix.Send(int(fd), []byte{0, 0}, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL) }
			if send() == unix.EAGAIN && unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, math.MaxInt32) == nil {
				_ = send() // what was written is not read yet; the kernel bounds what it takes now, socket(7)
			}
		})
	}
	return c.UnixConn.Close()
}

// LocalAddr is what the program connected to.
func (c *framedConn) LocalAddr() net.Addr { return net.TCPAddrFromAddrPort(c.at) }
