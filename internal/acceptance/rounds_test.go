package acceptance

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/sbtest"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/providers/local"
)

// TestRounds creates, calls and kills 1,000 times.
func TestRounds(t *testing.T) {
	sbtest.NeedSandbox(t)
	prog := buildRounds(t)
	state, before := t.TempDir(), emptyCgroups()
	n := "1000"
	if testing.Short() {
		n = "50"
	}
	cmd := exec.Command(prog, n)
	cmd.Env = append(os.Environ(), "SANDBOX_STATE_DIR="+state)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	checkNothingLeft(t, state, before)
}

// TestKilledClient kills the client with SIGKILL at a random moment, 100 times.
func TestKilledClient(t *testing.T) {
	sbtest.NeedSandbox(t)
	prog := buildRounds(t)
	state, before := t.TempDir(), emptyCgroups()
	n := 100
	if testing.Short() {
		n = 10
	}
	for range n {
		cmd := exec.Command(prog, "1000000")
		cmd.Env = append(os.Environ(), "SANDBOX_STATE_DIR="+state)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(rand.IntN(120)) * time.Millisecond)
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		cmd.Wait()
	}
	checkNothingLeft(t, state, before)
}

func buildRounds(t *testing.T) string {
	t.Helper()
	prog := filepath.Join(t.TempDir(), "acceptance-rounds")
	build := exec.Command("go", "build", "-buildvcs=false", "-o", prog, "./rounds")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return prog
}

// checkNothingLeft lets a new client collect what a killed one could not remove
// and looks for remains. A process of a sandbox keeps its lock, and so its
// folder; two seconds is what it has to end. Control groups that were there
// before are others'.
func checkNothingLeft(t *testing.T, state string, before []string) {
	t.Helper()
	p, err := providers.Open("local", providers.Config{StateDir: state})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	// What others on this machine leave is gone before: ours would stay.
	const patience = 30 * time.Second
	deadline := time.Now().Add(patience)
	for {
		if err := p.(*local.Provider).GC(t.Context()); err != nil {
			t.Error(err)
		}
		left := boxes(t, state)
		for _, group := range emptyCgroups() {
			if !slices.Contains(before, group) {
				left = append(left, group)
			}
		}
		if len(left) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("left after %v: %v", patience, left)
		}
		time.Sleep(50 * time.Millisecond)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), state) {
		t.Error("a mount of the state directory is left")
	}
}

// boxes lists the folders of sandboxes below state.
func boxes(t *testing.T, state string) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(state, "local", "boxes"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, "boxes/"+e.Name())
	}
	return names
}

// emptyCgroups lists control groups of sandboxes in which nothing has run for
// more than a moment: those of living sandboxes hold their init.
func emptyCgroups() []string {
	var left []string
	for _, pattern := range []string{"/sys/fs/cgroup/sandbox-go/*", "/sys/fs/cgroup/*/sandbox-go/*", "/sys/fs/cgroup/*/*/*/sandbox-go/*"} {
		dirs, _ := filepath.Glob(pattern)
		for _, dir := range dirs {
			// The group in which a killed client was trying out what it may limit
			// is collected when it is a minute old.
			if strings.HasPrefix(filepath.Base(dir), "probe-") {
				continue
			}
			info, err := os.Stat(dir)
			if err != nil || !info.IsDir() || time.Since(info.ModTime()) < time.Second {
				continue
			}
			procs, _ := filepath.Glob(filepath.Join(dir, "*", "cgroup.procs"))
			alive := false
			for _, f := range append(procs, filepath.Join(dir, "cgroup.procs")) {
				pids, err := os.ReadFile(f)
				alive = alive || err != nil || len(pids) > 0
			}
			if !alive {
				left = append(left, dir)
			}
		}
	}
	return left
}
