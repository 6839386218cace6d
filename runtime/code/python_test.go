//go:build linux

package code

import (
	"context"
	"encoding/base64"
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/runtime/code/drivers"
	"github.com/agent-sandbox/sandbox-go/templates/model"
)

func TestPythonState(t *testing.T) {
	need(t, "python3", "-c", "pass")
	l := newLab(t, model.Interpreter{})
	if a := l.py("import os, math\nx = 4\ndef f(): return x * 2\nos.chdir('/')"); a.count != 1 || len(a.results) != 0 {
		t.Errorf("got %+v", a)
	}
	if a := l.py("f() + math.floor(1.5)"); a.main != "9" || a.count != 2 {
		t.Errorf("got %+v", a)
	}
	if a := l.py("print(os.getcwd())"); a.stdout != "/\n" {
		t.Errorf("got %+v", a)
	}
	other, err := l.Create(l.ctx, "python", "/usr")
	if err != nil {
		t.Fatal(err)
	}
	if a := l.do(&Cell{ContextID: other.ID, Code: "x"}); a.err == nil || a.err.Name != "NameError" {
		t.Errorf("contexts are not apart: %+v", a)
	}
	if a := l.do(&Cell{ContextID: other.ID, Code: "import os; os.getcwd()"}); a.main != "/usr" {
		t.Errorf("got %+v", a)
	}
	if err := l.Restart(l.ctx, other.ID); err != nil {
		t.Fatal(err)
	}
	if a := l.do(&Cell{ContextID: other.ID, Code: "os"}); a.err == nil || a.count != 1 {
		t.Errorf("after a restart: %+v", a)
	}
	if err := l.Remove(other.ID); err != nil {
		t.Fatal(err)
	}
	var f *Failure
	if err := l.Execute(l.ctx, &Cell{ContextID: other.ID}, nil); !errors.As(err, &f) || f.Status != 404 {
		t.Errorf("got %v", err)
	}
	if a := l.py("await __import__('asyncio').sleep(0, 'done')"); a.main != "done" {
		t.Errorf("got %+v", a)
	}
}

func TestPythonOutput(t *testing.T) {
	need(t, "python3", "-c", "pass")
	l := newLab(t, model.Interpreter{})
	a := l.py("import sys, subprocess, os\nfor i in range(3): print(i)\nprint('no end', end='')\nprint('bad', file=sys.stderr)\nsubprocess.run(['echo', 'child'])\nos.system('echo shell >&2');")
	if a.stdout != "0\n1\n2\nno endchild\n" || a.stderr != "bad\nshell\n" {
		t.Errorf("got %q, %q", a.stdout, a.stderr)
	}
	if a := l.py("os.write(1, b'a\\xff\\xc3'); os.write(1, b'\\xa9b'); print('\\udc80');"); a.stdout != "a\ufffdéb\\udc80\n" {
		t.Errorf("got %q", a.stdout)
	}
	// What is printed is there before the cell has ended.
	seen := make(chan struct{})
	go func() {
		<-seen
		os.WriteFile(os.Getenv("TMPDIR")+"/go", nil, 0o644)
	}()
	var once sync.Once
	err := l.Execute(l.ctx, &Cell{Code: "import os, time\nprint('now', end='')\nwhile not os.path.exists(" + strconv.Quote(os.Getenv("TMPDIR")+"/go") + "): time.sleep(.01)"}, func(e *Event) error {
		if e.Type == eventStdout {
			once.Do(func() { close(seen) })
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	a = l.py("b = b'x' * (1 << 20)\nfor i in range(100): os.write(1, b)\nprint('end', file=sys.stderr)")
	if n := strings.Count(a.stdout, "x"); n != drivers.MaxOutput || !strings.Contains(a.stdout, "bytes more were cut") || a.stderr != "end\n" {
		t.Errorf("%d bytes, ends with %q, %q", n, a.stdout[max(0, len(a.stdout)-100):], a.stderr)
	}
	l.py("import threading\nthreading.Thread(target=lambda: (time.sleep(.05), print('late'), open(" + strconv.Quote(os.Getenv("TMPDIR")+"/late") + ", 'w'))).start()")
	waitFor(t, os.Getenv("TMPDIR")+"/late")
	a = l.py("print('next')")
	if a.stdout != "late\nnext\n" || a.types[0] != eventStdout || a.types[1] != eventCount {
		t.Errorf("got %q, %v", a.stdout, a.types)
	}
	if a := l.bad("python", "input()", "EOFError"); a.stdout != "" {
		t.Errorf("got %+v", a)
	}
}

func waitFor(t *testing.T, file string) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(file); err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s does not appear", file)
		}
	}
}

