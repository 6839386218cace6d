package e2b

import (
	"context"
	"fmt"

	"github.com/agent-sandbox/sandbox-go/internal/api"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// Snapshot keeps what a sandbox is now; what that is, the service decides. It
// knows no metadata: E8004. An answer that is lost, also because ctx has ended, may
// leave a snapshot, which is in the list.
func (p *Provider) Snapshot(ctx context.Context, id string, req providers.SnapshotRequest) (*providers.Snapshot, error) {
	const op = "take snapshot"
	done, err := p.beginSnapshots(ctx, op)
	if err != nil {
		return nil, err
	}
	defer done()
	if len(req.Metadata) > 0 {
		return nil, p.cannot(op, "keep metadata with snapshots", "give it a name")
	}
	s, err := p.api.TakeSnapshot(ctx, id, &api.NewSnapshot{Name: req.Name})
	if err != nil {
		return nil, p.gone(op, id, err)
	}
	if s.SandboxID == "" {
		s.SandboxID = id
	}
	out := snapshotOf(s)
	if req.Name != "" {
		out.Name = req.Name
	}
	return out, nil
}

// beginSnapshots is begin for services that have snapshots.
func (p *Provider) beginSnapshots(ctx context.Context, op string) (func(), error) {
	if !p.profile.Snapshots || p.opts.debug {
		return nil, p.cannot(op, "keep snapshots", "")
	}
	return p.begin(ctx, op)
}

// ListSnapshots returns one page of at most 100 snapshots, in the order of the
// service. Services may not say when they were taken, and of what.
func (p *Provider) ListSnapshots(ctx context.Context, req providers.SnapshotListRequest) (*providers.SnapshotPage, error) {
	const op = "list snapshots"
	done, err := p.beginSnapshots(ctx, op)
	if err != nil {
		return nil, err
	}
	defer done()
	if req.Limit, err = pageLimit(op, req.Limit); err != nil {
		return nil, err
	}
	found, next, err := p.api.ListSnapshots(ctx, &api.SnapshotQuery{SandboxID: req.SandboxID, Limit: req.Limit, Token: req.Token})
	if err != nil {
		return nil, err
	}
	page := &providers.SnapshotPage{Next: next}
	for i := range found {
		s := snapshotOf(&found[i])
		if s.SandboxID == "" {
			s.SandboxID = req.SandboxID
		}
		page.Snapshots = append(page.Snapshots, s)
	}
	return page, nil
}

func snapshotOf(in *api.Snapshot) *providers.Snapshot {
	s := &providers.Snapshot{ID: in.SnapshotID, SandboxID: in.SandboxID, CreatedAt: in.CreatedAt, Size: max(in.Size, 0)}
	if len(in.Names) > 0 {
		s.Name = in.Names[0]
	}
	return s
}

// DeleteSnapshot removes a snapshot. One that is not there is E2020.
func (p *Provider) DeleteSnapshot(ctx context.Context, id string) error {
	done, err := p.beginSnapshots(ctx, "delete snapshot")
	if err != nil {
		return err
	}
	defer done()
	return p.api.DeleteSnapshot(ctx, id)
}

// noSnapshot is the error of a creation from a snapshot that is not there.
func noSnapshot(op, id string, err error) error {
	return &errdefs.Error{Code: "E2020", Op: op, Message: fmt.Sprintf("no snapshot %q", clip(id)), Suggestion: "list the snapshots", Err: api.Quiet(err)}
}
