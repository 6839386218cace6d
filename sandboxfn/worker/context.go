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
	opened   func()    // called when the function looks at the context
	store    *sync.Map // of the worker

	once  sync.Once
	real  context.Context
	stop  context.CancelFunc
	cause context.CancelCauseFunc
}

func newCallContext(timeout time.Duration, store *sync.Map, opened func()) *callContext {
	c := &callContext{opened: opened, store: store}
	if timeout > 0 {
		c.deadline = time.Now().Add(timeout)
	}
	return c
}

func (c *callContext) open() context.Context {
	c.once.Do(func() {
		// A call is the beginning of all work in a worker.
		c.real, c.cause = context.WithCancelCause(context.Background())
		c.stop = func() {}
		if !c.deadline.IsZero() {
			c.real, c.stop = context.WithDeadline(c.real, c.deadline)
		}
		c.opened()
	})
	return c.real
}

func (c *callContext) Deadline() (time.Time, bool) { return c.deadline, !c.deadline.IsZero() }
func (c *callContext) Done() <-chan struct{}       { return c.open().Done() }
func (c *callContext) Err() error                  { return c.open().Err() }

func (c *callContext) Value(key any) any {
	if key == (storeKey{}) {
		return c.store
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

// WithStore returns a context of which s is the store.
func WithStore(ctx context.Context, s *sync.Map) context.Context {
	return context.WithValue(ctx, storeKey{}, s)
}

// Store returns the place for values that belong to the worker which runs the
// call of ctx, and live as long as it. It is nil when ctx is not that of a call.
func Store(ctx context.Context) *sync.Map {
	m, _ := ctx.Value(storeKey{}).(*sync.Map)
	return m
}
