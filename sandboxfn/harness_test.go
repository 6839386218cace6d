package sandboxfn

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/runtime/server"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// hostProvider makes "sandboxes" that are runtimes of this process on unix
// sockets: everything but the isolation. Tests of the client use it where the
// machine cannot isolate, and to reach into both sides.
type hostProvider struct {
	dir string // for sockets and homes

	mu      sync.Mutex
	boxes   map[string]*hostBox // guarded by mu
	creates int                 // guarded by mu

	onKill    func(id string) error                              // may fail a kill
	onConnect func()                                             // runs before Connect returns
	wrap      func(net.Conn) net.Conn                            // around every connection of clients
	gone      map[string]error                                   // guarded by mu; what Get says of ids
	caps      func(*providers.Capabilities)                      // changes what it offers
	edit      func(*providers.CreateRequest, *providers.Sandbox) // changes what Create returns
	options   func(*server.Options)                              // changes what runtimes are told
}

type hostBox struct {
	box    providers.Sandbox
	srv    *server.Server
	socket string
	served chan error
}

var _ providers.Provider = (*hostProvider)(nil)

func (p *hostProvider) Name() string { return "host" }

func (p *hostProvider) Capabilities(context.Context) (providers.Capabilities, error) {
	c := providers.Capabilities{
		Lifetime: providers.LifetimeRange{Min: time.Second, Default: time.Hour, Max: 24 * time.Hour},
		Networks: []string{"none", "loopback", "host"},
	}
	if p.caps != nil {
		p.caps(&c)
	}
	return c, nil
}

func (p *hostProvider) Create(ctx context.Context, req providers.CreateRequest) (*providers.Sandbox, error) {
	p.mu.Lock()
	p.creates++
	id := "h" + strconv.Itoa(p.creates)
	p.mu.Unlock()
	home := filepath.Join(p.dir, id)
	if err := os.MkdirAll(home, 0o700); err != nil {
		return nil, err
	}
	opts := &server.Options{AllowNoToken: true, Env: req.Env, DefaultUser: req.User, DefaultWorkDir: home}
	if p.options != nil {
		p.options(opts)
	}
	srv, err := server.New(opts)
	if err != nil {
		return nil, err
	}
	b := &hostBox{srv: srv, socket: filepath.Join(p.dir, id+".sock"), served: make(chan error, 1)}
	l, err := net.Listen("unix", b.socket)
	if err != nil {
		return nil, err
	}
	go func() { b.served <- srv.Serve(l) }()
	b.box = providers.Sandbox{
		ID: id, Provider: "host", Template: "base", State: providers.StateRunning, Metadata: req.Metadata,
		CreatedAt: time.Now(), ExpiresAt: time.Now().Add(time.Hour),
		Data: providers.Endpoint{Channels: true, Dial: func(ctx context.Context) (net.Conn, error) {
			var d net.Dialer
			c, err := d.DialContext(ctx, "unix", b.socket)
			if err == nil && p.wrap != nil {
				c = p.wrap(c)
			}
			return c, err
		}},
	}
	if p.edit != nil {
		p.edit(&req, &b.box)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.boxes == nil {
		p.boxes = map[string]*hostBox{}
	}
	p.boxes[id] = b
	box := b.box
	return &box, nil
}

func (p *hostProvider) Get(_ context.Context, id string) (*providers.Sandbox, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.gone[id]; err != nil {
		return nil, err
	}
	if b := p.boxes[id]; b != nil {
		box := b.box
		return &box, nil
	}
	return nil, errdefs.New("E2020", "find sandbox", id)
}

func (p *hostProvider) List(_ context.Context, req providers.ListRequest) (*providers.Page, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	limit := req.Limit
	if limit == 0 {
		limit = 100
	}
	var ids []string
	for id := range p.boxes {
		if id > req.Token {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	page := &providers.Page{}
	for _, id := range ids {
		if len(page.Sandboxes) == limit {
			page.Next = page.Sandboxes[limit-1].ID
			break
		}
		box := p.boxes[id].box
		page.Sandboxes = append(page.Sandboxes, &box)
	}
	return page, nil
}

func (p *hostProvider) Connect(ctx context.Context, id string, _ providers.ConnectRequest) (*providers.Sandbox, error) {
	s, err := p.Get(ctx, id)
	if p.onConnect != nil {
		p.onConnect()
	}
	return s, err
}

func (p *hostProvider) SetLifetime(ctx context.Context, id string, d time.Duration) (*providers.Sandbox, error) {
	s, err := p.Get(ctx, id)
	if err == nil {
		s.ExpiresAt = time.Now().Add(d)
	}
	return s, err
}

func (p *hostProvider) Kill(ctx context.Context, id string) error {
	if p.onKill != nil {
		if err := p.onKill(id); err != nil {
			return err
		}
	}
	return p.stop(ctx, id, "E2022")
}

// stop ends a sandbox; Get reports code from then on.
func (p *hostProvider) stop(ctx context.Context, id string, code errdefs.Code) error {
	p.mu.Lock()
	b := p.boxes[id]
	delete(p.boxes, id)
	if b != nil {
		if p.gone == nil {
			p.gone = map[string]error{}
		}
		p.gone[id] = errdefs.New(code, "find sandbox", id)
	}
	p.mu.Unlock()
	if b == nil {
		return errdefs.New("E2020", "kill sandbox", id)
	}
	err := b.srv.Shutdown(ctx)
	return errors.Join(err, <-b.served)
}

func (p *hostProvider) Close() error {
	p.mu.Lock()
	ids := make([]string, 0, len(p.boxes))
	for id := range p.boxes {
		ids = append(ids, id)
	}
	p.mu.Unlock()
	var errs []error
	for _, id := range ids {
		errs = append(errs, p.stop(context.Background(), id, "E2022"))
	}
	return errors.Join(errs...)
}

// registerHost makes p known as a provider of this test and returns its name.
func registerHost(t testing.TB, p *hostProvider) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sbx") // short: paths of sockets are bounded
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	p.dir = dir
	name := fmt.Sprintf("host-%s-%s", strings.ToLower(filepath.Base(t.Name())), randomID()[:8])
	providers.Register(name, func(providers.Config) (providers.Provider, error) { return p, nil })
	return name
}

// hostClient is a client of p.
func hostClient(t testing.TB, p *hostProvider, o *ClientOptions) *Client {
	t.Helper()
	var opts ClientOptions
	if o != nil {
		opts = *o
	}
	opts.Provider = registerHost(t, p)
	c, err := NewClient(&opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close client: %v", err)
		}
	})
	return c
}

