package sandboxfn

import (
	"context"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// Finding is one result of [Diagnose]: what it is about, how bad it is, what was
// found, and what would change it.
type Finding = providers.Finding

// FindingLevel says how bad a finding is.
type FindingLevel = providers.FindingLevel

// The levels of findings. Only FindingFailed means that no sandbox can be made.
const (
	FindingOK       = providers.FindingOK
	FindingInfo     = providers.FindingInfo
	FindingDegraded = providers.FindingDegraded
	FindingFailed   = providers.FindingFailed
)

// DiagnoseOptions say what to look at.
type DiagnoseOptions struct {
	Provider string // empty: the client's
}

// Diagnose is [Client.Diagnose] on the client of ctx, or the default one.
func Diagnose(ctx context.Context, o *DiagnoseOptions) ([]Finding, error) {
	c, err := clientFrom(ctx)
	if err != nil {
		return nil, err
	}
	return c.Diagnose(ctx, o)
}

// Diagnose says what a provider can enforce where it would make sandboxes, and
// how to get what is missing. A nil o asks the client's provider. Findings are no
// errors, also those of [FindingFailed]. The local provider builds sandboxes for
// it, which end at once, and leaves nothing behind. Providers that cannot
// say: [ErrNotSupported].
func (c *Client) Diagnose(ctx context.Context, o *DiagnoseOptions) ([]Finding, error) {
	var opts DiagnoseOptions
	if o != nil {
		opts = *o
	}
	p, err := c.provider(opts.Provider)
	if err != nil {
		return nil, err
	}
	d, ok := p.(providers.Doctor)
	if !ok {
		return nil, errdefs.New("E8004", "diagnose", "provider "+p.Name()+" says nothing about this machine")
	}
	if err := ctx.Err(); err != nil {
		return nil, c.providerError(ctx, "diagnose", err)
	}
	return d.Diagnose(ctx), nil
}

// GC is [Client.GC] on the client of ctx, or the default one.
func GC(ctx context.Context) error {
	c, err := clientFrom(ctx)
	if err != nil {
		return err
	}
	return c.GC(ctx)
}

// Collect is [Client.Collect] on the client of ctx, or the default one.
func Collect(ctx context.Context) ([]Removed, error) {
	c, err := clientFrom(ctx)
	if err != nil {
		return nil, err
	}
	return c.Collect(ctx)
}

// GC removes what sandboxes that are dead left on this machine, and what was not
// used for long and can be had again. Every program that makes local sandboxes
// does so when it begins; GC does it now. Living sandboxes, also those that
// hibernate, snapshots and volumes stay. Providers that keep nothing on this
// machine: [ErrNotSupported].
func (c *Client) GC(ctx context.Context) error {
	_, err := c.Collect(ctx)
	return err
}

// Removed is something that [Client.Collect] has removed.
type Removed = providers.Removed

// RemovedKind says what was removed.
type RemovedKind = providers.RemovedKind

// The kinds of what is removed.
const (
	RemovedSandbox    = providers.RemovedSandbox
	RemovedSnapshot   = providers.RemovedSnapshot
	RemovedLayer      = providers.RemovedLayer
	RemovedImage      = providers.RemovedImage
	RemovedImageLayer = providers.RemovedImageLayer
	RemovedExecutable = providers.RemovedExecutable
	RemovedIDs        = providers.RemovedIDs
)

// Collect is [Client.GC], and says what was removed, in that order; of a client that
// has done nothing before, also what its beginning has removed. With an error comes
// what was removed before it.
func (c *Client) Collect(ctx context.Context) ([]Removed, error) {
	const op = "collect remains"
	p, err := c.provider("")
	if err != nil {
		return nil, err
	}
	g, ok := p.(providers.Collector)
	if !ok {
		return nil, errdefs.New("E8004", op, "provider "+p.Name()+" keeps nothing on this machine")
	}
	removed, err := g.Collect(ctx)
	if err != nil {
		return removed, c.providerError(ctx, op, err)
	}
	return removed, nil
}
