package envd

import (
	"context"

	"connectrpc.com/connect"

	"github.com/agent-sandbox/sandbox-go/internal/pb/process"
)

// Size is that of a terminal, in characters.
type Size struct{ Cols, Rows uint16 }

func (s *Size) message() *process.PTY {
	return &process.PTY{Size: &process.PTY_Size{Cols: uint32(s.Cols), Rows: uint32(s.Rows)}}
}

// Resize sets the size of the terminal of pid. A process that has ended is
// E3010, one without a terminal or a size of zero E3011, a server that cannot
// do it E8004.
func (c *Client) Resize(ctx context.Context, pid uint32, size Size) error {
	const op = "resize terminal"
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	_, err := c.process.Update(ctx, connect.NewRequest(&process.UpdateRequest{Process: selector(pid), Pty: size.message()}))
	return wrap(ctx, op, onProcess, err)
}
