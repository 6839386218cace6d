package worker

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
)

// Mode says that calls under a context run without a sandbox. Package
// sandboxtest makes it. It is safe for concurrent use.
type Mode struct {
	// InProcess runs functions in this process, through the codec. Otherwise
	// they run in worker processes of this executable.
	InProcess bool

	mu      sync.Mutex
	kept    any                           // guarded by mu
	closers []func(context.Context) error // guarded by mu
}

type modeKey struct{}

// WithMode returns a context under which calls run as m says.
func WithMode(ctx context.Context, m *Mode) context.Context {
	return context.WithValue(ctx, modeKey{}, m)
}

// ModeOf returns the mode of ctx, or nil.
func ModeOf(ctx context.Context) *Mode {
	m, _ := ctx.Value(modeKey{}).(*Mode)
	return m
}

type fakeKey string

// faked is set once there is a fake.
var faked atomic.Bool

// A Fake stands for a function: args points to its arguments, result to its
// result.
type Fake func(ctx context.Context, args, result any) error

// WithFake returns a context under which calls of the function with an id are
// made by f.
func WithFake(ctx context.Context, id string, f Fake) context.Context {
	faked.Store(true)
	return context.WithValue(ctx, fakeKey(id), f)
}

// FakeOf returns what stands for the function with an id under ctx, or nil.
func FakeOf(ctx context.Context, id string) Fake {
	if !faked.Load() {
		return nil
	}
	f, _ := ctx.Value(fakeKey(id)).(Fake)
	return f
}

// Keep returns what make returned the first time; end is what Close calls for
// it. It lets package sandboxfn keep its workers with the mode.
func (m *Mode) Keep(make func() (kept any, end func(context.Context) error)) any {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.kept == nil {
		var end func(context.Context) error
		m.kept, end = make()
		m.closers = append(m.closers, end)
	}
	return m.kept
}

// Close ends what was started for m. It is idempotent.
func (m *Mode) Close(ctx context.Context) error {
	m.mu.Lock()
	closers := m.closers
	m.closers = nil
	m.mu.Unlock()
	var errs []error
	for _, end := range closers {
		errs = append(errs, end(ctx))
	}
	return errors.Join(errs...)
}
