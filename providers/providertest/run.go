package providertest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/envd"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// Options say what a provider cannot show in a test. The zero value expects
// everything.
type Options struct {
	// Create is what the provider needs in every request: a template, say.
	Create providers.CreateRequest

	// Patience bounds the wait for what must happen sooner or later. Zero: 20 s,
	// and what lists may lag besides.
	Patience time.Duration

	// CancelAfter are moments at which creations are given up. Nil: some between
	// nothing and half a second.
	CancelAfter []time.Duration
}

// suite is a provider under test.
type suite struct {
	providers.Provider
	t    *testing.T
	o    Options
	caps providers.Capabilities
	mark string // in the metadata of every sandbox of the test
}

// markKey is the metadata that tells the sandboxes of one test from others.
const markKey = "providertest"

// tests are the promises, by name.
var tests = []struct {
	name string
	f    func(*suite)
}{
	{"capabilities", (*suite).capabilities},
	{"create", (*suite).create},
	{"get", (*suite).get},
	{"unknown", (*suite).unknown},
	{"list", (*suite).list},
	{"pages", (*suite).pages},
	{"connect", (*suite).connect},
	{"lifetime", (*suite).lifetime},
	{"expiry", (*suite).expiry},
	{"kill", (*suite).kill},
	{"requestID", (*suite).requestID},
	{"refused", (*suite).refused},
	{"cancelled", (*suite).cancelled},
	{"concurrent", (*suite).concurrent},
	{"secrets", (*suite).secrets},
	{"pause", (*suite).pause},
	{"ports", (*suite).ports},
	{"metrics", (*suite).metrics},
	{"snapshot", (*suite).snapshot},
	{"closed", (*suite).closed},
}

// Run checks the contract of providers. open makes a provider for one test; Run
// closes it.
func Run(t *testing.T, open func(t *testing.T) providers.Provider, o Options) {
	if o.Patience == 0 {
		o.Patience = 20 * time.Second
	}
	if o.CancelAfter == nil {
		o.CancelAfter = []time.Duration{0, time.Millisecond, 10 * time.Millisecond, 50 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond}
	}
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) {
			p := open(t)
			t.Cleanup(func() {
				if err := p.Close(); err != nil {
					t.Error("close:", err)
				}
			})
			caps, err := p.Capabilities(t.Context())
			if err != nil {
				t.Fatal("capabilities:", err)
			}
			c.f(&suite{Provider: p, t: t, o: o, caps: caps, mark: rand.Text()})
		})
	}
}

// request is one that the test can find again.
func (s *suite) request() providers.CreateRequest {
	r := s.o.Create
	m := map[string]string{markKey: s.mark}
	for k, v := range r.Metadata {
		m[k] = v
	}
	r.Metadata = m
	r.RequestID = rand.Text()
	if r.Lifetime == 0 {
		r.Lifetime = 3 * time.Minute
	}
	return r
}

// make creates a sandbox that the test's end removes.
func (s *suite) make(req providers.CreateRequest) *providers.Sandbox {
	s.t.Helper()
	sb, err := s.Create(s.t.Context(), req)
	if err != nil {
		s.t.Fatal("create:", err)
	}
	if sb == nil || sb.ID == "" {
		s.t.Fatalf("create returned %+v without an error", sb)
	}
	s.removeLater(sb.ID)
	return sb
}

func (s *suite) removeLater(id string) {
	s.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := s.Kill(ctx, id); err != nil && !errors.Is(err, errdefs.ErrCreate) && !closed(err) {
			s.t.Error("kill:", err)
		}
	})
}

func closed(err error) bool { return errdefs.CodeOf(err) == "E8000" }

// want fails the test unless err has one of the codes.
func (s *suite) want(what string, err error, codes ...errdefs.Code) {
	s.t.Helper()
	if !slices.Contains(codes, errdefs.CodeOf(err)) {
		s.t.Errorf("%s: %v, want one of %v", what, err, codes)
	}
}

// eventually waits until check, which says what is still wrong, says nothing.
func (s *suite) eventually(what string, check func() string) {
	s.t.Helper()
	wait := s.o.Patience + s.caps.ListLag
	for end := time.Now().Add(wait); ; time.Sleep(50 * time.Millisecond) {
		wrong := check()
		if wrong == "" {
			return
		}
		if time.Now().After(end) {
			s.t.Errorf("%s: after %v still %s", what, wait, wrong)
			return
		}
	}
}

