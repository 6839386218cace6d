//go:build linux

package process

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	pb "github.com/agent-sandbox/sandbox-go/internal/pb/process"
	"github.com/agent-sandbox/sandbox-go/runtime/account"
	"github.com/agent-sandbox/sandbox-go/runtime/fault"
)

// DefaultPath is the PATH of commands when neither the sandbox nor the request
// sets one.
const DefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// launch is one start under way.
type launch struct {
	svc     *Service
	user    *account.User
	config  *pb.ProcessConfig
	stdin   bool
	channel *os.File // passed as descriptor 3; may be nil

	env  []string
	path string // PATH of the command
	dir  *os.File
	cwd  string
}

// notRunnable says why a program did not start, as a shell would.
type notRunnable struct {
	status int // 127: not there, 126: not executable
	text   string
}

func (e *notRunnable) Error() string { return e.text }

// prepare checks the request and opens the working directory.
func (l *launch) prepare() error {
	if err := checkText(l.config); err != nil {
		return fault.New(connect.CodeInvalidArgument, "E3011", "%s", err)
	}
	if err := l.openDir(); err != nil {
		return err
	}
	l.environ()
	return nil
}

// checkText refuses what cannot be handed to execve(2): it would be cut there.
func checkText(c *pb.ProcessConfig) error {
	if strings.IndexByte(c.GetCmd(), 0) >= 0 {
		return errors.New("cmd holds a NUL byte")
	}
	for i, a := range c.GetArgs() {
		if strings.IndexByte(a, 0) >= 0 {
			return fmt.Errorf("argument %d holds a NUL byte", i+1)
		}
	}
	for k, v := range c.GetEnvs() {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.IndexByte(v, 0) >= 0 {
			return fmt.Errorf("variable %q is malformed", k)
		}
	}
	return nil
}

// openDir opens the working directory with the rights of the user. From here on
// it is a descriptor: the path may lead elsewhere by the time of the start.
func (l *launch) openDir() error {
	cwd, err := l.user.Path(l.config.GetCwd(), l.svc.opts.WorkDir)
	if err != nil {
		return fault.New(connect.CodeInvalidArgument, "E3012",
			"failed to expand path '%s' for user '%s': %v", l.config.GetCwd(), l.user.Name, err)
	}
	fd := -1
	err = l.user.Do(func() (err error) {
		fd, err = unix.Openat2(unix.AT_FDCWD, cwd, &unix.OpenHow{
			Flags: unix.O_PATH | unix.O_CLOEXEC,
			// Otherwise /proc/self/fd/N would name our own descriptors.
			Resolve: unix.RESOLVE_NO_MAGICLINKS,
		})
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			return unix.ENOTDIR
		}
		return unix.Faccessat2(fd, "", unix.X_OK, unix.AT_EMPTY_PATH|unix.AT_EACCESS)
	})
	if fd >= 0 {
		l.dir = os.NewFile(uintptr(fd), cwd)
	}
	switch {
	case err == nil:
		l.cwd = cwd
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return fault.New(connect.CodeInvalidArgument, "E3012", "cwd '%s' does not exist", cwd)
	}
	return fault.New(connect.CodeInvalidArgument, "E3012",
		"error starting process '%s': cwd '%s': %v", commandLine(l.config), cwd, err)
}

func commandLine(c *pb.ProcessConfig) string {
	return strings.Join(append([]string{c.GetCmd()}, c.GetArgs()...), " ")
}

// environ puts the environment together: the defaults, over them the variables
// of the sandbox, over them those of the request. Nothing of ours is inherited.
func (l *launch) environ() {
	env := map[string]string{
		"PATH": DefaultPath, "HOME": l.user.Home, "USER": l.user.Name, "LOGNAME": l.user.Name, "PWD": l.cwd,
	}
	maps.Copy(env, l.svc.opts.Env)
	maps.Copy(env, l.config.GetEnvs())
	l.path = env["PATH"]
	l.env = make([]string, 0, len(env))
	for _, k := range slices.Sorted(maps.Keys(env)) {
		l.env = append(l.env, k+"="+env[k])
	}
}

// lookPath finds the program. A name with a slash is a path, relative to the
// working directory; anything else is looked up in the PATH of the command.
func (l *launch) lookPath() (string, error) {
	name := l.config.GetCmd()
	if name == "" {
		return "", &notRunnable{127, "'': No such file or directory"}
	}
	if strings.Contains(name, "/") {
		return name, nil
	}
	denied := false
	for dir := range strings.SplitSeq(l.path, ":") {
		if dir == "" {
			dir = "."
		}
		p := path.Join(dir, name)
		if dir == "." {
			p = "./" + name
		}
		switch err := l.runnable(p); {
		case err == nil:
			return p, nil
		case err == unix.EACCES:
			denied = true
		}
	}
	if denied {
		return "", &notRunnable{126, "'" + name + "': Permission denied"}
	}
	return "", &notRunnable{127, "'" + name + "': No such file or directory"}
}

