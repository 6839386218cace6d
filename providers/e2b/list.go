package e2b

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/api"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// maxPage is the largest page the service gives.
const maxPage = 100

var bothStates = []string{api.StateRunning, api.StatePaused}

// Get describes one sandbox. One that this provider killed, or whose end has
// passed as far as it knows, is E2022 or E2021; others that are not there are
// E2020.
func (p *Provider) Get(ctx context.Context, id string) (*providers.Sandbox, error) {
	const op = "get sandbox"
	done, err := p.begin(ctx, op)
	if err != nil {
		return nil, err
	}
	defer done()
	return p.get(ctx, op, id)
}

func (p *Provider) get(ctx context.Context, op, id string) (*providers.Sandbox, error) {
	if p.opts.debug {
		return p.debugSandbox(), nil
	}
	d, err := p.api.Get(ctx, id)
	if err != nil {
		return nil, p.gone(op, id, err)
	}
	domain, err := p.domainOf(op, id, d.Domain)
	if err != nil {
		return nil, err
	}
	sb := p.listed(&d.ListedSandbox)
	p.known.update(id, func(f *fact) {
		f.domain, f.expires = domain, sb.ExpiresAt
		if sb.State == providers.StateRunning {
			f.paused = time.Time{} // by whomever it was resumed
		}
		if d.EnvdAccessToken != "" {
			f.token = providers.Secret(d.EnvdAccessToken)
		}
	})
	if sb.State == providers.StateRunning {
		f, _ := p.known.get(id)
		sb.Data = p.runtime(id, f)
	}
	return sb, nil
}

func (p *Provider) listed(in *api.ListedSandbox) *providers.Sandbox {
	sb := &providers.Sandbox{
		ID: in.SandboxID, Provider: p.profile.Name, Template: templateOf(in.Alias, in.TemplateID, ""),
		CreatedAt: in.StartedAt, ExpiresAt: in.EndAt, Metadata: visible(in.Metadata),
		Resources:      providers.Resources{CPUMilli: int64(math.Round(in.CPUCount * 1000)), MemoryMiB: in.MemoryMB, DiskMiB: in.DiskSizeMB},
		RuntimeVersion: versionOf(in.EnvdVersion), DefaultUser: userOf(in.EnvdVersion),
	}
	switch in.State {
	case api.StateRunning:
		sb.State = providers.StateRunning
	case api.StatePaused:
		sb.State = providers.StatePaused
	default:
		sb.State = providers.StateUnknown
	}
	return sb
}

// pageLimit is what the service is asked for when a caller asks for limit.
func pageLimit(op string, limit int) (int, error) {
	switch {
	case limit < 0:
		return 0, errdefs.New("E2011", op, fmt.Sprintf("limit %d is negative", limit))
	case limit == 0 || limit > maxPage:
		return maxPage, nil
	}
	return limit, nil
}

// List returns one page, newest first, of at most 100 sandboxes. The service
// knows only running and paused ones; a new one may be missing for as long as
// Capabilities say.
func (p *Provider) List(ctx context.Context, req providers.ListRequest) (*providers.Page, error) {
	const op = "list sandboxes"
	done, err := p.begin(ctx, op)
	if err != nil {
		return nil, err
	}
	defer done()
	if req.Limit, err = pageLimit(op, req.Limit); err != nil {
		return nil, err
	}
	if p.opts.debug {
		return &providers.Page{Sandboxes: []*providers.Sandbox{p.debugSandbox()}}, nil
	}
	q := &api.Query{Metadata: req.Metadata, Limit: req.Limit, Token: req.Token}
	for _, s := range bothStates {
		if len(req.States) == 0 || slices.Contains(req.States, providers.State(s)) {
			q.States = append(q.States, s)
		}
	}
	if len(q.States) == 0 { // of the others the service may know some too: it is asked for all
		q.States = bothStates
	}
	found, next, err := p.api.List(ctx, q)
	if err != nil {
		return nil, err
	}
	page := &providers.Page{Next: next}
	for i := range found {
		sb := p.listed(&found[i])
		// Not every service filters.
		if hasAll(found[i].Metadata, req.Metadata) && (len(req.States) == 0 || slices.Contains(req.States, sb.State)) {
			page.Sandboxes = append(page.Sandboxes, sb)
		}
	}
	return page, nil
}

func hasAll(have, want map[string]string) bool {
	for k, v := range want {
		if got, ok := have[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// Usage is the newest sample of the service, which may be some seconds old. Soon
// after a creation there may be none: E8000.
func (p metered) Usage(ctx context.Context, id string) (providers.Usage, error) {
	const op = "measure sandbox"
	done, err := p.begin(ctx, op)
	if err != nil {
		return providers.Usage{}, err
	}
	defer done()
	none := &errdefs.Error{Code: "E8000", Op: op, Message: "there is no sample of sandbox " + id + " yet", Suggestion: "ask again in some seconds"}
	if p.opts.debug {
		return providers.Usage{}, none
	}
	samples, err := p.api.Metrics(ctx, id)
	if err != nil {
		return providers.Usage{}, p.gone(op, id, err)
	}
	if len(samples) == 0 {
		if sb, err := p.get(ctx, op, id); err == nil && sb.State == providers.StatePaused {
			return providers.Usage{}, &errdefs.Error{Code: "E2024", Op: op, Message: "sandbox " + id + " is paused, and there is no sample of it"}
		}
		return providers.Usage{}, none
	}
	m := samples[len(samples)-1]
	at := m.Timestamp
	if at.IsZero() {
		at = time.Unix(m.TimestampUnix, 0)
	}
	return providers.Usage{
		At: at, CPUs: m.CPUCount, CPUPercent: m.CPUUsedPct, MemoryUsed: m.MemUsed, MemoryCache: m.MemCache,
		MemoryTotal: m.MemTotal, DiskUsed: m.DiskUsed, DiskTotal: m.DiskTotal,
	}, nil
}
