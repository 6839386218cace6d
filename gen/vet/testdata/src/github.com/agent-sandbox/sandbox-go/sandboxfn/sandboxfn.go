// Package sandboxfn stands for the library.
package sandboxfn

import (
	"context"
	"iter"
)

const Generated1 = 1

type None struct{}

type Options struct{}

type Decl struct{ Package, Name, Schema string }

type Func[A, R any] struct{}

func Declare[A, R any](d Decl) Func[A, R] { return Func[A, R]{} }

func Bind[A, R any](f Func[A, R], fn func(context.Context, A) (R, error)) {}

func (f Func[A, R]) Call(ctx context.Context, a A) (r R, err error)  { return }
func (f Func[A, R]) Local(ctx context.Context, a A) (r R, err error) { return }
func (f Func[A, R]) Map(ctx context.Context, in iter.Seq[A]) iter.Seq2[R, error] {
	return nil
}
func (f Func[A, R]) Spawn(ctx context.Context, a A) *Call[R] { return nil }

type Call[R any] struct{}

func (c *Call[R]) Wait(ctx context.Context) (r R, err error) { return }

type StreamFunc[A, T any] struct{}

func DeclareStream[A, T any](d Decl) StreamFunc[A, T] { return StreamFunc[A, T]{} }

func BindStream[A, T any](f StreamFunc[A, T], fn func(context.Context, A) (iter.Seq2[T, error], error)) {
}

func (f StreamFunc[A, T]) Stream(ctx context.Context, a A) iter.Seq2[T, error] { return nil }

func Takeover(unit string) {}

func Main() {}