// answers asks the runtime behind an endpoint whether it is there.
func answers(ctx context.Context, e providers.Endpoint) error {
	c, err := envd.New(&envd.Options{URL: e.URL, Headers: e.Headers, Token: e.Token.Reveal(), Dial: e.Dial, RootCAs: e.RootCAs, RequestTimeout: 10 * time.Second})
	if err != nil {
		return err
	}
	defer c.Close()
	return c.Health(ctx)
}

// all lists what the test made, page by page.
func (s *suite) all(req providers.ListRequest) []*providers.Sandbox {
	s.t.Helper()
	req.Metadata = map[string]string{markKey: s.mark}
	var out []*providers.Sandbox
	for range 1000 {
		page, err := s.List(s.t.Context(), req)
		if err != nil {
			s.t.Fatal("list:", err)
		}
		if req.Limit > 0 && len(page.Sandboxes) > req.Limit {
			s.t.Errorf("a page of at most %d has %d sandboxes", req.Limit, len(page.Sandboxes))
		}
		out = append(out, page.Sandboxes...)
		if page.Next == "" {
			return out
		}
		req.Token = page.Next
	}
	s.t.Fatal("a list of 1000 pages")
	return nil
}

func ids(sbs []*providers.Sandbox) []string {
	var out []string
	for _, sb := range sbs {
		out = append(out, sb.ID)
	}
	return out
}

// described compares what a sandbox says of itself with what was asked for.
func (s *suite) described(what string, sb *providers.Sandbox, id string, req providers.CreateRequest) {
	s.t.Helper()
	switch {
	case sb == nil:
		s.t.Fatalf("%s: nil", what)
	case sb.ID != id:
		s.t.Errorf("%s: id %q, want %q", what, sb.ID, id)
	case sb.Provider != s.Name():
		s.t.Errorf("%s: provider %q, want %q", what, sb.Provider, s.Name())
	case sb.State != providers.StateRunning:
		s.t.Errorf("%s: state %q", what, sb.State)
	}
	for k, v := range req.Metadata {
		if sb.Metadata[k] != v {
			s.t.Errorf("%s: metadata %q is %q, want %q", what, k, sb.Metadata[k], v)
		}
	}
	if age := time.Since(sb.CreatedAt); age < -time.Minute || age > time.Minute {
		s.t.Errorf("%s: made %v ago", what, age)
	}
	s.ends(what, sb, req.Lifetime)
}

// ends checks that a sandbox ends about d from now.
func (s *suite) ends(what string, sb *providers.Sandbox, d time.Duration) {
	s.t.Helper()
	if left := time.Until(sb.ExpiresAt); left < d-30*time.Second || left > d+5*time.Second {
		s.t.Errorf("%s: %v are left, want about %v", what, left.Round(time.Second), d)
	}
}

func (s *suite) capabilities() {
	set := s.caps.Set
	for _, c := range []struct {
		cap  providers.Capability
		have bool
	}{
		{providers.CapPause, implements[providers.Pauser](s.Provider)},
		{providers.CapPorts, implements[providers.PortExposer](s.Provider)},
		{providers.CapMetrics, implements[providers.Meter](s.Provider)},
	} {
		if set[c.cap] != c.have {
			s.t.Errorf("capability %s is %v, the interface of it is implemented: %v", c.cap, set[c.cap], c.have)
		}
	}
	if s.Name() == "" {
		s.t.Error("no name")
	}
	l := s.caps.Lifetime
	if l.Default <= 0 || l.Min < 0 || l.Max < 0 || l.Min > l.Default || l.Max > 0 && l.Max < l.Default {
		s.t.Errorf("lifetimes %+v make no sense", l)
	}
	if s.caps.CreateFloor < 0 || s.caps.ListLag < 0 {
		s.t.Errorf("negative times in %+v", s.caps)
	}
	for _, n := range s.caps.Networks {
		if !slices.Contains([]string{"none", "loopback", "host", "all", "list"}, n) {
			s.t.Errorf("network mode %q is none", n)
		}
	}
	if slices.Contains(s.caps.Networks, "list") != set[providers.CapEgressPolicy] {
		s.t.Errorf("egress_policy is %v with networks %q", set[providers.CapEgressPolicy], s.caps.Networks)
	}
}

func implements[T any](p providers.Provider) bool {
	_, ok := p.(T)
	return ok
}

func (s *suite) create() {
	req := s.request()
	req.Metadata["k & = %"] = "v+ ü 日本 \" '"
	sb := s.make(req)
	s.described("create", sb, sb.ID, req)
	if err := answers(s.t.Context(), sb.Data); err != nil {
		s.t.Error("the runtime does not answer right after create:", err)
	}
	if sb.Template == "" {
		s.t.Error("create says no template")
	}
	zero := s.request()
	zero.Lifetime = 0
	s.ends("create without a lifetime", s.make(zero), s.caps.Lifetime.Default)
}

