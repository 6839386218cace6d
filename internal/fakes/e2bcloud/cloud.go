// Package e2bcloud is a stand-in for a hosted service shaped like E2B, for
// tests: a control plane with the oddities that such services were seen to have,
// in front of real runtimes in sandboxes of another provider. Start at [New].
//
// The runtimes are made to look foreign: what is ours beside the protocol of
// envd is taken away.
package e2bcloud

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/api"
	"github.com/agent-sandbox/sandbox-go/providers"
)

// Behaviour says how the service differs from a perfect one. The zero value is
// Alibaba's: v1 routes only, answers of create without domain and state, four
// headers at the data plane.
type Behaviour struct {
	ListLag       time.Duration // a new sandbox is missing from lists for this long
	CreateTime    time.Duration // before create answers
	Strict        bool          // unknown fields of bodies are 400
	ServeV2       bool          // v2 routes for create and connect
	FewHeaders    bool          // the data plane wants the token and two headers only
	NoFilter      bool          // lists ignore the filter of metadata
	PauseRefused  bool          // 403, as for accounts that may not
	ForeignDomain string        // said by create; empty: no domain at all
	NeverReady    bool          // the data plane answers 502
	EnvdVersion   string        // said; empty: "0.5.2"

	// Missing is the name of a program that envd answers for with 500 and plain
	// text, as an image without a shell did.
	Missing string

	// Data, when set, answers requests to runtimes itself where it returns true.
	Data func(w http.ResponseWriter, r *http.Request) bool

	// Control does so for the control plane, before the key is checked.
	Control func(w http.ResponseWriter, r *http.Request) bool
}

// Options say what a [Cloud] is made of. Provider is required.
type Options struct {
	Provider  providers.Provider // makes the runtimes; stays the caller's to close
	Key       string             // the one that is accepted; empty: "e2b_" and zeros
	Behaviour Behaviour
}

// Cloud is a running service. It is safe for concurrent use.
type Cloud struct {
	URL string // of control plane and data plane
	Key string

	provider providers.Provider
	srv      *http.Server
	served   chan error
	routes   *http.ServeMux

	mu        sync.Mutex
	how       Behaviour       // guarded by mu
	boxes     map[string]*box // guarded by mu; living
	snapshots []*snapshot     // guarded by mu; newest first
	count     map[string]int  // guarded by mu; requests by "METHOD /path", ids as *
	lose      int             // guarded by mu; answers of create to lose
	limit     []string        // guarded by mu; Retry-After of coming answers 429
}

// box is one sandbox.
type box struct {
	id, inner, token string
	template         string
	created          time.Time
	metadata         map[string]string
}

// New starts a service on a port of the loopback.
func New(o *Options) (*Cloud, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	c := &Cloud{
		URL: "http://" + ln.Addr().String(), Key: o.Key, provider: o.Provider, how: o.Behaviour,
		boxes: map[string]*box{}, count: map[string]int{}, served: make(chan error, 1),
	}
	if c.Key == "" {
		c.Key = "e2b_" + strings.Repeat("0", 40)
	}
	c.routes = c.control()
	c.srv = &http.Server{Handler: c, ReadHeaderTimeout: 10 * time.Second}
	go func() { c.served <- c.srv.Serve(ln) }()
	return c, nil
}

// Close stops the service and kills what is left of its sandboxes.
func (c *Cloud) Close() error {
	errs := []error{c.srv.Close()}
	if err := <-c.served; !errors.Is(err, http.ErrServerClosed) {
		errs = append(errs, err)
	}
	c.mu.Lock()
	boxes := c.boxes
	c.boxes = map[string]*box{}
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for _, b := range boxes {
		c.provider.Kill(ctx, b.inner) // those that ended are not there
	}
	return errors.Join(errs...)
}

// Behave changes how the service behaves from now on.
func (c *Cloud) Behave(change func(*Behaviour)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.how)
}

// LoseAnswers makes the service break the connection in place of the next n
// answers to create, which do make a sandbox.
func (c *Cloud) LoseAnswers(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lose = n
}

// LimitRate makes the next requests fail with 429: one for each value, which is
// that of Retry-After, or none when it is empty.
func (c *Cloud) LimitRate(after ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limit = after
}

// Living is how many sandboxes there are.
func (c *Cloud) Living() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.boxes)
}

// Requests is how many there were to a route of the control plane, such as
// "POST /sandboxes" or "DELETE /sandboxes/*".
func (c *Cloud) Requests(route string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count[route]
}

func (c *Cloud) behaviour() Behaviour {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.how
}

// ServeHTTP tells the planes apart: requests with a sandbox in their headers are
// for its runtime.
func (c *Cloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get(api.HeaderSandboxID) != "" {
		c.data(w, r)
		return
	}
	how := c.behaviour()
	c.note(r)
	if how.Control != nil && how.Control(w, r) {
		return
	}
	if r.Header.Get("X-API-KEY") != c.Key {
		fail(w, http.StatusUnauthorized, "invalid API key")
		return
	}
	if r.Header.Get(api.HeaderAccessToken) != "" {
		fail(w, http.StatusBadRequest, "a token of a sandbox came to the control plane")
		return
	}
	c.mu.Lock()
	limited := len(c.limit) > 0
	var after string
	if limited {
		after, c.limit = c.limit[0], c.limit[1:]
	}
	c.mu.Unlock()
	if limited {
		if after != "" {
			w.Header().Set("Retry-After", after)
		}
		fail(w, http.StatusTooManyRequests, "Rate limit exceeded, please try again later.")
		return
	}
	c.routes.ServeHTTP(w, r)
}

// note counts a request of the control plane.
func (c *Cloud) note(r *http.Request) {
	parts := strings.Split(r.URL.Path, "/")
	for i, p := range parts {
		if strings.HasPrefix(p, "sbx-") {
			parts[i] = "*"
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count[r.Method+" "+strings.Join(parts, "/")]++
}

func (c *Cloud) find(id string) *box {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.boxes[id]
}

func (c *Cloud) forget(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.boxes, id)
}

func fail(w http.ResponseWriter, status int, message string) {
	reply(w, status, api.ErrorBody{Code: status, Message: message})
}

func reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(v)
}

// body reads a body of JSON; it has answered when it returns false.
func (c *Cloud) body(w http.ResponseWriter, r *http.Request, v any) bool {
	d := json.NewDecoder(io.LimitReader(r.Body, 1<<20))
	if c.behaviour().Strict {
		d.DisallowUnknownFields()
	}
	if err := d.Decode(v); err != nil && !errors.Is(err, io.EOF) {
		fail(w, http.StatusBadRequest, "body: "+err.Error())
		return false
	}
	return true
}

// newID has the form of a session's: "sbx-" and a UUID.
func newID() string {
	var b [16]byte
	rand.Read(b[:])
	s := hex.EncodeToString(b[:])
	return fmt.Sprintf("sbx-%s-%s-%s-%s-%s", s[:8], s[8:12], s[12:16], s[16:20], s[20:])
}
