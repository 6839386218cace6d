//go:build linux

package local

import (
	"fmt"
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
			build := exec.Command(goTool, "build", "-buildvcs=false", "-o", exe, "-ldflags=-X github.com/agent-sandbox/sandbox-go/providers/local/testdata/early/aaa.Secret="+secret, "./testdata/early")
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

// TestInitialisersAreSmall bounds what the packages of init allocate before it
// begins: every sandbox waits for that.
func TestInitialisersAreSmall(t *testing.T) {
	cmd := exec.Command(selfPath(t), "-test.run=^$")
	cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	const most = 48 << 10 // bytes; the descriptors of a protocol take 33,000
	seen := 0
	for line := range strings.Lines(string(out)) {
		var pkg string
		var at, clock float64
		var bytes, allocs int
		if n, _ := fmt.Sscanf(line, "init %s @%f ms, %f ms clock, %d bytes, %d allocs", &pkg, &at, &clock, &bytes, &allocs); n != 5 || !strings.Contains(pkg, "/sandbox-go/") {
			continue
		}
		seen++
		if bytes > most {
			t.Errorf("the initialisers of %s allocate %d bytes", pkg, bytes)
		}
	}
	if seen < 5 {
		t.Errorf("only %d packages are reported: %s", seen, out)
	}
}

func selfPath(t *testing.T) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return exe
}
