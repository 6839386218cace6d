//go:build linux

package code

import (
	"bufio"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/runtime/account"
	"github.com/agent-sandbox/sandbox-go/templates/model"
)

func TestJavaScript(t *testing.T) {
	need(t, "node", "-e", "0")
	l := newLab(t, model.Interpreter{})
	js := func(code string) *answer { t.Helper(); return l.good("js", code) }
	js("const x = 4; let y = 1\nclass A { m() { return `${x}{` } }\nfunction f() { throw new TypeError('bad') }\nconst { p, q: [r] } = { p: 1, q: [2] }")
	if a := js("const x = 5; x + y + p + r"); a.main != "9" || a.count != 2 {
		t.Errorf("got %+v", a)
	}
	if a := js("new A().m()"); a.main != "5{" {
		t.Errorf("got %+v", a)
	}
	if a := js("await new Promise(r => setTimeout(r, 1)); const z = await Promise.resolve([1, { a: 2 }]); z"); a.main != "[ 1, { a: 2 } ]" || a.results[0]["json"] == nil {
		t.Errorf("got %+v", a)
	}
	if a := js("z.length"); a.main != "2" {
		t.Errorf("got %+v", a)
	}
	a := js("console.log('out'); console.error('err'); process.stdout.write('raw'); require('child_process').execSync('echo child', { stdio: 'inherit' }); undefined")
	if a.stdout != "out\nrawchild\n" || a.stderr != "err\n" || len(a.results) != 0 {
		t.Errorf("got %+v", a)
	}
	a = js("display({ [Symbol.for('Jupyter.display')]() { return { 'text/html': '<b>', 'image/png': new Uint8Array([1]) } } }); 'str'")
	if len(a.results) != 2 || a.results[0]["html"] != "<b>" || a.results[0]["png"] != "AQ==" || a.main != "str" {
		t.Errorf("got %v", a.results)
	}
	if a := l.bad("js", "f()", "TypeError"); a.err.Value != "bad" || strings.Contains(a.err.Traceback, "driver.js") || !strings.Contains(a.err.Traceback, "<cell 1>") {
		t.Errorf("got %+v", a.err)
	}
	l.bad("js", "let = ", "SyntaxError")
	l.bad("js", "await Promise.reject(new RangeError('r'))", "RangeError")
	for _, code := range []string{"while (true) {}", "await new Promise(() => {})", "require('child_process').execSync('sleep 1000')"} {
		a := l.do(&Cell{Language: "javascript", Code: code, Timeout: 300 * time.Millisecond})
		if a.err == nil || a.err.Name != "TimeoutError" || !strings.Contains(a.err.Value, "kept") {
			t.Errorf("%s: got %+v", code, a.err)
		}
		if a := js("x"); a.main != "5" {
			t.Errorf("%s: the state is lost", code)
		}
	}
	if a := l.do(&Cell{Language: "js", Code: "process.env.A + process.env.FROM_SANDBOX", Env: map[string]string{"A": "1"}}); a.main != "1yes" {
		t.Errorf("got %+v", a)
	}
	if a := js("process.env.A"); len(a.results) != 0 {
		t.Errorf("got %+v", a)
	}
	l.bad("js", "process.exit(3)", "ContextDied")
	if a := l.do(&Cell{Language: "js", Code: "typeof x"}); a.main != "undefined" || a.count != 1 {
		t.Errorf("got %+v", a)
	}
}