// onEach runs f with a sandbox of every kind that this machine can make.
func onEach(t *testing.T, f func(t *testing.T, sb *Sandbox)) { onEachWith(t, nil, f) }

func onEachWith(t *testing.T, o *CreateOptions, f func(t *testing.T, sb *Sandbox)) {
	t.Run("host", func(t *testing.T) { f(t, create(t, hostClient(t, &hostProvider{}, nil), o)) })
	t.Run("local", func(t *testing.T) { f(t, localSandboxWith(t, o)) })
}

// hostSandbox is a sandbox without isolation.
func hostSandbox(t testing.TB) *Sandbox {
	t.Helper()
	return create(t, hostClient(t, &hostProvider{}, nil), nil)
}

// localSandbox is a real sandbox of this machine. Where the machine cannot
// isolate, the test is skipped, but not in CI.
func localSandbox(t testing.TB) *Sandbox {
	t.Helper()
	return localSandboxWith(t, nil)
}

func localSandboxWith(t testing.TB, o *CreateOptions) *Sandbox {
	t.Helper()
	sb, err := localClient(t).Create(t.Context(), o)
	if errors.Is(err, ErrIsolation) && os.Getenv("CI") != "true" {
		t.Skipf("this machine cannot isolate: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	closeAtEnd(t, sb)
	return sb
}

// localClient is a client of the local provider with a state of its own.
func localClient(t testing.TB) *Client {
	t.Helper()
	if !slices.Contains(providers.Names(), "local") {
		t.Skip("the local provider is not linked")
	}
	dir, err := os.MkdirTemp("", "sbx")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	c, err := NewClient(&ClientOptions{Provider: "local", StateDir: filepath.Join(dir, "state"), CacheDir: filepath.Join(dir, "cache")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close client: %v", err)
		}
	})
	return c
}

func create(t testing.TB, c *Client, o *CreateOptions) *Sandbox {
	t.Helper()
	sb, err := c.Create(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	closeAtEnd(t, sb)
	return sb
}

func closeAtEnd(t testing.TB, sb *Sandbox) {
	t.Cleanup(func() {
		if err := sb.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
}

// workDir makes an empty directory inside, which is not the home: without
// isolation that is the tester's own.
func workDir(t testing.TB, sb *Sandbox) string {
	t.Helper()
	out, err := sb.Command(t.Context(), "mktemp", "-d", "/tmp/sbxtest.XXXXXX").Output()
	if err != nil {
		t.Fatal(err)
	}
	dir := strings.TrimSpace(string(out))
	t.Cleanup(func() {
		sb.Command(context.WithoutCancel(t.Context()), "sh", "-c", "chmod -R u+rwx "+dir+"; rm -rf "+dir).Run()
	})
	return dir
}

// need skips where the machine lacks a program that the test runs, except in CI.
func need(t testing.TB, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("%s is needed in CI", program)
		}
		t.Skipf("no %s here", program)
	}
}

// patience is how long something is waited for that comes at once on a machine
// that has nothing else to do.
const patience = 20 * time.Second

// waitFor polls until ok or the limit.
func waitFor(t testing.TB, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}
