package gateway

import (
	"cmp"
	"context"
	"encoding/base64"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/api"
)

const (
	maxPage     = 100
	looksAtOnce = 16 // sandboxes asked at the same time
)

// query selects sandboxes of a list.
type query struct {
	metadata  map[string]string
	states    []string // empty: both
	template  string
	since     time.Time // started after this; zero: all
	ascending bool
	limit     int
	after     *position
}

// position is a place in the order of a list.
type position struct {
	started int64 // Unix time, ns
	id      string
}

func positionOf(r *record) position { return position{r.CreatedAt.UnixNano(), r.ID} }

func (p position) compare(o position) int {
	return cmp.Or(cmp.Compare(p.started, o.started), cmp.Compare(p.id, o.id))
}

// token is the position in the form that goes through clients.
func (p position) token() string {
	return base64.RawURLEncoding.EncodeToString([]byte(strconv.FormatInt(p.started, 10) + "." + p.id))
}

func parsePosition(token string) (*position, error) {
	bad := refuse(http.StatusBadRequest, "E2011", "nextToken is malformed")
	if len(token) > 256 {
		return nil, bad
	}
	b, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		return nil, bad
	}
	started, id, _ := strings.Cut(string(b), ".")
	n, err := strconv.ParseInt(started, 10, 64)
	if err != nil || !validID(id) {
		return nil, bad
	}
	return &position{n, id}, nil
}

