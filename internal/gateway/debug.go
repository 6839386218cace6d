package gateway

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"sync"

	"github.com/agent-sandbox/sandbox-go/internal/api"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// nobody owns the standing sandbox: no key has this id.
const nobody = ""

const maxDebugConns = 512 // to one port of the standing sandbox

// standing is the sandbox of SDKs in debug mode, which know one address and
// send no token. It is made when it is first needed, and again when it ended.
type standing struct {
	s    *Server
	turn chan struct{} // holds one value while somebody looks for it or makes it
	b    *box          // whoever has the turn
}

func newStanding(s *Server) *standing { return &standing{s: s, turn: make(chan struct{}, 1)} }

// get returns the standing sandbox.
func (d *standing) get(ctx context.Context) (*box, error) {
	select {
	case d.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-d.turn }()
	if d.b != nil {
		d.b.mu.Lock()
		gone := d.b.gone
		d.b.mu.Unlock()
		if !gone {
			return d.b, nil
		}
	}
	body := &api.NewSandbox{}
	rec, req, err := d.s.plan(ctx, nobody, body, d.s.opts.MaxLifetime)
	if err != nil {
		return nil, err
	}
	rec.Owner, rec.Standing = nobody, true
	req.Lifetime, req.Detached = keepPaused, false // it ends with this process
	if err := identify(nil, rec, req); err != nil {
		return nil, err
	}
	d.b, err = d.s.make(ctx, rec, req)
	return d.b, err
}

// endStanding kills the standing sandbox.
func (s *Server) endStanding(ctx context.Context) {
	s.standing.turn <- struct{}{} // nobody has it for long: their contexts have ended
	defer func() { <-s.standing.turn }()
	b := s.standing.b
	if b == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killLimit)
	defer cancel()
	if err := s.opts.Provider.Kill(ctx, b.id); err != nil && !isGone(err) {
		s.log.WarnContext(ctx, "sandbox not killed", "sandbox_id", b.id, "err", err)
	}
	s.forget(b, nil)
}

// ServeDebug serves one port of a standing sandbox on l, for SDKs with
// E2B_DEBUG=true: ports 49983 and 49999 are those of the runtime and its code
// interpreter, whose token is added to every request; other ports carry bytes. Whoever can reach l can run anything
// in that sandbox, so l must listen on a loopback address; on these two pages of
// other sites in a browser of this machine are refused. It returns nil after
// Shutdown, and closes l.
func (s *Server) ServeDebug(l net.Listener, port int) error {
	const op = "serve standing sandbox"
	if ap, err := netip.ParseAddrPort(l.Addr().String()); err != nil || !ap.Addr().IsLoopback() {
		l.Close()
		return errdefs.New("E8007", op, l.Addr().String()+" is not a loopback address")
	}
	if !s.enter() {
		l.Close()
		return nil
	}
	defer s.wg.Done()
	if _, err := s.standing.get(s.ctx); err != nil {
		l.Close()
		return err
	}
	limited := limitListener{l, newConnections(maxDebugConns)}
	if runtimePort(port) {
		return s.serveDebugRuntime(limited, port)
	}
	return s.serveDebugPort(limited, port)
}

// serveDebugRuntime adds the token to requests.
func (s *Server) serveDebugRuntime(l limitListener, port int) error {
	srv := &http.Server{
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.debugRequest(w, r, port) }),
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
		ConnState:         l.conns.state,
		ConnContext:       l.conns.context,
	}
	defer context.AfterFunc(s.ctx, func() { srv.Close() })()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func (s *Server) debugRequest(w http.ResponseWriter, r *http.Request, port int) {
	if !s.enter() {
		fail(w, refuse(http.StatusServiceUnavailable, "", "the gateway is shutting down"))
		return
	}
	defer s.wg.Done()
	if !fromThisMachine(r) {
		unread(w, r)
		fail(w, refuse(http.StatusForbidden, "E1006", "requests for other hosts, and of pages of other sites, are refused"))
		return
	}
	if internalPath(r.URL.Path) {
		fail404(w, r)
		return
	}
	b, err := s.standing.get(r.Context())
	if err != nil {
		fail(w, asRefusal(err))
		return
	}
	r.Header.Set(api.HeaderAccessToken, b.accessToken())
	s.forward.carry(w, r, address{id: b.id, port: port}, b)
}

// fromThisMachine refuses what a browser sends for a page of elsewhere, also
// one whose name was made to mean this machine.
func fromThisMachine(r *http.Request) bool {
	host, kind, err := hostOf(r.Host)
	if err != nil || kind != hostLocal || !isLoopbackName(host) {
		return false
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "none", "same-origin":
	default:
		return false
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return true
	}
	u, err := url.Parse(origin)
	return err == nil && isLoopbackName(u.Hostname())
}

func isLoopbackName(host string) bool {
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

// serveDebugPort carries bytes between a local port and one inside.
func (s *Server) serveDebugPort(l limitListener, port int) error {
	defer context.AfterFunc(s.ctx, func() { l.Close() })()
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		c, err := l.Accept()
		if err != nil {
			if s.ctx.Err() != nil {
				return nil
			}
			if isTemporary(err) {
				if !pause(s.ctx, acceptPause) {
					return nil
				}
				continue
			}
			return err
		}
		done := l.conns.busy(c)
		wg.Go(func() {
			defer done()
			defer c.Close()
			s.debugConn(c, port)
		})
	}
}

func (s *Server) debugConn(c net.Conn, port int) {
	ctx, cancel := context.WithTimeout(s.ctx, dialLimit)
	defer cancel()
	b, err := s.standing.get(ctx)
	if err != nil {
		return
	}
	inside, err := s.dialPort(ctx, b, port)
	if err != nil {
		if isGone(err) {
			s.forget(b, err)
		}
		return // the client sees that nothing is there
	}
	defer inside.Close()
	defer context.AfterFunc(s.ctx, func() { c.Close(); inside.Close() })()
	splice(c, inside)
}

// splice carries bytes both ways until both have ended.
func splice(a, b net.Conn) {
	var wg sync.WaitGroup
	one := func(dst, src net.Conn) {
		if _, err := io.Copy(dst, src); err != nil {
			dst.Close()
			src.Close()
			return
		}
		if w, ok := dst.(interface{ CloseWrite() error }); !ok || w.CloseWrite() != nil {
			dst.Close()
		}
	}
	wg.Go(func() { one(a, b) })
	one(b, a)
	wg.Wait()
}
