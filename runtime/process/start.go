//go:build linux

package process

import (
	"context"
	"errors"
	"maps"
	"os"
	"strconv"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	pb "github.com/agent-sandbox/sandbox-go/internal/pb/process"
	"github.com/agent-sandbox/sandbox-go/runtime/account"
	"github.com/agent-sandbox/sandbox-go/runtime/fault"
)

// relayedMark is a variable that every worker without a channel has.
const relayedMark = "SANDBOX_WORKER_MARK"

// listed is what lists of processes show of the launch: no secrets. The
// environment of a worker is between it and its caller.
func (l *launch) listed() *pb.ProcessConfig {
	shown := &pb.ProcessConfig{Cmd: l.config.Cmd, Args: l.config.Args, Cwd: l.config.Cwd}
	if _, relayed := l.config.GetEnvs()[relayedMark]; relayed || l.channel != nil {
		return shown
	}
	if !l.hasSecrets() {
		return l.config
	}
	shown.Envs = maps.Clone(l.config.GetEnvs())
	maps.DeleteFunc(shown.Envs, func(name, _ string) bool { return l.svc.opts.Env.Secret(name) })
	return shown
}

func (l *launch) hasSecrets() bool {
	for name := range l.config.GetEnvs() {
		if l.svc.opts.Env.Secret(name) {
			return true
		}
	}
	return false
}

// start starts the program and subscribes to its output. The error is a *notRunnable when it is the
// program's fault.
func (l *launch) start(tag *string) (*proc, *subscription, error) {
	name, err := l.lookPath()
	if err != nil {
		return nil, nil, err
	}
	program, err := l.vet(name)
	if err != nil {
		return nil, nil, err
	}
	defer program.close()
	p := &proc{
		config: l.listed(), tag: tag, serial: l.svc.serial.Add(1), began: time.Now(),
		out: newOutput(l.rules().MaxOutput()), done: make(chan struct{}), ended: make(chan struct{}),
	}
	ends, done, err := l.files(p)
	defer done()
	if err != nil {
		p.closeFiles()
		return nil, nil, l.startError(name, err)
	}
	exe, err := program.execName(l.svc, l, ends)
	if err == nil {
		err = l.svc.take(p)
	}
	if err != nil {
		p.closeFiles()
		return nil, nil, l.startError(name, err)
	}
	// Attached before the start, so nothing is missed.
	sub := p.out.subscribe()
	attr := &os.ProcAttr{
		Dir:   l.svc.descriptor(l.dir, l.user),
		Env:   l.env,
		Files: ends,
		Sys:   &syscall.SysProcAttr{Setsid: true, Setctty: p.term != nil, Ctty: 0, Credential: l.user.Credential()},
	}
	argv := append([]string{l.config.GetCmd()}, l.config.GetArgs()...)
	err = l.svc.spawn(p, exe, argv, attr)
	// A file that was just written is busy for as long as another command, which
	// was between fork and exec then, holds a copy of the writer's descriptor.
	for pause := time.Millisecond; errors.Is(err, unix.ETXTBSY) && pause < maxBusy; pause *= 2 {
		time.Sleep(pause)
		err = l.svc.spawn(p, exe, argv, attr)
	}
	if err != nil {
		l.svc.free(p)
		p.closeFiles()
		return nil, nil, l.startError(name, err)
	}
	l.svc.limitRuntime(p)
	done() // or the pipes would not end
	l.svc.attend(p)
	return p, sub, nil
}

// descriptor is a path of f for a process that is about to become one of u.
//
// Its own number is looked up anew for each process; ours is known to the kernel
// already. It may only be used by those who are allowed to trace us.
func (s *Service) descriptor(f *os.File, u *account.User) string {
	n := strconv.Itoa(int(f.Fd()))
	if s.self != "" && u.Credential() == nil {
		if dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0); err == nil && dumpable == 1 {
			return s.self + n
		}
	}
	return "/proc/self/fd/" + n
}

// ownDescriptors is the folder of /proc that holds our descriptors under our own
// number; empty where /proc belongs to another pid name space.
func ownDescriptors() string {
	pid := strconv.Itoa(os.Getpid())
	if self, err := os.Readlink("/proc/self"); err != nil || self != pid {
		return ""
	}
	return "/proc/" + pid + "/fd/"
}

// maxBusy bounds the last pause before a busy program is given up.
const maxBusy = 100 * time.Millisecond

// files makes the pipes or the terminal of p and returns the files of the new
// process. Closed releases our copies of those that it alone has then.
func (l *launch) files(p *proc) (ends []*os.File, closed func(), err error) {
	var ours []*os.File
	closed = func() {
		for _, f := range ours {
			f.Close()
		}
	}
	if l.terminal != nil {
		ends, err = l.terminalFiles(p)
		return ends, closed, err
	}
	ends = make([]*os.File, 3, 5)
	if l.stdin {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, closed, err
		}
		ends[0], p.in = r, newInput(w)
	} else {
		p.in = newInput(nil)
		// Past package os, which would try to wait for it.
		fd, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, closed, &os.PathError{Op: "open", Path: os.DevNull, Err: err}
		}
		ends[0] = os.NewFile(uintptr(fd), os.DevNull)
	}
	ours = append(ours, ends[0])
	ends = append(ends, l.extra...)
	if l.channel != nil {
		if p.count, err = newCounter(); err != nil {
			return nil, closed, err
		}
		ends = append(ends, l.channel, p.count.f)
	}
	for i := range outputs {
		pipe, w, err := newPipe(i, p)
		if err != nil {
			return nil, closed, err
		}
		ours = append(ours, w)
		ends[1+i] = w
		p.pipes = append(p.pipes, pipe)
	}
	return ends, closed, nil
}

