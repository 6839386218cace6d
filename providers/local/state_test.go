//go:build linux

package local

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// testRoot is a state directory in a place that openTree accepts.
func testRoot(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

func testTree(t testing.TB) *tree {
	t.Helper()
	tr, err := openTree(testRoot(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tr.close)
	return tr
}

func TestOpenTree(t *testing.T) {
	root := filepath.Join(testRoot(t), "a", "b", strings.Repeat("long", 30), strings.Repeat("name", 30))
	for range 2 { // makes it, then finds it
		tr, err := openTree(root)
		if err != nil {
			t.Fatal(err)
		}
		tr.close()
	}
	for _, d := range []string{"", "local", "local/boxes", "local/bin", "local/ids"} {
		fi, err := os.Lstat(filepath.Join(root, d))
		if err != nil {
			t.Fatal(err)
		}
		if got := fi.Mode().Perm(); got != 0o700 {
			t.Errorf("mode of %q is %o", d, got)
		}
	}
}

// Another user of the machine prepared the place where state is to lie.
func TestOpenTreeRefuses(t *testing.T) {
	for _, c := range []struct {
		name    string
		prepare func(root string) error
	}{
		{"tree is a link", func(root string) error {
			if err := os.Mkdir(root+"/elsewhere", 0o700); err != nil {
				return err
			}
			return os.Symlink(root+"/elsewhere", root+"/local")
		}},
		{"tree is a dangling link", func(root string) error { return os.Symlink(root+"/nothing", root+"/local") }},
		{"tree is a file", func(root string) error { return os.WriteFile(root+"/local", nil, 0o600) }},
		{"tree is open to others", func(root string) error {
			if err := os.Mkdir(root+"/local", 0o700); err != nil {
				return err
			}
			return os.Chmod(root+"/local", 0o755)
		}},
		{"part is a link", func(root string) error {
			if err := os.Mkdir(root+"/local", 0o700); err != nil {
				return err
			}
			return os.Symlink("/tmp", root+"/local/boxes")
		}},
		{"root can be written by all", func(root string) error { return os.Chmod(root, 0o777) }},
		{"tree belongs to another user", func(root string) error {
			if err := os.Mkdir(root+"/local", 0o700); err != nil {
				return err
			}
			return os.Chown(root+"/local", 12345, 12345)
		}},
		{"root belongs to another user", func(root string) error {
			return os.Chown(root, 12345, 12345)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := testRoot(t)
			err := c.prepare(root)
			if os.Geteuid() != 0 && errors.Is(err, os.ErrPermission) {
				t.Skip("only root can give a directory away")
			}
			if err != nil {
				t.Fatal(err)
			}
			tr, err := openTree(root)
			if err == nil {
				tr.close()
				t.Fatal("accepted")
			}
			if !errors.Is(err, errdefs.ErrSettings) || !strings.Contains(err.Error(), root) {
				t.Errorf("error is %v; want E8007 naming the path", err)
			}
		})
	}
}

// A link above the state directory, as /home often is, is no attack.
func TestOpenTreeBelowLink(t *testing.T) {
	base := testRoot(t)
	if err := os.Mkdir(base+"/real", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("real", base+"/link"); err != nil {
		t.Fatal(err)
	}
	tr, err := openTree(base + "/link/state")
	if err != nil {
		t.Fatal(err)
	}
	tr.close()
	if _, err := os.Stat(base + "/real/state/local/boxes"); err != nil {
		t.Error(err)
	}
}

// Files are replaced as a whole, links in their place are not followed.
func TestFolderFiles(t *testing.T) {
	tr := testTree(t)
	victim := filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(victim, []byte("keep"), 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(tr.path, "boxes", "f")
	if err := os.Symlink(victim, link); err != nil {
		t.Fatal(err)
	}
	if _, err := tr.boxes.read("f", 100); err == nil {
		t.Error("a link was read")
	}
	if _, err := tr.boxes.tryLock("f"); err == nil {
		t.Error("a link was locked")
	}
	if err := tr.boxes.write("f", []byte("new")); err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(victim); string(b) != "keep" {
		t.Errorf("the target of the link holds %q", b)
	}
	if b, err := tr.boxes.read("f", 3); err != nil || string(b) != "new" {
		t.Errorf("read %q, %v", b, err)
	}
	if _, err := tr.boxes.read("f", 2); err == nil {
		t.Error("more than the limit was read")
	}
	if names, _ := tr.boxes.allNames(); len(names) != 1 {
		t.Errorf("left behind: %q", names)
	}
}

func TestClear(t *testing.T) {
	tr := testTree(t)
	base := filepath.Join(tr.path, "boxes")
	for _, d := range []string{"a/b/c", "d"} {
		if err := os.MkdirAll(filepath.Join(base, d), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(base, d, "f"), nil, 0o400); err != nil {
			t.Fatal(err)
		}
	}
	outside := t.TempDir()
	if err := os.Symlink(outside, filepath.Join(base, "a", "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(base, "keep"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := tr.boxes.clear("keep"); err != nil {
		t.Fatal(err)
	}
	if names, _ := tr.boxes.allNames(); len(names) != 1 || names[0] != "keep" {
		t.Errorf("left: %q", names)
	}
	if _, err := os.Stat(outside); err != nil {
		t.Error("a link was followed:", err)
	}
}
