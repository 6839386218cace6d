package command

import (
	"context"
	"encoding/json"
	"errors"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
	"github.com/agent-sandbox/sandbox-go/templates/model"
)

func textArgs(names ...string) []model.Arg {
	var out []model.Arg
	for _, n := range names {
		out = append(out, model.Arg{Name: n})
	}
	return out
}

func mustCompile(t *testing.T, c model.Command) *entry {
	t.Helper()
	e, err := compile("c", c, "")
	if err != nil {
		t.Fatalf("%q: %v", c.Run, err)
	}
	return e
}

// hostile is data that would be something else wherever text is put together.
var hostile = []string{
	"", " ", "a b", "'", `"`, `\`, "$(touch owned)", "`touch owned`", "; touch owned", "{b}", "${HOME}", "*", "~", "-n", "--",
	"a\nb", "'\"'\"", "\\'; touch owned #", "é\xff", "$((1+1))", "&& touch owned", "\t", "!!", "%s",
}

// A value is (part of) one argument, whatever is in it.
func TestWords(t *testing.T) {
	for line, want := range map[string][]string{
		"echo":                        {"echo"},
		"  echo  a\tb\n":              {"echo", "a", "b"},
		"echo {a}":                    {"echo", "A"},
		"echo {a}{b} --x={a}":         {"echo", "AB", "--x=A"},
		`echo 'x {a}' "y {b}"`:        {"echo", "x A", "y B"},
		`echo '' "" a'b'"c"`:          {"echo", "", "", "abc"},
		`echo \' \\ "\"\x" '\'`:       {"echo", "'", `\`, `"\x`, `\`},
		`echo \{a} '{a} {1}' ${HOME}`: {"echo", "{a}", "A {1}", "${HOME}"},
		`awk '{print $1}' {a}`:        {"awk", "{print $1}", "A"},
	} {
		e := mustCompile(t, model.Command{Run: line, Args: textArgs("a", "b")})
		if got := e.program.arguments(map[string]any{"a": "A", "b": "B"}); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
	e := mustCompile(t, model.Command{Run: "p {a} --x={b} '{a}{b}'", Args: textArgs("a", "b")})
	for _, v := range hostile {
		want := []string{"p", v, "--x={a}", v + "{a}"}
		if got := e.program.arguments(map[string]any{"a": v, "b": "{a}"}); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", v, got, want)
		}
	}
	// Without a value a word of its own goes.
	if got, want := e.program.arguments(nil), []string{"p", "--x="}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// In a shell line too, a value stays data: real shells get all of them, in every
// place that a line has.
func TestShellLines(t *testing.T) {
	for _, line := range []string{
		`printf '[%s]' {a}`,
		`printf '[%s]' "{a}"`,
		`printf '['{a}']'`,
		`f() { printf '[%s]' {a}; }; f other`,
		"# it's a comment {a}\nprintf '[%s]' {a}",
		`printf '[%s]' "$(printf %s "{a}"x)" | sed 's/x]$/]/'`,
	} {
		for _, shell := range []string{"/bin/sh", "/bin/bash"} {
			if _, err := exec.LookPath(shell); err != nil {
				continue
			}
			e, err := compile("c", model.Command{Run: line, Shell: true, Args: textArgs("a")}, shell)
			if err != nil {
				t.Fatal(err)
			}
			for _, v := range hostile {
				if strings.Contains(line, "sed") && (strings.ContainsAny(v, "\n \t*") || strings.Contains(v, "\xff")) {
					continue // unquoted inside of the substitution: words, but still data
				}
				argv := e.program.arguments(map[string]any{"a": v})
				cmd := exec.Command(argv[0], argv[1:]...)
				cmd.Dir = t.TempDir()
				out, err := cmd.Output()
				if string(out) != "["+v+"]" && !strings.HasPrefix(line, `printf '['`) || err != nil {
					t.Errorf("%s: %q with %q: %q, %v", shell, line, v, out, err)
				}
				if left, _ := exec.Command("ls", cmd.Dir).Output(); len(left) > 0 {
					t.Errorf("%s: %q ran %q", shell, line, v)
				}
			}
		}
	}
}

func TestCompileRefuses(t *testing.T) {
	text := func(s string) *string { return &s }
	for want, c := range map[string]model.Command{
		"its line is empty":                       {Run: " "},
		"asks for {x}, which is no argument":      {Run: "echo {x}"},
		"not closed":                              {Run: "echo 'a"},
		"part of the program's name":              {Run: "{a} b", Args: textArgs("a")},
		"has type \"number\"":                     {Run: "echo", Args: []model.Arg{{Name: "a", Type: "number"}}},
		"default of argument a is not an integer": {Run: "echo", Args: []model.Arg{{Name: "a", Type: "integer", Default: text("x")}}},
		"two arguments are called a":              {Run: "echo", Args: textArgs("a", "a")},
		"cannot be the name of an argument":       {Run: "echo", Args: textArgs("a b")},
		"NUL":                                     {Run: "echo \x00"},
	} {
		if _, err := compile("c", c, ""); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", c.Run, err, want)
		}
	}
	for _, name := range []string{"", "a/b", ".x", "a b", strings.Repeat("a", 65), "é"} {
		_, err := NewRegistry().With(&model.Template{Commands: map[string]model.Command{name: {Run: "echo"}}})
		if errdefs.CodeOf(err) != "E2004" {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestBind(t *testing.T) {
	args := []Arg{
		{Name: "s", Type: "string", Required: true}, {Name: "i", Type: "integer"}, {Name: "f", Type: "float"},
		{Name: "b", Type: "boolean"}, {Name: "d", Type: "integer", Default: int64(7)},
	}
	for given, want := range map[string]string{
		`{"s":"x"}`:                         `{"d":7,"s":"x"}`,
		`{"s":1.50,"d":null}`:               `{"d":7,"s":"1.50"}`,
		`{"s":true}`:                        `{"d":7,"s":"true"}`,
		`{"s":"","i":"12"}`:                 `{"d":7,"i":12,"s":""}`,
		`{"s":"","i":1e3}`:                  `{"d":7,"i":1000,"s":""}`,
		`{"s":"","i":-9223372036854775808}`: `{"d":7,"i":-9223372036854775808,"s":""}`,
		`{"s":"","f":2,"b":"YES"}`:          `{"b":true,"d":7,"f":2,"s":""}`,
		`{"s":"","f":"1e-3","b":"0"}`:       `{"b":false,"d":7,"f":0.001,"s":""}`,
		`{}`:                                `argument s (string) is missing`,
		`{"s":null}`:                        `argument s (string) is missing`,
		`{"s":[]}`:                          `argument s is not a string`,
		`{"s":"a\u0000"}`:                   `argument s is not a string`,
		`{"s":"","i":1.5}`:                  `argument i is not an integer`,
		`{"s":"","i":true}`:                 `argument i is not an integer`,
		`{"s":"","i":9223372036854775808}`:  `argument i is not an integer`,
		`{"s":"","f":"NaN"}`:                `argument f is not a float`,
		`{"s":"","b":1}`:                    `argument b is not a boolean`,
		`{"s":"","b":"maybe"}`:              `argument b is not a boolean`,
		`{"s":"","secret":"x"}`:             `there is no argument "secret"; there are s, i, f, b, d`,
	} {
		var raw map[string]json.RawMessage
		if err := json.Unmarshal([]byte(given), &raw); err != nil {
			t.Fatal(err)
		}
		values, err := bind(args, raw)
		if err != nil {
			if errdefs.CodeOf(err) != "E3014" || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %s", given, err, want)
			}
			continue
		}
		if got, _ := json.Marshal(values); string(got) != want {
			t.Errorf("%s: %s, want %s", given, got, want)
		}
	}
}

func TestRegistry(t *testing.T) {
	type args struct {
		Name  string
		Count int8 `json:"count" default:"3" doc:"how often"`
		Loud  *bool
		Ratio float64 `json:"ratio,omitempty"`
		skip  chan int
		Out   chan int `json:"-"`
	}
	var r Registry
	none := func(context.Context, args) (string, error) { return "", nil }
	if err := Register(&r, "hello", none, &RegisterOptions{Description: "says hello"}); err != nil {
		t.Fatal(err)
	}
	if err := Register(&r, "quiet", none, &RegisterOptions{Hidden: true}); err != nil {
		t.Fatal(err)
	}
	got, _ := json.Marshal(r.List())
	want := `[{"name":"hello","description":"says hello","args":[` +
		`{"name":"name","type":"string","required":true,"description":""},` +
		`{"name":"count","type":"integer","required":false,"default":3,"description":"how often"},` +
		`{"name":"loud","type":"boolean","required":false,"description":""},` +
		`{"name":"ratio","type":"float","required":false,"description":""}]}]`
	if string(got) != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	type list struct{ A []string }
	type badDefault struct {
		A int8 `default:"300"`
	}
	type twice struct {
		A string
		B string `json:"a"`
	}
	for name, err := range map[string]error{
		"taken":  Register(&r, "hello", none, nil),
		"name":   Register(&r, "a/b", none, nil),
		"slice":  Register(&r, "x", func(context.Context, list) (int, error) { return 0, nil }, nil),
		"scalar": Register(&r, "x", func(context.Context, int) (int, error) { return 0, nil }, nil),
		"range":  Register(&r, "x", func(context.Context, badDefault) (int, error) { return 0, nil }, nil),
		"twice":  Register(&r, "x", func(context.Context, twice) (int, error) { return 0, nil }, nil),
	} {
		if errdefs.CodeOf(err) != "E3011" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := r.With(&model.Template{Commands: map[string]model.Command{"hello": {Run: "echo"}}}); !errors.Is(err, &errdefs.Error{Code: "E2004"}) {
		t.Errorf("a name of both: %v", err)
	}
	both, err := r.With(&model.Template{Commands: map[string]model.Command{"other": {Run: "echo"}}})
	if err != nil || len(both.List()) != 2 {
		t.Errorf("%v, %v", both, err)
	}
	for _, reg := range []*Registry{&r, both} {
		if err := Register(reg, "late", none, nil); err == nil || !strings.Contains(err.Error(), "too late") {
			t.Errorf("after the start: %v", err)
		}
	}
	if _, err := both.find("quiet"); err != nil {
		t.Error(err)
	}
	if _, err := both.find("nope"); errdefs.CodeOf(err) != "E3005" || !strings.Contains(err.Error(), "there are hello, other") || strings.Contains(err.Error(), "quiet") {
		t.Errorf("%v", err)
	}
	_ = args{skip: nil}
}
