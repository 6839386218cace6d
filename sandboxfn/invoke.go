package sandboxfn

import (
	"context"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/envelope"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
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
	set            *poolSet
	pool           *pool
	stdout, stderr io.Writer
	secrets        SecretSource
	order          order[*poolWorker]
	ordered        sync.Once // order is set
}

func call[A, R any](ctx context.Context, h *handle, args *A) (R, error) {
	var result, zero R
	fn := h.fn
	if fn.decl.Validate != nil {
		if err := fn.decl.Validate(*args); err != nil {
			return zero, invalid(fn.name, err)
		}
	}
	ours, err := h.call(ctx, args, &result)
	if ours {
		return zero, err
	}
	return result, err
}

// call runs the function with what args points to, and puts its result where
// result points. ours says that err is not the function's own.
func (h *handle) call(ctx context.Context, args, result any) (ours bool, err error) {
	fn := h.fn
	if err := fn.ready(); err != nil {
		return true, err
	}
	if worker.Serving() {
		return true, &errdefs.Error{
			Code: "E9016", Op: fn.name,
			Message:    "it was called from inside a sandboxed function, which has no way to start a sandbox",
			Suggestion: "call the function itself, or its handle's Local, which run it in the same worker",
		}
	}
	mode := worker.ModeOf(ctx)
	if mode != nil && mode.InProcess {
		return h.inProcess(ctx, args, result)
	}
	s, err := h.setup(ctx, mode)
	if err != nil {
		return true, err
	}
	if ctx.Err() != nil {
		return true, ended(ctx, s.name, "before it began")
	}
	limit := int64(s.opts.MaxPayload)
	p, err := envelope.EncodeRequest(envelope.Request{ID: fn.id, MaxPayload: limit}, fn.args, knownErrors(), args, limit)
	if err != nil {
		return true, err
	}
	defer p.Release()
	for attempt, moves := 0, 0; ; {
		d, v, err := s.once(ctx, p, result)
		switch {
		case v == notStarted && ctx.Err() == nil && moves < maxMoves:
			moves++
			continue
		case v == lostCall && attempt < s.opts.Retries,
			v == answered && err == nil && attempt < s.opts.Retries && d.Err != nil && isTransient(d.Err):
			attempt++
			if wait(ctx, s.opts.Backoff, attempt) {
				fn.clear(result)
				continue
			}
		}
		if err != nil {
			return true, err
		}
		switch d.Outcome {
		case envelope.Panicked:
			return true, &PanicError{Func: fn.name, Value: d.Panic.Value, Stack: d.Panic.Stack}
		case envelope.Failed:
			return true, d.Err
		}
		return false, d.Err
	}
}

// once makes one attempt. An error is ours; a verdict of notStarted or lostCall
// comes with one.
func (s *setup) once(ctx context.Context, p envelope.Payload, result any) (envelope.Decoded, verdict, error) {
	w, err := s.pool.get(ctx, s)
	if err != nil {
		if killedAtStart(err) {
			return envelope.Decoded{}, notStarted, err
		}
		return envelope.Decoded{}, gaveUp, err // nothing that another worker could do better
	}
	w.outputTo(s, w.out, w.err)
	p.SetTimeout(remaining(ctx, s.opts.Timeout))
	answer, v, err := w.attempt(ctx, s, p)
	switch v {
	case answered:
	case gaveUp:
		w.showOutput(ctx)
		s.set.spawn(func() {
			if w.settle(ctx, s) {
				w.release(s)
			} else {
				w.discard()
			}
		})
		return envelope.Decoded{}, v, err
	default:
		w.discard()
		return envelope.Decoded{}, v, err
	}
	d, err := envelope.DecodeResponse(answer, s.fn.res, knownErrors(), result)
	w.deliver(ctx, d.Counters)
	if err != nil || d.Outcome == envelope.Panicked {
		w.drain() // what it is in now is not known
	} else {
		w.release(s)
	}
	return d, v, err
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
func (h *handle) setup(ctx context.Context, mode *worker.Mode) (*setup, error) {
	var c *Client
	var set *poolSet
	if mode != nil {
		set = processPools(mode)
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
	s := &setup{fn: h.fn, name: h.fn.name, unit: h.fn.unit, opts: o, instance: h.instance, set: set}
	if calledMain.Load() {
		s.unit = everything
	}
	s.stdout, s.stderr = os.Stdout, os.Stderr
	if c != nil {
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
		s.stdout, s.stderr = lineLogger{h.fn.id, "stdout"}, lineLogger{h.fn.id, "stderr"}
	case LogDiscard:
		s.stdout, s.stderr = io.Discard, io.Discard
	}
	key, err := s.poolKey(ctx, c)
	if err != nil {
		return nil, err
	}
	s.pool = set.of(key)
	h.last.Store(s)
	return s, nil
}

// inProcess runs the function here, through the codec, as a worker would. One
// that is marked idempotent runs twice, so that a wrong mark shows.
func (h *handle) inProcess(ctx context.Context, args, result any) (ours bool, err error) {
	o := h.opts.withDefaults()
	if err := o.check(h.fn.name); err != nil {
		return true, err
	}
	limit, errs := int64(o.MaxPayload), knownErrors()
	p, err := envelope.EncodeRequest(envelope.Request{ID: h.fn.id, MaxPayload: limit}, h.fn.args, errs, args, limit)
	if err != nil {
		return true, err
	}
	runs := 1
	if o.Idempotent {
		runs = 2
	}
	for range runs {
		h.fn.clear(result)
		if ours, err = h.runHere(ctx, o, p, result); ours {
			return ours, err
		}
	}
	return ours, err
}

// runHere runs the function in a goroutine, which a function that ignores its
// context keeps after the call has been given up.
func (h *handle) runHere(ctx context.Context, o Options, p envelope.Payload, result any) (ours bool, err error) {
	if ctx.Err() != nil {
		return true, ended(ctx, h.fn.name, "before it began")
	}
	fctx, cancel := context.WithCancel(worker.WithStore(ctx, worker.ModeOf(ctx).Store()))
	if o.Timeout > 0 {
		fctx, cancel = context.WithTimeout(fctx, o.Timeout)
	}
	defer cancel()
	answer := make(chan envelope.Payload, 1)
	p = p.Clone() // the function gets slices of its own
	go func() { answer <- worker.Run(fctx, h.fn.guest(), p, knownErrors()) }()
	var late <-chan time.Time
	stop := fctx.Done()
	for {
		select {
		case <-stop:
			t := time.NewTimer(min(answerTime, o.Grace))
			defer t.Stop()
			stop, late = nil, t.C
		case <-late:
			if ctx.Err() != nil {
				return true, ended(ctx, h.fn.name, "while the function ran")
			}
			return true, errdefs.New("E9013", h.fn.name, "timed out after "+o.Timeout.String())
		case a := <-answer:
			d, err := envelope.DecodeResponse(a, h.fn.res, knownErrors(), result)
			switch {
			case err != nil:
				return true, err
			case d.Outcome == envelope.Panicked:
				return true, &PanicError{Func: h.fn.name, Value: d.Panic.Value, Stack: d.Panic.Stack}
			}
			return d.Outcome == envelope.Failed, d.Err
		}
	}
}
