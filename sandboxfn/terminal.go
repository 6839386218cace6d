package sandboxfn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/agent-sandbox/sandbox-go/internal/envd"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// TerminalOptions say what runs in a terminal. The zero value is a login shell
// of the sandbox's default user, 80 columns by 24 rows.
type TerminalOptions struct {
	// Command is the program: a path inside the sandbox, or a name looked up in
	// its PATH. Empty: the user's login shell, interactive.
	Command string

	// Args are the arguments, without the program's name.
	Args []string

	// Env holds "name=value" pairs on top of the sandbox's own variables. Where
	// neither has them, TERM is xterm-256color, and LANG and LC_ALL are C.UTF-8;
	// LC_ALL stays away when LANG or LC_CTYPE is set.
	Env []string

	// Dir is the working directory, as in Cmd.
	Dir string

	// User runs the program. Empty: the sandbox's default user.
	User string

	// Cols and Rows are the size, in characters. Zero: 80 and 24.
	Cols, Rows int
}

// Terminal is a program that runs in a terminal of the sandbox. Read, Write and
// the other methods may be called concurrently; Reads take turns, and so do
// Writes. Output has to be read: a program whose output is not read is held back
// once 1 MiB waits on each side, and does not end.
type Terminal struct {
	cmd    *Cmd
	out    io.ReadCloser
	input  *envd.Input
	wait   func() error // once
	closed sync.Once
}

var _ io.ReadWriteCloser = (*Terminal)(nil)

// Terminal starts a program in a terminal and returns once it runs; Close must
// be called. When ctx ends, the program and everything it started are killed. A
// nil opts is the zero TerminalOptions. Errors: those of [Cmd.Start], and
// [ErrNotSupported] where the sandbox's server has no terminals.
func (sb *Sandbox) Terminal(ctx context.Context, opts *TerminalOptions) (*Terminal, error) {
	var o TerminalOptions
	if opts != nil {
		o = *opts
	}
	const op = "open terminal"
	size, err := terminalSize(op, o.Cols, o.Rows, envd.Size{Cols: 80, Rows: 24})
	if err != nil {
		return nil, err
	}
	if o.Command == "" && len(o.Args) > 0 {
		return nil, errdefs.New("E3011", op, "Args are set, but no Command")
	}
	if err := sb.usable(); err != nil {
		return nil, err
	}
	f, err := sb.envd.Features(ctx)
	if err != nil {
		return nil, sb.explain(ctx, renamed(err, op))
	}
	cmd := sb.Command(ctx, o.Command, o.Args...)
	if o.Command == "" {
		cmd = sb.Command(ctx, "/bin/sh", "-c", loginShell)
	}
	cmd.Env, cmd.Dir, cmd.User, cmd.terminal = slices.Clone(o.Env), o.Dir, o.User, &size
	if !f.Input { // other servers leave it to their clients
		cmd.Env = append(terminalEnv(o.Env), cmd.Env...)
	}
	t := &Terminal{cmd: cmd, wait: sync.OnceValue(cmd.Wait)}
	if t.out, err = cmd.StdoutPipe(); err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	if t.input, err = sb.envd.OpenInput(ctx, uint32(cmd.Process.Pid), true); err != nil { // features are known
		cmd.run.interrupt(err)
		return nil, sb.explain(ctx, renamed(err, op))
	}
	// The stream of input ends with the program, also when nobody closes us.
	context.AfterFunc(cmd.run.inputCtx, func() { t.input.Ended() })
	return t, nil
}

// loginShell becomes the shell that /etc/passwd names for the user, or else
// bash, or else sh. Accounts of services have programs there that are no shells.
const loginShell = `
while IFS=: read -r name _ _ _ _ _ shell; do
	[ "$name" = "$USER" ] && break
	shell=
done </etc/passwd
case $shell in
*sh) ;;
*) shell=/bin/bash ;;
esac
[ -x "$shell" ] || shell=/bin/sh
export SHELL="$shell"
unset name
exec "$shell" -i -l`

