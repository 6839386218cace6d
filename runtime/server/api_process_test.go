//go:build linux

package server

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/runtime/httpapi"
)

func quote(s string) string { b, _ := json.Marshal(s); return string(b) }

func TestAPIShell(t *testing.T) {
	r := newRig(t, func(o *Options) { o.Env = map[string]string{"FROM": "sandbox", "BOTH": "sandbox"} })
	dir := r.opts.DefaultWorkDir
	for _, c := range []struct {
		name, path, body string
		want             httpapi.RunResult
	}{
		{"pipe and status", "/shell", `{"command":"echo a b | wc -w; echo oops >&2; exit 3"}`, httpapi.RunResult{Stdout: "2\n", Stderr: "oops\n", ExitCode: 3, Status: "exit status 3"}},
		{"variables", "/shell", `{"command":"echo $FROM $BOTH","env":{"BOTH":"call"}}`, httpapi.RunResult{Stdout: "sandbox call\n", Status: "exit status 0"}},
		{"folder", "/shell", `{"command":"pwd","cwd":` + quote(dir) + `}`, httpapi.RunResult{Stdout: dir + "\n", Status: "exit status 0"}},
		{"input", "/shell", `{"command":"tr a-z A-Z","stdin":"héllo"}`, httpapi.RunResult{Stdout: "HéLLO", Status: "exit status 0"}},
		{"no input", "/shell", `{"command":"cat"}`, httpapi.RunResult{Status: "exit status 0"}},
		{"argv is not read by a shell", "/exec", `{"argv":["printf","%s|","a b","$HOME","*"]}`, httpapi.RunResult{Stdout: "a b|$HOME|*|", Status: "exit status 0"}},
		{"binary", "/exec", `{"argv":["printf","a\\377b"]}`, httpapi.RunResult{Stdout: "a\uFFFDb", StdoutBase64: []byte("a\xffb"), Status: "exit status 0"}},
		{"signal", "/shell", `{"command":"kill -9 $$"}`, httpapi.RunResult{ExitCode: -1, Status: "signal: killed"}},
		{"input that nobody reads", "/shell", `{"command":"true","stdin":` + quote(strings.Repeat("x", 1<<20)) + `}`, httpapi.RunResult{Status: "exit status 0"}},
	} {
		var got httpapi.RunResult
		r.call(t, "POST", c.path, c.body).into(t, &got)
		if got.Pid <= 0 {
			t.Errorf("%s: no pid", c.name)
		}
		got.Pid, got.DurationMS = 0, 0
		if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", c.want) {
			t.Errorf("%s: got %+v, want %+v", c.name, got, c.want)
		}
	}
	for _, c := range []struct {
		name, path, body string
		status           int
		code             string
	}{
		{"empty body", "/shell", ``, 400, "E3011"},
		{"array", "/shell", `["ls"]`, 400, "E3006"},
		{"null", "/shell", `null`, 400, "E3006"},
		{"number", "/exec", `7`, 400, "E3006"},
		{"broken", "/shell", `{"command":`, 400, "E3006"},
		{"two", "/shell", `{"command":"ls"} {}`, 400, "E3006"},
		{"unknown key", "/shell", `{"comand":"ls"}`, 400, "E3006"},
		{"wrong kind", "/shell", `{"command":["ls"]}`, 400, "E3006"},
		{"timeout zero", "/shell", `{"command":"ls","timeout":0}`, 400, "E3011"},
		{"timeout text", "/shell", `{"command":"ls","timeout":"1"}`, 400, "E3006"},
		{"timeout large", "/shell", `{"command":"ls","timeout":1e9}`, 400, "E3011"},
		{"no argv", "/exec", `{"argv":[]}`, 400, "E3011"},
		{"no program", "/exec", `{"argv":["no-such-program-here"]}`, 404, "E3007"},
		{"no folder", "/exec", `{"argv":["ls"],"cwd":"/none/at/all"}`, 400, "E3012"},
		{"NUL", "/exec", `{"argv":["ls","a\u0000b"]}`, 400, "E3011"},
		{"variable", "/exec", `{"argv":["ls"],"env":{"a=b":"c"}}`, 400, "E3011"},
		{"timeout", "/shell", `{"command":"sleep 60","timeout":0.05}`, 408, "E3001"},
		{"too large", "/shell", `{"command":"` + strings.Repeat("x", 10<<20) + `"}`, 413, "E3006"},
		{"stream of no program", "/exec/stream", `{"argv":["no-such-program-here"]}`, 404, "E3007"},
		{"stream in no folder", "/shell/stream", `{"command":"ls","cwd":"/none/at/all"}`, 400, "E3012"},
		{"user", "/shell", `{"command":"ls"}`, 401, "E3008"},
	} {
		headers := []string{}
		if c.name == "user" {
			headers = []string{httpapi.UserHeader, "no-such-user"}
		}
		if a := r.call(t, "POST", c.path, c.body, headers...); a.status != c.status || a.code != c.code {
			t.Errorf("%s: got %d %s %s, want %d %s", c.name, a.status, a.code, a.body, c.status, c.code)
		}
	}
}

