//go:build linux

package local

import (
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"
)

func TestInitID(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	start, err := startTime(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	id := newInitID(cmd.Process.Pid, start)
	for name, other := range map[string]initID{
		"the number was given to another process": {id.PID, id.StartTime - 1, id.Boot, id.Namespace},
		"the machine was started anew":            {id.PID, id.StartTime, "x", id.Namespace},
		"no process":                              {},
		"a number that is not there":              {1 << 29, id.StartTime, id.Boot, id.Namespace},
	} {
		if f, err := other.open(); !errors.Is(err, errGone) {
			t.Errorf("%s: %v, %v", name, f, err)
		}
	}
	if _, err := (initID{id.PID, id.StartTime, id.Boot, "pid:[1]"}).open(); err == nil || errors.Is(err, errGone) {
		t.Errorf("another pid namespace: %v", err)
	}
	f, err := id.open()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	f.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	if err := waitPidfd(f); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("waiting for a living process: %v", err)
	}
	if err := errors.Join(killPidfd(f), f.SetReadDeadline(time.Now().Add(time.Minute)), waitPidfd(f)); err != nil {
		t.Error(err)
	}
	cmd.Wait()
	if _, err := id.open(); !errors.Is(err, errGone) {
		t.Errorf("after the end: %v", err)
	}
}

func TestParseStartTime(t *testing.T) {
	stat := []byte("42 (a) b) S 1 (c) 1) S 1 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 12345 1 2\n")
	// The command calls itself "a) b) S 1 (c) 1": the last parenthesis counts.
	if n, err := parseStartTime(stat); err != nil || n != 12345 {
		t.Errorf("got %d, %v", n, err)
	}
	for _, s := range []string{"", ")", "1 (a) S 1 2 3", "1 (a) S 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 x"} {
		if _, err := parseStartTime([]byte(s)); err == nil {
			t.Errorf("%q was accepted", s)
		}
	}
}

func FuzzParseStartTime(f *testing.F) {
	f.Add([]byte("42 (a) S 1 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 12345 1 2\n"))
	f.Fuzz(func(t *testing.T, b []byte) { _, _ = parseStartTime(b) })
}

func FuzzParseResident(f *testing.F) {
	f.Add([]byte("Name:\tx\nRssAnon:\t  12 kB\nRssFile:\t 1 kB\nRssShmem:\t 3 kB\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r := parseResident(b); r.private < 0 || r.shared < 0 {
			t.Errorf("negative: %+v", r)
		}
	})
}

func TestBootAfter(t *testing.T) {
	if d := bootAfter(time.Hour) - bootTime(); d < int64(59*time.Minute) || d > int64(time.Hour) {
		t.Errorf("an hour from now is %v from now", time.Duration(d))
	}
	if end := bootAfter(1<<63 - 1); end < bootTime() {
		t.Errorf("the longest lifetime ends at %d, in the past", end)
	}
}
