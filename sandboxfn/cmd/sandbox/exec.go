package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// execFlags are the options of exec.
type execFlags struct {
	tty, detach, noStdin bool
	env                  []string
	dir, user            string
	timeout              time.Duration
}

func (a *app) execCommand() *cobra.Command {
	var f execFlags
	cmd := &cobra.Command{
		Use:   "exec ID [--] COMMAND [ARG…]",
		Short: "run a command in a sandbox",
		Long: `Exec runs a command in a sandbox, with this command's standard input, output and
error, and ends with its status: of one that a signal ended, 128 and the number
of the signal. Where the command did not run, or its outcome is not known, a line
that begins with "sandbox: E" says why and the status is that of the error.

The first signal that asks this command to end is handed on; a second one kills
the command in the sandbox. SIGHUP and SIGINT are none of them where they were
ignored from the start, as nohup has it. A sandbox that is paused or hibernates
goes on.`,
		Example: `  sandbox exec $id -- sh -c 'ls | wc -l'
  tar c src | sandbox exec $id -w /tmp -- tar x
  sandbox exec $id -t -- top`,
		Args: arguments(2, -1, "the id of a sandbox, or a command"),
		RunE: func(cmd *cobra.Command, args []string) error {
			env, err := parsePairs(cmd, "env", f.env, true)
			if err != nil {
				return err
			}
			switch {
			case f.tty && (f.detach || f.noStdin || f.timeout != 0):
				return usage(cmd, "--tty excludes --detach, --no-stdin and --timeout")
			case f.detach && f.timeout != 0:
				return usage(cmd, "--detach and --timeout exclude each other")
			}
			sb, err := a.connect(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if f.tty {
				return a.terminal(cmd.Context(), sb, &sandboxfn.TerminalOptions{Command: args[1], Args: args[2:], Env: envList(env), Dir: f.dir, User: f.user})
			}
			return a.exec(cmd.Context(), sb, args[1:], envList(env), &f)
		},
		ValidArgsFunction: a.completeSandbox,
	}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return &errdefs.Error{Code: "E8007", Op: "read options", Message: err.Error(), Suggestion: "write -- before a command that has options; see " + cmd.CommandPath() + " --help"}
	})
	fl := cmd.Flags()
	fl.BoolVarP(&f.tty, "tty", "t", false, "run it in a terminal")
	fl.BoolVarP(&f.detach, "detach", "d", false, "let it run on without input and output, and print its process id")
	fl.BoolVarP(&f.noStdin, "no-stdin", "n", false, "give it no standard input")
	fl.StringArrayVarP(&f.env, "env", "e", nil, "`KEY=VALUE` for the command; KEY alone takes the value from here; repeatable")
	fl.StringVarP(&f.dir, "workdir", "w", "", "`directory` to run it in (default: the sandbox's)")
	fl.StringVarP(&f.user, "user", "u", "", "`name` of the user to run it as (default: the sandbox's)")
	fl.Var(span{&f.timeout}, "timeout", "`duration` after which it is killed (default: none)")
	return cmd
}

func (a *app) exec(ctx context.Context, sb *sandboxfn.Sandbox, words, env []string, f *execFlags) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	c := sb.Command(ctx, words[0], words[1:]...)
	c.Env, c.Dir, c.User, c.Timeout, c.Detach = env, f.dir, f.user, f.timeout, f.detach
	if f.detach {
		if err := c.Start(); err != nil {
			return err
		}
		_, err := fmt.Fprintln(a.stdout, c.Process.Pid)
		return err
	}
	if _, err := a.stdin.Stat(); err == nil && !f.noStdin {
		c.Stdin = a.stdin
	}
	// A program whose output nobody takes has nothing left to do.
	out := &output{f: a.stdout, failed: cancel}
	c.Stdout, c.Stderr = out, &output{f: a.stderr, failed: cancel}
	if err := c.Start(); err != nil {
		return err
	}
	a.signals.pass(func(sig os.Signal) { _ = c.Process.Signal(sig) }) // one that has ended needs none
	err := c.Wait()
	a.signals.pass(nil)
	if cause := context.Cause(ctx); errors.Is(cause, syscall.EPIPE) {
		return cause
	}
	return a.ended(err)
}

// ended turns the end of a command into an exit status.
func (a *app) ended(err error) error {
	e, ok := errors.AsType[*sandboxfn.ExitError](err)
	if !ok {
		return err
	}
	if code := sandboxfn.CodeOf(err); code != "E3002" { // a limit of the sandbox
		a.complain(err)
	}
	if e.Signal == "" {
		return exitStatus(e.ExitCode)
	}
	for sig := syscall.Signal(1); sig < 65; sig++ {
		if sig.String() == e.Signal {
			return exitStatus(128 + int(sig))
		}
	}
	return exitStatus(128)
}

// output is a file of this process. Its first error ends what is written.
type output struct {
	f      *os.File
	failed func(error)
}

var _ io.Writer = (*output)(nil)

func (o *output) Write(p []byte) (int, error) {
	n, err := o.f.Write(p)
	if err != nil {
		o.failed(err)
	}
	return n, err
}
