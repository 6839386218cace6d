package templates

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

const docsFile = "../docs/templates.md"

// The reference in the docs is what the reader reads; the test rewrites it with
// -update.
func TestDocs(t *testing.T) {
	data, err := os.ReadFile(docsFile)
	if err != nil {
		t.Fatal(err)
	}
	got := string(data)
	var d draft
	var builtins strings.Builder
	builtins.WriteString("| name | what | programs | image |\n|---|---|---|---|\n")
	for _, name := range Builtin() {
		files, _ := builtin(name)
		m, err := LoadFS(files, name)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&builtins, "| `%s` | %s | %s | `%s` |\n", name, m.Description, strings.Join(m.Requires, ", "), m.Base.Image)
	}
	for name, text := range map[string]string{"flat": table(d.flat()), "nested": table(d.nested()), "catalog": table(indexFields(&Index{})), "builtin": builtins.String()} {
		begin := "<!-- " + name + " -->\n"
		before, rest, ok := strings.Cut(got, begin)
		_, after, ok2 := strings.Cut(rest, "<!-- end -->")
		if !ok || !ok2 {
			t.Fatalf("%s has no place for %s", docsFile, name)
		}
		got = before + begin + text + "<!-- end -->" + after
	}
	if got == string(data) {
		return
	}
	if !*update {
		t.Fatalf("%s is not what the reader reads; run go test ./templates -run TestDocs -update", docsFile)
	}
	if err := os.WriteFile(docsFile, []byte(got), 0o644); err != nil {
		t.Fatal(err)
	}
}

func table(fields []field) string {
	var b strings.Builder
	b.WriteString("| key | type | meaning |\n|---|---|---|\n")
	var walk func(prefix string, fields []field)
	walk = func(prefix string, fields []field) {
		for _, f := range fields {
			fmt.Fprintf(&b, "| `%s%s` | %s | %s |\n", prefix, f.key, f.typ, f.doc)
			next := prefix + f.key
			switch {
			case strings.HasPrefix(f.typ, "list") && !strings.HasSuffix(f.typ, "or a mapping"):
				next += "[]."
			case strings.Contains(f.typ, "by name"):
				next += ".*."
			default:
				next += "."
			}
			walk(next, f.sub)
		}
	}
	walk("", fields)
	return b.String()
}

var yamlBlock = regexp.MustCompile("(?s)```yaml\n(.*?)```")

// Examples of the docs are read as they are written.
func TestDocsExamples(t *testing.T) {
	data, err := os.ReadFile(docsFile)
	if err != nil {
		t.Fatal(err)
	}
	blocks := yamlBlock.FindAllSubmatch(data, -1)
	if len(blocks) < 2 {
		t.Fatalf("%d examples", len(blocks))
	}
	for _, b := range blocks {
		if _, err := Parse(b[1], "docs"); err != nil {
			t.Errorf("%v in\n%s", err, b[1])
		}
	}
}

// Every documented key says what it means, and every key is documented once.
func TestFieldsAreDocumented(t *testing.T) {
	var d draft
	for _, form := range [][]field{d.flat(), d.nested(), indexFields(&Index{})} {
		var walk func(prefix string, fields []field)
		walk = func(prefix string, fields []field) {
			seen := map[string]bool{}
			for _, f := range fields {
				if f.doc == "" || f.typ == "" || f.read == nil || seen[f.key] {
					t.Errorf("key %s%s: type %q, doc %q, twice %v", prefix, f.key, f.typ, f.doc, seen[f.key])
				}
				seen[f.key] = true
				walk(prefix+f.key+".", f.sub)
			}
		}
		walk("", form)
	}
}
