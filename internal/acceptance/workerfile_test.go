package acceptance

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/agent-sandbox/sandbox-go/internal/acceptance/fns"
	"github.com/agent-sandbox/sandbox-go/internal/sbtest"
	"github.com/agent-sandbox/sandbox-go/sandboxfn"
)

// TestWorkerBinary starts workers from another file than this program: the same
// program with another digest, as one that was built for the sandbox is.
func TestWorkerBinary(t *testing.T) {
	sbtest.NeedSandbox(t)
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "worker")
	if err := os.WriteFile(path, append(program, '\n'), 0o755); err != nil {
		t.Fatal(err)
	}
	c, err := sandboxfn.NewClient(&sandboxfn.ClientOptions{WorkerBinary: path})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if n, err := fns.Add(sandboxfn.WithClient(t.Context(), c), 40, 2); err != nil || n != 42 {
		t.Errorf("got %d, %v", n, err)
	}
}
