package sandboxfn

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// Map calls the function with each value of in, several at once, and yields the
// results in the order of the input: one pair for each input. An error is that
// pair's alone, and the loop goes on.
//
// As many calls are in flight, from the input that is pulled to the loop that
// takes its result, as [Options.InFlight] says; by default enough to keep all
// workers busy. A slow call holds back the results of those after it, but not
// their execution, up to that number; [Func.MapUnordered] does not wait for it.
//
// in runs in a goroutine of its own, at the same time as the loop, and is pulled
// only when there is room for another call. When it panics, the loop gets the
// results of what was pulled before, and then that panic. It may be endless.
//
// Leaving the loop cancels what is running, and waits until it has returned, as
// after the cancellation of a call. It waits for an input that is busy, too, but
// not for long: one that blocks is left, and ends when it comes back with the
// next value. A result that is a reader is to be read in the loop: it ends with
// it, however that ends.
//
// When ctx ends, nothing more is pulled, and what was pulled gets its pair: a
// result that is there, or E9013 or E9014. When none of these pairs tells, and
// the input has not come to its end, one more pair does.
//
// The sequence may be ranged over again when in may. Each loop has calls of its
// own.
func (f Func[A, R]) Map(ctx context.Context, in iter.Seq[A]) iter.Seq2[R, error] {
	return func(yield func(R, error) bool) {
		m := newMapper(ctx, f, in, true)
		m.loop(func(_ int, r Result[R]) bool { return yield(r.Value, r.Err) })
	}
}

// MapUnordered is [Func.Map] in the order in which calls end, each with the
// index of its input, from zero. A pair that only tells that ctx has ended has
// the index of the next input.
func (f Func[A, R]) MapUnordered(ctx context.Context, in iter.Seq[A]) iter.Seq2[int, Result[R]] {
	return func(yield func(int, Result[R]) bool) {
		m := newMapper(ctx, f, in, false)
		m.loop(yield)
	}
}

// Collect calls the function with each of args, as many at once as [Func.Map]
// has in flight, and returns the results in the order of args. The first error
// cancels the rest and is returned, alone, when all have ended. Without args
// there are no results and no error. Results that are readers keep their workers
// until each is read to its end or closed, or ctx ends; all of them must have
// been returned before the first can be read, so there have to be as many
// workers.
func (f Func[A, R]) Collect(ctx context.Context, args []A) ([]R, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	var reading atomic.Int64 // results to be read, and this
	reading.Store(1)
	readOne := func() {
		if reading.Add(-1) == 0 {
			cancel(nil)
		}
	}
	defer readOne()
	results := make([]R, len(args))
	var next atomic.Int64
	var failed struct {
		sync.Once
		err   error
		crash *crash
	}
	var wg sync.WaitGroup
	for range min(f.h.inFlight(), len(args)) {
		wg.Go(func() {
			guard(func() {
				for i := int(next.Add(1)) - 1; i < len(args); i = int(next.Add(1)) - 1 {
					r, err := f.Call(ctx, args[i])
					if err != nil {
						failed.Do(func() {
							failed.err = err
							cancel(err)
						})
						return
					}
					reading.Add(1)
					if !onceRead(&r, readOne) {
						readOne()
					}
					results[i] = r
				}
			}, func(c *crash) {
				failed.Do(func() { failed.crash = c })
				cancel(errCrashed)
			})
		})
	}
	wg.Wait()
	if failed.crash != nil {
		failed.crash.raise()
	}
	if failed.err != nil {
		return nil, failed.err
	}
	return results, nil
}

// inFlight is how many calls of h a loop has under way: as many as the workers
// take at once, and one more for each, so that no worker waits for the next
// input. Of a batch function it is enough to fill the batches of all workers.
func (h *handle) inFlight() int {
	if h == nil {
		return 1 // the calls fail
	}
	o := h.opts.withDefaults()
	h.instance.adjust(&o)
	if o.InFlight > 0 {
		return o.InFlight
	}
	n := max(o.Workers.Max, 1) * (max(o.Concurrency, 1) + 1)
	if h.fn.batch != nil {
		n *= max(o.Batch, 1)
	}
	return n
}

