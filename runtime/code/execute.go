//go:build linux

package code

import (
	"context"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Cell is a piece of code to be run.
type Cell struct {
	Code      string
	ContextID string            // where it runs; empty: the default context of Language
	Language  string            // empty: Python; not together with ContextID
	Env       map[string]string // for this cell
	Timeout   time.Duration     // after which it is interrupted; zero: never
}

// Execute runs a cell and hands what it tells to emit, one after the other; the
// last event is end_of_execution. It returns when the cell has ended. When ctx
// ends or emit fails, nobody listens any more and the cell is interrupted.
// An error means that nothing was run; it is a *[Failure] then, or ctx ended.
// What the code raises is an event.
func (s *Service) Execute(ctx context.Context, cell *Cell, emit func(*Event) error) error {
	if cell.ContextID != "" && cell.Language != "" {
		return fail(400, "E3011", "Only one of context_id or language can be provided")
	}
	if err := checkCell(cell); err != nil {
		return err
	}
	var c *Context
	var err error
	if cell.ContextID != "" {
		c, err = s.get(cell.ContextID)
	} else {
		c, err = s.add(ctx, canonical(cell.Language), "", true)
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	say := func(e *Event) {
		if ctx.Err() == nil && emit(e) != nil {
			cancel()
		}
	}
	if err := s.await(ctx, c, say); err != nil {
		return err
	}
	defer c.release(s)
	e, restarted, err := s.engine(ctx, c)
	if err != nil {
		return err
	}
	if restarted {
		say(&Event{Type: eventRestarted})
	}
	s.run(ctx, c, e, cell, say)
	say(&Event{Type: eventEnd})
	return nil
}

// checkCell refuses what a program cannot be given.
func checkCell(cell *Cell) error {
	if strings.IndexByte(cell.Code, 0) >= 0 {
		return fail(400, "E3011", "the code holds a NUL byte")
	}
	for k, v := range cell.Env {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.IndexByte(v, 0) >= 0 {
			return fail(400, "E3011", "variable %q is malformed", k)
		}
	}
	return nil
}

// await waits for the turn with signs of life.
func (s *Service) await(ctx context.Context, c *Context, say func(*Event)) error {
	c.enter()
	select {
	case c.turn <- struct{}{}:
		return nil
	default:
	}
	beat := time.NewTicker(s.beat)
	defer beat.Stop()
	for {
		select {
		case c.turn <- struct{}{}:
			return nil
		case <-beat.C:
			say(&Event{Type: eventKeepalive})
		case <-ctx.Done():
			c.leave(s.opts.Interpreter.IdleTimeout)
			return context.Cause(ctx)
		}
	}
}

// groupDelay is how long the process has an interrupt for itself, before its
// children get it, too: what a cell has started in the background lives on
// when the interpreter answers.
const groupDelay = 500 * time.Millisecond

// run runs a cell in e.
func (s *Service) run(ctx context.Context, c *Context, e *engine, cell *Cell, say func(*Event)) {
	id := newID()
	sent := make(chan error, 1)
	env := cell.Env
	if env == nil {
		env = map[string]string{}
	}
	s.wg.Go(func() {
		sent <- e.send(&request{Code: cell.Code, Op: "run", ID: id, Marker: markerOf(id), Env: env})
	})
	beat := time.NewTimer(s.beat)
	defer beat.Stop()
	var limit, group, kill, settle <-chan time.Time
	if cell.Timeout > 0 {
		t := time.NewTimer(cell.Timeout)
		defer t.Stop()
		limit = t.C
	}
	gone := ctx.Done()
	timedOut, interrupted, ended := false, false, false
	interrupt := func() {
		if interrupted {
			return
		}
		interrupted = true
		_ = e.run.Signal(unix.SIGINT, c.lang.group)
		group, kill = time.After(groupDelay), time.After(s.grace)
	}
	pass := func() {
		for _, ev := range e.drain() {
			if ev.Type != eventError || !timedOut {
				say(&ev)
				beat.Reset(s.beat)
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
				s.timeoutEvent(cell, timedOut, "kept", say)
				return
			}
		case got := <-e.ends:
			if got != id {
				continue
			}
			ended, limit, group, kill, gone = true, nil, nil, nil, nil
			if e.settled() {
				notify(e.wake)
			}
			settle = time.After(markerLimit)
		case <-settle:
			finish()
			s.timeoutEvent(cell, timedOut, "kept", say)
			return
		case <-e.over:
			<-sent
			finish()
			c.mu.Lock()
			if c.eng == e {
				c.eng = nil
			}
			c.lost = true
			c.mu.Unlock()
			if timedOut {
				s.timeoutEvent(cell, true, "lost", say)
				return
			}
			ev := failure("ContextDied", e.death())
			say(&ev)
			return
		case <-limit:
			timedOut = true
			interrupt()
		case <-gone:
			gone = nil
			interrupt()
		case <-group:
			if !c.lang.group {
				_ = e.run.Signal(unix.SIGINT, true)
			}
		case <-kill:
			e.kill(s.ctx, "it did not end when it was interrupted")
		case <-beat.C:
			say(&Event{Type: eventKeepalive})
			beat.Reset(s.beat)
		}
	}
}

func (s *Service) timeoutEvent(cell *Cell, timedOut bool, state string, say func(*Event)) {
	if timedOut {
		ev := failure("TimeoutError", fmt.Sprintf("the cell took longer than %v; the state of the context was %s", cell.Timeout, state))
		say(&ev)
	}
}
