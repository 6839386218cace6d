//go:build linux

package code

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/agent-sandbox/sandbox-go/runtime/account"
	"github.com/agent-sandbox/sandbox-go/runtime/environment"
	"github.com/agent-sandbox/sandbox-go/runtime/process"
	"github.com/agent-sandbox/sandbox-go/templates/model"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds what must happen; it costs nothing when things go well.
const patience = 3 * time.Minute

// lab is a service and the user it acts for.
type lab struct {
	*Service
	t   *testing.T
	ctx context.Context
}

// newLab starts a service. At the end nothing may be left of it.
func newLab(t *testing.T, in model.Interpreter) *lab {
	t.Helper()
	return newLimitedLab(t, in, nil)
}

// newLimitedLab has a counter of kills at the memory limit.
func newLimitedLab(t *testing.T, in model.Interpreter, kills func() uint64) *lab {
	t.Helper()
	return newLabWith(t, in, kills, map[string]string{"FROM_SANDBOX": "yes"})
}

// newLabWith has these variables of the sandbox.
func newLabWith(t *testing.T, in model.Interpreter, kills func() uint64, env map[string]string) *lab {
	t.Helper()
	t.Setenv("TMPDIR", t.TempDir())
	if err := os.Chmod(os.Getenv("TMPDIR"), 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	users := account.NewBook("", false)
	u, err := users.Lookup("")
	if err != nil {
		t.Fatal(err)
	}
	p := process.New(process.Options{
		Env: environment.New(environment.Options{Sandbox: env}), WorkDir: t.TempDir(),
		OOMKills: kills,
	})
	s := New(Options{Process: p, Users: users, Interpreter: in})
	t.Cleanup(func() {
		if err := p.Shutdown(context.WithoutCancel(ctx)); err != nil {
			t.Error(err)
		}
		s.Close()
		left, err := filepath.Glob(filepath.Join(os.Getenv("TMPDIR"), "sandbox-code-*"))
		if err != nil || len(left) > 0 {
			t.Errorf("left: %v, %v", left, err)
		}
	})
	return &lab{s, t, account.NewContext(ctx, u)}
}

// need skips without a program, or fails in CI, which has all.
func need(t *testing.T, program string, args ...string) {
	t.Helper()
	if err := exec.Command(program, args...).Run(); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("in CI: %s %v: %v", program, args, err)
		}
		t.Skipf("%s %v: %v", program, args, err)
	}
}

// answer is what a cell told.
type answer struct {
	stdout, stderr string
	results        []map[string]any
	err            *Event
	count          int
	types          []string
	main           string // text of the main result
}

func (a *answer) add(e *Event) error {
	if n := len(a.types); n == 0 || a.types[n-1] != e.Type {
		a.types = append(a.types, e.Type)
	}
	switch e.Type {
	case eventStdout:
		a.stdout += e.Text
	case eventStderr:
		a.stderr += e.Text
	case eventResult:
		// As on the wire.
		var m map[string]any
		if err := json.Unmarshal(e.Line(), &m); err != nil {
			return err
		}
		a.results = append(a.results, m)
		if m["is_main_result"] == true {
			a.main, _ = m["text"].(string)
		}
	case eventError:
		a.err = e
	case eventCount:
		a.count = e.Count
	}
	return nil
}

// do runs a cell.
func (l *lab) do(cell *Cell) *answer {
	l.t.Helper()
	a := &answer{}
	if err := l.Execute(l.ctx, cell, a.add); err != nil {
		l.t.Fatalf("%.80q: %v", cell.Code, err)
	}
	return a
}

// py runs a cell of Python in the default context and wants no error.
func (l *lab) py(code string) *answer {
	l.t.Helper()
	return l.good("python", code)
}

func (l *lab) good(lang, code string) *answer {
	l.t.Helper()
	a := l.do(&Cell{Language: lang, Code: code})
	if a.err != nil {
		l.t.Fatalf("%.80q: %s: %s\n%s", code, a.err.Name, a.err.Value, a.err.Traceback)
	}
	return a
}

// bad runs a cell that must fail with name.
func (l *lab) bad(lang, code, name string) *answer {
	l.t.Helper()
	a := l.do(&Cell{Language: lang, Code: code})
	if a.err == nil || a.err.Name != name {
		l.t.Fatalf("%.80q: got %+v, want %s", code, a.err, name)
	}
	return a
}

// serve starts the API of E2B.
func (l *lab) serve() *httptest.Server {
	srv := httptest.NewServer(l.Handler())
	l.t.Cleanup(srv.Close)
	return srv
}

// post sends a request and returns the status and the lines of the answer.
func post(t *testing.T, url, body string, header ...string) (int, []string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	defer http.DefaultClient.CloseIdleConnections()
	var out []string
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		out = append(out, lines.Text())
	}
	return res.StatusCode, out
}

// stamp is the time of a line.
var stamp = regexp.MustCompile(`"timestamp":\d+`)

// sameLines compares without order, but for the last.
func sameLines(got, want []string) bool {
	if len(got) != len(want) || got[len(got)-1] != want[len(want)-1] {
		return false
	}
	a, b := slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))
	return slices.Equal(a, b)
}

// hangUp sends a request and goes away at the first output.
func hangUp(t *testing.T, ctx context.Context, cancel func(), url, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer http.DefaultClient.CloseIdleConnections()
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		if strings.Contains(lines.Text(), "stdout") {
			break
		}
	}
	cancel()
}
