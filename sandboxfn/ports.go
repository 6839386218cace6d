package sandboxfn

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// URL is where a TCP port of the sandbox can be reached by HTTP from here,
// without a final slash and whether or not anything listens there yet.
//
// Where the provider has an address for it, that is the answer; requests may
// need what [Sandbox.Header] returns. Else, as with the local provider, this
// process listens on a free port of its loopback and hands each connection on;
// that ends with the handle, and the same port gives the same URL until then.
// Mind that every user and program of this machine can connect to it; use
// [Sandbox.Dial] where that matters.
//
// Providers that cannot reach ports: [ErrNotSupported].
func (sb *Sandbox) URL(port int) (string, error) {
	const op = "reach port"
	if err := checkPort(port); err != nil {
		return "", err
	}
	if err := sb.usable(); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(sb.life, forwardDial)
	defer cancel()
	ep, err := sb.portEndpoint(ctx, op, port)
	switch {
	case err == nil && ep.Dial == nil:
		return ep.URL, nil
	case errors.Is(err, ErrNotSupported): // the runtime may have tunnels all the same
		if f, ferr := sb.envd.Features(ctx); ferr != nil || !f.Ports {
			return "", err
		}
	case err != nil:
		return "", err
	}
	return sb.forward(port)
}

// Forwarded reports whether the address that [Sandbox.URL] gave for a port is one
// of this process, which ends with the handle.
func (sb *Sandbox) Forwarded(port int) bool {
	sb.forwards.mu.Lock()
	defer sb.forwards.mu.Unlock()
	return sb.forwards.url[port] != ""
}

// Header is what HTTP requests to [Sandbox.URL] need in addition: who is meant,
// and a token where the provider asks for one. It holds secrets. It is empty
// when nothing is needed, and nil when the provider cannot say.
func (sb *Sandbox) Header(port int) http.Header {
	if checkPort(port) != nil || sb.usable() != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(sb.life, forwardDial)
	defer cancel()
	ep, err := sb.portEndpoint(ctx, "reach port", port)
	switch {
	case errors.Is(err, ErrNotSupported):
		return http.Header{}
	case err != nil:
		return nil
	case ep.Dial != nil || ep.Headers == nil:
		return http.Header{}
	}
	return ep.Headers.Clone()
}

// forwards are the listeners of a handle.
type forwards struct {
	mu  sync.Mutex
	url map[int]string // guarded by mu; by port
}

// maxForwarded bounds the connections of one forwarded port that are open at
// the same time. Others wait.
const maxForwarded = 256

// forward listens for a port and returns the URL.
func (sb *Sandbox) forward(port int) (string, error) {
	sb.forwards.mu.Lock()
	defer sb.forwards.mu.Unlock()
	if url := sb.forwards.url[port]; url != "" {
		return url, nil
	}
	leave, err := sb.enter()
	if err != nil {
		return "", err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		leave()
		return "", errdefs.Wrap("E5000", "reach port", "listen on the loopback of this machine", err)
	}
	stop := context.AfterFunc(sb.life, func() { l.Close() })
	go func() {
		defer leave()
		defer stop()
		sb.serveForward(l, port)
	}()
	if sb.forwards.url == nil {
		sb.forwards.url = map[int]string{}
	}
	url := "http://" + l.Addr().String()
	sb.forwards.url[port] = url
	return url, nil
}

// serveForward hands on what connects to l until it is closed.
func (sb *Sandbox) serveForward(l net.Listener, port int) {
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := make(chan struct{}, maxForwarded)
	for {
		select {
		case slots <- struct{}{}:
		case <-sb.life.Done():
			return
		}
		conn, err := l.Accept()
		if err != nil {
			<-slots
			if sb.life.Err() != nil {
				return
			}
			select {
			case <-time.After(10 * time.Millisecond): // out of descriptors, perhaps for a moment
			case <-sb.life.Done():
				return
			}
			continue
		}
		wg.Go(func() {
			defer func() { <-slots }()
			sb.handOn(conn, port)
		})
	}
}

// handOn joins a connection with one to the port. Where nothing listens it is
// closed: what is spoken on it is not known here.
func (sb *Sandbox) handOn(outer net.Conn, port int) {
	defer outer.Close()
	ctx, cancel := context.WithTimeout(sb.life, forwardDial)
	inner, err := sb.dialPort(ctx, port)
	cancel()
	if err != nil {
		sb.log.Debug("forwarded connection refused", "port", port, "err", err)
		return
	}
	defer inner.Close()
	// The end of the handle closes inner. That ends only what comes from there: a
	// client may keep its side open for as long as it likes.
	defer context.AfterFunc(sb.life, func() { outer.Close() })()
	var wg sync.WaitGroup
	wg.Go(func() { pass(inner, outer) })
	wg.Go(func() { pass(outer, inner) })
	wg.Wait()
}

// pass copies until one side ends and says so to the other; after a failure
// nothing of the other direction is of use either.
func pass(to, from net.Conn) {
	_, err := io.Copy(to, from)
	if w, ok := to.(interface{ CloseWrite() error }); ok && err == nil && w.CloseWrite() == nil {
		return
	}
	to.Close()
	from.Close()
}