// terminalFiles makes the terminal of p, which is the user's.
func (l *launch) terminalFiles(p *proc) (ends []*os.File, err error) {
	err = l.user.Do(func() (err error) {
		p.term, err = openTerminal(l.terminal.GetSize())
		return err
	})
	if err != nil {
		return nil, err
	}
	p.out.terminal = true
	p.in = newInput(p.term.master)
	p.in.lent = true
	p.pipes = append(p.pipes, &pipe{i: stdout, f: p.term.master, out: p.out, done: p.done, term: p.term})
	return []*os.File{p.term.slave, p.term.slave, p.term.slave}, nil
}

func (p *proc) closeFiles() {
	if p.in != nil {
		p.in.close()
	}
	for _, pipe := range p.pipes {
		pipe.close()
	}
	if p.term != nil {
		p.term.close()
	}
	p.count.close()
}

// startError explains err of the start of name.
func (l *launch) startError(name string, err error) error {
	var already *connect.Error
	if errors.As(err, &already) {
		return err
	}
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return fault.New(connect.CodeInternal, "E3006", "error starting process '%s': %v", commandLine(l.config), err)
	}
	text := func(why string) string { return "'" + l.config.GetCmd() + "': " + why }
	switch errno {
	case unix.ENOENT:
		if l.runnable(name) == nil {
			return &notRunnable{126, text("bad interpreter: No such file or directory")}
		}
		return &notRunnable{127, text("No such file or directory")}
	case unix.ENOTDIR:
		return &notRunnable{127, text("Not a directory")}
	case unix.ELOOP, unix.ENAMETOOLONG:
		return &notRunnable{127, text(errno.Error())}
	case unix.EACCES, unix.EISDIR:
		return &notRunnable{126, text("Permission denied")}
	case unix.ENOEXEC:
		return &notRunnable{126, text("Exec format error")}
	case unix.ETXTBSY:
		return &notRunnable{126, text("Text file busy")}
	case unix.E2BIG:
		return fault.New(connect.CodeInvalidArgument, "E3011", "error starting process '%s': argument list too long", l.config.GetCmd())
	case unix.EAGAIN, unix.ENOMEM, unix.EMFILE, unix.ENFILE:
		return fault.New(connect.CodeResourceExhausted, "E3000", "error starting process '%s': %v", l.config.GetCmd(), errno)
	}
	return fault.New(connect.CodeInternal, "E3006", "error starting process '%s': %v", l.config.GetCmd(), errno)
}

// spawn starts the program of p. Attend is still to be called.
func (s *Service) spawn(p *proc, name string, argv []string, attr *os.ProcAttr) error {
	if s.reaper != nil {
		s.reaper.starting.RLock()
		defer s.reaper.starting.RUnlock()
	}
	p.oom.begin(s.opts.OOMKills)
	p.space.begin(s.opts.SpaceKills)
	// Registered under the lock that Shutdown takes, so it misses no start.
	s.startMu.RLock()
	defer s.startMu.RUnlock()
	if s.closing {
		return fault.New(connect.CodeUnavailable, "", "server is shutting down")
	}
	var err error
	p.mark, err = s.marker.with(func() (err error) {
		p.handle, err = s.opts.Spawner(name, argv, attr)
		return err
	})
	if err != nil {
		return err
	}
	p.pid = p.handle.Pid
	p.left.Store(int32(len(p.pipes)) + 1)
	p.finish = func() { s.finish(p) }
	if s.reaper != nil {
		s.reaper.add(p)
	}
	s.setOOMScore(p.pid)
	s.table.add(p)
	s.wg.Add(1) // until it is attended
	return nil
}

// attend looks after p, which has just been started, until its end.
func (s *Service) attend(p *proc) {
	defer s.wg.Done()
	if p.endsSoon() && s.brief(p) {
		return
	}
	for _, pipe := range p.pipes {
		if err := pipe.open(); err != nil {
			// Only of a descriptor that is none can this be said.
			panic(err)
		}
		s.wg.Go(func() { pipe.run(p.complete) })
	}
	exit := exitFile(p.pid) // before anybody can collect it
	switch {
	case s.reaper == nil:
		s.wg.Go(func() {
			p.awaitDeath(exit)
			p.reap()
			p.complete()
		})
	case exit == nil:
		s.reaper.attended(p)
	default:
		s.reaper.attended(p)
		s.wg.Go(func() {
			p.awaitDeath(exit)
			s.reaper.collect(p)
		})
	}
}

// finish publishes the end of p: it was collected, and its output is complete.
func (s *Service) finish(p *proc) {
	p.count.close()
	s.free(p) // before anybody learns of the end and starts the next one
	end := p.endEvent()
	s.table.ended(p, end) // before anybody learns of the end and asks a list
	p.out.finish(end)
	close(p.ended)
}

// setOOMScore makes the kernel prefer commands over us when memory is short.
// That it fails where it is not allowed changes nothing else.
func (s *Service) setOOMScore(pid int) {
	if n := s.opts.OOMScore; n != 0 {
		// Past package os, which would try to wait for it.
		fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/oom_score_adj", unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return
		}
		_, _ = unix.Write(fd, strconv.AppendInt(nil, int64(n), 10))
		unix.Close(fd)
	}
}

// killSoon ends the tree of p in the background, for clean-up that nobody waits for.
func (s *Service) killSoon(p *proc) {
	s.startMu.RLock()
	defer s.startMu.RUnlock()
	if s.closing {
		return // Shutdown kills everything
	}
	s.wg.Go(func() {
		ctx, cancel := context.WithTimeout(s.ctx, killTimeout)
		defer cancel()
		if err := p.kill(ctx, s.table); err != nil && !errors.Is(err, errGone) {
			s.opts.Logger.Warn("process tree not ended", "pid", p.pid, "err", err)
		}
	})
}
