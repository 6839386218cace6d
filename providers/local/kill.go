//go:build linux

package local

import (
	"context"
	"errors"
	"time"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// Kill ends a sandbox and returns when nothing is left of it: no process,
// control group or file. An id that is not there, or not any more, is E2020.
func (p *Provider) Kill(ctx context.Context, id string) error {
	const op = "kill sandbox"
	if err := checkID(op, id); err != nil {
		return err
	}
	t, done, err := p.begin(ctx, op)
	if err != nil {
		return err
	}
	defer done()
	e, err := t.living(ctx, op, id)
	if errors.Is(err, errAsleep) {
		if err := t.killAsleep(id); !errors.Is(err, errBusy) {
			return err
		}
		return p.Kill(ctx, id) // it was woken at this moment
	}
	p.mu.Lock()
	c := p.live[id]
	p.mu.Unlock()
	if err != nil && c != nil && c.alive() {
		// Its directory was removed, or cannot be reached. It is ours all the same.
		return stateError(op, "remove what sandbox "+id+" left", c.kill(ctx, t, nil))
	}
	if err != nil {
		return notThere(op, err)
	}
	defer e.close()
	_ = e.noteEnd(endKilled) // without the note the end counts as a crash
	if c != nil {
		err = c.kill(ctx, t, e)
	} else {
		err = t.kill(ctx, e)
	}
	return stateError(op, "remove what sandbox "+id+" left", err)
}

// notThere makes E2020 of every error that says that a sandbox has ended.
func notThere(op string, err error) error {
	switch errdefs.CodeOf(err) {
	case "E2021", "E2022", "E2023":
		return &errdefs.Error{Code: "E2020", Op: op, Message: "no such sandbox any more", Err: err}
	}
	return err
}

// kill ends a child of ours; watch removes it. Without a directory e is nil.
func (c *child) kill(ctx context.Context, t *tree, e *entry) error {
	_ = c.proc.process.Kill() // an error means that it has ended
	if e != nil {
		e.removeIdle()
	}
	for {
		c.thaw(t, e)
		select {
		case <-c.done:
			return c.err
		case <-ctx.Done():
			return cancelled(ctx, "kill sandbox")
		case <-time.After(500 * time.Millisecond): // see waitEnd
		}
	}
}

// kill ends a sandbox that another process made, or is making.
func (t *tree) kill(ctx context.Context, e *entry) error {
	const op = "kill sandbox"
	for deadline := time.Now().Add(killLimit); ; {
		if err := t.end(ctx, e); err != nil {
			return err
		}
		err := t.collectID(e.id)
		if errors.Is(err, errAsleep) { // it fell asleep before we came
			err = t.killAsleep(e.id)
		}
		if !errors.Is(err, errBusy) {
			return err
		}
		if time.Now().After(deadline) {
			return &errdefs.Error{Code: "E8000", Op: op, Message: "sandbox " + e.id + " does not end", Suggestion: "try again"}
		}
		select {
		case <-ctx.Done():
			return cancelled(ctx, op)
		case <-time.After(time.Millisecond):
		}
	}
}

// end sends init the end by the surest way there is. While the sandbox is
// being made there may be none yet.
func (t *tree) end(ctx context.Context, e *entry) error {
	var state savedState
	if err := absent(e.load(fileState, &state)); err != nil && !errors.Is(err, errGone) {
		return err
	}
	f, err := state.open()
	if err == nil {
		defer f.Close()
		if err := killPidfd(f); err != nil {
			return err
		}
		return t.waitEnd(e, f, killLimit)
	}
	if errors.Is(err, errGone) && state.PID != 0 {
		return nil
	}
	actx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	_, _ = e.control(actx, controlRequest{Op: opKill}) // not there yet, or not any more: the caller looks again
	return nil
}
