//go:build linux

package local

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// bySignals stands in for the freezer of control groups.
const bySignals = "signals"

// freezer stops and continues processes of the sandbox, in init.
type freezer interface {
	// begin is called before the first stop.
	begin() error
	// stop makes a process stop, soon. One that has ended is no error.
	stop(pid int) error
	// settle waits until everything that was told to stop has stopped.
	settle(deadline time.Time) error
	// thaw lets everything go on that stop has stopped.
	thaw() error
	// end lets SIGKILL reach what is stopped, whatever else goes on at the time;
	// nothing is stopped any more after it.
	end()
}

// newFreezer makes the freezer that is called way in the report.
func newFreezer(way string, groups map[string][]*os.File) (freezer, error) {
	if way == bySignals {
		return &signalFreezer{stopped: map[int]uint64{}}, nil
	}
	for _, kind := range []string{groupFreeze, groupFrozen, groupStop} {
		if len(groups[kind]) == 0 {
			return nil, fmt.Errorf("freezer %q without the file %q", way, kind)
		}
	}
	g := groupFreezer{freeze: groups[groupFreeze][0], frozen: groups[groupFrozen][0], procs: groups[groupStop][0]}
	switch way {
	case byCgroup1:
		return &freezer1{groupFreezer: g}, nil
	case byCgroup2:
		return &freezer2{g}, nil
	}
	return nil, fmt.Errorf("unknown freezer %q", way)
}

// groupFreezer is what both versions of control groups have in common: a group
// stops, and with it whatever is in it or moved to it.
type groupFreezer struct{ freeze, frozen, procs *os.File }

// stop moves a process that may be in the group already.
func (g *groupFreezer) stop(pid int) error {
	if err := writePid(g.procs, pid); err != nil && err != unix.ESRCH {
		return fmt.Errorf("move process %d to the group that stops: %w", pid, err)
	}
	return nil
}

func (g *groupFreezer) write(value string) error {
	_, err := retryEINTR(func() (int, error) { return unix.Write(int(g.freeze.Fd()), []byte(value)) })
	if err != nil {
		return fmt.Errorf("write %q to the freezer: %w", value, err)
	}
	return nil
}

func (g *groupFreezer) state() ([]byte, error) {
	b := make([]byte, 256)
	n, err := g.frozen.ReadAt(b, 0)
	if err != nil && err != io.EOF {
		return nil, fmt.Errorf("read the state of the freezer: %w", err)
	}
	return b[:n], nil
}

// errNotStopped says that something inside cannot be stopped: it waits in the
// kernel for what does not come.
var errNotStopped = errors.New("a process does not stop")

// freezer2 is that of the unified tree. SIGKILL reaches what it has stopped.
type freezer2 struct{ groupFreezer }

func (f *freezer2) begin() error { return f.write("1") }
func (f *freezer2) thaw() error  { return f.write("0") }
func (f *freezer2) end()         {}

func (f *freezer2) settle(deadline time.Time) error {
	for {
		b, err := f.state() // reading also arms the event
		if err != nil {
			return err
		}
		if fieldOf(b, "frozen") == 1 {
			return nil
		}
		left := time.Until(deadline)
		if left <= 0 {
			return errNotStopped
		}
		p := []unix.PollFd{{Fd: int32(f.frozen.Fd()), Events: unix.POLLPRI}}
		if _, err := unix.Poll(p, int(left/time.Millisecond)+1); err != nil && err != unix.EINTR {
			return fmt.Errorf("wait for the freezer: %w", err)
		}
	}
}

// freezer1 is that of version 1. SIGKILL does not end what it has stopped, so
// init must not end before it has let go.
type freezer1 struct {
	groupFreezer
	mu sync.Mutex // held while the state is written; end never gives it back
}

func (f *freezer1) begin() error { return f.set("FROZEN") }
func (f *freezer1) thaw() error  { return f.set("THAWED") }

func (f *freezer1) set(state string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.write(state)
}

func (f *freezer1) end() {
	f.mu.Lock()
	if os.Getpid() == 1 {
		_ = unix.Kill(-1, unix.SIGKILL)
	}
	_ = f.write("THAWED") // whoever waits for our end tries too
}

