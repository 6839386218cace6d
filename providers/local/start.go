//go:build linux

package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/internal/nsinit"
	"github.com/agent-sandbox/sandbox-go/internal/raceenv"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// Namespaces of every sandbox. The one of control groups follows from inside,
// after the new init was moved to its groups; the one of the network depends on
// the mode.
const cloneFlags = unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS

var devNull = sync.OnceValues(func() (*os.File, error) { return os.OpenFile(os.DevNull, os.O_RDWR, 0) })

// start clones the child, lets it build the sandbox and waits until it serves.
func (l *launcher) start(ctx context.Context) (*initProc, error) {
	ours, theirs, err := controlPair()
	if err != nil {
		return nil, errdefs.Wrap("E2000", "create sandbox", "make the control socket", err)
	}
	defer ours.Close()
	l.give(theirs)
	defer l.closeTrees()
	compiled := make(chan error, 1)
	go func() { compiled <- l.compile() }() // all of this while the child starts
	proc, err := l.clone()
	theirs.Close()
	if err != nil {
		<-compiled
		return nil, err
	}
	p := &initProc{pid: proc.Pid, process: proc}
	if err = <-compiled; err == nil {
		err = l.identify(ctx, p)
	}
	if err == nil {
		p.report = l.report()
		err = l.release(ctx, p, ours)
	}
	if err != nil {
		proc.Kill()
		proc.Wait()
		return nil, err
	}
	return p, nil
}

// clone starts the child, which waits for its program.
func (l *launcher) clone() (p *os.Process, err error) {
	if l.s.cradle == nil {
		return l.cloneHere()
	}
	l.s.cradle.run(func() { p, err = l.cloneHere() })
	return p, err
}

func (l *launcher) cloneHere() (*os.Process, error) {
	null, err := devNull()
	if err != nil {
		return nil, errdefs.Wrap("E2000", "create sandbox", "open /dev/null", err)
	}
	for i, f := range l.files {
		if f == nil {
			l.files[i] = null
		}
	}
	attr := &os.ProcAttr{
		// With one processor the Go runtime starts fewer threads and touches a
		// fifth fewer pages before it serves; ready gives it the others.
		Env:   []string{nsinit.EnvSocket + "=" + strconv.Itoa(childControl), "GOMAXPROCS=1"},
		Files: l.files,
		Sys: &syscall.SysProcAttr{
			// Package syscall leaves CLONE_VFORK away with a new user namespace
			// because it writes the maps before exec. We do it after, and so the
			// page tables of this process need not be copied.
			Cloneflags:  cloneFlags | unix.CLONE_VFORK | unix.CLONE_VM,
			Setsid:      true,
			AmbientCaps: allCaps(),
		},
	}
	if o, ok := raceenv.Lookup(); ok {
		attr.Env = append(attr.Env, raceenv.Name+"="+o)
	}
	if l.s.network != netHost && l.s.cradle == nil {
		attr.Sys.Cloneflags |= unix.CLONE_NEWNET
	}
	start := func() (*os.Process, error) {
		return os.StartProcess("/proc/self/fd/"+strconv.Itoa(childExe), []string{"sandbox-init"}, attr)
	}
	var p *os.Process
	if l.s.cgroup == nil {
		p, err = start()
	} else {
		p, err = l.s.cgroup.born(attr.Sys, l.s.cradle != nil, start)
	}
	if _, ok := errors.AsType[*joinError](err); ok {
		return nil, errdefs.Wrap("E2000", "create sandbox", "start init", err)
	}
	if err != nil {
		return nil, l.host.explain(stepClone, errnoOf(err), err)
	}
	return p, nil
}

// identify maps the ids of the child and notes when it was started.
func (l *launcher) identify(ctx context.Context, p *initProc) (err error) {
	if p.startTime, err = processStart(p.pid); err != nil {
		return errdefs.Wrap("E2000", "create sandbox", "look at its init", err)
	}
	if l.s.cradle != nil { // else clone(2) has seen to it
		err := checkNetwork(p.pid)
		if errors.Is(err, fs.ErrNotExist) { // what has ended is in none
			return l.lost(ctx, p, err)
		}
		if err != nil {
			return errdefs.Wrap("E2000", "create sandbox", "look at the network of its init", err)
		}
	}
	if err := l.s.mapping.apply(ctx, p.pid); err != nil {
		return l.host.explain(stepMap, errnoOf(err), err)
	}
	return nil
}

