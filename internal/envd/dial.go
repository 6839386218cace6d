package envd

import (
	"context"
	"net"
	"strconv"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// portProtocol is the name both sides give to a connection that carries what a
// TCP port inside sends and is sent (docs/protocol.md, "Ports").
const portProtocol = "sandbox-tcp/1"

// DialPort connects to whatever listens on a TCP port of the sandbox's own
// loopback. The connection has deadlines, and CloseWrite where the way there can
// carry it. Ending ctx, or the request timeout, gives up the attempt; neither
// touches a connection that was made. Nothing listens: E5001. Only runtimes of
// ours have tunnels to ports: see [Client.Features].
func (c *Client) DialPort(ctx context.Context, port int) (net.Conn, error) {
	const op = "connect to port"
	if port < 1 || port > 65535 {
		return nil, errdefs.New("E5001", op, "port "+strconv.Itoa(port)+" is not a number from 1 to 65535")
	}
	return c.upgrade(ctx, op, "/sandbox/ports/"+strconv.Itoa(port), portProtocol)
}
