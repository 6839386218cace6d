package sandboxfn

import (
	"context"
	"fmt"
	"iter"
	"os"
	"strings"
	"sync"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/worker"
)

// envMode makes calls of the whole program run without a sandbox.
const envMode = "SANDBOX_MODE"

// modeOf is how calls under ctx run without a sandbox; nil: they have one.
func modeOf(ctx context.Context) (*worker.Mode, error) {
	if m := worker.ModeOf(ctx); m != nil {
		return m, nil
	}
	return programMode()
}

// programMode is what the environment says, once for all. It is said aloud: who
// relies on sandboxes must not lose them unseen.
var programMode = sync.OnceValues(func() (*worker.Mode, error) {
	v := strings.TrimSpace(os.Getenv(envMode))
	if v == "" {
		return nil, nil
	}
	m := &worker.Mode{InProcess: v == "inprocess"}
	where := "in processes of this executable"
	switch v {
	case "inprocess":
		where = "in this process"
	case "process":
	default:
		return nil, &Error{
			Code: "E8007", Op: "read settings",
			Message:    fmt.Sprintf("%s=%q: not one of inprocess, process", envMode, v),
			Suggestion: "unset it to run calls in sandboxes",
		}
	}
	fmt.Fprintf(os.Stderr, "sandboxfn: %s=%s: calls run without a sandbox, %s\n", envMode, v, where)
	return m, nil
})

// fakeStream yields the items of what stands for a function.
func fakeStream[A, T any](ctx context.Context, fn *function, fake worker.Fake, args *A, yield func(T, error) bool) {
	var zero T
	if fn.decl.Validate != nil {
		if err := fn.decl.Validate(*args); err != nil {
			yield(zero, informed(invalid(fn.name, err), CallInfo{Function: fn.id}))
			return
		}
	}
	var seq iter.Seq2[T, error]
	if err := fake(ctx, args, &seq); err != nil {
		yield(zero, err)
	} else if seq != nil {
		seq(yield)
	}
}
