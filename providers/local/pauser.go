//go:build linux

package local

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agent-sandbox/sandbox-go/runtime/process"
)

// pauseLimit bounds the time until everything has stopped. Almost always it
// takes some milliseconds.
const pauseLimit = 10 * time.Second

// pauser pauses the sandbox, in init, which itself goes on: it keeps the end of
// the lifetime and the lifeline, and answers that the sandbox is paused.
//
// A pause consists of a gate that no start of a command passes and of a sweep
// that stops everything there is. Starts that wait at the gate, as everything
// else that had begun, go on after the resumption.
type pauser struct {
	freezer freezer

	mu    sync.Mutex   // one pause or resumption at a time
	gate  sync.RWMutex // held for reading by starts, and for writing from pause to resume
	state atomic.Int32 // changed with mu held
}

// States of a pauser.
const (
	stateGoing   = iota
	statePausing // calls are refused; something may still run
	statePaused
)

// refuses reports whether calls from outside must be refused.
func (p *pauser) refuses() bool { return p.state.Load() != stateGoing }

// paused reports whether everything has stopped.
func (p *pauser) paused() bool { return p.state.Load() == statePaused }

// spawner makes starts wait while the sandbox is paused.
func (p *pauser) spawner(next process.Spawner) process.Spawner {
	return func(name string, argv []string, attr *os.ProcAttr) (*os.Process, error) {
		p.gate.RLock()
		defer p.gate.RUnlock()
		return next(name, argv, attr)
	}
}

// pause returns when nothing but init runs; with changed false everything had
// been paused before. On an error everything goes on.
func (p *pauser) pause() (changed bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.paused() {
		return false, nil
	}
	p.state.Store(statePausing)
	p.gate.Lock()
	if err := p.stopAll(time.Now().Add(pauseLimit)); err != nil {
		_ = p.freezer.thaw() // the first error says more
		p.state.Store(stateGoing)
		p.gate.Unlock()
		return false, err
	}
	p.state.Store(statePaused)
	return true, nil
}

// stopAll stops what is there until two looks in a row find nothing new: a
// process that forks can be missed once, and its child would be found.
func (p *pauser) stopAll(deadline time.Time) error {
	if err := p.freezer.begin(); err != nil {
		return err
	}
	told := map[int]uint64{} // number and time of start
	for quiet := 0; quiet < 2; {
		pids, err := processes()
		if err != nil {
			return err
		}
		quiet++
		for _, pid := range pids {
			t, ok := readStat(pid)
			if !ok || t.state == 'X' || t.state == 'Z' && !threadsRun(pid) || told[pid] == t.start {
				continue
			}
			quiet, told[pid] = 0, t.start
			if err := p.freezer.stop(pid); err != nil {
				return err
			}
		}
		if time.Now().After(deadline) {
			return errNotStopped
		}
	}
	return p.freezer.settle(deadline)
}

// resume lets everything go on. Without a pause it does nothing.
func (p *pauser) resume() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.paused() {
		return nil
	}
	if err := p.freezer.thaw(); err != nil {
		return err
	}
	p.state.Store(stateGoing)
	p.gate.Unlock()
	return nil
}

// during calls f while nothing but init runs. Unlike in a pause, calls from
// outside are not refused: what they start waits.
func (p *pauser) during(f func() error) (err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.paused() {
		return f()
	}
	p.gate.Lock()
	defer p.gate.Unlock()
	defer func() { err = errors.Join(err, p.freezer.thaw()) }()
	if err := p.stopAll(time.Now().Add(pauseLimit)); err != nil {
		return err
	}
	return f()
}
