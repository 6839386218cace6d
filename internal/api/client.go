package api

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path"
	"strings"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/version"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// Version chooses the routes of create and connect.
type Version int

const (
	V1 Version = 1 // /sandboxes: the life always in the body, and whether the sandbox is secured
	V2 Version = 2 // /v2/sandboxes
)

const (
	// DefaultTimeout bounds a request where Options say nothing.
	DefaultTimeout = 30 * time.Second
	// DefaultSlowTimeout bounds requests that start or resume a sandbox.
	DefaultSlowTimeout = 150 * time.Second
	// DefaultRetries is how often a request is repeated.
	DefaultRetries = 3
	// NoRetries stands for none.
	NoRetries = -1

	maxHeader = 64 << 10
)

// Options say which control plane to talk to and how. URL and Key must be set.
type Options struct {
	// URL is the base address; a path prefix is allowed. "unix:/path" is a
	// socket of this machine.
	URL string
	Key string // of the account; see CheckKey

	// KeySource says in errors where the key comes from: "SANDBOX_API_KEY".
	KeySource string
	Provider  string // name in errors; empty: "e2b"
	Place     string // where templates are looked for, in errors: "region cn-shanghai"; may be empty

	Version   Version // zero: V2
	UserAgent string  // empty: "sandbox-go/VERSION"

	// Timeout bounds one request. Zero: DefaultTimeout; negative: no bound.
	Timeout time.Duration
	// SlowTimeout bounds create and connect, which wait for a machine to start.
	// Zero: DefaultSlowTimeout; negative: no bound. It is at least Timeout.
	SlowTimeout time.Duration

	Retries int    // zero: DefaultRetries; negative: none
	NoHTTP2 bool   // HTTP/1.1 only
	CAFile  string // PEM certificates to trust besides the system's; empty: none

	Logger *slog.Logger // nil discards
}

// Client talks to one control plane. It is safe for concurrent use.
type Client struct {
	o     Options // with defaults
	base  *url.URL
	http  *http.Client
	trans *http.Transport
	log   *slog.Logger

	// testOnlyPause replaces the wait between attempts.
	testOnlyPause func(ctx context.Context, d time.Duration) error
}

// New makes a client. It makes no request. A malformed address, an unreadable
// CA file or a key that no header can carry is E8007 or E1001.
func New(o *Options) (*Client, error) {
	c := &Client{o: *o, log: o.Logger}
	if err := c.defaults(); err != nil {
		return nil, err
	}
	base, socket, err := ParseAddress(c.o.URL)
	if err != nil {
		return nil, err
	}
	c.base = base
	if c.trans, err = NewTransport(&TransportOptions{Socket: socket, NoHTTP2: o.NoHTTP2, CAFile: o.CAFile}); err != nil {
		return nil, err
	}
	c.http = &http.Client{Transport: c.trans, CheckRedirect: c.redirect}
	return c, nil
}

func (c *Client) defaults() error {
	key, err := CheckKey(c.o.Key)
	if err != nil {
		return err
	}
	c.o.Key = key
	if c.o.Provider == "" {
		c.o.Provider = "e2b"
	}
	if c.o.Version == 0 {
		c.o.Version = V2
	}
	if c.o.Version != V1 && c.o.Version != V2 {
		return settings(fmt.Sprintf("no version %d of the control plane", c.o.Version))
	}
	if c.o.UserAgent == "" {
		c.o.UserAgent = "sandbox-go/" + version.String()
	}
	if c.o.Timeout == 0 {
		c.o.Timeout = DefaultTimeout
	}
	if c.o.SlowTimeout == 0 {
		c.o.SlowTimeout = max(DefaultSlowTimeout, c.o.Timeout)
	}
	if c.o.Timeout < 0 {
		c.o.SlowTimeout = -1
	}
	switch {
	case c.o.Retries == 0:
		c.o.Retries = DefaultRetries
	case c.o.Retries < 0:
		c.o.Retries = 0
	}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	return nil
}

