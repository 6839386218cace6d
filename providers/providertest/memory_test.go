package providertest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// memory is a provider of sandboxes that are nothing but a runtime's answer to
// GET /health. It keeps every promise, but for the one that flaw names.
type memory struct {
	flaw string
	srv  *httptest.Server

	mu     sync.Mutex
	closed bool
	boxes  map[string]*memoryBox
	ended  map[string]errdefs.Code
	n      int
}

type memoryBox struct {
	providers.Sandbox
	req providers.CreateRequest
}

func newMemory(flaw string) *memory {
	m := &memory{flaw: flaw, boxes: map[string]*memoryBox{}, ended: map[string]errdefs.Code{}}
	m.srv = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m.mu.Lock()
		defer m.mu.Unlock()
		b := m.livingLocked(r.Header.Get("Box"))
		switch {
		case b == nil && m.flaw != "ghost", b != nil && b.State == providers.StatePaused:
			w.WriteHeader(http.StatusBadGateway)
		case r.URL.Path == "/health":
			w.WriteHeader(http.StatusNoContent)
		case m.flaw == "open":
			w.Header().Set("Content-Type", "application/proto")
		default:
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	return m
}

func (m *memory) has(flaw string) bool { return m.flaw == flaw }

func memoryError(code errdefs.Code) error { return errdefs.New(code, "memory", "test") }

func (m *memory) Name() string { return "memory" }

func (m *memory) Capabilities(context.Context) (providers.Capabilities, error) {
	c := providers.Capabilities{
		Set:      map[providers.Capability]bool{providers.CapPause: true, providers.CapPorts: true, providers.CapMetrics: !m.has("claim")},
		Lifetime: providers.LifetimeRange{Default: 5 * time.Minute},
	}
	if m.has("no snapshots") {
		c.Set[providers.CapSnapshot] = true
	}
	if m.has("bounds") {
		c.Lifetime.Max = time.Minute
	}
	return c, nil
}

func (m *memory) livingLocked(id string) *memoryBox {
	b := m.boxes[id]
	if b != nil && !time.Now().Before(b.ExpiresAt) && !m.has("immortal") {
		delete(m.boxes, id)
		m.ended[id] = "E2021"
		return nil
	}
	return b
}

func (m *memory) find(ctx context.Context, id string) (*memoryBox, error) {
	switch {
	case m.closed:
		return nil, memoryError("E8000")
	case ctx.Err() != nil && !m.has("deaf"):
		return nil, errdefs.Wrap("E5004", "memory", "cancelled", ctx.Err())
	}
	if b := m.livingLocked(id); b != nil {
		return b, nil
	}
	return nil, memoryError(cmp.Or(m.ended[id], "E2020"))
}

func (m *memory) out(b *memoryBox) *providers.Sandbox {
	sb := b.Sandbox
	if sb.State == providers.StatePaused && !m.has("paused endpoint") {
		sb.Data = providers.Endpoint{}
	}
	return &sb
}

func (m *memory) Create(ctx context.Context, req providers.CreateRequest) (*providers.Sandbox, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	refuse := map[bool]errdefs.Code{}
	refuse[req.Lifetime < 0] = "E2011"
	refuse[req.Network != nil && !m.has("network")] = "E2011"
	refuse[req.Template != "" && !m.has("template")] = "E2001"
	refuse[len(req.Require) > 0 && !m.has("require")] = "E2012"
	refuse[req.Image != "" || len(req.Volumes) > 0 || req.Resources.GPU != ""] = "E8004"
	if code, bad := refuse[true]; bad {
		return nil, memoryError(code)
	}
	for _, b := range m.boxes {
		if b.req.RequestID == req.RequestID && !m.has("twice") {
			if len(b.req.Env) != len(req.Env) && !m.has("other") {
				return nil, memoryError("E2011")
			}
			return m.out(b), nil
		}
	}
	switch {
	case m.closed && !m.has("after close"):
		return nil, memoryError("E8000")
	case ctx.Err() != nil:
		code := errdefs.Code("E5004")
		if ctx.Err() == context.DeadlineExceeded {
			code = "E5002"
		}
		if m.has("leak") {
			m.addLocked(req)
		}
		return nil, errdefs.Wrap(code, "memory", "cancelled", ctx.Err())
	}
	return m.out(m.addLocked(req)), nil
}

func (m *memory) addLocked(req providers.CreateRequest) *memoryBox {
	m.n++
	id := "m" + strconv.Itoa(m.n)
	if m.has("same id") {
		id = "m"
	}
	life := cmp.Or(req.Lifetime, 5*time.Minute)
	if m.has("lifetime ignored") {
		life = time.Hour
	}
	b := &memoryBox{req: req, Sandbox: providers.Sandbox{
		ID: id, Provider: "memory", Template: "base", State: providers.StateRunning, CreatedAt: time.Now(),
		ExpiresAt: time.Now().Add(life), Metadata: maps.Clone(req.Metadata),
		Data: providers.Endpoint{URL: m.srv.URL, Headers: http.Header{"Box": {id}}, Token: "0123456789abcdef"},
	}}
	switch m.flaw {
	case "name":
		b.Provider = "other"
	case "state":
		b.State = providers.StateStarting
	case "not ready":
		b.Data.Headers = nil
	case "shown":
		b.Template = b.Data.Token.Reveal()
	case "metadata":
		delete(b.Metadata, "k & = %")
	}
	m.boxes[id] = b
	return b
}

func (m *memory) Get(ctx context.Context, id string) (*providers.Sandbox, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, err := m.find(ctx, id)
	if err != nil {
		if m.has("vague") {
			err = fmt.Errorf("no")
		}
		return nil, err
	}
	return m.out(b), nil
}

func (m *memory) List(ctx context.Context, req providers.ListRequest) (*providers.Page, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if req.Limit < 0 {
		return nil, memoryError("E2011")
	}
	if _, err := m.find(ctx, ""); errdefs.CodeOf(err) != "E2020" {
		return nil, err
	}
	var all []*providers.Sandbox
	for _, b := range m.boxes {
		match := m.livingLocked(b.ID) != nil
		for k, v := range req.Metadata {
			got, ok := b.Metadata[k]
			match = match && (ok && got == v || m.has("filter"))
		}
		if match && (len(req.States) == 0 || slices.Contains(req.States, b.State)) {
			all = append(all, m.out(b))
		}
	}
	slices.SortFunc(all, func(a, b *providers.Sandbox) int {
		if m.has("order") {
			a, b = b, a
		}
		return b.CreatedAt.Compare(a.CreatedAt)
	})
	limit := cmp.Or(req.Limit, 100)
	at, _ := strconv.Atoi(req.Token)
	end := min(at+limit, len(all))
	page := &providers.Page{Sandboxes: all[min(at, end):end]}
	if end < len(all) && !m.has("last page") {
		page.Next = strconv.Itoa(end)
	}
	return page, nil
}

func (m *memory) Connect(ctx context.Context, id string, req providers.ConnectRequest) (*providers.Sandbox, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, err := m.find(ctx, id)
	if err != nil {
		return nil, err
	}
	if req.Lifetime < 0 {
		return nil, memoryError("E2011")
	}
	b.State = providers.StateRunning
	if end := time.Now().Add(req.Lifetime); req.Lifetime > 0 && (end.After(b.ExpiresAt) || m.has("shortens")) {
		b.ExpiresAt = end
	}
	return m.out(b), nil
}

func (m *memory) SetLifetime(ctx context.Context, id string, d time.Duration) (*providers.Sandbox, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, err := m.find(ctx, id)
	if err != nil {
		return nil, err
	}
	if d <= 0 {
		return nil, memoryError("E2011")
	}
	if !m.has("never shorter") || time.Now().Add(d).After(b.ExpiresAt) {
		b.ExpiresAt = time.Now().Add(d)
	}
	return m.out(b), nil
}

func (m *memory) Kill(ctx context.Context, id string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.find(ctx, id); err != nil {
		if c := errdefs.CodeOf(err); c == "E2021" || c == "E2022" {
			err = memoryError("E2020")
		}
		if m.has("kill of none") {
			err = nil
		}
		return err
	}
	if !m.has("no kill") {
		delete(m.boxes, id)
		m.ended[id] = "E2022"
	}
	return nil
}

func (m *memory) Pause(ctx context.Context, id string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, err := m.find(ctx, id)
	if err != nil {
		return err
	}
	if b.State == providers.StatePaused && !m.has("paused twice") {
		return memoryError("E2024")
	}
	if !m.has("no pause") {
		b.State = providers.StatePaused
	}
	return nil
}

func (m *memory) Resume(ctx context.Context, id string, req providers.ConnectRequest) (*providers.Sandbox, error) {
	return m.Connect(ctx, id, req)
}

func (m *memory) Port(ctx context.Context, id string, port int) (providers.Endpoint, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, err := m.find(ctx, id)
	if err != nil {
		return providers.Endpoint{}, err
	}
	if (port < 1 || port > 65535) && !m.has("any port") {
		return providers.Endpoint{}, memoryError("E2011")
	}
	e := providers.Endpoint{URL: "http://" + strconv.Itoa(port)}
	if m.has("token lent") {
		e.Token = b.Data.Token
	}
	return e, nil
}

func (m *memory) Usage(ctx context.Context, id string) (providers.Usage, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.find(ctx, id); err != nil {
		return providers.Usage{}, err
	}
	u := providers.Usage{At: time.Now(), MemoryUsed: 1 << 20}
	if m.has("negative") {
		u.DiskUsed = -1
	}
	return u, nil
}

func (m *memory) Close() error {
	m.mu.Lock()
	was := m.closed
	m.closed = true
	m.mu.Unlock()
	m.srv.Close()
	if was && m.has("close twice") {
		return memoryError("E8000")
	}
	return nil
}

// flaws are the broken promises, with the test that must notice each.
var flaws = map[string]string{
	"claim":            "capabilities",
	"bounds":           "capabilities",
	"name":             "create",
	"state":            "create",
	"not ready":        "create",
	"metadata":         "create",
	"lifetime ignored": "create",
	"same id":          "concurrent",
	"vague":            "unknown",
	"kill of none":     "unknown",
	"filter":           "list",
	"order":            "pages",
	"last page":        "pages",
	"shortens":         "connect",
	"never shorter":    "lifetime",
	"immortal":         "expiry",
	"no kill":          "kill",
	"ghost":            "kill",
	"twice":            "requestID",
	"other":            "requestID",
	"network":          "refused",
	"template":         "refused",
	"require":          "refused",
	"deaf":             "cancelled",
	"leak":             "cancelled",
	"shown":            "secrets",
	"open":             "secrets",
	"no pause":         "pause",
	"paused twice":     "pause",
	"paused endpoint":  "pause",
	"no snapshots":     "snapshot",
	"any port":         "ports",
	"token lent":       "ports",
	"negative":         "metrics",
	"close twice":      "closed",
	"after close":      "closed",
}

// flawVariable names the flaw in the process that is to fail.
const flawVariable = "PROVIDERTEST_FLAW"

func TestContract(t *testing.T) {
	flaw := os.Getenv(flawVariable)
	Run(t, func(*testing.T) providers.Provider { return newMemory(flaw) }, Options{Patience: 1500 * time.Millisecond, CancelAfter: []time.Duration{0}})
}
