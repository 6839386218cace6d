package sandboxfn

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// PoolOptions say which sandboxes a [Pool] holds. The zero value is a pool of
// sandboxes with default settings, each of which is used once.
type PoolOptions struct {
	Client *Client       // that creates them; nil: the default one
	Create CreateOptions // what each is like; Detached, RequestID and Lifetime must not be set: the pool decides about the end

	Min   int           // made by NewPool and kept; default 0
	Max   int           // at once, those in use included; default 16
	Spare int           // kept idle beyond those in use, while Max allows it; default 0
	Idle  time.Duration // one that is idle for longer, beyond Min and Spare, is ended; default 60s, NoIdle: at once

	// MaxUses is how often a sandbox is handed out; default 1. What a user leaves
	// behind (files, processes that detached themselves, memory of servers) meets
	// the next one, unless Reset removes it. Zero means 1; NoLimit: until MaxAge.
	MaxUses int
	MaxAge  time.Duration // one that is older is not handed out any more, and ended when it is idle; at least 1s; default: no limit

	// StartTimeout bounds creation and Prepare together; default 60s.
	StartTimeout time.Duration

	// Prepare runs in each new sandbox before it is handed out. When it fails the
	// sandbox is ended, and Get returns the error.
	Prepare func(ctx context.Context, sb *Sandbox) error

	// Reset runs, in the background, when a sandbox comes back that will be
	// handed out again. When it fails the sandbox is ended. Nil: nothing is reset.
	Reset func(ctx context.Context, sb *Sandbox) error

	// Check runs before a sandbox that was idle is handed out; one for which it
	// fails is ended, and Get takes another. Nil: the sandbox must answer. Reset
	// and Check have 10 s.
	Check func(ctx context.Context, sb *Sandbox) error

	Logger *slog.Logger // nil: the client's
}

// NoLimit as [PoolOptions.MaxUses] lets sandboxes be used without end.
const NoLimit = -1

// Pool keeps sandboxes ready for programs that run commands in them. It is safe
// for concurrent use. Functions have pools of their own, see [Options].
type Pool struct {
	care   upkeep
	stock  *stock[*pooled]
	order  order[*pooled]
	opts   PoolOptions // with defaults
	client *Client
	log    *slog.Logger
}

// PoolStats count what a pool has done and show what it holds.
type PoolStats struct {
	Hits, Misses       int // calls of Get that found a sandbox ready, and that had to wait for one
	Created, Discarded int // sandboxes
	Idle, InUse        int // at this moment
}

// HitRate is the part of calls of Get that found a sandbox ready; zero without
// any.
func (s PoolStats) HitRate() float64 {
	if s.Hits+s.Misses == 0 {
		return 0
	}
	return float64(s.Hits) / float64(s.Hits+s.Misses)
}

// Bounds of what a pool does on its own.
const (
	checkTime = 10 * time.Second
	freshTime = time.Second // one that has answered so lately is not checked
)

// NewPool makes a pool and begins to fill it; it does not wait for that. A nil o
// means all defaults; it is copied. Errors: [ErrOption].
func NewPool(o *PoolOptions) (*Pool, error) {
	opts, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	p := &Pool{opts: opts, client: opts.Client, log: opts.Logger}
	if p.client == nil {
		if p.client, err = DefaultClient(); err != nil {
			return nil, err
		}
	}
	if p.log == nil {
		p.log = p.client.log
	}
	p.care.init()
	p.stock = newStock[*pooled](&p.care, 1, errPoolClosed)
	p.stock.started = func(x *pooled) {
		p.care.spawn(func() {
			keepAlive(p.care.life, x.sb.life.Done(), p.log, func(ctx context.Context) (time.Duration, error) { return extend(ctx, x.sb) })
			p.stock.giveUp(x, false)
		})
	}
	p.order = order[*pooled]{
		terms: terms{min: opts.Min, max: opts.Max, spare: opts.Spare, idle: opts.Idle, age: opts.MaxAge, uses: max(opts.MaxUses, 0)},
		start: p.start,
		ended: func(ctx context.Context) error { return contextError(ctx, "wait for a sandbox of the pool") },
	}
	p.stock.begin(&p.order)
	return p, nil
}

func errPoolClosed() error { return errdefs.New("E2000", "use pool", "the pool is closed") }

// withDefaults returns a private copy of o, checked, with every unset field
// filled in.
func (o *PoolOptions) withDefaults() (PoolOptions, error) {
	var v PoolOptions
	if o != nil {
		v = *o
	}
	none(&v.Max, 0, 16)
	none(&v.Idle, NoIdle, time.Minute)
	none(&v.MaxUses, 0, 1)
	none(&v.StartTimeout, 0, time.Minute)
	bad := func(format string, args ...any) (PoolOptions, error) {
		return v, errdefs.New("E2011", "make pool", fmt.Sprintf(format, args...))
	}
	switch {
	case v.Create.Detached || v.Create.RequestID != "" || v.Create.Lifetime != 0:
		return bad("option Create: Detached, RequestID and Lifetime are the pool's")
	case v.Min < 0 || v.Max < 1 || v.Max > 1000 || v.Min > v.Max:
		return bad("options Min and Max: %d..%d needs 0 <= Min <= Max and 1 <= Max <= 1000", v.Min, v.Max)
	case v.Spare < 0 || v.Spare > 1000:
		return bad("option Spare: %d is out of range 0..1000", v.Spare)
	case v.Idle < 0 || v.MaxAge < 0 || v.StartTimeout < 0:
		return bad("options Idle, MaxAge and StartTimeout can't be negative")
	case v.MaxAge > 0 && v.MaxAge < time.Second:
		return bad("option MaxAge: %v is below the minimum of 1s", v.MaxAge)
	case v.MaxUses < NoLimit:
		return bad("option MaxUses: %d is negative", v.MaxUses)
	}
	return v, nil
}

