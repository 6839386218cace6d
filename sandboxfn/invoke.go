package sandboxfn

import (
	"context"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

func call[A, R any](ctx context.Context, h *handle, args *A) (R, error) {
	var r R
	return r, errdefs.New("E9015", h.fn.name, "no worker")
}