func (s *suite) get() {
	req := s.request()
	id := s.make(req).ID
	sb, err := s.Get(s.t.Context(), id) // also while lists lag
	if err != nil {
		s.t.Fatal(err)
	}
	s.described("get", sb, id, req)
	if err := answers(s.t.Context(), sb.Data); err != nil {
		s.t.Error("the endpoint of get:", err)
	}
}

// unknown asks for ids that never were.
func (s *suite) unknown() {
	ctx := s.t.Context()
	for _, id := range []string{"nosuchsandbox0000000", "", "../etc", "a/b", "a b", "%2e", strings.Repeat("x", 5000), "\x00"} {
		name := fmt.Sprintf(" of %.20q", id)
		_, err := s.Get(ctx, id)
		s.want("get"+name, err, "E2020")
		_, err = s.Connect(ctx, id, providers.ConnectRequest{})
		s.want("connect"+name, err, "E2020")
		_, err = s.SetLifetime(ctx, id, time.Minute)
		s.want("set lifetime"+name, err, "E2020")
		s.want("kill"+name, s.Kill(ctx, id), "E2020")
		if p, ok := s.Provider.(providers.Pauser); ok {
			s.want("pause"+name, p.Pause(ctx, id), "E2020")
			_, err = p.Resume(ctx, id, providers.ConnectRequest{})
			s.want("resume"+name, err, "E2020")
		}
		if p, ok := s.Provider.(providers.PortExposer); ok {
			_, err = p.Port(ctx, id, 8080)
			s.want("port"+name, err, "E2020")
		}
		if p, ok := s.Provider.(providers.Meter); ok {
			_, err = p.Usage(ctx, id)
			s.want("usage"+name, err, "E2020")
		}
	}
}

func (s *suite) list() {
	req := s.request()
	req.Metadata["k & = %"] = "v+ ü 日本"
	id := s.make(req).ID
	s.eventually("list", func() string {
		if got := ids(s.all(providers.ListRequest{})); !slices.Equal(got, []string{id}) {
			return fmt.Sprintf("%q", got)
		}
		return ""
	})
	for _, sb := range s.all(providers.ListRequest{}) {
		s.described("list", sb, id, req)
	}
	for _, c := range []struct {
		name string
		m    map[string]string
		want int
	}{
		{"every pair", req.Metadata, 1},
		{"another value", map[string]string{markKey: s.mark, "k & = %": "v"}, 0},
		{"another key", map[string]string{markKey: s.mark, "no": ""}, 0},
	} {
		page, err := s.List(s.t.Context(), providers.ListRequest{Metadata: c.m})
		if err != nil || len(page.Sandboxes) != c.want {
			s.t.Errorf("list by %s: %+v, %v, want %d", c.name, page, err, c.want)
		}
	}
	if got := s.all(providers.ListRequest{States: []providers.State{providers.StatePaused}}); len(got) != 0 {
		s.t.Errorf("a running sandbox is among the paused: %q", ids(got))
	}
	_, err := s.List(s.t.Context(), providers.ListRequest{Limit: -1})
	s.want("a negative limit", err, "E2011")
}

func (s *suite) pages() {
	var made []string
	for range 5 {
		made = append(made, s.make(s.request()).ID)
	}
	slices.Sort(made)
	s.eventually("list in pages of 2", func() string {
		got := s.all(providers.ListRequest{Limit: 2})
		for i := 1; i < len(got); i++ {
			if got[i].CreatedAt.After(got[i-1].CreatedAt) {
				return "not newest first"
			}
		}
		if names := slices.Sorted(slices.Values(ids(got))); !slices.Equal(names, made) {
			return fmt.Sprintf("%q, want %q", names, made)
		}
		return ""
	})
}

func (s *suite) connect() {
	ctx := s.t.Context()
	req := s.request()
	id := s.make(req).ID
	for _, c := range []struct {
		what string
		ask  time.Duration
		want time.Duration
	}{
		{"connect", 0, req.Lifetime},
		{"connect for less than is left", time.Minute, req.Lifetime},
		{"connect for longer", 10 * time.Minute, 10 * time.Minute},
	} {
		sb, err := s.Connect(ctx, id, providers.ConnectRequest{Lifetime: c.ask})
		if err != nil {
			s.t.Fatal(c.what+":", err)
		}
		asked := req
		asked.Lifetime = c.want
		s.described(c.what, sb, id, asked)
		if err := answers(ctx, sb.Data); err != nil {
			s.t.Error(c.what, "gives an endpoint that does not answer:", err)
		}
		seen, err := s.Get(ctx, id)
		if err != nil {
			s.t.Fatal(err)
		}
		s.ends(c.what+", then get", seen, c.want)
	}
	_, err := s.Connect(ctx, id, providers.ConnectRequest{Lifetime: -1})
	s.want("connect for a negative time", err, "E2011")
}

