//go:build linux

package code

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/runtime/code/drivers"
	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// TestLongLine: a driver that says more in one line than is read ends the context, and
// the next cell has a new one.
func TestLongLine(t *testing.T) {
	need(t, "python3", "-c", "pass")
	l := newLab(t, model.Interpreter{})
	l.py("kept = 1")
	a := l.bad("python", "class Huge:\n    def _repr_html_(self): return 'x' * (65 << 20)\nHuge()", "ContextDied")
	if !strings.Contains(a.err.Value, strconv.Itoa(drivers.MaxLine)) || len(a.results) != 0 {
		t.Errorf("got %q, %d results", a.err.Value, len(a.results))
	}
	if a := l.do(&Cell{Code: "kept"}); a.err == nil || a.err.Name != "NameError" || a.types[0] != eventRestarted {
		t.Errorf("got %+v", a)
	}
	// As long as a line may be, it is only a result above its own limit.
	a = l.py("class Large:\n    def __repr__(self): return 'large'\n    def _repr_html_(self): return 'x' * (60 << 20)\nLarge()")
	if a.main != "large" || a.results[0]["html"] != nil {
		t.Errorf("got %.200v", a.results)
	}
}

// TestLargeResult: a form above the limit is left out, which is said; one of just the
// limit stays, and so do the others.
func TestLargeResult(t *testing.T) {
	need(t, "python3", "-c", "pass")
	l := newLab(t, model.Interpreter{})
	quotes := 2
	a := l.py("class Big:\n    def __init__(self, n): self.n = n\n    def __repr__(self): return 'big'\n    def _repr_html_(self): return 'x' * self.n\n" +
		"    def _repr_svg_(self): return 'y' * (self.n + 1)\nBig(" + strconv.Itoa(drivers.MaxResult-quotes) + ")")
	r := a.results[0]
	if html, _ := r["html"].(string); len(html) != drivers.MaxResult-quotes || r["svg"] != nil || a.main != "big" {
		t.Errorf("%d bytes of HTML, %.20v, %q", len(html), r["svg"], a.main)
	}
	extra, _ := json.Marshal(r["extra"])
	if !strings.Contains(string(extra), "image/svg+xml: "+strconv.Itoa(drivers.MaxResult+1)+" bytes") || strings.Contains(string(extra), "html") {
		t.Errorf("the note: %s", extra)
	}
}

// TestOutOfMemory: a death while the sandbox counts a kill at its memory limit.
func TestOutOfMemory(t *testing.T) {
	need(t, "bash", "-c", "true")
	var kills atomic.Uint64
	l := newLimitedLab(t, model.Interpreter{}, kills.Load)
	l.good("bash", "x=1")
	go func() {
		waitFor(t, os.Getenv("TMPDIR")+"/on")
		kills.Add(1)
		os.WriteFile(os.Getenv("TMPDIR")+"/go", nil, 0o644)
	}()
	a := l.bad("bash", "cd "+os.Getenv("TMPDIR")+"; : >on; until [ -e go ]; do sleep .01; done; kill -KILL $$", "ContextDied")
	if a.err.Value != "out of memory" {
		t.Errorf("got %q", a.err.Value)
	}
	if a := l.bad("bash", "kill -KILL $$", "ContextDied"); a.err.Value != "signal: killed" {
		t.Errorf("without a kill at the limit: %q", a.err.Value)
	}
}

