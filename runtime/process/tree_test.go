//go:build linux

package process

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestParseStat(t *testing.T) {
	const tail = " S 7 8 9 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4242 1 2"
	for _, c := range []struct {
		name, line string
		want       task
		ok         bool
	}{
		{"plain", "12 (sh)" + tail, task{12, 7, 8, 9, 4242, false}, true},
		{"name of parentheses", "12 (a) R 1 (b) )" + tail, task{12, 7, 8, 9, 4242, false}, true},
		{"zombie", "12 (sh) Z" + tail[2:], task{12, 7, 8, 9, 4242, true}, true},
		{"cut", "12 (sh) S 7 8", task{}, false},
		{"no name", "12 S 7", task{}, false},
		{"backwards", ") 12 (", task{}, false},
		{"empty", "", task{}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, ok := parseStat([]byte(c.line))
			if ok != c.ok || ok && got != c.want {
				t.Errorf("got %+v, %v, want %+v, %v", got, ok, c.want, c.ok)
			}
		})
	}
}

func FuzzParseStat(f *testing.F) {
	if own, err := os.ReadFile("/proc/self/stat"); err == nil {
		f.Add(own)
	}
	f.Add([]byte("1 (x) y) R 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21"))
	f.Fuzz(func(t *testing.T, line []byte) {
		got, ok := parseStat(line)
		if again, ok2 := parseStat(slices.Concat(line, []byte(" 1"))); ok && (!ok2 || again != got) {
			t.Errorf("a field more changes %+v to %+v", got, again)
		}
	})
}

func TestPick(t *testing.T) {
	all := []task{
		{pid: 1},
		{pid: 10, ppid: 1, pgid: 10, sid: 10},              // the leader
		{pid: 11, ppid: 10, pgid: 10, sid: 10},             // child
		{pid: 12, ppid: 11, pgid: 12, sid: 12},             // left the session, lost its mark
		{pid: 13, ppid: 1, pgid: 13, sid: 13},              // marked daemon
		{pid: 14, ppid: 13, pgid: 13, sid: 13},             // its unmarked child
		{pid: 15, ppid: 1, pgid: 15, sid: 15},              // a stranger
		{pid: 16, ppid: 1, pgid: 16, sid: 16},              // another command
		{pid: 17, ppid: 10, pgid: 10, sid: 10, dead: true}, // waits to be collected
		{pid: 18, ppid: 15, pgid: 10, sid: 10},             // in the session, parent outside
	}
	for _, c := range []struct {
		name   string
		leader task
		want   []int
	}{
		{"living leader", task{pid: 10}, []int{10, 11, 12, 13, 14, 18}},
		{"number of the leader in use again", task{pid: 10, start: 7}, []int{11, 12, 13, 14}},
	} {
		var pids []int
		for _, g := range pick(all, c.leader, func(t task) bool { return slices.Contains([]int{11, 13, 17}, t.pid) }) {
			pids = append(pids, g.pid)
		}
		if !slices.Equal(pids, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, pids, c.want)
		}
	}
}

// TestKillFindsChangedMarks: a process that gives itself another mark is still
// found by its session and parents, and one whose mark it takes is left alone.
func TestKillFindsChangedMarks(t *testing.T) {
	s := New(Options{})
	defer s.Shutdown(t.Context())
	other, sub := startForTest(t, s, "sleep", "60")
	defer sub.close()
	const leaver = `setsid sh -c 'echo $$; exec sleep 60' & wait`
	for _, c := range []struct {
		name   string
		script string // prints the number of the one that hides
		mark   func(own uint64) uint64
	}{
		{"left the session, mark that nobody has", leaver, func(own uint64) uint64 { return own + 77 }},
		{"left the session, mark of another", leaver, func(uint64) uint64 { return other.mark }},
		{"left the session, no mark", leaver, func(uint64) uint64 { return unix.RLIM_INFINITY }},
		{"in the session, mark of another", "sh -c 'sleep 60 & echo $!'; sleep 60", func(uint64) uint64 { return other.mark }},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, sub := startForTest(t, s, "sh", "-c", c.script)
			defer sub.close()
			if p.mark == 0 {
				t.Skip("the limit is not free on this machine")
			}
			<-sub.wake
			out, _ := collect(sub)
			hidden, err := strconv.Atoi(strings.TrimSpace(out[stdout]))
			if err != nil {
				t.Fatal(err)
			}
			if err := unix.Prlimit(hidden, unix.RLIMIT_RTTIME, &unix.Rlimit{Cur: c.mark(p.mark), Max: unix.RLIM_INFINITY}, nil); err != nil {
				t.Fatal(err)
			}
			if err := p.kill(t.Context(), s.table); err != nil {
				t.Fatal(err)
			}
			if left, ok := readTask(hidden); ok && !left.dead {
				t.Errorf("%+v survived", left)
			}
			if other.collected() {
				t.Error("another command was killed")
			}
		})
	}
}

func TestMarksAreOurs(t *testing.T) {
	a, b := newMarker(), newMarker()
	for b.base == a.base {
		b = newMarker()
	}
	mark, err := a.with(func() error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	if mark == 0 {
		t.Skip("the limit is not free on this machine")
	}
	if !a.owns(mark) || b.owns(mark) || a.owns(0) {
		t.Errorf("mark %x: owns is wrong", mark)
	}
	if left := markOf(os.Getpid()); left != 0 {
		t.Errorf("the mark %x stayed on ourselves", left)
	}
	next, err := a.with(func() error {
		if got := markOf(os.Getpid()); got == 0 || got == mark {
			t.Errorf("during a start the mark is %x", got)
		}
		if got := markFromProc(os.Getpid()); got == 0 || got == mark {
			t.Errorf("/proc shows the mark %x", got)
		}
		return nil
	})
	if err != nil || next == mark {
		t.Errorf("got %x again, %v", next, err)
	}
}
