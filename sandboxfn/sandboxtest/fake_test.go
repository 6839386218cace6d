package sandboxtest_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/sandboxtest"
)

// twice calls another sandboxed function.
var twice = declare("twice", func(ctx context.Context, n int) (int, error) {
	for range 2 {
		var err error
		if n, err = double.Call(ctx, n); err != nil {
			return 0, err
		}
	}
	return n, nil
})

var positive = declareDecl(sandboxfn.Decl{Name: "positive", Params: []sandboxfn.Param{{Name: "n"}}, Validate: func(v any) error {
	if v.(int) <= 0 {
		return errors.New("not positive")
	}
	return nil
}}, func(_ context.Context, n int) (int, error) { return n, nil })

func TestFake(t *testing.T) {
	errFake := errors.New("fake")
	fake := func(by int) func(context.Context, int) (int, error) {
		return func(_ context.Context, n int) (int, error) {
			if n < 0 {
				return by, errFake
			}
			return n * by, nil
		}
	}
	// No client, and no sandbox, for what is only faked.
	ctx := sandboxtest.Fake(t.Context(), double, fake(10))
	if got, err := double.Call(ctx, 2); got != 20 || err != nil {
		t.Errorf("faked: %d, %v", got, err)
	}
	if got, err := double.With(sandboxfn.Options{Timeout: 1}).Call(ctx, 2); got != 20 || err != nil {
		t.Errorf("another handle: %d, %v", got, err)
	}
	if got, err := double.Call(ctx, -2); got != 10 || err != errFake {
		t.Errorf("an error beside a result: %d, %v", got, err)
	}
	if got, err := double.Spawn(ctx, 3).Wait(ctx); got != 30 || err != nil {
		t.Errorf("Spawn: %d, %v", got, err)
	}
	if got, err := double.Collect(ctx, []int{1, 2, 3}); !slices.Equal(got, []int{10, 20, 30}) || err != nil {
		t.Errorf("Collect: %v, %v", got, err)
	}
	if got, err := double.Local(ctx, 2); got != 4 || err != nil {
		t.Errorf("Local: %d, %v", got, err)
	}
	inner := sandboxtest.Fake(ctx, double, fake(100))
	if got, err := double.Call(inner, 2); got != 200 || err != nil {
		t.Errorf("the inner of two: %d, %v", got, err)
	}
	if got, err := double.Call(ctx, 2); got != 20 || err != nil {
		t.Errorf("the outer one: %d, %v", got, err)
	}
	ctx = sandboxtest.Fake(ctx, positive, fake(7))
	if _, err := positive.Call(ctx, -1); !errors.Is(err, sandboxfn.ErrValidation) {
		t.Errorf("a broken rule: %v", err)
	}
	if got, err := positive.Call(ctx, 2); got != 14 || err != nil {
		t.Errorf("the second of two functions: %d, %v", got, err)
	}
}

// A function that runs for real meets the fakes of those it calls.
func TestFakeOfNestedCalls(t *testing.T) {
	for name, mode := range map[string]func(testing.TB) context.Context{"in process": sandboxtest.InProcess, "process": sandboxtest.Process} {
		t.Run(name, func(t *testing.T) {
			ctx := mode(t)
			if got, err := twice.Call(ctx, 1); got != 4 || err != nil {
				t.Errorf("without a fake: %d, %v", got, err)
			}
			ctx = sandboxtest.Fake(ctx, double, func(_ context.Context, n int) (int, error) { return n + 1, nil })
			if got, err := twice.Call(ctx, 1); got != 3 || err != nil {
				t.Errorf("with one: %d, %v", got, err)
			}
		})
	}
}
