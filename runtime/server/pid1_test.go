//go:build linux

package server

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	pb "github.com/agent-sandbox/sandbox-go/internal/pb/process"
)

// inNamespace runs the test called name again, alone, as pid 1 of a pid name
// space with a /proc of its own. It returns false in there.
func inNamespace(t *testing.T, name string) bool {
	t.Helper()
	if os.Getpid() == 1 {
		// Nothing of this reaches the name space of the parent.
		if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Mount("proc", "/proc", "proc", 0, ""); err != nil {
			t.Fatal(err)
		}
		return false
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+name+"$", "-test.v")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWUTS}
	if uid := os.Geteuid(); uid != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		t.Errorf("as pid 1: %v\n%s", err, out)
	case err != nil && os.Getenv("CI") != "":
		t.Errorf("no pid name space: %v", err)
	case err != nil:
		t.Skipf("no pid name space on this machine: %v", err)
	case !strings.Contains(string(out), "--- PASS: "+name):
		t.Errorf("as pid 1 the test did not run:\n%s", out)
	}
	return true
}

// zombies are the processes that nobody has collected.
func zombies(t *testing.T) []string {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	var dead []string
	for _, f := range stats {
		data, err := os.ReadFile(f)
		if err == nil && strings.Contains(string(data), ") Z ") {
			dead = append(dead, string(data))
		}
	}
	return dead
}

func TestOrphansAreCollected(t *testing.T) {
	t.Parallel()
	if inNamespace(t, "TestOrphansAreCollected") {
		return
	}
	r := newRig(t, func(o *Options) { o.Pid1 = true; o.DefaultWorkDir = "/" })
	for round := range 10 {
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := r.run(t.Context(), sh("i=0; while [ $i -lt 300 ]; do : & i=$((i+1)); done")); err != nil {
				t.Error(err)
			}
		})
		for i := range 20 {
			wg.Go(func() {
				res, err := r.run(t.Context(), sh(fmt.Sprintf("exit %d", i)))
				if err != nil || int(res.end.GetExitCode()) != i {
					t.Errorf("round %d: exit %d came back as %v, %v", round, i, res, err)
				}
			})
		}
		wg.Wait()
		deadline := time.Now().Add(10 * time.Second)
		// Orphans may go on dying for a moment: one look without any is enough.
		dead := zombies(t)
		for ; len(dead) > 0 && time.Now().Before(deadline); dead = zombies(t) {
			time.Sleep(10 * time.Millisecond)
		}
		if len(dead) > 0 {
			t.Fatalf("round %d: zombies: %q", round, dead)
		}
	}
}

// TestKillReachesWholeTree has the leader's descendants hide in every way they
// have: a child, a session of its own, a double fork with a session of its own
// and without any of the leader's descriptors and variables.
func TestKillReachesWholeTree(t *testing.T) {
	killTree(t, nil)
}

func TestKillReachesWholeTreeAsPid1(t *testing.T) {
	if inNamespace(t, "TestKillReachesWholeTreeAsPid1") {
		return
	}
	killTree(t, func(o *Options) { o.Pid1 = true; o.DefaultWorkDir = "/" })
}

func killTree(t *testing.T, change func(*Options)) {
	r := newRig(t, change)
	// An odd time to sleep makes our processes recognisable.
	const script = `sleep 4211 & setsid sleep 4211 & (setsid env -i sleep 4211 </dev/null >/dev/null 2>&1 &) ; echo ready; sleep 4211`
	done := make(chan *result, 1)
	started := make(chan uint32, 1)
	go func() {
		res, err := r.runWith(t.Context(), sh(script), func(pid uint32, out string) {
			if out == "ready\n" {
				started <- pid
			}
		})
		if err != nil {
			t.Error(err)
		}
		done <- res
	}()
	pid := <-started
	deadline := time.Now().Add(5 * time.Second)
	for len(sleepers(t)) < 4 && time.Now().Before(deadline) {
		time.Sleep(10 * time.Millisecond)
	}
	if n := len(sleepers(t)); n != 4 {
		t.Fatalf("%d processes run, want 4", n)
	}
	if err := r.signal(t.Context(), pid, pb.Signal_SIGNAL_SIGKILL); err != nil {
		t.Fatal(err)
	}
	if left := sleepers(t); len(left) > 0 {
		t.Errorf("left after the kill: %v", left)
	}
	res := <-done
	if res == nil || res.end.GetStatus() != "signal: killed" || res.end.GetExitCode() != -1 || res.end.GetExited() {
		t.Errorf("got %+v", res)
	}
}

// sleepers lists the living processes of killTree.
func sleepers(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err == nil && strings.HasPrefix(string(data), "sleep\x004211") {
			found = append(found, f)
		}
	}
	return found
}