// Close closes idle connections. Requests in progress go on. It is idempotent.
func (c *Client) Close() { c.trans.CloseIdleConnections() }

// redirect follows a redirect only within one origin and only for reads: the
// key must not reach another host, and a write must not be repeated elsewhere.
func (c *Client) redirect(req *http.Request, via []*http.Request) error {
	first := via[0]
	if len(via) > 3 || req.Method != http.MethodGet || first.Method != http.MethodGet || !sameOrigin(req.URL, first.URL) {
		return http.ErrUseLastResponse
	}
	return nil
}

func sameOrigin(a, b *url.URL) bool { return a.Scheme == b.Scheme && strings.EqualFold(a.Host, b.Host) }

// ParseAddress reads an address of a control plane or a data plane:
// "https://…", "http://…" or "unix:/path" (also "unix:///path"). For a socket it
// returns the base URL "http://localhost" and the path of the socket. A
// malformed address is E8007.
func ParseAddress(addr string) (base *url.URL, socket string, err error) {
	if rest, ok := strings.CutPrefix(addr, "unix:"); ok {
		socket = path.Clean("/" + strings.TrimLeft(rest, "/"))
		if rest == "" || rest[0] != '/' || socket == "/" || strings.ContainsRune(socket, 0) {
			return nil, "", settings("address " + clean(addr) + " is not unix: and an absolute path")
		}
		return &url.URL{Scheme: "http", Host: "localhost"}, socket, nil
	}
	u, perr := url.Parse(addr)
	switch {
	case perr != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		return nil, "", settings("address " + clean(withoutUser(addr)) + " is not a URL of http, https or unix")
	case u.User != nil:
		return nil, "", settings("address of " + clean(u.Host) + " holds a user name or password")
	case u.RawQuery != "" || u.Fragment != "":
		return nil, "", settings("address of " + clean(u.Host) + " holds a query or a fragment")
	}
	u.Path = strings.TrimRight(u.Path, "/")
	u.RawPath = ""
	return u, "", nil
}

// withoutUser cuts what may be a password from text that is no URL.
func withoutUser(s string) string {
	if i := strings.LastIndexByte(s, '@'); i >= 0 {
		return s[i+1:]
	}
	return s
}

// TransportOptions say how connections are opened.
type TransportOptions struct {
	Socket  string // path of a unix socket to which all requests go; empty: by address, or through the proxy of the environment
	NoHTTP2 bool
	CAFile  string // PEM certificates to trust besides the system's
}

// NewTransport makes a transport. An unreadable CA file is E8007.
func NewTransport(o *TransportOptions) (*http.Transport, error) {
	pool, err := Pool(o.CAFile)
	if err != nil {
		return nil, err
	}
	dialer := &net.Dialer{Timeout: 15 * time.Second}
	t := &http.Transport{
		Proxy: http.ProxyFromEnvironment,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			if o.Socket != "" {
				network, addr = "unix", o.Socket
			}
			return dialer.DialContext(ctx, network, addr)
		},
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool},
		TLSHandshakeTimeout:    15 * time.Second,
		MaxIdleConns:           32,
		MaxIdleConnsPerHost:    16,
		IdleConnTimeout:        60 * time.Second,
		MaxResponseHeaderBytes: maxHeader,
		Protocols:              new(http.Protocols),
	}
	t.Protocols.SetHTTP1(true)
	t.Protocols.SetHTTP2(!o.NoHTTP2)
	if o.Socket != "" {
		t.Proxy = nil
	}
	return t, nil
}

// Pool is the system's certificates and those of a file; nil without a file.
func Pool(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, &errdefs.Error{Code: "E8007", Op: opSettings, Message: "ca_file", Err: err}
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	if !pool.AppendCertsFromPEM(pem) {
		return nil, settings("ca_file " + clean(file) + " holds no certificate in PEM form")
	}
	return pool, nil
}

const opSettings = "read settings"

func settings(message string) error {
	return &errdefs.Error{Code: "E8007", Op: opSettings, Message: message}
}
