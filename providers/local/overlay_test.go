//go:build linux

package local

import (
	"os"
	"testing"
)

func TestProbeOverlay(t *testing.T) {
	needOverlay(t)
}

// needOverlay skips the test where a sandbox cannot have layers of files. In CI
// that is a failure.
func needOverlay(t testing.TB) {
	t.Helper()
	needIsolation(t)
	if err := probeOverlay(t.Context()); err != nil {
		if os.Getenv("CI") == "" {
			t.Skip(err)
		}
		t.Fatal(err)
	}
}
