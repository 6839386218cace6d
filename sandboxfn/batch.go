package sandboxfn

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/envelope"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/worker"
)

// A Result is the outcome of one item: a value, or an error.
type Result[T any] struct {
	Value T
	Err   error
}

// DeclareBatch makes the handle of a function that takes many items at once:
// In is one item, Out what comes of it. Generated code calls it to initialise a
// package variable.
//
// Calls of the handle, and of wrappers over it, that arrive within
// [Options.BatchWait] of the first run as one, up to [Options.Batch] of them.
// Calls run together when they are of the same handle, so keep what
// [Func.With] returns, and under the same client. A call that runs alone takes
// up to BatchWait longer than the function.
//
// An argument that breaks a rule, can't be encoded or is over
// [Options.MaxPayload] fails alone, before its call joins others; a batch whose
// arguments would be over it together begins early. A caller whose context ends
// leaves without the others; the function's context ends when all have left,
// and its deadline is the latest of theirs. An error of the function, or of the
// call, comes to all of the batch as the same value.
func DeclareBatch[In, Out any](d Decl) Func[In, Out] {
	fn := newFunction[[]In, []Result[Out]](d)
	fn.batch = &batcher[In, Out]{fn: fn, one: newFunction[In, Result[Out]](d), open: map[batchKey]*batch[In, Out]{}}
	return Func[In, Out]{&handle{fn: fn, opts: d.Options}}
}

// BindBatch tells the program which function f, of [DeclareBatch], stands for.
// A function that returns another number of results than it was given items
// fails the whole batch with E9007, which names both.
func BindBatch[In, Out any](f Func[In, Out], fn func(context.Context, []In) ([]Out, error)) {
	BindBatchResults(f, func(ctx context.Context, items []In) ([]Result[Out], error) {
		values, err := fn(ctx, items)
		results := make([]Result[Out], len(values))
		for i, v := range values {
			results[i].Value = v
		}
		return results, err
	})
}

// BindBatchResults is [BindBatch] for a function that returns an error for each
// item.
func BindBatchResults[In, Out any](f Func[In, Out], fn func(context.Context, []In) ([]Result[Out], error)) {
	b := f.h.fn.batch.(*batcher[In, Out])
	b.bind(fn)
	functions.add(f.h.fn)
}

func wrongLength(name string, got, want int) error {
	return errdefs.New("E9007", name, fmt.Sprintf("the function returned %d results for %d items", got, want))
}

// batcher gathers the calls of a batch function.
type batcher[In, Out any] struct {
	fn  *function
	one *function // as if it took one item; for its codecs

	mu   sync.Mutex
	open map[batchKey]*batch[In, Out] // guarded by mu; those that others may join
}

// batchKey says which calls may run together.
type batchKey struct {
	h   *handle
	set any // the client, or the mode
}

// batch is some calls that run as one.
type batch[In, Out any] struct {
	h    *handle
	key  batchKey
	base context.Context // of the call: that of the first member, without its end

	// Guarded by batcher.mu until the batch begins.
	members []*member[In]
	size    int64 // bytes of the arguments
	timer   *time.Timer

	present int                     // guarded by batcher.mu; members that have not left
	cancel  context.CancelCauseFunc // guarded by batcher.mu; nil until it has begun

	done    chan struct{} // closed when the rest is there
	results []Result[Out] // of another length than members when there are none
	err     error
	ours    bool
}

// member is one call of a batch.
type member[In any] struct {
	ctx  context.Context
	args In
	size int64 // bytes on the wire
	pos  int   // among the results
}

// bind makes fn the function, and what runs alone in this process.
func (b *batcher[In, Out]) bind(fn func(context.Context, []In) ([]Result[Out], error)) {
	b.fn.impl = func(ctx context.Context, item In) (Out, error) {
		var zero Out
		results, err := fn(ctx, []In{item})
		switch {
		case len(results) == 1 && err == nil:
			return results[0].Value, results[0].Err
		case len(results) == 1:
			return results[0].Value, err
		case err == nil:
			err = wrongLength(b.fn.name, len(results), 1)
		}
		return zero, err
	}
	b.fn.run = func(ctx context.Context, in *envelope.OpenedRequest, out *envelope.Response) {
		var items []In
		if err := in.Args(b.fn.args, &items); err != nil {
			out.Failed(err)
			return
		}
		if err := fillTags(ctx, b.fn.name, &items); err != nil {
			out.Failed(err)
			return
		}
		results, ours, err := b.checked(ctx, items, fn)
		switch {
		case ours:
			out.Failed(err)
			return
		case err == nil:
			b.isolate(out, results)
		}
		out.Returned(b.fn.res, &results, err)
	}
}

