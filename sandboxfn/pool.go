package sandboxfn

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/frame"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// poolKey says which functions share workers: those for which all of this is
// equal.
type poolKey struct {
	provider, template, image string
	cpu                       float64
	memory, disk              Bytes
	gpu                       string
	env                       string // sorted NAME=text lines
	secrets                   string // a keyed hash
	files                     string // a hash
	volumes                   string
	network                   string
	user, workdir             string
	concurrency               int
	fresh                     bool
	unit                      string // what the worker takes over
	instance                  string // what it holds beyond that
}

// instance is what the workers of a pool hold beyond their functions: an object
// of a class. Its hooks run in no other call of the worker's.
type instance struct {
	key    string  // class and encoded parameters
	object *object // whose instances they are

	// ready runs in a new worker, after its hello and before its first call,
	// under the startup timeout. When it fails the worker is ended, and so is
	// every call that waits for one.
	ready func(ctx context.Context, w *poolWorker) error

	// leave runs in a worker that is given up in order, before it is told to
	// end, within the grace of w.setup. One that is killed, or was lost, does
	// not run it.
	leave func(ctx context.Context, w *poolWorker) error
}

// slots is how many calls a worker of a pool takes at once.
func slots(concurrency int) int { return max(concurrency, 1) }

func (i *instance) poolKey() string {
	if i == nil {
		return ""
	}
	return i.key
}

// maker starts workers. A worker has a sandbox of its own, so that what one call
// leaves behind meets only later calls of the same worker.
type maker interface {
	start(ctx context.Context, s *setup, stdout, stderr func([]byte)) (*made, error)
}

// made is a worker that has been started but has not said hello.
type made struct {
	conn          net.Conn
	proc          workerHandle
	token, digest string
	sandbox       string                                                // its id; empty: there is none
	attach        func(*workerConn)                                     // tells the maker of the connection; may be nil
	end           func(context.Context) error                           // ends what holds the worker
	extend        func(context.Context) (next time.Duration, err error) // moves the end of that; nil: it has none
}

// poolSet holds the workers of a client, or of a test.
type poolSet struct {
	upkeep
	maker   maker
	log     *slog.Logger
	targets targets

	mu     sync.Mutex
	pools  map[poolKey]*pool // guarded by mu
	closed bool              // guarded by mu
}

func newPoolSet(c *Client) *poolSet { return newPools(newSandboxMaker(c), c.log) }

func newPools(m maker, log *slog.Logger) *poolSet {
	ps := &poolSet{maker: m, log: log, pools: map[poolKey]*pool{}}
	ps.upkeep.init()
	return ps
}

// of returns the pool for a key.
func (ps *poolSet) of(key poolKey) *pool {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p := ps.pools[key]
	if p == nil {
		p = &pool{set: ps, stock: newStock[*poolWorker](&ps.upkeep, slots(key.concurrency), errClientClosed)}
		p.started = p.watchNew
		p.closed = ps.closed
		ps.pools[key] = p
	}
	return p
}

// close ends all workers, and waits until they are gone or ctx ends. It reports
// what could not be cleaned up.
func (ps *poolSet) close(ctx context.Context) error {
	return ps.upkeep.close(ctx, func() {
		ps.mu.Lock()
		ps.closed = true
		pools := ps.pools
		ps.pools = map[poolKey]*pool{}
		ps.mu.Unlock()
		for _, p := range pools {
			p.close()
		}
	})
}

// poolKey is the key of the pool whose workers can run s, under c or, where c is
// nil, as processes. A secret that is missing is an error.
func (s *setup) poolKey(ctx context.Context, c *Client) (poolKey, error) {
	o := &s.opts
	provider := o.Provider
	s.secrets = Environment{}
	if c != nil {
		s.secrets = c.opts.Secrets
		if provider == "" {
			provider = c.Provider()
		}
	}
	values, err := s.resolveSecrets(ctx)
	if err != nil {
		return poolKey{}, err
	}
	files, err := hashMounts(o.Files)
	if err != nil {
		return poolKey{}, errdefs.Wrap("E2011", s.name, "option Files", err)
	}
	return poolKey{
		provider: provider, template: o.Template, image: o.Image,
		cpu: o.CPU, memory: o.Memory, disk: o.Disk, gpu: o.GPU,
		env: envText(o.Env), secrets: hashSecrets(values), files: files, volumes: volumesText(o.Volumes),
		network: o.Network, user: o.User, workdir: o.WorkDir,
		concurrency: o.Concurrency, fresh: o.Fresh, unit: s.unit, instance: s.instance.poolKey(),
	}, nil
}

// pool holds the workers for one key.
type pool struct {
	set *poolSet
	*stock[*poolWorker]

	only *poolWorker // the one a pinned object is bound to; guarded by the mutex of the stock
}

// poolWorker is a worker of a pool.
type poolWorker struct {
	*workerConn
	pool  *pool
	setup *setup // of the call it was started for
	made  *made
	st    stockState

	over   chan struct{} // closed when it has been ended
	endErr error         // what went wrong then; valid after over

	outMu          sync.Mutex
	stdout, stderr *target // where its output goes; guarded by outMu
}

