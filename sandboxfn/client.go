package sandboxfn

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/agent-sandbox/sandbox-go/providers"
	_ "github.com/agent-sandbox/sandbox-go/providers/local" // the default provider
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// ClientOptions are the settings of a [Client]. What is not set is taken from
// the environment; a variable that is blank counts as not set.
type ClientOptions struct {
	// Provider creates the sandboxes. Default: SANDBOX_PROVIDER, else the
	// service that credentials in the environment name, else "local".
	Provider string

	StateDir string // default: SANDBOX_STATE_DIR, else the provider's
	CacheDir string // default: SANDBOX_CACHE_DIR, else the provider's

	// WorkerBinary is the path of an executable for the sandboxes' platform, as
	// sandboxgen -worker builds it: workers are started from it. Default:
	// SANDBOX_WORKER_BINARY, else the program itself where it fits, else what the
	// go command makes of its source where that is at hand.
	WorkerBinary string

	Template string        // default: SANDBOX_TEMPLATE, else the provider's
	Lifetime time.Duration // of sandboxes; default: SANDBOX_LIFETIME, else the provider's

	// RequestTimeout bounds single requests to a sandbox: the start of a
	// command, one file operation, a pause of a transfer. It never bounds a
	// command or a call. Default: SANDBOX_HTTP_TIMEOUT, else 30 s; NoTimeout:
	// no bound.
	RequestTimeout time.Duration

	// CreateTimeout bounds the creation of a sandbox. Default:
	// SANDBOX_CREATE_TIMEOUT, else 120 s or what the provider needs.
	CreateTimeout time.Duration

	// KeepAlive is the interval at which a silent command must show life; one
	// that is silent for three of them has lost its connection. Default 20 s;
	// negative: never.
	KeepAlive time.Duration

	// Logger receives debug records of each hop and warnings, and what functions
	// log with slog. Nil discards the former, unless SANDBOX_DEBUG is on: then they
	// go to standard error; the latter goes to slog.Default then.
	Logger *slog.Logger

	// Secrets gives the values of the secrets that functions ask for. Nil: the
	// environment of this process.
	Secrets SecretSource

	// Tracer follows calls. Nil: that of the program, see [SetTracer].
	Tracer Tracer

	// Stdout and Stderr are where functions' output goes. Nil: os.Stdout and
	// os.Stderr.
	Stdout, Stderr io.Writer
}

// Client creates and finds sandboxes. It is safe for concurrent use.
type Client struct {
	opts ClientOptions // with defaults
	log  *slog.Logger
	pool *poolSet

	records *slog.Logger // of functions; nil: slog.Default

	mu        sync.Mutex
	providers map[string]providers.Provider // guarded by mu; opened so far
	handles   map[*Sandbox]struct{}         // guarded by mu; not closed yet
	closed    bool                          // guarded by mu
}

// killTimeout bounds every clean-up.
const killTimeout = 30 * time.Second

// NewClient makes a client. A nil o means all defaults; it is copied. Nothing is
// started or asked yet. Errors: [ErrSettings] for a malformed variable or
// option, [ErrUnknownProvider] for a provider that is not linked into the
// program.
func NewClient(o *ClientOptions) (*Client, error) {
	opts, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	c := &Client{
		opts:      opts,
		log:       opts.Logger,
		providers: map[string]providers.Provider{},
		handles:   map[*Sandbox]struct{}{},
	}
	if o != nil {
		c.records = o.Logger
	}
	if _, err := c.provider(""); err != nil {
		return nil, err
	}
	c.pool = newPoolSet(c)
	return c, nil
}

// withDefaults returns a private copy of o with what the environment adds.
func (o *ClientOptions) withDefaults() (ClientOptions, error) {
	var c ClientOptions
	if o != nil {
		c = *o
	}
	env := settings{lookup: os.LookupEnv}
	env.text(&c.StateDir, "SANDBOX_STATE_DIR")
	env.text(&c.CacheDir, "SANDBOX_CACHE_DIR")
	env.text(&c.WorkerBinary, "SANDBOX_WORKER_BINARY")
	env.text(&c.Template, "SANDBOX_TEMPLATE")
	env.duration(&c.Lifetime, "SANDBOX_LIFETIME")
	env.duration(&c.RequestTimeout, "SANDBOX_HTTP_TIMEOUT")
	env.duration(&c.CreateTimeout, "SANDBOX_CREATE_TIMEOUT")
	debug := env.bool("SANDBOX_DEBUG")
	if c.Provider == "" {
		c.Provider = env.provider()
	}
	if c.Lifetime < 0 {
		env.fail("Lifetime", c.Lifetime.String(), "a lifetime is positive; zero means the provider's default")
	}
	if c.CreateTimeout < 0 {
		env.fail("CreateTimeout", c.CreateTimeout.String(), "a timeout is positive; zero means the default")
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
		if debug {
			c.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
		}
	}
	if c.Secrets == nil {
		c.Secrets = Environment{}
	}
	if c.Stdout == nil {
		c.Stdout = os.Stdout
	}
	if c.Stderr == nil {
		c.Stderr = os.Stderr
	}
	return c, errors.Join(env.errs...)
}

