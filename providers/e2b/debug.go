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

func (p *Provider) debugCreate(ctx context.Context, req providers.CreateRequest) (*providers.Sandbox, error) {
	sb := p.debugSandbox()
	sb.Template, sb.Metadata = req.Template, req.Metadata
	if last, ok := p.ready(ctx, sb.Data, debugReady); !ok {
		if ctx.Err() != nil {
			return nil, cancelled(ctx, opCreate)
		}
		return nil, &errdefs.Error{
			Code: "E2009", Op: opCreate, Message: fmt.Sprintf("debug is on and no runtime answers at %s: last answer %s", p.hostOf(sb.Data), last),
			Suggestion: "start one there, or turn debug off (E2B_DEBUG)",
		}
	}
	return sb, nil
}