// checked runs fn with the items that break no rule. ours says that err is not
// the function's own.
func (b *batcher[In, Out]) checked(ctx context.Context, items []In, fn func(context.Context, []In) ([]Result[Out], error)) (all []Result[Out], ours bool, err error) {
	check := b.fn.decl.Validate
	var bad map[int]error
	for i := range items {
		if check == nil {
			break
		}
		if err := check(items[i]); err != nil {
			if bad == nil {
				bad = map[int]error{}
			}
			bad[i] = invalid(b.fn.name, err)
		}
	}
	good := items
	if bad != nil {
		good = make([]In, 0, len(items))
		for i, item := range items {
			if bad[i] == nil {
				good = append(good, item)
			}
		}
	}
	var results []Result[Out]
	if n := len(good); n > 0 {
		results, err = fn(ctx, good)
		switch {
		case len(results) == n:
		case err != nil:
			return nil, false, err
		default:
			return nil, true, wrongLength(b.fn.name, len(results), n)
		}
	}
	if bad == nil {
		return results, false, err
	}
	all = make([]Result[Out], len(items))
	for i := range all {
		if bad[i] != nil {
			all[i].Err = bad[i]
		} else {
			all[i], results = results[0], results[1:]
		}
	}
	return all, false, err
}

// isolate puts an error in the place of each result that can't be sent, so that
// the others arrive.
func (b *batcher[In, Out]) isolate(out *envelope.Response, results []Result[Out]) {
	if out.Fits(b.fn.res, &results) == nil {
		return
	}
	for i := range results {
		if err := out.Fits(b.one.res, &results[i]); err != nil {
			results[i] = Result[Out]{Err: err}
		}
	}
}

// call is [Func.Call] of a batch function.
func (b *batcher[In, Out]) call(ctx context.Context, h *handle, args *In) (Out, error) {
	x, m, err := b.enter(ctx, h, args)
	if err == nil {
		select {
		case <-x.done:
			return x.outcome(m.pos)
		case <-ctx.Done():
			if !b.leave(x, m) {
				return x.outcome(m.pos)
			}
			err = ended(ctx, b.fn.name, "before the batch ended")
		}
	}
	var zero Out
	return zero, informed(err, CallInfo{Function: b.fn.id})
}

// enter checks a call and makes it a member of a batch.
func (b *batcher[In, Out]) enter(ctx context.Context, h *handle, args *In) (*batch[In, Out], *member[In], error) {
	if err := fillDefaults(b.fn.name, args); err != nil {
		return nil, nil, err
	}
	if b.fn.decl.Validate != nil {
		if err := b.fn.decl.Validate(*args); err != nil {
			return nil, nil, invalid(b.fn.name, err)
		}
	}
	o := h.opts.withDefaults()
	p, err := envelope.EncodeRequest(envelope.Request{JSON: o.Codec == CodecJSON}, b.one.args, knownErrors(), args, int64(o.MaxPayload))
	if err != nil {
		return nil, nil, err
	}
	size := p.Size()
	p.Release()
	if worker.Serving() || worker.InCall(ctx) {
		// It is made on behalf of the call that it comes from, with which it ends:
		// it can't run together with those of others.
		m := &member[In]{ctx: ctx, args: *args}
		return b.alone(ctx, h, m), m, nil
	}
	if ctx, err = h.instance.begin(ctx, b.fn); err != nil {
		return nil, nil, err
	}
	key := batchKey{h: h}
	if mode, err := modeOf(ctx); err != nil {
		return nil, nil, err
	} else if mode != nil {
		key.set = mode
	} else if key.set, err = clientFrom(ctx); err != nil {
		return nil, nil, err
	}
	if ctx.Err() != nil {
		return nil, nil, ended(ctx, b.fn.name, "before it began")
	}
	x, m := b.join(ctx, key, o, *args, size)
	return x, m, nil
}

// alone returns a batch of m that has ended.
func (b *batcher[In, Out]) alone(ctx context.Context, h *handle, m *member[In]) *batch[In, Out] {
	x := &batch[In, Out]{h: h, members: []*member[In]{m}, done: make(chan struct{})}
	x.run(ctx)
	close(x.done)
	return x
}

