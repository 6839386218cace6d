package gateway

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/api"
	"github.com/agent-sandbox/sandbox-go/internal/version"
)

// phase is where a sandbox is in its life. A record on disk never lies for
// longer than it takes to restart: phases in between are settled by looking.
type phase string

const (
	phaseRunning  phase = "running"
	phasePaused   phase = "paused"
	phasePausing  phase = "pausing"
	phaseResuming phase = "resuming"
)

// between reports whether a change is under way, or was given up half way.
func (p phase) between() bool { return p == phasePausing || p == phaseResuming }

// keepPaused is how long a paused sandbox is kept, and how long one outlives
// the end of its time when the gateway is not there to pause it.
const keepPaused = 30 * 24 * time.Hour

// record is what must be known of a sandbox after a restart. Tokens of the
// runtime and environments are not in it: the provider has them.
type record struct {
	ID         string            `json:"id"`
	Owner      string            `json:"owner"` // id of the key that created it
	TemplateID string            `json:"templateID"`
	Alias      string            `json:"alias,omitempty"`
	Metadata   map[string]string `json:"metadata,omitempty"`
	CreatedAt  time.Time         `json:"createdAt"`
	Since      time.Time         `json:"since"` // of the last start, from which the maximum counts
	End        time.Time         `json:"end"`
	RunEnd     time.Time         `json:"runEnd,omitzero"` // while paused: the end before; while resuming: the end to be
	Phase      phase             `json:"phase"`
	AutoPause  bool              `json:"autoPause,omitempty"`
	Traffic    string            `json:"traffic,omitempty"` // token that ports other than envd's ask for
	MaskHost   string            `json:"maskHost,omitempty"`
	Internet   bool              `json:"internet,omitempty"`
	Network    *api.Network      `json:"network,omitempty"` // as it was asked for
	CPUs       float64           `json:"cpus"`
	MemoryMiB  int64             `json:"memoryMiB"`
	DiskMiB    int64             `json:"diskMiB"`
	Events     []event           `json:"events,omitempty"`
	Standing   bool              `json:"-"` // nobody's, without an end of its own
}

// box is one sandbox of the gateway.
type box struct {
	id    string
	owner string
	turn  chan struct{} // holds one value while somebody changes the sandbox

	mu      sync.Mutex
	rec     record      // guarded by mu
	token   string      // of the runtime; empty until it was seen running. Guarded by mu
	dial    dialer      // reaches the runtime; nil until then. Guarded by mu
	timer   *time.Timer // at rec.End, or at retryAt; guarded by mu
	retryAt time.Time   // the timer waits until then after something failed; guarded by mu
	tries   int         // that failed, one after the other; guarded by mu
	doubt   bool        // the provider was not heard since the start; guarded by mu
	gone    bool        // guarded by mu
	samples samples     // guarded by mu
	carried int         // requests on their way to it; guarded by mu

	// open ends when what is connected to the sandbox is to be cut: at its end
	// and when it is paused. A running sandbox has one. Both guarded by mu.
	open context.Context
	cut  context.CancelCauseFunc
}

// dialer opens a connection to the runtime of a sandbox.
type dialer func(context.Context) (net.Conn, error)

func newBox(r *record) *box {
	return &box{id: r.ID, owner: r.Owner, turn: make(chan struct{}, 1), rec: *r}
}

// why connections were cut.
var (
	errPausedNow = errors.New("the sandbox was paused")
	errGoneNow   = errors.New("the sandbox ended")
)

// enter counts a request to a running sandbox until done, and returns the
// context that ends when it is to be cut. It is nil when the sandbox does not
// run, or when there are too many.
func (b *box) enter(limit int) (open context.Context, at phase, done func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rec.Phase != phaseRunning || b.carried >= limit {
		return nil, b.rec.Phase, nil
	}
	if b.open == nil {
		b.open, b.cut = context.WithCancelCause(context.Background())
	}
	b.carried++
	return b.open, phaseRunning, func() {
		b.mu.Lock()
		b.carried--
		b.mu.Unlock()
	}
}

