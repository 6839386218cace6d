package gateway

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"path"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/api"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

const (
	envdPort = api.EnvdPort
	codePort = api.CodePort

	// The HTTP API of the runtime; the second is the one that terminals once had.
	httpPort, terminalPort = 9000, 9001
)

// runtimePort reports whether a port is served by the runtime itself. All but
// envd's are names of routes to the same listener; that of the code interpreter
// the runtime tells by the header.
func runtimePort(port int) bool {
	switch port {
	case envdPort, codePort, httpPort, terminalPort:
		return true
	}
	return false
}

// forwarder carries requests to sandboxes. One transport serves all; its pool
// keeps the ports of sandboxes apart because each has a host name of its own.
type forwarder struct {
	s         *Server
	transport *http.Transport
	calls     *httputil.ReverseProxy // for requests whose answers are mostly events
	downloads *httputil.ReverseProxy // for GET
	carried   atomic.Int64           // requests on their way
}

const (
	idlePerPort = 32               // connections kept open to one port
	idlePort    = 30 * time.Second // below the idle limit of the runtime, so that we close first
	drainLimit  = 5 * time.Second  // for what is left of a body that nobody reads
	drainBytes  = 256 << 10        // of it
)

func newForwarder(s *Server) *forwarder {
	f := &forwarder{s: s}
	f.transport = &http.Transport{
		DialContext:           func(ctx context.Context, _, addr string) (net.Conn, error) { return f.dial(ctx, addr) },
		MaxIdleConns:          s.limits.carried / 4,
		MaxIdleConnsPerHost:   idlePerPort,
		IdleConnTimeout:       idlePort,
		ExpectContinueTimeout: time.Second,
		DisableCompression:    true, // bytes pass as they are
	}
	f.calls, f.downloads = f.proxy(smallBuffers), f.proxy(largeBuffers)
	return f
}

func (f *forwarder) proxy(b *buffers) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Rewrite:       f.rewrite,
		Transport:     f.transport,
		FlushInterval: -1, // what a sandbox says is passed on at once
		ErrorHandler:  f.failed,
		ErrorLog:      slog.NewLogLogger(f.s.log.Handler(), slog.LevelDebug),
		BufferPool:    b,
	}
}

// close ends idle connections.
func (f *forwarder) close() { f.transport.CloseIdleConnections() }

type routeKey struct{}

// route is a request on its way to a sandbox.
type route struct {
	address
	box    *box
	client context.Context // ends when the client goes away
	body   *bodyWatch      // nil without a body
}

// abandoned reports whether the client has gone away.
func (rt *route) abandoned() bool {
	return rt.client.Err() != nil && (rt.body == nil || !rt.body.hungUp.Load())
}

// serve carries one request to a sandbox, or says why not.
func (f *forwarder) serve(w http.ResponseWriter, r *http.Request, a address) {
	f.s.mu.Lock()
	b := f.s.boxes[a.id]
	f.s.mu.Unlock()
	if b == nil {
		f.refuse(w, r, a, http.StatusBadGateway, "The sandbox was not found", false)
		return
	}
	rec := b.snapshot()
	if rec.Phase != phaseRunning {
		f.notRunning(w, r, a, rec.Phase)
		return
	}
	switch {
	case runtimePort(a.port) && internalPath(r.URL.Path):
		fail404(w, r)
		return
	case a.port != envdPort && rec.Traffic != "" && !sameSecret(r.Header.Get(api.HeaderTraffic), rec.Traffic):
		f.refuse(w, r, a, http.StatusForbidden, "The traffic access token is missing or wrong", false)
		return
	}
	f.carry(w, r, a, b)
}

// carry passes a request on and its answer back, in both directions at once.
func (f *forwarder) carry(w http.ResponseWriter, r *http.Request, a address, b *box) {
	limit, total := forPort(f.s.limits.perSandbox, a.port), forPort(f.s.limits.carried, a.port)
	open, at, done := b.enter(limit)
	switch {
	case at != phaseRunning:
		f.notRunning(w, r, a, at)
		return
	case open == nil:
		f.crowded(w, r, a, limit)
		return
	}
	defer done()
	if f.carried.Add(1) > int64(total) {
		f.carried.Add(-1)
		f.crowded(w, r, a, total)
		return
	}
	defer f.carried.Add(-1)
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	defer context.AfterFunc(open, func() { cancel(context.Cause(open)) })()
	control := http.NewResponseController(w)
	_ = control.EnableFullDuplex() // HTTP/2 has it anyway
	rt := &route{address: a, box: b, client: r.Context()}
	if r.Body != nil && r.Body != http.NoBody {
		rt.body = newBodyWatch(r.Body, control)
		defer func() {
			if !rt.body.finish(r.ProtoMajor == 1) {
				f.s.conns.last(r.Context())
			}
		}()
		r.Body, ctx = rt.body, rt.body.trace(ctx)
	}
	proxy := f.calls
	if r.Method == http.MethodGet {
		proxy = f.downloads
	}
	proxy.ServeHTTP(w, r.WithContext(context.WithValue(ctx, routeKey{}, rt)))
	if rt.body != nil {
		_ = control.Flush() // the answer is complete; what is left of the body may take its time
	}
}

