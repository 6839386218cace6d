package config

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func TestParseEnv(t *testing.T) {
	for _, c := range []struct {
		name, in string
		want     []envLine
	}{
		{"empty", "", nil},
		{"plain", "A=1\nB = two words \r\n", []envLine{{"A", "1", 1, ""}, {"B", "two words", 2, ""}}},
		{"export", "export A=1\nexport\tB=2\nexportC=3", []envLine{{"A", "1", 1, ""}, {"B", "2", 2, ""}, {"exportC", "3", 3, ""}}},
		{"comments", "# x=1\n\nA=1 # c\nB=1#c\nC=#c\nD=a \t#c", []envLine{{"A", "1", 3, ""}, {"B", "1#c", 4, ""}, {"C", "", 5, ""}, {"D", "a", 6, ""}}},
		{"byte order mark", "\ufeffA=1", []envLine{{"A", "1", 1, ""}}},
		{"single quotes", `A='a\n$B "x" # y' # c`, []envLine{{"A", `a\n$B "x" # y`, 1, ""}}},
		{"double quotes", `A="a\n\t\"\\\$x \q"`, []envLine{{"A", "a\n\t\"\\$x \\q", 1, ""}}},
		{"several lines", "A=\"one\ntwo\"\nB=2\nC='x\r\ny' # c\nD=4", []envLine{{"A", "one\ntwo", 1, ""}, {"B", "2", 3, ""}, {"C", "x\ny", 4, ""}, {"D", "4", 6, ""}}},
		{"quotes without end", "A=\"one\nB=2", []envLine{{"A", "", 1, "its quotes don't end"}, {"B", "2", 2, ""}}},
		{"after quotes", "A='one'two\nB=2", []envLine{{"A", "", 1, "there is something after its quotes"}, {"B", "2", 2, ""}}},
		{"nothing is expanded", "A=$B ${C} $(d)", []envLine{{"A", "$B ${C} $(d)", 1, ""}}},
		{"not ours", "1A=1\nA-B=1\n=1\nA\nif [ x ]; then\n", nil},
		{"equals", "A=b=c", []envLine{{"A", "b=c", 1, ""}}},
	} {
		if d := cmp.Diff(c.want, parseEnv(c.in), cmp.AllowUnexported(envLine{})); d != "" {
			t.Errorf("%s: %s", c.name, d)
		}
	}
	f := envFile{lines: parseEnv("A=1\nA=2")}
	if v, ok := f.lookup("A"); v != "2" || !ok {
		t.Errorf("the last line counts, got %q", v)
	}
}

// Whatever the text, lines and names are sound, and what is quoted is found
// again.
func FuzzParseEnv(f *testing.F) {
	for _, s := range []string{"A=1", "export A='x\ny'\nB=\"\\\"\"", "\ufeff# c\r\nA = b # c", "A=\"", "A='x'y\n'"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		last, lines := 0, strings.Count(text, "\n")+1
		for _, l := range parseEnv(text) {
			if !isVariable(l.name) || l.line <= last || l.line > lines || l.bad != "" && l.value != "" {
				t.Errorf("%+v after line %d of %d", l, last, lines)
			}
			last = l.line
		}
		if utf8.ValidString(text) && !strings.Contains(text, "\r") && len(text) < 10000 {
			esc := strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text)
			got := parseEnv("# first\nX=\"" + esc + "\" # c\nY='y'")
			if len(got) != 2 || got[0].value != text || got[1].value != "y" || got[1].line != lines+2 {
				t.Errorf("%q came back as %+v", text, got)
			}
		}
	})
}

// No file makes the parser fail in another way than by an error, and lines are
// those of the file.
func FuzzParseTOML(f *testing.F) {
	for _, s := range []string{"a = 1\n[b]\nc.d = {e = 'x', f.g = 2}\n", "[[a]]\nb=1", "a = = 1", "\"q.x\".y = \"\"\"\nz\"\"\"", "[a.b.c.d.e.f.g.h.i]"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		items, err := parseTOML(data)
		if err != nil {
			return
		}
		lines := strings.Count(string(data), "\n") + 1
		for _, it := range items {
			if len(it.path) == 0 || it.line < 0 || it.line > lines {
				t.Errorf("%+v in %d lines", it, lines)
			}
			if it.line == 0 && len(it.path) <= maxDepth {
				t.Errorf("%+v has no line", it)
			}
		}
	})
}
