//go:build linux

package local

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/agent-sandbox/sandbox-go/providers"
)

func FuzzParsePageToken(f *testing.F) {
	f.Add("")
	f.Add(pageTokenOf(savedConfig{ID: sandboxID("a")}))
	f.Add("MTIuLi4v")
	f.Fuzz(func(t *testing.T, token string) {
		p, err := parsePageToken(token)
		if err == nil && p.id != "" && checkID("", p.id) != nil {
			t.Errorf("%q gives the id %q", token, p.id)
		}
	})
}

// One sandbox whose notes are damaged does not hide the others.
func TestListBesideDamage(t *testing.T) {
	p := testProvider(t)
	good, bad := create(t, p, providers.CreateRequest{}), create(t, p, providers.CreateRequest{})
	tr, done, err := p.begin(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	found, err := filepath.Glob(filepath.Join(tr.path, "*", bad.ID, fileConfig))
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	whole, err := os.ReadFile(found[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(found[0], whole[:len(whole)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	page, err := p.List(t.Context(), providers.ListRequest{})
	if err != nil || len(page.Sandboxes) != 1 || page.Sandboxes[0].ID != good.ID {
		t.Errorf("got %+v, %v", page, err)
	}
	if err := os.WriteFile(found[0], whole, 0o600); err != nil {
		t.Fatal(err)
	}
}
