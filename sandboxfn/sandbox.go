package sandboxfn

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/envd"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// Sandbox is a handle of one sandbox. It is safe for concurrent use.
//
// When the sandbox is gone, every method fails with the reason: [ErrExpired],
// [ErrKilled], [ErrCrashed], [ErrPaused] or [ErrNotFound]; a handle that has
// seen one of the first three does not try again.
type Sandbox struct {
	client   *Client
	provider providers.Provider
	id       string
	state    providers.Sandbox // as of creation or connection, without the endpoint
	channels bool              // the provider says that the runtime is ours
	near     bool              // it is on this machine
	limits   providers.TransportLimits
	created  bool           // Close kills
	options  *CreateOptions // of its creation; nil: not known
	detached bool
	giveBack func(broken error) error // of a handle that a pool has lent
	envd     *envd.Client
	log      *slog.Logger

	noChannels atomic.Bool // something on the way passes no upgrades

	// life is what clean-up and running commands run under: it has the values of
	// the creating context, and ends when the handle is closed.
	life context.Context
	end  context.CancelCauseFunc
	runs sync.WaitGroup // commands and workers

	closing sync.Mutex // held by Close
	done    bool       // guarded by closing

	mu     sync.Mutex
	gone   error // guarded by mu; why the handle is of no use any more
	asleep bool  // guarded by mu; it hibernates, so Close leaves it

	forwards forwards // of ports
	codes    drivenContexts
}

// newSandbox makes a handle from what a provider returned.
func (c *Client) newSandbox(ctx context.Context, p providers.Provider, s *providers.Sandbox, log *slog.Logger) (*Sandbox, error) {
	ec, err := envd.New(&envd.Options{
		URL: s.Data.URL, Headers: s.Data.Headers, Token: s.Data.Token.Reveal(), Dial: s.Data.Dial,
		RootCAs: s.Data.RootCAs, Ours: s.Data.Channels, RequestTimeout: c.opts.RequestTimeout, KeepAlive: c.opts.KeepAlive,
	})
	if err != nil {
		return nil, err
	}
	sb := &Sandbox{
		client: c, provider: p, id: s.ID, state: *s, channels: s.Data.Channels, limits: s.Data.Limits,
		near: s.Data.Channels || onLoopback(s.Data.URL), envd: ec, log: log.With("sandbox_id", s.ID),
	}
	sb.state.Data = providers.Endpoint{}
	sb.life, sb.end = context.WithCancelCause(context.WithoutCancel(ctx))
	return sb, nil
}

// adopt makes the client know sb, so that Client.Close ends it.
func (c *Client) adopt(sb *Sandbox) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return errClientClosed()
	}
	c.handles[sb] = struct{}{}
	return nil
}

// ID is the sandbox's id: opaque text, unique within its provider.
func (sb *Sandbox) ID() string { return sb.id }

// Provider is the name of the provider that made the sandbox.
func (sb *Sandbox) Provider() string { return sb.provider.Name() }

// Info describes the sandbox as the provider sees it now.
func (sb *Sandbox) Info(ctx context.Context) (*Info, error) {
	s, err := sb.provider.Get(ctx, sb.id)
	if err != nil {
		return nil, sb.note(sb.client.providerError(ctx, "describe sandbox", err))
	}
	return infoOf(s), nil
}

// SetLifetime moves the end of the sandbox to d from now, later or earlier, and
// returns the new end. Zero, negative or out of the provider's bounds is
// [ErrOption].
func (sb *Sandbox) SetLifetime(ctx context.Context, d time.Duration) (time.Time, error) {
	const op = "set lifetime"
	if err := checkLifetime(ctx, op, sb.provider, d, false); err != nil {
		return time.Time{}, err
	}
	s, err := sb.provider.SetLifetime(ctx, sb.id, d)
	if err != nil {
		return time.Time{}, sb.note(sb.client.providerError(ctx, op, err))
	}
	return s.ExpiresAt, nil
}

// Report says how the sandbox is isolated and what could not be enforced here.
// Providers that cannot say so: [ErrNotSupported].
func (sb *Sandbox) Report(ctx context.Context) (*Report, error) {
	r, ok := sb.provider.(providers.Reporter)
	if !ok {
		return nil, errdefs.New("E8004", "report isolation", "provider "+sb.provider.Name()+" does not report how it isolates")
	}
	rep, err := r.Report(ctx, sb.id)
	if err != nil {
		return nil, sb.note(sb.client.providerError(ctx, "report isolation", err))
	}
	return rep, nil
}

