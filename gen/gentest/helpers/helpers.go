// Package helpers has functions with the names of things that generated code
// could have itself.
package helpers

import "context"

// New adds one.
//
//sandbox:func
func New(n int) (int, error) { return n + 1, nil }

// Client adds.
//
//sandbox:func
func Client(a, b int) (int, error) { return a + b, nil }

// Init does nothing.
//
//sandbox:func
func Init() error { return nil }

// Call doubles.
//
//sandbox:func
func Call(ctx context.Context, n int) int { return 2 * n }

// Register counts.
//
//sandbox:func
func Register(names ...string) int { return len(names) }

// String is a text.
//
//sandbox:func
func String() string { return "text" }

// a has the name of a variable that generated code likes.
//
//sandbox:func
func a(ctx string, err, r int) (x string, y int) { return ctx, err - r }

// Plain calls them all here.
func Plain(ctx context.Context) ([]any, error) {
	n, err := New(1)
	if err != nil {
		return nil, err
	}
	c, err := Client(2, 3)
	if err != nil {
		return nil, err
	}
	x, y := a("c", 5, 3)
	return []any{n, c, Call(ctx, 4), Register("a", "b"), String(), x, y}, Init()
}

// Remote calls their wrappers.
func Remote(ctx context.Context) ([]any, error) {
	n, err := NewRemote(ctx, 1)
	if err != nil {
		return nil, err
	}
	c, err := ClientRemote(ctx, 2, 3)
	if err != nil {
		return nil, err
	}
	d, err := CallRemote(ctx, 4)
	if err != nil {
		return nil, err
	}
	k, err := RegisterRemote(ctx, "a", "b")
	if err != nil {
		return nil, err
	}
	s, err := StringRemote(ctx)
	if err != nil {
		return nil, err
	}
	x, y, err := A(ctx, "c", 5, 3)
	if err != nil {
		return nil, err
	}
	return []any{n, c, d, k, s, x, y}, InitRemote(ctx)
}
