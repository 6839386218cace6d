package sandboxfn

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"
)

// stocked is something that a [stock] keeps.
type stocked interface {
	comparable
	state() *stockState
	alive() bool      // false: it has ended by itself
	end(orderly bool) // called once; orderly: nothing runs in it
}

// stockState is what a stock knows about one thing. The mutex of the stock
// guards it.
type stockState struct {
	busy, uses int       // slots taken, and how often one was
	old        time.Time // it is not used any more from then on; zero: never
	until      time.Time // it may be idle
	spent      bool      // it gets no more uses, and ends when nothing runs in it
	orderly    bool      // valid when spent
	gone       bool
}

// terms say how a user of a stock wants it to be kept.
type terms struct {
	min, max int           // how many there are: at least, once in use, and at most
	spare    int           // of them idle, beyond those in use
	idle     time.Duration // what is idle for longer, and not among those, is given up
	age      time.Duration // what is older is given up; zero: nothing
	uses     int           // after so many it is given up; zero: never
}

// order is what a user of a stock asks for.
type order[I stocked] struct {
	terms
	start    func(ctx context.Context) (I, error)
	depth    int                             // of a call within others; deeper ones, for which others wait, go first
	ended    func(ctx context.Context) error // the error of one whose context ends while it waits
	everyone func(error) bool                // a failed start that is the failure of all who wait
}

// A stock keeps things that take long to start and hands out their slots: idle
// ones wait for the next user, new ones are started when users wait.
type stock[I stocked] struct {
	care    *upkeep
	slots   int          // of each thing
	started func(I)      // told of each new one
	emptied func()       // told, without the mutex, that nothing is left in it; may be nil
	closing func() error // the error once it is closed

	mu       sync.Mutex
	all      map[I]struct{} // guarded by mu
	idle     []I            // guarded by mu; no slot is taken; the one used last is at the end, and is used next
	open     []I            // guarded by mu; some slots are taken, not all
	waiting  []*waiter[I]   // guarded by mu; first come, first served
	starting []*launch      // guarded by mu
	ending   []func()       // guarded by mu; called by unlock
	last     *order[I]      // guarded by mu
	min      int            // guarded by mu; the highest of all orders
	spare    int            // guarded by mu; the highest of all orders
	sweeper  *time.Timer    // guarded by mu; nil when there is nothing to sweep
	sweepAt  time.Time      // guarded by mu; when it is due
	closed   bool           // guarded by mu
	retired  bool           // guarded by mu; nothing is in it, and nothing is to be until it is reopened
	counts   stockCounts    // guarded by mu
}

// stockCounts count what has happened since the stock was made.
type stockCounts struct{ hits, misses, created, ended int }

// waiter is somebody who waits for a slot.
type waiter[I stocked] struct {
	ctx context.Context
	o   *order[I]
	ch  chan leased[I] // of one
}

type leased[I stocked] struct {
	x   I
	err error
}

// launch is a thing that is being started.
type launch struct {
	cancel    context.CancelFunc
	abandoned bool // guarded by the mutex of the stock; nobody waits for it
}

func newStock[I stocked](care *upkeep, slots int, closing func() error) *stock[I] {
	return &stock[I]{care: care, slots: slots, closing: closing, started: func(I) {}, all: map[I]struct{}{}}
}

// errRetired is the error of get of a stock that has been retired.
var errRetired = errors.New("the stock is not used any more")

// isEmptyLocked reports whether nothing is there and nobody waits.
func (k *stock[I]) isEmptyLocked() bool { return len(k.all)+len(k.waiting)+len(k.starting) == 0 }

// retireLocked makes get fail, when nothing is left, and reports whether it
// does.
func (k *stock[I]) retireLocked() bool {
	if !k.isEmptyLocked() {
		return false
	}
	if k.sweeper != nil { // what it was to find is gone
		k.sweeper.Stop()
		k.sweeper = nil
	}
	k.retired = true
	return true
}

// unlock releases mu, and then ends what is to be ended.
func (k *stock[I]) unlock() {
	ending := k.ending
	k.ending = nil
	empty := k.emptied != nil && !k.retired && k.isEmptyLocked()
	k.mu.Unlock()
	for _, end := range ending {
		if !k.care.spawn(end) {
			end()
		}
	}
	if empty {
		k.emptied()
	}
}

