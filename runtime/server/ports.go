//go:build linux

package server

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/runtime/fault"
)

const (
	portProtocol = "sandbox-tcp/1"
	maxTunnels   = 512              // open at the same time, those that are being dialed included
	portTimeout  = 10 * time.Second // until whoever listens has taken the connection
)

// tunnels holds the connections to ports of the sandbox.
type tunnels struct {
	ctx    context.Context // ends with the server
	cancel context.CancelFunc

	mu     sync.Mutex
	open   int  // guarded by mu
	closed bool // guarded by mu
	wg     sync.WaitGroup
}

func newTunnels() *tunnels {
	t := &tunnels{}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	return t
}

// connect takes over the connection of a request that asks for a port and joins
// it with one to that port. It returns when both are over.
func (t *tunnels) connect(w http.ResponseWriter, r *http.Request) {
	port, err := strconv.ParseUint(r.PathValue("port"), 10, 16)
	switch {
	case err != nil || port == 0:
		fault.HTTP(w, http.StatusBadRequest, "E3011", "port is not a number from 1 to 65535")
		return
	case !wantsUpgrade(r.Header, portProtocol):
		refuseWithoutUpgrade(w, portProtocol)
		return
	case r.ContentLength != 0:
		fault.HTTP(w, http.StatusBadRequest, "E5001", "a request for a port has no body")
		return
	}
	if status, why := t.reserve(); status != 0 {
		fault.HTTP(w, status, "E5001", why)
		return
	}
	defer t.release()
	inner, err := dialPort(r.Context(), int(port))
	if err != nil {
		nothingListens(w, int(port), err)
		return
	}
	defer inner.Close()
	outer, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		fault.HTTP(w, http.StatusInternalServerError, "E5001", "connection cannot be upgraded")
		return
	}
	outer = plainConn(outer)
	defer outer.Close()
	if answerUpgrade(outer, portProtocol) == nil {
		join(t.ctx, inner, outer, rw.Reader)
	}
}

// reserve counts one more tunnel, or says with status and why what is in the way.
func (t *tunnels) reserve() (status int, why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed:
		return http.StatusServiceUnavailable, "server is shutting down"
	case t.open >= maxTunnels:
		return http.StatusTooManyRequests, "too many connections to ports"
	}
	t.open++
	t.wg.Add(1)
	return 0, ""
}

func (t *tunnels) release() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.open--
	t.wg.Done()
}

// close ends all tunnels, refuses new ones and returns when none is left.
func (t *tunnels) close() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.cancel()
	t.wg.Wait()
}

// dialPort connects to a port on this side, whichever loopback address its
// owner listens on. It returns early when the client is gone.
func dialPort(ctx context.Context, port int) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, portTimeout)
	defer cancel()
	var d net.Dialer
	var first error
	for _, host := range []string{"127.0.0.1", "::1"} {
		conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
		if err == nil {
			return conn, nil
		}
		if first == nil {
			first = err
		}
	}
	return nil, first
}

// nothingListens answers 502 as gateways do for a closed port.
func nothingListens(w http.ResponseWriter, port int, err error) {
	why := fmt.Sprintf("nothing listens on port %d", port)
	if !errors.Is(err, unix.ECONNREFUSED) {
		why = fmt.Sprintf("port %d does not take connections: %v", port, err)
	}
	body, err := json.Marshal(struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
		Port    int    `json:"port"`
	}{http.StatusBadGateway, why, port})
	if err != nil {
		panic(err) // a struct of numbers and a string always encodes
	}
	h := w.Header()
	h.Set("Content-Type", "application/json; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set(fault.Header, "E5001")
	w.WriteHeader(http.StatusBadGateway)
	w.Write(append(body, '\n'))
}

// join copies both ways until both directions have ended, one has failed, the
// client is gone or ctx ends; it closes both connections then. The end of one
// direction is passed on. What the client sent early is in sent.
func join(ctx context.Context, inner, outer net.Conn, sent *bufio.Reader) {
	over := make(chan struct{})
	end := sync.OnceFunc(func() {
		close(over)
		inner.Close()
		outer.Close()
	})
	defer context.AfterFunc(ctx, end)()
	var ended atomic.Int32 // directions
	last := func() bool { return ended.Add(1) == 2 }
	var wg sync.WaitGroup
	wg.Go(func() {
		defer end()
		early, _ := sent.Peek(sent.Buffered())
		if _, err := inner.Write(early); err != nil || !forward(inner, outer) || last() {
			return
		}
		// A client that is gone altogether, and not just silent from now on,
		// wants no answer; who listens need not notice that by itself.
		awaitHangup(outer, over)
	})
	if !forward(outer, inner) || last() {
		end()
	}
	wg.Wait()
}

// forward copies from src to dst and passes the end on. It reports whether the
// other direction can go on.
func forward(dst, src net.Conn) bool {
	if _, err := io.Copy(dst, src); err != nil {
		return false
	}
	half, ok := dst.(interface{ CloseWrite() error })
	return ok && half.CloseWrite() == nil
}

// awaitHangup returns when the peer of conn has closed both directions, which
// shows with unix sockets only, or has reset the connection, and when over is
// closed, which has to close conn.
func awaitHangup(conn net.Conn, over <-chan struct{}) {
	if c, ok := conn.(syscall.Conn); ok {
		if raw, err := c.SyscallConn(); err == nil {
			_ = raw.Read(hungUp)
			return
		}
	}
	<-over
}

func hungUp(fd uintptr) bool {
	fds := []unix.PollFd{{Fd: int32(fd)}} // POLLHUP and POLLERR need not be asked for
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0
}
