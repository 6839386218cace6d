//go:build linux

package process

import (
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/runtime/environment"
)

const tracedVariable = "TEST_ASK_TO_BE_TRACED"

// TestTracedCommandEnds: a command that asks its parent to trace it and stops
// would stay for ever, since nobody lets it go on.
func TestTracedCommandEnds(t *testing.T) {
	if os.Getenv(tracedVariable) != "" {
		runtime.LockOSThread()
		_, _, errno := unix.RawSyscall(unix.SYS_PTRACE, unix.PTRACE_TRACEME, 0, 0)
		if errno != 0 {
			t.Fatal(errno)
		}
		if err := unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		t.Fatal("it went on")
	}
	s := New(Options{Env: environment.New(environment.Options{Sandbox: map[string]string{tracedVariable: "1"}})})
	defer s.Shutdown(t.Context())
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p, sub := startForTest(t, s, self, "-test.run=^TestTracedCommandEnds$")
	defer sub.close()
	<-p.ended
	if out, end := collect(sub); end.GetExited() || end.GetStatus() != "signal: killed" {
		t.Errorf("got %v, %q", end, out)
	}
}
