//go:build linux

package process

import (
	"fmt"
	"os"
	"slices"
	"testing"
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
		{pid: 16, ppid: 10, pgid: 10, sid: 10},             // marked as another command's
		{pid: 17, ppid: 10, pgid: 10, sid: 10, dead: true}, // waits to be collected
		{pid: 18, ppid: 15, pgid: 10, sid: 10},             // in the session, parent outside
	}
	all = slices.DeleteFunc(all, func(t task) bool { return t.pid == 16 }) // as tree does with foreign marks
	got := pick(all, 10, func(pid int) bool { return slices.Contains([]int{10, 11, 13, 17}, pid) })
	var pids []int
	for _, g := range got {
		pids = append(pids, g.pid)
	}
	if want := []int{10, 11, 12, 13, 14, 18}; fmt.Sprint(pids) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", pids, want)
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
