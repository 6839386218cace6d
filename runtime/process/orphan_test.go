//go:build linux

package process

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestKillFindsOrphans: who has left the session of its command and lost its parents
// is killed with the command, also where whoever takes over orphans is in the session
// of this process, as the init of a container often is.
func TestKillFindsOrphans(t *testing.T) {
	const inner = "SANDBOX_TEST_ORPHANS"
	if os.Getenv(inner) == "" {
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestKillFindsOrphans$", "-test.v")
		cmd.Env = append(os.Environ(), inner+"=1")
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "--- PASS") {
			t.Errorf("%v\n%s", err, out)
		}
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0); err != nil {
			t.Error(err)
		}
		for pid := 1; pid > 0; { // those that we have taken over
			pid, _ = unix.Wait4(-1, nil, unix.WNOHANG, nil)
		}
		return
	}
	s := New(Options{})
	defer s.Shutdown(t.Context())
	p, sub := startForTest(t, s, "sh", "-c", `(setsid sh -c 'echo $$; exec sleep 60 >/dev/null 2>&1' </dev/null &); exec sleep 60`)
	defer sub.close()
	if p.mark == 0 {
		t.Skip("commands can't be marked here")
	}
	<-sub.wake
	out, _ := collect(sub)
	orphan, err := strconv.Atoi(strings.TrimSpace(out[stdout]))
	if err != nil {
		t.Fatal(err)
	}
	for {
		if now, ok := readTask(orphan); !ok || now.ppid == os.Getppid() {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if err := p.kill(t.Context(), s.table); err != nil {
		t.Fatal(err)
	}
	if left, ok := readTask(orphan); ok && !left.dead {
		t.Errorf("%+v survived", left)
		_ = unix.Kill(orphan, unix.SIGKILL)
	}
}