// TestAPIShellLargeOutput: the beginning and the end are kept, and it is said how
// much is not.
func TestAPIShellLargeOutput(t *testing.T) {
	r := newRig(t, nil)
	var got httpapi.RunResult
	r.call(t, "POST", "/shell", `{"command":"echo first; head -c 20000000 /dev/zero | tr '\\0' x; echo last"}`).into(t, &got)
	if !strings.HasPrefix(got.Stdout, "first\nxxx") || !strings.HasSuffix(got.Stdout, "xxxlast\n") {
		t.Errorf("got %.20q … %.20q", got.Stdout, got.Stdout[len(got.Stdout)-20:])
	}
	if int64(len(got.Stdout))+got.StdoutLost != 20000000+11 || len(got.Stdout) != 8<<20 {
		t.Errorf("%d bytes and %d lost", len(got.Stdout), got.StdoutLost)
	}
}

// TestAPIShellKillsTree: a timeout, and a client that goes away, end what the
// shell has started, too.
func TestAPIShellKillsTree(t *testing.T) {
	r := newRig(t, nil)
	script := func(file string) string {
		return `{"command":` + quote("setsid sleep 300 & echo $! >"+file+".tmp; mv "+file+".tmp "+file+"; wait") + `%s}`
	}
	t.Run("timeout", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "pid")
		for limit := 0.5; ; limit *= 2 {
			if a := r.call(t, "POST", "/shell", fmt.Sprintf(script(file), fmt.Sprintf(`,"timeout":%g`, limit))); a.code != "E3001" {
				t.Fatalf("got %+v", a)
			}
			if _, err := os.Stat(file); err == nil || limit > 60 {
				break // else it did not come that far
			}
		}
		expectGone(t, readPid(t, file))
	})
	for _, path := range []string{"/shell", "/shell/stream"} {
		t.Run(path, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "pid")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan struct{})
			go func() {
				defer close(done)
				req, _ := http.NewRequestWithContext(ctx, "POST", "http://sandbox"+path, strings.NewReader(fmt.Sprintf(script(file), "")))
				if resp, err := r.http.Do(req); err == nil {
					bufio.NewReader(resp.Body).WriteTo(nopWriter{})
					resp.Body.Close()
				}
			}()
			pid := readPid(t, file)
			cancel()
			<-done
			expectGone(t, pid)
		})
	}
}

type nopWriter struct{}

func (nopWriter) Write(p []byte) (int, error) { return len(p), nil }

// readPid waits for a file with a number.
func readPid(t *testing.T, file string) int {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if b, err := os.ReadFile(file); err == nil {
			var pid int
			fmt.Sscan(string(b), &pid)
			return pid
		}
	}
	t.Fatal("the program does not begin")
	return 0
}

// expectGone waits until a process is dead.
func expectGone(t *testing.T, pid int) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err != nil || strings.Contains(string(b), ") Z ") {
			return
		}
	}
	t.Errorf("process %d lives", pid)
}

// event is one server-sent event; a comment has only a name.
type event struct{ id, name, data string }

func (e event) into(t testing.TB, v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(e.data), v); err != nil {
		t.Fatalf("%v: %+v", err, e)
	}
}

// events opens a stream; next returns event by event, and an empty one at the end.
func (r *rig) events(t testing.TB, method, path, body string, headers ...string) (next func() event, closed func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, method, "http://sandbox"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := r.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	closed = func() {
		cancel()
		resp.Body.Close()
	}
	t.Cleanup(closed)
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("status %d, %v", resp.StatusCode, resp.Header)
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	return func() event {
		var e event
		for lines.Scan() {
			key, value, _ := strings.Cut(lines.Text(), ": ")
			switch key {
			case "id":
				e.id = value
			case "event":
				e.name = value
			case "data":
				e.data = value
			case "":
				if value != "" {
					return event{name: ":" + value}
				}
				if e != (event{}) {
					return e
				}
			}
		}
		return event{}
	}, closed
}