// notRunning answers that a sandbox takes no requests now.
func (f *forwarder) notRunning(w http.ResponseWriter, r *http.Request, a address, at phase) {
	if at == phasePaused {
		f.refuse(w, r, a, http.StatusBadGateway, "The sandbox is paused", false)
		return
	}
	f.refuse(w, r, a, http.StatusConflict, "The sandbox is in transition", false)
}

// crowded answers that there are too many requests.
func (f *forwarder) crowded(w http.ResponseWriter, r *http.Request, a address, limit int) {
	unread(w, r)
	answer(w, http.StatusTooManyRequests, struct {
		SandboxID string `json:"sandboxId"`
		Message   string `json:"message"`
		Limit     int    `json:"connectionLimit"`
		Code      int    `json:"code"`
	}{a.id, "Too many connections", limit, http.StatusTooManyRequests})
}

// internalPaths are those of envd that only its host may use.
var internalPaths = map[string]bool{
	"init": true, "freeze": true, "unfreeze": true, "collapse": true, "fsfreeze": true, "fsthaw": true, "upgrade": true,
}

// internalPath looks at a decoded path the way a server might that is lenient.
func internalPath(p string) bool {
	first, _, _ := strings.Cut(strings.TrimPrefix(path.Clean("/"+strings.ReplaceAll(p, "\\", "/")), "/"), "/")
	return internalPaths[strings.ToLower(first)]
}

func fail404(w http.ResponseWriter, r *http.Request) {
	answer(w, http.StatusNotFound, struct {
		Message string `json:"message"`
		Path    string `json:"path"`
		Code    int    `json:"code"`
	}{"no such path", clip(r.URL.Path), http.StatusNotFound})
}

// rewrite makes the request that the sandbox gets.
func (f *forwarder) rewrite(p *httputil.ProxyRequest) {
	rt := p.In.Context().Value(routeKey{}).(*route)
	out := p.Out
	out.URL.Scheme = "http"
	out.URL.Host = strconv.Itoa(rt.port) + "." + rt.id
	out.URL.User = nil
	// ReverseProxy drops what it cannot parse of a query; services must get
	// what clients sent.
	out.URL.RawQuery = p.In.URL.RawQuery
	hygiene(out.Header, rt.port)
	if runtimePort(rt.port) {
		out.Host = "sandbox"
		if rt.port == codePort {
			out.Header.Set(api.HeaderSandboxPort, strconv.Itoa(codePort))
			// E2B's clients send the access token with code only; with the routes
			// of contexts they send the traffic token alone.
			given := p.In.Header.Get(api.HeaderTraffic)
			if given != "" && contextsPath(out.URL.Path) && len(out.Header.Values(api.HeaderAccessToken)) == 0 &&
				sameSecret(given, rt.box.trafficToken()) {
				out.Header.Set(api.HeaderAccessToken, rt.box.accessToken())
			}
		}
		return
	}
	rec := rt.box.snapshot()
	if rec.MaskHost != "" {
		out.Host = strings.ReplaceAll(rec.MaskHost, maskPort, strconv.Itoa(rt.port))
	}
	p.SetXForwarded()
}

// contextsPath reports whether a path of the code interpreter is about contexts.
func contextsPath(p string) bool {
	return p == "/contexts" || strings.HasPrefix(p, "/contexts/") && path.Clean(p) == p
}

// hygiene removes what is not for the sandbox: the credentials of the control
// plane from every request, envd's token from those for ports of programs inside.
func hygiene(h http.Header, port int) {
	h.Del(api.HeaderSandboxID)
	h.Del(api.HeaderSandboxPort)
	h.Del(api.HeaderTraffic)
	if runtimePort(port) || isKey(h.Get(api.HeaderKey)) {
		h.Del(api.HeaderKey)
	}
	if scheme, value, _ := strings.Cut(h.Get("Authorization"), " "); strings.EqualFold(scheme, "Bearer") && isKey(value) {
		h.Del("Authorization")
	}
	if !runtimePort(port) {
		h.Del(api.HeaderAccessToken)
	}
}

// isKey reports whether text has the form of one of our keys.
func isKey(text string) bool {
	hex, ok := strings.CutPrefix(strings.TrimSpace(text), keyPrefix)
	return ok && len(hex) == 2*keyHexBytes && strings.Trim(hex, "0123456789abcdef") == ""
}

// dialError marks the failures of reaching a port.
type dialError struct{ err error }

