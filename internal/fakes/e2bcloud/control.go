package e2bcloud

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/api"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// control is the control plane. No v2 but for lists, unless it is asked for.
func (c *Cloud) control() *http.ServeMux {
	m := http.NewServeMux()
	m.HandleFunc("POST /sandboxes", c.create)
	m.HandleFunc("GET /v2/sandboxes", c.list)
	m.HandleFunc("GET /sandboxes/{id}", c.with(c.get))
	m.HandleFunc("DELETE /sandboxes/{id}", c.with(c.kill))
	m.HandleFunc("POST /sandboxes/{id}/timeout", c.with(c.timeout))
	m.HandleFunc("POST /sandboxes/{id}/connect", c.with(c.connect))
	m.HandleFunc("POST /sandboxes/{id}/pause", c.with(c.pause))
	m.HandleFunc("GET /sandboxes/{id}/metrics", c.with(c.metrics))
	m.HandleFunc("POST /sandboxes/{id}/snapshots", c.with(c.takeSnapshot))
	m.HandleFunc("GET /snapshots", c.listSnapshots)
	m.HandleFunc("DELETE /templates/{id}", c.deleteSnapshot)
	v2 := func(h http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if !c.behaviour().ServeV2 {
				fail(w, http.StatusNotFound, "no such route")
				return
			}
			h(w, r)
		}
	}
	m.HandleFunc("POST /v2/sandboxes", v2(c.create))
	m.HandleFunc("POST /v2/sandboxes/{id}/connect", v2(c.with(c.connect)))
	return m
}

// with finds the sandbox of a request.
func (c *Cloud) with(h func(http.ResponseWriter, *http.Request, *box, *providers.Sandbox)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		id := r.PathValue("id")
		b := c.find(id)
		if b == nil {
			fail(w, http.StatusNotFound, "sandbox "+id+" not found")
			return
		}
		sb, err := c.provider.Get(r.Context(), b.inner)
		if err != nil {
			c.gone(w, b, err)
			return
		}
		h(w, r, b, sb)
	}
}

// gone answers for a sandbox whose runtime has failed.
func (c *Cloud) gone(w http.ResponseWriter, b *box, err error) {
	if errors.Is(err, errdefs.ErrCreate) {
		c.forget(b.id)
		fail(w, http.StatusNotFound, "sandbox "+b.id+" not found")
		return
	}
	fail(w, http.StatusInternalServerError, err.Error())
}

func (c *Cloud) create(w http.ResponseWriter, r *http.Request) {
	var in api.NewSandbox
	if !c.body(w, r, &in) {
		return
	}
	how := c.behaviour()
	snapshot := c.snapshotNamed(in.TemplateID)
	v1 := !strings.HasPrefix(r.URL.Path, "/v2/")
	switch {
	case in.TemplateID != "base" && snapshot == nil:
		fail(w, http.StatusNotFound, "template "+strconv.Quote(in.TemplateID)+" not found")
		return
	case v1 && (in.Timeout == nil || in.Secure == nil || !*in.Secure):
		fail(w, http.StatusBadRequest, "timeout and secure are required")
		return
	case in.Timeout != nil && *in.Timeout <= 0:
		fail(w, http.StatusBadRequest, "timeout must be positive")
		return
	case in.Timeout != nil && *in.Timeout > 24*60*60:
		fail(w, http.StatusBadRequest, "Timeout cannot be greater than 24 hours")
		return
	}
	life := 300 * time.Second
	if in.Timeout != nil {
		life = time.Duration(*in.Timeout) * time.Second
	}
	// A service that is asked finishes, whether or not somebody waits.
	ctx := context.WithoutCancel(r.Context())
	time.Sleep(how.CreateTime)
	req := providers.CreateRequest{RequestID: rand.Text(), Lifetime: life, Env: in.EnvVars}
	if snapshot != nil {
		req.Snapshot = snapshot.inner
	}
	sb, err := c.provider.Create(ctx, req)
	if err != nil {
		fail(w, http.StatusInternalServerError, err.Error())
		return
	}
	b := &box{id: newID(), inner: sb.ID, token: sb.Data.Token.Reveal(), template: in.TemplateID, created: time.Now(), metadata: maps.Clone(in.Metadata)}
	if b.metadata == nil {
		b.metadata = map[string]string{}
	}
	c.mu.Lock()
	c.boxes[b.id] = b
	lost := c.lose > 0
	if lost {
		c.lose--
	}
	c.mu.Unlock()
	if lost {
		panic(http.ErrAbortHandler)
	}
	reply(w, http.StatusCreated, c.answer(b))
}

// answer is that of create and connect.
func (c *Cloud) answer(b *box) map[string]any {
	how := c.behaviour()
	out := map[string]any{
		"sandboxID": b.id, "templateID": b.template, "clientID": "c", "accountID": "1", "userID": "2",
		"envdVersion": cmp.Or(how.EnvdVersion, "0.5.2"), "envdAccessToken": b.token,
	}
	if how.ForeignDomain != "" {
		out["domain"] = how.ForeignDomain
	}
	return out
}

