package sandboxfn

import (
	"context"
	"time"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// Pause stops everything in the sandbox and keeps it. Until Resume, or
// [Client.Connect], commands and files fail with [ErrPaused]; what had begun,
// also a function call, goes on afterwards. Its clocks do not stand still
// meanwhile: deadlines of commands and the lifetime of the sandbox count. Close
// and Kill work as ever.
//
// Behind a gateway a pause cuts connections: streams of commands end with
// [ErrPaused], function calls under way with E5003, while their processes go on
// after Resume.
//
// A sandbox that is paused already is [ErrPaused]. Providers that cannot pause:
// [ErrNotSupported].
func (sb *Sandbox) Pause(ctx context.Context) error {
	if err := sb.usable(); err != nil {
		return err
	}
	return sb.note(sb.client.pause(ctx, sb.provider, sb.id))
}

// Resume lets a paused sandbox go on; one that runs is left as it is. The end of
// its lifetime stays where it is.
func (sb *Sandbox) Resume(ctx context.Context) error {
	const op = "resume sandbox"
	if err := sb.usable(); err != nil {
		return err
	}
	p, err := pauser(ctx, op, sb.provider)
	if err != nil {
		return err
	}
	if _, err := p.Resume(ctx, sb.id, providers.ConnectRequest{}); err != nil {
		return sb.note(sb.client.providerError(ctx, op, err))
	}
	return nil
}

// Pause is [Client.Pause] on the client of ctx, or the default one.
func Pause(ctx context.Context, id string) error {
	c, err := clientFrom(ctx)
	if err != nil {
		return err
	}
	return c.Pause(ctx, id)
}

// Pause is [Sandbox.Pause] for a sandbox of the client's provider, whoever
// created it. [Client.Connect] resumes it.
func (c *Client) Pause(ctx context.Context, id string) error {
	if err := checkID("pause sandbox", id); err != nil {
		return err
	}
	p, err := c.provider("")
	if err != nil {
		return err
	}
	return c.pause(ctx, p, id)
}

func (c *Client) pause(ctx context.Context, p providers.Provider, id string) error {
	const op = "pause sandbox"
	pp, err := pauser(ctx, op, p)
	if err != nil {
		return err
	}
	if err := pp.Pause(ctx, id); err != nil {
		return c.providerError(ctx, op, err)
	}
	return nil
}

func pauser(ctx context.Context, op string, p providers.Provider) (providers.Pauser, error) {
	return capable[providers.Pauser](ctx, op, p, providers.CapPause)
}

// capable returns p as what the capability promises, or E8004.
func capable[T any](ctx context.Context, op string, p providers.Provider, c providers.Capability) (T, error) {
	v, ok := p.(T)
	if ok {
		caps, err := p.Capabilities(ctx)
		if err != nil {
			return v, err
		}
		ok = caps.Set[c]
	}
	if !ok {
		return v, errdefs.New("E8004", op, "provider "+p.Name()+" does not have the capability "+string(c))
	}
	return v, nil
}

// Metrics is what a sandbox takes at one moment. A size of zero is unknown, a
// total of zero may also mean that there is no limit.
type Metrics struct {
	At         time.Time
	CPUs       float64 // processors that it may use
	CPUPercent float64 // of one processor, since the measurement before or since the start

	MemoryUsed, MemoryCache, MemoryTotal Bytes
	DiskUsed, DiskTotal                  Bytes
}

// Metrics measures the sandbox. Providers that cannot: [ErrNotSupported].
func (sb *Sandbox) Metrics(ctx context.Context) (*Metrics, error) {
	const op = "measure sandbox"
	if err := sb.usable(); err != nil {
		return nil, err
	}
	m, err := capable[providers.Meter](ctx, op, sb.provider, providers.CapMetrics)
	if err != nil {
		return nil, err
	}
	u, err := m.Usage(ctx, sb.id)
	if err != nil {
		return nil, sb.note(sb.client.providerError(ctx, op, err))
	}
	return &Metrics{
		At: u.At, CPUs: u.CPUs, CPUPercent: u.CPUPercent,
		MemoryUsed: Bytes(u.MemoryUsed), MemoryCache: Bytes(u.MemoryCache), MemoryTotal: Bytes(u.MemoryTotal),
		DiskUsed: Bytes(u.DiskUsed), DiskTotal: Bytes(u.DiskTotal),
	}, nil
}
