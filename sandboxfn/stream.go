package sandboxfn

import (
	"context"
	"errors"
	"io"
	"iter"
	"reflect"
	"sync"
	"sync/atomic"

	"github.com/agent-sandbox/sandbox-go/internal/envelope"
	"github.com/agent-sandbox/sandbox-go/internal/frame"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/worker"
)

// StreamFunc is the handle of a function whose result is a stream of T. It is a
// small value, made once by [DeclareStream]. Its methods are safe for concurrent
// use.
type StreamFunc[A, T any] struct{ h *handle }

// DeclareStream makes the handle of a function that returns a sequence.
// Generated code calls it to initialise a package variable, as [Declare].
func DeclareStream[A, T any](d Decl) StreamFunc[A, T] {
	return StreamFunc[A, T]{&handle{fn: newFunction[A, None](d), opts: d.Options}}
}

// BindStream tells the program which function f stands for, as [Bind]. The
// sequence that fn returns is ranged over in the worker.
func BindStream[A, T any](f StreamFunc[A, T], fn func(context.Context, A) (iter.Seq2[T, error], error)) {
	bindStream(f.h.fn, fn, func(ctx context.Context, args A) (iter.Seq2[T, error], error) { return fn(ctx, args) })
	functions.add(f.h.fn)
}

// bindStream makes run the function as a worker runs it; impl is what Local
// finds.
func bindStream[A, T any](f *function, impl any, run func(context.Context, A) (iter.Seq2[T, error], error)) {
	bindTo(f, func(ctx context.Context, args A) (None, error) {
		seq, err := run(ctx, args)
		if err != nil || seq == nil {
			return None{}, err
		}
		item := itemTuple[T](f)
		s := worker.SenderOf(ctx)
		for v, err := range seq {
			if err != nil {
				return None{}, err
			}
			p, err := item.Encode(nil, []reflect.Value{reflect.ValueOf(&v).Elem()}, s.Errors(), s.Limit())
			if err != nil {
				return None{}, err
			}
			more := s.Send(p)
			p.Release()
			if !more {
				return None{}, ctx.Err()
			}
		}
		return None{}, nil
	})
	f.impl, f.stream = impl, true
}

func itemTuple[T any](f *function) *envelope.Tuple {
	return envelope.NewTuple(f.name, reflect.TypeFor[T]())
}

// Pairs makes a sequence one of pairs whose errors are all nil.
func Pairs[T any](seq iter.Seq[T]) iter.Seq2[T, error] {
	if seq == nil {
		return nil
	}
	return func(yield func(T, error) bool) {
		for v := range seq {
			if !yield(v, nil) {
				return
			}
		}
	}
}

// Stream runs the function in a sandbox each time the sequence is ranged over,
// and yields its items as they come. The function is held back as long as the
// loop has not taken 16 items, or 1 MiB, that are under way.
//
// An error is the last pair: the function's, or one that tells why the call
// failed, as for [Func.Call]; a panic of the function is a [*PanicError]. A
// stream without an error has come to its end. Leaving the loop ends the
// function's context, and its yield returns false; it has [Options.Grace] to
// return before its worker is killed. ctx governs the call up to the end of the
// loop; [Options.Timeout] includes the time that the loop takes.
//
// A call is never repeated after its first item. A loop that stays in one
// iteration keeps its worker.
func (f StreamFunc[A, T]) Stream(ctx context.Context, args A) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var zero T
		if f.h == nil {
			yield(zero, errNoHandle())
			return
		}
		if fake := worker.FakeOf(ctx, f.h.fn.id); fake != nil {
			fakeStream(ctx, f.h.fn, fake, &args, yield)
			return
		}
		s, err := startStream(ctx, f.h, &args)
		if err != nil {
			yield(zero, informed(err, CallInfo{Function: f.h.fn.id}))
			return
		}
		defer s.leave(nil)
		item := itemTuple[T](f.h.fn)
		for {
			p, ok, err := s.next()
			if !ok {
				if err != nil {
					yield(zero, err)
				}
				return
			}
			vs, err := item.Decode(p, 0, knownErrors())
			if err != nil {
				yield(zero, err)
				return
			}
			v, _ := vs[0].Interface().(T) // of an interface type, it may be nil
			if !yield(v, nil) {
				return
			}
		}
	}
}

// Local runs the function here, in this process, as [Func.Local].
func (f StreamFunc[A, T]) Local(ctx context.Context, args A) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var zero T
		if f.h == nil {
			yield(zero, errNoHandle())
			return
		}
		fn, ok := f.h.fn.impl.(func(context.Context, A) (iter.Seq2[T, error], error))
		if !ok {
			yield(zero, f.h.fn.unbound())
			return
		}
		var seq iter.Seq2[T, error]
		ctx, err := f.h.instance.local(ctx, f.h.fn)
		if err == nil {
			seq, err = fn(ctx, args)
		}
		if err != nil {
			yield(zero, err)
			return
		}
		if seq == nil {
			return
		}
		seq(yield)
	}
}

// With returns a handle with other options, as [Func.With].
func (f StreamFunc[A, T]) With(o Options) StreamFunc[A, T] {
	return StreamFunc[A, T]{f.h.with(o)}
}

