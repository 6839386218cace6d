package sandboxfn

import (
	"context"
	"errors"
	"io"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agent-sandbox/sandbox-go/runtime/code/drivers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// Statuses of prepareDriver.
const (
	noInterpreter = 44
	noFolder      = 45
)

// prepareDriver looks for the interpreter $1 and makes a folder with files: names
// and texts are the arguments that follow. It prints the folder and the working
// directory.
const prepareDriver = `command -v "$1" >/dev/null 2>&1 || exit 44
shift
umask 077
d=$(mktemp -d "${TMPDIR:-/tmp}/sandbox-code-XXXXXX") || exit 45
mkfifo "$d/events" || { rm -rf "$d"; exit 45; }
while [ $# -gt 1 ]; do
	printf '%s' "$2" >"$d/$1" || { rm -rf "$d"; exit 45; }
	shift 2
done
printf '%s\n%s\n' "$d" "$PWD"`

// startDriver runs the arguments with the descriptors of a driver: requests are what
// it reads here, events go to the FIFO.
const startDriver = `exec 3<&0 4>"$0/events" </dev/null; exec "$@"`

// readEvents prints the events. They have ended when the driver has, and nothing
// needs the folder any more.
const readEvents = `cat "$0/events"; rm -rf "$0"`

// signalDriver sends the signal $2 to the process $1, with a third argument to all
// that it has started, too. Servers that are not ours know no SIGINT.
const signalDriver = `tree() {
	echo "$1"
	for child in $(cat /proc/"$1"/task/*/children 2>/dev/null); do tree "$child"; done
}
if [ "$3" ]; then
	[ -r /proc/"$1"/task/"$1"/children ] || kill -s "$2" -- "-$1" 2>/dev/null
	kill -s "$2" $(tree "$1")
else
	kill -s "$2" "$1"
fi 2>/dev/null`

// Bounds of commands: that sends a signal, and that makes the folder.
const (
	driverSignal  = 10 * time.Second
	driverPrepare = time.Minute
)

// driverProcess is the process of a driver, started by the process API. Descriptors 1
// and 2 are its outputs, as inside; requests are what it reads. Its events come
// through a FIFO and a second process, so that output and events stay apart.
type driverProcess struct {
	sb     *Sandbox
	main   *Cmd
	pid    atomic.Int64                     // as the driver knows itself; zero: not known yet
	output chan func(stdout, stderr []byte) // holds one value, once somebody follows
	done   chan struct{}
	how    string // valid after done
}

var _ drivers.Process = (*driverProcess)(nil)

// driverFolder is where the files of a driver are, and the working directory.
type driverFolder struct{ path, home string }

// makeDriverFolder makes the folder of a driver of l. What it has begun goes on to its
// end, up to [driverPrepare], when ctx ends, and is undone then after the return: a
// command that is cut off leaves what it has made.
func (sb *Sandbox) makeDriverFolder(ctx context.Context, op string, l drivers.Language, dir string) (driverFolder, error) {
	if ctx.Err() != nil {
		return driverFolder{}, contextError(ctx, op)
	}
	leave, err := sb.enter()
	if err != nil {
		return driverFolder{}, err
	}
	type result struct {
		folder driverFolder
		err    error
	}
	made := make(chan result) // what is not taken is undone
	go func() {
		defer leave()
		own, cancel := context.WithTimeout(context.WithoutCancel(ctx), driverPrepare)
		defer cancel()
		folder, err := sb.prepareDriver(own, op, l, dir)
		select {
		case made <- result{folder, err}:
		case <-ctx.Done():
			sb.removeDriver(ctx, folder.path)
		}
	}()
	select {
	case r := <-made:
		return r.folder, r.err
	case <-ctx.Done():
		return driverFolder{}, contextError(ctx, op)
	}
}

func (sb *Sandbox) prepareDriver(ctx context.Context, op string, l drivers.Language, dir string) (driverFolder, error) {
	args := []string{"-c", prepareDriver, "sh", l.Program}
	for name, text := range drivers.Files() {
		args = append(args, name, string(text))
	}
	prepare := sb.Command(ctx, "/bin/sh", args...)
	prepare.Dir = dir
	out, err := prepare.Output()
	if exit, ok := errors.AsType[*ExitError](err); ok {
		switch exit.ExitCode {
		case noInterpreter:
			return driverFolder{}, errdefs.New("E3016", op, l.Name+" is not installed in this sandbox: install "+l.Install)
		case noFolder:
			return driverFolder{}, errdefs.New("E8004", op, "the sandbox has no code interpreter, and no folder for a driver can be made: "+strings.TrimSpace(string(exit.Stderr)))
		}
	}
	if err != nil {
		return driverFolder{}, err
	}
	lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	if len(lines) != 2 {
		return driverFolder{}, errdefs.New("E3006", op, "the shell printed something else than two folders")
	}
	return driverFolder{lines[0], lines[1]}, nil
}

// removeDriver removes the folder of a driver, also when ctx has ended. An empty one
// was never made.
func (sb *Sandbox) removeDriver(ctx context.Context, folder string) {
	if folder == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killRequest)
	defer cancel()
	if err := sb.envd.Remove(ctx, folder); err != nil { // no command: a handle that was closed starts none
		sb.log.DebugContext(ctx, "folder of an interpreter not removed", "err", err)
	}
}