func TestBash(t *testing.T) {
	need(t, "bash", "-c", "true")
	l := newLab(t, model.Interpreter{})
	sh := func(code string) *answer { t.Helper(); return l.good("bash", code) }
	sh("x=5; declare -A m=([a]=1); cd /usr; f() { return 3; }\nalias hi='echo hello'")
	if a := sh(`echo "$x ${m[a]} $PWD"; hi; printf '%s\n' 'a\tb"%d'; echo err >&2; ls /proc/self/fd | wc -l`); a.stdout != "5 1 /usr\nhello\na\\tb\"%d\n4\n" || a.stderr != "err\n" || a.count != 2 {
		t.Errorf("got %+v", a)
	}
	for code, status := range map[string]string{
		"f": "3", "exit 4; echo no": "4", "set -e; false; echo no": "1", "set +e; g() { exit 9; echo no; }; g; echo no": "9",
		"return 7": "7", "if then": "2", "false; (exit 5)": "5", "no-such-program": "127",
	} {
		if a := l.bad("bash", code, "ExitCode"); a.err.Value != status || strings.Contains(a.stdout, "no") {
			t.Errorf("%s: got %+v, %q", code, a.err, a.stdout)
		}
	}
	sh("set +e")
	if a := sh("(exit 3); echo $? $x"); a.stdout != "3 5\n" {
		t.Errorf("got %+v", a)
	}
	for _, code := range []string{"while :; do :; done; echo no", "sleep 1000; echo no", "h() { while true; do sleep .01; done; }; h; echo no"} {
		a := l.do(&Cell{Language: "bash", Code: code, Timeout: 200 * time.Millisecond})
		if a.err == nil || a.err.Name != "TimeoutError" || !strings.Contains(a.err.Value, "kept") || a.stdout != "" {
			t.Errorf("%s: got %+v, %q", code, a.err, a.stdout)
		}
		if a := sh("echo $x"); a.stdout != "5\n" {
			t.Errorf("%s: got %+v", code, a)
		}
	}
	env := map[string]string{"A": "q\"},\"x\":\"\n%d\\", "B": "", "x": "9"}
	if a := l.do(&Cell{Language: "bash", Code: `echo "$A|$B|$x"`, Env: env}); a.stdout != env["A"]+"||9\n" {
		t.Errorf("got %q", a.stdout)
	}
	if a := sh("echo ${A-unset} ${B-unset} $x $FROM_SANDBOX"); a.stdout != "unset unset 5 yes\n" {
		t.Errorf("got %q", a.stdout)
	}
}

func TestLanguages(t *testing.T) {
	own := filepath.Join(t.TempDir(), "own")
	script := "#!/bin/sh\necho '{\"event\":\"ready\"}' >&4\nwhile read -r line <&3; do\n" +
		"id=${line#*'\"id\":\"'}; id=${id%%'\"'*}; m=${line#*'\"marker\":\"'}; m=${m%%'\"'*}\n" +
		"echo from own; printf '%s' \"$m\"; printf '%s' \"$m\" >&2; printf '{\"event\":\"end\",\"id\":\"%s\"}\\n' \"$id\" >&4\ndone\n"
	if err := os.WriteFile(own, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	l := newLab(t, model.Interpreter{Programs: map[string]string{"r": own, "java": "/no/such/program"}, MaxContexts: 2, IdleTimeout: time.Hour})
	if a := l.good("R", "anything"); a.stdout != "from own\n" {
		t.Errorf("got %+v", a)
	}
	var f *Failure
	if _, err := l.Create(l.ctx, "java", ""); !errors.As(err, &f) || f.Status != 500 || f.Code != "E3016" {
		t.Errorf("got %v", err)
	}
	if _, err := l.Create(l.ctx, "cobol", ""); !errors.As(err, &f) || f.Status != 400 || !strings.Contains(f.Text, "python") {
		t.Errorf("got %v", err)
	}
	if err := l.Execute(l.ctx, &Cell{Language: "r", ContextID: "x"}, nil); !errors.As(err, &f) || f.Status != 400 {
		t.Errorf("got %v", err)
	}
	if _, err := l.Create(l.ctx, "r", ""); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Create(l.ctx, "r", ""); !errors.As(err, &f) || f.Status != 429 {
		t.Errorf("got %v", err)
	}
}

func TestIdle(t *testing.T) {
	l := newLab(t, model.Interpreter{IdleTimeout: 50 * time.Millisecond})
	need(t, "bash", "-c", "true")
	if a := l.good("bash", "sleep .2; echo on"); a.stdout != "on\n" {
		t.Errorf("ended while it ran: %+v", a)
	}
	for end := time.Now().Add(patience); len(l.List()) > 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the context stays")
		}
	}
	if a := l.good("bash", "echo $?"); a.count != 1 {
		t.Errorf("got %+v", a)
	}
}

// TestIdleAtTheLastMoment: a cell that names no context has one, also while the
// default one is just removed; and one that could not be made does not stay.
func TestIdleAtTheLastMoment(t *testing.T) {
	need(t, "bash", "-c", "true")
	l := newLab(t, model.Interpreter{IdleTimeout: time.Millisecond})
	for range 30 {
		l.good("bash", "true")
		time.Sleep(time.Millisecond)
	}
	ctx, cancel := context.WithCancel(l.ctx)
	cancel()
	for range 20 {
		if _, err := l.Create(ctx, "bash", ""); err == nil {
			t.Error("a context was made for nobody")
		}
	}
	for end := time.Now().Add(patience); len(l.List()) > 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d contexts stay", len(l.List()))
		}
	}
}

