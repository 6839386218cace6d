// Package envd is the client of a sandbox's data plane: processes, the file
// system and whole files over any server that speaks the E2B envd protocol.
// Start at [New].
//
// It knows one sandbox by its address and token and nothing of providers or of
// the sandbox's life; package sandboxfn adds those. Every failure comes back as
// an errdefs error.
package envd

import (
	"context"
	"crypto/x509"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"github.com/agent-sandbox/sandbox-go/internal/pb/filesystem/filesystemconnect"
	"github.com/agent-sandbox/sandbox-go/internal/pb/process/processconnect"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

const (
	// DefaultRequestTimeout bounds one request where Options say nothing.
	DefaultRequestTimeout = 30 * time.Second
	// DefaultKeepAlive is how often a silent stream must show life where
	// Options say nothing.
	DefaultKeepAlive = 20 * time.Second

	// maxEvent bounds one event of a process. Servers cut output at 32 KiB.
	maxEvent = 4 << 20
	// maxAnswer bounds one unary answer: a listing of 50,000 entries has about
	// 10 MB, so this leaves room for deep trees.
	maxAnswer = 128 << 20
	// maxHeader bounds the head of an HTTP answer.
	maxHeader = 64 << 10

	// dialedURL is the base URL where only Dial says where connections go.
	dialedURL = "http://sandbox"
)

// Options say how to reach one runtime. URL or Dial must be set.
type Options struct {
	URL     string      // base URL; a path prefix is allowed; may be empty when Dial is set
	Headers http.Header // added to every request
	Token   string      // access token; empty: none is sent

	// Dial opens a connection where an address alone does not say how. URL then
	// says what stands in Host, and whether TLS is spoken on the connection. Nil:
	// by URL.
	Dial func(ctx context.Context) (net.Conn, error)

	// RootCAs are the certificates to trust where URL is https, for requests and
	// for upgraded connections. Nil: the system's.
	RootCAs *x509.CertPool

	// Ours says that the runtime is known to be ours and can do all there is in
	// Features. Otherwise Features asks.
	Ours bool

	// RequestTimeout bounds each unary request, the wait for the first event of
	// a stream and any pause of a file transfer. It never bounds a command.
	// Zero: DefaultRequestTimeout; negative: no bound.
	RequestTimeout time.Duration

	// KeepAlive is the interval at which the server must show life on a silent
	// stream; a stream silent for three of them is lost. It is sent in whole
	// seconds, rounded up. Zero: DefaultKeepAlive; negative: never.
	KeepAlive time.Duration
}

// Client talks to the runtime of one sandbox. It is safe for concurrent use.
type Client struct {
	opts      Options
	base      string // without a final slash
	addr      *url.URL
	http      *http.Client
	transport *transport
	process   processconnect.ProcessClient
	files     filesystemconnect.FilesystemClient
	timeout   time.Duration
	keepAlive time.Duration
	features  atomic.Pointer[Features] // nil: not known yet

	reapers sync.WaitGroup // starts given up by their caller that must not leave a process
}

// New makes a client. It opens no connection. A malformed URL is E5001.
func New(o *Options) (*Client, error) {
	base := strings.TrimRight(o.URL, "/")
	if o.Dial != nil && base == "" {
		base = dialedURL
	}
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, errdefs.New("E5001", "connect to sandbox", "the address of the sandbox's runtime is malformed")
	}
	c := &Client{
		opts: *o,
		base: base, addr: u,
		timeout:   o.RequestTimeout,
		keepAlive: o.KeepAlive,
	}
	if c.timeout == 0 {
		c.timeout = DefaultRequestTimeout
	}
	if c.keepAlive == 0 {
		c.keepAlive = DefaultKeepAlive
	}
	if o.Ours {
		c.features.Store(&Features{Channels: true, Ports: true, Input: true, Code: true})
	}
	c.transport = newTransport(o, u.User)
	c.http = &http.Client{
		Transport: c.transport,
		// A redirect would carry the token to a place nobody chose.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	identity := connect.WithAcceptCompression("gzip", nil, nil)
	c.process = processconnect.NewProcessClient(c.transport, base, identity, connect.WithReadMaxBytes(maxEvent))
	c.files = filesystemconnect.NewFilesystemClient(c.transport, base, identity, connect.WithReadMaxBytes(maxAnswer))
	return c, nil
}

// Close waits until starts that were given up have been cleaned up and closes
// idle connections. Requests in progress go on. It is idempotent.
func (c *Client) Close() {
	c.reapers.Wait()
	c.transport.base.CloseIdleConnections()
}

// Health asks whether the runtime answers.
func (c *Client) Health(ctx context.Context) error {
	_, err := c.health(ctx)
	return err
}

func (c *Client) health(ctx context.Context) (http.Header, error) {
	const op = "check sandbox"
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+"/health", nil)
	if err != nil {
		return nil, errdefs.Wrap("E5001", op, "", err)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return nil, wrapTransport(ctx, op, err)
	}
	defer drain(res.Body)
	if res.StatusCode/100 != 2 {
		return nil, httpError(op, res)
	}
	return res.Header, nil
}

// bounded is ctx with the request timeout.
func (c *Client) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if c.timeout < 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, c.timeout, &requestTimeout{after: c.timeout})
}
