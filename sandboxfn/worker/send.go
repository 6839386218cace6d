package worker

import (
	"context"

	"github.com/agent-sandbox/sandbox-go/internal/envelope"
	"github.com/agent-sandbox/sandbox-go/internal/frame"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// Finish runs what is left to do for the call of ctx after its function has
// returned without an error, and before its result is sent.
func Finish(ctx context.Context) error {
	if c := callOf(ctx); c != nil {
		return c.finish()
	}
	return nil
}

// A Sender sends the items of a streaming result. It is for one goroutine at a
// time.
type Sender struct{ c *running }

// SenderOf returns the sender of the call of ctx.
func SenderOf(ctx context.Context) *Sender { return &Sender{callOf(ctx)} }

// Limit is how large an item may be, in bytes.
func (s *Sender) Limit() int64 { return s.c.limit }

// Errors are the errors that are known to the worker.
func (s *Sender) Errors() *envelope.Errors { return s.c.s.errors }

// Send sends an item once the caller grants it. It reports false when nobody
// wants any more: the caller has left, or the call's context has ended. The
// empty item says that the function has returned and others will follow.
func (s *Sender) Send(p envelope.Payload) bool {
	s.c.relieve()
	m := frame.Message{Type: frame.Item, ID: s.c.id, Body: p.Body, Segments: p.Segments}
	return s.c.out.Take(m.Size(), s.c.ctx.Done()) && s.c.send(&m) == nil
}

// Nested has the caller run another function for the call of ctx: p is its
// request. It returns the response.
func Nested(ctx context.Context, name string, p envelope.Payload) (envelope.Payload, error) {
	c := callOf(ctx)
	if c == nil {
		c = current.Load().only()
	}
	if c == nil {
		return envelope.Payload{}, &errdefs.Error{
			Code: "E9016", Op: name,
			Message:    "it was called from inside a sandbox with a context that is of no call",
			Suggestion: "pass the context that the sandboxed function was given",
		}
	}
	q := envelope.Payload{Body: append(c.prefix(envelope.UpNested, 0), p.Body...), Segments: p.Segments}
	u, err := c.start(envelope.UpNested, 0, false, q)
	if err != nil {
		return envelope.Payload{}, err
	}
	r, err := u.wait(ctx)
	if err != nil {
		return envelope.Payload{}, err
	}
	return envelope.Payload{Body: r.Body[1:], Segments: r.Segments}, nil
}

// only is the call that runs, when it is the only one.
func (s *server) only() *running {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.calls) != 1 {
		return nil
	}
	for _, c := range s.calls {
		return c
	}
	return nil
}