// TestPip: the one magic that runs, in all its forms, and what is said of the others.
func TestPip(t *testing.T) {
	need(t, "python3", "-c", "pass")
	l := newLab(t, model.Interpreter{})
	pip := filepath.Join(t.TempDir(), "pip")
	if err := os.MkdirAll(pip, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"__init__.py": "", "__main__.py": "import sys\nprint(sys.argv[1:])\nsys.exit('broken' in sys.argv)\n"} {
		if err := os.WriteFile(filepath.Join(pip, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	env := map[string]string{"PYTHONPATH": filepath.Dir(pip)}
	for code, want := range map[string]string{
		"%pip install one":              "['install', 'one']",
		"!pip install one 'two three'":  "['install', 'one', 'two three']",
		"!pip3 install -q one\n":        "['install', '-q', 'one']",
		"\n%pip3 install 'a>=1,<2'\n\n": "['install', 'a>=1,<2']",
	} {
		if a := l.do(&Cell{Code: code, Env: env}); a.err != nil || a.stdout != want+"\n" || len(a.results) != 0 {
			t.Errorf("%q: got %q, %+v", code, a.stdout, a.err)
		}
	}
	if a := l.do(&Cell{Code: "!pip install broken", Env: env}); a.err == nil || !strings.Contains(a.err.Value, "status 1") || a.stdout == "" {
		t.Errorf("a failure: %+v", a)
	}
	for _, code := range []string{"%pip install one\nprint(1)", "!pip install one\n!ls", "%pipe", "!apt install x", "%%bash\nls"} {
		a := l.do(&Cell{Code: code, Env: env})
		if a.err == nil || a.err.Name != "SyntaxError" || !strings.Contains(a.err.Value, "subprocess") || a.stdout != "" {
			t.Errorf("%q: got %+v, %q", code, a.err, a.stdout)
		}
	}
}

// TestPandas: a data frame is there as columns, as a table and as text.
func TestPandas(t *testing.T) {
	need(t, "/usr/bin/python3", "-c", "import pandas")
	l := newLab(t, model.Interpreter{})
	env := map[string]string{"PYTHONPATH": os.Getenv("PYTHONPATH")}
	run := func(code string) map[string]any {
		t.Helper()
		a := l.do(&Cell{Env: env, Code: code})
		if a.err != nil || len(a.results) != 1 {
			t.Fatalf("%s: got %+v, %v", code, a.err, a.results)
		}
		return a.results[0]
	}
	r := run("import os, sys\nsys.path[:0] = [p for p in os.environ['PYTHONPATH'].split(':') if p]\nimport pandas as pd\n" +
		"pd.DataFrame({'n': [1, 2], 's': ['a', None], 't': pd.to_datetime(['2024-01-02', '2024-01-03T04:05:06'])}, index=[7, 7])")
	got, _ := json.Marshal(r["data"])
	if want := `{"n":[1,2],"s":["a",null],"t":["2024-01-02T00:00:00.000","2024-01-03T04:05:06.000"]}`; string(got) != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if html, _ := r["html"].(string); !strings.Contains(html, "<table") || !strings.Contains(r["text"].(string), "2024-01-02") {
		t.Errorf("got %.200v", r)
	}
	if r := run("pd.DataFrame({'n': range(10_000)})"); len(r["data"].(map[string]any)["n"].([]any)) != 10_000 {
		t.Errorf("got %.200v", r["data"])
	}
	if r := run("pd.DataFrame({'n': range(10_001)})"); r["data"] != nil || r["html"] == nil {
		t.Errorf("got %.200v", r["data"])
	}
}

// TestLongCells: the time of a cell grows with its code, not with the square of it.
func TestLongCells(t *testing.T) {
	for _, c := range []struct{ lang, program, comment, last string }{
		{"bash", "bash", "#", "echo $A"}, {"python", "python3", "#", "import os; print(os.environ['A'])"}, {"js", "node", "//", "console.log(process.env.A)"},
	} {
		t.Run(c.lang, func(t *testing.T) {
			need(t, c.program, "--version")
			l := newLab(t, model.Interpreter{})
			l.good(c.lang, "")
			env := map[string]string{"A": strings.Repeat(`"y,`, 10_000), "op": "run", "id": `","op":"run","id":"`, "op2": "x"}
			for _, text := range []string{"x", `"`, `\`, "%", "ä", "\n" + c.comment} {
				code := c.comment + strings.Repeat(text, 1<<18/len(text)) + "\n" + c.last
				began := time.Now()
				if a := l.do(&Cell{Language: c.lang, Code: code, Env: env}); a.err != nil || a.stdout != env["A"]+"\n" {
					t.Errorf("of %q: got %+v, %d bytes", text, a.err, len(a.stdout))
				}
				if took := time.Since(began); took > 10*time.Second {
					t.Errorf("of %q: took %v", text, took)
				}
			}
		})
	}
}
