//go:build linux

package server

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// needBash skips where there is no bash, whose contexts start fastest.
func needBash(t testing.TB) {
	t.Helper()
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip(err)
	}
}

type codeAnswer struct {
	Stdout, Stderr, Language string
	ExitCode                 int   `json:"exit_code"`
	Count                    int   `json:"execution_count"`
	Millis                   int64 `json:"execution_time_ms"`
	Results                  []map[string]any
	Error                    *struct{ Name, Value, Traceback string }
}

// TestAPICodeUser: code runs as the user that the header names, as all else.
func TestAPICodeUser(t *testing.T) {
	needBash(t)
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	r := newRig(t, func(o *Options) { o.CanSwitchUser = true; o.DefaultWorkDir = "/" })
	var a codeAnswer
	var c struct{ ID string }
	r.call(t, "POST", "/code/contexts", `{"language":"bash","cwd":"/"}`, "Sandbox-User", "nobody").into(t, &c)
	r.call(t, "POST", "/code/run", `{"context_id":`+quote(c.ID)+`,"code":"id -un"}`).into(t, &a)
	if a.Stdout != "nobody\n" {
		t.Errorf("it ran as %q", a.Stdout)
	}
}

// TestAPICodeResults: an answer that would not end is ended.
func TestAPICodeResults(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip(err)
	}
	r := newRig(t, nil)
	a := r.call(t, "POST", "/code/run", `{"code":"while True: display('x' * 5000000)","timeout":300}`)
	if a.status != http.StatusRequestEntityTooLarge || a.code != "E5010" {
		t.Errorf("status %d %s, %d bytes", a.status, a.code, len(a.body))
	}
}

// TestAPICodeOwnTimeout: a program's own error of that name is not that its time was
// over.
func TestAPICodeOwnTimeout(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip(err)
	}
	r := newRig(t, nil)
	var a codeAnswer
	r.call(t, "POST", "/code/run", `{"code":"raise TimeoutError('mine')"}`).into(t, &a)
	if a.ExitCode != 1 || a.Error == nil || a.Error.Name != "TimeoutError" || a.Error.Value != "mine" {
		t.Errorf("got %+v", a)
	}
	if a := r.call(t, "POST", "/code/run", `{"code":"import time; time.sleep(60)","timeout":1}`); a.status != 408 || a.code != "E3001" {
		t.Errorf("%d %s", a.status, a.code)
	}
}

// TestAPICode runs code once, and in a context that keeps its state.
func TestAPICode(t *testing.T) {
	needBash(t)
	r := newRig(t, nil)
	run := func(body string) (a codeAnswer) {
		t.Helper()
		r.call(t, "POST", "/code/run", body).into(t, &a)
		return a
	}
	if a := run(`{"language":"bash","code":"echo out; echo err >&2; echo $X","env":{"X":"x"}}`); a.Stdout != "out\nx\n" || a.Stderr != "err\n" ||
		a.ExitCode != 0 || a.Language != "bash" || a.Count != 1 || a.Results == nil || a.Error != nil {
		t.Errorf("got %+v", a)
	}
	if a := run(`{"language":"bash","code":"(exit 7)"}`); a.ExitCode != 1 || a.Error == nil || a.Error.Name != "ExitCode" || a.Error.Value != "7" {
		t.Errorf("a failure: %+v", a)
	}

	if a := r.call(t, "POST", "/code/contexts", `{"language":"bash","cwd":"/no/such/folder"}`); a.status != 400 || a.code != "E3012" {
		t.Errorf("a folder that is none: %d %s %s", a.status, a.code, a.body)
	}

	var c struct{ ID, Language, Cwd string }
	r.call(t, "POST", "/code/contexts", `{"language":"bash"}`).into(t, &c)
	in := `{"context_id":` + quote(c.ID) + `,"code":`
	run(in + `"n=5"}`)
	if a := run(in + `"echo $n"}`); a.Stdout != "5\n" || a.Count != 2 {
		t.Errorf("the state is not kept: %+v", a)
	}
	// By itself it knows nothing of that.
	if a := run(`{"language":"bash","code":"echo \"[$n]\""}`); a.Stdout != "[]\n" {
		t.Errorf("two contexts are one: %+v", a)
	}
	if a := r.call(t, "GET", "/code/contexts", ""); a.status != 200 || strings.Count(a.body, c.ID) != 1 || strings.Count(a.body, `"language"`) != 1 {
		t.Errorf("the list: %d %s", a.status, a.body)
	}
	if a := r.call(t, "POST", "/code/contexts/"+c.ID+"/restart", ""); a.status >= 300 {
		t.Errorf("restart: %d %s", a.status, a.body)
	}
	if a := run(in + `"echo \"[$n]\""}`); a.Stdout != "[]\n" || a.Count != 1 {
		t.Errorf("after a restart: %+v", a)
	}
	if a := r.call(t, "DELETE", "/code/contexts/"+c.ID, ""); a.status >= 300 {
		t.Errorf("remove: %d %s", a.status, a.body)
	}

	for _, bad := range []struct {
		method, path, body string
		status             int
		code               string
	}{
		{"POST", "/code/run", `{"language":"cobol","code":"x"}`, 400, "E3011"},
		{"POST", "/code/run", `{"language":"bash","code":"x","timeout":-1}`, 400, "E3011"},
		{"POST", "/code/run", `{"language":"bash","code":"x","timeout":301}`, 400, "E3011"},
		{"POST", "/code/run", in + `"x","language":"bash"}`, 400, "E3011"},
		{"POST", "/code/run", in + `"x"}`, 404, "E3010"}, // it was removed
		{"POST", "/code/run", `{"language":"bash","code":"sleep 30","timeout":0.2}`, 408, "E3001"},
		{"POST", "/code/run", `[]`, 400, "E3006"},
		{"POST", "/code/contexts", `{"language":"cobol"}`, 400, "E3011"},
		{"POST", "/code/contexts/none/restart", "", 404, "E3010"},
		{"DELETE", "/code/contexts/none", "", 404, "E3010"},
	} {
		if a := r.call(t, bad.method, bad.path, bad.body); a.status != bad.status || a.code != bad.code {
			t.Errorf("%s %s %s: got %d %s %s", bad.method, bad.path, bad.body, a.status, a.code, a.body)
		}
	}
	if a := r.call(t, "GET", "/code/contexts", ""); strings.TrimSpace(a.body) != "[]" {
		t.Errorf("contexts are left: %s", a.body)
	}
}

