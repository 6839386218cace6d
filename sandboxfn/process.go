package sandboxfn

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"syscall"

	"github.com/agent-sandbox/sandbox-go/internal/envd"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// ExitError says that a command ran and ended with another status than zero, or
// by a signal. It wraps an [*Error] of code E3002, or E3009 ([ErrMemoryLimit])
// when the sandbox's memory limit ended it, or E4004 ([ErrNoSpace]) when it was
// ended because the sandbox had written more to disk than it may, or E3001
// ([ErrCommandTimeout]) when it ran longer than the policy of its template lets
// commands run. A program that its file system tells so ends as it likes.
type ExitError struct {
	Pid      int
	ExitCode int    // -1 after a signal
	Signal   string // "killed", "terminated", …; empty: it exited by itself
	Stderr   []byte // first and last part of standard error, when Cmd.Stderr was nil

	err *Error
}

// Error names the program and how it ended, never its arguments or output.
func (e *ExitError) Error() string { return e.err.Error() }

// Unwrap returns the coded error.
func (e *ExitError) Unwrap() error { return e.err }

func newExitError(c *Cmd, end *envd.End) *ExitError {
	e := &ExitError{Pid: c.Process.Pid, ExitCode: end.ExitCode}
	code, how := errdefs.Code("E3002"), fmt.Sprintf("exit status %d", end.ExitCode)
	if name, ok := signalOf(end); ok {
		e.ExitCode, e.Signal, how = -1, name, "signal: "+name
	}
	switch {
	case end.MemoryLimit:
		code = "E3009"
	case end.NoSpace:
		code = "E4004"
	case end.TimeLimit != "":
		code = "E3001"
		how += " (" + end.TimeLimit + ")"
	}
	if c.tail != nil {
		e.Stderr = c.tail.Bytes()
	}
	e.err = errdefs.New(code, c.op(), how)
	return e
}

// Process is a process of a sandbox. It is safe for concurrent use.
type Process struct {
	Pid int // inside the sandbox

	sb  *Sandbox
	ctx context.Context // values only; requests have their own bound
}

// Kill ends the process and everything it started, with SIGKILL. One that has
// ended is [os.ErrProcessDone], as in package os.
func (p *Process) Kill() error { return p.Signal(syscall.SIGKILL) }

// Signal sends a signal. SIGKILL and SIGTERM reach everything the process
// started; other signals reach the process alone.
func (p *Process) Signal(sig os.Signal) error {
	op := "signal process " + strconv.Itoa(p.Pid)
	s, ok := sig.(syscall.Signal)
	if !ok || s <= 0 || s > 64 {
		return errdefs.New("E3011", op, fmt.Sprintf("%v is not a signal of Linux", sig))
	}
	if err := p.sb.usable(); err != nil {
		return err
	}
	var err error
	if s == syscall.SIGKILL || s == syscall.SIGTERM {
		err = renamed(p.sb.envd.Signal(p.ctx, uint32(p.Pid), s, envd.Tree), op)
	} else {
		err = p.signalByTool(op, s)
	}
	if errors.Is(err, ErrProcessGone) {
		return errdefs.Wrap("E3010", op, "", os.ErrProcessDone)
	}
	return p.sb.explain(p.ctx, err)
}

// signalByTool sends what the protocol has no name for.
func (p *Process) signalByTool(op string, s syscall.Signal) error {
	alive, err := p.sb.envd.Processes(p.ctx)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(alive, func(q envd.Process) bool { return int(q.Pid) == p.Pid }) {
		return errdefs.New("E3010", op, "")
	}
	return p.sb.tool(p.ctx, "/bin/sh", "-c", `kill -"$1" "$2"`, "sh", strconv.Itoa(int(s)), strconv.Itoa(p.Pid))
}

// ProcessInfo describes a running process.
type ProcessInfo struct {
	Pid  int
	Path string
	Args []string // beginning with Path, as in Cmd
	Env  []string // what the command itself set, sorted
	Dir  string   // as it was asked for; empty: the default
}

// Processes lists the living processes that were started through the sandbox's
// server, by any client. Children of theirs are not in it.
func (sb *Sandbox) Processes(ctx context.Context) ([]ProcessInfo, error) {
	if err := sb.usable(); err != nil {
		return nil, err
	}
	list, err := sb.envd.Processes(ctx)
	if err != nil {
		return nil, sb.explain(ctx, err)
	}
	out := make([]ProcessInfo, 0, len(list))
	for _, p := range list {
		info := ProcessInfo{Pid: int(p.Pid), Path: p.Path, Args: append([]string{p.Path}, p.Args...), Dir: p.Dir}
		for _, k := range slices.Sorted(maps.Keys(p.Env)) {
			info.Env = append(info.Env, k+"="+p.Env[k])
		}
		out = append(out, info)
	}
	slices.SortFunc(out, func(a, b ProcessInfo) int { return a.Pid - b.Pid })
	return out, nil
}

// tool runs one of the sandbox's own programs for what the protocol cannot do:
// in the home, as the default user, with messages in English.
func (sb *Sandbox) tool(ctx context.Context, name string, arg ...string) error {
	_, err := sb.toolOutput(ctx, name, arg...)
	return err
}

func (sb *Sandbox) toolOutput(ctx context.Context, name string, arg ...string) ([]byte, error) {
	cmd := sb.Command(ctx, name, arg...)
	cmd.Dir = "~"
	cmd.Env = []string{"LC_ALL=C"}
	cmd.MaxOutput = 64 << 10
	return cmd.Output()
}
