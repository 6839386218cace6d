// Package sbtest is what tests that need real sandboxes have in common: a state
// directory of their own, a reason to skip where no sandbox can be built, and
// the proof that nothing is left at the end.
package sbtest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
)

// ProviderVariable names the provider of the default client, where it is not
// local.
const ProviderVariable = "SBTEST_PROVIDER"

// Main runs the tests of m with a state directory of their own and the default
// client, and returns the exit status for os.Exit. After the last test it closes
// the client and fails when a sandbox, a process, a file or a goroutine is left.
func Main(m *testing.M) int {
	dir, err := os.MkdirTemp("", "sbtest")
	if err != nil {
		fmt.Fprintln(os.Stderr, "sbtest:", err)
		return 1
	}
	defer os.RemoveAll(dir)
	os.Setenv("SANDBOX_STATE_DIR", dir)
	os.Setenv("SANDBOX_CONFIG_DIR", filepath.Join(dir, "no-config")) // nor what this user has configured
	os.Setenv("SANDBOX_ENV_FILE", "none")
	os.Setenv("SANDBOX_LOCAL_POOL", "0") // what is counted are the sandboxes of the tests
	provider := os.Getenv(ProviderVariable)
	if provider == "" {
		provider = "local"
	}
	os.Setenv("SANDBOX_PROVIDER", provider)

	code := m.Run()
	if err := leftovers(dir); err != nil {
		fmt.Fprintln(os.Stderr, "sbtest: left after the tests:", err)
		return max(code, 1)
	}
	return code
}

// probe creates one sandbox and removes it; its error is why there are none.
var probe = sync.OnceValue(func() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	sb, err := sandboxfn.Create(ctx, nil)
	if err != nil {
		return err
	}
	return sb.Close()
})

// NeedSandbox skips the test, with the reason, on a machine that cannot build a
// sandbox. In CI that is a failure, and so is every other error.
func NeedSandbox(tb testing.TB) {
	tb.Helper()
	err := probe()
	switch {
	case err == nil:
	case errors.Is(err, sandboxfn.ErrIsolation) && os.Getenv("CI") == "":
		tb.Skip(err)
	default:
		tb.Fatal(err)
	}
}

// leftovers closes the default client and looks for what it left.
func leftovers(state string) error {
	c, err := sandboxfn.DefaultClient()
	if err != nil {
		return err
	}
	if err := c.Close(); err != nil {
		return err
	}
	var errs []error
	boxes, err := os.ReadDir(filepath.Join(state, "local", "boxes"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	for _, b := range boxes {
		errs = append(errs, fmt.Errorf("sandbox %s", b.Name()))
	}
	errs = append(errs, children(), goleak.Find())
	return errors.Join(errs...)
}

// children reports processes whose parent is this one.
func children() error {
	lists, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		return err
	}
	var errs []error
	for _, list := range lists {
		pids, err := os.ReadFile(list)
		if err != nil {
			continue // the thread ended, or the kernel does not tell
		}
		for _, pid := range strings.Fields(string(pids)) {
			name, _ := os.ReadFile("/proc/" + pid + "/comm")
			errs = append(errs, fmt.Errorf("process %s (%s)", pid, strings.TrimSpace(string(name))))
		}
	}
	return errors.Join(errs...)
}