func (w *poolWorker) state() *stockState { return &w.st }

func (w *poolWorker) alive() bool {
	select {
	case <-w.proc.done():
		return false
	default:
		return true
	}
}

// get returns a worker with a free slot, and starts one when there is none and
// may be more. Queueing and starting end with ctx.
//
// A nested call may have as many workers again as are allowed, for each call
// that it is nested in: those hold workers while they wait for it.
func (p *pool) get(ctx context.Context, s *setup) (*poolWorker, error) {
	o := p.orderOf(s)
	if n := depthOf(ctx); n > 0 {
		deep := *o
		deep.depth, deep.max = n, o.max*(n+1)
		o = &deep
	}
	return p.stock.get(ctx, o)
}

// orderOf is what s asks of its pool.
func (p *pool) orderOf(s *setup) *order[*poolWorker] {
	s.ordered.Do(func() {
		s.order = order[*poolWorker]{
			terms: termsOf(&s.opts),
			start: func(ctx context.Context) (*poolWorker, error) { return p.startFor(ctx, s) },
			ended: func(ctx context.Context) error { return ended(ctx, s.name, "while waiting for a worker") },
			everyone: func(err error) bool {
				step, ok := errors.AsType[*stepError](err)
				return ok && step.step == stepEnter || s.instance.isPinned()
			},
		}
	})
	return &s.order
}

// startFor starts a worker. A pinned object has one: its state is not made anew.
func (p *pool) startFor(ctx context.Context, s *setup) (*poolWorker, error) {
	if !s.instance.isPinned() {
		return p.launch(ctx, s)
	}
	p.mu.Lock()
	only := p.only
	p.mu.Unlock()
	if only != nil {
		return nil, only.isLost(s.name)
	}
	w, err := p.launch(ctx, s)
	if err == nil {
		p.mu.Lock()
		p.only = w
		p.mu.Unlock()
	}
	return w, err
}

func termsOf(o *Options) terms {
	t := terms{min: o.Workers.Min, max: o.Workers.Max, spare: o.Spare, idle: o.Idle}
	if o.Fresh {
		t.uses = 1
	}
	return t
}

// watchNew begins the watch over a worker. The stock is locked.
func (p *pool) watchNew(w *poolWorker) {
	// Without it the client is being closed, and the worker is ended with it.
	p.set.spawn(func() { p.watch(w) })
}

// watch waits for the end of a worker, and keeps what holds it alive until
// then.
func (p *pool) watch(w *poolWorker) {
	keepAlive(p.set.life, w.proc.done(), p.set.log, w.made.extend)
	w.discard()
}

// keepAlive moves the end of a sandbox, each time that extend says, until done.
// A nil extend only waits.
func keepAlive(life context.Context, done <-chan struct{}, log *slog.Logger, extend func(context.Context) (time.Duration, error)) {
	var due <-chan time.Time
	ctx, cancel := context.WithCancel(life)
	defer cancel()
	for {
		if extend != nil {
			d, err := extend(ctx)
			if err != nil && ctx.Err() == nil {
				log.Warn("lifetime of a sandbox not extended", "err", err)
				d = time.Minute
			}
			due = nil
			if d > 0 {
				due = time.After(d)
			}
		}
		select {
		case <-done:
			return
		case <-due:
		}
	}
}

// release gives the worker's slot to a call that waits, or keeps it for the
// next.
func (w *poolWorker) release(s *setup) { w.pool.release(w, termsOf(&s.opts)) }

// drain gives the slot back and ends the worker when its other calls have
// returned.
func (w *poolWorker) drain() { w.pool.drain(w) }

// discard ends the worker, in the background, whatever runs in it: its other
// calls are lost. A call that waits gets another.
func (w *poolWorker) discard() { w.pool.giveUp(w, false) }

// end ends the worker, with everything it has started, and what holds it. It has
// no context of a call: those may have ended, and nothing may be left behind.
func (w *poolWorker) end(orderly bool) {
	p := w.pool
	defer close(w.over)
	if i := w.setup.instance; i != nil && i.leave != nil && orderly && w.setup.opts.Grace > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), w.setup.opts.Grace)
		if err := i.leave(ctx, w); err != nil {
			p.set.log.Warn("instance not left in order", "err", err)
			p.set.note(err)
			w.endErr = err
		}
		cancel()
	}
	ctx, cancel := context.WithTimeout(context.Background(), killTimeout)
	defer cancel()
	w.conn.SetWriteDeadline(time.Now().Add(byeTime))
	w.w.Write(&frame.Message{Type: frame.Bye})
	w.proc.close()
	if err := w.made.end(ctx); err != nil {
		p.set.log.Warn("worker's sandbox not ended", "err", err)
		p.set.note(err)
		w.endErr = errors.Join(w.endErr, err)
	}
	w.out.close()
	w.err.close()
	for _, t := range []*target{w.stdout, w.stderr} {
		if t != nil {
			w.pool.set.targets.put(t)
		}
	}
}

// byeTime bounds how long a worker is given to take the last message.
const byeTime = 100 * time.Millisecond
