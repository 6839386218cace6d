package e2bcloud

import (
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/agent-sandbox/sandbox-go/internal/api"
	"github.com/agent-sandbox/sandbox-go/providers"
)

// snapshot is one of the service. Its id has the form of a template's, with a team
// and a tag, and the service says of it only that and its names.
type snapshot struct {
	id, inner, sandbox string
	names              []string
}

func (s *snapshot) answer() map[string]any {
	return map[string]any{"snapshotID": s.id, "names": s.names}
}

// snapshotNamed finds a snapshot; nil: there is none.
func (c *Cloud) snapshotNamed(id string) *snapshot {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.snapshots {
		if s.id == id {
			return s
		}
	}
	return nil
}

func (c *Cloud) takeSnapshot(w http.ResponseWriter, r *http.Request, b *box, _ *providers.Sandbox) {
	var in api.NewSnapshot
	if !c.body(w, r, &in) {
		return
	}
	p, ok := c.provider.(providers.Snapshotter)
	if !ok {
		fail(w, http.StatusServiceUnavailable, "no snapshots here")
		return
	}
	taken, err := p.Snapshot(r.Context(), b.inner, providers.SnapshotRequest{})
	if err != nil {
		c.gone(w, b, err)
		return
	}
	s := &snapshot{id: "team/" + strings.TrimPrefix(newID(), "sbx-") + ":default", inner: taken.ID, sandbox: b.id, names: []string{}}
	if in.Name != "" {
		s.names = append(s.names, in.Name)
	}
	c.mu.Lock()
	c.snapshots = append([]*snapshot{s}, c.snapshots...)
	c.mu.Unlock()
	reply(w, http.StatusCreated, s.answer())
}

func (c *Cloud) listSnapshots(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	limit := 100
	if v := q.Get("limit"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 || n > 100 {
			fail(w, http.StatusBadRequest, "limit must be from 1 to 100")
			return
		}
		limit = n
	}
	c.mu.Lock()
	all := slices.Clone(c.snapshots)
	c.mu.Unlock()
	page, skip, last := []map[string]any{}, q.Get("nextToken"), ""
	for _, s := range all {
		if skip != "" { // the token is the last id of the page before
			if s.id == skip {
				skip = ""
			}
			continue
		}
		if id := q.Get("sandboxID"); id != "" && s.sandbox != id {
			continue
		}
		if len(page) == limit {
			w.Header().Set(api.HeaderNextToken, last)
			break
		}
		page, last = append(page, s.answer()), s.id
	}
	reply(w, http.StatusOK, page)
}

func (c *Cloud) deleteSnapshot(w http.ResponseWriter, r *http.Request) {
	s := c.snapshotNamed(r.PathValue("id"))
	if s == nil {
		fail(w, http.StatusNotFound, "template not found")
		return
	}
	if err := c.provider.(providers.Snapshotter).DeleteSnapshot(r.Context(), s.inner); err != nil {
		fail(w, http.StatusInternalServerError, err.Error())
		return
	}
	c.mu.Lock()
	c.snapshots = slices.DeleteFunc(c.snapshots, func(o *snapshot) bool { return o == s })
	c.mu.Unlock()
	w.WriteHeader(http.StatusNoContent)
}