// get takes a slot, the one of the thing that is nearest to full, so that the
// rest can idle out. When there is none it starts another thing, if there may be
// more, or waits. Waiting and starting end with ctx.
func (k *stock[I]) get(ctx context.Context, o *order[I]) (I, error) {
	var none I
	k.mu.Lock()
	if k.closed {
		k.mu.Unlock()
		return none, k.closing()
	}
	if k.retired {
		k.mu.Unlock()
		return none, errRetired
	}
	k.last, k.min, k.spare = o, max(k.min, o.min), max(k.spare, o.spare)
	if x, ok := k.takeLocked(); ok {
		k.counts.hits++
		k.growLocked()
		k.unlock()
		return x, nil
	}
	k.counts.misses++
	wt := &waiter[I]{ctx: ctx, o: o, ch: make(chan leased[I], 1)}
	at := len(k.waiting)
	for at > 0 && k.waiting[at-1].o.depth < o.depth {
		at--
	}
	k.waiting = slices.Insert(k.waiting, at, wt)
	k.growLocked()
	k.unlock()
	select {
	case l := <-wt.ch:
		return l.x, l.err
	case <-ctx.Done():
		k.leave(wt)
		return none, o.ended(ctx)
	}
}

// begin starts what there is to be without anybody asking.
func (k *stock[I]) begin(o *order[I]) {
	k.mu.Lock()
	defer k.unlock()
	k.last, k.min, k.spare = o, o.min, o.spare
	k.growLocked()
}

// takeLocked takes a slot that is free.
func (k *stock[I]) takeLocked() (x I, ok bool) {
	best := -1
	for i, y := range k.open {
		if y.alive() && (best < 0 || y.state().busy > k.open[best].state().busy) {
			best = i
		}
	}
	if best >= 0 {
		x = k.open[best]
		k.useLocked(x)
		return x, true
	}
	for n := len(k.idle); n > 0; n = len(k.idle) {
		x = k.idle[n-1]
		switch {
		case !x.alive():
			k.idle = k.idle[:n-1] // whoever watches it is about to discard it
		case x.state().tooOld():
			k.giveUpLocked(x, true)
		default:
			k.useLocked(x)
			return x, true
		}
	}
	return x, false
}

// useLocked takes a slot of x, which has one.
func (k *stock[I]) useLocked(x I) {
	st := x.state()
	st.busy++
	st.uses++
	k.placeLocked(x)
}

// placeLocked puts x where its slots say.
func (k *stock[I]) placeLocked(x I) {
	same := func(y I) bool { return x == y }
	if n := len(k.idle); n > 0 && k.idle[n-1] == x {
		var none I
		k.idle[n-1] = none
		k.idle = k.idle[:n-1]
	} else {
		k.idle = slices.DeleteFunc(k.idle, same)
	}
	k.open = slices.DeleteFunc(k.open, same)
	switch st := x.state(); {
	case st.gone || st.spent:
	case st.busy == 0:
		k.idle = append(k.idle, x)
	case st.busy < k.slots:
		k.open = append(k.open, x)
	}
}

// neededLocked is how many starts those who wait need.
func (k *stock[I]) neededLocked() int { return (len(k.waiting) + k.slots - 1) / k.slots }

// wantLocked is how many starts there should be.
func (k *stock[I]) wantLocked() int {
	return max(k.neededLocked()+max(0, k.spare-len(k.idle)), k.min-len(k.all))
}

// growLocked starts as many as are wanted and allowed.
func (k *stock[I]) growLocked() { k.growToLocked(k.wantLocked()) }

// growToLocked starts so many, as far as that is allowed.
func (k *stock[I]) growToLocked(want int) {
	if k.closed || k.last == nil {
		return
	}
	ctx, o := k.care.life, k.last
	if len(k.waiting) > 0 {
		ctx, o = k.waiting[0].ctx, k.waiting[0].o
	}
	for k.comingLocked() < want && len(k.all)+len(k.starting) < o.max {
		// A start outlives the one who began it while others wait.
		ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		stop := context.AfterFunc(k.care.life, cancel)
		l := &launch{cancel: cancel}
		if !k.care.spawn(func() {
			defer cancel()
			defer stop()
			k.start(ctx, l, o)
		}) {
			stop()
			cancel()
			k.failLocked(len(k.waiting), k.closing()) // there will be nothing any more
			return
		}
		k.starting = append(k.starting, l)
	}
}

// comingLocked is how many are being started that one can hope for.
func (k *stock[I]) comingLocked() int {
	n := 0
	for _, l := range k.starting {
		if !l.abandoned {
			n++
		}
	}
	return n
}