// Kill stops the sandbox and frees it, also one that was only connected to.
// One that is gone already is not an error.
func (sb *Sandbox) Kill(ctx context.Context) error {
	if err := sb.client.kill(ctx, sb.provider, sb.id); err != nil {
		return err
	}
	sb.retire(errdefs.New("E2022", "use sandbox "+sb.id, "it was killed through this handle"))
	return nil
}

// Close kills a sandbox that was created through this handle and detaches from
// one that was connected to, or hibernates; one that a [Pool] has lent goes back to it. Commands
// still running end. It works also after
// every context has ended, takes at most 30 s, and is idempotent: a Close that
// reported an error can be repeated.
func (sb *Sandbox) Close() error {
	sb.closing.Lock()
	defer sb.closing.Unlock()
	if sb.done {
		return nil
	}
	if sb.giveBack != nil {
		broken := sb.usable()
		sb.retire(errdefs.New("E5004", "use sandbox "+sb.id, "it was given back to its pool"))
		sb.finish()
		return sb.giveBack(broken)
	}
	if sb.kills() {
		sb.retire(errdefs.New("E2022", "use sandbox "+sb.id, "its handle was closed"))
		if err := sb.client.release(sb.life, sb.provider, sb.id); err != nil {
			return err
		}
	} else {
		sb.retire(errdefs.New("E5004", "use sandbox "+sb.id, "the handle was closed"))
	}
	sb.finish()
	return nil
}

// detach closes the handle without touching the sandbox.
func (sb *Sandbox) detach() {
	sb.closing.Lock()
	defer sb.closing.Unlock()
	if sb.done {
		return
	}
	sb.retire(errdefs.New("E5004", "use sandbox "+sb.id, "the client was closed"))
	sb.finish()
}

// finish ends what runs under the handle, waits for it and closes connections.
func (sb *Sandbox) finish() {
	sb.done = true
	sb.end(sb.usable())
	ended := make(chan struct{})
	go func() {
		sb.runs.Wait()
		if sb.giveBack == nil {
			sb.envd.Close()
		}
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(killTimeout): // a writer of the caller's own that never returns
		sb.log.Warn("commands did not end")
	}
	sb.client.mu.Lock()
	delete(sb.client.handles, sb)
	sb.client.mu.Unlock()
}

// enter counts something that runs under the handle, so that Close waits for
// it; leave must be called when it has ended.
func (sb *Sandbox) enter() (leave func(), err error) {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if sb.gone != nil {
		return nil, sb.gone
	}
	sb.runs.Add(1)
	return sb.runs.Done, nil
}

// usable is why the handle is of no use any more, or nil.
func (sb *Sandbox) usable() error {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	return sb.gone
}

// note remembers err when it says that the sandbox has ended, and returns it.
func (sb *Sandbox) note(err error) error {
	switch errdefs.CodeOf(err) {
	case "E2021", "E2022", "E2023":
		sb.retire(err)
	}
	return err
}

// retire makes err the answer of every later use of the handle.
func (sb *Sandbox) retire(err error) {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if sb.gone == nil {
		sb.gone = err
	}
}

// explain replaces a failure of the path to the sandbox by the reason, where
// the sandbox is gone: only the provider can tell. Other errors pass.
func (sb *Sandbox) explain(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if gone := sb.usable(); gone != nil {
		return gone
	}
	switch errdefs.CodeOf(err) {
	case "E5001", "E5002", "E5003":
	default:
		return err
	}
	if ctx.Err() != nil || sb.life.Err() != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	// A sandbox that ends closes its connections a moment before its end is on
	// record, so one "running" is not the last word.
	for wait := 10 * time.Millisecond; ; wait *= 2 {
		s, perr := sb.provider.Get(ctx, sb.id)
		switch {
		case perr != nil && (isGone(perr) || errors.Is(perr, ErrPaused)):
			return sb.note(perr)
		case perr != nil:
			return err
		case s.State == StatePaused:
			return &Error{Code: "E2024", Op: "use sandbox " + sb.id, Message: "it is paused", Err: unsaid{err}}
		case s.State == StateStopped:
			return sb.stopped(ctx, err)
		}
		if wait > 200*time.Millisecond {
			return err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return err
		}
	}
}

// unsaid is a cause that errors.Is and errors.As find and that adds nothing to
// the text: the error around it says what the failure comes from.
type unsaid struct{ err error }

func (unsaid) Error() string   { return "" }
func (u unsaid) Unwrap() error { return u.err }

// contextError says why ctx ended.
func contextError(ctx context.Context, op string) error { return envd.ContextError(ctx, op) }
