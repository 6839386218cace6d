package gateway

import (
	"container/list"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds that follow from the number of files this process may have open: each
// client takes one, each request that is being carried to a sandbox another.
const (
	spareFiles    = 256 // for state, the provider and what it opens for a moment
	minConns      = 64
	perSandbox    = 1024 // requests under way to one sandbox, where there is room for four such
	refuseTimeout = 5 * time.Second
	maxRefusals   = 64 // connections that are turned away with patience
)

// limits are the bounds in force.
type limits struct{ conns, carried, perSandbox int }

// forPort is how much of a bound requests to a port may take up. Ports of
// services are open to strangers; a quarter is kept for the runtime.
func forPort(limit, port int) int {
	if port == envdPort {
		return limit
	}
	return limit - limit/4
}

// fileLimits derives bounds from the descriptor limit. The Go runtime has
// raised the soft limit to the hard one at the start.
func fileLimits() limits {
	n := 1024
	var r unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &r) == nil {
		n = int(min(r.Cur, 1<<20))
	}
	return limitsFor(n)
}

// limitsFor derives bounds from a number of descriptors.
func limitsFor(n int) limits {
	free := max(n-spareFiles, minConns)
	carried := max(free/3, minConns/2)
	return limits{conns: max(free*2/3, minConns), carried: carried, perSandbox: min(perSandbox, carried/4)}
}

// connections counts the connections of clients. At the limit a new one takes
// the place of the one that has waited longest without a request being served;
// so connections that say nothing, or say it slowly, keep nobody out.
type connections struct {
	max      int
	refusals chan struct{} // holds one value for each that is turned away with patience

	mu   sync.Mutex
	all  map[net.Conn]*connection
	idle *list.List // of *connection, the longest idle first
}

// connection is one of a client. Its fields are guarded by the mutex of
// connections.
type connection struct {
	conn     net.Conn
	serving  int           // requests; several with HTTP/2
	place    *list.Element // in idle; nil while serving
	hijacked bool
	last     bool // the request that is being served is its last one
}

func newConnections(n int) *connections {
	return &connections{max: n, refusals: make(chan struct{}, maxRefusals), all: map[net.Conn]*connection{}, idle: list.New()}
}

// limitListener lets connections in as far as there is room.
type limitListener struct {
	net.Listener
	conns *connections
}

// Accept waits for the next connection that may stay.
func (l limitListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil || l.conns.admit(c) {
			return c, err
		}
	}
}

// admit makes room for a connection, or refuses it.
func (cs *connections) admit(c net.Conn) bool {
	cs.mu.Lock()
	var old net.Conn
	if len(cs.all) >= cs.max {
		front := cs.idle.Front()
		if front == nil {
			cs.mu.Unlock()
			go cs.turnAway(c) // which ends soon
			return false
		}
		victim := front.Value.(*connection)
		old = victim.conn
		cs.removeLocked(victim)
	}
	k := &connection{conn: c}
	k.place = cs.idle.PushBack(k)
	cs.all[c] = k
	cs.mu.Unlock()
	if old != nil {
		closeNow(old)
	}
	return true
}

const (
	acceptPause = 50 * time.Millisecond // when no connection can be accepted for a moment
	dialLimit   = 30 * time.Second
)

// isTemporary reports whether accepting may work again: too many files are
// open, or the client has gone already.
func isTemporary(err error) bool {
	for _, e := range []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS, unix.ECONNABORTED} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// pause waits; it reports false when ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// closeNow closes a connection without the farewell of TLS, for which a client
// that does not read could make us wait.
func closeNow(c net.Conn) {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	c.Close()
}

const tooMany = `{"code":429,"message":"too many connections"}`

// turnAway answers a connection for which there is no room. Clients take no answer
// for what they have not asked yet, and lose one when the connection is closed while
// they send: so it waits for the request, and takes what comes for a while, unless
// there are too many of them.
func (cs *connections) turnAway(c net.Conn) {
	defer closeNow(c)
	if _, encrypted := c.(*tls.Conn); encrypted {
		return
	}
	c.SetDeadline(time.Now().Add(refuseTimeout))
	patient := false
	select {
	case cs.refusals <- struct{}{}:
		defer func() { <-cs.refusals }()
		patient = true
		c.SetReadDeadline(time.Now().Add(refuseTimeout / 5))
		_, _ = c.Read(make([]byte, 1))
		c.SetReadDeadline(time.Now().Add(refuseTimeout))
	default:
	}
	c.Write([]byte("HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/json; charset=utf-8\r\nConnection: close\r\nContent-Length: 45\r\n\r\n" + tooMany))
	if half, ok := c.(interface{ CloseWrite() error }); ok && patient && half.CloseWrite() == nil {
		_, _ = io.Copy(io.Discard, c) // until the client has closed it, or time is over
	}
}

func (cs *connections) removeLocked(k *connection) {
	if cs.all[k.conn] != k {
		return
	}
	delete(cs.all, k.conn)
	if k.place != nil {
		cs.idle.Remove(k.place)
		k.place = nil
	}
}

// state follows the connections of an http.Server.
func (cs *connections) state(c net.Conn, st http.ConnState) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	k := cs.all[c]
	if k == nil {
		return
	}
	switch st {
	case http.StateIdle: // the answer is out
		if k.last {
			closeNow(c)
		}
	case http.StateClosed:
		cs.removeLocked(k)
	case http.StateHijacked:
		k.hijacked = true // it counts until its handler returns
	}
}

type connectionKey struct{}

// context lets requests find their connection.
func (cs *connections) context(ctx context.Context, c net.Conn) context.Context {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if k := cs.all[c]; k != nil {
		return context.WithValue(ctx, connectionKey{}, k)
	}
	return ctx
}

// last has the connection of a request closed after its answer.
func (cs *connections) last(ctx context.Context) {
	k, _ := ctx.Value(connectionKey{}).(*connection)
	if k == nil {
		return
	}
	cs.mu.Lock()
	defer cs.mu.Unlock()
	k.last = true
}

// busy marks a connection that no http.Server follows, until done.
func (cs *connections) busy(c net.Conn) (done func()) {
	cs.mu.Lock()
	k := cs.all[c]
	if k != nil {
		k.hijacked = true
	}
	cs.mu.Unlock()
	if k == nil { // it gave way to another already
		return func() {}
	}
	return cs.serve(context.WithValue(context.Background(), connectionKey{}, k))
}

// serve marks a connection as busy until done. On one that has had its last request
// it ends the handler: what comes there is no request.
func (cs *connections) serve(ctx context.Context) (done func()) {
	k, _ := ctx.Value(connectionKey{}).(*connection)
	if k == nil {
		return func() {}
	}
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if k.last { // http.Server had read more from it than it has used
		panic(http.ErrAbortHandler)
	}
	k.serving++
	if k.place != nil {
		cs.idle.Remove(k.place)
		k.place = nil
	}
	return func() {
		cs.mu.Lock()
		defer cs.mu.Unlock()
		k.serving--
		switch {
		case cs.all[k.conn] != k || k.serving > 0:
		case k.hijacked:
			cs.removeLocked(k)
		default:
			k.place = cs.idle.PushBack(k)
		}
	}
}
