package sandboxfn

import (
	"context"
	"iter"
	"maps"
	"time"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// SnapshotInfo describes a snapshot: what was kept of a sandbox. Its ID goes into
// [CreateOptions.Snapshot].
type SnapshotInfo struct {
	ID, Provider string
	Name         string    // as it was given; of services that name snapshots, the first of theirs
	SandboxID    string    // that it was taken of; empty: unknown
	CreatedAt    time.Time // zero: unknown
	Size         Bytes     // that it takes by itself; zero: unknown
	Metadata     map[string]string
}

// SnapshotOptions say what to keep with a snapshot.
type SnapshotOptions struct {
	Name     string            // for people; empty: none
	Metadata map[string]string // [ErrNotSupported] where the provider keeps none
}

// SnapshotListOptions select snapshots.
type SnapshotListOptions struct {
	Provider  string // default: the client's
	SandboxID string // that they were taken of; empty: of every sandbox, also of those that are gone
	PageSize  int    // snapshots per request; zero: 100
}

// Snapshot keeps the files of the sandbox, which goes on. Whatever else is kept
// is the provider's to say; local keeps files only. The snapshot stays until
// [Client.DeleteSnapshot], also when the sandbox has ended. A nil o means neither
// name nor metadata; o is copied.
//
// When ctx ends first, local keeps nothing; a service may have finished it.
// Providers that have no snapshots: [ErrNotSupported].
func (sb *Sandbox) Snapshot(ctx context.Context, o *SnapshotOptions) (*SnapshotInfo, error) {
	if err := sb.usable(); err != nil {
		return nil, err
	}
	s, err := sb.client.snapshot(ctx, sb.provider, sb.id, o)
	return s, sb.note(err)
}

// Snapshot is [Client.Snapshot] on the client of ctx, or the default one.
func Snapshot(ctx context.Context, id string, o *SnapshotOptions) (*SnapshotInfo, error) {
	c, err := clientFrom(ctx)
	if err != nil {
		return nil, err
	}
	return c.Snapshot(ctx, id, o)
}

// Snapshot is [Sandbox.Snapshot] for a sandbox of the client's provider, whoever
// created it. One that is paused stays so.
func (c *Client) Snapshot(ctx context.Context, id string, o *SnapshotOptions) (*SnapshotInfo, error) {
	if err := checkID("take snapshot", id); err != nil {
		return nil, err
	}
	p, err := c.provider("")
	if err != nil {
		return nil, err
	}
	return c.snapshot(ctx, p, id, o)
}

func (c *Client) snapshot(ctx context.Context, provider providers.Provider, id string, o *SnapshotOptions) (*SnapshotInfo, error) {
	const op = "take snapshot"
	p, err := snapshotter(ctx, op, provider)
	if err != nil {
		return nil, err
	}
	var v SnapshotOptions
	if o != nil {
		v = *o
	}
	check := optionCheck{op: op}
	check.text("Name", v.Name)
	for k, val := range v.Metadata {
		if k == "" {
			check.fail("Metadata: a key is empty")
		}
		check.text("Metadata key", k)
		check.text("Metadata "+k, val)
	}
	if check.problem != "" {
		return nil, errdefs.New("E2011", op, check.problem)
	}
	s, err := p.Snapshot(ctx, id, providers.SnapshotRequest{Name: v.Name, Metadata: maps.Clone(v.Metadata)})
	if err != nil {
		return nil, c.providerError(ctx, op, err)
	}
	return snapshotInfo(provider, s), nil
}

func snapshotter(ctx context.Context, op string, p providers.Provider) (providers.Snapshotter, error) {
	return capable[providers.Snapshotter](ctx, op, p, providers.CapSnapshot)
}

func snapshotInfo(p providers.Provider, s *providers.Snapshot) *SnapshotInfo {
	return &SnapshotInfo{
		ID: s.ID, Provider: p.Name(), Name: s.Name, SandboxID: s.SandboxID,
		CreatedAt: s.CreatedAt, Size: Bytes(s.Size), Metadata: maps.Clone(s.Metadata),
	}
}

// Snapshots is [Client.Snapshots] on the client of ctx, or the default one.
func Snapshots(ctx context.Context, o *SnapshotListOptions) iter.Seq2[*SnapshotInfo, error] {
	c, err := clientFrom(ctx)
	if err != nil {
		return func(yield func(*SnapshotInfo, error) bool) { yield(nil, err) }
	}
	return c.Snapshots(ctx, o)
}

// Snapshots yields the snapshots of the provider, newest first. A nil o means all
// of the client's provider. Pages are fetched as the loop asks for them; after an
// error the sequence ends. Providers that have none: [ErrNotSupported].
func (c *Client) Snapshots(ctx context.Context, o *SnapshotListOptions) iter.Seq2[*SnapshotInfo, error] {
	const op = "list snapshots"
	var v SnapshotListOptions
	if o != nil {
		v = *o
	}
	return func(yield func(*SnapshotInfo, error) bool) {
		if v.PageSize < 0 {
			yield(nil, errdefs.New("E2011", op, "PageSize is negative"))
			return
		}
		p, err := c.provider(v.Provider)
		if err != nil {
			yield(nil, err)
			return
		}
		s, err := snapshotter(ctx, op, p)
		if err != nil {
			yield(nil, err)
			return
		}
		for req := (providers.SnapshotListRequest{SandboxID: v.SandboxID, Limit: v.PageSize}); ; {
			page, err := s.ListSnapshots(ctx, req)
			if err != nil {
				yield(nil, c.providerError(ctx, op, err))
				return
			}
			for _, s := range page.Snapshots {
				if !yield(snapshotInfo(p, s), nil) {
					return
				}
			}
			if page.Next == "" {
				return
			}
			if page.Next == req.Token {
				yield(nil, errdefs.New("E8000", op, "the provider returned the same page twice"))
				return
			}
			req.Token = page.Next
		}
	}
}

// DeleteSnapshot is [Client.DeleteSnapshot] on the client of ctx, or the default
// one.
func DeleteSnapshot(ctx context.Context, id string) error {
	c, err := clientFrom(ctx)
	if err != nil {
		return err
	}
	return c.DeleteSnapshot(ctx, id)
}

// DeleteSnapshot removes a snapshot of the client's provider. Sandboxes that were
// made from it live on. One that is not there is [ErrNotFound].
func (c *Client) DeleteSnapshot(ctx context.Context, id string) error {
	p, err := c.provider("")
	if err != nil {
		return err
	}
	return c.deleteSnapshot(ctx, p, id)
}

func (c *Client) deleteSnapshot(ctx context.Context, p providers.Provider, id string) error {
	const op = "delete snapshot"
	s, err := snapshotter(ctx, op, p)
	if err != nil {
		return err
	}
	check := optionCheck{op: op}
	check.text("the id of the snapshot", id)
	if id == "" {
		check.fail("the id of the snapshot is empty")
	}
	if check.problem != "" {
		return errdefs.New("E2011", op, check.problem)
	}
	if err := s.DeleteSnapshot(ctx, id); err != nil {
		return c.providerError(ctx, op, err)
	}
	return nil
}
