package directive

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// at returns a comment as it would stand at the start of a file.
func at(text string) *ast.Comment { return &ast.Comment{Slash: 1, Text: text} }

func TestClassify(t *testing.T) {
	tests := []struct {
		text string
		want string // a directive, "prose", or code and message of the first problem
	}{
		{"//sandbox:func", "//sandbox:func"},
		{"//sandbox:func   timeout=5s\t cpu=1 ", "//sandbox:func timeout=5s cpu=1"},
		{"//sandbox:with env=\"A=1 2\"", "//sandbox:with env=\"A=1 2\""},
		{"//sandbox:package", "//sandbox:package"},
		{"// prose", "prose"},
		{"//", "prose"},
		{"//go:generate go tool sandboxgen", "prose"},
		{"// sandbox:func is the directive that", "prose"},
		{"// sandbox:func timeout is an option of", "prose"},
		{"// sandbox: with", "prose"},
		{"// sandbox: exit", "prose"},
		{"//sandboxexit", "G002 not a directive because of its spelling; write //sandbox:exit"},
		{"// a sandbox:func", "prose"},
		{"//sandboxed:func", "G002 not a directive because of its spelling; write //sandbox:func"},
		{"//sandboxgen:func", "prose"},
		{"// //sandbox:func", "prose"},
		{"////sandbox:func", "prose"},
		{"/* sandbox:func runs it */", "prose"},
		{"/*\n//sandbox:func\nfunc f() {}\n*/", "prose"},
		{"//sandbox:fucn", "G001 unknown directive //sandbox:fucn; did you mean //sandbox:func?"},
		{"//sandbox:x", "G001 unknown directive //sandbox:x; kinds are func, class, method, enter, exit, package, with"},
		{"//sandbox:", "G001 unknown directive //sandbox:; kinds are func, class, method, enter, exit, package, with"},
		{"//sandbox: ", "G001 unknown directive //sandbox:; kinds are func, class, method, enter, exit, package, with"},
		{"//sandbox:class", "//sandbox:class"},
		{"//sandbox:method timeout=5s", "//sandbox:method timeout=5s"},
		{"//sandbox:Exit", "G002 not a directive because of its spelling; write //sandbox:exit"},
		{"// sandbox:enter is called", "prose"},
		{"//sandbox:cron", "G001 //sandbox:cron is not supported"},
		{"//sandbox: func timeout=5s", "G002 not a directive because of its spelling; write //sandbox:func"},
		{"//sandbox:FUNC", "G002 not a directive because of its spelling; write //sandbox:func"},
		{"// sandbox:func wibble=1", "G002 not a directive because of its spelling; write //sandbox:func"},
		{"//sandobx:func wibble", "G002 not a directive because of its spelling; write //sandbox:func"},
		{"// +sandbox:func", "G002 not a directive because of its spelling; write //sandbox:func"},
		{"/*sandbox:package timeout=5s*/", "G002 not a directive because of its spelling; write //sandbox:package; directives are line comments"},
	}
	for _, tt := range tests {
		t.Run(tt.text, func(t *testing.T) {
			line, problems := Classify(at(tt.text))
			got := "prose"
			switch {
			case len(problems) > 0:
				got = problems[0].Code + " " + problems[0].Message
			case line != nil:
				got = line.String()
			}
			if got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

func TestPositions(t *testing.T) {
	const text = "//sandbox:func  timeout=5s env=\"A=x\\,y,B=\\u00e9,C=\" idempotent"
	line, problems := Classify(&ast.Comment{Slash: 101, Text: text})
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	find := func(s string) token.Pos { return 101 + token.Pos(strings.Index(text, s)) }
	want := []Arg{
		{Key: "timeout", HasValue: true, Value: "5s", Elements: []Element{{"5s", find("5s")}},
			Pos: find("timeout"), ValuePos: find("5s"), End: find(" env")},
		{Key: "env", HasValue: true, Value: "A=x,y,B=é,C=", Elements: []Element{{"A=x,y", find("A=")}, {"B=é", find("B=")}, {"C=", find("C=")}},
			Pos: find("env"), ValuePos: find(`"A`), End: find(" idempotent")},
		{Key: "idempotent", Pos: find("idempotent"), End: 101 + token.Pos(len(text))},
	}
	if diff := cmp.Diff(line.Args, want); diff != "" {
		t.Errorf("args (-got +want):\n%s", diff)
	}
	if line.KindEnd != find("  timeout") || line.End != 101+token.Pos(len(text)) {
		t.Errorf("got kind end %d and end %d", line.KindEnd, line.End)
	}
}

func TestFixes(t *testing.T) {
	tests := []struct{ text, want string }{
		{"//Sandbox:func timeout=5s", "//sandbox:func timeout=5s"},
		{"//sandbox :  Func cpu=1", "//sandbox:func cpu=1"},
		{"// sandbox:func", "//sandbox:func"},
		{"/* sandbox:func cpu=1 */", "//sandbox:func cpu=1"},
		{"//sandbox:fnuc cpu=1", "//sandbox:func cpu=1"},
		{"//sandbox: fnuc cpu=1", "//sandbox:func cpu=1"},
		{"//sandbox:func tiemout=5s", "//sandbox:func timeout=5s"},
		{"//sandbox:func schedule=x cpu=1", "//sandbox:func  cpu=1"},
		{"//sandbox:func network=nonee", "//sandbox:func network=none"},
		{"//sandbox:func idempotent=yes", "//sandbox:func idempotent"},
		{"//sandbox:func =5s cpu=1", "//sandbox:func  cpu=1"},
	}
	for _, tt := range tests {
		line, problems := Classify(at(tt.text))
		if len(problems) == 0 && line != nil {
			_, problems = Decode([]*Line{line}, func(token.Pos) string { return "" })
		}
		if len(problems) == 0 || problems[0].Fix == nil {
			t.Errorf("%s: no fix in %v", tt.text, problems)
			continue
		}
		f := problems[0].Fix
		if got := tt.text[:f.Pos-1] + f.Text + tt.text[f.End-1:]; got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.text, got, tt.want)
		}
	}
}

func TestMerge(t *testing.T) {
	decode := func(text string) *Options {
		line, problems := Classify(at(text))
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		o, problems := Decode([]*Line{line}, func(token.Pos) string { return "" })
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		return o
	}
	outer := decode("//sandbox:package timeout=1m cpu=1 env=A=1,B=2 network=a.example template=base log=slog")
	tests := []struct {
		inner string
		want  map[string]any
	}{
		{"//sandbox:func", map[string]any{"timeout": "1m0s", "cpu": 1.0, "env": []string{"A=1", "B=2"}, "network": []string{"a.example"}, "template": "base", "log": "slog"}},
		{"//sandbox:func timeout=5s env=B=3 network=b.example log=discard", map[string]any{
			"timeout": "5s", "cpu": 1.0, "env": []string{"A=1", "B=3"}, "network": []string{"a.example", "b.example"}, "template": "base", "log": "discard"}},
		{`//sandbox:func env="" network="" template=""`, map[string]any{
			"timeout": "1m0s", "cpu": 1.0, "env": []string{}, "network": []string{}, "template": "", "log": "slog"}},
		{"//sandbox:func network=none", map[string]any{
			"timeout": "1m0s", "cpu": 1.0, "env": []string{"A=1", "B=2"}, "network": []string{"none"}, "template": "base", "log": "slog"}},
		{"//sandbox:func image=busybox secrets=A,B=x files=a:/a volumes=v:/v:ro in=p,q", map[string]any{
			"timeout": "1m0s", "cpu": 1.0, "env": []string{"A=1", "B=2"}, "network": []string{"a.example"}, "image": "busybox", "log": "slog",
			"secrets": []string{"A", "B=x"}, "files": []string{"a:/a"}, "volumes": []string{"v:/v:ro"}, "in": []string{"p", "q"}}},
	}
	for _, tt := range tests {
		got := make(map[string]any)
		for k, v := range Merge(outer, decode(tt.inner)).Set() {
			got[k] = v
		}
		if diff := cmp.Diff(got, tt.want, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-got +want):\n%s", tt.inner, diff)
		}
	}
}

// TestMergeLists: what the inner level names replaces what the outer one says
// of it, the rest comes first.
func TestMergeLists(t *testing.T) {
	decode := func(text string) *Options {
		line, problems := Classify(at(text))
		o, more := Decode([]*Line{line}, func(token.Pos) string { return "" })
		if problems = append(problems, more...); len(problems) > 0 {
			t.Fatal(problems)
		}
		return o
	}
	tests := []struct{ outer, inner, want string }{
		{"secrets=A,B=b files=x:/x,y:/y volumes=v:/v,w:/w", "secrets=B,C files=z:/y/ volumes=u:/v/",
			"[secrets A B C] [files x:/x z:/y/] [volumes w:/w u:/v/]"},
		{"secrets=A files=x:/x volumes=v:/v", `secrets="" files="" volumes=""`, "[secrets] [files] [volumes]"},
		{"template=t", "image=i", "[image i]"},
		{"image=i", "template=t", "[template t]"},
		{"image=i", `template=""`, "[image i] [template ]"},
		{"spare=1 idle=5s concurrency=2 workers=1..2", "fresh", "[fresh true] [workers 1..2]"},
	}
	for _, tt := range tests {
		var got []string
		for k, v := range Merge(decode("//sandbox:package "+tt.outer), decode("//sandbox:func "+tt.inner)).Set() {
			if list, ok := v.([]string); ok {
				got = append(got, fmt.Sprint(append([]string{k}, list...)))
				continue
			}
			got = append(got, fmt.Sprintf("[%s %v]", k, v))
		}
		slices.SortFunc(got, func(a, b string) int { return strings.Compare(rank(a), rank(b)) })
		if diff := cmp.Diff(strings.Join(got, " "), tt.want); diff != "" {
			t.Errorf("%s over %s (-got +want):\n%s", tt.inner, tt.outer, diff)
		}
	}
}

// rank orders options as the tests list them.
func rank(s string) string {
	if strings.HasPrefix(s, "[secrets") {
		return "" // the others are in order
	}
	return s
}

// seeds are directives and near misses for fuzzing.
var seeds = []string{
	"//sandbox:func", "//sandbox:func timeout=5s", "//sandbox:with env=\"A=1 2\",B", "//sandbox:func env=`raw,x` a",
	`//sandbox:func env="A=x\,y,\xff,é\n" check.n=min=1,max=2 idempotent`, "//sandbox:func =x \"y\" a=\"", "// sandbox:func cpu=1",
	"//Sandbox:func", "/*sandbox:func*/", "/*\n * sandbox:func\n */", "//sandbox: func", "//sandbox:package network=all,none",
	"//sandbox:func memory=1.5GiB backoff=1s..2s*1e300 workers=1..99999999999999999999", "//sandboxfunc", "///sandbox:func",
	"//sandbox:class image=a/b:c@sha256:0 gpu=A10:2 secrets=A=b,C volumes=a:/b:ro files=a:/b,c:d network=nonee", "//sandbox:method in=a,b out=c batch=2",
	"//sandbox:func retries=-1 cpu=NaN disk=999999999999999999TiB", "//sandbox:func\u00a0timeout=5s", "//sandbox:func user=\"\x00\"",
}

// FuzzClassify: nothing panics, positions stay inside the comment, fixes make
// another text, and what is accepted survives printing.
func FuzzClassify(f *testing.F) {
	for _, s := range seeds {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if !strings.HasPrefix(text, "//") && !(strings.HasPrefix(text, "/*") && strings.HasSuffix(text, "*/") && len(text) >= 4) {
			return
		}
		if strings.HasPrefix(text, "//") && strings.ContainsAny(text, "\n\r") {
			return // the Go scanner never gives such a comment
		}
		line, problems := Classify(at(text))
		inside := func(what string, pos, end token.Pos) {
			if pos < 1 || end < pos || int(end) > len(text)+1 {
				t.Fatalf("%s from %d to %d of %q", what, pos, end, text)
			}
		}
		if line != nil {
			_, more := Decode([]*Line{line}, func(p token.Pos) string { inside("place", p, p); return "" })
			inside("line", line.Pos, line.End)
			for _, a := range line.Args {
				inside("option", a.Pos, a.End)
				for _, e := range a.Elements {
					inside("element", e.Pos, e.Pos)
				}
			}
			if len(problems) == 0 {
				again, p := Classify(at(line.String()))
				if len(p) > 0 || again == nil {
					t.Fatalf("%q prints as %q: %v", text, line, p)
				}
				ignore := cmpopts.IgnoreTypes(token.Pos(0))
				if diff := cmp.Diff(again, line, ignore); diff != "" {
					t.Fatalf("%q prints as %q (-again +first):\n%s", text, line, diff)
				}
			}
			problems = append(problems, more...)
		}
		for _, p := range problems {
			inside(p.Code, p.Pos, p.End)
			if p.Fix != nil {
				inside("fix of "+p.Code, p.Fix.Pos, p.Fix.End)
			}
			if (p.Code == "G002" || p.Code == "G010") && p.Fix == nil {
				t.Fatalf("%q: %s has no fix", text, p.Code)
			}
			if p.Message == "" || strings.ContainsAny(p.Message, "\n\r") {
				t.Fatalf("%q: message %q", text, p.Message)
			}
		}
	})
}

// FuzzFile runs whole files through the Go parser first, so that comments come
// in all the shapes they really have.
func FuzzFile(f *testing.F) {
	for _, s := range seeds {
		f.Add("package p\n\n" + s + "\nfunc f() {}\n")
	}
	f.Fuzz(func(t *testing.T, src string) {
		file, _ := parser.ParseFile(token.NewFileSet(), "p.go", src, parser.ParseComments|parser.SkipObjectResolution)
		if file == nil {
			return
		}
		for _, g := range file.Comments {
			var lines []*Line
			for _, c := range g.List {
				if l, _ := Classify(c); l != nil {
					lines = append(lines, l)
				}
			}
			if len(lines) > 0 {
				o, _ := Decode(lines, func(token.Pos) string { return "" })
				Merge(o, o).Conflicts()
			}
		}
	})
}
