package sandboxfn

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"reflect"
	"sync"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/envelope"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/worker"
)

// maxMoves is how often a call that did not start goes to another worker.
const maxMoves = 3

// setup is a handle ready to be called under one client: its options, and its
// pool.
type setup struct {
	fn             *function
	name           string
	unit           string  // what its worker takes over
	opts           Options // with defaults
	instance       *instance
	inProcess      bool
	set            *poolSet
	pool           *pool
	stdout, stderr io.Writer
	secrets        SecretSource
	tracer         Tracer       // nil: the program's
	records        *slog.Logger // of functions; nil: slog.Default
	order          order[*poolWorker]
	ordered        sync.Once // order is set
}

func call[A, R any](ctx context.Context, h *handle, args *A) (R, error) {
	var result, zero R
	fn := h.fn
	if err := fillDefaults(fn.name, args); err != nil {
		return zero, err
	}
	if fn.decl.Validate != nil {
		if err := fn.decl.Validate(*args); err != nil {
			return zero, informed(invalid(fn.name, err), CallInfo{Function: fn.id})
		}
	}
	ours, err := h.call(ctx, args, &result)
	if ours {
		return zero, informed(err, CallInfo{Function: fn.id})
	}
	return result, err
}

// callChecked is call for arguments that nobody has checked.
func (h *handle) callChecked(ctx context.Context, args, result any) (ours bool, err error) {
	if err := fillDefaults(h.fn.name, args); err != nil {
		return true, err
	}
	if check := h.fn.decl.Validate; check != nil && h.fn.batch == nil { // of a batch, the worker checks each item
		if err := check(reflect.ValueOf(args).Elem().Interface()); err != nil {
			return true, invalid(h.fn.name, err)
		}
	}
	return h.call(ctx, args, result)
}

// call runs the function with what args points to, and puts its result where
// result points. ours says that err is not the function's own.
func (h *handle) call(ctx context.Context, args, result any) (ours bool, err error) {
	fn := h.fn
	if fake := worker.FakeOf(ctx, fn.id); fake != nil {
		return false, fake(ctx, args, result)
	}
	if err := fn.ready(); err != nil {
		return true, err
	}
	if ctx, err = h.instance.begin(ctx, fn); err != nil {
		return true, err
	}
	ctx, inside, ours, err := h.inside(ctx, args, result)
	if inside {
		return ours, err
	}
	s, err := h.setup(ctx)
	if err != nil {
		return true, err
	}
	if ctx.Err() != nil {
		return true, ended(ctx, s.name, "before it began")
	}
	runs := 1
	if s.opts.Idempotent && s.inProcess && !fn.args.Live() {
		runs = 2 // so that a wrong mark shows
	}
	for range runs {
		fn.clear(result)
		ctx, t := s.follow(ctx)
		l := &lent{trail: t}
		if ours, err = s.callWith(ctx, l, args, result); err != nil {
			l.end(err)
		} else if err = l.end(nil); err != nil {
			fn.clear(result)
			return true, t.informed(err)
		}
		if ours {
			return true, t.informed(err)
		}
	}
	return ours, err
}

// callWith makes the attempts of one call, for which l is new.
func (s *setup) callWith(ctx context.Context, l *lent, args, result any) (ours bool, err error) {
	p, err := s.encode(ctx, l, args)
	if err != nil {
		return true, err
	}
	defer p.Release()
	for attempt, moves := 0, 0; ; {
		d, v, err := s.once(ctx, p, l, result)
		l.trail.left(cmp.Or(err, d.Err))
		switch {
		case !l.untouched(): // what it had of the caller is not there a second time
		case v == notStarted && ctx.Err() == nil && moves < maxMoves:
			moves++
			continue
		case v == lostCall && attempt < s.opts.Retries,
			v == answered && err == nil && attempt < s.opts.Retries && d.Err != nil && isTransient(d.Err):
			attempt++
			if wait(ctx, s.opts.Backoff, attempt) {
				s.fn.clear(result)
				continue
			}
		}
		if err != nil {
			return true, err
		}
		return s.fn.outcome(d)
	}
}

// encode encodes the request of a call.
func (s *setup) encode(ctx context.Context, l *lent, args any) (envelope.Payload, error) {
	limit := int64(s.opts.MaxPayload)
	r := envelope.Request{ID: s.fn.id, MaxPayload: limit, Live: l, Shared: s.shared(), JSON: s.opts.Codec == CodecJSON}
	if s.opts.Nested != NestedCaller {
		r.Meta = append(r.Meta, metaNested, string(s.opts.Nested))
	}
	r.Meta = s.logMeta(ctx, r.Meta)
	r.Meta = l.trail.appendMeta(r.Meta)
	l.begin(ctx, s.fn)
	p, err := envelope.EncodeRequest(r, s.fn.args, knownErrors(), args, limit)
	return p, l.stopped(err, "while its arguments were read")
}

