package sandboxtest_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/sandboxtest"
)

var double = declare("double", func(_ context.Context, n int) (int, error) {
	if n < 0 {
		return 0, fmt.Errorf("double %d: %w", n, os.ErrInvalid)
	}
	return 2 * n, nil
})

var whoami = declare("whoami", func(context.Context, sandboxfn.None) (int, error) { return os.Getpid(), nil })

var runs int

var count = declareWith("count", sandboxfn.Options{Idempotent: true}, func(context.Context, sandboxfn.None) (int, error) {
	runs++
	return runs, nil
})

func TestModes(t *testing.T) {
	for name, mode := range map[string]func(testing.TB) context.Context{"in process": sandboxtest.InProcess, "process": sandboxtest.Process} {
		t.Run(name, func(t *testing.T) {
			ctx := mode(t)
			if got, err := double.Call(ctx, 21); got != 42 || err != nil {
				t.Errorf("double(21) = %d, %v", got, err)
			}
			_, err := double.Call(ctx, -1)
			if !errors.Is(err, os.ErrInvalid) || err.Error() != "double -1: invalid argument" {
				t.Errorf("double(-1): %v", err)
			}
			pid, err := whoami.Call(ctx, sandboxfn.None{})
			if err != nil || (pid == os.Getpid()) != (name == "in process") {
				t.Errorf("runs in process %d (%v), the test in %d", pid, err, os.Getpid())
			}
		})
	}
}

func TestInProcessRunsIdempotentFunctionsTwice(t *testing.T) {
	runs = 0
	if got, err := count.Call(sandboxtest.InProcess(t), sandboxfn.None{}); got != 2 || err != nil {
		t.Errorf("count = %d, %v; want the second run's result", got, err)
	}
}
