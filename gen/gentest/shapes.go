// Package gentest has a function of every signature and type that sandboxgen
// accepts, with the code generated for them. [Table] pairs each plain call
// with its sandboxed one, so that any way of running functions can be checked
// against plain Go.
package gentest

import (
	"context"
	"errors"
	"fmt"
)

//go:generate go tool sandboxgen . ./own ./helpers

// ErrSentinel is returned by functions of the table.
var ErrSentinel = errors.New("gentest: sentinel")

var errHidden = errors.New("gentest: hidden")

// Signatures: with and without context, parameters, results and error.

//sandbox:func
func nothing() {}

//sandbox:func
func onlyContext(ctx context.Context) {}

//sandbox:func
func onlyError() error { return ErrSentinel }

//sandbox:func
func onlyResult() int { return 42 }

//sandbox:func
func resultAndError(n int) (int, error) {
	if n < 0 {
		return n, errHidden
	}
	return n + 1, nil
}

//sandbox:func
func contextAndAll(ctx context.Context, name, value string, a, b, c int) (string, int, error) {
	if _, ok := ctx.Deadline(); !ok {
		return "", 0, errors.New("no deadline: the default timeout applies to every call")
	}
	return name + "=" + value, a + 10*b + 100*c, ctx.Err()
}

//sandbox:func
func manyResults(n int) (int, string, []byte, bool) { return n, fmt.Sprint(n), []byte{byte(n)}, n > 0 }

//sandbox:func
func namedResults(text string) (length int, upper bool, err error) {
	return len(text), text != "" && text[0] < 'a', nil
}

//sandbox:func
func unnamed(context.Context, int, string) int { return 7 }

//sandbox:func
func blank(_ context.Context, _ int, s string, _ ...bool) (string, error) { return s, nil }

//sandbox:func
func sum(numbers ...int) (total int) {
	for _, n := range numbers {
		total += n
	}
	return total
}

//sandbox:func
func join(sep string, parts ...string) (string, error) {
	text := ""
	for i, p := range parts {
		if i > 0 {
			text += sep
		}
		text += p
	}
	return text, nil
}

//sandbox:func as=Renamed id=gentest/renamed timeout=1m template=base
func original(a, A, _a string) string { return a + A + _a }

// Exported is exported, so that its wrapper is ExportedRemote.
//
//sandbox:func idempotent retries=1
func Exported(n int) (int, error) { return n * n, nil }

//sandbox:func check.n=min=1,max=9
func checked(n int, text string) (string, error) { return fmt.Sprint(n, text), nil }
