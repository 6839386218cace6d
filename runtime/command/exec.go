//go:build linux

package command

import (
	"context"
	"errors"
	"maps"
	"time"

	pb "github.com/agent-sandbox/sandbox-go/internal/pb/process"
	"github.com/agent-sandbox/sandbox-go/runtime/account"
	"github.com/agent-sandbox/sandbox-go/runtime/process"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// heartbeat is the silence after which a stream shows life.
const heartbeat = 15 * time.Second

// Exec is a program that a function runs in the sandbox, as any other command is
// run there: under the sandbox's policy, with its variables, and collected when it
// ends, which pid 1 does for all processes, so that package os/exec cannot be used
// in a runtime.
type Exec struct {
	Path string // a path, or a name that is looked up in the PATH of the command
	Args []string
	Env  map[string]string // over the variables of the sandbox
	Dir  string            // empty: that of the sandbox
	User string            // empty: the default user
}

// Output is what a program printed and how it ended.
type Output struct {
	Stdout, Stderr []byte // the first 8 MiB of each
	Truncated      bool   // there was more
	ExitCode       int    // -1 after a signal
}

type serviceKey struct{}

// Run runs the program and waits for its end. ctx must be the context of a call of
// a function, or come from it; when it ends, the program and all that it started
// are killed. An exit code other than zero is not an error.
func (x *Exec) Run(ctx context.Context) (*Output, error) {
	s, ok := ctx.Value(serviceKey{}).(*Service)
	if !ok {
		return nil, errdefs.New("E3011", "run "+x.Path, "the context is not one of a command")
	}
	c := &collector{}
	if err := s.start(ctx, x, c); err != nil {
		return nil, errdefs.Wrap(errdefs.CodeOf(err), "run "+x.Path, message(err), err)
	}
	out := &Output{Stdout: c.stdout, Stderr: c.stderr, Truncated: c.answer.Truncated}
	if code := c.answer.ExitCode; code != nil {
		out.ExitCode = *code
	}
	return out, nil
}

// start runs a program to its end, or kills it when ctx ends or out fails.
func (s *Service) start(ctx context.Context, x *Exec, out sink) error {
	u, err := s.opts.Users.Lookup(x.User)
	if err != nil {
		return errdefs.Wrap("E3008", "", err.Error(), err)
	}
	none := false
	config := &pb.ProcessConfig{Cmd: x.Path, Args: x.Args, Envs: maps.Clone(x.Env)}
	if x.Dir != "" {
		config.Cwd = &x.Dir
	}
	r, err := s.opts.Process.Begin(process.Declared(account.NewContext(ctx, u)), &pb.StartRequest{Process: config, Stdin: &none})
	if err != nil {
		return err
	}
	defer r.Close()
	// By itself, as out may wait for a client that takes nothing.
	follow, stop := r.KillWith(ctx)
	err = out.started(r.Pid())
	for err == nil {
		var e *pb.ProcessEvent
		wait, cancel := context.WithTimeout(follow, heartbeat)
		e, err = r.Next(wait)
		silent := errors.Is(wait.Err(), context.DeadlineExceeded)
		cancel()
		switch {
		case err != nil && silent && follow.Err() == nil:
			err = out.alive()
		case err != nil:
		case e.GetEnd() != nil:
			if killed, _ := stop(); killed {
				return context.Cause(ctx)
			}
			return out.ended(exitOf(e.GetEnd(), r.Limit()))
		default:
			err = out.output(e.GetData().GetStdout(), e.GetData().GetStderr())
		}
	}
	killed, e := stop()
	if !killed {
		e = r.Kill(ctx)
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if e != nil {
		return errors.Join(err, e)
	}
	return err
}

func exitOf(end *pb.ProcessEvent_EndEvent, limit errdefs.Code) Exit {
	code := int(end.GetExitCode())
	e := Exit{ExitCode: &code, Code: string(limit)}
	if !end.GetExited() || code != 0 {
		e.Status = end.GetError() // with the limit that it was killed at
	}
	return e
}
