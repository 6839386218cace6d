package acceptance

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestMode runs an example as a whole program without sandboxes, which it says.
func TestMode(t *testing.T) {
	program := filepath.Join(t.TempDir(), "words")
	if out, err := exec.Command("go", "build", "-buildvcs=false", "-o", program, "../../examples/declarative/words").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	run := func(mode string) (stdout, stderr string, code int) {
		cmd := exec.Command(program)
		// No state directory, no provider: neither is asked for.
		cmd.Env = append(os.Environ(), "SANDBOX_MODE="+mode, "SANDBOX_PROVIDER=none")
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		err := cmd.Run()
		if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return out.String(), errs.String(), cmd.ProcessState.ExitCode()
	}
	ran := regexp.MustCompile(`Ran:(pid \d+), (uid \d+, host \S+)}`)
	for _, mode := range []string{"inprocess", "process"} {
		stdout, stderr, code := run(mode)
		m := ran.FindAllStringSubmatch(stdout, -1)
		if code != 0 || len(m) != 2 || m[0][2] != m[1][2] || (m[0][1] == m[1][1]) != (mode == "inprocess") ||
			!strings.HasSuffix(stdout, "an error is itself: true\n") {
			t.Errorf("%s: status %d\n%s%s", mode, code, stdout, stderr)
		}
		if strings.Count(stderr, "\n") != 1 || !strings.HasPrefix(stderr, "sandboxfn: SANDBOX_MODE="+mode+": calls run without a sandbox") {
			t.Errorf("%s: standard error %q", mode, stderr)
		}
	}
	stdout, _, code := run("in-process")
	if code != 1 || !strings.Contains(stdout, `E8007 read settings: SANDBOX_MODE="in-process": not one of inprocess, process`) {
		t.Errorf("a mode there is not: status %d, %s", code, stdout)
	}
}