// cutAll ends what is connected to the sandbox.
func (b *box) cutAll(why error) {
	b.mu.Lock()
	cut := b.cut
	b.open, b.cut = nil, nil
	b.mu.Unlock()
	if cut != nil {
		cut(why)
	}
}

// begin takes the right to change the sandbox. It reports false when somebody
// else has it and ctx ends first.
func (b *box) begin(ctx context.Context) bool {
	select {
	case b.turn <- struct{}{}:
		return true
	default:
	}
	select {
	case b.turn <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// tryBegin is begin without waiting.
func (b *box) tryBegin() bool {
	select {
	case b.turn <- struct{}{}:
		return true
	default:
		return false
	}
}

func (b *box) end() { <-b.turn }

// snapshot is a copy of the record.
func (b *box) snapshot() record {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.rec
	r.Metadata = maps.Clone(r.Metadata)
	r.Events = slices.Clone(r.Events)
	return r
}

func (b *box) phase() phase {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.rec.Phase
}

// setPhase changes the record in memory alone.
func (b *box) setPhase(p phase) {
	b.mu.Lock()
	b.rec.Phase = p
	b.mu.Unlock()
}

func (b *box) accessToken() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.token
}

// trafficToken is what E2B's clients send with every request but those for envd.
// Where the ports of a sandbox are public it opens the contexts of code only, and
// follows from the access token, so that it need not be kept. It is empty while
// that one is not known.
func (b *box) trafficToken() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.trafficTokenLocked()
}

func (b *box) trafficTokenLocked() string {
	if b.rec.Traffic != "" {
		return b.rec.Traffic
	}
	if b.token == "" {
		return ""
	}
	mac := hmac.New(sha256.New, []byte(b.token))
	mac.Write([]byte("contexts " + b.id))
	return hex.EncodeToString(mac.Sum(nil)[:trafficBytes])
}

// trafficBytes is the length of a traffic token, before it is written in hex.
const trafficBytes = 20

// state is the word of the protocol for a phase: there are two.
func (p phase) state() string {
	if p == phasePaused || p == phaseResuming {
		return api.StatePaused
	}
	return api.StateRunning
}

// clientID is a deprecated field that every answer must have.
const clientID = "local"

func (s *Server) asSandbox(b *box) api.Sandbox {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := api.Sandbox{
		SandboxID: b.id, TemplateID: b.rec.TemplateID, Alias: b.rec.Alias, ClientID: clientID,
		EnvdVersion: version.Envd, EnvdAccessToken: b.token, Domain: s.answeredDomain(),
	}
	if traffic := b.trafficTokenLocked(); traffic != "" {
		out.TrafficAccessToken = &traffic
	}
	return out
}

func asListed(r record) api.ListedSandbox {
	return api.ListedSandbox{
		SandboxID: r.ID, TemplateID: r.TemplateID, Alias: r.Alias, ClientID: clientID,
		StartedAt: r.CreatedAt, EndAt: r.End, CPUCount: r.CPUs, MemoryMB: r.MemoryMiB, DiskSizeMB: r.DiskMiB,
		State: r.Phase.state(), EnvdVersion: version.Envd, Metadata: r.Metadata,
	}
}

func (s *Server) asDetail(b *box) api.SandboxDetail {
	r := b.snapshot()
	d := api.SandboxDetail{
		ListedSandbox: asListed(r), EnvdAccessToken: b.accessToken(), Domain: s.answeredDomain(),
		AllowInternetAccess: &r.Internet, Network: r.Network,
		Lifecycle: &api.Lifecycle{OnTimeout: "kill"},
	}
	if r.AutoPause {
		d.Lifecycle.OnTimeout = "pause"
	}
	return d
}

// answeredDomain is the domain in answers: null leaves it to the client.
func (s *Server) answeredDomain() *string {
	if s.opts.Domain == "" {
		return nil
	}
	return &s.opts.Domain
}

func randomHex(n int) string {
	b := make([]byte, n)
	rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
