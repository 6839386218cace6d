package drivers

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Cell is a piece of code to be run.
type Cell struct {
	Code    string
	Env     map[string]string // for this cell
	Timeout time.Duration     // after which it is interrupted; zero: never
}

// Check refuses what a program cannot be given.
func Check(code string, env map[string]string) error {
	if strings.IndexByte(code, 0) >= 0 {
		return errors.New("the code holds a NUL byte")
	}
	for k, v := range env {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.IndexByte(v, 0) >= 0 {
			return fmt.Errorf("variable %q is malformed", k)
		}
	}
	return nil
}

// groupDelay is how long the process has an interrupt for itself, before its
// children get it, too: what a cell has started in the background lives on
// when the interpreter answers.
const groupDelay = 500 * time.Millisecond

// Run runs a cell and hands what it tells to say, one after the other, without an
// end. It returns when the cell has ended, and reports whether the process lives;
// one that died, or was killed because it did not end, has said so. When ctx ends
// nobody listens any more, and the cell is interrupted. Cells are run one at a
// time.
func (e *Engine) Run(ctx context.Context, cell *Cell, say func(*Event)) (alive bool) {
	id := NewID()
	sent := make(chan error, 1)
	env := cell.Env
	if env == nil {
		env = map[string]string{}
	}
	go func() {
		sent <- e.send(&request{Code: cell.Code, Op: "run", ID: id, Marker: markerOf(id), Env: env})
	}()
	beat := time.NewTimer(e.Beat)
	defer beat.Stop()
	var limit, group, kill, settle <-chan time.Time
	if cell.Timeout > 0 {
		t := time.NewTimer(cell.Timeout)
		defer t.Stop()
		limit = t.C
	}
	gone := ctx.Done()
	timedOut, interrupted, ended := false, false, false
	var latest time.Time // for output after the end
	interrupt := func() {
		if interrupted {
			return
		}
		interrupted = true
		e.process.Interrupt(e.base, e.lang.Group)
		group, kill = time.After(groupDelay), time.After(e.Grace)
	}
	end := func() {
		ended, limit, group, kill, gone = true, nil, nil, nil, nil
		if e.settled() {
			notify(e.wake)
		}
		latest = time.Now().Add(outputLimit)
		settle = time.After(markerLimit)
	}
	// inTime takes the end of the cell where it has come: what came at the same
	// time, or was seen late because a client was slow, does not count then.
	inTime := func() bool {
		select {
		case got := <-e.ends:
			if got == id {
				end()
			}
		default:
		}
		return ended
	}
	pass := func() {
		for _, ev := range e.drain() {
			if ev.Type != Error || !timedOut {
				say(&ev)
				beat.Reset(e.Beat)
			}
		}
	}
	finish := func() {
		pass()
		for _, ev := range e.cuts() {
			say(&ev)
		}
	}
	for {
		select {
		case <-e.wake:
			pass()
			if ended && e.settled() {
				finish()
				timeoutEvent(cell, timedOut, "kept", say)
				return true
			}
			if ended { // a slow network may still carry some
				settle = time.After(min(markerLimit, time.Until(latest)))
			}
		case got := <-e.ends:
			if got == id {
				end()
			}
		case <-settle:
			finish()
			timeoutEvent(cell, timedOut, "kept", say)
			return true
		case <-e.over:
			<-sent
			finish()
			switch {
			case timedOut:
				timeoutEvent(cell, true, "lost", say)
			case inTime(): // the next cell learns of the death
			default:
				ev := Failure("ContextDied", e.death())
				say(&ev)
			}
			return false
		case <-limit:
			if !inTime() {
				timedOut = true
				interrupt()
			}
		case <-gone:
			gone = nil
			if !inTime() {
				interrupt()
			}
		case <-group:
			if !e.lang.Group {
				e.process.Interrupt(e.base, true)
			}
		case <-kill:
			if !inTime() {
				e.Kill("it did not end when it was interrupted")
			}
		case <-beat.C:
			say(&Event{Type: Keepalive})
			beat.Reset(e.Beat)
		}
	}
}

func timeoutEvent(cell *Cell, timedOut bool, state string, say func(*Event)) {
	if timedOut {
		ev := Failure("TimeoutError", fmt.Sprintf("the cell took longer than %v; the state of the context was %s", cell.Timeout, state))
		ev.Late = true // programs have errors of that name, too
		say(&ev)
	}
}