// Name is the id of the function, as [Func.Name].
func (f StreamFunc[A, T]) Name() string {
	if f.h == nil {
		return ""
	}
	return f.h.fn.id
}

// stream is a call whose result comes in items. Its methods are for one
// goroutine at a time.
type stream struct {
	ctx   context.Context
	s     *setup
	w     *poolWorker
	h     *hostCall
	l     *lent
	final *frame.Message  // the response; nil until it has come
	stop  <-chan struct{} // closed when the call must end: its context, its timeout, or end
	end   context.CancelFunc

	left atomic.Pointer[error] // why another goroutine than the one that reads has left; nil in it: it was closed

	over bool  // there is nothing left of the call
	err  error // then
}

// startStream makes a call and waits for its first item, or its end.
func startStream[A any](ctx context.Context, h *handle, args *A) (*stream, error) {
	fn := h.fn
	if err := fillDefaults(fn.name, args); err != nil {
		return nil, err
	}
	if fn.decl.Validate != nil {
		if err := fn.decl.Validate(*args); err != nil {
			return nil, invalid(fn.name, err)
		}
	}
	err := fn.ready()
	if err == nil {
		ctx, err = h.instance.begin(ctx, fn)
	}
	if err != nil {
		return nil, err
	}
	if worker.Serving() || worker.InCall(ctx) {
		return nil, &errdefs.Error{
			Code: "E9016", Op: fn.name,
			Message:    "its result is a stream, and it was called from inside a sandbox",
			Suggestion: callHere,
		}
	}
	s, err := h.setup(ctx)
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, ended(ctx, s.name, "before it began")
	}
	ctx, t := s.follow(ctx)
	l := &lent{trail: t}
	p, err := s.encode(ctx, l, args)
	if err != nil {
		l.end(err)
		return nil, t.informed(err)
	}
	defer p.Release()
	for attempt, moves := 0, 0; ; {
		c, v, err := s.stream(ctx, p, l)
		if err == nil {
			return c, nil
		}
		l.trail.left(err)
		switch {
		case !l.untouched():
		case v == notStarted && ctx.Err() == nil && moves < maxMoves:
			moves++
			continue
		case v == lostCall && attempt < s.opts.Retries:
			attempt++
			if wait(ctx, s.opts.Backoff, attempt) {
				continue
			}
		}
		l.end(err)
		return nil, t.informed(err)
	}
}

// stream makes one attempt. It returns when the worker has said something.
func (s *setup) stream(ctx context.Context, p envelope.Payload, l *lent) (*stream, verdict, error) {
	w, err := s.pool.get(ctx, s)
	if err != nil {
		if killedAtStart(err) {
			return nil, notStarted, err
		}
		return nil, gaveUp, err
	}
	w.outputTo(s, w.out, w.err)
	l.trail.at(w.workerConn)
	p.SetTimeout(remaining(ctx, s.opts.Timeout))
	c := &stream{ctx: ctx, s: s, w: w, l: l, h: w.open(ctx, s, l, true)}
	var sctx context.Context
	if s.opts.Timeout > 0 {
		sctx, c.end = context.WithDeadline(ctx, c.h.deadline)
	} else {
		sctx, c.end = context.WithCancel(ctx)
	}
	c.stop = sctx.Done()
	w.startReading()
	if v, err := c.h.send(ctx, s, p); err != nil {
		return nil, v, c.fail(err)
	}
	if c.h.items.Wait(c.stop) {
		return c, answered, nil
	}
	select {
	case <-w.broken:
		if len(c.h.result) == 0 {
			_, v, err := c.h.await(ctx, s)
			return nil, v, c.fail(err)
		}
	default:
	}
	return c, answered, nil
}

// fail ends a call whose worker can't be used any more.
func (c *stream) fail(err error) error {
	c.over, c.err = true, err
	c.h.close()
	c.end()
	c.w.stopReading(c.s)
	c.w.discard()
	return err
}

// next returns the next item. At the end there is none, and the error of the
// call.
func (c *stream) next() (envelope.Payload, bool, error) {
	if c.over {
		return envelope.Payload{}, false, c.err
	}
	for {
		m, credit, ok := c.h.items.Next(c.stop)
		switch {
		case ok:
			if len(credit) > 0 {
				// A failure shows where the connection is read.
				_ = c.w.w.Write(&frame.Message{Type: frame.Credit, ID: c.h.id, Body: credit})
			}
			if len(m.Body) > 0 || len(m.Segments) > 0 {
				return envelope.Payload{Body: m.Body, Segments: m.Segments}, true, nil
			}
		case c.left.Load() != nil:
			c.leave(*c.left.Load())
			return envelope.Payload{}, false, c.err
		case c.final == nil:
			if err := c.await(); err != nil {
				return envelope.Payload{}, false, err
			}
			// Items may have come before it since the queue was empty.
		default:
			return envelope.Payload{}, false, c.finish()
		}
	}
}

