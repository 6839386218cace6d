package sandboxfn

import (
	"context"

	"github.com/agent-sandbox/sandbox-go/providers"
)

// Hibernate ends every process of the sandbox and keeps its files, for as long as
// nobody kills it: its lifetime does not count meanwhile. [Client.Connect] starts
// it again under its id, with the settings that it was created with, and returns a
// new handle; what was in memory is gone. Info says [StateStopped] until then.
//
// The handles that this client has of it are of no use any more: they fail with
// [ErrPaused], and their Close does not kill it. A pool that it belonged to lets go
// of it.
//
// One that hibernates already is [ErrPaused]. Providers that cannot:
// [ErrNotSupported].
func (sb *Sandbox) Hibernate(ctx context.Context) error {
	if err := sb.usable(); err != nil {
		return err
	}
	if err := sb.client.hibernate(ctx, sb.provider, sb.id); err != nil {
		return sb.note(err)
	}
	sb.fellAsleep() // one that a pool has lent, the client does not know
	return nil
}

// Hibernate is [Client.Hibernate] on the client of ctx, or the default one.
func Hibernate(ctx context.Context, id string) error {
	c, err := clientFrom(ctx)
	if err != nil {
		return err
	}
	return c.Hibernate(ctx, id)
}

// Hibernate is [Sandbox.Hibernate] for a sandbox of the client's provider, whoever
// created it.
func (c *Client) Hibernate(ctx context.Context, id string) error {
	if err := checkID("hibernate sandbox", id); err != nil {
		return err
	}
	p, err := c.provider("")
	if err != nil {
		return err
	}
	return c.hibernate(ctx, p, id)
}

func (c *Client) hibernate(ctx context.Context, p providers.Provider, id string) error {
	const op = "hibernate sandbox"
	h, err := capable[providers.Hibernator](ctx, op, p, providers.CapHibernate)
	if err != nil {
		return err
	}
	if err := h.Hibernate(ctx, id); err != nil {
		return c.providerError(ctx, op, err)
	}
	c.mu.Lock()
	var handles []*Sandbox
	for sb := range c.handles {
		if sb.provider == p && sb.id == id {
			handles = append(handles, sb)
		}
	}
	c.mu.Unlock()
	for _, sb := range handles {
		sb.fellAsleep()
	}
	return nil
}

// fellAsleep makes the handle say what to do, and its Close leave the sandbox.
func (sb *Sandbox) fellAsleep() {
	sb.mu.Lock()
	sb.asleep = true
	sb.mu.Unlock()
	sb.retire(hibernates(sb.id, nil))
}

// kills reports whether Close kills the sandbox.
func (sb *Sandbox) kills() bool {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	return sb.created && !sb.asleep
}

// hibernates is the error of those who use a sandbox that hibernates.
func hibernates(id string, cause error) error {
	return &Error{Code: "E2024", Op: "use sandbox " + id, Message: "it hibernates",
		Suggestion: "connect to it: that starts it again, and gives a handle to use", Err: cause}
}

// stopped says why a sandbox that has stopped cannot be used.
func (sb *Sandbox) stopped(ctx context.Context, cause error) error {
	if _, err := capable[providers.Hibernator](ctx, "", sb.provider, providers.CapHibernate); err == nil {
		return hibernates(sb.id, unsaid{cause})
	}
	return sb.note(&Error{Code: "E2023", Op: "use sandbox " + sb.id, Message: "it has stopped", Err: cause})
}
