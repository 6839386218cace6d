package templates

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
)

// Whatever the file, Parse gives a good template or problems inside the file.
func FuzzParse(f *testing.F) {
	archives, _ := filepath.Glob("testdata/read/*.txtar")
	for _, name := range archives {
		ar, err := txtar.ParseFile(name)
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range ar.Files {
			if strings.HasSuffix(file.Name, ".yaml") {
				f.Add(file.Data)
			}
		}
	}
	for _, s := range []string{"a: &a [*a]", "- - - -", "{{{{", "? - ?", "a: !!binary x", "%YAML 1.2\n---\nname: x", "name: |\n", "a: >\n\t", "'"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := Parse(data, "f.yaml")
		if err != nil {
			bad, ok := errors.AsType[*Invalid](err)
			if !ok || len(bad.Problems) == 0 {
				t.Fatalf("error %v has no problems", err)
			}
			lines := strings.Count(strings.ReplaceAll(string(data), "\r", "\n"), "\n") + 2
			for _, p := range bad.Problems {
				if p.Line > lines || p.Line < 0 || p.Col < 0 || p.Message == "" {
					t.Fatalf("problem %+v of a file with %d lines", p, lines)
				}
			}
			return
		}
		if err := Validate(m); err != nil {
			t.Fatalf("a template that was read is not valid: %v", err)
		}
		if d := cmp.Diff(m, m.Clone()); d != "" {
			t.Fatalf("the stored form differs:\n%s", d)
		}
		if text, err := Dockerfile(m); err == nil && !strings.HasPrefix(text, "FROM ") {
			t.Fatalf("Dockerfile %q", text)
		}
	})
}

// Files that nest without end, or are large, are refused soon.
func TestParseBounds(t *testing.T) {
	for name, text := range map[string]string{
		"flow":     "a: " + strings.Repeat("[", 100_000),
		"maps":     "a: " + strings.Repeat("{a: ", 100_000),
		"entries":  strings.Repeat("- ", 100_000) + "x",
		"keys":     strings.Repeat("? ", 100_000) + "x",
		"indented": indented(1200),
		"many":     strings.Repeat("a: 1\n", 100_000),
		"large":    "a: " + strings.Repeat("x", maxFile),
		"not text": "name: \xff",
	} {
		_, err := Parse([]byte(text), "f.yaml")
		bad, ok := errors.AsType[*Invalid](err)
		if !ok || len(bad.Problems) != 1 {
			t.Errorf("%s: %.200v", name, err)
		}
	}
	if _, err := Parse([]byte("\ufeffname: x\r\nports: [80]\r\n"), "f.yaml"); err != nil {
		t.Errorf("a mark of order and lines of Windows: %v", err)
	}
}

func indented(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(strings.Repeat(" ", i) + "a:\n")
	}
	return b.String()
}

// A folder of this machine does not lead out of itself.
func TestLoadLinks(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"out/secret": "x", "in/template.yaml": "name: x\ncopy_files: [\"secret:/s\"]\n"})
	if err := os.Symlink("../out/secret", filepath.Join(dir, "in/secret")); err != nil {
		t.Fatal(err)
	}
	if m, err := Load(filepath.Join(dir, "in")); err == nil {
		t.Errorf("a link that leads out was taken: %+v", m)
	}
	if err := os.WriteFile(filepath.Join(dir, "out/template.yaml"), []byte("name: x\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "linked"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../out/template.yaml", filepath.Join(dir, "linked/template.yaml")); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(filepath.Join(dir, "linked")); err == nil {
		t.Error("a template file that is elsewhere was taken")
	}
}
