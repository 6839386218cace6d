//go:build linux

package process

import (
	"bytes"
	"context"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// task is one process as /proc/PID/stat shows it, proc_pid_stat(5).
type task struct {
	pid, ppid, pgid, sid int
	start                uint64 // clock ticks since boot; with pid it names a process for good
	dead                 bool   // waits for its parent to collect it
}

// tasks lists the processes that /proc shows and skip lets pass: reading a
// state is most of the cost of a sweep.
func tasks(skip func(pid int) bool) ([]task, error) {
	d, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	self := os.Getpid()
	var all []task
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid == self || skip(pid) {
			continue
		}
		if t, ok := readTask(pid); ok {
			all = append(all, t)
		}
	}
	return all, nil
}

func readTask(pid int) (task, bool) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return task{}, false
	}
	t, ok := parseStat(data)
	return t, ok && t.pid == pid
}

// parseStat reads a line of /proc/PID/stat. The name of the program is chosen
// by the program and may hold spaces and parentheses.
func parseStat(data []byte) (task, bool) {
	open, end := bytes.IndexByte(data, '('), bytes.LastIndexByte(data, ')')
	if open < 1 || end < open {
		return task{}, false
	}
	pid, err := strconv.Atoi(string(bytes.TrimSpace(data[:open])))
	f := strings.Fields(string(data[end+1:]))
	if err != nil || len(f) < 20 {
		return task{}, false
	}
	t := task{pid: pid, dead: f[0] == "Z" || f[0] == "X"}
	for i, p := range []*int{&t.ppid, &t.pgid, &t.sid} {
		if *p, err = strconv.Atoi(f[1+i]); err != nil {
			return task{}, false
		}
	}
	t.start, err = strconv.ParseUint(f[19], 10, 64)
	return t, err == nil
}

// markFromProc reads the mark where prlimit(2) is not allowed.
func markFromProc(pid int) uint64 {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/limits")
	if err != nil {
		return 0
	}
	const name = "Max realtime timeout"
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			if f := strings.Fields(rest); len(f) > 0 {
				v, err := strconv.ParseUint(f[0], 10, 64)
				if err == nil {
					return asMark(v)
				}
			}
		}
	}
	return 0
}

// prey is one command to be killed as a whole.
type prey struct {
	leader task // as it was while it was not collected
	mark   uint64
	// known are those found before, by number with the time of start: what lost
	// its parent to the kill is found again by this alone.
	known map[int]uint64
	// strangers are the first processes of other commands, which are our own
	// children: most of what there is need not be looked at.
	strangers func(pid int) bool
}

// tree finds the living processes of one command: those that carry its mark,
// and, whatever mark they carry, those in its session or process group and the
// descendants of all these. A process can set its mark to anything, that of
// another command too, but it cannot join a session, or get a parent, of another
// command: who is found that way belongs to this one.
func (p *prey) tree() ([]task, error) {
	all, err := tasks(p.strangers)
	if err != nil {
		return nil, err
	}
	found := pick(all, p.leader, func(t task) bool {
		start, ok := p.known[t.pid]
		return ok && start == t.start || p.mark != 0 && markOf(t.pid) == p.mark && !ofOurSession(t, all)
	})
	for _, t := range found {
		p.known[t.pid] = t.start
	}
	return found, nil
}

// ofOurSession reports whether t, which is marked, or one of its parents with the
// same mark is in the session of this process. A command has a session of its own,
// and nobody can join another one: who is in ours was started by this program for
// itself, in the moment in which it marked a command. A parent without the mark
// says nothing: it is the init, or another one, that has taken over an orphan.
func ofOurSession(t task, all []task) bool {
	own, err := unix.Getsid(0)
	if err != nil {
		return false
	}
	mark := markOf(t.pid)
	for range all { // parents may change while they are listed: no circle lasts
		if t.sid == own {
			return true
		}
		i := slices.IndexFunc(all, func(a task) bool { return a.pid == t.ppid }) // this process is none of them
		if i < 0 || markOf(t.ppid) != mark {
			return false
		}
		t = all[i]
	}
	return false
}

// pick is the choice of tree.
func pick(all []task, leader task, known func(task) bool) []task {
	// Once the last of its session is gone, the number may be somebody else's.
	reused := slices.ContainsFunc(all, func(t task) bool { return t.pid == leader.pid && t.start != leader.start })
	in := make(map[int]bool, 4)
	for _, t := range all {
		if !reused && (t.pid == leader.pid || t.sid == leader.pid || t.pgid == leader.pid) || known(t) {
			in[t.pid] = true
		}
	}
	for grown := true; grown; {
		grown = false
		for _, t := range all {
			if !in[t.pid] && in[t.ppid] {
				in[t.pid] = true
				grown = true
			}
		}
	}
	var out []task
	for _, t := range all {
		if in[t.pid] && !t.dead {
			out = append(out, t)
		}
	}
	return out
}

// all finds the living processes that carry any mark of ours.
func (m *marker) all() ([]task, error) {
	found, err := tasks(func(pid int) bool { return !m.owns(markOf(pid)) })
	var out []task
	for _, t := range found {
		if !t.dead && !ofOurSession(t, found) {
			out = append(out, t)
		}
	}
	return out, err
}

// signalTask signals the very process that t describes, not a later one with
// its number: the descriptor is opened first, then the start time compared.
func signalTask(t task, sig unix.Signal) {
	fd, err := unix.PidfdOpen(t.pid, 0)
	if err == nil {
		defer unix.Close(fd)
	} else if err != unix.ENOSYS {
		return
	}
	if now, ok := readTask(t.pid); !ok || now.start != t.start {
		return
	}
	if err != nil {
		_ = unix.Kill(t.pid, sig)
		return
	}
	// One that has gone in the meantime is what we want.
	_ = unix.PidfdSendSignal(fd, sig, nil, 0)
}

// sweep kills what find returns until two passes in a row find nothing, or ctx
// ends.
func sweep(ctx context.Context, find func() ([]task, error)) error {
	pause := time.Millisecond
	for empty := 0; empty < 2; {
		found, err := find()
		if err != nil {
			return err
		}
		if len(found) == 0 {
			empty++
			continue
		}
		empty = 0
		if len(found) > 1 {
			found = hold(found, find)
		}
		for _, t := range found {
			signalTask(t, unix.SIGKILL)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
		pause = min(2*pause, 20*time.Millisecond)
	}
	return nil
}

// hold stops found, and what they started in the meantime, so that a tree that
// forks cannot outrun the kill.
func hold(found []task, find func() ([]task, error)) []task {
	stopped := map[int]bool{}
	for range 16 {
		fresh := false
		for _, t := range found {
			if !stopped[t.pid] {
				stopped[t.pid] = true
				fresh = true
				signalTask(t, unix.SIGSTOP)
			}
		}
		if !fresh {
			break
		}
		again, err := find()
		if err != nil {
			break
		}
		found = again
	}
	return found
}
