package sandboxfn

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/frame"
)

// poolKey says which functions share workers: those for which all of this is
// equal.
type poolKey struct {
	provider, template string
	cpu                float64
	memory, disk       Bytes
	env                string // sorted NAME=text lines
	network            string
	user, workdir      string
	unit               string // what the worker takes over
	instance           string // what it holds beyond that
}

// instance is what the workers of a pool hold beyond their functions: an object
// of a class. Its hooks run in no other call of the worker's.
type instance struct {
	key string // class and encoded parameters

	// ready runs in a new worker, after its hello and before its first call,
	// under the startup timeout. When it fails the worker is ended, and so is
	// every call that waits for one.
	ready func(ctx context.Context, w *poolWorker) error

	// leave runs in a worker that is given up in order, before it is told to
	// end, within the grace of w.setup. One that is killed, or was lost, does
	// not run it.
	leave func(ctx context.Context, w *poolWorker)
}

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
	end           func(context.Context) error                           // ends what holds the worker
	extend        func(context.Context) (next time.Duration, err error) // moves the end of that; nil: it has none
}

// poolSet holds the workers of a client, or of a test.
type poolSet struct {
	maker   maker
	log     *slog.Logger
	targets targets

	life context.Context // ends with the set
	stop context.CancelFunc
	wg   sync.WaitGroup // everything the set has started

	mu     sync.Mutex
	pools  map[poolKey]*pool // guarded by mu
	closed bool              // guarded by mu
	errs   []error           // guarded by mu; what could not be cleaned up
}

func newPoolSet(c *Client) *poolSet { return newPools(&sandboxMaker{c}, c.log) }

func newPools(m maker, log *slog.Logger) *poolSet {
	ps := &poolSet{maker: m, log: log, pools: map[poolKey]*pool{}}
	// Starts outlive the call that began them, up to the end of the set.
	ps.life, ps.stop = context.WithCancel(context.Background())
	return ps
}

// of returns the pool for a key.
func (ps *poolSet) of(key poolKey) *pool {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p := ps.pools[key]
	if p == nil {
		p = &pool{set: ps, workers: map[*poolWorker]struct{}{}, closed: ps.closed}
		ps.pools[key] = p
	}
	return p
}

// close ends all workers, and waits until they are gone or ctx ends. It reports
// what could not be cleaned up.
func (ps *poolSet) close(ctx context.Context) error {
	ps.mu.Lock()
	ps.closed = true
	pools := ps.pools
	ps.pools = map[poolKey]*pool{}
	ps.mu.Unlock()
	ps.stop()
	for _, p := range pools {
		p.close()
	}
	done := make(chan struct{})
	go func() {
		ps.wg.Wait()
		close(done)
	}()
	var err error
	select {
	case <-done:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return errors.Join(append(ps.errs, err)...)
}

func (ps *poolSet) note(err error) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	const most = 100
	if ps.closed && len(ps.errs) < most {
		ps.errs = append(ps.errs, err)
	}
}

// spawn runs f and lets close wait for it. It reports false when the set is
// closed.
func (ps *poolSet) spawn(f func()) bool {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.closed {
		return false
	}
	ps.wg.Go(f)
	return true
}

// pool holds the workers for one key.
type pool struct {
	set *poolSet

	mu       sync.Mutex
	workers  map[*poolWorker]struct{} // guarded by mu; idle and busy
	idle     []*poolWorker            // guarded by mu; the one used last is at the end, and is used next
	waiting  []*waiter                // guarded by mu; first come, first served
	starting []*launch                // guarded by mu
	min      int                      // guarded by mu
	sweeper  *time.Timer              // guarded by mu; nil when nothing is idle
	sweepAt  time.Time                // guarded by mu; when it is due
	closed   bool                     // guarded by mu
}

// waiter is a call that waits for a worker.
type waiter struct {
	ctx context.Context
	s   *setup
	ch  chan lease // of one
}

type lease struct {
	w   *poolWorker
	err error
}

// launch is a worker that is being started.
type launch struct {
	cancel    context.CancelFunc
	abandoned bool // guarded by pool.mu; nobody waits for it
}

// poolWorker is a worker of a pool.
type poolWorker struct {
	*workerConn
	pool  *pool
	setup *setup // of the call it was started for
	made  *made

	until          time.Time // it may be idle; guarded by pool.mu
	gone           bool      // guarded by pool.mu
	orderly        bool      // it is given up while nothing runs in it; guarded by pool.mu until gone
	stdout, stderr *target   // where its output goes; used by the call that has it
}

