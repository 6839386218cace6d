// Package sandboxtest runs sandboxed functions without sandboxes, for the tests
// of programs that have some. A test makes a context with [InProcess] or
// [Process] and calls its wrappers with it:
//
//	func TestDescribe(t *testing.T) {
//		ctx := sandboxtest.InProcess(t)
//		labels, err := media.Describe(ctx, img, 5)
//
// Nothing is isolated: the functions have the rights of the test.
package sandboxtest

import (
	"context"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/worker"
)

// endTime bounds how long the end of a test waits for its workers.
const endTime = 10 * time.Second

// InProcess returns a context under which functions run in this process, as
// exactly as that allows: arguments and results go through the codec and
// validation, so both sides have copies of their own; errors are rebuilt;
// timeouts apply; panics become errors. A function marked idempotent runs
// twice, so that a wrong mark shows. Package variables are shared with the
// test, and a function that ignores its context is left running when its call
// has been given up.
//
// The context ends with the test.
func InProcess(t testing.TB) context.Context {
	return under(t, &worker.Mode{InProcess: true})
}

// Process returns a context under which functions run in worker processes of
// the test's own executable: with initialisation, takeover, output, panics,
// exits and kills as in a sandbox, but none around them. The workers end with
// the test.
func Process(t testing.TB) context.Context { return under(t, &worker.Mode{}) }

// under returns a context under which m holds until the end of the test.
func under(t testing.TB, m *worker.Mode) context.Context {
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), endTime)
		defer cancel()
		if err := m.Close(ctx); err != nil {
			t.Errorf("workers did not end: %v", err)
		}
	})
	return worker.WithMode(t.Context(), m)
}