// Provider is the name of the client's provider.
func (c *Client) Provider() string { return c.opts.Provider }

// Close ends the client: its idle workers, the sandboxes it created attached to
// this process, and every connection. Sandboxes that were created detached, or
// only connected to, live on. It is idempotent, bounded, and reports what could
// not be cleaned up.
func (c *Client) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	c.mu.Unlock()
	defaultClient.forget(c)

	ctx, cancel := context.WithTimeout(context.Background(), killTimeout)
	defer cancel()
	errs := []error{c.pool.close(ctx)}

	c.mu.Lock()
	var handles []*Sandbox
	for sb := range c.handles {
		handles = append(handles, sb)
	}
	opened := c.providers
	c.mu.Unlock()
	var wg sync.WaitGroup
	failed := make([]error, len(handles))
	for i, sb := range handles {
		wg.Go(func() {
			if sb.created && !sb.detached {
				failed[i] = sb.Close()
				return
			}
			sb.detach()
		})
	}
	wg.Wait()
	errs = append(errs, failed...)
	for _, p := range opened {
		errs = append(errs, p.Close())
	}
	return errors.Join(errs...)
}

// pools are the workers that functions share.
func (c *Client) pools() *poolSet { return c.pool }

// provider returns the provider called name, opened at first use. Empty means
// the client's own.
func (c *Client) provider(name string) (providers.Provider, error) {
	if name == "" {
		name = c.opts.Provider
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errClientClosed()
	}
	if p := c.providers[name]; p != nil {
		return p, nil
	}
	p, err := providers.Open(name, providers.Config{
		StateDir: c.opts.StateDir,
		CacheDir: c.opts.CacheDir,
		Logger:   c.log,
	})
	if err != nil {
		return nil, explainProvider(name, err)
	}
	c.providers[name] = p
	return p, nil
}

// explainProvider adds what a reader needs who never asked for a provider.
func explainProvider(name string, err error) error {
	e, ok := errors.AsType[*Error](err)
	if !ok || e.Code != "E8001" || strings.TrimSpace(os.Getenv("SANDBOX_PROVIDER")) != "" {
		return err
	}
	if v := credentialOf(name, os.LookupEnv); v != "" {
		return &Error{
			Code: e.Code, Op: e.Op, Err: e.Err,
			Message:    v + " is set and names provider " + strconv.Quote(name) + ", but it is not part of this program; linked are: " + strings.Join(providers.Names(), ", "),
			Suggestion: "set SANDBOX_PROVIDER=local to use sandboxes of this machine, or remove " + v,
		}
	}
	return err
}

func errClientClosed() error {
	return errdefs.New("E2000", "use client", "the client is closed")
}

// defaultClient is the client of the package functions.
var defaultClient defaultHolder

type defaultHolder struct {
	mu sync.Mutex
	c  *Client // guarded by mu
}

// get makes the client at first use. A failure is not remembered.
func (d *defaultHolder) get() (*Client, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.c == nil {
		c, err := NewClient(nil)
		if err != nil {
			return nil, err
		}
		d.c = c
	}
	return d.c, nil
}

// forget drops c, so that the next use makes a new one.
func (d *defaultHolder) forget(c *Client) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.c == c {
		d.c = nil
	}
}

// DefaultClient returns the client that package functions use, made at first
// use. Closing it is allowed: the next use makes a new one.
func DefaultClient() (*Client, error) { return defaultClient.get() }

type clientKey struct{}

// WithClient returns a context under which package functions and generated
// functions use c.
func WithClient(ctx context.Context, c *Client) context.Context {
	return context.WithValue(ctx, clientKey{}, c)
}

// clientFrom returns the client of ctx, or the default one.
func clientFrom(ctx context.Context) (*Client, error) {
	if c, ok := ctx.Value(clientKey{}).(*Client); ok && c != nil {
		return c, nil
	}
	return defaultClient.get()
}
