package gateway

import (
	"context"
	"fmt"
	"maps"
	"net"
	"sync"
	"time"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// fake keeps sandboxes that nothing runs in, for tests of what is kept of them.
type fake struct {
	mu    sync.Mutex
	boxes map[string]*providers.Sandbox
	next  int

	// hooks; nil does nothing.
	onCreate func() error
	onPause  func() error
	onList   func() error

	dial func(context.Context) (net.Conn, error) // reaches the runtime
}

func newFake() *fake { return &fake{boxes: map[string]*providers.Sandbox{}} }

var (
	_ providers.Provider = (*fake)(nil)
	_ providers.Pauser   = (*fake)(nil)
)

func (*fake) Name() string { return "fake" }

func (*fake) Capabilities(context.Context) (providers.Capabilities, error) {
	return providers.Capabilities{}, nil
}

func (f *fake) Create(_ context.Context, req providers.CreateRequest) (*providers.Sandbox, error) {
	if f.onCreate != nil {
		if err := f.onCreate(); err != nil {
			return nil, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next++
	now := time.Now()
	sb := &providers.Sandbox{
		ID: fmt.Sprintf("fake%016d", f.next), Provider: "fake", Template: req.Template, State: providers.StateRunning,
		CreatedAt: now, ExpiresAt: now.Add(req.Lifetime), Metadata: maps.Clone(req.Metadata),
		Data: providers.Endpoint{Token: providers.Secret("token of " + req.RequestID), Dial: f.dial},
	}
	f.boxes[sb.ID] = sb
	c := *sb
	return &c, nil
}

// count is how many sandboxes have been made.
func (f *fake) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.next
}

func (f *fake) find(id string) (*providers.Sandbox, error) {
	if sb := f.boxes[id]; sb != nil {
		return sb, nil
	}
	return nil, errdefs.New("E2020", "find", "no sandbox "+id)
}

func (f *fake) Get(_ context.Context, id string) (*providers.Sandbox, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	sb, err := f.find(id)
	if err != nil {
		return nil, err
	}
	c := *sb
	return &c, nil
}

func (f *fake) List(context.Context, providers.ListRequest) (*providers.Page, error) {
	if f.onList != nil {
		if err := f.onList(); err != nil {
			return nil, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	p := &providers.Page{}
	for _, sb := range f.boxes {
		c := *sb
		p.Sandboxes = append(p.Sandboxes, &c)
	}
	return p, nil
}

func (f *fake) Connect(ctx context.Context, id string, _ providers.ConnectRequest) (*providers.Sandbox, error) {
	return f.Get(ctx, id)
}

func (f *fake) SetLifetime(_ context.Context, id string, d time.Duration) (*providers.Sandbox, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	sb, err := f.find(id)
	if err != nil {
		return nil, err
	}
	sb.ExpiresAt = time.Now().Add(d)
	c := *sb
	return &c, nil
}

func (f *fake) Kill(_ context.Context, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.find(id); err != nil {
		return err
	}
	delete(f.boxes, id)
	return nil
}

func (f *fake) Close() error { return nil }

func (f *fake) Pause(_ context.Context, id string) error {
	if f.onPause != nil {
		if err := f.onPause(); err != nil {
			return err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	sb, err := f.find(id)
	if err != nil {
		return err
	}
	sb.State = providers.StatePaused
	return nil
}

func (f *fake) Resume(_ context.Context, id string, _ providers.ConnectRequest) (*providers.Sandbox, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	sb, err := f.find(id)
	if err != nil {
		return nil, err
	}
	sb.State = providers.StateRunning
	c := *sb
	return &c, nil
}
