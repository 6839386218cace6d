package providertest

import (
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv(flawVariable) != "" {
		os.Exit(m.Run())
	}
	goleak.VerifyTestMain(m)
}

// Each promise is noticed when it is broken: the suite fails in the test that
// is about it.
func TestBrokenPromises(t *testing.T) {
	noticed := map[string]bool{}
	for _, flaw := range slices.Sorted(maps.Keys(flaws)) {
		name := flaws[flaw]
		noticed[name] = true
		t.Run(flaw, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestContract$/^"+name+"$", "-test.v")
			cmd.Env = append(os.Environ(), flawVariable+"="+flaw)
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), "--- FAIL: TestContract/"+name) {
				t.Errorf("nobody noticed: %v\n%s", err, out)
			}
			if strings.Contains(string(out), "panic:") {
				t.Errorf("the suite panics:\n%s", out)
			}
		})
	}
	for _, c := range tests {
		if !noticed[c.name] && c.name != "get" { // what it sees, create sees first
			t.Errorf("no flaw is for the test %s", c.name)
		}
	}
}