// outcome is what a call returns by its response.
func (f *function) outcome(d envelope.Decoded) (ours bool, err error) {
	switch d.Outcome {
	case envelope.Panicked:
		return true, &PanicError{Func: f.name, Value: d.Panic.Value, Stack: d.Panic.Stack}
	case envelope.Failed:
		return true, d.Err
	}
	return false, d.Err
}

// once makes one attempt. An error is ours; a verdict of notStarted or lostCall
// comes with one.
func (s *setup) once(ctx context.Context, p envelope.Payload, l *lent, result any) (envelope.Decoded, verdict, error) {
	w, err := s.pool.get(ctx, s)
	if err != nil {
		if killedAtStart(err) {
			return envelope.Decoded{}, notStarted, err
		}
		return envelope.Decoded{}, gaveUp, err // nothing that another worker could do better
	}
	w.outputTo(s, w.out, w.err)
	l.trail.at(w.workerConn)
	p.SetTimeout(remaining(ctx, s.opts.Timeout))
	h, answer, v, err := w.attempt(ctx, s, p, l)
	switch v {
	case answered:
	case gaveUp:
		w.showOutput(ctx)
		w.leave(ctx, s, h)
		return envelope.Decoded{}, v, err
	default:
		w.discard()
		return envelope.Decoded{}, v, err
	}
	d, err := envelope.DecodeResponse(answer, s.fn.res, knownErrors(), l, result)
	err = l.stopped(err, "while its result was received")
	if late := h.deliver(ctx, d.Counters); late != nil {
		w.discard()
		return envelope.Decoded{}, lostCall, late
	}
	if err != nil || d.Outcome == envelope.Panicked {
		w.drain() // what it is in now is not known
	} else {
		w.release(s)
	}
	return d, v, err
}

// leave leaves a call that was given up: its worker is used again when the
// function returns within what is left of its grace, and else ended.
func (w *poolWorker) leave(ctx context.Context, s *setup, h *hostCall) {
	end := func() {
		ok := w.settle(ctx, h, s)
		if h.items != nil {
			w.stopReading(s)
		}
		if ok {
			w.release(s)
		} else {
			w.discard()
		}
	}
	if !s.set.spawn(end) {
		h.close()
		w.discard()
	}
}

// remaining is how long the function may run: the timeout, or what is left
// until the caller's deadline.
func remaining(ctx context.Context, timeout time.Duration) time.Duration {
	end, ok := ctx.Deadline()
	if !ok {
		return timeout
	}
	left := max(time.Until(end), 1)
	if timeout == 0 || left < timeout {
		return left
	}
	return timeout
}

// wait waits before another attempt, a random time below the bound of the
// backoff. It reports false when ctx ends first.
func wait(ctx context.Context, b Backoff, attempt int) bool {
	bound := float64(b.First)
	for range attempt - 1 {
		bound = min(bound*b.Factor, float64(b.Max))
	}
	t := time.NewTimer(time.Duration(rand.Int64N(int64(bound)) + 1))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// setup returns what calls of h need under the client, or the mode, of ctx. It
// is kept with the handle.
func (h *handle) setup(ctx context.Context) (*setup, error) {
	mode, err := modeOf(ctx)
	if err != nil {
		return nil, err
	}
	var c *Client
	var set *poolSet
	if mode != nil {
		set = modePools(mode)
	} else {
		var err error
		if c, err = clientFrom(ctx); err != nil {
			return nil, err
		}
		set = c.pools()
	}
	if s := h.last.Load(); s != nil && s.set == set {
		return s, nil
	}
	o := h.opts.withDefaults()
	if err := o.check(h.fn.name); err != nil {
		return nil, err
	}
	h.instance.adjust(&o)
	s := &setup{fn: h.fn, name: h.fn.name, unit: h.fn.unit, opts: o, instance: h.instance, set: set}
	s.inProcess = mode != nil && mode.InProcess
	if calledMain.Load() {
		s.unit = everything
	}
	s.stdout, s.stderr, s.tracer = os.Stdout, os.Stderr, o.Tracer
	if c != nil {
		s.records = c.records
		if s.tracer == nil {
			s.tracer = c.opts.Tracer
		}
		s.stdout, s.stderr = c.opts.Stdout, c.opts.Stderr
	}
	switch o.Log {
	case LogForward:
		if o.Stdout != nil {
			s.stdout = o.Stdout
		}
		if o.Stderr != nil {
			s.stderr = o.Stderr
		}
	case LogSlog:
		s.stdout, s.stderr = lineLogger{s.records, h.fn.id, "stdout"}, lineLogger{s.records, h.fn.id, "stderr"}
	case LogDiscard:
		s.stdout, s.stderr = io.Discard, io.Discard
	}
	key, err := s.poolKey(ctx, c)
	if err != nil {
		return nil, err
	}
	if s.pool, err = h.instance.poolOf(set, key, h.fn.name); err != nil {
		return nil, err
	}
	h.last.Store(s)
	return s, nil
}