// run makes the call.
func (x *batch[In, Out]) run(ctx context.Context) {
	items := make([]In, len(x.members))
	for i, m := range x.members {
		items[i] = m.args
	}
	x.ours, x.err = x.h.call(ctx, &items, &x.results)
	if x.err == nil && len(x.results) != len(items) { // the worker should have refused that
		x.ours, x.err = true, wrongLength(x.h.fn.name, len(x.results), len(items))
	}
	if x.ours {
		x.err = informed(x.err, CallInfo{Function: x.h.fn.id}) // once, for all to have the same value
	}
}

// outcome is what the member at pos gets.
func (x *batch[In, Out]) outcome(pos int) (Out, error) {
	var zero Out
	switch {
	case x.err != nil && (x.ours || len(x.results) != len(x.members)):
		return zero, x.err
	case x.err != nil:
		return x.results[pos].Value, x.err
	}
	return x.results[pos].Value, x.results[pos].Err
}

// join makes a call a member of the open batch, or of a new one.
func (b *batcher[In, Out]) join(ctx context.Context, key batchKey, o Options, args In, size int64) (*batch[In, Out], *member[In]) {
	// Among others it may take more: a longer head of the array, and for each of
	// its segments a higher number.
	const head, number = 9, 8
	size += head + size/envelope.SegmentMin*number
	m := &member[In]{ctx: ctx, args: args, size: size}
	b.mu.Lock()
	defer b.mu.Unlock()
	x := b.open[key]
	if x != nil && x.size+size > int64(o.MaxPayload) {
		b.beginLocked(x)
		x = nil
	}
	if x == nil {
		x = &batch[In, Out]{h: key.h, key: key, base: context.WithoutCancel(ctx), done: make(chan struct{})}
		b.open[key] = x
		wait := o.BatchWait
		if wait == 0 {
			wait = defaultBatchWait
		}
		x.timer = time.AfterFunc(wait, func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.beginLocked(x)
		})
	}
	m.pos = len(x.members)
	x.members = append(x.members, m)
	x.size += size
	x.present++
	if len(x.members) >= o.Batch {
		b.beginLocked(x)
	}
	return x, m
}

const defaultBatchWait = 10 * time.Millisecond

// errAllLeft is why the context of a batch ends that nobody waits for.
var errAllLeft = errors.New("every caller of the batch has left")

// leave takes a call out of its batch whose context has ended. It reports false
// when the batch has ended first.
func (b *batcher[In, Out]) leave(x *batch[In, Out], m *member[In]) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-x.done:
		return false
	default:
	}
	x.present--
	if x.cancel == nil { // it has not begun, and needs not run for this one
		last := len(x.members) - 1
		x.members[m.pos] = x.members[last]
		x.members[m.pos].pos = m.pos
		x.members = x.members[:last]
		x.size -= m.size
		if x.present == 0 {
			x.timer.Stop()
			delete(b.open, x.key)
		}
	} else if x.present == 0 {
		cause := context.Cause(m.ctx)
		if cause == nil || cause == context.Canceled {
			cause = errAllLeft
		}
		x.cancel(cause)
	}
	return true
}

// beginLocked runs the batch, in a goroutine of its own: any of its members may
// leave.
func (b *batcher[In, Out]) beginLocked(x *batch[In, Out]) {
	if x.cancel != nil || x.present == 0 {
		return
	}
	x.timer.Stop()
	if b.open[x.key] == x {
		delete(b.open, x.key)
	}
	ctx, cancel := context.WithCancelCause(x.base)
	x.cancel = cancel
	stop := context.CancelFunc(func() {})
	if end, ok := x.deadline(); ok {
		ctx, stop = context.WithDeadline(ctx, end)
	}
	go func() {
		defer cancel(nil)
		defer stop()
		x.run(ctx)
		b.mu.Lock()
		close(x.done)
		b.mu.Unlock()
	}()
}

// deadline is the latest of the members' deadlines, when all have one.
func (x *batch[In, Out]) deadline() (latest time.Time, ok bool) {
	for _, m := range x.members {
		end, ok := m.ctx.Deadline()
		if !ok {
			return time.Time{}, false
		}
		if end.After(latest) {
			latest = end
		}
	}
	return latest, true
}
