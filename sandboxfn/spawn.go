package sandboxfn

import (
	"context"
	"io"
	"sync"
	"sync/atomic"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// Spawn starts a call and returns at once. It never fails by itself: what is
// wrong with the call is its error, which [Call.Wait] returns. ctx governs the
// call, as it does in [Func.Call]: when it ends, so does the call. args must not
// change until the call is done.
//
// A call that nobody waits for needs no clean-up: it keeps what it needs until
// it is done, and nothing after that, unless its result is a reader: that keeps
// its worker until it is read to its end or closed, or ctx ends. There is no
// limit on spawned calls but that of the workers they wait for.
func (f Func[A, R]) Spawn(ctx context.Context, args A) *Call[R] {
	var number atomic.Uint64
	number.Store(lastCall.Add(1))
	c := &Call[R]{id: (&trail{n: number.Load()}).id(), name: f.h.name(), done: make(chan struct{})}
	ctx, c.cancel = context.WithCancelCause(context.WithValue(ctx, numberKey{}, &number))
	go func() {
		reads := false
		defer func() {
			if !reads {
				c.cancel(nil)
			}
		}()
		v, err := f.Call(ctx, args)
		reads = onceRead(&v, func() { c.cancel(nil) })
		c.mu.Lock()
		c.result = Result[R]{v, err}
		close(c.done)
		told := c.tell
		c.tell = nil
		c.mu.Unlock()
		for _, f := range told {
			f()
		}
	}()
	return c
}

// onceRead reports whether a result is a reader, which lives as long as the
// context of its call, and lets end be called once it is read to its end or
// closed.
func onceRead[R any](result *R, end func()) bool {
	r, ok := any(result).(*io.ReadCloser)
	if !ok || *r == nil {
		return false
	}
	*r = &endingReader{*r, sync.OnceFunc(end)}
	return true
}

// endingReader tells when it has ended.
type endingReader struct {
	io.ReadCloser
	end func()
}

func (r *endingReader) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	if err != nil {
		r.end()
	}
	return n, err
}

func (r *endingReader) Close() error {
	defer r.end()
	return r.ReadCloser.Close()
}

type numberKey struct{}

// callNumber is the number of a call that is made under ctx: the one that Spawn
// has promised, which is taken once, or a new one.
func callNumber(ctx context.Context) uint64 {
	if n, ok := ctx.Value(numberKey{}).(*atomic.Uint64); ok {
		if n := n.Swap(0); n != 0 {
			return n
		}
	}
	return lastCall.Add(1)
}

// A Call is one that [Func.Spawn] has started. It is safe for concurrent use.
type Call[R any] struct {
	id, name string
	cancel   context.CancelCauseFunc
	done     chan struct{}

	mu     sync.Mutex
	tell   []func()  // guarded by mu; called when it is done
	result Result[R] // guarded by mu until it is done
}

// ID names the call among all calls, in log records, in spans and in the
// [CallInfo] of its error. Of calls that run as one batch, these name one.
func (c *Call[R]) ID() string { return c.id }

// Wait waits for the call and returns what came of it, as often as it is asked.
// When ctx ends first, it returns E9013 or E9014, and the call goes on.
func (c *Call[R]) Wait(ctx context.Context) (R, error) {
	select {
	case <-c.done:
		return c.result.Value, c.result.Err
	default:
	}
	select {
	case <-c.done:
		return c.result.Value, c.result.Err
	case <-ctx.Done():
		var zero R
		return zero, ended(ctx, c.name, "while waiting for the call")
	}
}

// Done returns a channel that is closed when the call has ended.
func (c *Call[R]) Done() <-chan struct{} { return c.done }

// Poll does not wait: it reports whether the call has ended, and if so what came
// of it.
func (c *Call[R]) Poll() (result R, done bool, err error) {
	select {
	case <-c.done:
		return c.result.Value, true, c.result.Err
	default:
		return result, false, nil
	}
}

// Cancel cancels the call's context with a cause, which the call's error wraps;
// nil means none. It does not wait for the end, and does nothing after it, but to
// a reader that is the result: that ends.
func (c *Call[R]) Cancel(cause error) { c.cancel(cause) }

// whenDone calls f when the call has ended, at once when it has.
func (c *Call[R]) whenDone(f func()) {
	c.mu.Lock()
	select {
	case <-c.done:
		c.mu.Unlock()
		f()
	default:
		c.tell = append(c.tell, f)
		c.mu.Unlock()
	}
}

// Gather waits for all calls and returns their results in the order of calls.
// The first error, in time, cancels the rest with it as the cause; it is
// returned, alone, when all have ended. So does the end of ctx: E9013 or E9014.
// Without calls there are no results and no error. A call that [Func.Spawn] has
// not made is E9008, and cancels nothing.
func Gather[R any](ctx context.Context, calls ...*Call[R]) ([]R, error) {
	for _, c := range calls {
		if c == nil || c.done == nil {
			return nil, errdefs.New("E9008", "gather", "one of the calls was not made by Spawn")
		}
	}
	ends := make(chan int, len(calls))
	for i, c := range calls {
		c.whenDone(func() { ends <- i })
	}
	results := make([]R, len(calls))
	var first error
	fail := func(err error) {
		if first == nil {
			first = err
			for _, c := range calls {
				c.Cancel(err)
			}
		}
	}
	over := ctx.Done()
	for left := len(calls); left > 0; {
		select {
		case i := <-ends:
			left--
			r := calls[i].result
			if results[i] = r.Value; r.Err != nil {
				fail(r.Err)
			}
		case <-over:
			if over = nil; len(ends) == left {
				continue // all have ended as well
			}
			fail(ended(ctx, calls[0].name, "while gathering calls"))
		}
	}
	if first != nil {
		return nil, first
	}
	return results, nil
}
