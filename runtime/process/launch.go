//go:build linux

package process

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	pb "github.com/agent-sandbox/sandbox-go/internal/pb/process"
	"github.com/agent-sandbox/sandbox-go/runtime/account"
	"github.com/agent-sandbox/sandbox-go/runtime/fault"
	"github.com/agent-sandbox/sandbox-go/runtime/policy"
)

// DefaultPath is the PATH of commands when neither the sandbox nor the request
// sets one.
const DefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// launch is one start under way.
type launch struct {
	svc      *Service
	user     *account.User
	config   *pb.ProcessConfig
	stdin    bool
	channel  *os.File      // passed as descriptor 3; may be nil
	extra    []*os.File    // passed from descriptor 3 on, without a channel
	terminal *pb.PTY       // in place of pipes; may be nil
	source   policy.Source // of the variables in config

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
	if err := l.rules().User(l.user.Name); err != nil {
		return policy.Connect(err)
	}
	if err := l.openDir(); err != nil {
		return err
	}
	if err := l.checkDir(); err != nil {
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
	// Otherwise /proc/self/fd/N would name our own descriptors.
	how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_MAGICLINKS}
	if !l.rules().Follow() {
		how.Resolve |= unix.RESOLVE_NO_SYMLINKS
	}
	err = l.user.Do(func() (err error) {
		fd, err = unix.Openat2(unix.AT_FDCWD, cwd, how)
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
	if err == nil {
		l.cwd = cwd
		return nil
	}
	if refused := l.badDir(cwd, err); refused != nil {
		return refused
	}
	switch {
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
// of template and sandbox, over them those of the request. Nothing of ours is
// inherited. It is the only place where that happens, whatever starts the code.
func (l *launch) environ() {
	env := map[string]string{
		"PATH": DefaultPath, "HOME": l.user.Home, "USER": l.user.Name, "LOGNAME": l.user.Name, "PWD": l.cwd,
	}
	l.svc.opts.Env.AddTo(env)
	l.strip(env, policy.OfSandbox)
	asked := l.config.GetEnvs()
	if l.rules() != nil {
		asked = maps.Clone(asked)
		l.strip(asked, l.source)
	}
	maps.Copy(env, asked)
	if l.terminal != nil {
		terminalEnviron(env)
	}
	l.path = env["PATH"]
	l.env = make([]string, 0, len(env))
	for _, k := range slices.Sorted(maps.Keys(env)) {
		l.env = append(l.env, k+"="+env[k])
	}
}

// terminalEnviron says what the terminal is like, where nobody has said so: it
// has colours and shows UTF-8. C.UTF-8 is there without any locale installed.
func terminalEnviron(env map[string]string) {
	if _, ok := env["TERM"]; !ok {
		env["TERM"] = defaultTerm
	}
	_, lang := env["LANG"]
	if !lang {
		env["LANG"] = defaultLang
	}
	// Above all the others, so it would take their place.
	if _, ok := env["LC_ALL"]; !ok && !lang && env["LC_CTYPE"] == "" {
		env["LC_ALL"] = defaultLang
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
