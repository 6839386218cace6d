//go:build linux

package process

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"

	pb "github.com/agent-sandbox/sandbox-go/internal/pb/process"
	"github.com/agent-sandbox/sandbox-go/runtime/fault"
)

// Limits on what is kept of processes that have ended.
const (
	// KeepEnded is how long the end of a process, and its buffered output, can
	// still be asked for with Connect.
	KeepEnded = 60 * time.Second

	maxEnded      = 4096     // processes; the oldest go first
	maxEndedBytes = 32 << 20 // of their outputs together; the oldest lose theirs first
)

// table holds the processes of a service by number and tag.
type table struct {
	mu    sync.Mutex
	live  map[int]*proc // guarded by mu
	past  []pastProc    // guarded by mu; oldest first
	bytes int           // guarded by mu; of the outputs of past
	timer *time.Timer   // guarded by mu; runs while past is not empty

	records []Info // guarded by mu; of processes that have ended, oldest first
}

type pastProc struct {
	*proc
	at    time.Time
	bytes int // of its output that are kept
}

func newTable() *table { return &table{live: map[int]*proc{}} }

func (t *table) add(p *proc) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.live[p.pid] = p
}

// ended moves p, which has ended so, from the living to the past.
func (t *table) ended(p *proc, end *pb.ProcessEvent_EndEvent) {
	t.mu.Lock()
	defer t.mu.Unlock()
	// The number may belong to a later process already.
	if t.live[p.pid] == p {
		delete(t.live, p.pid)
	}
	t.recordLocked(p, end)
	kept := p.out.kept()
	t.past = append(t.past, pastProc{p, time.Now(), kept})
	t.bytes += kept
	t.trimLocked()
}

// trimLocked keeps the past within its limits.
func (t *table) trimLocked() {
	now := time.Now()
	n := max(0, len(t.past)-maxEnded)
	for n < len(t.past) && now.Sub(t.past[n].at) >= KeepEnded {
		n++
	}
	for _, p := range t.past[:n] {
		t.bytes -= p.bytes
	}
	t.past = slices.Delete(t.past, 0, n)
	for i := 0; i < len(t.past) && t.bytes > maxEndedBytes; i++ {
		p := &t.past[i]
		p.out.forget()
		t.bytes -= p.bytes
		p.bytes = 0
	}
	if t.timer == nil && len(t.past) > 0 {
		t.timer = time.AfterFunc(t.past[0].at.Add(KeepEnded).Sub(now), func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.timer = nil
			t.trimLocked()
		})
	}
}

// close forgets the past.
func (t *table) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.timer != nil {
		t.timer.Stop()
		t.timer = nil
	}
	t.past, t.bytes = nil, 0
}

// leads reports whether pid is a process of ours that was not collected.
func (t *table) leads(pid int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.live[pid]
	return p != nil && !p.collected()
}

// living lists the processes that have not ended, by number.
func (t *table) living() []*proc {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []*proc
	for _, p := range t.live {
		if !p.collected() {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b *proc) int { return cmp.Compare(a.pid, b.pid) })
	return out
}

// collected reports whether the process itself is gone; its output may still be
// on its way.
func (p *proc) collected() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// find returns the process that sel names; with past, one that has ended will
// do. Of several with one tag it is the youngest.
func (t *table) find(sel *pb.ProcessSelector, past bool) (*proc, error) {
	var match func(*proc) bool
	var name string
	switch s := sel.GetSelector().(type) {
	case *pb.ProcessSelector_Pid:
		match = func(p *proc) bool { return uint32(p.pid) == s.Pid }
		name = "pid " + uitoa(s.Pid)
	case *pb.ProcessSelector_Tag:
		match = func(p *proc) bool { return p.tag != nil && *p.tag == s.Tag }
		name = "tag " + s.Tag
	default:
		return nil, fault.New(connect.CodeUnimplemented, "", "invalid input type %T", sel)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	var found *proc
	for _, p := range t.live {
		if match(p) && (past || !p.collected()) && (found == nil || p.serial > found.serial) {
			found = p
		}
	}
	for i := len(t.past) - 1; past && found == nil && i >= 0; i-- {
		if match(t.past[i].proc) {
			found = t.past[i].proc
		}
	}
	if found == nil {
		return nil, fault.New(connect.CodeNotFound, "E3010", "process with %s not found", name)
	}
	return found, nil
}