// terminalEnv is what a terminal has where nobody says otherwise.
func terminalEnv(env []string) []string {
	set := func(name string) bool {
		return slices.ContainsFunc(env, func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
	}
	var out []string
	if !set("TERM") {
		out = append(out, "TERM=xterm-256color")
	}
	if !set("LANG") {
		out = append(out, "LANG=C.UTF-8")
		if !set("LC_ALL") && !set("LC_CTYPE") {
			out = append(out, "LC_ALL=C.UTF-8")
		}
	}
	return out
}

// terminalSize checks a size; def stands for zeros.
func terminalSize(op string, cols, rows int, def envd.Size) (envd.Size, error) {
	if cols == 0 {
		cols = int(def.Cols)
	}
	if rows == 0 {
		rows = int(def.Rows)
	}
	if cols < 1 || rows < 1 || cols > math.MaxUint16 || rows > math.MaxUint16 {
		return envd.Size{}, errdefs.New("E3011", op, fmt.Sprintf("a terminal cannot have %d columns and %d rows", cols, rows))
	}
	return envd.Size{Cols: uint16(cols), Rows: uint16(rows)}, nil
}

// Pid is the id of the program inside the sandbox.
func (t *Terminal) Pid() int { return t.cmd.Process.Pid }

// Read returns output as it comes. After the last byte comes io.EOF, whatever
// ended the program; Wait says what did. A connection that broke is an error.
func (t *Terminal) Read(p []byte) (int, error) { return t.out.Read(p) }

// Write sends input, keys that is: "\x03" is Ctrl-C, "\x04" the end of input at
// the start of a line. It returns when the input is on its way. A program that
// has ended is [ErrProcessGone] and EPIPE; one that does not read holds Write up.
func (t *Terminal) Write(p []byte) (int, error) {
	err := t.input.Write(t.cmd.run.inputCtx, p)
	switch {
	case err == nil:
		return len(p), nil
	case t.cmd.run.inputCtx.Err() != nil, errors.Is(err, ErrProcessGone):
		return 0, errdefs.Wrap("E3010", t.cmd.op(), "the program has ended", syscall.EPIPE)
	}
	return 0, t.cmd.sb.explain(t.cmd.run.inputCtx, renamed(err, t.cmd.op()))
}

// Resize sets the size, in characters; the program in the foreground is told.
// Zero or less is E3011. A program that has ended is [ErrProcessGone] and
// os.ErrProcessDone.
func (t *Terminal) Resize(ctx context.Context, cols, rows int) error {
	const op = "resize terminal"
	size, err := terminalSize(op, cols, rows, envd.Size{})
	if err != nil {
		return err
	}
	err = t.cmd.sb.envd.Resize(ctx, uint32(t.Pid()), size)
	if errors.Is(err, ErrProcessGone) {
		return errdefs.Wrap("E3010", op, "the program has ended", os.ErrProcessDone)
	}
	return t.cmd.sb.explain(ctx, err)
}

// Signal sends a signal to the program that was started, as [Process.Signal]
// does. What runs in the foreground gets those of keys: write "\x03" for SIGINT.
func (t *Terminal) Signal(sig os.Signal) error { return t.cmd.Process.Signal(sig) }

// Wait waits until the program has ended and its output was taken out of the
// sandbox; what was not read stays readable. It returns what [Cmd.Wait] would,
// at every call.
func (t *Terminal) Wait() error { return t.wait() }

// Close kills the program and everything it started, if it still runs, and
// returns when that is done. Output that was not read is lost. It is idempotent.
func (t *Terminal) Close() error {
	t.closed.Do(func() {
		t.out.Close()
		t.cmd.run.interrupt(errdefs.Wrap("E5004", t.cmd.op(), "the terminal was closed", os.ErrClosed))
		t.cmd.run.interrupts.Wait()
		t.input.Abandon()
	})
	<-t.cmd.run.done
	return nil
}