// await waits for the response.
func (c *stream) await() error {
	m, v, err := c.h.await(c.ctx, c.s)
	switch v {
	case answered:
		c.final = m
		return nil
	case gaveUp:
		err = c.l.trail.informed(err)
		c.over, c.err = true, err
		c.end()
		c.w.showOutput(c.ctx)
		c.w.leave(c.ctx, c.s, c.h)
		c.l.end(err)
		return err
	}
	c.l.end(err)
	return c.fail(c.l.trail.informed(err))
}

// finish reads the response, after all items are consumed.
func (c *stream) finish() error {
	m := c.final
	c.over = true
	c.h.close()
	c.end()
	c.w.stopReading(c.s)
	var none None
	d, err := envelope.DecodeResponse(envelope.Payload{Body: m.Body, Segments: m.Segments}, c.s.fn.res, knownErrors(), c.l, &none)
	late := c.h.deliver(c.ctx, d.Counters)
	if late != nil {
		err = late
	}
	if err != nil || d.Outcome == envelope.Panicked {
		c.w.discard()
	} else {
		c.w.release(c.s)
	}
	ours := err != nil
	if err == nil {
		ours, err = c.s.fn.outcome(d)
	}
	if c.ctx.Err() != nil && err != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)) {
		ours, err = true, ended(c.ctx, c.s.name, "while the function ran")
	}
	if ours {
		err = c.l.trail.informed(err)
	}
	if bad := c.l.end(err); err == nil {
		err = bad
	}
	c.err = err
	return err
}

// errStreamLeft is why the function's context ends when its stream is left.
var errStreamLeft = errors.New("the stream was left")

// leave ends a call whose stream is not read to its end, because of the end of its
// context or, with a nil why, because it was closed. It does not wait.
func (c *stream) leave(why error) {
	if c.over {
		return
	}
	c.over = true
	c.end()
	c.h.items.End()
	if why != nil {
		c.err = c.l.trail.informed(why)
		c.h.tellCancel(c.ctx)
	} else {
		c.err = errdefs.New("E9009", c.s.name, "the stream was closed")
		why = errStreamLeft
		c.w.sendCancel(c.h.id, why)
	}
	c.w.leave(c.ctx, c.s, c.h)
	c.l.end(why)
}

// bindReader makes fn, whose result is an io.ReadCloser, the function.
func bindReader[A any](f *function, fn func(context.Context, A) (io.ReadCloser, error)) {
	f.bytes = true
	f.res = envelope.Result(reflect.TypeFor[None](), f.name)
	f.newResult = func() any { return new(None) }
	inner := newFunction[A, None](f.decl)
	bindTo(inner, func(ctx context.Context, args A) (_ None, err error) {
		r, err := fn(ctx, args)
		if err != nil || r == nil {
			return None{}, err
		}
		closed := func() bool { return false } // by the end of the context
		defer func() {
			if bad := r.Close(); err == nil && !closed() {
				err = bad
			}
		}()
		s := worker.SenderOf(ctx)
		if !s.Send(envelope.Payload{}) { // the function has returned
			return None{}, ctx.Err()
		}
		stop := context.AfterFunc(ctx, func() { r.Close() }) // a read that blocks ends
		closed = sync.OnceValue(func() bool { return !stop() })
		err = eachChunk(r, func(p envelope.Payload) error {
			if !s.Send(p) {
				return ctx.Err()
			}
			return nil
		})
		if closed() && err != nil { // whatever a reader says that was closed while it read
			err = ctx.Err()
		}
		return None{}, err
	})
	f.run = inner.run
}

// openReader makes a call whose result is an io.ReadCloser.
func openReader[A any](ctx context.Context, h *handle, args *A) (io.ReadCloser, error) {
	s, err := startStream(ctx, h, args)
	if err != nil {
		return nil, informed(err, CallInfo{Function: h.fn.id})
	}
	if s.h.items.Empty() { // it has ended without a reader
		if _, ok, err := s.next(); !ok {
			return nil, err
		}
	}
	r := &streamReader{s: s}
	r.stop = context.AfterFunc(ctx, func() { r.end(ended(ctx, h.fn.name, "while its result was read")) })
	return r, nil
}

// streamReader reads the bytes of a call. Close ends the call.
type streamReader struct {
	stop func() bool

	s *stream

	mu   sync.Mutex // held while s is used
	rest []byte     // guarded by mu
}

// Read implements [io.Reader].
func (r *streamReader) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(p) == 0 {
		return 0, nil
	}
	if len(r.rest) == 0 {
		q, ok, err := r.s.next()
		if !ok {
			if err == nil {
				err = io.EOF
			}
			return 0, err
		}
		r.rest = q.Body
		if len(q.Segments) == 1 {
			r.rest = q.Segments[0]
		}
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// Close implements [io.Closer]. What was not read is lost, and the function's
// context ends. A read that waits ends, too. It is idempotent.
func (r *streamReader) Close() error {
	r.stop()
	r.end(nil)
	return nil
}

// end leaves the stream. A read that waits finds out why, as does the next one.
func (r *streamReader) end(why error) {
	r.s.left.CompareAndSwap(nil, &why)
	r.s.end()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.s.leave(*r.s.left.Load())
}
