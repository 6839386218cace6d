package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
)

var update = flag.Bool("update", false, "rewrite the expected output of scripts, and docs/cli.md")

// envServe makes this program serve HTTP inside a sandbox.
const envServe = "SANDBOX_TEST_HTTP"

// TestMain runs the tests, or is the command itself. Sandboxes outlive the
// command that made them: they become children of this process then, and none
// may be left.
func TestMain(m *testing.M) {
	if addr := os.Getenv(envServe); addr != "" {
		fmt.Println(http.ListenAndServe(addr, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "from inside "+r.URL.Path) })))
		os.Exit(1)
	}
	testscript.Main(withoutLeak{m}, map[string]func(){"sandbox": main})
}

type withoutLeak struct{ m *testing.M }

func (w withoutLeak) Run() int {
	flag.Parse()
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		fmt.Fprintln(os.Stderr, "subreaper:", err)
		return 1
	}
	for _, sig := range []os.Signal{syscall.SIGINT, syscall.SIGHUP} {
		if signal.Ignored(sig) { // by whoever started the tests: not so in the processes that they start
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
	code := w.m.Run()
	if err := reap(); err != nil {
		fmt.Fprintln(os.Stderr, "left after the tests:", err)
		return max(code, 1)
	}
	return code
}

// reap waits for the children of this process, and names those that do not end.
func reap() error {
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		switch {
		case err == syscall.EINTR || pid > 0:
		case err == syscall.ECHILD:
			return nil
		case time.Now().After(deadline):
			lists, _ := filepath.Glob("/proc/self/task/*/children")
			var left []string
			for _, l := range lists {
				pids, _ := os.ReadFile(l)
				for _, p := range strings.Fields(string(pids)) {
					comm, _ := os.ReadFile("/proc/" + p + "/comm")
					left = append(left, p+" "+strings.TrimSpace(string(comm)))
				}
			}
			return fmt.Errorf("processes %s", strings.Join(left, ", "))
		}
	}
}

// needSandbox skips the test where no sandbox can be built; in CI it fails.
func needSandbox(t *testing.T) {
	t.Helper()
	if err := probe(); errors.Is(err, sandboxfn.ErrIsolation) && os.Getenv("CI") == "" {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
}

var probe = sync.OnceValue(func() error {
	dir, err := os.MkdirTemp("", "sbx")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	c, err := sandboxfn.NewClient(&sandboxfn.ClientOptions{Provider: "local", StateDir: dir, CacheDir: dir})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err = c.Create(ctx, nil)
	return errors.Join(err, c.Close())
})

// world is a state directory with its environment. At the end of the test there
// may be no sandbox in it.
func world(t testing.TB) (state string, env []string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "sbx") // short: paths of sockets are bounded
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	state = filepath.Join(dir, "state")
	t.Cleanup(func() {
		if left := boxes(state); len(left) > 0 {
			t.Errorf("sandboxes are left: %q", left)
			c, err := sandboxfn.NewClient(&sandboxfn.ClientOptions{Provider: "local", StateDir: state})
			if err != nil {
				return
			}
			defer c.Close()
			for _, id := range left {
				c.Kill(context.Background(), id)
			}
		}
	})
	return state, []string{
		"SANDBOX_STATE_DIR=" + state, "SANDBOX_CACHE_DIR=" + filepath.Join(dir, "cache"),
		"SANDBOX_CONFIG_DIR=" + filepath.Join(dir, "config"), "SANDBOX_ENV_FILE=none", "SANDBOX_PROVIDER=local",
		"TERM=xterm", "NO_COLOR=",
	}
}

func boxes(state string) []string {
	entries, err := os.ReadDir(filepath.Join(state, "local", "boxes"))
	if err != nil {
		return nil
	}
	var out []string
	for _, e := range entries {
		if len(e.Name()) == 20 {
			out = append(out, e.Name())
		}
	}
	return out
}

func TestScript(t *testing.T) {
	needSandbox(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script", UpdateScripts: *update,
		RequireExplicitExec: true, RequireUniqueNames: true,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"set": set, "plain": plain, "status": status, "fetch": fetch,
		},
		Setup: func(e *testscript.Env) error {
			_, env := world(e.T().(testing.TB))
			e.Vars = append(e.Vars, env...)
			e.Vars = append(e.Vars, "SELF="+self)
			return nil
		},
	})
}

// set NAME makes a variable of the last standard output.
func set(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: set NAME")
	}
	ts.Setenv(args[0], strings.TrimSpace(ts.ReadFile("stdout")))
}

var changing = []struct {
	form *regexp.Regexp
	word string
}{
	{regexp.MustCompile(`\b[a-z0-9]{20}\b`), "(ID)"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`), "(TIME)"},
	{regexp.MustCompile(`\bsnap[a-z0-9-]+\b`), "(SNAPSHOT)"},
	{regexp.MustCompile(`\d+[smhd] ago`), "(AGE)"},
	{regexp.MustCompile(`in \d+[smhd]`), "(SOON)"},
	{regexp.MustCompile(` +\n`), "\n"},
	{regexp.MustCompile(` {2,}`), "  "},
}

// plain writes the last standard output to a file, with words in place of what
// changes between runs.
func plain(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: plain FILE")
	}
	text := ts.ReadFile("stdout")
	for _, c := range changing {
		text = c.form.ReplaceAllString(text, c.word)
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(text), 0o666))
}

// status N PROGRAM… runs a program that must end with status N, with the file
// stdin as its input where there is one.
func status(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: status N PROGRAM ARG…")
	}
	err := ts.Exec(args[1], args[2:]...)
	got := 0
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		got = e.ExitCode()
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if fmt.Sprint(got) != args[0] {
		ts.Fatalf("status %d, want %s", got, args[0])
	}
}

// fetch FILE TEXT gets the address that FILE has in its first line, and wants
// TEXT.
func fetch(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: fetch FILE TEXT")
	}
	var last error
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		b, err := os.ReadFile(ts.MkAbs(args[0]))
		address, _, ok := bytes.Cut(b, []byte("\n"))
		if err != nil || !ok {
			continue
		}
		res, err := http.Get(string(address) + "/path")
		if err != nil {
			last = err
			continue
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if string(body) != args[1] {
			ts.Fatalf("got %q", body)
		}
		return
	}
	ts.Fatalf("nothing answers: %v", last)
}