// runnable reports whether the user may execute the file at p.
func (l *launch) runnable(p string) error {
	return l.user.Do(func() error {
		fd, err := unix.Openat2(int(l.dir.Fd()), p, &unix.OpenHow{
			Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_MAGICLINKS,
		})
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFREG {
			return unix.EACCES
		}
		return unix.Faccessat2(fd, "", unix.X_OK, unix.AT_EMPTY_PATH|unix.AT_EACCESS)
	})
}

// close releases what prepare took.
func (l *launch) close() {
	if l.dir != nil {
		l.dir.Close()
	}
	if l.channel != nil {
		l.channel.Close()
	}
}

// start starts the program and subscribes to its output. The error is a *notRunnable when it is the
// program's fault.
func (l *launch) start(tag *string) (*proc, *subscription, error) {
	name, err := l.lookPath()
	if err != nil {
		return nil, nil, err
	}
	p := &proc{
		config: l.config, tag: tag, serial: l.svc.serial.Add(1),
		out: newOutput(), done: make(chan struct{}), ended: make(chan struct{}),
	}
	ends, err := l.files(p)
	defer func() {
		for _, f := range ends[:3] {
			if f != nil {
				f.Close()
			}
		}
	}()
	if err != nil {
		p.closeFiles()
		return nil, nil, err
	}
	// Attached before the start, so nothing is missed.
	sub := p.out.subscribe()
	attr := &os.ProcAttr{
		Dir:   "/proc/self/fd/" + strconv.Itoa(int(l.dir.Fd())),
		Env:   l.env,
		Files: ends,
		Sys:   &syscall.SysProcAttr{Setsid: true, Credential: l.user.Credential()},
	}
	if err := l.svc.spawn(p, name, append([]string{l.config.GetCmd()}, l.config.GetArgs()...), attr); err != nil {
		p.closeFiles()
		return nil, nil, l.startError(name, err)
	}
	return p, sub, nil
}

// files makes the pipes of p and returns the ends of the new process.
func (l *launch) files(p *proc) (ends []*os.File, err error) {
	ends = make([]*os.File, 3, 5)
	if l.stdin {
		r, w, err := os.Pipe()
		if err != nil {
			return ends, err
		}
		ends[0], p.in = r, newInput(w)
	} else {
		p.in = newInput(nil)
		if ends[0], err = os.Open(os.DevNull); err != nil {
			return ends, err
		}
	}
	if l.channel != nil {
		if p.count, err = newCounter(); err != nil {
			return ends, err
		}
		ends = append(ends, l.channel, p.count.f)
	}
	for i := range p.pipes {
		r, w, err := os.Pipe()
		if err != nil {
			return ends, err
		}
		ends[1+i] = w
		if p.pipes[i], err = newPipe(i, r, p.out, p.count, p.done); err != nil {
			return ends, err
		}
	}
	return ends, nil
}

func (p *proc) closeFiles() {
	if p.in != nil {
		p.in.close()
	}
	for _, pipe := range p.pipes {
		if pipe != nil {
			pipe.f.Close()
		}
	}
	p.count.close()
}

// startError explains err of the start of name.
func (l *launch) startError(name string, err error) error {
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

// spawn starts the program of p and everything that looks after it.
func (s *Service) spawn(p *proc, name string, argv []string, attr *os.ProcAttr) error {
	if s.reaper != nil {
		s.reaper.starting.RLock()
		defer s.reaper.starting.RUnlock()
	}
	if s.opts.OOMKills != nil {
		p.kills, p.before = s.opts.OOMKills, s.opts.OOMKills()
	}
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
	if s.reaper != nil {
		s.reaper.add(p)
	} else {
		s.wg.Go(func() {
			p.awaitDeath()
			p.reap()
		})
	}
	s.setOOMScore(p.pid)
	s.table.add(p)
	complete := make(chan struct{}, outputs)
	for _, pipe := range p.pipes {
		s.wg.Go(func() { pipe.run(func() { complete <- struct{}{} }) })
	}
	s.wg.Go(func() {
		for range outputs {
			<-complete
		}
		<-p.done
		p.count.close()
		p.out.finish(p.endEvent())
		close(p.ended)
		s.table.ended(p)
	})
	return nil
}

// setOOMScore makes the kernel prefer commands over us when memory is short.
// That it fails where it is not allowed changes nothing else.
func (s *Service) setOOMScore(pid int) {
	if n := s.opts.OOMScore; n != 0 {
		_ = os.WriteFile("/proc/"+strconv.Itoa(pid)+"/oom_score_adj", []byte(strconv.Itoa(n)), 0)
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
		if err := p.kill(ctx, s.marker); err != nil && !errors.Is(err, errGone) {
			s.opts.Logger.Warn("process tree not ended", "pid", p.pid, "err", err)
		}
	})
}
