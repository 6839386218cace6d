package gateway

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/api"
)

// filter encodes a metadata filter the way SDKs do: each part, the pairs, and
// all of it once more as a query value.
func filter(m map[string]string) string {
	q := url.Values{}
	for k, v := range m {
		q.Set(strings.ReplaceAll(url.QueryEscape(k), "+", "%20"), strings.ReplaceAll(url.QueryEscape(v), "+", "%20"))
	}
	return url.QueryEscape(q.Encode())
}

func TestMetadataEncoding(t *testing.T) {
	const seen = "a%252520b%3Dc%252526d" // on the wire, for {"a b": "c&d"}
	if got := filter(map[string]string{"a b": "c&d"}); got != seen {
		t.Fatalf("the test encodes %q", got)
	}
	for _, m := range []map[string]string{
		{"a b": "c&d"}, {"a": "1", "b": "2"}, {"": ""}, {"a%b": "c%20d"}, {"ü": "日本"}, {"a+b": "c+d"}, {"a=b": "=&=%"}, {"x": ""},
	} {
		q, err := url.ParseQuery("metadata=" + filter(m))
		if err != nil {
			t.Fatal(err)
		}
		got, err := parseMetadata(q.Get("metadata"))
		if err != nil || !maps.Equal(got, m) {
			t.Errorf("%q: %q, %v", m, got, err)
		}
	}
	for _, bad := range []string{"a=%25", "%", "a=%2525zz%25", "a=1&a=2", "a;b=c"} {
		if m, err := parseMetadata(bad); err == nil {
			t.Errorf("%q: %q", bad, m)
		}
	}
}

func FuzzMetadata(f *testing.F) {
	f.Add("a%2520b=c%2526d")
	f.Add("a=1&b=2&a=1")
	f.Fuzz(func(t *testing.T, value string) {
		m, err := parseMetadata(value)
		if err != nil {
			return
		}
		q, err := url.ParseQuery("metadata=" + filter(m))
		if err != nil {
			t.Fatal(err)
		}
		again, err := parseMetadata(q.Get("metadata"))
		if err != nil || !maps.Equal(again, m) {
			t.Errorf("%q: %q then %q, %v", value, m, again, err)
		}
	})
}

func FuzzPosition(f *testing.F) {
	f.Add(position{1234567890, "abc"}.token())
	f.Add("")
	f.Fuzz(func(t *testing.T, token string) {
		p, err := parsePosition(token)
		if err != nil {
			return
		}
		again, err := parsePosition(p.token())
		if err != nil || *again != *p {
			t.Errorf("%+v then %+v, %v", p, again, err)
		}
	})
}

// page fetches one page and says what the headers say.
func (f *fixture) page(query string) (ids []string, next string, running string) {
	f.t.Helper()
	r := f.want(f.do("GET", "/v2/sandboxes?"+query, nil), 200)
	var list []api.ListedSandbox
	r.decode(f.t, &list)
	for _, sb := range list {
		ids = append(ids, sb.SandboxID)
	}
	return ids, r.Header.Get(api.HeaderNextToken), r.Header.Get(api.HeaderTotalRunning)
}

// pages fetches all.
func (f *fixture) pages(query string, each int) []string {
	f.t.Helper()
	var all []string
	next := ""
	for {
		ids, after, _ := f.page(query + "&nextToken=" + next)
		if len(ids) > each {
			f.t.Fatalf("a page of %d", len(ids))
		}
		all = append(all, ids...)
		if after == "" {
			return all
		}
		if len(ids) != each {
			f.t.Fatalf("a page of %d that is not the last", len(ids))
		}
		next = after
	}
}