// TestAPICodeStream: the events come as server-sent events, the last one says that
// it is the last.
func TestAPICodeStream(t *testing.T) {
	needBash(t)
	r := newRig(t, nil)
	a := r.call(t, "POST", "/code/run", `{"language":"bash","code":"echo one; (exit 3)"}`, "Accept", "text/event-stream")
	if a.status != 200 || !strings.HasPrefix(a.header.Get("Content-Type"), "text/event-stream") {
		t.Fatalf("got %d %s", a.status, a.body)
	}
	var kinds []string
	for line := range strings.Lines(a.body) {
		if kind, ok := strings.CutPrefix(line, "event: "); ok {
			kinds = append(kinds, strings.TrimSpace(kind))
		}
	}
	got := strings.Join(kinds, " ")
	if !strings.Contains(got, "stdout") || !strings.Contains(got, "error") || !strings.HasSuffix(got, "end_of_execution") || !strings.Contains(a.body, `"one\n"`) {
		t.Errorf("got %s: %s", got, a.body)
	}
	if a := r.call(t, "POST", "/code/run", `{"language":"cobol","code":"x"}`, "Accept", "text/event-stream"); a.status != 400 {
		t.Errorf("an unknown language: %d %s", a.status, a.body)
	}
}

// TestPrestartedCode: the interpreter that the template names runs when the server
// serves, if code is on.
func TestPrestartedCode(t *testing.T) {
	needBash(t)
	for _, on := range []bool{true, false} {
		r := newRig(t, func(o *Options) {
			o.Template = &model.Template{Interpreter: model.Interpreter{Prestart: []string{"bash"}}}
			if !on {
				o.Template.Server = &model.Server{Disable: []string{"dev_tools.code_run"}}
			}
		})
		if !on {
			if got := r.call(t, "GET", "/code/contexts", ""); strings.TrimSpace(got.body) != "[]" || len(r.list(t)) != 0 {
				t.Errorf("code is off, and there are %s", got.body)
			}
			continue
		}
		eventually(t, "the interpreter is listed", func() bool { return len(r.list(t)) == 1 })
		var got codeAnswer
		var all []struct{ ID string }
		r.call(t, "GET", "/code/contexts", "").into(t, &all)
		r.call(t, "POST", "/code/run", `{"context_id":`+quote(all[0].ID)+`,"code":"echo $$"}`).into(t, &got)
		if pid := strings.TrimSpace(got.Stdout); pid != fmt.Sprint(r.list(t)[0].GetPid()) {
			t.Errorf("the cell ran in process %s", pid)
		}
	}
}