// failLocked fails the first n of those who wait.
func (k *stock[I]) failLocked(n int, err error) {
	for _, wt := range k.waiting[:n] {
		wt.ch <- leased[I]{err: err}
	}
	k.waiting = slices.Delete(k.waiting, 0, n)
}

// leave takes one out of the queue whose context has ended. A start that nobody
// waits for any more is given up.
func (k *stock[I]) leave(wt *waiter[I]) {
	k.mu.Lock()
	i := slices.Index(k.waiting, wt)
	if i >= 0 {
		k.waiting = slices.Delete(k.waiting, i, i+1)
		k.abandonLocked()
	}
	k.mu.Unlock()
	if i >= 0 {
		return
	}
	if l := <-wt.ch; l.err == nil { // it was given a slot at the same moment
		k.unused(l.x, wt.o.terms)
	}
}

// abandonLocked gives up the starts that are not wanted any more.
func (k *stock[I]) abandonLocked() {
	extra := k.comingLocked() - k.wantLocked()
	for _, l := range slices.Backward(k.starting) {
		if extra > 0 && !l.abandoned {
			l.abandoned = true
			l.cancel()
			extra--
		}
	}
}

// unused gives back a slot that was not used.
func (k *stock[I]) unused(x I, t terms) {
	k.mu.Lock()
	x.state().uses--
	k.mu.Unlock()
	k.release(x, t)
}

// lastUse reports whether x is given up when its slot comes back.
func (k *stock[I]) lastUse(x I, t terms) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	st := x.state()
	return k.closed || st.gone || st.spent || t.uses > 0 && st.uses >= t.uses || st.tooOld()
}

// start starts a thing for those who wait.
func (k *stock[I]) start(ctx context.Context, l *launch, o *order[I]) {
	x, err := o.start(ctx)
	k.mu.Lock()
	defer k.unlock()
	k.starting = slices.DeleteFunc(k.starting, func(x *launch) bool { return x == l })
	if err == nil {
		k.all[x] = struct{}{}
		k.counts.created++
		if o.age > 0 {
			x.state().old = time.Now().Add(o.age)
		}
		k.started(x)
		k.offerLocked(x, o.terms)
		return
	}
	// What failed is not tried again for the minimum and the spare ones: that
	// could go on for ever. The next use does.
	defer func() { k.growToLocked(k.neededLocked()) }()
	if l.abandoned {
		return
	}
	// Those fail who can hope for no other start.
	n := min(k.slots, max(0, len(k.waiting)-k.comingLocked()*k.slots))
	if o.everyone != nil && o.everyone(err) {
		n = len(k.waiting)
	}
	k.failLocked(n, err)
}

// offerLocked gives the free slots of x to those who wait. When none is taken,
// x is kept for later, or not, as t says.
func (k *stock[I]) offerLocked(x I, t terms) {
	st := x.state()
	if k.closed && !st.gone {
		k.giveUpLocked(x, st.busy == 0)
		return
	}
	if st.gone || st.spent {
		return
	}
	for ; len(k.waiting) > 0 && st.busy < k.slots; k.waiting = slices.Delete(k.waiting, 0, 1) {
		st.busy++
		st.uses++
		k.waiting[0].ch <- leased[I]{x: x}
	}
	if st.busy == 0 && t.idle == 0 && len(k.all) > k.min && len(k.idle) >= k.spare {
		k.giveUpLocked(x, true)
		return
	}
	k.placeLocked(x)
	if st.busy == 0 {
		st.until = time.Now().Add(t.idle)
		k.sweepByLocked(st.due())
	}
}

// release gives a slot back: to one who waits, or for later.
func (k *stock[I]) release(x I, t terms) {
	k.mu.Lock()
	defer k.unlock()
	st := x.state()
	st.busy--
	if st.gone {
		return
	}
	if t.uses > 0 && st.uses >= t.uses || st.tooOld() {
		k.spendLocked(x, true)
	}
	if st.spent && st.busy == 0 {
		k.giveUpLocked(x, st.orderly)
	}
	k.offerLocked(x, t)
}

// drain gives a slot back and lets x end when nothing runs in it any more.
func (k *stock[I]) drain(x I) {
	k.mu.Lock()
	defer k.unlock()
	st := x.state()
	st.busy--
	if st.gone {
		return
	}
	k.spendLocked(x, false)
	if st.busy == 0 {
		k.giveUpLocked(x, false)
	} else {
		k.growLocked()
	}
}

func (k *stock[I]) spendLocked(x I, orderly bool) {
	st := x.state()
	st.orderly = orderly && (!st.spent || st.orderly)
	st.spent = true
	k.placeLocked(x)
}

