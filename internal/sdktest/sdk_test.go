package sdktest

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// packages are the published packages, by the name of their lock file, and how
// much of the suite runs with each.
var packages = []struct{ lock, name, address, domain string }{
	{"e2b-2.51.0", "e2b", "full", "long"},
	{"e2b-2.50.0", "e2b", "long", ""},
	{"e2b-2.31.0", "e2b", "long", "light"},
	{"code-interpreter-2.8.0", "@e2b/code-interpreter", "long", ""}, // holds e2b 2.51.0
}

const (
	atOnce    = 2               // suites running at the same time
	suiteTime = 8 * time.Minute // that one suite may take
	minTests  = 80              // that a suite has at least
)

// TestSDK runs the suite with every package in two ways: with the gateway's
// address for everything (E2B_API_URL, E2B_SANDBOX_URL), and with a domain in
// which each sandbox has its names (E2B_DOMAIN) over TLS.
func TestSDK(t *testing.T) {
	needNode(t)
	t.Parallel()
	readSuite(t)
	plain := startGateway(t, "--listen", "127.0.0.1:0")
	named, name, ca := startNamedGateway(t)
	preload, err := filepath.Abs("testdata/localhost.cjs")
	if err != nil {
		t.Fatal(err)
	}
	byAddress := []string{
		"E2B_API_KEY=" + plain.key, "E2B_API_URL=http://" + plain.addr, "E2B_SANDBOX_URL=http://" + plain.addr,
	}
	byDomain := []string{"E2B_API_KEY=" + named.key, "E2B_DOMAIN=" + name, "NODE_EXTRA_CA_CERTS=" + ca}
	chosen := packages
	if os.Getenv("CI") == "true" && os.Getuid() != 0 {
		chosen = packages[:1] // CI runs all of them as root
	}
	slots := make(chan struct{}, atOnce)
	t.Run("packages", func(t *testing.T) { // returns when all are done
		for _, p := range chosen {
			dir := install(t, p.lock)
			run := func(way, extent string, env []string, flags ...string) {
				if extent == "" {
					return
				}
				t.Run(p.lock+"/"+way, func(t *testing.T) {
					t.Parallel()
					slots <- struct{}{}
					defer func() { <-slots }()
					runSuite(t, flags, env, []string{dir, p.name, extent})
				})
			}
			run("address", p.address, byAddress)
			run("domain", p.domain, byDomain, "--require", preload)
		}
	})
}

// readSuite reads the files of the suite, so that go test knows that its result
// depends on them.
func readSuite(t *testing.T) {
	for _, pattern := range []string{"testdata/*js", "testdata/suite/*js"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(files), err)
		}
		for _, file := range files {
			if _, err := os.ReadFile(file); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// An event is a line of testdata/reporter.mjs.
type event struct {
	Event   string   `json:"event"` // start, pass, fail, log
	Path    []string `json:"path"`
	Group   bool     `json:"group"`
	Skip    *string  `json:"skip"`
	Error   string   `json:"error"`
	Message string   `json:"message"`
	Millis  int      `json:"ms"`
}

// runSuite runs testdata/suite.mjs in a process and makes each of its tests a
// subtest of t.
func runSuite(t *testing.T, flags, env, args []string) {
	ctx, cancel := context.WithTimeout(t.Context(), suiteTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node",
		slices.Concat(flags, []string{"--test-reporter", "./reporter.mjs", "suite.mjs"}, args)...)
	cmd.Dir = "testdata"
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + args[0], "CI=" + os.Getenv("CI")}, env...)
	cmd.WaitDelay = 5 * time.Second
	stderr := &lockedBuffer{}
	cmd.Stderr = stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	passed, failed := subtests(t, bufio.NewScanner(stdout))
	if err := cmd.Wait(); err != nil && failed == 0 {
		t.Errorf("the suite ended with %v", err)
	}
	if text := stderr.String(); text != "" {
		t.Logf("on standard error:\n%s", text)
	}
	if passed+failed < minTests {
		t.Errorf("the suite ran %d tests, want at least %d", passed+failed, minTests)
	}
}

// subtests reads events to their end and counts the tests.
func subtests(t *testing.T, lines *bufio.Scanner) (passed, failed int) {
	lines.Buffer(nil, 16<<20)
	logs := map[string][]string{}
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Logf("output: %s", lines.Text())
			continue
		}
		path := strings.Join(e.Path, "/")
		switch {
		case e.Event == "log":
			logs[path] = append(logs[path], e.Message)
		case e.Event == "start":
		case e.Group:
			if e.Event == "fail" { // its own error: a hook failed
				t.Errorf("%s: %s", path, e.Error)
			}
		default:
			t.Run(path, func(t *testing.T) { report(t, e, logs[path]) })
			if e.Event == "fail" {
				failed++
			} else {
				passed++
			}
		}
	}
	if err := lines.Err(); err != nil {
		t.Error(err)
	}
	return passed, failed
}

func report(t *testing.T, e event, logs []string) {
	for _, line := range logs {
		t.Log(strings.TrimRight(line, "\n"))
	}
	t.Logf("took %d ms", e.Millis)
	if e.Event == "fail" {
		t.Error(e.Error)
	}
	if e.Skip != nil {
		t.Skip(*e.Skip)
	}
}
