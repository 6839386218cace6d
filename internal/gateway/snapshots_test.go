package gateway

import (
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/agent-sandbox/sandbox-go/internal/api"
	"github.com/agent-sandbox/sandbox-go/providers"
)

// TestSnapshots follows snapshots through a restart, and tries them with another
// key.
func TestSnapshots(t *testing.T) {
	f := startLocal(t, Options{})
	p := f.provider.(providers.Snapshotter)
	sb := f.create(nil)
	path := "/sandboxes/" + sb.SandboxID + "/snapshots"
	take := func(body string) (s api.Snapshot) {
		t.Helper()
		f.want(f.do("POST", path, body), 201).decode(t, &s)
		return s
	}
	list := func(query, key string) (ids []string, next string) {
		t.Helper()
		r := f.want(f.do("GET", "/snapshots"+query, nil, "X-Api-Key", key), 200)
		var page []api.Snapshot
		r.decode(t, &page)
		for _, s := range page {
			if s.Names == nil {
				t.Errorf("names are null: %s", r.body)
			}
			ids = append(ids, s.SnapshotID)
		}
		return ids, r.Header.Get(api.HeaderNextToken)
	}
	want := func(what string, got []string, want ...string) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}

	f.run(sb, "echo one > file")
	first := take(`{"name":"first one"}`)
	f.run(sb, "echo two > file")
	f.want(f.do("POST", "/sandboxes/"+sb.SandboxID+"/pause", nil), 204)
	second := take(`{}`) // of a paused one
	if f.detail(sb.SandboxID).State != api.StatePaused {
		t.Error("it goes on")
	}
	if len(first.Names) != 1 || first.Names[0] != "first one" || first.SandboxID != sb.SandboxID || len(second.Names) != 0 {
		t.Errorf("%+v, %+v", first, second)
	}
	f.want(f.do("POST", path, ""), 400)
	f.want(f.do("POST", path, `{"name":"a\u0000b"}`), 400)
	f.want(f.do("POST", path, `{"name":"`+strings.Repeat("x", maxSnapshotName+1)+`"}`), 400)
	f.want(f.do("POST", "/sandboxes/nosuchsandbox/snapshots", `{}`), 404)

	other, err := f.s.Keys().Create("other")
	if err != nil {
		t.Fatal(err)
	}
	// What somebody else keeps with the same provider is not ours.
	foreign, err := p.Snapshot(t.Context(), sb.SandboxID, providers.SnapshotRequest{})
	if err != nil {
		t.Fatal(err)
	}
	f.stop()
	f.begin(Options{})

	ids, next := list("", f.key)
	want("list", ids, second.SnapshotID, first.SnapshotID)
	if next != "" {
		t.Errorf("token %q at the last page", next)
	}
	ids, next = list("?limit=1", f.key)
	want("first page", ids, second.SnapshotID)
	ids, next = list("?limit=1&nextToken="+url.QueryEscape(next), f.key)
	want("second page", ids, first.SnapshotID)
	if next != "" {
		t.Errorf("token %q at the last page", next)
	}
	ids, _ = list("?name=first+one", f.key)
	want("by name", ids, first.SnapshotID)
	ids, _ = list("?sandboxID="+sb.SandboxID, f.key)
	want("by sandbox", ids, second.SnapshotID, first.SnapshotID)
	ids, _ = list("?sandboxID=other", f.key)
	want("by another sandbox", ids)
	ids, _ = list("", other.Secret)
	want("with another key", ids)
	for _, q := range []string{"?limit=0", "?limit=x", "?nextToken=x", "?nextToken=%00"} {
		f.want(f.do("GET", "/snapshots"+q, nil), 400)
	}
	create := `{"templateID":"` + first.SnapshotID + `"}`
	f.want(f.do("POST", "/v2/sandboxes", create, "X-Api-Key", other.Secret), 404)
	f.want(f.do("DELETE", "/templates/"+first.SnapshotID, nil, "X-Api-Key", other.Secret), 404)
	f.want(f.do("POST", "/v2/sandboxes", `{"templateID":"`+foreign.ID+`"}`), 404)
	f.want(f.do("DELETE", "/templates/"+foreign.ID, nil), 404)

	r := f.do("POST", "/v2/sandboxes", create)
	made := r.StatusCode != 400 || r.Header.Get(codeHeader) != "E8004" || os.Getenv("CI") == "true"
	var child api.Sandbox
	if made {
		f.want(r, 201).decode(t, &child)
		if child.TemplateID != first.SnapshotID {
			t.Errorf("%+v", child)
		}
		if got := f.run(child, "cat file"); got != "one\n" {
			t.Errorf("the child has %q", got)
		}
	}
	for _, id := range []string{first.SnapshotID, second.SnapshotID + ":default"} {
		f.want(f.do("DELETE", "/templates/"+url.PathEscape(id), nil), 204)
		f.want(f.do("DELETE", "/templates/"+url.PathEscape(id), nil), 404)
	}
	if r := f.want(f.do("POST", "/v2/sandboxes", create), 404); r.Header.Get(codeHeader) != "E2001" {
		t.Errorf("from a snapshot that is gone: %s", r.body)
	}
	if made {
		if got := f.run(child, "cat file"); got != "one\n" {
			t.Errorf("without its snapshot the child has %q", got)
		}
	}
	if err := p.DeleteSnapshot(t.Context(), foreign.ID); err != nil {
		t.Error(err)
	}
}