// output collects a stream to its end.
func output(t testing.TB, next func() event) (stdout, stderr string, names []string) {
	t.Helper()
	for {
		e := next()
		if e == (event{}) {
			return stdout, stderr, names
		}
		if len(names) == 0 || names[len(names)-1] != e.name {
			names = append(names, e.name)
		}
		var o httpapi.OutputEvent
		switch e.name {
		case "stdout", "stderr":
			e.into(t, &o)
			if o.Base64 != nil {
				o.Data = string(o.Base64)
			}
		}
		if e.name == "stdout" {
			stdout += o.Data
		} else {
			stderr += o.Data
		}
	}
}

func TestAPIShellStream(t *testing.T) {
	r := newRig(t, nil)
	next, _ := r.events(t, "POST", "/shell/stream", `{"command":"printf no-line-end; echo e >&2; exit 7"}`)
	var start httpapi.StartEvent
	first := next()
	first.into(t, &start)
	if first.name != "start" || start.Pid <= 0 || first.id == "" {
		t.Fatalf("got %+v", first)
	}
	var last event
	out, errs := "", ""
	for e := next(); e != (event{}); e = next() {
		var o httpapi.OutputEvent
		e.into(t, &o)
		switch e.name {
		case "stdout":
			out += o.Data
		case "stderr":
			errs += o.Data
		}
		last = e
	}
	var exit httpapi.ExitEvent
	last.into(t, &exit)
	if out != "no-line-end" || errs != "e\n" || last.name != "exit" || exit.ExitCode != 7 {
		t.Errorf("got %q %q %+v", out, errs, last)
	}
}

// TestAPIStreamWhileItRuns: output arrives before the end, also without the end of
// a line.
func TestAPIStreamWhileItRuns(t *testing.T) {
	r := newRig(t, nil)
	fifo := filepath.Join(t.TempDir(), "go")
	r.call(t, "POST", "/exec", `{"argv":["mkfifo",`+quote(fifo)+`]}`)
	next, _ := r.events(t, "POST", "/shell/stream", `{"command":`+quote("printf ready; read x <"+fifo+"; printf done")+`}`)
	next()
	if e := next(); !strings.Contains(e.data, "ready") {
		t.Fatalf("got %+v", e)
	}
	if err := os.WriteFile(fifo, []byte("go\n"), 0); err != nil { // the program reads now
		t.Fatal(err)
	}
	if out, _, names := output(t, next); out != "done" || names[len(names)-1] != "exit" {
		t.Errorf("got %q %v", out, names)
	}
}

// TestAPIStreamCharacters: a character that comes in parts stays one, and bytes that
// are no text arrive as they are.
func TestAPIStreamCharacters(t *testing.T) {
	r := newRig(t, nil)
	next, _ := r.events(t, "POST", "/shell/stream", `{"command":"printf 'a\\303'; sleep 0.2; printf '\\251b\\360\\237'; sleep 0.2; printf '\\230\\200'; sleep 0.2; printf 'x\\377\\303'"}`)
	var all, text string
	for e := next(); e != (event{}); e = next() {
		if e.name != "stdout" {
			continue
		}
		var o httpapi.OutputEvent
		e.into(t, &o)
		if strings.Contains(o.Data, "\uFFFD") != (o.Base64 != nil) {
			t.Errorf("got %+v", e)
		}
		if o.Base64 != nil {
			o.Data = string(o.Base64)
		} else {
			text += o.Data
		}
		all += o.Data
	}
	if all != "aéb😀x\xff\xc3" || !strings.HasPrefix(text, "aéb😀") {
		t.Errorf("got %q, as text %q", all, text)
	}
}

func TestAPIStreamTimeout(t *testing.T) {
	r := newRig(t, nil)
	next, _ := r.events(t, "POST", "/exec/stream", `{"argv":["sleep","60"],"timeout":0.05}`)
	_, _, names := output(t, next)
	if fmt.Sprint(names) != "[start error exit]" {
		t.Errorf("got %v", names)
	}
}

// TestAPIStreamHeartbeat: while nothing is printed, comments are sent.
func TestAPIStreamHeartbeat(t *testing.T) {
	r := newRig(t, func(o *Options) { o.testOnlyHeartbeat = time.Millisecond })
	next, closed := r.events(t, "POST", "/exec/stream", `{"argv":["sleep","60"]}`)
	next()
	for range 3 {
		if e := next(); e.name != ":alive" {
			t.Errorf("got %+v", e)
		}
	}
	closed()
}