// get returns a worker, and starts one when none is idle and there may be more.
// Queueing and starting end with ctx.
func (p *pool) get(ctx context.Context, s *setup) (*poolWorker, error) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, errClientClosed()
	}
	for n := len(p.idle); n > 0; n-- {
		w := p.idle[n-1]
		p.idle[n-1] = nil
		p.idle = p.idle[:n-1]
		select {
		case <-w.proc.done():
			continue // its watch is about to discard it, and starts another if that must be
		default:
		}
		p.mu.Unlock()
		return w, nil
	}
	wt := &waiter{ctx: ctx, s: s, ch: make(chan lease, 1)}
	p.waiting = append(p.waiting, wt)
	p.min = max(p.min, s.opts.Workers.Min)
	p.growLocked(wt)
	p.mu.Unlock()
	select {
	case l := <-wt.ch:
		return l.w, l.err
	case <-ctx.Done():
		p.leave(wt)
		return nil, ended(ctx, s.name, "while waiting for a worker")
	}
}

// growLocked starts as many workers as the waiting calls need, and the minimum;
// wt is one of the calls.
func (p *pool) growLocked(wt *waiter) {
	for {
		most := wt.s.opts.Workers.Max
		have := len(p.workers) + len(p.starting)
		if have >= most || p.comingLocked() >= len(p.waiting) && have >= min(p.min, most) {
			return
		}
		// A start outlives the call that began it while others wait for a worker.
		ctx, cancel := context.WithCancel(context.WithoutCancel(wt.ctx))
		stop := context.AfterFunc(p.set.life, cancel)
		l := &launch{cancel: cancel}
		s := wt.s
		if !p.set.spawn(func() {
			defer cancel()
			defer stop()
			p.start(ctx, l, s)
		}) {
			stop()
			cancel()
			p.refuseLocked() // there will be no worker any more
			return
		}
		p.starting = append(p.starting, l)
	}
}

// refuseLocked fails the calls that wait, because the client is closed.
func (p *pool) refuseLocked() {
	for _, wt := range p.waiting {
		wt.ch <- lease{err: errClientClosed()}
	}
	p.waiting = nil
}

// comingLocked is how many workers are being started that calls can hope for.
func (p *pool) comingLocked() int {
	n := 0
	for _, l := range p.starting {
		if !l.abandoned {
			n++
		}
	}
	return n
}

// leave takes a call out of the queue whose context has ended. A start that
// nobody waits for any more is given up.
func (p *pool) leave(wt *waiter) {
	p.mu.Lock()
	i := slices.Index(p.waiting, wt)
	if i >= 0 {
		p.waiting = slices.Delete(p.waiting, i, i+1)
		extra := p.comingLocked() - max(len(p.waiting), p.min-len(p.workers))
		for _, l := range slices.Backward(p.starting) {
			if extra > 0 && !l.abandoned {
				l.abandoned = true
				l.cancel()
				extra--
			}
		}
	}
	p.mu.Unlock()
	if i < 0 { // it was given a worker at the same moment
		if l := <-wt.ch; l.w != nil {
			l.w.release(wt.s)
		}
	}
}

// start starts a worker and gives it to the first call that waits.
func (p *pool) start(ctx context.Context, l *launch, s *setup) {
	w, err := p.launch(ctx, s)
	p.mu.Lock()
	p.starting = slices.DeleteFunc(p.starting, func(x *launch) bool { return x == l })
	if err == nil {
		p.workers[w] = struct{}{}
		p.mu.Unlock()
		if !p.set.spawn(func() { p.watch(w) }) {
			w.discard()
			return
		}
		w.release(s)
		return
	}
	defer p.mu.Unlock()
	if step, ok := errors.AsType[*stepError](err); ok && step.step == stepEnter {
		for _, wt := range p.waiting {
			wt.ch <- lease{err: err}
		}
		p.waiting = nil
		return
	}
	if len(p.waiting) > 0 && !l.abandoned {
		wt := p.waiting[0]
		p.waiting = slices.Delete(p.waiting, 0, 1)
		wt.ch <- lease{err: err}
	}
	if len(p.waiting) > 0 {
		p.growLocked(p.waiting[0])
	}
}