func (e *dialError) Error() string { return e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// dial opens a connection to a port of a sandbox: "PORT.ID:80".
func (f *forwarder) dial(ctx context.Context, addr string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	port, id, _ := strings.Cut(host, ".")
	a, err := newAddress(id, port)
	if err != nil {
		return nil, err
	}
	f.s.mu.Lock()
	b := f.s.boxes[a.id]
	f.s.mu.Unlock()
	if b == nil {
		return nil, &dialError{errdefs.New("E2020", "reach sandbox", "no sandbox "+a.id)}
	}
	conn, err := f.s.dialPort(ctx, b, a.port)
	if err != nil {
		return nil, &dialError{err}
	}
	return newBackendConn(conn), nil
}

// dialPort opens a connection to a port inside a sandbox.
func (s *Server) dialPort(ctx context.Context, b *box, port int) (net.Conn, error) {
	const op = "reach sandbox"
	if runtimePort(port) {
		return s.dialRuntime(ctx, b)
	}
	p, ok := s.opts.Provider.(providers.PortExposer)
	if !ok {
		return nil, errdefs.New("E8004", op, "ports are not supported by provider "+s.opts.Provider.Name())
	}
	e, err := p.Port(ctx, b.id, port)
	if err != nil {
		return nil, err
	}
	if e.Dial == nil {
		return nil, errdefs.New("E8004", op, "provider "+s.opts.Provider.Name()+" gives no connection to ports")
	}
	return e.Dial(ctx)
}

// dialRuntime opens a connection to the runtime, by what was learned when the
// sandbox was last seen running.
func (s *Server) dialRuntime(ctx context.Context, b *box) (net.Conn, error) {
	const op = "reach sandbox"
	b.mu.Lock()
	dial := b.dial
	b.mu.Unlock()
	if dial != nil {
		return dial(ctx)
	}
	sb, err := s.opts.Provider.Get(ctx, b.id)
	switch {
	case err != nil:
		return nil, err
	case sb.State == providers.StatePaused:
		return nil, errdefs.New("E2024", op, "sandbox "+b.id+" is paused")
	case sb.Data.Dial == nil:
		return nil, errdefs.New("E8004", op, "provider "+s.opts.Provider.Name()+" gives no connection to sandboxes")
	}
	b.seen(sb)
	return sb.Data.Dial(ctx)
}

// failed answers a request that did not get through.
func (f *forwarder) failed(w http.ResponseWriter, r *http.Request, err error) {
	rt := r.Context().Value(routeKey{}).(*route)
	if rt.abandoned() {
		panic(http.ErrAbortHandler) // nobody reads an answer
	}
	if isGone(err) {
		f.s.forget(rt.box, err)
		f.refuse(w, r, rt.address, http.StatusBadGateway, "The sandbox was not found", false)
		return
	}
	var d *dialError
	switch {
	case errdefs.CodeOf(err) == "E2024", context.Cause(r.Context()) == errPausedNow:
		f.refuse(w, r, rt.address, http.StatusBadGateway, "The sandbox is paused", false)
	case context.Cause(r.Context()) == errGoneNow:
		f.refuse(w, r, rt.address, http.StatusBadGateway, "The sandbox was not found", false)
	case errors.As(err, &d) && !runtimePort(rt.port):
		f.refuse(w, r, rt.address, http.StatusBadGateway, "The sandbox is running but nothing listens on the port", true)
	default:
		f.s.log.DebugContext(r.Context(), "request to a sandbox failed", "sandbox_id", rt.id, "err", err)
		f.refuse(w, r, rt.address, http.StatusBadGateway, "The connection to the sandbox failed", false)
	}
}

// refuse answers in the shape of the data plane.
func (f *forwarder) refuse(w http.ResponseWriter, r *http.Request, a address, status int, message string, withPort bool) {
	if wantsHTML(r) {
		page(w, status, message)
		return
	}
	body := struct {
		SandboxID string `json:"sandboxId"`
		Message   string `json:"message"`
		Port      int    `json:"port,omitempty"`
		Code      int    `json:"code"`
	}{a.id, message, 0, status}
	if withPort {
		body.Port = a.port
	}
	answer(w, status, body)
}

// wantsHTML reports whether a browser is to show the answer.
func wantsHTML(r *http.Request) bool {
	if m := r.Header.Get("Sec-Fetch-Mode"); m != "" {
		return m == "navigate"
	}
	return strings.Contains(r.Header.Get("Accept"), "text/html")
}

// page writes an error for people. Its texts are ours.
func page(w http.ResponseWriter, status int, message string) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	w.Write([]byte("<!doctype html><meta charset=\"utf-8\"><title>" + http.StatusText(status) + "</title>" +
		"<body style=\"font-family:sans-serif;margin:4em\"><h1>" + strconv.Itoa(status) + " " + http.StatusText(status) + "</h1><p>" + message + ".</p>\n"))
}
