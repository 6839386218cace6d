//go:build linux

package process

import (
	"bufio"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMarkOfOurOwn: what this program starts for itself, in the moment in which it
// marks a command, carries the mark of the command and is not killed with it.
func TestMarkOfOurOwn(t *testing.T) {
	s := New(Options{})
	defer s.Shutdown(t.Context())
	p, sub := startForTest(t, s, "/bin/sh", "-c", "setsid sleep 1000 & exec sleep 1000")
	defer sub.close()
	if p.mark == 0 {
		t.Skip("commands can't be marked here")
	}
	own := exec.Command("/bin/sh", "-c", "setsid sleep 1000 & sleep 1000 & echo $! && wait")
	out, err := own.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var old unix.Rlimit
	if err := unix.Prlimit(0, unix.RLIMIT_RTTIME, nil, &old); err != nil {
		t.Fatal(err)
	}
	err = unix.Prlimit(0, unix.RLIMIT_RTTIME, &unix.Rlimit{Cur: p.mark, Max: old.Max}, nil)
	if err == nil {
		err = own.Start()
	}
	if err := unix.Prlimit(0, unix.RLIMIT_RTTIME, &old, nil); err != nil {
		t.Error(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	line, _ := bufio.NewReader(out).ReadString('\n')
	child, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil || markOf(own.Process.Pid) != p.mark || markOf(child) != p.mark {
		t.Fatalf("%q, %v: the marks are not those of the command", line, err)
	}
	defer func() {
		all, _ := tasks(func(int) bool { return false })
		for _, a := range all { // the one in a session of its own, too
			if a.ppid == own.Process.Pid {
				_ = unix.Kill(a.pid, unix.SIGKILL)
			}
		}
		_ = own.Process.Kill()
		_ = own.Wait()
	}()
	found, err := p.prey(s.table).tree()
	if err != nil {
		t.Fatal(err)
	}
	all, err := s.marker.all()
	if err != nil || len(all) < 2 {
		t.Errorf("%+v, %v", all, err)
	}
	for _, a := range all {
		if a.pid == own.Process.Pid || a.ppid == own.Process.Pid {
			t.Errorf("%+v is none of a command", a)
		}
	}
	if !slices.ContainsFunc(found, func(a task) bool { return a.pid == p.pid }) {
		t.Errorf("the command itself is not in %+v", found)
	}
	for _, a := range found {
		if a.pid == own.Process.Pid || a.ppid == own.Process.Pid {
			t.Errorf("%+v is none of the command", a)
		}
	}
	if err := p.kill(t.Context(), s.table); err != nil {
		t.Error(err)
	}
	<-p.ended
	if err := unix.Kill(child, 0); err != nil {
		t.Error("a process of ours was killed with the command:", err)
	}
}
