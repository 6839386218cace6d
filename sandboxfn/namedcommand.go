package sandboxfn

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/envd"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// NamedCommand describes a command that a sandbox offers by name: its template
// declares it, or the program that is its runtime has registered it.
type NamedCommand struct {
	Name        string
	Description string
	Args        []NamedArg
}

// NamedArg is one argument of a [NamedCommand].
type NamedArg struct {
	Name        string
	Type        string // string, integer, float or boolean
	Required    bool
	Default     any // nil: none; a number is a float64
	Description string
}

// Commands lists the named commands of the sandbox, by name, without hidden ones.
// A sandbox whose server has no such API is [ErrNotSupported]; one where it is
// switched off, E8022.
func (sb *Sandbox) Commands(ctx context.Context) ([]NamedCommand, error) {
	if err := sb.usable(); err != nil {
		return nil, err
	}
	list, err := sb.envd.Commands(ctx)
	if err != nil {
		return nil, sb.explain(ctx, err)
	}
	out := make([]NamedCommand, len(list))
	for i, c := range list {
		out[i] = NamedCommand{Name: c.Name, Description: c.Description}
		for _, a := range c.Args {
			out[i].Args = append(out[i].Args, NamedArg(a))
		}
	}
	return out, nil
}

// InvokeOptions say how to run a named command. The zero value is usable.
type InvokeOptions struct {
	// Timeout ends the command that long after the start, with
	// [ErrCommandTimeout], where its own timeout is not sooner. Zero: no limit.
	Timeout time.Duration

	// Stdout and Stderr receive output as it is printed; the result has none
	// then. They are not called at once, also when they are equal. One that fails
	// ends the command.
	Stdout, Stderr io.Writer

	// MaxOutput bounds what the result has of each output: the first and the last
	// half of it. Zero: everything.
	MaxOutput int
}

// InvokeResult is what a named command returned or printed.
type InvokeResult struct {
	Result         json.RawMessage // of a function; nil: it was a program
	Stdout, Stderr []byte          // of a program
	ExitCode       int             // of a program; -1 after a signal
}

// Decode stores the result of a function in v, as json.Unmarshal does.
func (r *InvokeResult) Decode(v any) error {
	if r.Result == nil {
		return errdefs.New("E3011", "read the result of a command", "it was a program, which has output and no result")
	}
	if err := json.Unmarshal(r.Result, v); err != nil {
		return errdefs.Wrap("E3011", "read the result of a command", "", err)
	}
	return nil
}

// Invoke runs the command called name and waits for its end. args holds its
// arguments by name: a map[string]any, a struct with json tags, or nil for none;
// they are sent as JSON, so a [Secret] among them would be sent as "[redacted]". A
// nil opts is the zero InvokeOptions. When ctx ends, the command is killed, with
// everything it started, and the error is the context's cause.
//
// As with [Cmd.Output], a status other than zero is an [*ExitError], beside the
// result. Other errors: [ErrNamedCommandNotFound]; [ErrArgument], which says which
// argument is missing, unknown or of a wrong type; E3015 when a function failed;
// [ErrCommandTimeout]; [ErrNotSupported] for a sandbox whose server has no named
// commands.
func (sb *Sandbox) Invoke(ctx context.Context, name string, args any, opts *InvokeOptions) (*InvokeResult, error) {
	op := "run command " + name
	var o InvokeOptions
	if opts != nil {
		o = *opts
	}
	if o.Timeout < 0 || o.MaxOutput < 0 {
		return nil, errdefs.New("E3011", op, "Timeout or MaxOutput is negative")
	}
	body := []byte("{}")
	if args != nil {
		var err error
		if body, err = json.Marshal(args); err != nil {
			return nil, errdefs.Wrap("E3014", op, "the arguments cannot be written as JSON", err)
		}
	}
	if body = bytes.TrimSpace(body); string(body) == "null" {
		body = []byte("{}")
	}
	if body[0] != '{' {
		return nil, errdefs.New("E3014", op, fmt.Sprintf("the arguments are a %T, not a struct or a map", args))
	}
	leave, err := sb.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(sb.life, func() { cancel(context.Cause(sb.life)) })()
	if o.Timeout > 0 {
		t := time.AfterFunc(o.Timeout, func() {
			cancel(errdefs.New("E3001", op, "the command timeout of "+o.Timeout.String()+" passed"))
		})
		defer t.Stop()
	}
	res, err := sb.invoke(ctx, op, name, body, &o)
	return res, sb.explain(ctx, err)
}

func (sb *Sandbox) invoke(ctx context.Context, op, name string, body []byte, o *InvokeOptions) (*InvokeResult, error) {
	stream, err := sb.envd.RunCommand(ctx, name, body)
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	stdout, stderr := newBoundedBuffer(o.MaxOutput), newBoundedBuffer(o.MaxOutput)
	write := func(to io.Writer, keep io.Writer, b []byte) error {
		if len(b) == 0 {
			return nil
		}
		if to == nil {
			to = keep
		}
		_, err := to.Write(b)
		return err
	}
	pid := 0
	for {
		ev, err := stream.Next()
		if err != nil {
			return nil, err
		}
		if ev.Pid != 0 {
			pid = int(ev.Pid)
		}
		if err := write(o.Stdout, stdout, ev.Stdout); err != nil {
			return nil, fmt.Errorf("write standard output of command %s: %w", name, err)
		}
		if err := write(o.Stderr, stderr, ev.Stderr); err != nil {
			return nil, fmt.Errorf("write standard error of command %s: %w", name, err)
		}
		switch {
		case ev.Result != nil:
			return &InvokeResult{Result: ev.Result}, nil
		case ev.End != nil:
			res := &InvokeResult{Stdout: stdout.Bytes(), Stderr: stderr.Bytes(), ExitCode: ev.End.ExitCode}
			if ev.End.Exited && ev.End.ExitCode == 0 {
				return res, nil
			}
			return res, exitError(op, pid, ev.End, stderr)
		}
	}
}

// exitError says how a named command ended.
func exitError(op string, pid int, end *envd.End, stderr *boundedBuffer) error {
	c := &Cmd{Path: op, Process: &Process{Pid: pid}, tail: stderr}
	e := newExitError(c, end)
	e.err.Op = op
	return e
}
