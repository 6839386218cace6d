// Package own redefines predeclared names; what is generated for it must mean
// the usual ones all the same.
package own

import "context"

type (
	any    struct{ N int }
	string []byte
	error  interface{ Failed() bool }
	int    int64
)

const true = 2 < 1

func len(any) int { return 1 }
func new() any    { return any{N: len(any{}) + 41} }

//sandbox:func as=Assembled
func assemble(ctx context.Context, a any, s string, n int) (any, string, bool) {
	a.N += n + new().N
	return a, s, true
}

var _ error = failed(false)

type failed bool

func (f failed) Failed() bool { return bool(f) }

//sandbox:func idempotent env=A=B
func silent(n int) {}

// Result is what assemble gives.
type Result struct {
	A any
	S string
	B bool
}

// Plain calls assemble and silent here.
func Plain(ctx context.Context) Result {
	a, s, b := assemble(ctx, any{N: 1}, string("text"), 2)
	silent(3)
	return Result{a, s, b}
}