// watch waits for the end of a worker, and keeps what holds it alive until
// then.
func (p *pool) watch(w *poolWorker) {
	var extend <-chan time.Time
	ctx, cancel := context.WithCancel(p.set.life)
	defer cancel()
	next := func() {
		d, err := w.made.extend(ctx)
		if err != nil {
			p.set.log.Warn("lifetime of a worker's sandbox not extended", "err", err)
			d = time.Minute
		}
		if d > 0 {
			extend = time.After(d)
		}
	}
	if w.made.extend != nil {
		next()
	}
	for {
		select {
		case <-w.proc.done():
			w.discard()
			return
		case <-extend:
			next()
		}
	}
}

// release gives the worker to a call that waits, or keeps it for the next.
func (w *poolWorker) release(s *setup) {
	p := w.pool
	p.mu.Lock()
	if p.closed || w.gone {
		p.mu.Unlock()
		w.discard()
		return
	}
	if len(p.waiting) > 0 {
		wt := p.waiting[0]
		p.waiting = slices.Delete(p.waiting, 0, 1)
		wt.ch <- lease{w: w}
		p.mu.Unlock()
		return
	}
	if s.opts.Idle == 0 && len(p.workers) > p.min {
		p.mu.Unlock()
		w.retire()
		return
	}
	w.until = time.Now().Add(s.opts.Idle)
	p.idle = append(p.idle, w)
	if p.sweeper == nil {
		p.sweepInLocked(s.opts.Idle)
	} else if w.until.Before(p.sweepAt) { // a function that keeps workers for longer has set it
		p.sweeper.Stop()
		p.sweepInLocked(s.opts.Idle)
	}
	p.mu.Unlock()
}

func (p *pool) sweepInLocked(d time.Duration) {
	p.sweepAt = time.Now().Add(d)
	p.sweeper = time.AfterFunc(d, p.sweep)
}

// sweep gives up workers that have been idle for too long.
func (p *pool) sweep() {
	p.mu.Lock()
	now := time.Now()
	var old []*poolWorker
	next := time.Duration(-1)
	p.idle = slices.DeleteFunc(p.idle, func(w *poolWorker) bool {
		if left := w.until.Sub(now); left > 0 {
			if next < 0 || left < next {
				next = left
			}
			return false
		}
		if len(p.workers)-len(old) <= p.min {
			return false
		}
		old = append(old, w)
		return true
	})
	if p.sweeper != nil {
		p.sweeper.Stop() // another, when this one had begun as that was set
		p.sweeper = nil
	}
	if next >= 0 && !p.closed {
		p.sweepInLocked(next)
	}
	p.mu.Unlock()
	for _, w := range old {
		w.retire()
	}
}

// retire ends a worker that nothing runs in, in the background.
func (w *poolWorker) retire() { w.giveUp(true) }

// discard ends the worker, in the background, whatever runs in it. A call that
// waits gets another.
func (w *poolWorker) discard() { w.giveUp(false) }

func (w *poolWorker) giveUp(orderly bool) {
	p := w.pool
	p.mu.Lock()
	if w.gone {
		p.mu.Unlock()
		return
	}
	w.gone, w.orderly = true, orderly
	delete(p.workers, w)
	p.idle = slices.DeleteFunc(p.idle, func(x *poolWorker) bool { return x == w })
	if len(p.waiting) > 0 && !p.closed {
		p.growLocked(p.waiting[0])
	}
	p.mu.Unlock()
	if !p.set.spawn(w.end) {
		w.end()
	}
}

// end ends the worker, with everything it has started, and what holds it. It has
// no context of a call: those may have ended, and nothing may be left behind.
func (w *poolWorker) end() {
	if i := w.setup.instance; i != nil && i.leave != nil && w.orderly {
		ctx, cancel := context.WithTimeout(context.Background(), w.setup.opts.Grace)
		i.leave(ctx, w)
		cancel()
	}
	ctx, cancel := context.WithTimeout(context.Background(), killTimeout)
	defer cancel()
	w.conn.SetWriteDeadline(time.Now().Add(byeTime))
	w.w.Write(&frame.Message{Type: frame.Bye})
	w.proc.close()
	if err := w.made.end(ctx); err != nil {
		p := w.pool
		p.set.log.Warn("worker's sandbox not ended", "err", err)
		p.set.note(err)
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

// close ends all workers. Calls that wait fail.
func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	if p.sweeper != nil {
		p.sweeper.Stop()
		p.sweeper = nil
	}
	p.refuseLocked()
	idle := slices.Clone(p.idle)
	workers := slices.Collect(maps.Keys(p.workers))
	p.mu.Unlock()
	var wg sync.WaitGroup
	for _, w := range idle {
		wg.Go(w.retire)
	}
	wg.Wait()
	for _, w := range workers {
		wg.Go(w.discard)
	}
	wg.Wait()
}
