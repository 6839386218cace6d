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
		p = &pool{set: ps, key: key, stock: newStock[*poolWorker](&ps.upkeep, slots(key.concurrency), errClientClosed)}
		p.started, p.emptied = p.watchNew, p.retire
		p.closed = ps.closed
		ps.pools[key] = p
	}
	return p
}

// retire removes the pool from its set when nothing is left in it. Setups that
// are kept still have it, see reopen.
func (p *pool) retire() {
	p.set.mu.Lock()
	defer p.set.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.retireLocked() && p.set.pools[p.key] == p {
		delete(p.set.pools, p.key)
	}
}

// reopen returns the pool for the key of p: p itself again, which was retired,
// unless another has been made in the meantime.
func (p *pool) reopen() *pool {
	p.set.mu.Lock()
	defer p.set.mu.Unlock()
	if q := p.set.pools[p.key]; q != nil {
		return q
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.retired, p.closed = false, p.closed || p.set.closed
	p.set.pools[p.key] = p
	return p
}

// current is the pool for the key of p that has workers, if any has.
func (p *pool) current() *pool {
	p.set.mu.Lock()
	defer p.set.mu.Unlock()
	if q := p.set.pools[p.key]; q != nil {
		return q
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
		if provider == "" {
			provider = c.Provider()
		}
		s.secrets = guardedSecrets{c, provider}
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

// pool holds the workers for one key. It is in its set as long as there are any,
// or somebody waits for one.
type pool struct {
	set *poolSet
	key poolKey
	*stock[*poolWorker]

	// Of a pinned object, guarded by the mutex of the stock.
	only *poolWorker // the one it is bound to
	shut bool        // the object is closed
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
	outEnded       bool    // guarded by outMu; they are given back
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
// that it is nested in: those hold workers while they wait for it. The one
// worker of a pinned object stays the only one.
func (p *pool) get(ctx context.Context, s *setup) (*poolWorker, error) {
	for {
		o := p.orderOf(s)
		n, closed := depthOf(ctx), s.instance.isClosed()
		if n > 0 || closed {
			own := *o
			own.depth = n
			if !s.instance.isPinned() {
				own.max = o.max * (n + 1)
			}
			if closed {
				own.min, own.spare = 0, 0
			}
			o = &own
		}
		w, err := p.stock.get(ctx, o)
		if err != errRetired {
			return w, err
		}
		p = p.reopen()
	}
}

// orderOf is what s asks of a pool: its own, or one that has taken the place of
// that.
func (p *pool) orderOf(s *setup) *order[*poolWorker] {
	if p != s.pool {
		o := p.newOrder(s)
		return &o
	}
	s.ordered.Do(func() { s.order = p.newOrder(s) })
	return &s.order
}

func (p *pool) newOrder(s *setup) order[*poolWorker] {
	return order[*poolWorker]{
		terms: termsOf(&s.opts),
		start: func(ctx context.Context) (*poolWorker, error) { return p.startFor(ctx, s) },
		ended: func(ctx context.Context) error { return ended(ctx, s.name, "while waiting for a worker") },
		everyone: func(err error) bool {
			step, ok := errors.AsType[*stepError](err)
			return ok && step.step == stepEnter || s.instance.isPinned()
		},
	}
}

// startFor starts a worker. A pinned object has one: its state is not made anew.
func (p *pool) startFor(ctx context.Context, s *setup) (*poolWorker, error) {
	if !s.instance.isPinned() {
		return p.launch(ctx, s)
	}
	p.mu.Lock()
	only, shut := p.only, p.shut
	p.mu.Unlock()
	if shut {
		return nil, closedObject(s.name)
	}
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
	w.readOut(p.set.life)
	w.discard()
}

// readOutTime bounds how long what a worker has sent before its end may take to be
// read. Its calls see the end of the connection at once, unless something that it
// has started still holds it.
const readOutTime = 2 * time.Second

// readOut waits until the calls of a worker that has ended have read what it sent
// before: its last records, perhaps a result.
func (w *workerConn) readOut(life context.Context) {
	for end := time.Now().Add(readOutTime); w.calls() > 0 && life.Err() == nil && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
}

func (w *workerConn) calls() int {
	w.hmu.Lock()
	defer w.hmu.Unlock()
	return len(w.hosts)
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
// next. A call that was about to begin when its object was closed leaves no
// worker behind.
func (w *poolWorker) release(s *setup) {
	if s.instance.isClosed() {
		w.pool.clear()
	}
	w.pool.release(w, termsOf(&s.opts))
}

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
	w.outMu.Lock()
	defer w.outMu.Unlock()
	w.outEnded = true // a call that has got the worker may be about to begin
	for _, t := range []*target{w.stdout, w.stderr} {
		if t != nil {
			w.pool.set.targets.put(t)
		}
	}
}

// byeTime bounds how long a worker is given to take the last message.
const byeTime = 100 * time.Millisecond
