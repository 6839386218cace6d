package e2b

import (
	"strings"
	"testing"

	"github.com/agent-sandbox/sandbox-go/internal/fakes/e2bcloud"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// The ids of the hosted service have slashes and colons, and it says little more.
func TestSnapshotsOfCloud(t *testing.T) {
	c := newCloud(t, e2bcloud.Behaviour{})
	p := openE2B(t, v1(), to(c.URL, c.Key))
	ctx := t.Context()
	sb, err := p.Create(ctx, providers.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Snapshot(ctx, sb.ID, providers.SnapshotRequest{Metadata: map[string]string{"a": "1"}}); errdefs.CodeOf(err) != "E8004" {
		t.Errorf("with metadata: %v", err)
	}
	s, err := p.Snapshot(ctx, sb.ID, providers.SnapshotRequest{Name: "n"})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(s.ID, "/") || s.Name != "n" || s.SandboxID != sb.ID || !s.CreatedAt.IsZero() {
		t.Errorf("%+v", s)
	}
	page, err := p.ListSnapshots(ctx, providers.SnapshotListRequest{SandboxID: sb.ID})
	if err != nil || len(page.Snapshots) != 1 || page.Snapshots[0].ID != s.ID || page.Snapshots[0].SandboxID != sb.ID {
		t.Errorf("%+v, %v", page, err)
	}
	if err := p.DeleteSnapshot(ctx, s.ID); err != nil {
		t.Error(err)
	}
	if err := p.DeleteSnapshot(ctx, s.ID); errdefs.CodeOf(err) != "E2020" {
		t.Errorf("deleted twice: %v", err)
	}
	if _, err := p.Create(ctx, providers.CreateRequest{Snapshot: s.ID}); errdefs.CodeOf(err) != "E2020" {
		t.Errorf("from one that is gone: %v", err)
	}
	if err := p.Kill(ctx, sb.ID); err != nil {
		t.Error(err)
	}
}

// A service without snapshots is asked for none.
func TestNoSnapshots(t *testing.T) {
	c := newCloud(t, e2bcloud.Behaviour{})
	profile := v1()
	profile.Snapshots = false
	p := openE2B(t, profile, to(c.URL, c.Key))
	_, takeErr := p.Snapshot(t.Context(), "x", providers.SnapshotRequest{})
	_, listErr := p.ListSnapshots(t.Context(), providers.SnapshotListRequest{})
	_, createErr := p.Create(t.Context(), providers.CreateRequest{Snapshot: "x"})
	for what, err := range map[string]error{"take": takeErr, "list": listErr, "create": createErr, "delete": p.DeleteSnapshot(t.Context(), "x")} {
		if errdefs.CodeOf(err) != "E8004" {
			t.Errorf("%s: %v", what, err)
		}
	}
	caps, err := p.Capabilities(t.Context())
	if err != nil || caps.Set[providers.CapSnapshot] {
		t.Errorf("%+v, %v", caps, err)
	}
}