func TestWire(t *testing.T) {
	need(t, "python3", "-c", "pass")
	l := newLab(t, model.Interpreter{})
	l.beat = 50 * time.Millisecond
	srv := l.serve()
	status, lines := post(t, srv.URL+"/execute", `{"code":"print('ü😀')\n'q'"}`)
	want := []string{
		`{"execution_count":1,"type":"number_of_executions"}`,
		`{"text":"\u00fc\ud83d\ude00\n","timestamp":0,"type":"stdout"}`,
		`{"is_main_result":true,"text":"q","type":"result"}`,
		`{"type":"end_of_execution"}`,
	}
	var got []string
	for _, line := range lines {
		if !strings.Contains(line, "keepalive") {
			got = append(got, stamp.ReplaceAllString(line, `"timestamp":0`))
			if n := len(got); n > 1 && strings.HasPrefix(got[n-1], `{"text":"\n"`) { // print writes the end of the line for itself
				got[n-2] = strings.Replace(got[n-2], `","timestamp"`, `\n","timestamp"`, 1)
				got = got[:n-1]
			}
		}
	}
	// Output and events have ways of their own.
	if status != 200 || !sameLines(got, want) {
		t.Errorf("got %d\n%s", status, strings.Join(got, "\n"))
	}
	if _, lines := post(t, srv.URL+"/execute", `{"code":"1/0"}`); !strings.Contains(strings.Join(lines, "\n"), `"name":"ZeroDivisionError","traceback":"Traceback`) {
		t.Errorf("got %v", lines)
	}
	if _, lines := post(t, srv.URL+"/execute", `{"code":"import time; time.sleep(.3)"}`); !strings.Contains(strings.Join(lines, "\n"), `{"type":"keepalive"}`) {
		t.Errorf("no sign of life: %v", lines)
	}
	if _, lines := post(t, srv.URL+"/execute", `{"code":"while True: pass"}`, TimeoutHeader, "0.1"); !strings.Contains(strings.Join(lines, "\n"), "TimeoutError") {
		t.Errorf("got %v", lines)
	}
	post(t, srv.URL+"/execute", `{"code":"import os; os._exit(1)"}`)
	if _, lines := post(t, srv.URL+"/execute", `{"code":"1"}`); strings.Contains(strings.Join(lines, "\n"), eventRestarted) {
		t.Errorf("E2B has no such line: %v", lines)
	}
	post(t, srv.URL+"/execute", `{"code":"import os; os._exit(1)"}`)
	if _, lines := post(t, srv.URL+"/execute", `{"code":"1"}`, EventsHeader, eventRestarted); lines[0] != `{"type":"context_restarted"}` {
		t.Errorf("got %v", lines)
	}
	for body, want := range map[string]int{
		`{"code":"1","language":"python","context_id":"x"}`: 400, `{"code":"1","context_id":"nope"}`: 404, `{"code":`: 400,
		`{"code":"1","language":"cobol"}`: 400, `{"code":"a\u0000"}`: 400,
	} {
		if status, _ := post(t, srv.URL+"/execute", body); status != want {
			t.Errorf("%s: got %d, want %d", body, status, want)
		}
	}
}

func TestClientGone(t *testing.T) {
	need(t, "python3", "-c", "pass")
	l := newLab(t, model.Interpreter{})
	srv := l.serve()
	ctx, cancel := context.WithCancel(l.ctx)
	hangUp(t, ctx, cancel, srv.URL+"/execute", `{"code":"kept = 1\nprint('on')\nwhile True: pass"}`)
	if a := l.py("kept"); a.main != "1" {
		t.Errorf("got %+v", a)
	}
}

// TestRemovedWhileItWaits: a stream of a cell that was told to wait says that the
// context is gone, and ends as all do.
func TestRemovedWhileItWaits(t *testing.T) {
	need(t, "bash", "-c", "true")
	l := newLab(t, model.Interpreter{})
	l.beat = 20 * time.Millisecond
	u := account.FromContext(l.ctx)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		l.runRow(w, r.WithContext(account.NewContext(r.Context(), u)))
	}))
	defer srv.Close()
	c, err := l.Create(l.ctx, "bash", "")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.acquire(l.ctx, c); err != nil { // as a cell does
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(l.ctx, "POST", srv.URL, strings.NewReader(`{"code":"echo x","context_id":"`+c.ID+`"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "text/event-stream")
	res, err := srv.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() && lines.Text() != "event: keepalive" {
	}
	if err := l.Remove(c.ID); err != nil {
		t.Error(err)
	}
	c.release(l.Service)
	var events []string
	for lines.Scan() {
		if name, ok := strings.CutPrefix(lines.Text(), "event: "); ok && name != "keepalive" {
			events = append(events, name)
		}
	}
	if got := strings.Join(events, " "); got != "error end_of_execution" {
		t.Errorf("got %q", got)
	}
}
