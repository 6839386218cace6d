package gateway

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"time"
)

// backendConn is a connection to a sandbox. Its closed is closed with it.
type backendConn struct {
	net.Conn
	once   sync.Once
	closed chan struct{}
}

func newBackendConn(c net.Conn) *backendConn {
	return &backendConn{Conn: c, closed: make(chan struct{})}
}

// Close closes the connection.
func (c *backendConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// ReadFrom sends what r has, a large body.
func (c *backendConn) ReadFrom(r io.Reader) (int64, error) {
	buf := largeBuffers.Get()
	defer largeBuffers.Put(buf)
	return io.CopyBuffer(struct{ io.Writer }{c.Conn}, struct{ io.Reader }{r}, buf)
}

// CloseWrite ends what is sent, for connections that changed their protocol.
func (c *backendConn) CloseWrite() error {
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return http.ErrNotSupported
}

// bodyWatch stops waiting for the body of a request when the connection to the
// sandbox is gone before it answered: http.Transport returns only after it has
// stopped reading the body, and clients may take their time. It watches until
// the body has ended or the answer begins.
type bodyWatch struct {
	io.ReadCloser
	control *http.ResponseController
	over    chan struct{}
	end     func() // closes over, once
	wg      sync.WaitGroup
	closed  atomic.Bool // by those who carry the body
	read    atomic.Bool // to its end

	// hungUp is set before the body is cut, which http.Server takes for the
	// client's going away.
	hungUp atomic.Bool
}

func newBodyWatch(body io.ReadCloser, control *http.ResponseController) *bodyWatch {
	b := &bodyWatch{ReadCloser: body, control: control, over: make(chan struct{})}
	b.end = sync.OnceFunc(func() { close(b.over) })
	return b
}

// Read reads from the client.
func (b *bodyWatch) Read(p []byte) (int, error) {
	if b.closed.Load() {
		return 0, http.ErrBodyReadAfterClose
	}
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.read.Store(err == io.EOF)
		b.end()
	}
	return n, err
}

// Close ends the reading. It does not wait for what the client has yet to send,
// for which the answer would have to wait, too; finish does.
func (b *bodyWatch) Close() error {
	b.closed.Store(true)
	return nil
}

// trace lets the watch begin with the connection and end with the answer.
func (b *bodyWatch) trace(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(i httptrace.GotConnInfo) {
			if c, ok := i.Conn.(*backendConn); ok {
				b.wg.Go(func() { b.watch(c) })
			}
		},
		GotFirstResponseByte: b.end,
	})
}

func (b *bodyWatch) watch(c *backendConn) {
	select {
	case <-b.over:
	case <-c.closed:
		b.hungUp.Store(true)
		_ = b.control.SetReadDeadline(time.Unix(1, 0)) // an error: the client is gone, too
	}
}

// finish ends the watch and the reading: http.Server must not use the connection
// while somebody else reads from it. What the sandbox did not read of the body,
// the client may not take its time to send. It reports false when there may be more
// of it where shared is set: http.Server would take that for the next request.
func (b *bodyWatch) finish(shared bool) bool {
	b.end()
	b.wg.Wait()
	b.closed.Store(true)
	_ = b.control.SetReadDeadline(time.Now().Add(drainLimit))
	defer b.ReadCloser.Close()
	if b.read.Load() || !shared {
		return true
	}
	_, err := io.CopyN(io.Discard, b.ReadCloser, drainBytes)
	return err == io.EOF
}