// Why the calls of a loop were cancelled.
var (
	errLoopLeft = errors.New("the loop over the results was left")
	errCrashed  = errors.New("another call of the loop panicked")
)

// inputTime is how long a loop that is left waits for an input that is busy.
const inputTime = 100 * time.Millisecond

// mapper is one loop over the results of calls. Three kinds of goroutines share
// it: the loop takes results, the input's pulls inputs, and each caller makes
// one call after the other.
type mapper[A, R any] struct {
	f       Func[A, R]
	in      iter.Seq[A]
	ordered bool
	most    int // calls in flight

	parent context.Context
	ctx    context.Context // of the calls
	cancel context.CancelCauseFunc

	jobs    chan job[A]   // to callers that have nothing to do
	quit    chan struct{} // closed when the loop has ended
	wake    chan struct{} // of one; to the loop, while waiting is set
	room    chan struct{} // of one; to the input, while full is set
	fed     chan struct{} // closed when the input's goroutine has ended
	callers sync.WaitGroup

	mu      sync.Mutex
	pulled  int       // guarded by mu, as is all that follows; inputs
	ended   int       // calls
	taken   int       // results
	idle    int       // callers with nothing to do
	ring    []slot[R] // number n, from taken to pulled, is at n modulo the length, a power of two
	waiting bool      // the loop waits
	full    bool      // the input waits
	done    bool      // the input has come to its end
	closed  bool      // nothing more is pulled
	raised  bool      // a crash has reached the loop
	left    bool      // the loop has left the input behind
	badIn   *crash    // of the input
	badCall *crash    // of a call
}

// job is an input, with its index.
type job[A any] struct {
	index int
	args  A
}

// slot is the place of a result.
type slot[R any] struct {
	index int
	there bool
	r     Result[R]
}

func newMapper[A, R any](ctx context.Context, f Func[A, R], in iter.Seq[A], ordered bool) *mapper[A, R] {
	m := &mapper[A, R]{
		f: f, in: in, ordered: ordered, most: f.h.inFlight(), parent: ctx,
		jobs: make(chan job[A]), quit: make(chan struct{}),
		wake: make(chan struct{}, 1), room: make(chan struct{}, 1), fed: make(chan struct{}),
	}
	m.ctx, m.cancel = context.WithCancelCause(ctx)
	return m
}

// loop yields the results.
func (m *mapper[A, R]) loop(yield func(int, Result[R]) bool) {
	defer m.leave()
	go m.feed()
	told := false // that the context has ended
	for {
		s, ok := m.next()
		if !ok {
			break
		}
		if err := m.parent.Err(); err != nil && errors.Is(s.r.Err, err) {
			told = true
		}
		if !yield(s.index, s.r) {
			return
		}
	}
	m.mu.Lock()
	n, done, bad := m.pulled, m.done, cmp.Or(m.badCall, m.badIn)
	m.raised = bad != nil
	m.mu.Unlock()
	switch {
	case bad != nil:
		bad.raise()
	case !done && !told:
		yield(n, Result[R]{Err: ended(m.parent, m.f.h.name(), "while waiting for the next input")})
	}
}

// next waits for the next result. There is none when a call has crashed, or
// when all that was pulled is taken and nothing more will be.
func (m *mapper[A, R]) next() (slot[R], bool) {
	m.mu.Lock()
	for {
		if m.badCall != nil {
			m.mu.Unlock()
			return slot[R]{}, false
		}
		if m.taken < m.pulled {
			if s := &m.ring[m.taken&(len(m.ring)-1)]; s.there {
				taken := *s
				*s = slot[R]{}
				m.taken++
				full := m.full
				m.full = false
				m.mu.Unlock()
				if full {
					m.room <- struct{}{}
				}
				return taken, true
			}
		}
		var over <-chan struct{} // the calls that are under way have a pair, also at the end
		if m.taken == m.pulled {
			if m.closed = m.closed || m.ctx.Err() != nil; m.closed || m.done || m.badIn != nil {
				m.mu.Unlock()
				return slot[R]{}, false
			}
			over = m.ctx.Done()
		}
		m.waiting = true
		m.mu.Unlock()
		select {
		case <-m.wake:
			m.mu.Lock()
		case <-over:
			m.mu.Lock()
			if !m.waiting { // it has been woken at the same moment
				<-m.wake
			}
			m.waiting = false
		}
	}
}

