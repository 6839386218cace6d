//go:build linux

package process

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	pb "github.com/agent-sandbox/sandbox-go/internal/pb/process"
	"github.com/agent-sandbox/sandbox-go/runtime/policy"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// proc is one command.
type proc struct {
	pid    int
	serial uint64 // order of starts
	mark   uint64
	config *pb.ProcessConfig
	tag    *string
	began  time.Time
	out    *output
	in     *input
	pipes  []*pipe       // of stdout and stderr, or of the terminal
	term   *terminal     // nil without one
	count  *counter      // nil without a channel
	done   chan struct{} // closed once the process was collected
	left   atomic.Int32  // what has to be over before the command has ended, see complete
	finish func()
	// attended says that somebody waits for its end who needs not be the one who
	// collects it; guarded by the reaper's mu.
	attended bool
	ended    chan struct{} // closed once its output is complete too

	slot    bool                           // it has one of those that the policy gives
	overrun atomic.Pointer[policy.Refusal] // the rule that ends it

	oom   killCount // at the memory limit
	space killCount // because of what was written

	mu       sync.Mutex // held to signal and to collect: a number that was collected is not ours any more
	handle   *os.Process
	state    *os.ProcessState // valid once it was collected
	lost     error            // why the state is not known then
	lifetime *time.Timer      // nil without a deadline
	until    time.Time        // the deadline
}

// reap collects the process, which must be dead or about to be, and lets its
// pipes run dry. Complete is still to be called.
func (p *proc) reap() {
	p.mu.Lock()
	state, err := p.handle.Wait()
	// When somebody else has collected it the status is lost, the end is not.
	p.state, p.lost = state, err
	if p.lifetime != nil {
		p.lifetime.Stop()
	}
	close(p.done)
	p.mu.Unlock()
	for _, pipe := range p.pipes {
		if pipe.f != nil {
			// Wakes the reader; it looks at done then.
			_ = pipe.f.SetReadDeadline(time.Unix(1, 0))
		}
	}
	p.in.close()
}

// complete is called once by each pipe that has nothing more to come and once
// after reap. The last call ends the command.
func (p *proc) complete() {
	if p.left.Add(-1) == 0 {
		p.finish()
	}
}

// wait returns when the process was collected, or after d.
func (p *proc) wait(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
	}
}

// exitFile is a file that becomes readable when the child pid has died, so that
// no thread has to wait for it; nil where the kernel or a filter has none
// (Linux before 5.10, pidfd_open(2)). The child must not have been collected.
func exitFile(pid int) *os.File {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil
	}
	return os.NewFile(uintptr(fd), "pidfd")
}

// awaitDeath returns when the process is dead and leaves it to be collected.
// It closes exit, which may be nil.
func (p *proc) awaitDeath(exit *os.File) {
	if exit != nil {
		defer exit.Close()
		if raw, err := exit.SyscallConn(); err == nil {
			err = raw.Read(func(fd uintptr) bool {
				ready, _ := readable(fd)
				return ready
			})
			if err == nil {
				return
			}
		}
	}
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PID, p.pid, &info, unix.WEXITED|unix.WNOWAIT, nil)
		if err != unix.EINTR && (err != nil || !stops(&info)) {
			return
		}
		if err == nil {
			time.Sleep(stopPause) // it is being killed, see stopGuard
		}
	}
}

// endEvent says how the process ended, once it was collected.
func (p *proc) endEvent() *pb.ProcessEvent_EndEvent {
	if p.lost != nil {
		// Never a success that nobody has seen.
		return &pb.ProcessEvent_EndEvent{ExitCode: -1, Status: "unknown", Error: proto.String("exit status unknown: " + p.lost.Error())}
	}
	end := &pb.ProcessEvent_EndEvent{
		ExitCode: int32(p.state.ExitCode()),
		Exited:   p.state.Exited(),
		Status:   p.state.String(),
	}
	if p.state.Success() {
		return end
	}
	text := end.Status
	if limit, ok := p.hitLimit(); ok {
		text += " (" + limit.text + ")"
	}
	end.Error = proto.String(text)
	return end
}

// killCount is a counter of kills at a limit, of the whole sandbox.
type killCount struct {
	now    func() uint64 // nil: nothing is counted
	before uint64        // at the start of the process
}

func (k *killCount) begin(now func() uint64) {
	if now != nil {
		k.now, k.before = now, now()
	}
}

func (k *killCount) rose() bool { return k.now != nil && k.now() != k.before }

// A limit is one that processes are killed at.
type limit struct {
	code errdefs.Code
	text string // follows the status of a process
}

