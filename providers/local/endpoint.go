//go:build linux

package local

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// endpoint is how the runtime of a sandbox is reached: through its unix socket,
// which is opened anew, without following links, for each connection.
func (p *Provider) endpoint(id string, token providers.Secret) providers.Endpoint {
	return providers.Endpoint{
		URL:      "http://sandbox",
		Token:    token,
		Channels: true,
		Dial: func(ctx context.Context) (net.Conn, error) {
			const op = "connect to sandbox"
			t, done, err := p.begin(ctx, op)
			if err != nil {
				return nil, err
			}
			defer done()
			e, err := t.openEntry(id)
			if err != nil {
				return nil, t.settle(ctx, op, id)
			}
			defer e.close()
			c, err := e.dial(ctx)
			switch {
			case err == nil:
				return c, nil
			case ctx.Err() != nil:
				return nil, cancelled(ctx, op)
			}
			switch ended := t.collectID(id); {
			case errors.Is(ended, errAsleep):
				return nil, asleepError(op, id)
			case !errors.Is(ended, errBusy):
				return nil, t.gone(op, id)
			}
			return nil, &errdefs.Error{Code: "E5001", Op: op, Message: "sandbox " + id, Err: err}
		},
	}
}

func (e *entry) dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "unix", e.dir.address(fileRuntime))
}

// readyLimit bounds the time between init's word that it serves and its first
// answer.
const readyLimit = 20 * time.Second

const healthRequest = "GET /health HTTP/1.1\r\nHost: sandbox\r\nConnection: close\r\n\r\n"

// knock sends the first request before init runs: the socket listens already,
// and the answer comes at the first moment it can.
func (b *builder) knock(ctx context.Context) (net.Conn, error) {
	c, err := b.e.dial(ctx)
	if err != nil {
		return nil, err
	}
	if err := knock(c); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func knock(c net.Conn) error {
	_, err := io.WriteString(c, healthRequest)
	return err
}

// answered waits for the answer to knock.
func answered(ctx context.Context, c net.Conn) error {
	if err := c.SetReadDeadline(time.Now().Add(readyLimit)); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { c.SetReadDeadline(time.Unix(1, 0)) })()
	line, err := bufio.NewReader(io.LimitReader(c, 1<<10)).ReadString('\n')
	var proto, status string
	if err == nil {
		_, err = fmt.Sscan(line, &proto, &status)
	}
	if err == nil && status == "204" {
		return nil
	}
	if ctx.Err() != nil {
		return cancelled(ctx, "create sandbox")
	}
	return &errdefs.Error{Code: "E2009", Op: "create sandbox",
		Message: fmt.Sprintf("the runtime answers %q to GET /health; the sandbox was removed", clip(line)), Err: err}
}