// TestAPIStreamResume: a client that comes back gets what it has not seen, of the
// same process.
func TestAPIStreamResume(t *testing.T) {
	r := newRig(t, nil)
	next, closed := r.events(t, "POST", "/shell/stream", `{"command":"echo one; echo two; sleep 300"}`)
	start := next()
	seen := next()
	for !strings.Contains(seen.data, "two") {
		seen = next()
	}
	closed()
	for _, c := range []struct{ name, method, path, id, out string }{
		{"all, by post", "POST", "/shell/stream", start.id, "one\ntwo\n"},
		{"rest, by post", "POST", "/shell/stream", seen.id, ""},
	} {
		next, _ := r.events(t, c.method, c.path, `{"command":"echo again"}`, "Last-Event-ID", c.id)
		out, _, names := output(t, next)
		if out != c.out || names[len(names)-1] != "exit" {
			t.Errorf("%s: got %q %v", c.name, out, names)
		}
	}
	var s httpapi.StartEvent
	start.into(t, &s)
	next, _ = r.events(t, "GET", fmt.Sprintf("/process/%d/stream?last_event_id=%s", s.Pid, seen.id), "")
	if out, _, names := output(t, next); out != "" || fmt.Sprint(names) != "[start exit]" {
		t.Errorf("by get: got %q %v", out, names)
	}
	for _, id := range []string{"x", "1.2.3", "1.2.3.4.5", "-1.1.0.0", start.id + "x"} {
		if a := r.call(t, "POST", "/shell/stream", `{"command":"echo again"}`, "Last-Event-ID", id); a.status != 400 {
			t.Errorf("%s: got %+v", id, a)
		}
	}
	other := strings.Replace(start.id, ".", ".99", 1)
	if a := r.call(t, "POST", "/shell/stream", `{"command":"echo again"}`, "Last-Event-ID", other); a.status != 404 || a.code != "E3010" {
		t.Errorf("another process: got %+v", a)
	}
}

// TestAPIStreamLost: it is said how much of the output is not kept any more.
func TestAPIStreamLost(t *testing.T) {
	r := newRig(t, nil)
	var p httpapi.Started
	r.call(t, "POST", "/process/start", `{"command":"head -c 3000000 /dev/zero | tr '\\0' x; echo end"}`).into(t, &p)
	r.waitExited(t, p.Pid)
	next, _ := r.events(t, "GET", fmt.Sprintf("/process/%d/stream", p.Pid), "")
	next()
	lost := next()
	var l httpapi.LostEvent
	lost.into(t, &l)
	out, _, _ := output(t, next)
	if lost.name != "lost" || int(l.Stdout)+len(out) != 3000004 || !strings.HasSuffix(out, "xend\n") {
		t.Errorf("got %+v and %d bytes", lost, len(out))
	}
}

// waitExited waits for the end of a process and returns its exit code.
func (r *rig) waitExited(t testing.TB, pid int) int {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		var p httpapi.Process
		r.call(t, "GET", fmt.Sprintf("/process/%d", pid), "").into(t, &p)
		if p.State == "exited" {
			return *p.ExitCode
		}
	}
	t.Fatalf("process %d does not end", pid)
	return 0
}

