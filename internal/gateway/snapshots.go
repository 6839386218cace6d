package gateway

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/gorilla/mux"

	"github.com/agent-sandbox/sandbox-go/internal/api"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// Snapshots are the provider's, with marks in their metadata: they need no
// records, and are there after a restart.
const (
	markOwner = "sandboxd.owner" // id of the key that took the snapshot

	maxSnapshots    = 1000 // of all keys
	maxSnapshotName = 128  // bytes
)

// takeSnapshot keeps the files of a sandbox. What it began it finishes, also when
// the client goes away: then the snapshot is in the list.
func (s *Server) takeSnapshot(w http.ResponseWriter, r *http.Request) error {
	b, err := s.boxOf(r)
	if err != nil {
		return err
	}
	p, ok := s.opts.Provider.(providers.Snapshotter)
	if !ok {
		return notSupported("making snapshots is")
	}
	var body api.NewSnapshot
	if err := decode(w, r, &body, required); err != nil {
		return err
	}
	if len(body.Name) > maxSnapshotName || strings.ContainsFunc(body.Name, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return refuse(http.StatusBadRequest, "E2011", "a name has at most %d bytes, and no control characters", maxSnapshotName)
	}
	all, err := s.snapshots(r.Context(), p)
	if err != nil {
		return err
	}
	if len(all) >= maxSnapshots {
		return refuse(http.StatusTooManyRequests, "E2002", "this gateway keeps at most %d snapshots", maxSnapshots)
	}
	var taken *providers.Snapshot
	err = s.change(r.Context(), b, func(ctx context.Context) (err error) {
		if b.phase().between() {
			return inTransition(b)
		}
		taken, err = p.Snapshot(ctx, b.id, providers.SnapshotRequest{
			Name: body.Name, Metadata: map[string]string{markGateway: s.store.ident, markOwner: ownerOf(r)},
		})
		return err
	})
	if err != nil {
		return err
	}
	s.note(b, "info", "snapshot taken")
	s.log.InfoContext(r.Context(), "snapshot taken", "sandbox_id", b.id, "snapshot_id", taken.ID)
	answer(w, http.StatusCreated, asSnapshot(taken))
	return nil
}

func asSnapshot(s *providers.Snapshot) api.Snapshot {
	out := api.Snapshot{SnapshotID: s.ID, Names: []string{}, SandboxID: s.SandboxID, CreatedAt: s.CreatedAt.UTC(), Size: s.Size}
	if s.Name != "" {
		out.Names = append(out.Names, s.Name)
	}
	return out
}

// snapshots are all of this gateway, newest first.
func (s *Server) snapshots(ctx context.Context, p providers.Snapshotter) ([]*providers.Snapshot, error) {
	var all []*providers.Snapshot
	for req := (providers.SnapshotListRequest{Limit: maxSnapshots}); ; {
		page, err := p.ListSnapshots(ctx, req)
		if err != nil {
			return nil, err
		}
		for _, sn := range page.Snapshots {
			if sn.Metadata[markGateway] == s.store.ident {
				all = append(all, sn)
			}
		}
		if page.Next == "" {
			return all, nil
		}
		if page.Next == req.Token {
			return nil, errors.New("the provider's list of snapshots does not end")
		}
		req.Token = page.Next
	}
}

// snapshotsOf are those that a key took, newest first. Those of other keys do not
// exist for it.
func (s *Server) snapshotsOf(ctx context.Context, owner string) ([]*providers.Snapshot, error) {
	p, ok := s.opts.Provider.(providers.Snapshotter)
	if !ok {
		return nil, nil
	}
	all, err := s.snapshots(ctx, p)
	return slices.DeleteFunc(all, func(sn *providers.Snapshot) bool { return sn.Metadata[markOwner] != owner }), err
}

// snapshot finds one of a key by its id, which may carry the tag that stands for
// no tag; nil: there is none.
func (s *Server) snapshot(ctx context.Context, owner, id string) (*providers.Snapshot, error) {
	id = strings.TrimSuffix(id, ":default")
	all, err := s.snapshotsOf(ctx, owner)
	if err != nil {
		return nil, err
	}
	for _, sn := range all {
		if sn.ID == id {
			return sn, nil
		}
	}
	return nil, nil
}

func (s *Server) listSnapshots(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	limit, err := parseLimit(q.Get("limit"))
	if err != nil {
		return err
	}
	var after *position
	if t := q.Get("nextToken"); t != "" {
		if after, err = parsePosition(t); err != nil {
			return err
		}
	}
	all, err := s.snapshotsOf(r.Context(), ownerOf(r))
	if err != nil {
		return err
	}
	sandbox, _, _ := strings.Cut(q.Get("sandboxID"), "-")
	name := q.Get("name")
	page := []api.Snapshot{} // an empty list is [], not null
	for _, sn := range all {
		switch {
		case after != nil && !after.before(positionOfSnapshot(sn), false):
			continue
		case sandbox != "" && sn.SandboxID != sandbox, name != "" && sn.Name != name:
			continue
		}
		if len(page) == limit {
			last := page[limit-1]
			w.Header().Set(api.HeaderNextToken, position{last.CreatedAt.UnixNano(), last.SnapshotID}.token())
			break
		}
		page = append(page, asSnapshot(sn))
	}
	answer(w, http.StatusOK, page)
	return nil
}

func positionOfSnapshot(sn *providers.Snapshot) position {
	return position{sn.CreatedAt.UnixNano(), sn.ID}
}

// start says what sandboxes are made from: a template, or a snapshot of the key.
func (s *Server) start(ctx context.Context, owner, name string) (t template, snapshot string, err error) {
	t, err = s.template(ctx, name)
	if err == nil {
		return t, "", nil
	}
	sn, serr := s.snapshot(ctx, owner, name)
	switch {
	case serr != nil:
		return t, "", serr
	case sn == nil:
		return t, "", err
	}
	return template{id: sn.ID}, sn.ID, nil
}

// lostSnapshot is the answer to a creation whose snapshot went away meanwhile.
func lostSnapshot(id string, err error) error {
	if id == "" || errdefs.CodeOf(err) != "E2020" {
		return err
	}
	return refuse(http.StatusNotFound, "E2001", "template %q not found; it was a snapshot", id)
}

// deleteTemplate deletes a snapshot, which is a template. It answers 404 to what
// is not there, and 403 for what is nobody's to delete.
func (s *Server) deleteTemplate(w http.ResponseWriter, r *http.Request) error {
	name, err := url.PathUnescape(mux.Vars(r)["template"])
	if err != nil {
		return refuse(http.StatusBadRequest, "", "the template's name is malformed")
	}
	t, id, err := s.start(r.Context(), ownerOf(r), name)
	if err != nil {
		return err
	}
	if id == "" {
		return refuse(http.StatusForbidden, "E1006", "template %q is not a key's to delete", t.id)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), changeLimit)
	defer cancel()
	if err := s.opts.Provider.(providers.Snapshotter).DeleteSnapshot(ctx, id); err != nil {
		return lostSnapshot(id, err)
	}
	s.log.InfoContext(ctx, "snapshot deleted", "snapshot_id", id)
	w.WriteHeader(http.StatusNoContent)
	return nil
}
