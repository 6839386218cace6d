package sdktest

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// examples are the programs of examples/declarative with the arguments they run
// with here.
var examples = []struct {
	name string
	args []string
	code int
}{
	{name: "commands"},
	{name: "csvstats", args: []string{"weather.csv"}},
	{name: "grep", args: []string{"the", "main.go", "example_test.go"}},
	{name: "imagesafe", args: []string{"-o", os.DevNull, "rocket.jpg"}},
	{name: "pi", args: []string{"-calls", "4", "-darts", "10000"}},
	{name: "planets", args: []string{"Earth", "Pluto", "Mars"}, code: 1},
	{name: "similar", args: []string{"proverbs.txt", "early bird"}},
	{name: "words"},
}

// varying is what of the output depends on the time and on the machine.
var varying = regexp.MustCompile(`\d+(\.\d+)?(µs|ms|s)\b|\b\d{10}\b|(pid|ns/\w+|user|hostname) .*|host \w+|from \S+|\r.*`)

// TestExamples runs the examples, built once, with the local provider and with
// the gateway; both must print the same.
func TestExamples(t *testing.T) {
	if testing.Short() {
		t.Skip("builds every example")
	}
	t.Parallel()
	g := startGateway(t, "--listen", "127.0.0.1:0")
	local := []string{"SANDBOX_PROVIDER=local", "SANDBOX_STATE_DIR=" + stateDir(t)}
	remote := []string{"SANDBOX_PROVIDER=e2b", "E2B_API_KEY=" + g.key, "E2B_API_URL=http://" + g.addr, "E2B_SANDBOX_URL=http://" + g.addr}
	for _, e := range examples {
		t.Run(e.name, func(t *testing.T) {
			dir, err := filepath.Abs(filepath.Join("../../examples/declarative", e.name))
			if err != nil {
				t.Fatal(err)
			}
			binary := filepath.Join(t.TempDir(), e.name)
			if out, err := exec.Command("go", "build", "-buildvcs=false", "-o", binary, dir).CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			want, wantErr := runExample(t, binary, dir, e.args, e.code, local)
			got, gotErr := runExample(t, binary, dir, e.args, e.code, remote)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("output (-local +gateway):\n%s", diff)
			}
			if diff := cmp.Diff(wantErr, gotErr); diff != "" {
				t.Errorf("standard error (-local +gateway):\n%s", diff)
			}
			// A program that does not close its client leaves sandboxes to their end.
			for _, id := range g.list(t) {
				g.do(t, http.MethodDelete, "/sandboxes/"+id)
			}
		})
	}
}

// runExample returns what the program prints, without what varies.
func runExample(t *testing.T, binary, dir string, args []string, code int, env []string) (stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Dir = dir
	cmd.Env = append(plainEnv(), env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if got := cmd.ProcessState.ExitCode(); got != code {
		t.Fatalf("%s: exit code %d, want %d (%v)\n%s%s", env[0], got, code, err, out.Bytes(), errs.Bytes())
	}
	return varying.ReplaceAllString(out.String(), "…"), varying.ReplaceAllString(errs.String(), "…")
}

// stateDir makes a directory whose path is short: sockets lie in it.
func stateDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "gw")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}
