//go:build linux

package local

import (
	"context"
	"fmt"
	"net"

	"github.com/agent-sandbox/sandbox-go/internal/envd"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// Port returns an endpoint whose Dial reaches a TCP port on the loopback of the
// sandbox, by a tunnel through its runtime: the sandbox's network stays as
// closed as it is. A connection has CloseWrite. Dial fails with E5001 when
// nothing listens and with E2024 while the sandbox is paused.
func (p *Provider) Port(ctx context.Context, id string, port int) (providers.Endpoint, error) {
	const op = "reach port"
	if port < 1 || port > 65535 {
		return providers.Endpoint{}, &errdefs.Error{Code: "E2011", Op: op, Message: fmt.Sprintf("port %d is not a number from 1 to 65535", port)}
	}
	sb, err := p.ready(ctx, op, id)
	if err != nil {
		return providers.Endpoint{}, err
	}
	if sb.State == providers.StatePaused {
		return providers.Endpoint{}, &errdefs.Error{Code: "E2024", Op: op, Message: "sandbox " + id + " is paused"}
	}
	c, err := envd.New(&envd.Options{Dial: sb.Data.Dial, Token: sb.Data.Token.Reveal()}) // holds nothing between calls
	if err != nil {
		return providers.Endpoint{}, err
	}
	return providers.Endpoint{
		URL:  sb.Data.URL,
		Dial: func(ctx context.Context) (net.Conn, error) { return c.DialPort(ctx, port) },
	}, nil
}
