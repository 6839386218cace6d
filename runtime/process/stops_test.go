//go:build linux

package process

import (
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/runtime/environment"
)

const tracedVariable = "TEST_ASK_TO_BE_TRACED"

// TestTracedCommandEnds: a command that asks its parent to trace it and stops
// would stay for ever, since nobody lets it go on; and one with such a thread would
// not end, since nobody collects that.
func TestTracedCommandEnds(t *testing.T) {
	if how := os.Getenv(tracedVariable); how != "" {
		beTraced(t, how)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		how, want string
		reap      bool
	}{
		{"first", "signal: killed", false}, {"other", "signal: killed", false}, {"ends", "exit status 3", false},
		{"first", "signal: killed", true}, {"other", "signal: killed", true}, {"ends", "exit status 3", true},
	} {
		how, want := c.how, c.want
		t.Run(fmt.Sprintf("%s,reap=%t", how, c.reap), func(t *testing.T) {
			s := New(Options{Reap: c.reap, Env: environment.New(environment.Options{Sandbox: map[string]string{tracedVariable: how}})})
			defer s.Shutdown(t.Context())
			p, sub := startForTest(t, s, self, "-test.run=^TestTracedCommandEnds$")
			defer sub.close()
			select {
			case <-p.ended:
			case <-time.After(30 * time.Second):
				t.Error("it stays")
				return
			}
			if out, end := collect(sub); end.GetStatus() != want {
				t.Errorf("got %v, %q", end, out)
			}
		})
	}
}

// TestTracedCommandEndsAmongOthers: the ends of other commands do not hide it.
func TestTracedCommandEndsAmongOthers(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s := New(Options{Env: environment.New(environment.Options{Sandbox: map[string]string{tracedVariable: "first"}})})
	defer s.Shutdown(t.Context())
	p, sub := startForTest(t, s, self, "-test.run=^TestTracedCommandEnds$")
	defer sub.close()
	noise := time.NewTicker(stopPause / 100)
	defer noise.Stop()
	for late := time.After(30 * time.Second); ; {
		select {
		case <-p.ended:
			return
		case <-noise.C:
			select {
			case s.stops.chld <- unix.SIGCHLD:
			default:
			}
		case <-late:
			t.Fatal("it stays")
		}
	}
}

// beTraced stops its first thread or another one, or ends while another one is
// traced.
func beTraced(t *testing.T, how string) {
	traced := make(chan error)
	trace := func() {
		runtime.LockOSThread()
		if _, _, errno := unix.RawSyscall(unix.SYS_PTRACE, unix.PTRACE_TRACEME, 0, 0); errno != 0 {
			t.Error(errno)
		}
		if how == "ends" {
			close(traced)
			select {}
		}
		t.Error("it went on: ", unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGSTOP))
	}
	var find func()
	find = func() {
		runtime.LockOSThread()
		if first := unix.Gettid() == os.Getpid(); first != (how == "first") {
			go find() // on another thread, while this one is kept
			select {}
		}
		trace()
	}
	go find()
	<-traced
	os.Exit(3)
}
