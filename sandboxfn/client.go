package sandboxfn

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/config"
	"github.com/agent-sandbox/sandbox-go/providers"
	_ "github.com/agent-sandbox/sandbox-go/providers/e2b"   // for E2B, and gateways that speak as it does
	_ "github.com/agent-sandbox/sandbox-go/providers/fc"    // for Alibaba's service of the same shape
	_ "github.com/agent-sandbox/sandbox-go/providers/local" // the default provider
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// ClientOptions are the settings of a [Client]. What is not set is taken from
// the environment, then from the user's files, then from those of the project:
// docs/configuration.md has the order and all names. What is blank counts as not
// set.
type ClientOptions struct {
	// Profile is the part of the user's files that counts before their top level.
	// Default: SANDBOX_PROFILE, else their default_profile, else none.
	Profile string

	// Provider creates the sandboxes. Default: SANDBOX_PROVIDER, else that of the
	// files, else the service that an API key belongs to, else "local".
	Provider string

	// APIKey opens the service, for providers that have one. Default:
	// SANDBOX_API_KEY, E2B_API_KEY, else that of credentials.toml.
	APIKey Secret

	// Where the service is. What is not set follows from what is, from the provider
	// and from its region.
	APIURL     string // control plane; https, or unix:/path; default: SANDBOX_API_URL, E2B_API_URL
	Domain     string // of sandboxes, host[:port]; default: SANDBOX_DOMAIN, E2B_DOMAIN
	SandboxURL string // where one address serves all sandboxes; default: SANDBOX_URL, E2B_SANDBOX_URL
	Region     string // default: SANDBOX_REGION

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
	opts ClientOptions // with defaults; without secrets
	cfg  *config.Config
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

// NewClient makes a client. A nil o means all defaults; it is copied. Settings
// are read here, and only here; nothing is started or asked yet, except for the
// command of an api_key_command. Errors: [ErrSettings] for malformed settings or
// options, [ErrUnknownProvider] for a provider that is not linked into the
// program, [ErrAuth] for a profile or key that can't be had.
func NewClient(o *ClientOptions) (*Client, error) {
	opts, cfg, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	c := &Client{
		opts:      opts,
		cfg:       cfg,
		log:       opts.Logger,
		providers: map[string]providers.Provider{},
		handles:   map[*Sandbox]struct{}{},
	}
	if o != nil {
		c.records = o.Logger
	}
	cfg.Report(c.log)
	if _, err := c.provider(""); err != nil {
		return nil, err
	}
	c.pool = newPoolSet(c)
	return c, nil
}

// withDefaults returns a private copy of o with what the settings add.
func (o *ClientOptions) withDefaults() (ClientOptions, *config.Config, error) {
	var c ClientOptions
	if o != nil {
		c = *o
	}
	cfg, err := config.Load(config.Options{Overrides: c.overrides()})
	for option, d := range map[string]time.Duration{"Lifetime": c.Lifetime, "CreateTimeout": c.CreateTimeout} {
		if d < 0 {
			err = errors.Join(err, errdefs.New("E8007", "read settings", option+"="+d.String()+": must be positive; zero means the default"))
		}
	}
	if err != nil {
		return c, nil, err
	}
	c.fill(cfg)
	c.APIKey = Secret{}
	c.Logger = logger(c.Logger, cfg)
	if c.Secrets == nil {
		c.Secrets = Environment{}
	}
	if c.Stdout == nil {
		c.Stdout = os.Stdout
	}
	if c.Stderr == nil {
		c.Stderr = os.Stderr
	}
	return c, cfg, nil
}

// Provider is the name of the client's provider.
func (c *Client) Provider() string { return c.opts.Provider }

// Setting is a setting of a [Client] and where it comes from.
type Setting struct {
	Name   string // as docs/configuration.md lists it
	Value  string // of a secret, a hint
	Source string // "environment SANDBOX_REGION", …
}

// Settings are the provider and the settings that something sets, in the order of
// docs/configuration.md. They hold no secret.
func (c *Client) Settings() []Setting {
	name, reason := c.cfg.Provider()
	out := []Setting{{Name: "provider", Value: name, Source: reason}}
	for _, v := range c.cfg.Values() {
		if v.Key != "provider" {
			out = append(out, Setting{Name: v.Key, Value: v.String(), Source: v.Source})
		}
	}
	return out
}

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
			if sb.kills() && !sb.detached {
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
	p, err := c.open(name)
	if err != nil {
		return nil, err
	}
	c.providers[name] = p
	return p, nil
}

// open makes a provider. Whether it is part of the program is found before
// what is said about it.
func (c *Client) open(name string) (providers.Provider, error) {
	if !slices.Contains(providers.Names(), name) {
		_, err := providers.Open(name, providers.Config{})
		return nil, c.explainProvider(name, err)
	}
	settings, err := c.providerSettings(name)
	if err != nil {
		return nil, err
	}
	return providers.Open(name, providers.Config{StateDir: c.opts.StateDir, CacheDir: c.opts.CacheDir, Logger: c.log, Settings: settings})
}

// explainProvider adds what a reader needs who never asked for a provider.
func (c *Client) explainProvider(name string, err error) error {
	e, ok := errors.AsType[*Error](err)
	if !ok || e.Code != "E8001" || c.cfg.Value("provider").IsSet() {
		return err
	}
	chosen, reason := c.cfg.Provider()
	if chosen != name {
		return err
	}
	return &Error{
		Code: e.Code, Op: e.Op, Err: e.Err,
		Message:    "provider " + strconv.Quote(name) + " is chosen by " + reason + ", but it is not part of this program; linked are: " + strings.Join(providers.Names(), ", "),
		Suggestion: "set SANDBOX_PROVIDER=local to use sandboxes of this machine, or remove what chooses " + name,
	}
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
