package sandboxfn

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/envd"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// Dial connects to what listens inside the sandbox on its own loopback, also
// where the sandbox has no network: network is "tcp", address "localhost:PORT"
// ("127.0.0.1:PORT", "[::1]:PORT" and ":PORT" mean the same). It fits
// [net/http.Transport.DialContext].
//
// The connection has deadlines, like any other, and CloseWrite, which fails
// where the way to the sandbox cannot carry it; it ends with the handle. ctx
// bounds the attempt only. Nothing listens: [ErrConnect], and errors.Is finds
// syscall.ECONNREFUSED. Other networks and hosts are [ErrOption]: what the
// sandbox itself can reach is not reached through it. Providers without tunnels
// are [ErrNotSupported]; try [Sandbox.URL].
func (sb *Sandbox) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	port, err := dialTarget(network, address)
	if err != nil {
		return nil, err
	}
	return sb.dialPort(ctx, port)
}

func dialTarget(network, address string) (int, error) {
	const op = "connect to port"
	if network != "tcp" {
		return 0, errdefs.New("E2011", op, fmt.Sprintf("network %s is not supported, only tcp", quoted(network)))
	}
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return 0, &Error{Code: "E2011", Op: op, Message: fmt.Sprintf("address %s is not HOST:PORT", quoted(address)), Suggestion: "use localhost:PORT"}
	}
	switch host {
	case "", "localhost", "127.0.0.1", "::1":
	default:
		return 0, &Error{Code: "E2011", Op: op, Message: fmt.Sprintf("host %s is not the sandbox itself", quoted(host)),
			Suggestion: "use localhost:PORT; other hosts can be reached by commands, where the network of the sandbox allows it"}
	}
	port, err := strconv.Atoi(text)
	if err != nil || checkPort(port) != nil {
		return 0, errdefs.New("E2011", op, fmt.Sprintf("port %s is not a number from 1 to 65535", quoted(text)))
	}
	return port, nil
}

func checkPort(port int) error {
	if port < 1 || port > 65535 {
		return errdefs.New("E2011", "reach port", fmt.Sprintf("port %d is not a number from 1 to 65535", port))
	}
	return nil
}

// dialPort returns a connection that belongs to the handle.
func (sb *Sandbox) dialPort(ctx context.Context, port int) (net.Conn, error) {
	leave, err := sb.enter()
	if err != nil {
		return nil, err
	}
	conn, err := sb.tunnel(ctx, port)
	if err != nil {
		leave()
		if _, ok := errors.AsType[*envd.Refusal](err); ok {
			return nil, err // the sandbox is well
		}
		return nil, sb.explain(ctx, err)
	}
	t := &tunnelConn{Conn: conn, port: port, leave: leave}
	t.stop = context.AfterFunc(sb.life, func() { t.Close() })
	return t, nil
}

func (sb *Sandbox) tunnel(ctx context.Context, port int) (net.Conn, error) {
	const op = "connect to port"
	if err := ctx.Err(); err != nil {
		return nil, contextError(ctx, op)
	}
	f, err := sb.envd.Features(ctx)
	if err != nil {
		return nil, err
	}
	if f.Ports {
		return sb.envd.DialPort(ctx, port)
	}
	ep, err := sb.portEndpoint(ctx, op, port)
	switch {
	case err != nil:
		return nil, err
	case ep.Dial == nil:
		return nil, &Error{Code: "E8004", Op: op, Message: "provider " + sb.provider.Name() + " reaches ports by HTTP only", Suggestion: "use URL and Header"}
	}
	conn, err := ep.Dial(ctx)
	if err != nil {
		return nil, sb.client.providerError(ctx, op, err)
	}
	return conn, nil
}

// portEndpoint asks the provider how to reach a port.
func (sb *Sandbox) portEndpoint(ctx context.Context, op string, port int) (providers.Endpoint, error) {
	p, err := capable[providers.PortExposer](ctx, op, sb.provider, providers.CapPorts)
	if err != nil {
		return providers.Endpoint{}, err
	}
	ep, err := p.Port(ctx, sb.id, port)
	if err != nil {
		return ep, sb.note(sb.client.providerError(ctx, op, err))
	}
	return ep, nil
}

// tunnelConn is a connection to a port, with addresses as seen inside.
type tunnelConn struct {
	net.Conn
	port  int
	stop  func() bool // forgets the end of the handle
	leave func()
	once  sync.Once
	err   error // of Close
}

// Close closes the connection. It is idempotent.
func (c *tunnelConn) Close() error {
	c.once.Do(func() {
		c.stop()
		c.err = c.Conn.Close()
		c.leave()
	})
	return c.err
}

// CloseWrite tells the other side that nothing more comes.
func (c *tunnelConn) CloseWrite() error {
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return errdefs.New("E8004", "close one direction", "the way to the sandbox cannot carry it")
}

// RemoteAddr is the port inside.
func (c *tunnelConn) RemoteAddr() net.Addr {
	return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: c.port}
}

// LocalAddr is that of the runtime, whose port is not known.
func (c *tunnelConn) LocalAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// forwardDial bounds the way from a forwarded connection to its port.
const forwardDial = 30 * time.Second
