//go:build linux

package process

import (
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestReaperLeavesBrief: a command that the one who started it waits for is left
// to him, and who is behind it in the list of the dead is collected then.
func TestReaperLeavesBrief(t *testing.T) {
	start := func() *os.Process {
		h, err := os.StartProcess("/bin/true", []string{"true"}, &os.ProcAttr{})
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	if _, err := exec.LookPath("/bin/true"); err != nil {
		t.Skip(err)
	}
	r := newReaper()
	defer r.close()
	r.starting.RLock()
	p := &proc{handle: start(), out: newOutput(0), in: newInput(nil), done: make(chan struct{})}
	p.pid = p.handle.Pid
	r.add(p)
	other := start()
	r.starting.RUnlock()
	time.Sleep(100 * time.Millisecond) // it has seen both
	if p.collected() {
		t.Fatal("it was taken from the one who waits for it")
	}
	r.takeBrief(p)
	if p.state == nil || !p.state.Success() {
		t.Errorf("it ended with %v, %v", p.state, p.lost)
	}
	for deadline := time.Now().Add(10 * time.Second); !errors.Is(unix.Kill(other.Pid, 0), unix.ESRCH); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the one behind it was never collected")
		}
	}
}

// TestEndsSoon: commands that somebody talks to, or whose output has little room,
// are not waited for.
func TestEndsSoon(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	for _, c := range []struct {
		what string
		p    *proc
		want bool
	}{
		{"plain", &proc{in: newInput(nil), out: newOutput(0)}, true},
		{"with input", &proc{in: newInput(w), out: newOutput(0)}, false},
		{"little room", &proc{in: newInput(nil), out: newOutput(briefSpace - 1)}, false},
		{"terminal", &proc{in: newInput(nil), out: newOutput(0), term: &terminal{}}, false},
		{"worker", &proc{in: newInput(nil), out: newOutput(0), count: &counter{}}, false},
	} {
		if got := c.p.endsSoon(); got != c.want {
			t.Errorf("%s: %v", c.what, got)
		}
	}
}
