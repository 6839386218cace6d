package gateway

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/api"
	"github.com/agent-sandbox/sandbox-go/providers"
)

const (
	samplePeriod = 5 * time.Second
	maxSamples   = 360 // half an hour
	sampleLimit  = 2 * time.Second
	freshSample  = time.Second // a newer one is not taken again for a request
	maxMetricIDs = 100
)

// samples are what was measured of one sandbox, oldest first.
type samples []api.Metric

// add keeps a measurement; the oldest gives way.
func (s *samples) add(m api.Metric) {
	if len(*s) >= maxSamples {
		*s = append((*s)[:0], (*s)[len(*s)-maxSamples+1:]...)
	}
	*s = append(*s, m)
}

// sample measures every running sandbox from time to time, until ctx ends.
func (s *Server) sample(ctx context.Context, meter providers.Meter) {
	t := time.NewTicker(samplePeriod)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		for _, b := range s.all() {
			if ctx.Err() != nil {
				return
			}
			if b.phase() == phaseRunning {
				s.measure(ctx, meter, b)
			}
		}
	}
}

// all is every sandbox of the gateway.
func (s *Server) all() []*box {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*box, 0, len(s.boxes))
	for _, b := range s.boxes {
		out = append(out, b)
	}
	return out
}

// measure takes one sample. Without one, as of a sandbox that just ended,
// there is none.
func (s *Server) measure(ctx context.Context, meter providers.Meter, b *box) error {
	ctx, cancel := context.WithTimeout(ctx, sampleLimit)
	defer cancel()
	u, err := meter.Usage(ctx, b.id)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.samples.add(asMetric(u, &b.rec))
	return nil
}

// asMetric says a measurement in the protocol's words. Totals that the provider
// does not know are those the sandbox was made with.
func asMetric(u providers.Usage, r *record) api.Metric {
	at := u.At.UTC()
	m := api.Metric{
		Timestamp: at, TimestampUnix: at.Unix(), CPUCount: r.CPUs,
		MemUsed: u.MemoryUsed, MemTotal: u.MemoryTotal, MemCache: u.MemoryCache,
		DiskUsed: u.DiskUsed, DiskTotal: u.DiskTotal,
	}
	if r.CPUs > 0 {
		m.CPUUsedPct = u.CPUPercent / r.CPUs // of all its processors together
	}
	if m.MemTotal == 0 {
		m.MemTotal = r.MemoryMiB << 20
	}
	if m.DiskTotal == 0 {
		m.DiskTotal = r.DiskMiB << 20
	}
	return m
}

// metrics answers the samples of one sandbox; the last is never old while it
// runs.
func (s *Server) metrics(w http.ResponseWriter, r *http.Request) error {
	b, err := s.boxOf(r)
	if err != nil {
		return err
	}
	from, to, err := timeRange(r.URL.Query())
	if err != nil {
		return err
	}
	if err := s.freshen(r.Context(), b, freshSample); err != nil {
		return err
	}
	b.mu.Lock()
	all := slices.Clone(b.samples)
	b.mu.Unlock() // before the answer: whoever takes it may be slow
	out := []api.Metric{}
	for _, m := range all {
		if m.TimestampUnix >= from && (to == 0 || m.TimestampUnix <= to) {
			out = append(out, m)
		}
	}
	answer(w, http.StatusOK, out)
	return nil
}

// freshen takes a sample of a running or paused sandbox unless there is one of
// late.
func (s *Server) freshen(ctx context.Context, b *box, age time.Duration) error {
	meter, ok := s.opts.Provider.(providers.Meter)
	if !ok {
		return notSupported("metrics are")
	}
	b.mu.Lock()
	here := b.rec.Phase == phaseRunning || b.rec.Phase == phasePaused // providers measure both
	n := len(b.samples)
	late := n > 0 && time.Since(b.samples[n-1].Timestamp) < age
	b.mu.Unlock()
	if !here || late {
		return nil
	}
	err := s.measure(ctx, meter, b)
	if isGone(err) {
		s.forget(b, err)
	}
	return err
}

// timeRange reads start and end, Unix seconds.
func timeRange(q url.Values) (from, to int64, err error) {
	for name, v := range map[string]*int64{"start": &from, "end": &to} {
		text := q.Get(name)
		if text == "" {
			continue
		}
		if *v, err = strconv.ParseInt(text, 10, 64); err != nil || *v < 0 {
			return 0, 0, refuse(http.StatusBadRequest, "E2011", "%s is not a time in seconds", name)
		}
	}
	if to != 0 && to < from {
		return 0, 0, refuse(http.StatusBadRequest, "E2011", "end is before start")
	}
	return from, to, nil
}

// manyMetrics answers the latest sample of several sandboxes. Those that are
// not there, or of another key, are left out.
func (s *Server) manyMetrics(w http.ResponseWriter, r *http.Request) error {
	if _, ok := s.opts.Provider.(providers.Meter); !ok {
		return notSupported("metrics are")
	}
	var ids []string
	for _, v := range r.URL.Query()["sandbox_ids"] {
		ids = append(ids, strings.Split(v, ",")...)
	}
	if len(ids) > maxMetricIDs || len(ids) == 0 {
		return refuse(http.StatusBadRequest, "E2011", "sandbox_ids must name 1 to %d sandboxes", maxMetricIDs)
	}
	out := struct {
		Sandboxes map[string]api.Metric `json:"sandboxes"`
	}{map[string]api.Metric{}}
	for _, id := range ids {
		if !validID(id) {
			return refuse(http.StatusBadRequest, "E2011", "a sandbox id is malformed")
		}
		s.mu.Lock()
		b := s.boxes[id]
		s.mu.Unlock()
		if b == nil || b.owner != ownerOf(r) {
			continue
		}
		if err := s.freshen(r.Context(), b, samplePeriod); err != nil {
			if isGone(err) {
				continue
			}
			return err
		}
		b.mu.Lock()
		if n := len(b.samples); n > 0 {
			out.Sandboxes[id] = b.samples[n-1]
		}
		b.mu.Unlock()
	}
	answer(w, http.StatusOK, out)
	return nil
}