func TestPythonResults(t *testing.T) {
	need(t, "python3", "-c", "pass")
	l := newLab(t, model.Interpreter{})
	a := l.py(`
class All:
    def __repr__(self): return "all"
    def _repr_html_(self): return "<b>"
    def _repr_markdown_(self): return "*b*"
    def _repr_svg_(self): return "<svg>"
    def _repr_png_(self): return b"\x89PNG"
    def _repr_jpeg_(self): return b"\xff\xd8"
    def _repr_pdf_(self): return b"%PDF"
    def _repr_latex_(self): return "$b$"
    def _repr_json_(self): return {"a": 1}
    def _repr_javascript_(self): return "1"
    def _repr_mimebundle_(self, include=None, exclude=None): return {"application/x-own": "own"}
display(1, "two")
All()`)
	if len(a.results) != 3 {
		t.Fatalf("got %v", a.results)
	}
	got := a.results[2]
	want := map[string]any{
		"text": "all", "html": "<b>", "markdown": "*b*", "svg": "<svg>", "latex": "$b$", "javascript": "1",
		"png":  base64.StdEncoding.EncodeToString([]byte("\x89PNG")),
		"jpeg": base64.StdEncoding.EncodeToString([]byte("\xff\xd8")),
		"pdf":  base64.StdEncoding.EncodeToString([]byte("%PDF")),
	}
	for k, v := range want {
		if got[k] != v {
			t.Errorf("%s: got %v, want %v", k, got[k], v)
		}
	}
	if m, ok := got["json"].(map[string]any); !ok || m["a"] != 1.0 {
		t.Errorf("json: %v", got["json"])
	}
	if m, ok := got["extra"].(map[string]any); !ok || m["application/x-own"] != "own" {
		t.Errorf("extra: %v", got["extra"])
	}
	if a.results[0]["is_main_result"] != false || a.results[1]["text"] != "two" || got["is_main_result"] != true {
		t.Errorf("got %v", a.results)
	}
	if a := l.py("'quoted'"); a.main != "quoted" {
		t.Errorf("got %q", a.main)
	}
	if a := l.py("list(range(3000))"); strings.Count(a.main, ",") != 2999 || len(a.results[0]["json"].([]any)) != 3000 {
		t.Errorf("the text is cut: %d bytes", len(a.main))
	}
	if a := l.py("len(_), Out[2]"); a.main != "(3000, 'quoted')" {
		t.Errorf("got %q", a.main)
	}
	for _, code := range []string{"None", "1;", "x = 1", "", "# nothing"} {
		if a := l.py(code); len(a.results) != 0 {
			t.Errorf("%q: got %v", code, a.results)
		}
	}
	a = l.py("class Bad:\n    def __repr__(self): 1/0\n    def _repr_html_(self): 1/0\n    def _repr_svg_(self): return 'fine'\nBad()")
	if len(a.results) != 1 || a.results[0]["svg"] != "fine" || a.results[0]["html"] != nil || !strings.Contains(a.main, "ZeroDivisionError") {
		t.Errorf("got %v", a.results)
	}
	a = l.py("class Big:\n    def __repr__(self): return 'big'\n    def _repr_html_(self): return 'x' * (11 << 20)\nBig()")
	if a.main != "big" || a.results[0]["html"] != nil || a.results[0]["extra"] == nil {
		t.Errorf("a result above the limit: %.200v", a.results)
	}
}