func TestList(t *testing.T) {
	f := start(t, t.TempDir(), Options{Provider: newFake(), Templates: map[string]string{"mine": "base"}})
	const n = 250
	var all, even, paused []string
	var middle time.Time
	for i := range n {
		body := map[string]any{"metadata": map[string]string{"n": fmt.Sprint(i), "even": fmt.Sprint(i%2 == 0), "k&": "v ="}}
		if i == 0 {
			body["templateID"] = "mine"
		}
		sb := f.create(body)
		all = append(all, sb.SandboxID)
		if i%2 == 0 {
			even = append(even, sb.SandboxID)
		}
		if i%5 == 0 {
			f.want(f.do("POST", "/sandboxes/"+sb.SandboxID+"/pause", nil), 204)
			paused = append(paused, sb.SandboxID)
		}
		if i == 100 {
			middle = f.s.boxes[sb.SandboxID].snapshot().CreatedAt
		}
	}
	newest := func(ids []string) []string { c := slices.Clone(ids); slices.Reverse(c); return c }
	running := slices.DeleteFunc(slices.Clone(all), func(id string) bool { return slices.Contains(paused, id) })
	for _, c := range []struct {
		name, query string
		each        int
		want        []string
	}{
		{"all", "limit=100", 100, newest(all)},
		{"default limit", "", 100, newest(all)},
		{"pages that fit", "limit=50", 50, newest(all)},
		{"oldest first", "order=asc&limit=99", 99, all},
		{"paused", "state=paused&limit=7", 7, newest(paused)},
		{"running", "state=running&limit=100", 100, newest(running)},
		{"both states", "state=running,paused&limit=100", 100, newest(all)},
		{"both states, repeated", "state=running&state=paused", 100, newest(all)},
		{"metadata", "limit=60&metadata=" + filter(map[string]string{"even": "true", "k&": "v ="}), 60, newest(even)},
		{"metadata of one", "metadata=" + filter(map[string]string{"n": "7"}), 100, all[7:8]},
		{"metadata of none", "metadata=" + filter(map[string]string{"n": "7", "even": "true"}), 100, nil},
		{"a part of the value", "metadata=" + filter(map[string]string{"n": ""}), 100, nil},
		{"the gateway's own marks", "metadata=" + filter(map[string]string{markGateway: f.s.store.ident}), 100, nil},
		{"template by alias", "template=mine", 100, all[:1]},
		{"template by id", "template=base&limit=100", 100, newest(all)},
		{"no such template", "template=nope", 100, nil},
		{"started after", "order=asc&startedAfter=" + url.QueryEscape(middle.Format(time.RFC3339Nano)), 100, all[101:]},
	} {
		if got := f.pages(c.query, c.each); !slices.Equal(got, c.want) {
			t.Errorf("%s: %d sandboxes, want %d", c.name, len(got), len(c.want))
		}
	}
	if _, _, total := f.page("limit=1&state=paused"); total != fmt.Sprint(len(running)) {
		t.Errorf("total running %s, want %d", total, len(running))
	}
	for _, bad := range []string{"limit=0", "limit=101", "limit=x", "state=dead", "order=up", "startedAfter=now", "nextToken=x", "nextToken=" + strings.Repeat("a", 300), "metadata=%25"} {
		f.want(f.do("GET", "/v2/sandboxes?"+bad, nil), 400)
	}
	// A page starts where the one before ended, whatever happened in between.
	first, next, _ := f.page("limit=100")
	f.create(nil)
	f.want(f.do("DELETE", "/sandboxes/"+first[99], nil), 204)
	second, _, _ := f.page("limit=100&nextToken=" + next)
	if !slices.Equal(second, newest(all)[100:200]) {
		t.Error("the second page is not what follows the first")
	}
	// v1: running ones only, on one page.
	var v1 []api.ListedSandbox
	f.want(f.do("GET", "/sandboxes?metadata="+filter(map[string]string{"k&": "v ="}), nil), 200).decode(t, &v1)
	want := slices.DeleteFunc(slices.Clone(running), func(id string) bool { return id == first[99] })
	if len(v1) != len(want) {
		t.Errorf("v1 lists %d, want %d", len(v1), len(want))
	}
}

// A sandbox that ended by itself is not listed.
func TestListOfTheDead(t *testing.T) {
	p := newFake()
	f := start(t, t.TempDir(), Options{Provider: p})
	a, b := f.create(nil), f.create(nil)
	p.mu.Lock()
	delete(p.boxes, a.SandboxID)
	p.mu.Unlock()
	ids, _, total := f.page("")
	if !slices.Equal(ids, []string{b.SandboxID}) || total != "1" {
		t.Errorf("%q, total %s", ids, total)
	}
}
