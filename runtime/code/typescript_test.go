//go:build linux

package code

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// needTypes skips where node does not take types out, or fails in CI, which has one
// that does.
func needTypes(t *testing.T) {
	t.Helper()
	need(t, "node", "-e", "if (!require('node:module').stripTypeScriptTypes) { process.exit(1) }")
}

// newNodeLab has the node of PATH, which need not be the first of a sandbox.
func newNodeLab(t *testing.T) *lab {
	t.Helper()
	return newLabWith(t, model.Interpreter{}, nil, map[string]string{"PATH": os.Getenv("PATH")})
}

// TestTypeScript: types are taken out of cells, whose state is kept; what would need
// more than that is refused, and errors are where the source has them.
func TestTypeScript(t *testing.T) {
	needTypes(t)
	l := newNodeLab(t)
	ts := func(code string) *answer { t.Helper(); return l.good("ts", code) }
	for _, c := range []struct{ name, code, want string }{
		{"annotation", "const n: number = 4; n as number", "4"},
		{"state, and the declaration again", "const n: string = 'a' + n; n", "a4"},
		{"interface", "interface P { x: number; y?: string }\nlet p: P = { x: 1 }\np.x", "1"},
		{"a type of an earlier cell is gone with its cell", "let q: P = { x: 2 }; q.x + p.x", "3"},
		{"generics", "function id<T>(v: T): T { return v }\nid<number>(7)", "7"},
		{"function of an earlier cell", "id<string>('s')", "s"},
		{"class", "class A<T> { private v: T; readonly w?: number; constructor(v: T) { this.v = v }\n get(): T { return this.v } }\nnew A<number>(5).get()", "5"},
		{"class of an earlier cell", "const a: A<string> = new A('x'); a.get()", "x"},
		{"arrow with types", "const add = (a: number, b: number = 2): number => a + b; add(1)", "3"},
		{"type alias, satisfies, not null", "type U = 'a' | 'b'\nconst u = 'a' satisfies U; (u as U)!.length", "1"},
		{"await with types", "const v: number = await Promise.resolve<number>(9); v", "9"},
		{"less than is no type", "n.length < 3 && 4 > 2", "true"},
		{"object with a regular expression", "const r: { re: RegExp } = { re: /a: b/ }; r.re.source", "a: b"},
		{"require", "const path: typeof import('node:path') = require('node:path'); path.join('a', 'b')", "a/b"},
		{"not checked", "const wrong: number = 'text' as any; wrong", "text"},
	} {
		if a := ts(c.code); a.main != c.want {
			t.Errorf("%s: got %q, want %q", c.name, a.main, c.want)
		}
	}
	if a := ts("interface Only { a: number }"); len(a.results) != 0 {
		t.Errorf("only types: got %v", a.results)
	}
	if a := ts("console.log('x' as string)\nprocess.stderr.write('e\\n'); undefined"); a.stdout != "x\n" || a.stderr != "e\n" {
		t.Errorf("got %q and %q", a.stdout, a.stderr)
	}
	// No warning of node's own goes with it.
	if a := l.do(&Cell{Language: "typescript", Code: "process.env.A as string", Env: map[string]string{"A": "1"}}); a.main != "1" || a.stderr != "" {
		t.Errorf("got %+v", a)
	}

	// Line and column are those of the cell.
	a := l.bad("ts", "type T = {\n  a: number\n}\nfunction g(t: T): never {\n  throw new RangeError('far')\n}\ng({ a: 1 })", "RangeError")
	for _, place := range []string{"<cell 19>:5:9", "<cell 19>:7:1"} {
		if !strings.Contains(a.err.Traceback, place) {
			t.Errorf("no %s in\n%s", place, a.err.Traceback)
		}
	}
	if a := l.bad("ts", "g({ a: 2 })", "RangeError"); !strings.Contains(a.err.Traceback, "<cell 19>:5:9") {
		t.Errorf("of an earlier cell:\n%s", a.err.Traceback)
	}
	if a := l.bad("ts", "1;\nconst x: = 4", "SyntaxError"); !strings.Contains(a.err.Traceback, "<cell 21>:2") {
		t.Errorf("broken:\n%s", a.err.Traceback)
	}
	for _, code := range []string{"enum E { A }", "namespace N { export const a = 1 }", "class B { constructor(private a: number) {} }"} {
		if a := l.bad("ts", code, "SyntaxError"); !strings.Contains(a.err.Value, "not supported in strip-only mode") || strings.Contains(a.err.Traceback, "driver.js") {
			t.Errorf("%s: got %+v", code, a.err)
		}
	}
	a = l.do(&Cell{Language: "ts", Code: "while (true) {}", Timeout: 300 * time.Millisecond})
	if a.err == nil || a.err.Name != "TimeoutError" || !strings.Contains(a.err.Value, "kept") {
		t.Errorf("got %+v", a.err)
	}
	if a := ts("n"); a.main != "a4" {
		t.Errorf("after an interrupt: got %+v", a)
	}
	// A context apart from that of JavaScript.
	if a := l.good("js", "typeof n"); a.main != "undefined" {
		t.Errorf("got %+v", a)
	}
}

// TestTypeScriptOld: a node that cannot take types out is refused, with its version.
func TestTypeScriptOld(t *testing.T) {
	need(t, "node", "-e", "0")
	node, err := exec.LookPath("node")
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	old := "#!/bin/sh\nexec '" + node + "' --require '" + bin + "/old.js' \"$@\"\n"
	for name, text := range map[string]string{"node": old, "old.js": "delete require('node:module').stripTypeScriptTypes\n"} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	l := newNodeLab(t)
	a := &answer{}
	err = l.Execute(l.ctx, &Cell{Language: "ts", Code: "1"}, a.add)
	f, ok := errors.AsType[*Failure](err)
	if !ok || f.Code != "E3016" || !strings.Contains(f.Text, "22.13 or newer; found v") {
		t.Errorf("got %v, %+v", err, a)
	}
	if a := l.good("js", "1"); a.main != "1" {
		t.Errorf("JavaScript: got %+v", a)
	}
}