func TestPythonErrors(t *testing.T) {
	need(t, "python3", "-c", "pass")
	l := newLab(t, model.Interpreter{})
	if a := l.bad("python", "x = (", "SyntaxError"); !strings.Contains(a.err.Traceback, "<cell 1>") {
		t.Errorf("got %s", a.err.Traceback)
	}
	l.py("def broken():\n    raise ValueError('inner')")
	a := l.bad("python", "try:\n    broken()\nexcept ValueError as e:\n    raise RuntimeError('outer') from e", "RuntimeError")
	for _, want := range []string{"raise ValueError('inner')", `File "<cell 2>", line 2, in broken`, "direct cause", "RuntimeError: outer"} {
		if !strings.Contains(a.err.Traceback, want) {
			t.Errorf("no %q in\n%s", want, a.err.Traceback)
		}
	}
	if strings.Contains(a.err.Traceback, "driver.py") || a.err.Value != "outer" {
		t.Errorf("got %q\n%s", a.err.Value, a.err.Traceback)
	}
	l.bad("python", "import sys; sys.exit(3)", "SystemExit")
	l.bad("python", "%matplotlib inline", "SyntaxError")
	l.bad("python", "!ls", "SyntaxError")
	if a := l.py("1 + 1"); a.main != "2" {
		t.Errorf("later cells do not run: %+v", a)
	}
}

