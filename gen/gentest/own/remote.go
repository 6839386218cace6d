package own

import (
	"context"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
)

// Remote calls the wrappers of assemble and silent.
func Remote(ctx context.Context) (Result, sandboxfn.PredeclaredError) {
	a, s, b, err := Assembled(ctx, any{N: 1}, string("text"), 2)
	if err == nil {
		err = Silent(ctx, 3)
	}
	return Result{a, s, b}, err
}
