package envd

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/hex"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// channelProtocol is the name both sides give to a connection that carries
// nothing but frames from now on (docs/protocol.md, "Channels").
const channelProtocol = "sandbox-frames/1"

// NewChannelID returns an id that nobody can guess.
func NewChannelID() string {
	var b [16]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// OpenChannel opens a connection that the runtime parks under id until a start
// names it in StartOptions.Channel; then the process holds its other end. Only
// runtimes of ours have channels: see [Client.Features].
func (c *Client) OpenChannel(ctx context.Context, id string) (net.Conn, error) {
	const op = "open channel"
	conn, err := c.upgrade(ctx, op, "/sandbox/channels/"+id, channelProtocol)
	if err != nil {
		return nil, err
	}
	if _, early := conn.(*earlyConn); early { // the process has not begun
		conn.Close()
		return nil, protocolError(op, "the server sent something before the process could")
	}
	return conn, nil
}

// upgrade opens a connection of its own and asks for the change of protocol on
// it. What follows the answer belongs to who holds the other end. The request
// timeout bounds it, ctx ends it; neither touches the connection afterwards.
func (c *Client) upgrade(ctx context.Context, op, path, protocol string) (net.Conn, error) {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+path, nil)
	if err != nil {
		return nil, errdefs.Wrap("E5001", op, "", err)
	}
	c.transport.decorate(req.Header)
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", protocol)
	conn, err := c.transport.connect(ctx, req)
	if err != nil {
		return nil, wrapTransport(ctx, op, trusting(req.URL.Host, &dialError{err}))
	}
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	early, err := askUpgrade(conn, req, op, protocol)
	if !stop() && err == nil {
		err = ContextError(ctx, op) // the deadline may already be set
	}
	if err != nil {
		conn.Close()
		return nil, wrapTransportUnlessCoded(ctx, op, err)
	}
	if len(early) > 0 {
		return &earlyConn{conn, early}, nil
	}
	return conn, nil
}

// askUpgrade sends the request and reads the answer. It returns what came right
// behind it.
func askUpgrade(conn net.Conn, req *http.Request, op, protocol string) (early []byte, err error) {
	if err := req.Write(conn); err != nil {
		return nil, err
	}
	br := bufio.NewReaderSize(io.LimitReader(conn, maxHeader), 4<<10)
	res, err := http.ReadResponse(br, req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusSwitchingProtocols {
		return nil, httpError(op, res)
	}
	if !strings.EqualFold(res.Header.Get("Upgrade"), protocol) {
		return nil, protocolError(op, "the server agreed to another protocol than the one asked for")
	}
	return br.Peek(br.Buffered())
}

// earlyConn is a connection of which something was read with the answer.
type earlyConn struct {
	net.Conn
	early []byte // used by the goroutine that reads
}

func (c *earlyConn) Read(p []byte) (int, error) {
	if len(c.early) > 0 {
		n := copy(p, c.early)
		c.early = c.early[n:]
		return n, nil
	}
	return c.Conn.Read(p)
}

// CloseWrite tells the other end that nothing more comes, where the connection
// can say so.
func (c *earlyConn) CloseWrite() error {
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return net.ErrClosed
}

func wrapTransportUnlessCoded(ctx context.Context, op string, err error) error {
	if errdefs.CodeOf(err) != "" {
		return err
	}
	return wrapTransport(ctx, op, err)
}