func TestPythonInterrupt(t *testing.T) {
	need(t, "python3", "-c", "pass")
	l := newLab(t, model.Interpreter{})
	l.py("kept = 7")
	for _, code := range []string{
		"while True: pass", "import time; time.sleep(1000)", "import subprocess; subprocess.run(['sleep', '1000'])",
		"import os; os.system('sleep 1000')", "import asyncio; await asyncio.sleep(1000)",
	} {
		a := l.do(&Cell{Code: code, Timeout: 200 * time.Millisecond})
		if a.err == nil || a.err.Name != "TimeoutError" || !strings.Contains(a.err.Value, "kept") {
			t.Errorf("%s: got %+v", code, a.err)
		}
		if a := l.py("kept"); a.main != "7" {
			t.Errorf("%s: the state is lost", code)
		}
	}
	// A client that goes away.
	ctx, cancel := context.WithCancel(l.ctx)
	err := l.Execute(ctx, &Cell{Code: "print('on')\nwhile True: pass"}, func(e *Event) error {
		if e.Type == eventStdout {
			cancel()
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if a := l.py("kept"); a.main != "7" {
		t.Errorf("got %+v", a)
	}
	// Native code that ignores it.
	l.grace = 500 * time.Millisecond
	a := l.do(&Cell{Code: "import signal, time\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\ntime.sleep(1000)", Timeout: 100 * time.Millisecond})
	if a.err == nil || a.err.Name != "TimeoutError" || !strings.Contains(a.err.Value, "lost") {
		t.Errorf("got %+v", a.err)
	}
	if a := l.do(&Cell{Code: "kept"}); a.err == nil || a.err.Name != "NameError" || a.count != 1 || a.types[0] != eventRestarted {
		t.Errorf("got %+v", a)
	}
}

func TestPythonEnv(t *testing.T) {
	need(t, "python3", "-c", "pass")
	l := newLab(t, model.Interpreter{})
	show := "import os; print(os.environ.get('A'), os.environ.get('FROM_SANDBOX'))"
	if a := l.do(&Cell{Code: show, Env: map[string]string{"A": "1", "FROM_SANDBOX": "other"}}); a.stdout != "1 other\n" {
		t.Errorf("got %q", a.stdout)
	}
	if a := l.py(show); a.stdout != "None yes\n" {
		t.Errorf("got %q", a.stdout)
	}
}

func TestPythonQueue(t *testing.T) {
	need(t, "python3", "-c", "pass")
	l := newLab(t, model.Interpreter{})
	var wg sync.WaitGroup
	for i := range 10 {
		wg.Go(func() {
			a := l.do(&Cell{Code: "import time\nprint(" + strconv.Itoa(i) + ")\ntime.sleep(.01)\nprint(" + strconv.Itoa(i) + ")"})
			if want := strings.Repeat(strconv.Itoa(i)+"\n", 2); a.stdout != want {
				t.Errorf("got %q, want %q", a.stdout, want)
			}
		})
	}
	wg.Wait()
	if a := l.py("None"); a.count != 11 {
		t.Errorf("got %d", a.count)
	}
}

func TestPythonDeath(t *testing.T) {
	need(t, "python3", "-c", "pass")
	l := newLab(t, model.Interpreter{})
	a := l.bad("python", "import os, sys; print('last words', file=sys.stderr); os._exit(7)", "ContextDied")
	if !strings.HasPrefix(a.err.Value, "exit code 7") || !strings.Contains(a.err.Value, "last words") {
		t.Errorf("got %q", a.err.Value)
	}
	if a := l.bad("python", "import os; os.kill(os.getpid(), 9)", "ContextDied"); !strings.Contains(a.err.Value, "killed") {
		t.Errorf("got %q", a.err.Value)
	}
	if a := l.do(&Cell{Code: "1"}); a.main != "1" || a.count != 1 || a.types[0] != eventRestarted {
		t.Errorf("got %+v", a)
	}
	// A cell that closes its output ends all the same.
	if a := l.py("import os; os.close(1); os.close(2)"); a.err != nil {
		t.Errorf("got %+v", a)
	}
}

func TestPythonPlots(t *testing.T) {
	need(t, "/usr/bin/python3", "-c", "import matplotlib")
	l := newLab(t, model.Interpreter{})
	a := l.py("import matplotlib.pyplot as plt\nplt.plot([1, 2], [3, 4], label='L'); plt.title('T'); plt.xlabel('time (s)'); plt.ylabel('y');")
	if len(a.results) != 1 {
		t.Fatalf("got %d results", len(a.results))
	}
	png, err := base64.StdEncoding.DecodeString(a.results[0]["png"].(string))
	if err != nil || !strings.HasPrefix(string(png), "\x89PNG\r\n\x1a\n") {
		t.Errorf("no PNG: %v, %.20q", err, png)
	}
	chart := a.results[0]["chart"].(map[string]any)
	if chart["type"] != "line" || chart["title"] != "T" || chart["x_label"] != "time (s)" || chart["x_unit"] != "s" || chart["x_scale"] != "linear" {
		t.Errorf("got %v", chart)
	}
	if e := chart["elements"].([]any)[0].(map[string]any); e["label"] != "L" || len(e["points"].([]any)) != 2 {
		t.Errorf("got %v", e)
	}
	a = l.py("plt.bar(['a', 'b'], [3, 4]); plt.show(); print('after')")
	chart = a.results[0]["chart"].(map[string]any)
	if e := chart["elements"].([]any); chart["type"] != "bar" || e[1].(map[string]any)["label"] != "b" || e[1].(map[string]any)["value"] != 4.0 {
		t.Errorf("got %v", chart)
	}
	for code, want := range map[string]any{
		"plt.pie([1, 3], labels=['p', 'q']);":         "pie",
		"plt.scatter([1, 2], [3, 4]);":                "scatter",
		"plt.boxplot([[1, 2, 3, 4, 10], [2, 3, 4]]);": "box_and_whisker",
		"plt.imshow([[1, 2], [3, 4]]);":               nil,
	} {
		a := l.py(code)
		if len(a.results) != 1 || a.results[0]["png"] == nil {
			t.Fatalf("%s: got %d results", code, len(a.results))
		}
		chart, _ := a.results[0]["chart"].(map[string]any)
		if got := chart["type"]; got != want {
			t.Errorf("%s: got %v, want %v", code, got, want)
		}
	}
}
