//go:build linux

package code

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/agent-sandbox/sandbox-go/runtime/account"
	"github.com/agent-sandbox/sandbox-go/runtime/code/drivers"
	"github.com/agent-sandbox/sandbox-go/runtime/fault"
	"github.com/agent-sandbox/sandbox-go/runtime/process"
	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// Options says how a [Service] runs.
type Options struct {
	Process     *process.Service // starts the processes of contexts; required
	Users       *account.Book    // who requests may act as; required
	Interpreter model.Interpreter
	Logger      *slog.Logger // nil discards
}

// Service holds the contexts of a sandbox. It is safe for concurrent use.
type Service struct {
	opts   Options
	folder folder
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup
	grace  time.Duration // from an interrupt to SIGKILL
	beat   time.Duration // of keepalive events

	mu       sync.Mutex
	contexts map[string]*Context // guarded by mu; by id
	shared   map[shared]*Context // guarded by mu; the default contexts
	closed   bool                // guarded by mu
}

// shared is what a default context is found by.
type shared struct{ user, language string }

// New returns a service without contexts. [Service.Close] ends it.
func New(o Options) *Service {
	if o.Interpreter.MaxContexts <= 0 {
		o.Interpreter.MaxContexts = drivers.MaxContexts
	}
	if o.Interpreter.IdleTimeout <= 0 {
		o.Interpreter.IdleTimeout = drivers.IdleTimeout
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Service{
		opts: o, grace: drivers.DefaultGrace, beat: drivers.DefaultBeat,
		contexts: map[string]*Context{}, shared: map[shared]*Context{},
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// Close ends all contexts and returns when nothing of them is left. It is to be
// called after the process service was shut down, or kills the processes itself.
func (s *Service) Close() {
	s.mu.Lock()
	s.closed = true
	var all []*Context
	for _, c := range s.contexts {
		all = append(all, c)
	}
	s.mu.Unlock()
	for _, c := range all {
		s.drop(c, "the server is shutting down")
	}
	s.cancel()
	s.wg.Wait()
	s.folder.remove()
}

// Context keeps the state of one interpreter.
type Context struct {
	ID       string
	Language string
	Dir      string // working directory at its start

	lang   drivers.Language
	user   *account.User
	shared bool
	turn   chan struct{} // holds one value while a cell runs

	mu    sync.Mutex
	eng   *drivers.Engine // guarded by mu; nil: not started, or it died
	lost  bool            // guarded by mu; an engine died, and nobody was told yet
	gone  bool            // guarded by mu; it was removed
	users int             // guarded by mu; cells that run or wait
	idle  *time.Timer     // guarded by mu
}

// Failure is why a request cannot be served: the status and the code of the
// error table that go with it.
type Failure struct {
	Status int
	Code   string
	Text   string
}

func (f *Failure) Error() string { return f.Text }

func fail(status int, code, format string, args ...any) error {
	return &Failure{status, code, fmt.Sprintf(format, args...)}
}

// Create makes a context and starts its process, as the user of ctx. An empty
// language is Python, an empty dir the user's home.
func (s *Service) Create(ctx context.Context, lang, dir string) (*Context, error) {
	c, err := s.add(ctx, drivers.Canonical(lang), dir, false)
	if err != nil {
		return nil, err
	}
	if err := s.acquire(ctx, c); err != nil {
		s.drop(c, "")
		return nil, err
	}
	defer c.release(s)
	if _, _, err := s.engine(ctx, c); err != nil {
		s.drop(c, "")
		return nil, err
	}
	return c, nil
}

func (s *Service) add(ctx context.Context, lang, dir string, isShared bool) (*Context, error) {
	l, ok := s.find(lang)
	if !ok {
		return nil, fail(400, "E3011", "unsupported language %q: the sandbox has %s", lang, strings.Join(s.names(), ", "))
	}
	u := account.FromContext(ctx)
	dir, err := u.Path(dir, "")
	if err != nil {
		return nil, fail(400, "E3012", "working directory: %v", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key := shared{u.Name, lang}
	switch c := s.shared[key]; {
	case s.closed:
		return nil, fail(503, "", "server is shutting down")
	case isShared && c != nil:
		return c, nil
	case len(s.contexts) >= s.opts.Interpreter.MaxContexts:
		return nil, fail(429, "E3000", "too many contexts: at most %d; remove one first", s.opts.Interpreter.MaxContexts)
	}
	c := &Context{ID: drivers.NewID(), Language: lang, Dir: dir, lang: l, user: u, shared: isShared, turn: make(chan struct{}, 1)}
	s.contexts[c.ID] = c
	if isShared {
		s.shared[key] = c
	}
	c.mu.Lock()
	c.idle = time.AfterFunc(s.opts.Interpreter.IdleTimeout, func() { s.expire(c) })
	c.mu.Unlock()
	return c, nil
}

// List returns the contexts, ordered by id.
func (s *Service) List() []*Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*Context
	for _, c := range s.contexts {
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b *Context) int { return strings.Compare(a.ID, b.ID) })
	return out
}

func (s *Service) get(id string) (*Context, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.contexts[id]; c != nil {
		return c, nil
	}
	return nil, noContext(id)
}

func noContext(id string) error { return fail(404, "E3010", "Context %s not found", id) }

// Remove ends a context. A cell that runs ends with it.
func (s *Service) Remove(id string) error {
	c, err := s.get(id)
	if err != nil {
		return err
	}
	s.drop(c, "the context was removed")
	return nil
}

// Restart gives a context a new process, without the state of the old one. A cell
// that runs ends; those that wait run in the new process.
func (s *Service) Restart(ctx context.Context, id string) error {
	c, err := s.get(id)
	if err != nil {
		return err
	}
	c.end(s, "the context was restarted")
	if err := s.acquire(ctx, c); err != nil {
		return err
	}
	defer c.release(s)
	c.end(s, "the context was restarted")
	c.mu.Lock()
	c.lost = false // it was asked for
	c.mu.Unlock()
	_, _, err = s.engine(ctx, c)
	return err
}

// expire removes a context that was idle for too long.
func (s *Service) expire(c *Context) {
	c.mu.Lock()
	idle := c.users == 0 && !c.gone
	if idle {
		c.gone = true // no cell comes now
	}
	c.mu.Unlock()
	if idle {
		s.drop(c, "the context was idle for too long")
	}
}

// drop removes a context.
func (s *Service) drop(c *Context, why string) {
	s.mu.Lock()
	delete(s.contexts, c.ID)
	if key := (shared{c.user.Name, c.Language}); s.shared[key] == c {
		delete(s.shared, key)
	}
	s.mu.Unlock()
	c.mu.Lock()
	c.gone = true
	c.idle.Stop()
	c.mu.Unlock()
	c.end(s, why)
}

// end ends the process of a context, if there is one.
func (c *Context) end(s *Service, why string) {
	c.mu.Lock()
	e := c.eng
	c.eng = nil
	c.mu.Unlock()
	if e != nil {
		e.Kill(why)
		<-e.Over()
	}
}

// acquire waits until it is the caller's turn; calls wait in order.
func (s *Service) acquire(ctx context.Context, c *Context) error {
	if !c.enter() {
		return noContext(c.ID)
	}
	select {
	case c.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		c.leave(s.opts.Interpreter.IdleTimeout)
		return context.Cause(ctx)
	}
}

// enter keeps the context until leave. It reports false when it was removed.
func (c *Context) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone {
		return false
	}
	c.users++
	c.idle.Stop()
	return true
}

func (c *Context) leave(idle time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.users--
	if c.users == 0 && !c.gone {
		c.idle.Reset(idle)
	}
}

func (c *Context) release(s *Service) {
	<-c.turn
	c.leave(s.opts.Interpreter.IdleTimeout)
}

// engine returns the process of c, started when there is none. restarted reports
// that an earlier one had died. The caller has the turn.
func (s *Service) engine(ctx context.Context, c *Context) (e *drivers.Engine, restarted bool, err error) {
	c.mu.Lock()
	e = c.eng
	gone := c.gone
	c.mu.Unlock()
	switch {
	case gone:
		return nil, false, noContext(c.ID)
	case e != nil && !e.Dead():
		return e, false, nil
	case e != nil:
		c.mu.Lock()
		c.lost = true
		c.mu.Unlock()
	}
	e, err = s.start(account.NewContext(ctx, c.user), c.lang, c.ID, c.Dir)
	var coded *connect.Error
	var no *drivers.Refused
	switch {
	case errors.As(err, &no):
		return nil, false, fail(500, "E3016", "%s", no.Text)
	case errors.As(err, &coded) && coded.Code() == connect.CodeNotFound:
		return nil, false, fail(500, "E3016", "%s is not installed in this sandbox: install %s (%s)", c.Language, c.lang.Install, coded.Message())
	case errors.As(err, &coded):
		status, code, text := fault.Of(coded)
		switch code {
		case "E8020", "E8021": // the policy refuses the interpreter
		case "E3012": // the folder can't be used
			status = 400
		default:
			status = 500
		}
		return nil, false, fail(status, string(code), "%s", text)
	case err != nil && ctx.Err() != nil:
		return nil, false, err
	case err != nil:
		return nil, false, fail(500, "E3003", "%v", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone { // meanwhile
		s.wg.Go(func() { e.Kill("the context was removed") })
		return nil, false, fail(404, "E3010", "Context %s not found", c.ID)
	}
	c.eng = e
	restarted, c.lost = c.lost, false
	return e, restarted, nil
}
