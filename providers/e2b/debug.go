package e2b

import (
	"context"
	"fmt"
	"time"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// Debug mode is that of E2B's SDKs (E2B_DEBUG): a runtime that somebody started
// on this machine is the one sandbox, and there is no control plane.
const (
	debugURL     = "http://localhost:49983"
	debugID      = "debug_sandbox_id"
	debugVersion = "99.99.99"

	// debugReady bounds the wait for a runtime that is there or not.
	debugReady = 2 * time.Second
)

func (p *Provider) debugSandbox() *providers.Sandbox {
	e := providers.Endpoint{URL: p.opts.sandbox.String(), RootCAs: p.roots}
	if p.opts.socket != "" {
		e.Dial = p.dialSocket
	}
	return &providers.Sandbox{
		ID: debugID, Provider: p.profile.Name, State: providers.StateRunning, RuntimeVersion: debugVersion, Data: e,
	}
}

// debugCreate finds the runtime that is there. What a creation would have to
// decide about it is E8004.
func (p *Provider) debugCreate(ctx context.Context, req providers.CreateRequest) (*providers.Sandbox, error) {
	for _, c := range []struct {
		asked      bool
		what, hint string
	}{
		{len(req.Env) > 0, "set Env", "name the variables with each command"},
		{len(req.Metadata) > 0, "keep Metadata", ""},
		{req.Lifetime != 0, "set Lifetime", "unset it, and SANDBOX_LIFETIME: what runs there ends when you end it"},
		{req.Resources != (providers.Resources{}), "set CPU, Memory and Disk", ""},
		{req.Network != nil, "set Network", ""},
	} {
		if c.asked {
			return nil, p.cannot(opCreate, c.what+" in debug mode: the sandbox is a runtime that runs already", c.hint)
		}
	}
	sb := p.debugSandbox()
	sb.Template = req.Template
	if u := p.ready(ctx, sb.Data, debugReady); u != nil {
		if ctx.Err() != nil {
			return nil, cancelled(ctx, opCreate)
		}
		return nil, &errdefs.Error{
			Code: "E2009", Op: opCreate, Message: fmt.Sprintf("debug is on and no runtime answers at %s: last answer %s", p.hostOf(sb.Data), u.last),
			Suggestion: "start one there, or turn debug off (E2B_DEBUG)",
		}
	}
	return sb, nil
}
