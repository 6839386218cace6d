package envd

import (
	"context"
	"errors"
	"net"
	"strconv"
	"syscall"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// portProtocol is the name both sides give to a connection that carries what a
// TCP port inside sends and is sent (docs/protocol.md, "Ports").
const portProtocol = "sandbox-tcp/1"

// DialPort connects to whatever listens on a TCP port of the sandbox's own
// loopback. The connection has deadlines, and CloseWrite where the way there can
// carry it. Ending ctx, or the request timeout, gives up the attempt; neither
// touches a connection that was made. Where the runtime answers that nobody takes
// the connection, the error is E5001 around a [*Refusal]. Only runtimes of ours
// have tunnels to ports: see [Client.Features].
func (c *Client) DialPort(ctx context.Context, port int) (net.Conn, error) {
	const op = "connect to port"
	if port < 1 || port > 65535 {
		return nil, errdefs.New("E2011", op, "port "+strconv.Itoa(port)+" is not a number from 1 to 65535")
	}
	conn, err := c.upgrade(ctx, op, "/sandbox/ports/"+strconv.Itoa(port), portProtocol)
	if e, ok := errors.AsType[*errdefs.Error](err); ok && e.Code == "E5001" && e.Err == nil {
		return nil, errdefs.Wrap(e.Code, op, e.Message, &Refusal{})
	}
	return conn, err
}

// Refusal says that the sandbox was reached, and that nobody there takes the
// connection. errors.Is finds syscall.ECONNREFUSED in it.
type Refusal struct{}

func (*Refusal) Error() string { return "connection refused" }

// Is matches what package net says of the same.
func (*Refusal) Is(target error) bool { return target == syscall.ECONNREFUSED }