func (s *suite) lifetime() {
	ctx := s.t.Context()
	id := s.make(s.request()).ID
	for _, d := range []time.Duration{10 * time.Minute, 90 * time.Second} {
		sb, err := s.SetLifetime(ctx, id, d)
		if err != nil {
			s.t.Fatal(err)
		}
		s.ends("set lifetime", sb, d)
		if sb, err = s.Get(ctx, id); err != nil {
			s.t.Fatal(err)
		}
		s.ends("set lifetime, then get", sb, d)
	}
	bad := []time.Duration{0, -time.Second}
	if m := s.caps.Lifetime.Max; m > 0 {
		bad = append(bad, m+time.Hour)
	}
	for _, d := range bad {
		_, err := s.SetLifetime(ctx, id, d)
		s.want("set lifetime to "+d.String(), err, "E2011")
	}
	if _, err := s.Get(ctx, id); err != nil {
		s.t.Error("a refused lifetime ended the sandbox:", err)
	}
}

func (s *suite) expiry() {
	ctx := s.t.Context()
	sb := s.make(s.request())
	if _, err := s.SetLifetime(ctx, sb.ID, max(time.Second, s.caps.Lifetime.Min)); err != nil {
		s.t.Fatal(err)
	}
	s.ended("expiry", sb, "E2020", "E2021")
}

// ended waits until a sandbox is gone everywhere.
func (s *suite) ended(what string, sb *providers.Sandbox, codes ...errdefs.Code) {
	s.t.Helper()
	ctx := s.t.Context()
	s.eventually(what, func() string {
		if got, err := s.Get(ctx, sb.ID); !slices.Contains(codes, errdefs.CodeOf(err)) {
			return fmt.Sprintf("%+v, %v", got, err)
		}
		return ""
	})
	_, err := s.Connect(ctx, sb.ID, providers.ConnectRequest{})
	s.want("connect after "+what, err, codes...)
	_, err = s.SetLifetime(ctx, sb.ID, time.Minute)
	s.want("set lifetime after "+what, err, codes...)
	s.want("kill after "+what, s.Kill(ctx, sb.ID), "E2020")
	s.eventually("list after "+what, func() string {
		if got := s.all(providers.ListRequest{}); len(got) > 0 {
			return fmt.Sprintf("%q", ids(got))
		}
		return ""
	})
	if err := answers(ctx, sb.Data); err == nil {
		s.t.Error("the runtime answers after", what)
	}
}

func (s *suite) kill() {
	sb := s.make(s.request())
	if err := s.Kill(s.t.Context(), sb.ID); err != nil {
		s.t.Fatal(err)
	}
	s.ended("kill", sb, "E2020", "E2022")
}

func (s *suite) requestID() {
	ctx := s.t.Context()
	req := s.request()
	id := s.make(req).ID
	s.eventually("list", func() string {
		if n := len(s.all(providers.ListRequest{})); n != 1 {
			return fmt.Sprintf("%d sandboxes", n)
		}
		return ""
	})
	again, err := s.Create(ctx, req)
	if err != nil {
		s.t.Fatal("a repetition:", err)
	}
	s.removeLater(again.ID)
	s.described("a repetition", again, id, req)
	if err := answers(ctx, again.Data); err != nil {
		s.t.Error("the endpoint of a repetition:", err)
	}
	other := req
	other.Env = map[string]string{"A": "1"}
	_, err = s.Create(ctx, other)
	s.want("the same request id with other parameters", err, "E2011")
	s.only(id)
}

// only checks, after lists have caught up, that the sandboxes given are all
// that the test has left.
func (s *suite) only(want ...string) {
	s.t.Helper()
	if s.caps.ListLag > 0 {
		time.Sleep(s.caps.ListLag + 100*time.Millisecond)
	}
	s.eventually("left over", func() string {
		if got := ids(s.all(providers.ListRequest{})); !slices.Equal(got, want) {
			return fmt.Sprintf("%q, want %q", got, want)
		}
		return ""
	})
}

