package e2b

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/api"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// Connect returns a sandbox with its endpoint, and resumes it when it is paused.
// The end of one that this provider paused is then where it was before, at least
// a second from now, unless a lifetime is asked for. The service forgets the end
// of what is paused: one that somebody else paused gets the default lifetime.
func (p *Provider) Connect(ctx context.Context, id string, req providers.ConnectRequest) (*providers.Sandbox, error) {
	const op = "connect to sandbox"
	if err := checkLifetime(op, req.Lifetime, true); err != nil {
		return nil, err
	}
	done, err := p.begin(ctx, op)
	if err != nil {
		return nil, err
	}
	defer done()
	return p.connect(ctx, op, id, req.Lifetime)
}

// Resume lets a paused sandbox go on, as Connect does. One that runs is returned
// as it is.
func (p *Provider) Resume(ctx context.Context, id string, req providers.ConnectRequest) (*providers.Sandbox, error) {
	return p.Connect(ctx, id, req)
}

func (p *Provider) connect(ctx context.Context, op, id string, d time.Duration) (*providers.Sandbox, error) {
	before, err := p.get(ctx, op, id)
	if err != nil || p.opts.debug {
		return before, err
	}
	// The service takes a time always and moves the end to it, never to sooner:
	// what is left leaves the end where it is.
	life := d
	switch {
	case d == 0 && before.State == providers.StatePaused:
		life = p.leftOfPaused(id)
	case d == 0:
		life = max(time.Until(before.ExpiresAt), time.Second)
	}
	secs := api.Seconds(life)
	in, resumed, err := p.api.Connect(ctx, id, &api.Connect{Timeout: &secs})
	if err != nil {
		return nil, p.gone(op, id, err)
	}
	domain, err := p.domainOf(op, id, in.Domain)
	if err != nil {
		return nil, err
	}
	sb := p.describe(in, p.known.learn(in, domain))
	if resumed {
		if u := p.ready(ctx, sb.Data, p.testOnlyReadyLimit); u != nil {
			if ctx.Err() != nil {
				return nil, cancelled(ctx, op)
			}
			return nil, &errdefs.Error{
				Code: "E2009", Op: op, Message: "sandbox " + id + " was resumed but " + u.why,
				Suggestion: cmp.Or(u.hint, "try again, or kill it"),
			}
		}
	}
	sb.Template, sb.CreatedAt, sb.Metadata, sb.Resources = before.Template, before.CreatedAt, before.Metadata, before.Resources
	sb.ExpiresAt = before.ExpiresAt
	if end := time.Now().Add(life); resumed || d != 0 && end.After(sb.ExpiresAt) {
		sb.ExpiresAt = end
	}
	p.known.update(id, func(f *fact) { f.expires, f.paused = sb.ExpiresAt, time.Time{} })
	return sb, nil
}

// leftOfPaused is the lifetime that a paused sandbox goes on with.
func (p *Provider) leftOfPaused(id string) time.Duration {
	f, _ := p.known.get(id)
	if f.paused.IsZero() {
		return p.profile.Lifetime
	}
	return max(time.Until(f.paused), time.Second)
}

// SetLifetime moves the end to d from now. The service may move it less far, to
// the account's maximum: the answer says where it is.
func (p *Provider) SetLifetime(ctx context.Context, id string, d time.Duration) (*providers.Sandbox, error) {
	const op = "set lifetime"
	if err := checkLifetime(op, d, false); err != nil {
		return nil, err
	}
	done, err := p.begin(ctx, op)
	if err != nil {
		return nil, err
	}
	defer done()
	if p.opts.debug {
		return p.debugSandbox(), nil
	}
	if err := p.api.SetTimeout(ctx, id, d); err != nil {
		return nil, p.gone(op, id, err)
	}
	return p.get(ctx, op, id)
}

// Kill stops a sandbox, also a paused one.
func (p *Provider) Kill(ctx context.Context, id string) error {
	done, err := p.begin(ctx, "kill sandbox")
	if err != nil {
		return err
	}
	defer done()
	if p.opts.debug {
		return nil
	}
	if err := p.api.Kill(ctx, id); err != nil {
		return err
	}
	p.known.update(id, func(f *fact) { f.killed = true })
	return nil
}

// Pause stops everything inside and keeps it, memory too. It asks for the end
// first, for when the sandbox goes on.
func (p *Provider) Pause(ctx context.Context, id string) error {
	const op = "pause sandbox"
	done, err := p.begin(ctx, op)
	if err != nil {
		return err
	}
	defer done()
	if p.opts.debug {
		return p.cannot(op, "pause in debug mode", "")
	}
	before, err := p.get(ctx, op, id)
	if err != nil {
		return err
	}
	if before.State != providers.StatePaused { // before it is: the answer may be lost
		p.known.update(id, func(f *fact) { f.paused = before.ExpiresAt })
	}
	err = p.api.Pause(ctx, id)
	switch status := api.Status(err); {
	case err == nil:
		return nil
	case errdefs.CodeOf(err) == "E2024": // the service says so itself
		return err
	case status == 409:
		if sb, gerr := p.get(ctx, op, id); gerr == nil && sb.State == providers.StatePaused {
			return &errdefs.Error{Code: "E2024", Op: op, Message: "sandbox " + id + " is paused already", Err: api.Quiet(err)}
		} else if errors.Is(gerr, errdefs.ErrCreate) { // it is gone
			return gerr
		}
		return err
	case p.profile.PauseRefusals && (status == 400 || status == 403 || status == 404 || status == 405):
		if _, gerr := p.get(ctx, op, id); gerr != nil {
			return gerr // it is about the sandbox after all
		}
		cannot := p.cannot(op, "pause this sandbox", "ask for the account to be allowed to, or use a template of the second generation")
		return errors.Join(cannot, err)
	}
	return p.gone(op, id, err)
}

// endSlack is how far the end of a sandbox, as it is known here, may be later
// than the service has it: its time began before the answer came.
const endSlack = 2 * time.Second

// gone says more of a sandbox that is not there, where this process knows it.
func (p *Provider) gone(op, id string, err error) error {
	if errdefs.CodeOf(err) != "E2020" {
		return during(op, err)
	}
	f, ok := p.known.get(id)
	switch {
	case ok && f.killed:
		return &errdefs.Error{Code: "E2022", Op: op, Message: "sandbox " + id + " was killed by this program", Err: api.Quiet(err)}
	case ok && !f.expires.IsZero() && !time.Now().Add(endSlack).Before(f.expires):
		return &errdefs.Error{Code: "E2021", Op: op, Message: "sandbox " + id + " expired at " + f.expires.UTC().Format(time.RFC3339), Err: api.Quiet(err)}
	}
	return during(op, err)
}