// parseQuery reads the parameters of a list.
func parseQuery(q url.Values) (*query, error) {
	out := &query{limit: maxPage, template: q.Get("template")}
	var err error
	if out.metadata, err = parseMetadata(q.Get("metadata")); err != nil {
		return nil, err
	}
	for _, value := range q["state"] {
		for state := range strings.SplitSeq(value, ",") {
			switch state = strings.TrimSpace(state); state {
			case "":
			case api.StateRunning, api.StatePaused:
				out.states = append(out.states, state)
			default:
				return nil, refuse(http.StatusBadRequest, "E2011", "state %q is not running or paused", clip(state))
			}
		}
	}
	switch order := q.Get("order"); order {
	case "", "desc":
	case "asc":
		out.ascending = true
	default:
		return nil, refuse(http.StatusBadRequest, "E2011", "order %q is not asc or desc", clip(order))
	}
	if t := q.Get("startedAfter"); t != "" {
		if out.since, err = time.Parse(time.RFC3339, t); err != nil {
			return nil, refuse(http.StatusBadRequest, "E2011", "startedAfter is not an RFC 3339 time")
		}
	}
	if out.limit, err = parseLimit(q.Get("limit")); err != nil {
		return nil, err
	}
	if t := q.Get("nextToken"); t != "" {
		if out.after, err = parsePosition(t); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func parseLimit(text string) (int, error) {
	if text == "" {
		return maxPage, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > maxPage {
		return 0, refuse(http.StatusBadRequest, "E2011", "limit is out of range: 1 to %d", maxPage)
	}
	return n, nil
}

// parseMetadata reads the metadata filter, of which the HTTP library has
// decoded the first of three layers: the rest is a query string whose keys and
// values are percent-encoded once more.
func parseMetadata(value string) (map[string]string, error) {
	if value == "" {
		return nil, nil
	}
	bad := refuse(http.StatusBadRequest, "E2011", "metadata is malformed")
	pairs, err := url.ParseQuery(value)
	if err != nil {
		return nil, bad
	}
	out := map[string]string{}
	for k, values := range pairs {
		key, err := url.PathUnescape(k)
		if err != nil {
			return nil, bad
		}
		for _, v := range values {
			v, err := url.PathUnescape(v)
			if err != nil {
				return nil, bad
			}
			if before, dup := out[key]; dup && before != v {
				return nil, refuse(http.StatusBadRequest, "E2011", "metadata asks for two values of one key")
			}
			out[key] = v
		}
	}
	return out, nil
}

func (q *query) wants(r *record) bool {
	if len(q.states) > 0 && !slices.Contains(q.states, r.Phase.state()) {
		return false
	}
	if q.template != "" && q.template != r.TemplateID && q.template != r.Alias {
		return false
	}
	if !q.since.IsZero() && !r.CreatedAt.After(q.since) {
		return false
	}
	for k, v := range q.metadata {
		if got, ok := r.Metadata[k]; !ok || got != v {
			return false
		}
	}
	return true
}

func (s *Server) listV1(w http.ResponseWriter, r *http.Request) error {
	metadata, err := parseMetadata(r.URL.Query().Get("metadata"))
	if err != nil {
		return err
	}
	found, _, _, err := s.list(r.Context(), ownerOf(r), &query{metadata: metadata, states: []string{api.StateRunning}})
	if err != nil {
		return err
	}
	answer(w, http.StatusOK, found)
	return nil
}

func (s *Server) listV2(w http.ResponseWriter, r *http.Request) error {
	q, err := parseQuery(r.URL.Query())
	if err != nil {
		return err
	}
	found, next, running, err := s.list(r.Context(), ownerOf(r), q)
	if err != nil {
		return err
	}
	if next != "" {
		w.Header().Set(api.HeaderNextToken, next)
	}
	w.Header().Set(api.HeaderTotalRunning, strconv.Itoa(running))
	answer(w, http.StatusOK, found)
	return nil
}

// list returns one page of an owner's sandboxes, the token of the next, and how
// many of all run. A limit of zero is none. Only what the provider still has is
// listed.
func (s *Server) list(ctx context.Context, owner string, q *query) (page []api.ListedSandbox, next string, running int, err error) {
	if err := s.lookAll(ctx, owner); err != nil {
		return nil, "", 0, err
	}
	var all []record
	s.mu.Lock()
	for _, b := range s.boxes {
		if b.owner == owner {
			all = append(all, b.snapshot())
		}
	}
	s.mu.Unlock()
	slices.SortFunc(all, func(a, b record) int {
		c := positionOf(&a).compare(positionOf(&b))
		if !q.ascending {
			c = -c
		}
		return c
	})
	page = []api.ListedSandbox{} // an empty list is [], not null
	for i := range all {
		r := &all[i]
		if r.Phase.state() == api.StateRunning {
			running++
		}
		if !q.wants(r) || q.after != nil && !q.after.before(positionOf(r), q.ascending) {
			continue
		}
		if q.limit > 0 && len(page) == q.limit {
			if next == "" {
				next = lastPosition(page).token()
			}
			continue
		}
		page = append(page, asListed(*r))
	}
	return page, next, running, nil
}

func (p position) before(o position, ascending bool) bool {
	if ascending {
		return p.compare(o) < 0
	}
	return p.compare(o) > 0
}

func lastPosition(page []api.ListedSandbox) position {
	last := page[len(page)-1]
	return position{last.StartedAt.UnixNano(), last.SandboxID}
}

// lookAll asks the provider about all sandboxes of an owner, so that none is
// listed that ended by itself.
func (s *Server) lookAll(ctx context.Context, owner string) error {
	var mine []*box
	s.mu.Lock()
	for _, b := range s.boxes {
		if b.owner == owner {
			mine = append(mine, b)
		}
	}
	s.mu.Unlock()
	s.lookEach(ctx, mine)
	return ctx.Err()
}

// lookEach looks at sandboxes. Of one that cannot be asked the record stands.
func (s *Server) lookEach(ctx context.Context, boxes []*box) {
	s.each(boxes, func(b *box) {
		ctx, cancel := context.WithTimeout(ctx, lookLimit)
		defer cancel()
		if err := s.look(ctx, b); err != nil && !isGone(err) {
			s.log.WarnContext(ctx, "state of a sandbox not known", "sandbox_id", b.id, "err", err)
		}
	})
}

// each does something with sandboxes, several at the same time.
func (s *Server) each(boxes []*box, do func(*box)) {
	slots := make(chan struct{}, looksAtOnce)
	var wg sync.WaitGroup
	for _, b := range boxes {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			do(b)
		})
	}
	wg.Wait()
}