// Get takes a sandbox out of the pool: one that is ready, else a new one, else
// the next one that comes back. It is the caller's alone until its Close, which
// ends the commands that still run and gives it back; the handle is of no use
// then. Errors: those of [Client.Create] and of Prepare, and E5002 or E5004 when
// ctx ends first.
func (p *Pool) Get(ctx context.Context) (*Sandbox, error) {
	for {
		x, err := p.stock.get(ctx, &p.order)
		if err != nil {
			return nil, err
		}
		err = p.check(ctx, x)
		switch {
		case err == nil:
			return p.lend(x), nil
		case ctx.Err() != nil: // that is not the sandbox's fault
			p.stock.unused(x, p.order.terms)
			return nil, contextError(ctx, "check sandbox of the pool")
		}
		p.log.DebugContext(ctx, "sandbox of a pool does not pass its check", "sandbox_id", x.sb.id, "err", err)
		p.stock.giveUp(x, false)
	}
}

// Put gives back a sandbox that [Pool.Get] returned. It is its Close.
func (p *Pool) Put(sb *Sandbox) error { return sb.Close() }

// Stats returns what the pool has done, and holds.
func (p *Pool) Stats() PoolStats {
	p.stock.mu.Lock()
	defer p.stock.mu.Unlock()
	c := p.stock.counts
	return PoolStats{
		Hits: c.hits, Misses: c.misses, Created: c.created, Discarded: c.ended,
		Idle: len(p.stock.idle), InUse: len(p.stock.all) - len(p.stock.idle),
	}
}

// Close ends all sandboxes of the pool, those in use too; calls of Get that wait
// fail. It takes at most 30 s, reports what could not be cleaned up, and is
// idempotent.
func (p *Pool) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), killTimeout)
	defer cancel()
	return p.care.close(ctx, p.stock.close)
}

func (p *Pool) start(ctx context.Context) (*pooled, error) {
	const op = "start sandbox of the pool"
	ctx, cancel := context.WithTimeoutCause(ctx, p.opts.StartTimeout,
		&Error{Code: "E5002", Op: op, Message: "not ready within " + p.opts.StartTimeout.String() + " (StartTimeout)"})
	defer cancel()
	create := p.opts.Create
	sb, err := p.client.Create(ctx, &create)
	if err == nil && p.opts.Prepare != nil {
		if err = p.opts.Prepare(ctx, sb); err != nil {
			err = errors.Join(err, sb.Close())
		}
	}
	if err != nil {
		if late, ok := context.Cause(ctx).(*Error); ok {
			return nil, errdefs.Wrap(late.Code, late.Op, late.Message, err)
		}
		return nil, err
	}
	return &pooled{pool: p, sb: sb, seen: time.Now()}, nil
}

func (p *Pool) check(ctx context.Context, x *pooled) error {
	if err := x.sb.usable(); err != nil {
		return err
	}
	if p.opts.Check == nil && time.Since(x.seen) < freshTime {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	var err error
	if p.opts.Check != nil {
		err = p.opts.Check(ctx, x.sb)
	} else {
		_, err = x.sb.FS(ctx).Stat("/")
	}
	if err == nil {
		x.seen = time.Now()
	}
	return err
}

// lend returns a handle for one use of a sandbox. It ends with its Close, or with
// the sandbox.
func (p *Pool) lend(x *pooled) *Sandbox {
	sb := x.sb
	h := &Sandbox{
		client: sb.client, provider: sb.provider, id: sb.id, state: sb.state, channels: sb.channels, near: sb.near, limits: sb.limits, options: sb.options,
		envd: sb.envd, log: sb.log, giveBack: func(why error) error { return p.takeBack(x, why) },
	}
	h.life, h.end = context.WithCancelCause(sb.life)
	return h
}

// takeBack takes a sandbox back; broken says that it is of no use any more.
func (p *Pool) takeBack(x *pooled, broken error) error {
	if broken != nil {
		p.stock.giveUp(x, false)
		return nil
	}
	x.seen = time.Now()
	reset := func() {
		ctx, cancel := context.WithTimeout(p.care.life, checkTime)
		defer cancel()
		if err := p.opts.Reset(ctx, x.sb); err != nil {
			p.log.Warn("sandbox of a pool not reset", "sandbox_id", x.sb.id, "err", err)
			p.stock.giveUp(x, false)
			return
		}
		p.stock.release(x, p.order.terms)
	}
	if p.opts.Reset == nil || p.stock.lastUse(x, p.order.terms) || !p.care.spawn(reset) {
		p.stock.release(x, p.order.terms)
	}
	return nil
}

// pooled is a sandbox of a pool.
type pooled struct {
	pool *Pool
	sb   *Sandbox
	st   stockState
	seen time.Time // when it last answered; used by who has it
}

func (x *pooled) state() *stockState { return &x.st }
func (x *pooled) alive() bool        { return x.sb.usable() == nil }

func (x *pooled) end(bool) {
	if err := x.sb.Close(); err != nil {
		x.pool.log.Warn("sandbox of a pool not ended", "sandbox_id", x.sb.id, "err", err)
		x.pool.care.note(err)
	}
}
