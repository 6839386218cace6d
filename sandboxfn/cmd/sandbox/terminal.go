package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
)

func (a *app) shellCommand() *cobra.Command {
	var env []string
	var o sandboxfn.TerminalOptions
	cmd := &cobra.Command{
		Use:   "shell ID",
		Short: "open a shell in a sandbox",
		Long: `Shell opens the login shell of the sandbox's user in a terminal, and ends with its
status. Every key goes to the sandbox, Ctrl-C as well; the size of the terminal
follows that of this one. Where standard input is no terminal it is typed into
the shell, and its end is Ctrl-D.`,
		Args: arguments(1, 1, "the id of a sandbox"),
		RunE: func(cmd *cobra.Command, args []string) error {
			vars, err := parsePairs(cmd, "env", env, true)
			if err != nil {
				return err
			}
			sb, err := a.connect(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			o.Env = envList(vars)
			return a.terminal(cmd.Context(), sb, &o)
		},
		ValidArgsFunction: a.completeSandbox,
	}
	f := cmd.Flags()
	f.StringArrayVarP(&env, "env", "e", nil, "`KEY=VALUE` for the shell; KEY alone takes the value from here; repeatable")
	f.StringVarP(&o.Dir, "workdir", "w", "", "`directory` to begin in (default: the sandbox's)")
	f.StringVarP(&o.User, "user", "u", "", "`name` of the user (default: the sandbox's)")
	return cmd
}

// terminal runs a program of the sandbox in this process's terminal. The
// terminal is as it was when it returns, however that comes.
func (a *app) terminal(ctx context.Context, sb *sandboxfn.Sandbox, o *sandboxfn.TerminalOptions) error {
	keyboard := isTerminal(a.stdin)
	if isTerminal(a.stdout) {
		if cols, rows, err := term.GetSize(int(a.stdout.Fd())); err == nil && cols > 0 && rows > 0 {
			o.Cols, o.Rows = cols, rows
		}
		if t := os.Getenv("TERM"); t != "" {
			o.Env = append([]string{"TERM=" + t}, o.Env...)
		}
	}
	t, err := sb.Terminal(ctx, o)
	if err != nil {
		return err
	}
	defer t.Close()
	if keyboard {
		restore, err := rawMode(a.stdin)
		if err != nil {
			return err
		}
		defer restore()
	}
	defer a.followSize(ctx, t)()
	go typeInto(t, a.stdin, keyboard) // may stay in a read until this process ends
	_, err = io.Copy(a.stdout, t)
	if errors.Is(err, syscall.EPIPE) {
		return err
	}
	if end := t.Wait(); end != nil { // knows better why reading failed
		return a.ended(end)
	}
	return err
}

// rawMode lets a terminal hand on every key as it is, also after this process
// was stopped and goes on, and returns what ends that.
func rawMode(f *os.File) (restore func(), err error) {
	old, err := term.MakeRaw(int(f.Fd()))
	if err != nil {
		return nil, err
	}
	again := make(chan os.Signal, 1)
	signal.Notify(again, syscall.SIGCONT)
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-again: // the shell has set its own modes meanwhile
				_, _ = term.MakeRaw(int(f.Fd()))
			case <-done:
				return
			}
		}
	})
	return func() {
		signal.Stop(again)
		close(done)
		wg.Wait()
		_ = term.Restore(int(f.Fd()), old) // there is nothing else to do about it
	}, nil
}

// followSize keeps the size of t that of this process's terminal, until the
// returned function is called.
func (a *app) followSize(ctx context.Context, t *sandboxfn.Terminal) func() {
	if !isTerminal(a.stdout) {
		return func() {}
	}
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, syscall.SIGWINCH, syscall.SIGCONT)
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			if cols, rows, err := term.GetSize(int(a.stdout.Fd())); err == nil && cols > 0 && rows > 0 {
				// One that has ended says so elsewhere.
				_ = t.Resize(ctx, cols, rows)
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	})
	return func() {
		signal.Stop(changed)
		cancel()
		wg.Wait()
	}
}

// typeInto hands on what is read. The end of what is no keyboard is Ctrl-D.
func typeInto(t *sandboxfn.Terminal, from io.Reader, keyboard bool) {
	if _, err := io.Copy(t, from); err == nil && !keyboard {
		_, _ = t.Write([]byte{4})
	}
}
