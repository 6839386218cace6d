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
// clients made with Dial have channels.
func (c *Client) OpenChannel(ctx context.Context, id string) (net.Conn, error) {
	const op = "open channel"
	if c.transport.dial == nil {
		return nil, errdefs.New("E8004", op, "this sandbox is not on this machine")
	}
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	conn, err := c.transport.dial(ctx)
	if err != nil {
		return nil, wrapTransport(ctx, op, &dialError{err})
	}
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	err = c.upgrade(conn, op, id)
	if !stop() && err == nil {
		err = ContextError(ctx, op) // the deadline may already be set
	}
	if err != nil {
		conn.Close()
		return nil, wrapTransportUnlessCoded(ctx, op, err)
	}
	return conn, nil
}

// upgrade asks on conn for the change of protocol and reads exactly the answer:
// what follows belongs to the process.
func (c *Client) upgrade(conn net.Conn, op, id string) error {
	req, err := http.NewRequest(http.MethodPost, c.base+"/sandbox/channels/"+id, nil)
	if err != nil {
		return err
	}
	c.transport.decorate(req.Header)
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", channelProtocol)
	if err := req.Write(conn); err != nil {
		return err
	}
	br := bufio.NewReaderSize(io.LimitReader(conn, maxHeader), 4<<10)
	res, err := http.ReadResponse(br, req)
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusSwitchingProtocols {
		return httpError(op, res)
	}
	if !strings.EqualFold(res.Header.Get("Upgrade"), channelProtocol) || br.Buffered() > 0 {
		return protocolError(op, "the server agreed to another protocol than the one asked for")
	}
	return nil
}

func wrapTransportUnlessCoded(ctx context.Context, op string, err error) error {
	if errdefs.CodeOf(err) != "" {
		return err
	}
	return wrapTransport(ctx, op, err)
}
