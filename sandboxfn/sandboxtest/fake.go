package sandboxtest

import (
	"context"
	"iter"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/worker"
)

// Fake returns a context under which fn stands for the function of f, however it
// is called: by its wrapper, by any handle of it, with Spawn and Map, and by
// sandboxed functions that run in a test. Arguments are checked by their rules
// first; there is nothing else between caller and fn: no copies, no deadline, no
// output. Func.Local still runs the function itself.
//
// A fake is part of the context alone, so tests that run at once do not meet.
// Another fake of the same function, further inside, hides it; fn gets a context
// under which it is called again by its own function.
func Fake[A, R any](ctx context.Context, f sandboxfn.Func[A, R], fn func(context.Context, A) (R, error)) context.Context {
	return worker.WithFake(ctx, f.Name(), func(ctx context.Context, args, result any) error {
		r, err := fn(ctx, *args.(*A))
		*result.(*R) = r
		return err
	})
}

// FakeStream is [Fake] for a function whose result is a stream: the error of fn
// is the only pair.
func FakeStream[A, T any](ctx context.Context, f sandboxfn.StreamFunc[A, T], fn func(context.Context, A) (iter.Seq2[T, error], error)) context.Context {
	return worker.WithFake(ctx, f.Name(), func(ctx context.Context, args, result any) error {
		seq, err := fn(ctx, *args.(*A))
		*result.(*iter.Seq2[T, error]) = seq
		return err
	})
}
