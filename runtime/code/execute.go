//go:build linux

package code

import (
	"context"
	"runtime"
	"time"

	"github.com/agent-sandbox/sandbox-go/runtime/code/drivers"
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
	if err := drivers.Check(cell.Code, cell.Env); err != nil {
		return fail(400, "E3011", "%v", err)
	}
	c, err := s.enter(ctx, cell)
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
	env := s.opts.Process.Kept(cell.Env) // as for a command
	if !e.Run(ctx, &drivers.Cell{Code: cell.Code, Env: env, Timeout: cell.Timeout}, say) {
		c.mu.Lock()
		if c.eng == e {
			c.eng = nil
		}
		c.lost = true
		c.mu.Unlock()
	}
	say(&Event{Type: eventEnd})
	return nil
}

// enter finds the context of a cell and keeps it. A default one that was idle for
// too long just now is made anew.
func (s *Service) enter(ctx context.Context, cell *Cell) (*Context, error) {
	if cell.ContextID != "" {
		c, err := s.get(cell.ContextID)
		if err == nil && !c.enter() {
			err = noContext(c.ID)
		}
		return c, err
	}
	for {
		c, err := s.add(ctx, drivers.Canonical(cell.Language), "", true)
		if err != nil || c.enter() {
			return c, err
		}
		runtime.Gosched() // whoever ends it takes it out first
	}
}

// await waits, for a context that is kept, for the turn with signs of life.
func (s *Service) await(ctx context.Context, c *Context, say func(*Event)) error {
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
