//go:build linux

package local

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// TestStateRemoved removes the state directory below living sandboxes, one of them
// paused: who made them can still end them, and nothing runs on.
func TestStateRemoved(t *testing.T) {
	root := testRoot(t)
	p := openProvider(t, root)
	var ids, spaces []string
	for i := range 4 {
		sb := create(t, p, providers.CreateRequest{Detached: i == 1})
		ids, spaces = append(ids, sb.ID), append(spaces, namespaceOf(t, root, sb.ID))
	}
	for _, id := range ids[2:] {
		if err := p.Pause(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.RemoveAll(filepath.Join(root, "local")); err != nil {
		t.Fatal(err)
	}
	if page, err := p.List(t.Context(), providers.ListRequest{}); err != nil || len(page.Sandboxes) > 0 {
		t.Errorf("list: %+v, %v", page, err)
	}
	if _, err := p.Get(t.Context(), ids[0]); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("get: %v", err)
	}
	if _, err := p.Create(t.Context(), providers.CreateRequest{}); errdefs.CodeOf(err) != "E2000" || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("create: code %q, %v", errdefs.CodeOf(err), err)
	}
	for i, id := range ids[:3] {
		if err := p.Kill(t.Context(), id); err != nil {
			t.Error("kill:", err)
		}
		if left := processesIn(spaces[i]); len(left) > 0 {
			t.Errorf("sandbox %d is alive: %q", i, left)
		}
		if err := p.Kill(t.Context(), id); !errors.Is(err, errdefs.ErrNotFound) {
			t.Errorf("kill once more: %v", err)
		}
	}
	if err := p.Close(); err != nil {
		t.Error("close:", err)
	}
	if left := processesIn(spaces[3]); len(left) > 0 {
		t.Errorf("alive after close: %q", left)
	}
	checkNoGroups(t, p.groups(), ids)
	q := openProvider(t, root) // begins anew
	if err := q.Kill(t.Context(), create(t, q, providers.CreateRequest{}).ID); err != nil {
		t.Error(err)
	}
}

// TestStateReplaced puts a link where the state directory was. Who has it open goes
// on in the directory that it opened; nobody opens the link.
func TestStateReplaced(t *testing.T) {
	root := testRoot(t)
	p := openProvider(t, root)
	a, b := create(t, p, providers.CreateRequest{}), create(t, p, providers.CreateRequest{Detached: true})
	moved := filepath.Join(root, "moved")
	trap := filepath.Join(root, "trap")
	if err := errors.Join(os.Rename(filepath.Join(root, "local"), moved), os.MkdirAll(filepath.Join(trap, "boxes", a.ID), 0o700),
		os.Symlink("trap", filepath.Join(root, "local"))); err != nil {
		t.Fatal(err)
	}
	q := openProvider(t, root)
	if _, err := q.List(t.Context(), providers.ListRequest{}); !errors.Is(err, errdefs.ErrSettings) {
		t.Errorf("a link was opened: %v", err)
	}
	if page, err := p.List(t.Context(), providers.ListRequest{}); err != nil || len(page.Sandboxes) != 2 {
		t.Errorf("list: %+v, %v", page, err)
	}
	for _, id := range []string{a.ID, b.ID} {
		if err := p.Kill(t.Context(), id); err != nil {
			t.Error("kill:", err)
		}
	}
	for dir, want := range map[string]int{moved: 0, trap: 1} {
		if names, err := os.ReadDir(filepath.Join(dir, "boxes")); err != nil || len(names) != want {
			t.Errorf("%s: %v, %v", dir, names, err)
		}
	}
}

// TestStateNotWritable takes the right to write away from the user.
func TestStateNotWritable(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root can write everywhere")
	}
	root := testRoot(t)
	p := openProvider(t, root)
	sb := create(t, p, providers.CreateRequest{})
	boxes := filepath.Join(root, "local", "boxes")
	if err := os.Chmod(boxes, 0o500); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Chmod(boxes, 0o700) })
	if _, err := p.Create(t.Context(), providers.CreateRequest{}); errdefs.CodeOf(err) != "E2000" || !errors.Is(err, fs.ErrPermission) {
		t.Errorf("create: code %q, %v", errdefs.CodeOf(err), err)
	}
	if page, err := p.List(t.Context(), providers.ListRequest{}); err != nil || len(page.Sandboxes) != 1 {
		t.Errorf("list: %+v, %v", page, err)
	}
	ns := namespaceOf(t, root, sb.ID)
	if err := p.Kill(t.Context(), sb.ID); errdefs.CodeOf(err) != "E2000" || !errors.Is(err, fs.ErrPermission) {
		t.Errorf("kill: code %q, %v", errdefs.CodeOf(err), err)
	}
	if left := processesIn(ns); len(left) > 0 {
		t.Errorf("alive: %q", left)
	}
	if page, err := p.List(t.Context(), providers.ListRequest{}); err != nil || len(page.Sandboxes) != 0 {
		t.Errorf("list: %+v, %v", page, err)
	}
	if err := os.Chmod(boxes, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := p.GC(t.Context()); err != nil {
		t.Error(err)
	}
	checkNothingLeft(t, root)
}