func (s *suite) refused() {
	for _, c := range []struct {
		what  string
		cap   providers.Capability
		alter func(*providers.CreateRequest)
		code  errdefs.Code
	}{
		{"an image", providers.CapImages, func(r *providers.CreateRequest) { r.Image, r.Template = "docker.io/library/busybox", "" }, "E8004"},
		{"a volume", providers.CapVolumes, func(r *providers.CreateRequest) { r.Volumes = []providers.Volume{{Name: "v", Path: "/v"}} }, "E8004"},
		{"a GPU", providers.CapGPU, func(r *providers.CreateRequest) { r.Resources.GPU = "any" }, "E8004"},
		{"a protection that is none", "", func(r *providers.CreateRequest) { r.Require = []string{"nosuchprotection"} }, "E2012"},
		{"a template that is none", "", func(r *providers.CreateRequest) { r.Template = "nosuchtemplate" }, "E2001"},
		{"a negative lifetime", "", func(r *providers.CreateRequest) { r.Lifetime = -time.Second }, "E2011"},
		{"a network that is none", "", func(r *providers.CreateRequest) { r.Network = &providers.NetworkPolicy{Mode: "nosuchmode"} }, "E2011"},
	} {
		if c.cap != "" && s.caps.Set[c.cap] {
			continue
		}
		req := s.request()
		c.alter(&req)
		sb, err := s.Create(s.t.Context(), req)
		if err == nil {
			s.removeLater(sb.ID)
		}
		s.want("create with "+c.what, err, c.code)
	}
	s.only()
}

// cancelled gives creations up at moments that differ.
func (s *suite) cancelled() {
	done, stop := context.WithCancel(s.t.Context())
	stop()
	_, err := s.Create(done, s.request())
	s.want("create with a context that has ended", err, "E5004")
	for what, call := range map[string]func() error{
		"get":     func() error { _, err := s.Get(done, "x"); return err },
		"list":    func() error { _, err := s.List(done, providers.ListRequest{}); return err },
		"connect": func() error { _, err := s.Connect(done, "x", providers.ConnectRequest{}); return err },
		"kill":    func() error { return s.Kill(done, "x") },
	} {
		if err := call(); err == nil {
			s.t.Error(what, "with a context that has ended: no error")
		}
	}
	for _, after := range s.o.CancelAfter {
		ctx, cancel := context.WithTimeout(s.t.Context(), after)
		start := time.Now()
		sb, err := s.Create(ctx, s.request())
		cancel()
		switch {
		case err == nil: // it was quicker
			if err := s.Kill(s.t.Context(), sb.ID); err != nil {
				s.t.Error("kill:", err)
			}
		case !errors.Is(err, context.DeadlineExceeded):
			s.t.Errorf("create given up after %v: %v", after, err)
		}
		if d := time.Since(start); d > after+35*time.Second {
			s.t.Errorf("create given up after %v returned after %v", after, d)
		}
	}
	s.only()
}

func (s *suite) concurrent() {
	var mu sync.Mutex
	seen := map[string]bool{}
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			sb, err := s.Create(s.t.Context(), s.request())
			if err != nil {
				s.t.Error(err)
				return
			}
			if err := answers(s.t.Context(), sb.Data); err != nil {
				s.t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			if seen[sb.ID] {
				s.t.Errorf("id %s is given twice", sb.ID)
			}
			seen[sb.ID] = true
		})
	}
	wg.Wait()
	for id := range seen {
		s.removeLater(id)
	}
}

// secrets prints a sandbox: the token must not be in it.
func (s *suite) secrets() {
	sb := s.make(s.request())
	token := sb.Data.Token.Reveal()
	if token == "" {
		return
	}
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		if strings.Contains(fmt.Sprintf(format, *sb), token) {
			s.t.Errorf("%s shows the token", format)
		}
	}
	open := sb.Data
	open.Token = ""
	if c, err := envd.New(&envd.Options{URL: open.URL, Headers: open.Headers, Dial: open.Dial, RootCAs: open.RootCAs}); err == nil {
		defer c.Close()
		_, err := c.Stat(s.t.Context(), "/")
		s.want("files without the token", err, "E1006")
	}
}

func (s *suite) closed() {
	ctx := s.t.Context()
	p := s.Provider
	if err := p.Close(); err != nil {
		s.t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		s.t.Error("the second close:", err)
	}
	_, err := p.Create(ctx, s.request())
	s.want("create on a closed provider", err, "E8000")
	_, err = p.List(ctx, providers.ListRequest{})
	s.want("list on a closed provider", err, "E8000")
	if _, err := p.Get(ctx, "nosuchsandbox"); err == nil {
		s.t.Error("get on a closed provider: no error")
	}
}
