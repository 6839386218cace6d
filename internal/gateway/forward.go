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
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/api"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

const envdPort = api.EnvdPort

// forwarder carries requests to sandboxes. One transport serves all; its pool
// keeps the ports of sandboxes apart because each has a host name of its own.
type forwarder struct {
	s         *Server
	transport *http.Transport
	proxy     *httputil.ReverseProxy
}

const (
	idlePerPort = 32               // connections kept open to one port
	idlePort    = 30 * time.Second // below the idle limit of the runtime, so that we close first
	copyBuffer  = 64 << 10
)

func newForwarder(s *Server) *forwarder {
	f := &forwarder{s: s}
	f.transport = &http.Transport{
		DialContext:           func(ctx context.Context, _, addr string) (net.Conn, error) { return f.dial(ctx, addr) },
		MaxIdleConns:          1000,
		MaxIdleConnsPerHost:   idlePerPort,
		IdleConnTimeout:       idlePort,
		ExpectContinueTimeout: time.Second,
		DisableCompression:    true, // bytes pass as they are
	}
	f.proxy = &httputil.ReverseProxy{
		Rewrite:        f.rewrite,
		Transport:      f.transport,
		FlushInterval:  -1, // what a sandbox says is passed on at once
		ErrorHandler:   f.failed,
		ModifyResponse: nil,
		ErrorLog:       slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
		BufferPool:     buffers{},
	}
	return f
}

// close ends idle connections.
func (f *forwarder) close() { f.transport.CloseIdleConnections() }

type routeKey struct{}

// route is a request on its way to a sandbox.
type route struct {
	address
	box *box
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
	switch rec.Phase {
	case phaseRunning:
	case phasePaused:
		f.refuse(w, r, a, http.StatusBadGateway, "The sandbox is paused", false)
		return
	case phaseKilling:
		f.refuse(w, r, a, http.StatusBadGateway, "The sandbox was killed", false)
		return
	default:
		f.refuse(w, r, a, http.StatusConflict, "The sandbox is in transition", false)
		return
	}
	switch {
	case a.port == envdPort && internalPath(r.URL.Path):
		fail404(w, r)
		return
	case a.port != envdPort && rec.Traffic != "" && !sameSecret(r.Header.Get(api.HeaderTraffic), rec.Traffic):
		f.refuse(w, r, a, http.StatusForbidden, "The traffic access token is missing or wrong", false)
		return
	}
	// The answer may begin before the request has ended.
	_ = http.NewResponseController(w).EnableFullDuplex() // HTTP/2 has it anyway
	f.proxy.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), routeKey{}, &route{a, b})))
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
	if rt.port == envdPort {
		out.Host = "sandbox"
		return
	}
	rec := rt.box.snapshot()
	if rec.MaskHost != "" {
		out.Host = strings.ReplaceAll(rec.MaskHost, maskPort, strconv.Itoa(rt.port))
	}
	p.SetXForwarded()
}

// hygiene removes what is not for the sandbox: the credentials of the control
// plane from every request, envd's token from those for other ports.
func hygiene(h http.Header, port int) {
	h.Del(api.HeaderSandboxID)
	h.Del(api.HeaderSandboxPort)
	h.Del(api.HeaderTraffic)
	if port == envdPort || isKey(h.Get(api.HeaderKey)) {
		h.Del(api.HeaderKey)
	}
	if scheme, value, _ := strings.Cut(h.Get("Authorization"), " "); strings.EqualFold(scheme, "Bearer") && isKey(value) {
		h.Del("Authorization")
	}
	if port != envdPort {
		h.Del(api.HeaderAccessToken)
	}
}

// isKey reports whether text has the form of one of our keys.
func isKey(text string) bool {
	hex, ok := strings.CutPrefix(strings.TrimSpace(text), keyPrefix)
	return ok && len(hex) == 2*keyHexBytes && strings.Trim(hex, "0123456789abcdef") == ""
}

// errNotDialled marks the failures of reaching a port.
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
	conn, err := f.s.dialPort(ctx, *a)
	if err != nil {
		return nil, &dialError{err}
	}
	return conn, nil
}

// dialPort opens a connection to a port inside a sandbox.
func (s *Server) dialPort(ctx context.Context, a address) (net.Conn, error) {
	const op = "reach sandbox"
	var e providers.Endpoint
	if a.port == envdPort {
		sb, err := s.opts.Provider.Get(ctx, a.id)
		if err != nil {
			return nil, err
		}
		e = sb.Data
	} else {
		p, ok := s.opts.Provider.(providers.PortExposer)
		if !ok {
			return nil, errdefs.New("E8004", op, "ports are not supported by provider "+s.opts.Provider.Name())
		}
		var err error
		if e, err = p.Port(ctx, a.id, a.port); err != nil {
			return nil, err
		}
	}
	if e.Dial == nil {
		return nil, errdefs.New("E8004", op, "provider "+s.opts.Provider.Name()+" gives no connection to sandboxes")
	}
	return e.Dial(ctx)
}

// failed answers a request that did not get through.
func (f *forwarder) failed(w http.ResponseWriter, r *http.Request, err error) {
	rt := r.Context().Value(routeKey{}).(*route)
	if r.Context().Err() != nil {
		panic(http.ErrAbortHandler) // the client is gone
	}
	if isGone(err) {
		f.s.forget(rt.box, err)
		f.refuse(w, r, rt.address, http.StatusBadGateway, "The sandbox was not found", false)
		return
	}
	var d *dialError
	switch {
	case errdefs.CodeOf(err) == "E2024":
		f.refuse(w, r, rt.address, http.StatusBadGateway, "The sandbox is paused", false)
	case errors.As(err, &d) && rt.port != envdPort:
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
