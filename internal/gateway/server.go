package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/netrule"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// Limits on what a client may send and how long it may take.
const (
	maxHeaderBytes = 64 << 10
	headerTimeout  = 10 * time.Second // until the header of a request is complete
	idleTimeout    = 3 * time.Minute  // of a connection between requests
)

// marks are the keys of the metadata by which the gateway knows its own
// sandboxes at the provider. What clients call metadata is never there.
const (
	markGateway = "sandboxd.gateway"
	markRequest = "sandboxd.request"
)

// Options say what a [Server] serves. Provider and StateDir are required.
type Options struct {
	Provider providers.Provider // makes the sandboxes; stays the caller's to close
	StateDir string             // absolute; the gateway alone writes there
	Domain   string             // answered to clients as the domain of sandboxes; empty: theirs

	// Network is what sandboxes reach: "loopback" (default), "none" or "host";
	// "list": loopback, and what a creation lists; or rules, separated by commas,
	// which are also the most that a creation can list.
	Network string

	// MaxLifetime is the longest time from a start to the end; zero: 24 hours.
	MaxLifetime time.Duration

	// Templates are further names of templates, by the provider's name for
	// them. "base" and "" are always there.
	Templates map[string]string

	MaxSandboxes   int // at one time, of all keys; zero: 1000
	MaxConnections int // of clients, at one time; zero: what the descriptor limit allows

	Logger *slog.Logger // nil discards

	testOnlyClock time.Duration // when set, instead of the clocks for slow clients
}

// Server is a control plane and the way to its sandboxes. It is safe for
// concurrent use.
type Server struct {
	opts  Options
	log   *slog.Logger
	store *store
	keys  *Keys
	rules netrule.List // of opts.Network; nil when that is a word

	handler http.Handler
	http    *http.Server
	forward *forwarder
	limits  limits
	conns   *connections

	standing *standing

	mu       sync.Mutex
	boxes    map[string]*box // guarded by mu
	ended    ended           // guarded by mu
	creating int             // guarded by mu
	closed   bool            // nothing new begins; guarded by mu

	ctx  context.Context // of work that no request waits for
	stop context.CancelFunc
	wg   sync.WaitGroup
}

// New opens the state directory, finds the sandboxes of the time before and
// returns a server that does not listen yet. A directory that another gateway
// uses is E8007.
func New(o *Options) (*Server, error) {
	const op = "start gateway"
	if o == nil || o.Provider == nil {
		return nil, errdefs.New("E8007", op, "no provider")
	}
	s := &Server{opts: *o, log: o.Logger, boxes: map[string]*box{}}
	s.opts.Templates = maps.Clone(o.Templates)
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.opts.MaxLifetime == 0 {
		s.opts.MaxLifetime = 24 * time.Hour
	}
	if s.opts.MaxLifetime < time.Second || s.opts.MaxLifetime > keepPaused {
		return nil, errdefs.New("E8007", op, fmt.Sprintf("maximum lifetime %v is not between 1s and %v", s.opts.MaxLifetime, keepPaused))
	}
	if s.opts.MaxSandboxes == 0 {
		s.opts.MaxSandboxes = 1000
	}
	switch s.opts.Network {
	case "":
		s.opts.Network = "loopback"
	case "loopback", "none", "host", "list":
	default:
		rules, err := netrule.ParseList(strings.Split(s.opts.Network, ","))
		if err != nil || !strings.ContainsAny(s.opts.Network, ".:") {
			return nil, errdefs.New("E8007", op, fmt.Sprintf("network %q is not loopback, none, host, list or rules: %v", s.opts.Network, err))
		}
		s.rules = rules
	}
	s.opts.Domain = strings.Trim(strings.ToLower(s.opts.Domain), ".")
	var err error
	if s.store, err = openStore(o.StateDir); err != nil {
		return nil, err
	}
	s.ctx, s.stop = context.WithCancel(context.Background()) // ends with Shutdown
	if s.keys, err = OpenKeys(o.StateDir); err == nil {
		err = s.recover()
	}
	if err != nil {
		s.stop()
		s.stopTimers()
		s.store.close()
		return nil, err
	}
	s.limits = fileLimits()
	if o.MaxConnections > 0 {
		s.limits.conns = o.MaxConnections
	}
	s.conns = newConnections(s.limits.conns)
	s.forward = newForwarder(s)
	s.standing = newStanding(s)
	s.handler = s.routes()
	s.http = &http.Server{
		Handler:           s.handler,
		ReadHeaderTimeout: s.clock(headerTimeout),
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
		ConnState:         s.conns.state,
		ConnContext:       s.conns.context,
	}
	if meter, ok := o.Provider.(providers.Meter); ok {
		s.wg.Go(func() { s.sample(s.ctx, meter) })
	}
	return s, nil
}

// clock is one of the clocks for slow clients.
func (s *Server) clock(d time.Duration) time.Duration {
	if s.opts.testOnlyClock > 0 {
		return s.opts.testOnlyClock
	}
	return d
}

// Keys are the API keys of the server's state directory.
func (s *Server) Keys() *Keys { return s.keys }

// Handler is the whole service.
func (s *Server) Handler() http.Handler { return s.handler }

// Serve answers connections of l until Shutdown; it returns nil then. It closes
// l. It may be called for several listeners.
func (s *Server) Serve(l net.Listener) error {
	if err := s.http.Serve(limitListener{l, s.conns}); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Shutdown takes no more requests, waits for those under way until ctx ends and
// cuts the rest. The sandboxes live on; another server on the same state
// directory goes on with them.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true // from now on enter refuses, so that Wait sees all there are
	s.mu.Unlock()
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = s.http.Close()
	}
	s.stopTimers()
	s.stop()
	for _, b := range s.all() {
		b.cutAll(errShutdown) // also what has changed to another protocol
	}
	s.wg.Wait()
	s.endStanding(ctx)
	s.forward.close()
	s.store.close()
	return err
}

// enter begins something that Shutdown waits for; it ends with wg.Done. It
// reports false after Shutdown.
func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.wg.Add(1)
	return true
}

var errShutdown = errors.New("the gateway is shutting down")

func (s *Server) stopTimers() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.boxes {
		b.mu.Lock()
		if b.timer != nil {
			b.timer.Stop()
		}
		b.mu.Unlock()
	}
}

// routes joins the two planes: what names a sandbox goes there, the rest is
// the control plane.
func (s *Server) routes() http.Handler {
	control := s.authenticate(s.controlRoutes())
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !s.enter() {
			w.Header().Set("Connection", "close")
			fail(w, refuse(http.StatusServiceUnavailable, "", "the gateway is shutting down"))
			return
		}
		defer s.wg.Done()
		defer s.conns.serve(r.Context())()
		// That of an answer before, on this connection.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Time{})
		if r.Method == http.MethodConnect || r.URL.User != nil {
			http.Error(w, "malformed request", http.StatusBadRequest)
			return
		}
		a, err := addressOf(r, s.opts.Domain)
		switch {
		case err != nil:
			http.Error(w, err.Error(), http.StatusBadRequest)
		case a != nil:
			s.forward.serve(w, r, *a)
		case isSigned(r):
			s.forwardSigned(w, r)
		default:
			control.ServeHTTP(w, r)
		}
	})
}
