//go:build linux

package process

import (
	"context"
	"errors"
	"slices"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	pb "github.com/agent-sandbox/sandbox-go/internal/pb/process"
	"github.com/agent-sandbox/sandbox-go/runtime/fault"
)

// Limits on what is remembered of processes that have ended, longer than their
// output.
const (
	maxRecords    = 1024
	maxRecordText = 4 << 10 // bytes of all arguments
)

// Info describes a process, living or ended. It has nothing of its environment.
type Info struct {
	Pid      int
	Serial   uint64 // no two processes of a service have the same
	Argv     []string
	Cwd      string // as it was asked for
	Tag      string
	Terminal bool
	Began    time.Time
	Ended    time.Time                 // zero: it lives
	End      *pb.ProcessEvent_EndEvent // nil: it lives
}

func (p *proc) info() Info {
	i := Info{Pid: p.pid, Serial: p.serial, Cwd: p.config.GetCwd(), Terminal: p.term != nil, Began: p.began}
	if p.tag != nil {
		i.Tag = *p.tag
	}
	left := maxRecordText
	for _, a := range append([]string{p.config.GetCmd()}, p.config.GetArgs()...) {
		if len(a) > left {
			i.Argv = append(i.Argv, a[:left]+"…")
			break
		}
		left -= len(a)
		i.Argv = append(i.Argv, a)
	}
	return i
}

// Processes lists the living processes, and after them the last ones that have
// ended, the latest first.
func (s *Service) Processes() []Info {
	s.settle()
	var out []Info
	for _, p := range s.table.unfinished() {
		out = append(out, p.info())
	}
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	for _, r := range slices.Backward(s.table.records) {
		out = append(out, r)
	}
	return out
}

// Process describes the youngest process with a number; the error for none is
// E3010.
func (s *Service) Process(pid int) (Info, error) {
	for _, i := range s.Processes() {
		if i.Pid == pid {
			return i, nil
		}
	}
	return Info{}, fault.New(connect.CodeNotFound, "E3010", "process with pid %d not found", pid)
}

// unfinished lists those of which the end was not told, by number.
func (t *table) unfinished() []*proc {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]*proc, 0, len(t.live))
	for _, p := range t.live {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b *proc) int { return a.pid - b.pid })
	return out
}

// recordLocked remembers how p ended.
func (t *table) recordLocked(p *proc, end *pb.ProcessEvent_EndEvent) {
	i := p.info()
	i.Ended, i.End = time.Now(), end
	if len(t.records) == maxRecords {
		t.records = slices.Delete(t.records, 0, 1)
	}
	t.records = append(t.records, i)
}

// Position is how much of the outputs of a process somebody has read.
type Position struct {
	Serial uint64 // of the process
	Stdout uint64 // bytes; of a terminal all that it shows
	Stderr uint64
}

// Position is where the next event begins. It is for the goroutine of Next.
func (r *Running) Position() Position {
	at := Position{Serial: r.p.serial}
	if r.sub != nil {
		r.p.out.mu.Lock()
		defer r.p.out.mu.Unlock()
		at.Stdout, at.Stderr = r.sub.pos[stdout], r.sub.pos[stderr]
	}
	return at
}

// FollowFrom is [Service.Follow] to connect, from a position on, and says how many bytes
// from there are not kept any more. A position in another process is E3010.
func (s *Service) FollowFrom(pid int, at Position) (r *Running, lost Position, err error) {
	p, err := s.findFor("connect", &pb.ProcessSelector{Selector: &pb.ProcessSelector_Pid{Pid: uint32(pid)}}, true)
	if err != nil {
		return nil, lost, err
	}
	if p.serial != at.Serial {
		return nil, lost, gone(p)
	}
	sub := p.out.subscribe()
	o := p.out
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, n := range []uint64{stdout: at.Stdout, stderr: at.Stderr} {
		switch from := sub.pos[i]; {
		case n < from && i == stdout:
			lost.Stdout = from - n
		case n < from:
			lost.Stderr = from - n
		default:
			sub.pos[i] = min(n, o.rings[i].end)
		}
	}
	lost.Serial = p.serial
	return &Running{svc: s, p: p, sub: sub}, lost, nil
}

// Again follows the same process once more, from the oldest output that is still
// kept.
func (r *Running) Again() *Running {
	return &Running{svc: r.svc, p: r.p, sub: r.p.out.subscribe()}
}

// SignalForeground signals the job in the foreground of the terminal: what the
// keys of a keyboard would reach.
func (r *Running) SignalForeground(sig unix.Signal) error {
	if r.p.term == nil {
		return fault.New(connect.CodeInternal, "E3011", "this process has no terminal")
	}
	group, err := r.p.term.foreground()
	if err != nil || group <= 1 {
		return r.Signal(sig, true)
	}
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	if r.p.collected() {
		return gone(r.p)
	}
	if err := unix.Kill(-group, sig); err != nil && !errors.Is(err, unix.ESRCH) {
		return fault.New(connect.CodeInternal, "E3006", "error sending signal: %v", err)
	}
	return nil
}

// foreground is the process group in the foreground.
func (t *terminal) foreground() (int, error) {
	raw, err := t.master.SyscallConn()
	if err != nil {
		return 0, err
	}
	group, failed := 0, error(nil)
	err = raw.Control(func(fd uintptr) { group, failed = unix.IoctlGetInt(int(fd), unix.TIOCGPGRP) })
	return group, errors.Join(err, failed)
}

// Wait returns when the process has ended and its output is complete, or ctx is
// over.
func (r *Running) Wait(ctx context.Context) error {
	select {
	case <-r.p.ended:
		return nil
	case <-ctx.Done():
		return ended(ctx)
	}
}