// settle asks again and again: version 1 has no event. What came to the group
// while it stopped can be overlooked for ever; writing the state again, and now
// and then letting go for a moment, is what others found to help. All that is
// in the sandbox is in the group by now, so nothing gets away.
func (f *freezer1) settle(deadline time.Time) error {
	pause := 100 * time.Microsecond
	for tries := 1; ; tries++ {
		if tries%20 == 0 {
			if err := f.thaw(); err != nil {
				return err
			}
			time.Sleep(time.Millisecond)
		}
		if err := f.begin(); err != nil {
			return err
		}
		b, err := f.state() // reading also makes the kernel look
		if err != nil {
			return err
		}
		if string(bytes.TrimSpace(b)) == "FROZEN" {
			return nil
		}
		if time.Now().After(deadline) {
			return errNotStopped
		}
		time.Sleep(pause)
		pause = min(2*pause, 5*time.Millisecond)
	}
}

// signalFreezer does without control groups. What was stopped before by
// somebody else stays stopped afterwards.
type signalFreezer struct {
	stopped map[int]uint64 // by us: number and time of start
}

func (f *signalFreezer) begin() error { return nil }
func (f *signalFreezer) end()         {}

func (f *signalFreezer) stop(pid int) error {
	t, ok := readStat(pid)
	if !ok || t.stopped() {
		return nil
	}
	return f.signal(t, unix.SIGSTOP)
}

func (f *signalFreezer) signal(t procStat, sig unix.Signal) error {
	fd, err := unix.PidfdOpen(t.pid, 0)
	if err == unix.ESRCH {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process %d: %w", t.pid, err)
	}
	defer unix.Close(fd)
	if now, ok := readStat(t.pid); !ok || now.start != t.start {
		return nil
	}
	if sig == unix.SIGSTOP {
		f.stopped[t.pid] = t.start
	}
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && err != unix.ESRCH {
		return fmt.Errorf("signal process %d: %w", t.pid, err)
	}
	return nil
}

// settle looks until every thread of every process has stopped. There is no
// event: only a parent is told that a process stops.
func (f *signalFreezer) settle(deadline time.Time) error {
	for pause := 200 * time.Microsecond; ; pause = min(2*pause, 5*time.Millisecond) {
		pids, err := processes()
		if err != nil {
			return err
		}
		running := false
		for _, pid := range pids {
			t, ok := readStat(pid)
			if !ok || t.stopped() && !threadsRun(pid) {
				continue
			}
			// Perhaps one that had been stopped, and was continued before whoever
			// did so was stopped in turn.
			if f.stopped[pid] != t.start {
				if err := f.signal(t, unix.SIGSTOP); err != nil {
					return err
				}
			}
			running = running || threadsRun(pid)
		}
		switch {
		case !running:
			return nil
		case time.Now().After(deadline):
			return errNotStopped
		}
		time.Sleep(pause)
	}
}

// thaw continues children before parents, whose numbers are mostly smaller: a
// shell that waits should not see that its child was stopped.
func (f *signalFreezer) thaw() error {
	var errs []error
	pids := slices.SortedFunc(maps.Keys(f.stopped), func(a, b int) int { return cmp.Compare(b, a) })
	for _, pid := range pids {
		errs = append(errs, f.signal(procStat{pid: pid, start: f.stopped[pid]}, unix.SIGCONT))
		delete(f.stopped, pid)
	}
	return errors.Join(errs...)
}

// threadsRun reports whether a thread of the process runs or can: one that
// waits in the kernel (state D) finds the signal before it is back.
func threadsRun(pid int) bool {
	dir := "/proc/" + strconv.Itoa(pid) + "/task/"
	names, err := readNames(dir)
	if err != nil {
		return false // ended
	}
	for _, n := range names {
		b, err := readProc(dir + n + "/stat")
		f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
		if err != nil || len(f) == 0 {
			continue
		}
		switch f[0][0] {
		case 'T', 't', 'Z', 'X', 'D':
		default:
			return true
		}
	}
	return false
}

func readNames(dir string) ([]string, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.Readdirnames(-1)
}

// processes are the numbers of all processes but init, in ascending order.
func processes() ([]int, error) {
	names, err := readNames("/proc")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, n := range names {
		if pid, err := strconv.Atoi(n); err == nil && pid > 1 {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids, nil
}
