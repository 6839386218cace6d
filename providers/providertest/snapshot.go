package providertest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/agent-sandbox/sandbox-go/internal/envd"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// kept is a file that snapshots are to hold.
const kept = "/tmp/providertest"

func (s *suite) snapshot() {
	if !s.caps.Set[providers.CapSnapshot] {
		s.t.Skip("the provider has no snapshots")
	}
	p, ok := s.Provider.(providers.Snapshotter)
	if !ok {
		s.t.Fatal("capability snapshot is there, its interface is not")
	}
	ctx := s.t.Context()
	parent := s.make(s.request())
	other := s.make(s.request())
	s.write(parent, "one")
	first := s.take(p, parent.ID, providers.SnapshotRequest{Name: "providertest"})
	if first.Name != "providertest" || first.SandboxID != parent.ID {
		s.t.Errorf("%+v", first)
	}
	s.write(parent, "two")
	second := s.take(p, parent.ID, providers.SnapshotRequest{})
	if err := answers(ctx, parent.Data); err != nil {
		s.t.Error("the sandbox after its snapshot:", err)
	}

	s.eventually("list of snapshots", func() string {
		if got := s.snapshotsOf(p, parent.ID); len(got) != 2 || got[0] != second.ID || got[1] != first.ID {
			return fmt.Sprintf("%q, want %q, %q", got, second.ID, first.ID)
		}
		return ""
	})
	if got := s.snapshotsOf(p, other.ID); len(got) > 0 {
		s.t.Errorf("snapshots of a sandbox that has none: %q", got)
	}
	_, err := p.ListSnapshots(ctx, providers.SnapshotListRequest{Limit: -1})
	s.want("a negative limit", err, "E2011")

	req := s.request()
	req.Template, req.Snapshot = "", first.ID
	child, err := s.Create(ctx, req)
	if errdefs.CodeOf(err) == "E8004" && os.Getenv("CI") != "true" {
		s.t.Skip("this machine makes no sandboxes from snapshots: ", err)
	}
	if err != nil {
		s.t.Fatal("create from a snapshot:", err)
	}
	s.removeLater(child.ID)
	s.described("create from a snapshot", child, child.ID, req)
	if got := s.read(child); got != "one" {
		s.t.Errorf("the sandbox of a snapshot holds %q", got)
	}
	s.write(child, "three")

	for _, sn := range []*providers.Snapshot{first, second} {
		if err := p.DeleteSnapshot(ctx, sn.ID); err != nil {
			s.t.Error("delete snapshot:", err)
		}
		s.want("delete of a snapshot that is gone", p.DeleteSnapshot(ctx, sn.ID), "E2020")
	}
	req = s.request()
	req.Template, req.Snapshot = "", first.ID
	_, err = s.Create(ctx, req)
	s.want("create from a snapshot that is gone", err, "E2020")
	if got := s.read(child); got != "three" {
		s.t.Errorf("without its snapshot the sandbox holds %q", got)
	}
	for _, id := range []string{"nosuchsnapshot", "", "../etc", "a/b", strings.Repeat("x", 5000), "\x00"} {
		s.want(fmt.Sprintf("delete snapshot %.20q", id), p.DeleteSnapshot(ctx, id), "E2020")
		_, err := p.Snapshot(ctx, id, providers.SnapshotRequest{})
		s.want(fmt.Sprintf("snapshot of %.20q", id), err, "E2020")
	}
}

// take takes a snapshot that the test's end removes, if it is still there.
func (s *suite) take(p providers.Snapshotter, id string, req providers.SnapshotRequest) *providers.Snapshot {
	s.t.Helper()
	sn, err := p.Snapshot(s.t.Context(), id, req)
	if err != nil {
		s.t.Fatal("snapshot:", err)
	}
	s.t.Cleanup(func() {
		if err := p.DeleteSnapshot(context.WithoutCancel(s.t.Context()), sn.ID); err != nil && !errors.Is(err, errdefs.ErrNotFound) && !closed(err) {
			s.t.Error("delete snapshot:", err)
		}
	})
	return sn
}

// snapshotsOf are the ids of a sandbox's snapshots, page by page.
func (s *suite) snapshotsOf(p providers.Snapshotter, id string) []string {
	s.t.Helper()
	var out []string
	req := providers.SnapshotListRequest{SandboxID: id, Limit: 1}
	for range 100 {
		page, err := p.ListSnapshots(s.t.Context(), req)
		if err != nil {
			s.t.Fatal("list snapshots:", err)
		}
		if len(page.Snapshots) > 1 {
			s.t.Errorf("a page of at most 1 has %d snapshots", len(page.Snapshots))
		}
		for _, sn := range page.Snapshots {
			out = append(out, sn.ID)
		}
		if page.Next == "" {
			return out
		}
		req.Token = page.Next
	}
	s.t.Fatal("a list of 100 pages")
	return nil
}

func (s *suite) runtime(sb *providers.Sandbox) *envd.Client {
	s.t.Helper()
	e := sb.Data
	c, err := envd.New(&envd.Options{URL: e.URL, Headers: e.Headers, Token: e.Token.Reveal(), Dial: e.Dial, RootCAs: e.RootCAs})
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

func (s *suite) write(sb *providers.Sandbox, text string) {
	s.t.Helper()
	c := s.runtime(sb)
	defer c.Close()
	if _, err := c.WriteFile(s.t.Context(), kept, strings.NewReader(text), int64(len(text)), nil); err != nil {
		s.t.Fatal("write:", err)
	}
}

func (s *suite) read(sb *providers.Sandbox) string {
	s.t.Helper()
	c := s.runtime(sb)
	defer c.Close()
	body, err := c.ReadFile(s.t.Context(), kept, 0, -1)
	if err != nil {
		s.t.Fatal("read:", err)
	}
	defer body.Close()
	b, err := io.ReadAll(body)
	if err != nil {
		s.t.Fatal("read:", err)
	}
	return string(b)
}
