//go:build linux

package local

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// Pause stops every process inside but init, and returns when all have stopped.
// They keep their memory, numbers, files and connections; nothing is written to
// disk, so that a pause does not outlive the machine.
//
// While it lasts the runtime refuses calls with E2024; calls that had begun go
// on after Resume, but clocks do not stand still: the lifetime of the sandbox
// ends it, and the deadline of a command kills that. Init keeps the pause, so
// it survives this process, unless the sandbox is attached. When ctx ends first
// the sandbox may be paused or not.
//
// A sandbox that is paused already is E2024. One that cannot be stopped within
// 10 s, because a process of it hangs in the kernel, goes on and is E8000.
func (p *Provider) Pause(ctx context.Context, id string) error {
	const op = "pause sandbox"
	sb, err := p.ready(ctx, op, id)
	switch {
	case err != nil:
		return err
	case sb.State == providers.StatePaused:
		return &errdefs.Error{Code: "E2024", Op: op, Message: "sandbox " + id + " is paused already"}
	}
	_, err = p.request(ctx, op, id, controlRequest{Op: opPause})
	return err
}

// Resume lets a paused sandbox go on. A Lifetime above what remains moves the
// end first.
func (p *Provider) Resume(ctx context.Context, id string, req providers.ConnectRequest) (*providers.Sandbox, error) {
	return p.resume(ctx, "resume sandbox", id, req)
}

// ready waits for a sandbox that is being made and describes it.
func (p *Provider) ready(ctx context.Context, op, id string) (*providers.Sandbox, error) {
	for {
		sb, err := p.find(ctx, op, id)
		if err != nil {
			return nil, err
		}
		switch sb.State {
		case providers.StateRunning, providers.StatePaused:
			return sb, nil
		case providers.StateStopped:
			return nil, asleepError(op, id)
		case providers.StateStarting:
			select { // its creator finishes, or dies and with it the sandbox
			case <-ctx.Done():
				return nil, cancelled(ctx, op)
			case <-time.After(5 * time.Millisecond):
			}
		default:
			return nil, &errdefs.Error{Code: "E2009", Op: op, Message: "sandbox " + id + " does not answer", Suggestion: "try again, or kill it"}
		}
	}
}

// resume returns the sandbox running, with the end moved.
func (p *Provider) resume(ctx context.Context, op, id string, req providers.ConnectRequest) (*providers.Sandbox, error) {
	if req.Lifetime != 0 {
		if err := checkLifetime(op, req.Lifetime); err != nil {
			return nil, err
		}
	}
	sb, err := p.ready(ctx, op, id)
	for errors.Is(err, errAsleep) {
		sb, err = p.wake(ctx, op, id, req.Lifetime)
		if err == nil || !errors.Is(err, errBusy) {
			return sb, err
		}
		select { // somebody else wakes it, or it falls asleep
		case <-ctx.Done():
			return nil, cancelled(ctx, op)
		case <-time.After(5 * time.Millisecond):
		}
		sb, err = p.ready(ctx, op, id)
	}
	if err != nil {
		return nil, err
	}
	if sb.State == providers.StatePaused || req.Lifetime != 0 {
		if _, err := p.request(ctx, op, id, controlRequest{Op: opResume, Lifetime: req.Lifetime}); err != nil {
			return nil, err
		}
		if sb, err = p.find(ctx, op, id); err != nil {
			return nil, err
		}
	}
	return sb, nil
}

// request sends one request to the init of a sandbox.
func (p *Provider) request(ctx context.Context, op, id string, req controlRequest) (controlAnswer, error) {
	t, done, err := p.begin(ctx, op)
	if err != nil {
		return controlAnswer{}, err
	}
	defer done()
	e, err := t.openEntry(id)
	if err != nil {
		return controlAnswer{}, t.settle(ctx, op, id)
	}
	defer e.close()
	return t.ask(ctx, op, e, req)
}

// ask sends a request; when init does not answer because it has ended the error
// says why.
func (t *tree) ask(ctx context.Context, op string, e *entry, req controlRequest) (controlAnswer, error) {
	a, err := e.control(ctx, req)
	switch {
	case err == nil:
		return a, nil
	case ctx.Err() != nil:
		return a, cancelled(ctx, op)
	case errdefs.CodeOf(err) != "":
		return a, err
	}
	return a, t.settle(ctx, op, e.id)
}

// thaw lets processes go on that were stopped by a freezer of version 1, which
// keeps SIGKILL from them: init has been killed and waits for their end.
func (t *tree) thaw(e *entry) {
	var conf savedConfig
	if e.load(fileConfig, &conf) == nil {
		thawGroups(ownCgroups(e.id, conf.Cgroups))
	}
}

func thawGroups(dirs []string) {
	for _, dir := range dirs {
		name, _ := limitFile(1, limitFreezer)
		if _, err := os.Lstat(filepath.Join(dir, name)); !errors.Is(err, fs.ErrNotExist) {
			_ = writeCgroup(dir, name, "THAWED") // tried again by whoever waits
		}
	}
}

// waitEnd waits until an init that was killed has ended, with all that was in
// its sandbox.
func (t *tree) waitEnd(e *entry, pidfd *os.File, limit time.Duration) error {
	// An init that was pausing may have stopped something after we let it go.
	for end := time.Now().Add(limit); ; {
		t.thaw(e)
		slice := time.Now().Add(500 * time.Millisecond)
		last := slice.After(end)
		if last {
			slice = end
		}
		if err := pidfd.SetReadDeadline(slice); err != nil {
			return err
		}
		err := waitPidfd(pidfd)
		if last || !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
}
