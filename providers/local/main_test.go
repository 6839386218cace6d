//go:build linux

package local

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// envRole makes this test program play another part: a client that is to be
// killed, say.
const envRole = "LOCAL_TEST_ROLE"

// roles are the parts; each ends the process.
var roles = map[string]func() error{}

func TestMain(m *testing.M) {
	if name := os.Getenv(envRole); name != "" {
		if err := roles[name](); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}
