package e2b

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/api"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

func init() { providers.Register(Name, New) }

const (
	// cleanupLimit bounds what is done after a creation has failed.
	cleanupLimit = 30 * time.Second
	// answerGrace is how long a creation that was given up may take to say what
	// it made.
	answerGrace = 15 * time.Second
	// readyLimit bounds the time between the service's answer and the runtime's.
	readyLimit = time.Minute
)

// Provider makes sandboxes at a service shaped like E2B. It is safe for
// concurrent use. Sandboxes live on when it is closed.
type Provider struct {
	profile Profile
	opts    *options
	log     *slog.Logger
	api     *api.Client // nil in debug mode
	data    *http.Client
	roots   *x509.CertPool // nil: the system's
	known   known

	testOnlyReadyLimit time.Duration // in place of readyLimit

	mu     sync.Mutex
	closed bool           // guarded by mu
	wg     sync.WaitGroup // one for each operation
}

// metered is a Provider of a service that measures sandboxes.
type metered struct{ *Provider }

var (
	_ providers.Provider    = (*Provider)(nil)
	_ providers.Pauser      = (*Provider)(nil)
	_ providers.PortExposer = (*Provider)(nil)
	_ providers.Meter       = metered{}
	_ providers.Snapshotter = (*Provider)(nil)
)

// New makes the provider of E2B's cloud, or of a gateway, from settings. It
// makes no request. Errors: E1001 without a usable key, E8007 for settings that
// are malformed.
func New(cfg providers.Config) (providers.Provider, error) { return Open(Cloud(), cfg) }

// Open is New for a service of another profile. Profile.Name is the name of the
// provider.
func Open(p Profile, cfg providers.Config) (providers.Provider, error) {
	pr, err := open(p, cfg)
	if err != nil {
		return nil, err
	}
	if p.Metrics {
		return metered{pr}, nil
	}
	return pr, nil
}

func open(p Profile, cfg providers.Config) (*Provider, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	s := &settings{profile: &p, in: cfg.Settings}
	o, err := s.read(&cfg)
	if err != nil {
		return nil, err
	}
	pr := &Provider{profile: p, opts: o, log: cfg.Logger, testOnlyReadyLimit: readyLimit}
	if !o.debug {
		if pr.api, err = api.New(&o.api); err != nil {
			return nil, err
		}
	}
	transport, err := api.NewTransport(&o.transport)
	if err != nil {
		return nil, err
	}
	pr.roots = transport.TLSClientConfig.RootCAs
	pr.data = &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return pr, nil
}

// Name is the name of the profile.
func (p *Provider) Name() string { return p.profile.Name }

// Capabilities says what the service can do. It makes no request; the bounds of
// lifetimes depend on the account and are not known.
func (p *Provider) Capabilities(context.Context) (providers.Capabilities, error) {
	c := providers.Capabilities{
		Set: map[providers.Capability]bool{
			providers.CapPause: true, providers.CapPorts: true, providers.CapMetadataFilter: true, providers.CapDetached: true,
		},
		Lifetime:    providers.LifetimeRange{Default: p.profile.Lifetime},
		CreateFloor: p.profile.CreateFloor,
		ListLag:     p.profile.ListLag,
		Networks:    []string{"none", "loopback", "all"},
	}
	if p.profile.EgressLists {
		c.Set[providers.CapEgressPolicy] = true
		c.Networks = append(c.Networks, "list")
	}
	if p.profile.Snapshots {
		c.Set[providers.CapSnapshot], c.Set[providers.CapFork] = true, true
	}
	if p.profile.Metrics {
		c.Set[providers.CapMetrics] = true
	}
	return c, nil
}

// begin starts an operation, which Close waits for. It ends with done; after an
// error there is none to end.
func (p *Provider) begin(ctx context.Context, op string) (done func(), err error) {
	if ctx.Err() != nil {
		return nil, cancelled(ctx, op)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, &errdefs.Error{Code: "E8000", Op: op, Message: "the provider is closed"}
	}
	p.wg.Add(1)
	return p.wg.Done, nil
}

// Close waits for operations in progress and closes connections. Sandboxes live
// on.
func (p *Provider) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.wg.Wait()
	if p.api != nil {
		p.api.Close()
	}
	p.data.CloseIdleConnections()
	return nil
}

// cancelled says why ctx ended.
func cancelled(ctx context.Context, op string) error {
	cause := context.Cause(ctx)
	if !errors.Is(cause, ctx.Err()) {
		cause = fmt.Errorf("%w: %w", ctx.Err(), cause)
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return errdefs.Wrap("E5002", op, "given up before there was an answer", cause)
	}
	return errdefs.Wrap("E5004", op, "cancelled by the caller", cause)
}

// during gives an error of a request the name of what it was made for.
func during(op string, err error) error {
	e, ok := errors.AsType[*errdefs.Error](err)
	if !ok || e.Op == op {
		return err
	}
	c := *e
	c.Op = op
	return &c
}
