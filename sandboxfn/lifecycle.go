package sandboxfn

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// State of a sandbox. One that a provider cannot name is [StateUnknown], never
// [StateRunning].
type State = providers.State

// The states of a sandbox.
const (
	StateStarting = providers.StateStarting
	StateRunning  = providers.StateRunning
	StatePaused   = providers.StatePaused
	StateStopped  = providers.StateStopped
	StateUnknown  = providers.StateUnknown
)

// Report says how a sandbox is isolated and what could not be enforced.
type Report = providers.Report

// Degradation is a protection that the machine does not let us enforce.
type Degradation = providers.Degradation

// Info describes a sandbox at one moment.
type Info struct {
	ID, Provider, Template string
	State                  State
	CreatedAt              time.Time
	ExpiresAt              time.Time // zero: never, or unknown
	Metadata               map[string]string
	CPU                    float64 // processors; zero: no limit known
	Memory, Disk           Bytes
	Processes              int
	RuntimeVersion         string // of the server inside; empty: unknown
}

func infoOf(s *providers.Sandbox) *Info {
	return &Info{
		ID: s.ID, Provider: s.Provider, Template: s.Template, State: s.State,
		CreatedAt: s.CreatedAt, ExpiresAt: s.ExpiresAt, Metadata: maps.Clone(s.Metadata),
		CPU:       float64(s.Resources.CPUMilli) / 1000,
		Memory:    Bytes(s.Resources.MemoryMiB) * MiB,
		Disk:      Bytes(s.Resources.DiskMiB) * MiB,
		Processes: int(s.Resources.Processes), RuntimeVersion: s.RuntimeVersion,
	}
}

// ConnectOptions say how to connect to a sandbox that exists.
type ConnectOptions struct {
	Provider string        // default: the client's
	Lifetime time.Duration // from now; extends, never shortens; zero: leave the end as it is
	Logger   *slog.Logger  // nil: the client's
}

// ListOptions select sandboxes.
type ListOptions struct {
	Provider string            // default: the client's
	Metadata map[string]string // every pair must match exactly
	States   []State           // empty: running and paused
	PageSize int               // sandboxes per request; zero: 100
}

// Create is [Client.Create] on the client of ctx, or the default one.
func Create(ctx context.Context, o *CreateOptions) (*Sandbox, error) {
	c, err := clientFrom(ctx)
	if err != nil {
		return nil, err
	}
	return c.Create(ctx, o)
}

// Connect is [Client.Connect] on the client of ctx, or the default one.
func Connect(ctx context.Context, id string, o *ConnectOptions) (*Sandbox, error) {
	c, err := clientFrom(ctx)
	if err != nil {
		return nil, err
	}
	return c.Connect(ctx, id, o)
}

// List is [Client.List] on the client of ctx, or the default one.
func List(ctx context.Context, o *ListOptions) iter.Seq2[*Info, error] {
	c, err := clientFrom(ctx)
	if err != nil {
		return func(yield func(*Info, error) bool) { yield(nil, err) }
	}
	return c.List(ctx, o)
}

// Kill is [Client.Kill] on the client of ctx, or the default one.
func Kill(ctx context.Context, id string) error {
	c, err := clientFrom(ctx)
	if err != nil {
		return err
	}
	return c.Kill(ctx, id)
}

// Create starts a sandbox and returns once commands can be run in it.
//
// A nil o means all defaults; o and what it points to are copied. The options
// are checked before anything happens. When ctx ends before Create returns,
// nothing is left behind; afterwards ctx has no effect on the sandbox, which
// ends with [Sandbox.Close], its lifetime or, unless Detached, this process.
// Errors: [ErrOption], [ErrTemplateNotFound], [ErrQuota], [ErrIsolation] where
// this machine cannot isolate, [ErrRequire]. It is safe for concurrent use.
func (c *Client) Create(ctx context.Context, o *CreateOptions) (*Sandbox, error) {
	return c.createForPool(ctx, o, poolNeeds{})
}

// poolNeeds is what a sandbox is to have that workers run in.
type poolNeeds struct {
	artifacts []providers.Artifact // files of this machine to be made visible inside, where the provider can
	places    []providers.Place    // what the default user must be able to write
}