// wakeLocked wakes the loop if it waits.
func (m *mapper[A, R]) wakeLocked() {
	if m.waiting {
		m.waiting = false
		m.wake <- struct{}{}
	}
}

// feed pulls the input.
func (m *mapper[A, R]) feed() {
	defer close(m.fed)
	guard(func() {
		for a := range m.in {
			if !m.pull(a) {
				return
			}
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		m.done = true
		m.wakeLocked()
	}, func(c *crash) {
		m.mu.Lock()
		left := m.left
		m.badIn = c
		m.wakeLocked()
		m.mu.Unlock()
		if left { // there is no goroutine of the user's to which it could go
			c.raise()
		}
	})
}

// pull lets a be called and waits until there is room for another input. It
// reports false when there will be none.
func (m *mapper[A, R]) pull(a A) bool {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return false
	}
	j := job[A]{m.pulled, a}
	m.pulled++
	m.growLocked()
	if m.idle > 0 {
		m.idle--
		m.mu.Unlock()
		select {
		case m.jobs <- j:
		case <-m.quit:
			return false
		}
	} else {
		m.callers.Go(func() { guard(func() { m.call(j) }, m.callCrashed) })
		m.mu.Unlock()
	}
	m.mu.Lock()
	for !m.closed && m.pulled-m.taken >= m.most {
		m.full = true
		m.mu.Unlock()
		select {
		case <-m.room:
		case <-m.ctx.Done():
			return false
		}
		m.mu.Lock()
	}
	m.mu.Unlock()
	return m.ctx.Err() == nil
}

// growLocked makes place for the results of all that was pulled.
func (m *mapper[A, R]) growLocked() {
	n := len(m.ring)
	if m.pulled-m.taken <= n {
		return
	}
	ring := make([]slot[R], max(2*n, 8))
	for i := m.taken; i < m.taken+n; i++ {
		ring[i&(len(ring)-1)] = m.ring[i&(n-1)]
	}
	m.ring = ring
}

// call makes calls until the loop has ended.
func (m *mapper[A, R]) call(j job[A]) {
	for {
		v, err := m.f.Call(m.ctx, j.args)
		m.mu.Lock()
		n := j.index
		if !m.ordered {
			n = m.ended
		}
		m.ended++
		m.idle++
		m.ring[n&(len(m.ring)-1)] = slot[R]{j.index, true, Result[R]{v, err}}
		if n == m.taken {
			m.wakeLocked()
		}
		m.mu.Unlock()
		select {
		case j = <-m.jobs:
		case <-m.quit:
			return
		}
	}
}

func (m *mapper[A, R]) callCrashed(c *crash) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.badCall == nil {
		m.badCall = c
	}
	m.wakeLocked()
}

// leave ends what is running, however the loop has ended.
func (m *mapper[A, R]) leave() {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.cancel(errLoopLeft)
	close(m.quit)
	m.callers.Wait()
	t := time.NewTimer(inputTime)
	defer t.Stop()
	select {
	case <-m.fed:
	case <-t.C:
	}
	m.mu.Lock()
	bad := m.badIn
	m.left = bad == nil
	raised := m.raised
	m.mu.Unlock()
	if bad != nil && !raised { // when its loop was left
		bad.raise()
	}
}

// crash is how code of the user's ended that did not return: with a panic, or
// by runtime.Goexit.
type crash struct {
	value any
	exit  bool
}

// raise lets it happen on this goroutine.
func (c *crash) raise() {
	if c.exit {
		runtime.Goexit()
	}
	panic(c.value)
}

// guard runs f, and crashed when it does not return.
func guard(f func(), crashed func(*crash)) {
	returned := false
	defer func() {
		if !returned {
			v := recover()
			crashed(&crash{v, v == nil})
		}
	}()
	f()
	returned = true
}
