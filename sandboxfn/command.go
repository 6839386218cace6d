package sandboxfn

import (
	"context"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/agent-sandbox/sandbox-go/internal/envd"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// Cmd is a command that is prepared, runs or has run in a sandbox. Its fields
// and methods are those of os/exec's Cmd, with the differences named here. It
// can be used once, by one goroutine; Process may be used by others.
type Cmd struct {
	// Path is the program: a path inside the sandbox, or a name looked up in its
	// PATH.
	Path string

	// Args are the arguments, beginning with the program's name.
	Args []string

	// Env holds "name=value" pairs on top of the sandbox's own variables;
	// nothing of this process's environment crosses.
	Env []string

	// Dir is the working directory: absolute, or relative to the user's home;
	// "~" is the home. Empty: the sandbox's default.
	Dir string

	// Stdin is read until its end or the end of the command. Nil: /dev/null. A
	// Read that blocks is left behind when the command has ended.
	Stdin io.Reader

	// Stdout and Stderr receive output as it is printed. They are written to by
	// one goroutine, also when they are equal. Nil discards; a writer that blocks
	// slows the program and makes Wait wait; one that fails gets no more, and Wait
	// reports it.
	Stdout, Stderr io.Writer

	// User runs the command. Empty: the sandbox's default user. One that is not
	// available is [ErrUserNotAvailable].
	User string

	// Timeout ends the command and everything it started that long after the
	// start; Wait then reports [ErrCommandTimeout]. Zero, or NoTimeout: no limit.
	Timeout time.Duration

	// Detach lets the command run on when ctx ends or the handle of the sandbox
	// is closed; [Sandbox.Attach] comes back to it.
	Detach bool

	// MaxOutput bounds what Output and CombinedOutput keep: the first and the
	// last half of it, with a line between that says how many bytes were left
	// out. Zero: everything.
	MaxOutput int

	// Process is the running command, once started.
	Process *Process

	ctx    context.Context // as in os/exec: a Cmd is one operation
	sb     *Sandbox
	follow bool   // a process that runs already
	pid    uint32 // of that process
	shell  bool

	terminal *envd.Size // nil: pipes

	pipes   []*outPipe
	input   *inPipe
	started chan struct{} // closed by Start, successful or not
	begun   bool
	waited  bool
	run     *run // set by a successful Start
	tail    *boundedBuffer
}

// Command prepares a program; nothing is looked up or started yet. ctx bounds
// it: when it ends, the program and everything it started are killed and Wait
// returns the context's cause.
func (sb *Sandbox) Command(ctx context.Context, name string, arg ...string) *Cmd {
	return &Cmd{Path: name, Args: append([]string{name}, arg...), ctx: ctx, sb: sb, started: make(chan struct{})}
}

// Shell prepares a line, or a whole script, for the sandbox's /bin/sh. It is
// never looked at on this side.
func (sb *Sandbox) Shell(ctx context.Context, script string) *Cmd {
	cmd := sb.Command(ctx, "/bin/sh", shellArgs(script)...)
	cmd.shell = true
	return cmd
}

// shellPart is safely below the 128 KiB that Linux allows for one argument.
const shellPart = 100 << 10

// shellArgs are the shell's arguments for script. One that is too long for an
// argument comes in parts, which the shell puts together again; shift leaves
// the script without positional parameters, as it would be otherwise.
func shellArgs(script string) []string {
	if len(script) <= shellPart {
		return []string{"-c", script}
	}
	var parts []string
	for len(script) > shellPart {
		n := shellPart
		for !utf8.RuneStart(script[n]) && n > shellPart-utf8.UTFMax {
			n--
		}
		parts, script = append(parts, script[:n]), script[n:]
	}
	parts = append(parts, script)
	var eval strings.Builder
	fmt.Fprintf(&eval, "eval \"shift %d\n", len(parts))
	for i := range parts {
		fmt.Fprintf(&eval, "${%d}", i+1)
	}
	eval.WriteString("\"")
	return append([]string{"-c", eval.String(), "sh"}, parts...)
}

// Attach prepares to follow a process that runs in the sandbox, or ended a
// short while ago: what the server still holds of its output comes first, then
// the rest, then how it ended. When ctx ends, following ends and the process
// goes on. Of the fields of the Cmd only the streams count: Stdin and
// [Cmd.StdinPipe] write to a process that was started with an input, and end it.
func (sb *Sandbox) Attach(ctx context.Context, pid int) *Cmd {
	cmd := &Cmd{Path: "process " + strconv.Itoa(pid), Detach: true, ctx: ctx, sb: sb, follow: true, started: make(chan struct{})}
	if pid > 0 && int64(pid) <= math.MaxUint32 {
		cmd.pid = uint32(pid)
	}
	return cmd
}

// Run starts the command and waits for it. A status other than zero is an
// [*ExitError].
func (c *Cmd) Run() error {
	if err := c.Start(); err != nil {
		return err
	}
	return c.Wait()
}

// Output runs the command and returns what it printed to standard output, also
// when it fails.
func (c *Cmd) Output() ([]byte, error) {
	if c.Stdout != nil {
		return nil, c.misuse("Stdout is set already")
	}
	out := newBoundedBuffer(c.MaxOutput)
	c.Stdout = out
	err := c.Run()
	return out.Bytes(), err
}

// CombinedOutput runs the command and returns standard output and standard
// error together, in the order they arrived, also when it fails.
func (c *Cmd) CombinedOutput() ([]byte, error) {
	if c.Stdout != nil || c.Stderr != nil {
		return nil, c.misuse("Stdout or Stderr is set already")
	}
	out := newBoundedBuffer(c.MaxOutput)
	c.Stdout, c.Stderr = out, out
	err := c.Run()
	return out.Bytes(), err
}

// StdinPipe returns a pipe to the command's standard input. A Write returns
// when the sandbox has taken the bytes; closing it lets the command read end of
// file. Wait closes it.
func (c *Cmd) StdinPipe() (io.WriteCloser, error) {
	if c.Stdin != nil || c.input != nil {
		return nil, c.misuse("Stdin is set already")
	}
	if c.begun {
		return nil, c.misuse("StdinPipe after Start")
	}
	c.input = newInPipe(c)
	return c.input, nil
}

// StdoutPipe returns a pipe from the command's standard output. It holds a
// bounded amount: a command whose pipe is not read stops until it is. What is
// in it when the command ends stays readable after Wait.
func (c *Cmd) StdoutPipe() (io.ReadCloser, error) { return c.outPipe(&c.Stdout, "Stdout") }

// StderrPipe is StdoutPipe for standard error.
func (c *Cmd) StderrPipe() (io.ReadCloser, error) { return c.outPipe(&c.Stderr, "Stderr") }

func (c *Cmd) outPipe(field *io.Writer, name string) (io.ReadCloser, error) {
	if *field != nil {
		return nil, c.misuse(name + " is set already")
	}
	if c.begun {
		return nil, c.misuse(name + "Pipe after Start")
	}
	p := newOutPipe()
	*field = p
	c.pipes = append(c.pipes, p)
	return p, nil
}

// String is the command for people, not for a shell.
func (c *Cmd) String() string { return strings.Join(append([]string{c.Path}, c.args()...), " ") }

func (c *Cmd) args() []string {
	if len(c.Args) == 0 {
		return nil
	}
	return c.Args[1:]
}

// op is how errors name the command: never its arguments.
func (c *Cmd) op() string { return "run " + c.Path }

func (c *Cmd) misuse(what string) error { return errdefs.New("E3011", c.op(), what) }

// Start starts the command and returns once it runs; Wait must be called then.
// Errors: [ErrCommandNotFound] for a program that is not there or cannot be
// executed, [ErrUserNotAvailable], E3012 for a working directory that is of no
// use, E3011 for a field that is malformed. When it fails, nothing runs.
func (c *Cmd) Start() error {
	if c.begun {
		return c.misuse("started already")
	}
	c.begun = true
	err := c.start()
	if err != nil {
		for _, p := range c.pipes {
			p.finish(err)
		}
	}
	if c.started != nil {
		close(c.started)
	}
	return err
}

func (c *Cmd) start() error {
	env, err := c.check()
	if err != nil {
		return err
	}
	leave, err := c.sb.enter()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(c.ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.sb.life, func() { cancel(context.Cause(c.sb.life)) })()
	var stream *envd.Stream
	if c.follow {
		stream, err = c.sb.envd.Attach(ctx, c.pid)
	} else {
		stream, err = c.sb.envd.Start(ctx, &envd.StartOptions{
			Path: c.Path, Args: c.args(), Env: env, Dir: c.Dir, User: c.User,
			Stdin:   c.Stdin != nil || c.input != nil,
			Timeout: c.limit(), Terminal: c.terminal,
		})
	}
	if err != nil {
		leave()
		return c.sb.explain(ctx, renamed(err, c.op()))
	}
	if c.Stderr == nil {
		c.tail = newBoundedBuffer(64 << 10)
	}
	c.Process = &Process{Pid: int(stream.Pid()), sb: c.sb, ctx: context.WithoutCancel(c.ctx)}
	c.run = startRun(c, stream, leave)
	return nil
}

func (c *Cmd) limit() time.Duration { return max(c.Timeout, 0) }

// check refuses what cannot be sent, and names the field.
func (c *Cmd) check() (map[string]string, error) {
	check := optionCheck{op: c.op()}
	if c.ctx == nil || c.sb == nil {
		return nil, errdefs.New("E3011", "run command", "a Cmd is made by Sandbox.Command, Shell or Attach")
	}
	if strings.Contains(c.Path, "\x00") {
		check.op = "run command"
	}
	if c.follow {
		if c.pid == 0 {
			check.fail("that is not an id of a process")
		}
		if len(c.Env) > 0 || c.Dir != "" || c.User != "" || c.Timeout != 0 {
			check.fail("Env, Dir, User and Timeout mean nothing for a process that runs already")
		}
	}
	if c.Path == "" {
		check.fail("Path is empty")
	}
	if c.Timeout < 0 && c.Timeout != NoTimeout {
		check.fail("Timeout " + c.Timeout.String() + " is negative; zero means no limit")
	}
	if c.MaxOutput < 0 {
		check.fail("MaxOutput is negative; zero means everything")
	}
	check.text("Path", c.Path)
	check.text("Dir", c.Dir)
	check.text("User", c.User)
	if strings.ContainsRune(c.User, ':') {
		check.fail("User " + quoted(c.User) + " holds a colon")
	}
	if c.shell && len(c.Args) > 1 {
		check.text("the script", strings.Join(c.Args[1:], ""))
	}
	for i, a := range c.args() {
		check.text(fmt.Sprintf("Args[%d]", i+1), a)
		if len(a) >= maxArgument {
			check.fail(fmt.Sprintf("Args[%d] has %d bytes; the system's limit for one argument is %d", i+1, len(a), maxArgument-1))
			check.suggestion = "write it to a file in the sandbox, or send it through Stdin"
		}
	}
	env := make(map[string]string, len(c.Env))
	for i, kv := range c.Env {
		k, v, ok := strings.Cut(kv, "=")
		if !ok || k == "" {
			check.fail(fmt.Sprintf("Env[%d] is not of the form name=value", i))
			continue
		}
		env[k] = v
	}
	check.env(env)
	if check.problem != "" {
		return nil, &Error{Code: "E3011", Op: check.op, Message: check.problem, Suggestion: check.suggestion}
	}
	if c.ctx.Err() != nil {
		return nil, contextError(c.ctx, c.op())
	}
	return env, nil
}

// maxArgument is MAX_ARG_STRLEN of execve(2), which counts the final NUL.
const maxArgument = 128 << 10

// Wait waits for the command to end and its output to be delivered. It returns
// nil for status zero, an [*ExitError] for another one or a signal,
// [ErrCommandTimeout], the context's cause, or [ErrConnectionLost] when the
// connection broke and the outcome is unknown: then the command may still run,
// and [Sandbox.Attach] can follow it.
func (c *Cmd) Wait() error {
	if c.run == nil {
		return c.misuse("not started")
	}
	if c.waited {
		return c.misuse("Wait was called already")
	}
	c.waited = true
	return c.run.wait()
}

// renamed is err with op, where err is ours: the caller ran a command.
func renamed(err error, op string) error {
	e, ok := err.(*Error)
	if !ok {
		return err
	}
	r := *e
	r.Op = op
	return &r
}
