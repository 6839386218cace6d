//go:build linux

package local

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// What is removed is told, once, also what the opening of the state directory
// removes.
func TestCollectTells(t *testing.T) {
	state := t.TempDir()
	open := func() *Provider {
		t.Helper()
		p, err := New(providers.Config{StateDir: state, Settings: map[string]string{"pool": "0"}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close() })
		return p
	}
	p := open()
	if got, err := p.Collect(t.Context()); err != nil || len(got) > 0 {
		t.Fatalf("of a new directory: %v, %v", got, err)
	}
	long := time.Now().Add(-2 * storeKeep)
	hex := func(c string) string { return strings.Repeat(c, 64) }
	fill := func() {
		t.Helper()
		dir := filepath.Join(state, "local")
		var errs []error
		for _, d := range []string{"boxes/aaaaaaaaaaaaaaaaaaaa", "layers/" + newPrefix + hex("c"), "snapshots/" + newPrefix + "half"} {
			errs = append(errs, os.MkdirAll(filepath.Join(dir, d), 0o700))
		}
		for _, f := range []string{"boxes/aaaaaaaaaaaaaaaaaaaa/lock", "bin/" + hex("d"), "images/" + hex("e") + ".json", "images/layers/" + hex("f") + ".json", "ids/" + leaseName(3)} {
			f = filepath.Join(dir, f)
			errs = append(errs, os.WriteFile(f, nil, 0o600), os.Chtimes(f, long, long))
		}
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	want := []providers.Removed{
		{Kind: providers.RemovedSandbox, ID: "aaaaaaaaaaaaaaaaaaaa"}, {Kind: providers.RemovedIDs, ID: leaseName(3)}, {Kind: providers.RemovedSnapshot, ID: "half"},
		{Kind: providers.RemovedLayer, ID: hex("c")}, {Kind: providers.RemovedExecutable, ID: hex("d")},
		{Kind: providers.RemovedImage, ID: hex("e")}, {Kind: providers.RemovedImageLayer, ID: hex("f")},
	}
	for _, opened := range []bool{true, false} {
		fill()
		if !opened {
			p = open()
		}
		got, err := p.Collect(t.Context())
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("opened before: %v: %v, %v\nwant %v", opened, got, err, want)
		}
		if got, err := p.Collect(t.Context()); err != nil || len(got) > 0 {
			t.Errorf("again: %v, %v", got, err)
		}
	}
}

// The owner of a state directory cannot remove what belongs to sub-ids; collecting
// does, also after the attempt.
func TestOwnerRemovesState(t *testing.T) {
	if os.Geteuid() == 0 || mappingKind() == mapSingle {
		t.Skip("for an ordinary user with sub-ids")
	}
	needIsolation(t)
	state := t.TempDir()
	p, err := New(providers.Config{StateDir: state, Settings: map[string]string{"pool": "0"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { p.Close() }()
	m := &model.Template{Name: "kept", Build: runSteps("echo x > /root/f")}
	if _, err := p.BuildTemplate(t.Context(), providers.TemplateBuild{Model: m}); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(state, "local")
	if err := os.RemoveAll(filepath.Join(dir, templatesDir)); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(dir, layersDir)); !errors.Is(err, os.ErrPermission) {
		t.Errorf("the layers were removed by their owner: %v; docs/local.md says otherwise", err)
	}
	p.Close()
	if p, err = New(providers.Config{StateDir: state, Settings: map[string]string{"pool": "0"}}); err != nil {
		t.Fatal(err)
	}
	removed, err := p.Collect(t.Context())
	if err != nil || len(removed) != 1 || removed[0].Kind != providers.RemovedLayer {
		t.Errorf("removed %v, %v", removed, err)
	}
	p.Close()
	if err := os.RemoveAll(dir); err != nil {
		t.Error(err)
	}
}