func TestAPIProcesses(t *testing.T) {
	r := newRig(t, nil)
	var first, second httpapi.Started
	r.call(t, "POST", "/process/start", `{"command":"exit 5","env":{"SECRET":"s3cret"}}`).into(t, &first)
	r.call(t, "POST", "/process/start", `{"argv":["sleep","300"],"cwd":"/"}`).into(t, &second)
	if first.Command != "exit 5" || second.Command != "sleep 300" {
		t.Errorf("got %+v %+v", first, second)
	}
	if code := r.waitExited(t, first.Pid); code != 5 {
		t.Errorf("exit code %d", code)
	}
	// One that has exited stays in the list when others start.
	a := r.call(t, "GET", "/process/list", "")
	var l httpapi.ProcessList
	a.into(t, &l)
	states := map[int]string{}
	for _, p := range l.Processes {
		states[p.Pid] = p.State
	}
	if states[first.Pid] != "exited" || states[second.Pid] != "running" {
		t.Errorf("got %+v", l)
	}
	if strings.Contains(a.body, "s3cret") {
		t.Error("the list has variables")
	}
	for _, c := range []struct {
		path, body string
		status     int
		code       string
	}{
		{fmt.Sprintf("/process/%d/signal", second.Pid), `{"signal":"NOPE"}`, 400, "E3011"},
		{fmt.Sprintf("/process/%d/signal", second.Pid), `{"signal":11}`, 400, "E3011"},
		{fmt.Sprintf("/process/%d/signal", second.Pid), `{}`, 400, "E3011"},
		{fmt.Sprintf("/process/%d/signal", first.Pid), `{"signal":15}`, 404, "E3010"},
		{fmt.Sprintf("/process/%d/signal", os.Getpid()), `{"signal":15}`, 404, "E3010"},
		{"/process/1/signal", `{"signal":9}`, 404, "E3010"},
		{"/process/99999999999/signal", `{"signal":9}`, 400, "E3011"},
		{"/process/-1/signal", `{"signal":9}`, 404, ""},
		{"/process/start", `{}`, 400, "E3011"},
		{"/process/start", `{"command":"ls","argv":["ls"]}`, 400, "E3011"},
		{"/process/start", `{"argv":["no-such-program-here"]}`, 404, "E3007"},
	} {
		if a := r.call(t, "POST", c.path, c.body); a.status != c.status || a.code != c.code {
			t.Errorf("%s %s: got %d %s %s", c.path, c.body, a.status, a.code, a.body)
		}
	}
	if a := r.call(t, "GET", "/process/1", ""); a.code != "E3010" {
		t.Errorf("got %+v", a)
	}
	var s httpapi.Signalled
	r.call(t, "POST", fmt.Sprintf("/process/%d/signal", second.Pid), `{"signal":"term"}`).into(t, &s)
	if s.Signal != "SIGTERM" || r.waitExited(t, second.Pid) != -1 {
		t.Errorf("got %+v", s)
	}
}

// TestAPIProcessLimit: of many starts at once, exactly as many succeed as may run.
func TestAPIProcessLimit(t *testing.T) {
	r := newRig(t, nil)
	var ok, refused atomic.Int32
	var wg sync.WaitGroup
	for range 110 {
		wg.Go(func() {
			switch a := r.call(t, "POST", "/process/start", `{"argv":["sleep","300"]}`); a.status {
			case 200:
				ok.Add(1)
			case 429:
				refused.Add(1)
			default:
				t.Errorf("got %+v", a)
			}
		})
	}
	wg.Wait()
	if ok.Load() != 100 || refused.Load() != 10 {
		t.Errorf("%d started, %d refused", ok.Load(), refused.Load())
	}
	var l httpapi.ProcessList
	r.call(t, "GET", "/process/list", "").into(t, &l)
	r.call(t, "POST", fmt.Sprintf("/process/%d/signal", l.Processes[0].Pid), `{"signal":"KILL"}`)
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if a := r.call(t, "POST", "/process/start", `{"argv":["sleep","300"]}`); a.status == 200 || time.Now().After(end) {
			if a.status != 200 {
				t.Errorf("after an end: got %+v", a)
			}
			break
		}
	}
}

// TestAPIOverTCP: the API is the same on a listener of another kind.
func TestAPIOverTCP(t *testing.T) {
	s, err := New(&Options{Token: testToken, DefaultWorkDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	req, err := http.NewRequest("POST", "http://"+l.Addr().String()+"/shell", strings.NewReader(`{"command":"echo tcp"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Sandbox-Token", testToken)
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	var got httpapi.RunResult
	err = json.NewDecoder(resp.Body).Decode(&got)
	resp.Body.Close()
	if err != nil || got.Stdout != "tcp\n" {
		t.Errorf("got %+v, %v", got, err)
	}
	if err := s.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// TestAPIPaused: while the sandbox is paused, only what touches no process and no
// file answers.
func TestAPIPaused(t *testing.T) {
	r := newRig(t, func(o *Options) { o.Paused = func() bool { return true } })
	for _, row := range Endpoints() {
		path := strings.NewReplacer("{pid:[0-9]+}", "1", "{id}", "x", "{name}", "x").Replace(row.Path)
		a := r.call(t, row.Method, path, "")
		if strings.HasPrefix(row.Name, "core.") {
			if a.status != 200 {
				t.Errorf("%s: got %+v", row.Name, a)
			}
		} else if a.status != 409 || a.code != "E2024" {
			t.Errorf("%s: got %d %s", row.Name, a.status, a.code)
		}
	}
}