// createForPool is Create with what workers need.
func (c *Client) createForPool(ctx context.Context, o *CreateOptions, needs poolNeeds) (*Sandbox, error) {
	const op = "create sandbox"
	if err := ctx.Err(); err != nil {
		return nil, contextError(ctx, op)
	}
	name, logger := "", c.log
	if o != nil {
		name = o.Provider
		if o.Logger != nil {
			logger = o.Logger
		}
	}
	p, err := c.provider(name)
	if err != nil {
		return nil, err
	}
	caps, err := p.Capabilities(ctx)
	if err != nil {
		return nil, c.providerError(ctx, op, err)
	}
	req, err := o.request(c, caps, p.Name())
	if err != nil {
		return nil, err
	}
	if err := refuseNesting(op, p.Name()); err != nil {
		return nil, err
	}
	if store, ok := p.(providers.ArtifactStore); ok && store.HostArtifacts() {
		req.Artifacts = slices.Clone(needs.artifacts)
	}
	req.Places = needs.places
	start := time.Now()
	cctx, cancel := context.WithTimeoutCause(ctx, c.createTimeout(caps), &Error{Code: "E5002", Op: op, Message: "the creation timeout passed"})
	defer cancel()
	s, err := p.Create(cctx, req)
	if err != nil {
		return nil, c.providerError(cctx, op, err)
	}
	sb, err := c.newSandbox(ctx, p, s, logger)
	if err != nil {
		return nil, errors.Join(err, c.release(ctx, p, s.ID))
	}
	sb.created, sb.detached = true, req.Detached
	options := o.clone()
	sb.options = &options
	if cctx.Err() != nil {
		err = contextError(cctx, op)
	} else {
		err = c.adopt(sb)
	}
	if err != nil {
		sb.detach()
		return nil, errors.Join(err, c.release(ctx, p, s.ID))
	}
	sb.log.DebugContext(ctx, "sandbox created", "provider", p.Name(), "template", s.Template, "duration", time.Since(start))
	return sb, nil
}

// refuseNesting says plainly what the kernel would say obscurely.
func refuseNesting(op, provider string) error {
	id := os.Getenv("SANDBOX_ID")
	if provider != "local" || id == "" || os.Getenv("E2B_SANDBOX") != "true" {
		return nil
	}
	return &Error{
		Code: "E2010", Op: op,
		Message:    "this program runs inside sandbox " + quoted(id) + ", and local sandboxes do not nest",
		Suggestion: "set SANDBOX_PROVIDER to a provider elsewhere, or create the sandbox from outside",
	}
}

func (c *Client) createTimeout(caps providers.Capabilities) time.Duration {
	if c.opts.CreateTimeout > 0 {
		return c.opts.CreateTimeout
	}
	return max(caps.CreateFloor, 120*time.Second)
}

// Connect returns a handle of a sandbox that exists, also one that another
// process created; it resumes a paused one, and starts one that hibernates. Errors:
// [ErrNotFound], or [ErrExpired], [ErrKilled], [ErrCrashed] where the provider
// knows how it ended.
func (c *Client) Connect(ctx context.Context, id string, o *ConnectOptions) (*Sandbox, error) {
	const op = "connect to sandbox"
	if err := checkID(op, id); err != nil {
		return nil, err
	}
	var v ConnectOptions
	if o != nil {
		v = *o
	}
	if v.Logger == nil {
		v.Logger = c.log
	}
	p, err := c.provider(v.Provider)
	if err != nil {
		return nil, err
	}
	if err := checkLifetime(ctx, op, p, v.Lifetime, true); err != nil {
		return nil, err
	}
	s, err := p.Connect(ctx, id, providers.ConnectRequest{Lifetime: v.Lifetime})
	if err != nil {
		return nil, c.providerError(ctx, op, err)
	}
	sb, err := c.newSandbox(ctx, p, s, v.Logger)
	if err != nil {
		return nil, err
	}
	if err := c.adopt(sb); err != nil {
		sb.detach() // nobody else ends what belongs to the handle
		return nil, err
	}
	return sb, nil
}

// Inspect is [Client.Inspect] on the client of ctx, or the default one.
func Inspect(ctx context.Context, id string) (*Info, error) {
	c, err := clientFrom(ctx)
	if err != nil {
		return nil, err
	}
	return c.Inspect(ctx, id)
}

// Inspect describes a sandbox of the client's provider without touching it: one
// that is paused or hibernates stays so. Errors: as for [Client.Connect].
func (c *Client) Inspect(ctx context.Context, id string) (*Info, error) {
	const op = "describe sandbox"
	if err := checkID(op, id); err != nil {
		return nil, err
	}
	p, err := c.provider("")
	if err != nil {
		return nil, err
	}
	s, err := p.Get(ctx, id)
	if err != nil {
		return nil, c.providerError(ctx, op, err)
	}
	return infoOf(s), nil
}

