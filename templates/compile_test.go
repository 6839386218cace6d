package templates

import (
	"os"
	"path/filepath"
	"testing"
)

func TestCompile(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"base/template.yaml": "name: base-one\ncopy_files: [\"lib:/lib\", \"lib/a.txt:/a\"]\n", "base/lib/a.txt": "a", "base/other": "x",
		"top/template.yaml": "name: top\nbase: {from: ../base}\ncopy_files: [\"t.txt:/t\"]\n", "top/t.txt": "t",
	})
	t.Setenv("TMPDIR", t.TempDir())
	o := &ResolveOptions{Dir: dir, CacheDir: t.TempDir()}
	one, err := Compile(t.Context(), "./base", o)
	if err != nil || one.Dir != filepath.Join(dir, "base") || one.Close() != nil {
		t.Fatalf("%+v, %v", one, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "base/other")); err != nil {
		t.Errorf("Close removed a folder that is not its own: %v", err)
	}
	c, err := Compile(t.Context(), "./top", o)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range c.Template.Build {
		if _, err := os.Stat(filepath.Join(c.Dir, s.Copy.Src)); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(filepath.Join(c.Dir, ".base/1/other")); err == nil {
		t.Error("what no step copies was copied")
	}
	if err := c.Close(); err != nil || c.Close() != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(filepath.Join(os.TempDir(), "*")); len(left) != 0 {
		t.Errorf("left behind: %q", left)
	}
}