// startDriver starts the driver of l and waits until it takes cells. It returns the
// working directory, too.
func (sb *Sandbox) startDriver(ctx context.Context, l drivers.Language, dir string) (*drivers.Engine, string, error) {
	const op = "start interpreter"
	made, err := sb.makeDriverFolder(ctx, op, l, dir)
	if err != nil {
		return nil, "", err
	}
	folder := made.path
	p := &driverProcess{sb: sb, output: make(chan func(stdout, stderr []byte), 1), done: make(chan struct{})}
	r, w := io.Pipe()
	events := sb.Command(sb.life, "/bin/sh", "-c", readEvents, folder)
	events.Stdout = w
	events.Detach = true // it removes the folder
	p.main = sb.Command(sb.life, "/bin/sh", append([]string{"-c", startDriver, folder}, l.Command(folder)...)...)
	p.main.Dir = dir
	p.main.Stdout, p.main.Stderr = &driverOutput{p: p}, &driverOutput{p: p, stderr: true}
	requests, err := p.main.StdinPipe()
	if err != nil {
		sb.removeDriver(ctx, folder)
		return nil, "", err
	}
	if err := events.Start(); err != nil {
		sb.removeDriver(ctx, folder)
		return nil, "", err
	}
	reader := &driverEvents{PipeReader: r, cmd: events, folder: folder, over: make(chan struct{})}
	go func() {
		err := events.Wait()
		close(reader.over)    // first: then there is nothing to kill
		w.CloseWithError(err) // nil is the end of the stream
	}()
	if err := p.main.Start(); err != nil {
		reader.Close()
		return nil, "", err
	}
	engine := drivers.Start(sb.life, p, l, requests, reader)
	err = engine.Ready(ctx)
	if no, ok := errors.AsType[*drivers.Refused](err); ok {
		return nil, "", errdefs.New("E3016", op, no.Text)
	}
	switch {
	case err == nil:
		p.pid.Store(int64(engine.Pid()))
		return engine, made.home, nil
	case ctx.Err() != nil:
		return nil, "", contextError(ctx, op)
	case sb.usable() != nil:
		return nil, "", sb.usable()
	}
	return nil, "", errdefs.Wrap("E3003", op, "the interpreter did not start", err)
}

// driverOutput takes one of the outputs.
type driverOutput struct {
	p      *driverProcess
	stderr bool
	to     func(stdout, stderr []byte)
}

func (o *driverOutput) Write(b []byte) (int, error) {
	if o.to == nil {
		o.to = <-o.p.output
		o.p.output <- o.to
	}
	if o.stderr {
		o.to(nil, b)
	} else {
		o.to(b, nil)
	}
	return len(b), nil
}

// driverEvents is what the driver says.
type driverEvents struct {
	*io.PipeReader
	cmd    *Cmd
	folder string
	over   chan struct{} // closed when cmd has ended
	once   sync.Once
}

// Close ends the reading process, too, and removes the folder for it: the driver may
// never have opened the FIFO.
func (e *driverEvents) Close() error {
	e.once.Do(func() {
		e.PipeReader.Close()
		select {
		case <-e.over:
		default:
			_ = e.cmd.Process.Kill()
			e.cmd.sb.removeDriver(e.cmd.ctx, e.folder)
		}
	})
	return nil
}

// Follow implements [drivers.Process].
func (p *driverProcess) Follow(_ context.Context, output func(stdout, stderr []byte)) {
	p.output <- output
	err := p.main.Wait()
	exit, ok := errors.AsType[*ExitError](err)
	switch {
	case err == nil:
		p.how = "exit code 0"
	case errors.Is(err, ErrMemoryLimit):
		p.how = "out of memory"
	case ok && exit.Signal != "":
		p.how = "signal: " + exit.Signal
	case ok:
		p.how = "exit code " + strconv.Itoa(exit.ExitCode)
	default:
		p.how = err.Error()
	}
	close(p.done)
}

// Interrupt implements [drivers.Process].
func (p *driverProcess) Interrupt(ctx context.Context, all bool) { p.signal(ctx, "INT", all) }

func (p *driverProcess) signal(ctx context.Context, name string, all bool) {
	args := []string{"-c", signalDriver, "sh", strconv.FormatInt(p.pid.Load(), 10), name, ""}
	if all {
		args[len(args)-1] = "all"
	}
	ctx, cancel := context.WithTimeout(ctx, driverSignal)
	defer cancel()
	if err := p.sb.Command(ctx, "/bin/sh", args...).Run(); err != nil {
		p.sb.log.DebugContext(ctx, "signal not sent to an interpreter", "err", err)
	}
}

// Kill implements [drivers.Process].
func (p *driverProcess) Kill(ctx context.Context) {
	if ctx.Err() == nil && p.pid.Load() > 0 {
		p.signal(ctx, "KILL", true)
	}
	_ = p.main.Process.Kill() // one that has ended is an error
}

// Done implements [drivers.Process].
func (p *driverProcess) Done() <-chan struct{} { return p.done }

// End implements [drivers.Process].
func (p *driverProcess) End() string {
	<-p.done
	return p.how
}