// giveUp ends x, in the background, whatever runs in it. It is idempotent.
func (k *stock[I]) giveUp(x I, orderly bool) {
	k.mu.Lock()
	defer k.unlock()
	k.giveUpLocked(x, orderly)
}

func (k *stock[I]) giveUpLocked(x I, orderly bool) {
	st := x.state()
	if st.gone {
		return
	}
	st.gone = true
	k.counts.ended++
	delete(k.all, x)
	k.placeLocked(x)
	k.ending = append(k.ending, func() { x.end(orderly) })
	// What has failed without a word is replaced at the next use only: it may
	// fail again at once.
	if len(k.waiting) > 0 || orderly {
		k.growLocked()
	}
}

func (st *stockState) tooOld() bool { return !st.old.IsZero() && !time.Now().Before(st.old) }

// due is when a sweep has something to do with an idle thing.
func (st *stockState) due() time.Time {
	if !st.old.IsZero() && st.old.Before(st.until) {
		return st.old
	}
	return st.until
}

func (k *stock[I]) sweepByLocked(at time.Time) {
	if k.sweeper != nil {
		if !at.Before(k.sweepAt) {
			return
		}
		k.sweeper.Stop()
	}
	k.sweepAt = at
	k.sweeper = time.AfterFunc(time.Until(at), k.sweep)
}

// sweep gives up what is too old, and what has been idle for too long.
func (k *stock[I]) sweep() {
	k.mu.Lock()
	defer k.unlock()
	if k.sweeper != nil {
		k.sweeper.Stop() // another, when this one had begun as that was set
		k.sweeper = nil
	}
	if k.closed {
		return
	}
	now := time.Now()
	for _, x := range slices.Clone(k.idle) {
		st := x.state()
		switch {
		case st.tooOld(), !now.Before(st.until) && len(k.all) > k.min && len(k.idle) > k.spare:
			k.giveUpLocked(x, true)
		case now.Before(st.due()):
			k.sweepByLocked(st.due())
		case !st.old.IsZero(): // it is kept as one of the minimum
			k.sweepByLocked(st.old)
		}
	}
}

// clear gives up everything: the idle ones now, which it returns, the others when
// nothing runs in them any more. What is wanted beyond those who wait is
// forgotten until the next use.
func (k *stock[I]) clear() (idle []I) {
	k.mu.Lock()
	defer k.unlock()
	k.min, k.spare = 0, 0
	k.abandonLocked()
	for x := range k.all {
		if x.state().busy == 0 {
			idle = append(idle, x)
			k.giveUpLocked(x, true)
		} else {
			k.spendLocked(x, true)
		}
	}
	return idle
}

// close ends everything. Those who wait fail.
func (k *stock[I]) close() {
	k.mu.Lock()
	defer k.unlock()
	if k.closed {
		return
	}
	k.closed = true
	if k.sweeper != nil {
		k.sweeper.Stop()
		k.sweeper = nil
	}
	k.failLocked(len(k.waiting), k.closing())
	for _, x := range slices.Collect(maps.Keys(k.all)) {
		k.giveUpLocked(x, x.state().busy == 0)
	}
}

// upkeep is what a stock has started, and how it ends.
type upkeep struct {
	life context.Context // ends with it
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu      sync.Mutex
	closing bool    // guarded by mu; errors are kept
	closed  bool    // guarded by mu; nothing is spawned any more
	errs    []error // guarded by mu; what could not be cleaned up
}

// init makes u usable. Starts outlive the call that began them, up to the end of
// u.
func (u *upkeep) init() { u.life, u.stop = context.WithCancel(context.Background()) }

// spawn runs f and lets close wait for it. It reports false once u is closed.
func (u *upkeep) spawn(f func()) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return false
	}
	u.wg.Go(f)
	return true
}

// close runs end, which ends what there is, lets the life of u end, and waits
// until everything has ended, or ctx has. It reports what could not be cleaned
// up.
func (u *upkeep) close(ctx context.Context, end func()) error {
	u.mu.Lock()
	u.closing = true
	u.mu.Unlock()
	end()
	u.mu.Lock()
	u.closed = true
	u.mu.Unlock()
	u.stop()
	done := make(chan struct{})
	go func() {
		u.wg.Wait()
		close(done)
	}()
	var err error
	select {
	case <-done:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	return errors.Join(append(u.errs, err)...)
}

// note keeps an error for close.
func (u *upkeep) note(err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	const most = 100
	if u.closing && len(u.errs) < most {
		u.errs = append(u.errs, err)
	}
}