// release gives the child its program, and waits for what it says.
func (l *launcher) release(ctx context.Context, p *initProc, control *net.UnixConn) error {
	stop := context.AfterFunc(ctx, func() { control.Close() })
	defer stop()
	if err := l.sendProgram(control); err != nil {
		return l.lost(ctx, p, err)
	}
	if l.s.meanwhile != nil {
		if err := l.s.meanwhile(p); err != nil {
			return err
		}
	}
	r, listeners, err := readReply(control)
	if err != nil {
		err = l.lost(ctx, p, err)
	} else if r.Step != "" {
		err = l.host.explain(r.Step, r.Errno, r.Errno)
	}
	if err != nil {
		closeListeners(listeners)
		return err
	}
	if l.s.gvisor != nil {
		closeListeners(listeners) // a guest has none
		return l.checkGuestAnswer(r)
	}
	p.listeners = listeners
	return nil
}

// sendProgram sends the program, with the trees and files on its header.
func (l *launcher) sendProgram(control *net.UnixConn) error {
	b := l.prog.Encode()
	if len(b) > nsinit.MaxProgram {
		return errors.New("the program is too long")
	}
	var fds []int
	for _, f := range slices.Concat(l.trees, l.late) {
		fds = append(fds, int(f.Fd()))
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	n, _, err := control.WriteMsgUnix(b[:nsinit.HeaderSize], oob, nil)
	if err == nil && n != nsinit.HeaderSize {
		err = io.ErrShortWrite
	}
	if err != nil {
		return err
	}
	_, err = control.Write(b[nsinit.HeaderSize:])
	return err
}

// lost explains why init is gone without a word.
func (l *launcher) lost(ctx context.Context, p *initProc, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		if errors.Is(cause, context.Canceled) || errors.Is(cause, context.DeadlineExceeded) {
			return fmt.Errorf("create sandbox: %w", cause)
		}
		return cause
	}
	p.process.Kill()
	what := "its init ended"
	if st, werr := p.process.Wait(); werr == nil {
		what += " (" + st.String() + ")"
	}
	e := errdefs.Wrap("E2009", "create sandbox", what, err)
	if path := os.Getenv(envRuntime); path != "" {
		e.Suggestion = "is " + envRuntime + "=" + path + " a program that imports sandboxfn?"
	}
	return e
}

func controlPair() (*net.UnixConn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	theirs := os.NewFile(uintptr(fds[1]), "control")
	f := os.NewFile(uintptr(fds[0]), "control")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return c.(*net.UnixConn), theirs, nil
}

// readReply reads what init says, and before that the listeners that it hands
// out, which are the caller's also when there is an error.
func readReply(c *net.UnixConn) (_ nsinit.Reply, listeners []netListener, err error) {
	oob := make([]byte, unix.CmsgSpace(4))
	for {
		var h [nsinit.HeaderSize]byte
		n, oobn, _, _, err := c.ReadMsgUnix(h[:], oob)
		if err == nil && n == 0 {
			err = io.EOF
		}
		if err == nil {
			_, err = io.ReadFull(c, h[n:])
		}
		if err != nil {
			return nsinit.Reply{}, listeners, err
		}
		size, isFile := nsinit.FileSize(h[:])
		if !isFile {
			r, err := readReplyBody(c, h[:])
			return r, listeners, err
		}
		f, err := sentFile(oob[:oobn])
		if err != nil {
			return nsinit.Reply{}, listeners, err
		}
		name := make([]byte, size)
		if _, err := io.ReadFull(c, name); err != nil {
			f.Close()
			return nsinit.Reply{}, listeners, err
		}
		listeners = append(listeners, netListener{string(name), f})
	}
}

func readReplyBody(c io.Reader, header []byte) (nsinit.Reply, error) {
	n, ok := nsinit.ReplySize(header)
	if !ok {
		return nsinit.Reply{}, errors.New("malformed reply")
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(c, body); err != nil {
		return nsinit.Reply{}, err
	}
	reply, ok := nsinit.DecodeReply(body)
	if !ok {
		return nsinit.Reply{}, errors.New("malformed reply")
	}
	return reply, nil
}

// sentFile takes the one descriptor out of a control message.
func sentFile(oob []byte) (*os.File, error) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(msgs) != 1 {
		return nil, errors.Join(errors.New("a file without a descriptor"), err)
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil || len(fds) != 1 {
		for _, fd := range fds {
			unix.Close(fd)
		}
		return nil, errors.Join(errors.New("a file without a descriptor"), err)
	}
	return os.NewFile(uintptr(fds[0]), "listener"), nil
}

// processStart is field 22 of /proc/PID/stat (proc_pid_stat(5)).
func processStart(pid int) (uint64, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, err
	}
	i := bytes.LastIndexByte(b, ')') // the name may hold anything
	f := strings.Fields(string(b[i+1:]))
	if i < 0 || len(f) < 20 {
		return 0, errors.New("malformed stat of a process")
	}
	return strconv.ParseUint(f[19], 10, 64)
}

func errnoOf(err error) syscall.Errno {
	var e syscall.Errno
	errors.As(err, &e)
	return e
}
