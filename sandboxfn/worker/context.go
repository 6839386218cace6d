package worker

import (
	"context"
	"sync"
	"time"
)

// callContext is the context of one call. It starts a timer and the rest only
// when the function looks at it: most functions are done before, and waking the
// thread that watches timers costs more than all else the worker does.
type callContext struct {
	deadline time.Time // zero: none
	call     *running

	once  sync.Once
	real  context.Context
	stop  context.CancelFunc
	cause context.CancelCauseFunc
}

func newCallContext(timeout time.Duration, call *running) *callContext {
	c := &callContext{call: call}
	if timeout > 0 {
		c.deadline = time.Now().Add(timeout)
	}
	return c
}

func (c *callContext) open() context.Context {
	c.once.Do(func() {
		// A call is the beginning of all work in a worker.
		base := context.Background()
		if c.call.s.base != nil {
			base = c.call.s.base(c.call.id)
		}
		c.real, c.cause = context.WithCancelCause(base)
		c.stop = func() {}
		if !c.deadline.IsZero() {
			c.real, c.stop = context.WithDeadline(c.real, c.deadline)
		}
		c.call.relieve()
	})
	return c.real
}

func (c *callContext) Deadline() (time.Time, bool) { return c.deadline, !c.deadline.IsZero() }
func (c *callContext) Done() <-chan struct{}       { return c.open().Done() }
func (c *callContext) Err() error                  { return c.open().Err() }

func (c *callContext) Value(key any) any {
	switch key {
	case storeKey{}:
		return &c.call.s.store
	case callKey{}:
		return c.call
	}
	return c.open().Value(key)
}

// cancel ends the context: with context.Canceled, and cause as its cause, when
// that is not nil.
func (c *callContext) cancel(cause error) {
	c.open()
	c.cause(cause)
}

// release ends the context after its call.
func (c *callContext) release() {
	c.once.Do(func() {
		// Nobody has looked at it: what still holds it finds it cancelled.
		c.real, c.stop, c.cause = ended, func() {}, func(error) {}
	})
	c.stop()
	c.cause(context.Canceled)
}

// ended is the context of calls that are over.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

type storeKey struct{}
type callKey struct{}

// Store returns the place for values that belong to the worker which runs the
// call of ctx, and live as long as it. It is nil when ctx is not that of a call.
func Store(ctx context.Context) *sync.Map {
	m, _ := ctx.Value(storeKey{}).(*sync.Map)
	return m
}

// callOf returns the call of ctx, or nil.
func callOf(ctx context.Context) *running {
	c, _ := ctx.Value(callKey{}).(*running)
	return c
}

// Meta returns what goes with the call of ctx: pairs of name and text.
func Meta(ctx context.Context) []string {
	if c := callOf(ctx); c != nil {
		return c.meta
	}
	return nil
}

// InCall reports whether ctx is that of a call, or comes from it.
func InCall(ctx context.Context) bool { return callOf(ctx) != nil }