// element is a sandbox of a list, with the ids that the platform has for it.
func (c *Cloud) element(b *box, sb *providers.Sandbox) api.ListedSandbox {
	m := maps.Clone(b.metadata)
	m["functionName"], m["fcSessionID"], m["instanceID"] = "f-"+b.template, b.id, "i-"+sb.ID
	state := api.StateRunning
	if sb.State == providers.StatePaused {
		state = api.StatePaused
	}
	return api.ListedSandbox{
		SandboxID: b.id, TemplateID: b.template, ClientID: "c", StartedAt: b.created.UTC(), EndAt: sb.ExpiresAt.UTC(),
		CPUCount: 2, MemoryMB: 1024, DiskSizeMB: 512, State: state, EnvdVersion: cmp.Or(c.behaviour().EnvdVersion, "0.5.2"), Metadata: m,
	}
}

func (c *Cloud) get(w http.ResponseWriter, _ *http.Request, b *box, sb *providers.Sandbox) {
	reply(w, http.StatusOK, api.SandboxDetail{ListedSandbox: c.element(b, sb), EnvdAccessToken: b.token})
}

func (c *Cloud) kill(w http.ResponseWriter, r *http.Request, b *box, _ *providers.Sandbox) {
	if err := c.provider.Kill(context.WithoutCancel(r.Context()), b.inner); err != nil {
		c.gone(w, b, err)
		return
	}
	c.forget(b.id)
	w.WriteHeader(http.StatusNoContent)
}

func (c *Cloud) timeout(w http.ResponseWriter, r *http.Request, b *box, _ *providers.Sandbox) {
	var in api.Timeout
	if !c.body(w, r, &in) {
		return
	}
	if in.Timeout <= 0 {
		fail(w, http.StatusBadRequest, "timeout must be positive")
		return
	}
	if _, err := c.provider.SetLifetime(r.Context(), b.inner, time.Duration(in.Timeout)*time.Second); err != nil {
		c.gone(w, b, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (c *Cloud) connect(w http.ResponseWriter, r *http.Request, b *box, sb *providers.Sandbox) {
	var in api.Connect
	if !c.body(w, r, &in) {
		return
	}
	if in.Timeout == nil || *in.Timeout <= 0 {
		fail(w, http.StatusBadRequest, "timeout is required")
		return
	}
	status := http.StatusOK
	if sb.State == providers.StatePaused {
		status = http.StatusCreated
	}
	if _, err := c.provider.Connect(r.Context(), b.inner, providers.ConnectRequest{Lifetime: time.Duration(*in.Timeout) * time.Second}); err != nil {
		c.gone(w, b, err)
		return
	}
	reply(w, status, c.answer(b))
}

func (c *Cloud) pause(w http.ResponseWriter, r *http.Request, b *box, sb *providers.Sandbox) {
	p, ok := c.provider.(providers.Pauser)
	switch {
	case c.behaviour().PauseRefused || !ok:
		fail(w, http.StatusForbidden, "the account is not on the list for pausing")
		return
	case sb.State == providers.StatePaused:
		fail(w, http.StatusConflict, "sandbox "+b.id+" is paused already")
		return
	}
	if err := p.Pause(r.Context(), b.inner); err != nil {
		c.gone(w, b, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (c *Cloud) metrics(w http.ResponseWriter, _ *http.Request, b *box, _ *providers.Sandbox) {
	if !c.behaviour().ServeV2 {
		fail(w, http.StatusNotFound, "no such route")
		return
	}
	reply(w, http.StatusOK, []api.Metric{})
}

func (c *Cloud) list(w http.ResponseWriter, r *http.Request) {
	how := c.behaviour()
	q := r.URL.Query()
	want, err := api.DecodeMetadata(q.Get("metadata"))
	if err != nil {
		fail(w, http.StatusBadRequest, "metadata: "+err.Error())
		return
	}
	limit := 100
	if v := q.Get("limit"); v != "" {
		if limit, err = strconv.Atoi(v); err != nil || limit < 1 || limit > 100 {
			fail(w, http.StatusBadRequest, "limit must be from 1 to 100")
			return
		}
	}
	c.mu.Lock()
	boxes := slices.Collect(maps.Values(c.boxes))
	c.mu.Unlock()
	slices.SortFunc(boxes, func(a, b *box) int { return cmp.Or(b.created.Compare(a.created), cmp.Compare(a.id, b.id)) })
	page, skip := []api.ListedSandbox{}, q.Get("nextToken")
	for _, b := range boxes {
		if skip != "" { // the token is the last id of the page before
			if b.id == skip {
				skip = ""
			}
			continue
		}
		if time.Since(b.created) < how.ListLag || !how.NoFilter && !matches(b.metadata, want) {
			continue
		}
		sb, err := c.provider.Get(r.Context(), b.inner)
		if err != nil {
			continue // it has ended
		}
		e := c.element(b, sb)
		if s := q.Get("state"); s != "" && !slices.Contains(strings.Split(s, ","), e.State) {
			continue
		}
		if len(page) == limit {
			w.Header().Set(api.HeaderNextToken, page[limit-1].SandboxID)
			break
		}
		page = append(page, e)
	}
	reply(w, http.StatusOK, page)
}

func matches(have, want map[string]string) bool {
	for k, v := range want {
		if got, ok := have[k]; !ok || got != v {
			return false
		}
	}
	return true
}
