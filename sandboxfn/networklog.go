package sandboxfn

import (
	"context"

	"github.com/agent-sandbox/sandbox-go/providers"
)

// NetworkEvent is one decision about a connection, or a question for a name.
type NetworkEvent = providers.NetworkEvent

// NetworkLog returns what the sandbox's network rules allowed and refused, oldest
// first, as far as it is kept: an event of kind "dropped" stands for those that
// are not. Without rules there are none. Providers that keep no such log:
// [ErrNotSupported].
func (sb *Sandbox) NetworkLog(ctx context.Context) ([]NetworkEvent, error) {
	const op = "read network log"
	if err := sb.usable(); err != nil {
		return nil, err
	}
	a, err := capable[providers.Auditor](ctx, op, sb.provider, providers.CapNetworkLog)
	if err != nil {
		return nil, err
	}
	events, err := a.NetworkLog(ctx, sb.id)
	if err != nil {
		return nil, sb.note(sb.client.providerError(ctx, op, err))
	}
	return events, nil
}
