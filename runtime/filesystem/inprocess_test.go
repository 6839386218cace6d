//go:build linux

package filesystem

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestHolds: a folder is found by what it is, however it is named.
func TestHolds(t *testing.T) {
	dir := t.TempDir()
	for _, p := range []string{"/a/b/c", "/other"} {
		if err := os.MkdirAll(dir+p, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(dir+"/a/b", dir+"/l"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what, keep string
		want       bool
	}{
		{"/a", "/a/b/c", true}, {"/a/b/c", "/a/b/c", true}, {"", "/a/b/c", true}, {"/a", "/l/c", true}, {"/a/b", "/l", true},
		{"/a/b/c", "/a/b", false}, {"/other", "/a/b/c", false}, {"/l", "/l/c", false}, {"/a", "/none", false},
	} {
		var st unix.Stat_t
		if err := unix.Lstat(dir+c.what, &st); err != nil {
			t.Fatal(err)
		}
		if got := holds(&st, dir+c.keep); got != c.want {
			t.Errorf("%q holds %q: %v", c.what, c.keep, got)
		}
	}
	var root unix.Stat_t
	if err := unix.Lstat("/", &root); err != nil {
		t.Fatal(err)
	}
	if !holds(&root, dir) {
		t.Error("the root holds nothing")
	}
}

// TestRefuseRoot asks the check alone: asking for a removal would do harm where the
// check is broken.
func TestRefuseRoot(t *testing.T) {
	for p, refused := range map[string]bool{"/": true, "/a": false, "/a/b": false} {
		if err := refuseRoot(p); (err != nil) != refused {
			t.Errorf("%q: %v", p, err)
		}
	}
}
