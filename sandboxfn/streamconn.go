package sandboxfn

import (
	"io"
	"net"
	"os"
	"sync"
	"time"
)

const (
	// streamBuffer is how many bytes wait in each direction before the one who
	// writes does: as much as a socket holds.
	streamBuffer = 1 << 20
)

// streamConn is a connection whose bytes travel by other means: what is written
// is taken by a sender, what is read was fed by a receiver. It behaves as a
// socket does, with deadlines, back-pressure and a buffer each way.
//
// A Write that fails has not put all of its bytes into the buffer, so that the
// other end never sees a whole message that was reported as not sent.
type streamConn struct {
	gone chan struct{} // closed by Close

	mu    sync.Mutex
	moved sync.Cond // anything below has changed

	in     []byte // guarded by mu; fed, not yet read
	inErr  error  // guarded by mu; what Read returns behind it
	out    []byte // guarded by mu; written, not yet taken
	outErr error  // guarded by mu; what Write returns from now on
	closed bool   // guarded by mu

	reading, writing clock // guarded by mu
}

// clock is a deadline.
type clock struct {
	timer  *time.Timer
	passed bool
}

func newStreamConn() *streamConn {
	c := &streamConn{gone: make(chan struct{})}
	c.moved.L = &c.mu
	return c
}

// Read implements [net.Conn].
func (c *streamConn) Read(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		switch {
		case c.closed:
			return 0, net.ErrClosed
		case c.reading.passed:
			return 0, os.ErrDeadlineExceeded
		case len(c.in) > 0:
			n := copy(p, c.in)
			if c.in = c.in[n:]; len(c.in) == 0 {
				c.in = nil
			}
			c.moved.Broadcast()
			return n, nil
		case c.inErr != nil:
			return 0, c.inErr
		case len(p) == 0:
			return 0, nil
		}
		c.moved.Wait()
	}
}

// Write implements [net.Conn].
func (c *streamConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.writeLocked(p)
}

// WriteBuffers writes all of bufs, so that the sender can take them together.
func (c *streamConn) WriteBuffers(bufs net.Buffers) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, b := range bufs {
		if _, err := c.writeLocked(b); err != nil {
			return err
		}
	}
	return nil
}

func (c *streamConn) writeLocked(p []byte) (done int, err error) {
	for {
		switch {
		case c.closed:
			return done, net.ErrClosed
		case c.outErr != nil:
			return done, c.outErr
		case c.writing.passed:
			return done, os.ErrDeadlineExceeded
		case len(p) == 0:
			return done, nil
		case len(c.out) < streamBuffer:
			n := min(len(p), streamBuffer-len(c.out))
			c.out = append(c.out, p[:n]...)
			p, done = p[n:], done+n
			c.moved.Broadcast()
		default:
			c.moved.Wait()
		}
	}
}

// feed hands in what has arrived. It waits while nobody reads what came before,
// and does not keep p. It reports false when nobody ever will.
func (c *streamConn) feed(p []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.in) >= streamBuffer && !c.closed {
		c.moved.Wait()
	}
	if c.closed {
		return false
	}
	c.in = append(c.in, p...)
	c.moved.Broadcast()
	return true
}

// end makes err what comes behind what has been fed; nil is the end in order.
// Nothing more is taken.
func (c *streamConn) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inErr == nil {
		c.inErr = io.EOF
		if err != nil {
			c.inErr = err
		}
	}
	if c.outErr == nil {
		c.outErr = io.ErrClosedPipe
	}
	c.moved.Broadcast()
}

// refuse makes Write fail from now on. Nothing more is taken.
func (c *streamConn) refuse(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.outErr == nil {
		c.outErr = err
	}
	c.moved.Broadcast()
}

// take returns up to most bytes that were written, once there are any, in a
// buffer that is at least spare. It returns none when there will be no more:
// after Close, what was written before is still taken.
func (c *streamConn) take(spare []byte, most int) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.out) == 0 && !c.closed && c.outErr == nil {
		c.moved.Wait()
	}
	if c.outErr != nil {
		return nil
	}
	n := min(most, len(c.out))
	spare = append(spare[:0], c.out[:n]...)
	c.out = c.out[:copy(c.out, c.out[n:])]
	c.moved.Broadcast()
	return spare
}

// Close implements [net.Conn]. What was written before is still taken.
func (c *streamConn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	c.closed = true
	close(c.gone)
	c.in = nil
	c.reading.stop()
	c.writing.stop()
	c.moved.Broadcast()
	return nil
}

// SetDeadline implements [net.Conn].
func (c *streamConn) SetDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.set(&c.reading, t)
	c.set(&c.writing, t)
	return c.closedError()
}

// SetReadDeadline implements [net.Conn].
func (c *streamConn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.set(&c.reading, t)
	return c.closedError()
}

// SetWriteDeadline implements [net.Conn].
func (c *streamConn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.set(&c.writing, t)
	return c.closedError()
}

func (c *streamConn) closedError() error {
	if c.closed {
		return net.ErrClosed
	}
	return nil
}

// set moves a deadline. c is locked.
func (c *streamConn) set(k *clock, t time.Time) {
	k.stop()
	k.passed = false
	if c.closed || t.IsZero() {
		return
	}
	d := time.Until(t)
	if d <= 0 {
		k.passed = true
		c.moved.Broadcast()
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(d, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if k.timer == timer { // it has not been moved meanwhile
			k.passed = true
			c.moved.Broadcast()
		}
	})
	k.timer = timer
}

func (k *clock) stop() {
	if k.timer != nil {
		k.timer.Stop()
		k.timer = nil
	}
}

// LocalAddr implements [net.Conn].
func (c *streamConn) LocalAddr() net.Addr { return streamAddr{} }

// RemoteAddr implements [net.Conn].
func (c *streamConn) RemoteAddr() net.Addr { return streamAddr{} }

type streamAddr struct{}

func (streamAddr) Network() string { return "envd" }
func (streamAddr) String() string  { return "worker" }