// List yields the sandboxes of the provider, newest first. Pages are fetched as
// the loop asks for them; after an error the sequence ends.
func (c *Client) List(ctx context.Context, o *ListOptions) iter.Seq2[*Info, error] {
	const op = "list sandboxes"
	var v ListOptions
	if o != nil {
		v = *o
	}
	req := providers.ListRequest{Metadata: maps.Clone(v.Metadata), States: slices.Clone(v.States), Limit: v.PageSize}
	return func(yield func(*Info, error) bool) {
		if v.PageSize < 0 {
			yield(nil, errdefs.New("E2011", op, "PageSize is negative"))
			return
		}
		p, err := c.provider(v.Provider)
		if err != nil {
			yield(nil, err)
			return
		}
		for req := req; ; {
			page, err := p.List(ctx, req)
			if err != nil {
				yield(nil, c.providerError(ctx, op, err))
				return
			}
			for _, s := range page.Sandboxes {
				if !yield(infoOf(s), nil) {
					return
				}
			}
			if page.Next == "" {
				return
			}
			if page.Next == req.Token {
				yield(nil, errdefs.New("E8000", op, "the provider returned the same page twice"))
				return
			}
			req.Token = page.Next
		}
	}
}

// Kill stops the sandbox and frees it, whoever created it. One that is gone, or
// never was, is not an error.
func (c *Client) Kill(ctx context.Context, id string) error {
	const op = "kill sandbox"
	if err := checkID(op, id); err != nil {
		return err
	}
	p, err := c.provider("")
	if err != nil {
		return err
	}
	return c.kill(ctx, p, id)
}

func (c *Client) kill(ctx context.Context, p providers.Provider, id string) error {
	if err := p.Kill(ctx, id); err != nil && !isGone(err) {
		return c.providerError(ctx, "kill sandbox", err)
	}
	return nil
}

// release kills a sandbox even when ctx has ended already, so that a cancelled
// call never leaks one. A kill that fails is tried again.
func (c *Client) release(ctx context.Context, p providers.Provider, id string) error {
	return c.persist(ctx, func(ctx context.Context) error {
		err := c.kill(ctx, p, id)
		if err != nil {
			c.log.WarnContext(ctx, "sandbox not killed", "sandbox_id", id, "err", err)
		}
		return err
	})
}

// persist cleans up, also when ctx has ended already, and tries again when that
// fails; it is bounded.
func (c *Client) persist(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTimeout)
	defer cancel()
	for wait := 100 * time.Millisecond; ; wait *= 4 {
		err := do(ctx)
		if err == nil || wait > 2*time.Second {
			return err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return err
		}
	}
}

// checkID refuses ids that no provider can have made.
func checkID(op, id string) error {
	check := optionCheck{op: op}
	check.text("the id of the sandbox", id)
	switch {
	case id == "":
		check.fail("the id of the sandbox is empty")
	case len(id) > 256:
		check.fail("the id of the sandbox is longer than 256 bytes")
	}
	if check.problem != "" {
		return errdefs.New("E2011", op, check.problem)
	}
	return nil
}

// checkLifetime refuses a lifetime that p cannot give.
func checkLifetime(ctx context.Context, op string, p providers.Provider, d time.Duration, zeroAllowed bool) error {
	caps, err := p.Capabilities(ctx)
	if err != nil {
		return err
	}
	check := optionCheck{op: op}
	check.lifetime(d, caps.Lifetime, p.Name())
	if d == 0 && !zeroAllowed {
		check.fail("the new lifetime is zero; use Kill to end the sandbox now")
	}
	if check.problem != "" {
		return &Error{Code: "E2011", Op: op, Message: check.problem, Suggestion: check.suggestion}
	}
	return nil
}

// isGone reports whether err says that a sandbox does not exist, or not any more.
func isGone(err error) bool {
	switch errdefs.CodeOf(err) {
	case "E2020", "E2021", "E2022", "E2023":
		return true
	}
	return false
}

// providerError gives a provider's error a code where it has none.
func (c *Client) providerError(ctx context.Context, op string, err error) error {
	if errdefs.CodeOf(err) != "" {
		return err
	}
	if ctx.Err() != nil {
		return contextError(ctx, op)
	}
	return errdefs.Wrap("E8000", op, "provider "+c.opts.Provider+" failed", err)
}