// hitLimit guesses from the counters of the whole sandbox: the process died of
// SIGKILL, or tells by its status that a child did, while a counter went up.
func (p *proc) hitLimit() (limit, bool) {
	if p.lost != nil {
		return limit{}, false
	}
	ws, ok := p.state.Sys().(syscall.WaitStatus)
	if !ok || !(ws.Signaled() && ws.Signal() == unix.SIGKILL) && ws.ExitStatus() != 128+int(unix.SIGKILL) {
		return limit{}, false
	}
	rule := p.overrun.Load()
	switch {
	case rule != nil:
		return limit{"E3001", rule.Error()}, true
	case p.oom.rose():
		return limit{"E3009", "memory limit"}, true
	case p.space.rose():
		return limit{"E4004", "no space left"}, true
	}
	return limit{}, false
}

// errGone says that the process has ended.
var errGone = errors.New("process has ended")

// signal signals the first process only.
func (p *proc) signal(sig unix.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.collected() {
		return errGone
	}
	if err := p.handle.Signal(sig); errors.Is(err, os.ErrProcessDone) {
		return errGone
	} else {
		return err
	}
}

// signalGroup signals the process group.
func (p *proc) signalGroup(sig unix.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	// Until it is collected nobody else can have its number.
	if p.collected() {
		return errGone
	}
	return os.NewSyscallError("kill", unix.Kill(-p.pid, sig))
}

// prey is the tree of p as something to be killed. Of a process that was
// collected, or where /proc is not to be read, only number and mark are known.
func (p *proc) prey(t *table) *prey {
	p.mu.Lock()
	defer p.mu.Unlock()
	y := &prey{leader: task{pid: p.pid}, mark: p.mark, known: map[int]uint64{}}
	y.strangers = func(pid int) bool { return pid != p.pid && t.leads(pid) }
	if !p.collected() {
		if t, ok := readTask(p.pid); ok {
			y.leader = t
		}
	}
	return y
}

// kill ends the whole tree and returns once none of it is left.
func (p *proc) kill(ctx context.Context, t *table) error {
	if p.collected() {
		return errGone
	}
	y := p.prey(t)
	// Nobody dies before all are found: the children of the dead have another
	// parent, and those that left the session and changed their mark are known
	// by their parent only.
	if found, err := y.tree(); err == nil {
		hold(found, y.tree)
	}
	// One that ended by itself in the meantime may have left what is held now.
	_ = p.signalGroup(unix.SIGKILL)
	err := sweep(ctx, y.tree)
	if errors.Is(err, os.ErrNotExist) {
		// Without /proc the group is all that can be found.
		return nil
	}
	return err
}

// input is the standard input of a process.
type input struct {
	lock chan struct{} // held by the one writer; a channel, so that waiting can be given up
	f    *os.File      // nil without a pipe
	lent bool          // f is a terminal, which output comes from, too

	mu     sync.Mutex
	closed bool // guarded by mu
}

var (
	errNoStdin     = errors.New("stdin not enabled or closed")
	errStdinBroken = errors.New("process closed its stdin")
)

func newInput(f *os.File) *input {
	return &input{lock: make(chan struct{}, 1), f: f}
}

// write writes all of b, or as much as the process takes before ctx ends.
func (in *input) write(ctx context.Context, b []byte) error {
	select {
	case in.lock <- struct{}{}:
		defer func() { <-in.lock }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if in.f == nil || in.isClosed() {
		return errNoStdin
	}
	late := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(late)
		_ = in.f.SetWriteDeadline(time.Unix(1, 0))
	})
	_, err := in.f.Write(b)
	if !stop() {
		<-late // or it would be set after it was taken back
		_ = in.f.SetWriteDeadline(time.Time{})
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, os.ErrClosed), os.IsTimeout(err):
		return errNoStdin
	case errors.Is(err, unix.EPIPE):
		return errStdinBroken
	}
	return err
}

func (in *input) isClosed() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.closed
}

// end closes the input after what is being written.
func (in *input) end(ctx context.Context) error {
	select {
	case in.lock <- struct{}{}:
		defer func() { <-in.lock }()
	case <-ctx.Done():
		return ctx.Err()
	}
	in.close()
	return nil
}

// close closes the input at once; a writer that waits gives up.
func (in *input) close() {
	in.mu.Lock()
	defer in.mu.Unlock()
	switch {
	case in.closed || in.f == nil:
	case in.lent:
		_ = in.f.SetWriteDeadline(time.Unix(1, 0))
	default:
		_ = in.f.Close()
	}
	in.closed = true
}
