//go:build linux

package local

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestInitialisers builds a program whose initialisers read a secret, print and
// start goroutines: in pid 1 they may run inside the sandbox, or not at all.
func TestInitialisers(t *testing.T) {
	needIsolation(t)
	goTool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("no go command to build a program with")
	}
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte("canary"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, cgo := range []string{"0", "1"} {
		t.Run("cgo"+cgo, func(t *testing.T) {
			exe := filepath.Join(dir, "early"+cgo)
			build := exec.Command(goTool, "build", "-o", exe, "-ldflags=-X github.com/agent-sandbox/sandbox-go/providers/local/testdata/early/aaa.Secret="+secret, "./testdata/early")
			build.Env = append(os.Environ(), "CGO_ENABLED="+cgo)
			if out, err := build.CombinedOutput(); err != nil {
				t.Skipf("cannot build: %v: %s", err, out)
			}
			os.Remove("/tmp/early")
			out, err := exec.Command(exe, filepath.Join(dir, "state"+cgo)).Output()
			os.Remove("/tmp/early")
			if err != nil {
				t.Fatal(err, string(out))
			}
			got := string(out)
			if strings.Count(got, "early: read canary") != 1 {
				t.Errorf("the client itself reads its file once: %s", got)
			}
			_, inside, _ := strings.Cut(got, "inside: ")
			if !strings.Contains(inside, "end") || strings.Contains(inside, "canary") || strings.Contains(inside, "early:") {
				t.Errorf("inside: %s", inside)
			}
			t.Logf("inside: %s", inside)
		})
	}
}
