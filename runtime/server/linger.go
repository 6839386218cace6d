//go:build linux

package server

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// A connection that is closed while its client is still sending is reset, and the
// client may lose the answer that it had been given. So one whose request was not
// read to its end is closed for writing only, and what the client had under way is
// read for a moment: the lingering close of RFC 9112, section 9.6.

const (
	lingerTime  = 500 * time.Millisecond
	lingerBytes = 1 << 20
)

// lingers is the set of connections that are being closed in this way. Its methods
// are safe for concurrent use.
type lingers struct {
	wg sync.WaitGroup

	mu     sync.Mutex
	closed bool
	open   map[net.Conn]struct{}
}

// listen is l with connections that linger.
func (s *lingers) listen(l net.Listener) net.Listener { return lingerListener{l, s} }

type lingerListener struct {
	net.Listener
	set *lingers
}

// Accept implements [net.Listener].
func (l lingerListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	switch c := c.(type) { // both keep what http.Server looks for: sendfile(2)
	case *net.UnixConn:
		return &lingerUnix{UnixConn: c, lingering: lingering{set: l.set}}, err
	case *net.TCPConn:
		return &lingerTCP{TCPConn: c, lingering: lingering{set: l.set}}, err
	}
	return c, err
}

// lingering is what such a connection has beside the connection itself.
type lingering struct {
	set    *lingers
	unread atomic.Bool // the client may be sending what nobody will read
	closed atomic.Bool
}

type lingerUnix struct {
	*net.UnixConn
	lingering
}

func (c *lingerUnix) Close() error { return c.close(c.UnixConn) }

type lingerTCP struct {
	*net.TCPConn
	lingering
}

func (c *lingerTCP) Close() error { return c.close(c.TCPConn) }

// plainConn is the connection itself, for those who take it over.
func plainConn(c net.Conn) net.Conn {
	switch c := c.(type) {
	case *lingerUnix:
		return c.UnixConn
	case *lingerTCP:
		return c.TCPConn
	}
	return c
}

type halfConn interface {
	net.Conn
	CloseWrite() error
}

func (l *lingering) close(c halfConn) error {
	if l.closed.Swap(true) || !l.unread.Load() || !l.set.add(c) {
		return c.Close()
	}
	go l.set.end(c)
	return nil
}

// add reports false when there is no time for c any more.
func (s *lingers) add(c net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	if s.open == nil {
		s.open = map[net.Conn]struct{}{}
	}
	s.open[c] = struct{}{}
	s.wg.Add(1)
	return true
}

func (s *lingers) end(c halfConn) {
	defer s.wg.Done()
	if c.CloseWrite() == nil && c.SetReadDeadline(time.Now().Add(lingerTime)) == nil {
		_, _ = io.CopyN(io.Discard, c, lingerBytes)
	}
	c.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, c)
}

// close ends all at once.
func (s *lingers) close() {
	s.mu.Lock()
	s.closed = true
	for c := range s.open {
		c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

type connKey struct{}

// connContext lets the handlers of requests find their connection.
func connContext(ctx context.Context, c net.Conn) context.Context {
	switch c := c.(type) {
	case *lingerUnix:
		return context.WithValue(ctx, connKey{}, &c.lingering)
	case *lingerTCP:
		return context.WithValue(ctx, connKey{}, &c.lingering)
	}
	return ctx
}

// leftUnread notes whether a request was not read to its end.
func leftUnread(ctx context.Context, is bool) {
	if l, ok := ctx.Value(connKey{}).(*lingering); ok && l.unread.Load() != is {
		l.unread.Store(is)
	}
}
