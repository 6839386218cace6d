//go:build linux

package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	pb "github.com/agent-sandbox/sandbox-go/internal/pb/process"
	"github.com/agent-sandbox/sandbox-go/runtime/account"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// Variables that [Main] reads.
const (
	envToken    = "SANDBOX_SERVER_TOKEN"
	envListen   = "SANDBOX_SERVER_LISTEN"
	envTemplate = "SANDBOX_TEMPLATE_FILE"
)

const (
	defaultListen = ":49983"         // the port of the protocol, on all addresses
	mainGrace     = 10 * time.Second // for the end of everything after a signal
	maxTemplate   = 8 << 20          // bytes of a template's file
	maxTokenFile  = 4 << 10
)

const mainUsage = `usage: %s [option...]

Serves the runtime of the sandbox that this program is in.

  --listen ADDRESS   HOST:PORT, or unix:/absolute/path; may be repeated
                     (default :49983; SANDBOX_SERVER_LISTEN, between commas)
  --token-file FILE  holds the access token; otherwise SANDBOX_SERVER_TOKEN does,
                     which is removed before anything is started
  --template FILE    the compiled template, as JSON (SANDBOX_TEMPLATE_FILE)
  --user NAME        default user of commands and files
  --workdir DIR      default folder of commands
  --pass NAME        hands this variable on to commands; may be repeated. Of the
                     variables of this program only PATH is, otherwise
`

// Main is the main function of a program that is its own runtime: it serves until
// a signal ends it, and never returns. Everything in o is a default that options of
// the command line and variables can change; --help lists them. A nil o is the zero
// Options.
//
// Without a token it serves unix sockets only, which are made so that their owner
// alone can open them. As pid 1 it collects orphans. It starts what the template
// says is to be started. SIGTERM and SIGINT end everything that runs here, in 10
// seconds at most; a second one ends this program at once. The exit status is 0
// after a signal, and otherwise that of the error that was printed.
func Main(o *Options) { os.Exit(Run(o, filepath.Base(os.Args[0]), os.Args[1:], os.Stderr)) }

// Run is Main for a program that has other commands, too: name is what messages
// begin with, args are the options. It returns the exit status, and takes the
// signals SIGTERM and SIGINT while it runs. One process runs it once: what it says
// about the process, as that its memory is nobody else's to read, stays.
func Run(o *Options, name string, args []string, stderr io.Writer) int {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT)
	defer signal.Stop(signals)
	err := runMain(o, name, args, stderr, signals)
	if errors.Is(err, errHelp) {
		fmt.Fprintf(stderr, mainUsage, name)
		return 0
	}
	if err == nil {
		return 0
	}
	fmt.Fprintf(stderr, "%s: %v\n", name, err)
	if e, ok := errors.AsType[*errdefs.Error](err); ok && e.Hint() != "" {
		fmt.Fprintf(stderr, "%s: hint: %s\n", name, e.Hint())
	}
	return max(1, errdefs.CodeOf(err).ExitStatus())
}

var errHelp = errors.New("help")

// mainFlags are the options of the command line.
type mainFlags struct {
	listen, pass                       []string
	tokenFile, template, user, workDir string
}

func parseMain(args []string) (*mainFlags, error) {
	f := &mainFlags{}
	for len(args) > 0 {
		name, value, given := strings.Cut(args[0], "=")
		args = args[1:]
		if name == "-h" || name == "-help" || name == "--help" {
			return nil, errHelp
		}
		set := map[string]func(string){
			"--listen":     func(v string) { f.listen = append(f.listen, v) },
			"--pass":       func(v string) { f.pass = append(f.pass, v) },
			"--token-file": func(v string) { f.tokenFile = v },
			"--template":   func(v string) { f.template = v },
			"--user":       func(v string) { f.user = v },
			"--workdir":    func(v string) { f.workDir = v },
		}[name]
		switch {
		case set == nil:
			return nil, badMain("no option " + name + "; see --help")
		case !given && len(args) == 0:
			return nil, badMain("a value is missing after " + name)
		case !given:
			value, args = args[0], args[1:]
		}
		set(value)
	}
	return f, nil
}

func badMain(text string) error { return errdefs.New("E8007", "start runtime", text) }

func runMain(o *Options, name string, args []string, stderr io.Writer, signals <-chan os.Signal) error {
	// Before anything else: whatever happens, nobody is to find it there.
	token, err := takeVariable(envToken)
	if err != nil {
		return err
	}
	f, err := parseMain(args)
	if err != nil {
		return err
	}
	var opts Options
	if o != nil {
		opts = *o
	}
	if err := opts.fromMain(f, token); err != nil {
		return err
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.NewTextHandler(stderr, nil))
	}
	listeners, err := listenMain(f.listen, &opts)
	if err != nil {
		return err
	}
	s, err := New(&opts)
	if err != nil {
		closeAll(listeners)
		return err
	}
	// The memory of this process holds the token.
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	ended := make(chan error, len(listeners))
	for _, l := range listeners {
		go func() { ended <- s.Serve(l) }()
		fmt.Fprintf(stderr, "%s: listening on %s\n", name, addressOf(l))
	}
	s.startTemplate()
	select {
	case <-signals:
	case err = <-ended:
	}
	ctx, cancel := context.WithTimeout(context.Background(), mainGrace)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- s.Shutdown(ctx) }()
	select {
	case e := <-done:
		return errors.Join(err, e)
	case <-signals:
		return errors.New("ended by a second signal")
	}
}

// fromMain completes o by what the command line and the environment say.
func (o *Options) fromMain(f *mainFlags, token string) error {
	if token != "" {
		o.Token = token
	}
	if f.tokenFile != "" {
		b, err := readBounded(f.tokenFile, maxTokenFile)
		if err != nil {
			return errdefs.Wrap("E8007", "start runtime", "--token-file", err)
		}
		if o.Token = strings.TrimSpace(string(b)); o.Token == "" {
			return badMain("--token-file " + f.tokenFile + " is empty")
		}
	}
	if file := first(f.template, os.Getenv(envTemplate)); file != "" {
		t, err := readTemplate(file)
		if err != nil {
			return err
		}
		o.Template = t
	}
	o.DefaultUser = first(f.user, o.DefaultUser)
	o.DefaultWorkDir = first(f.workDir, o.DefaultWorkDir)
	if t := o.Template; t != nil {
		o.DefaultUser = first(o.DefaultUser, t.User)
		o.DefaultWorkDir = first(o.DefaultWorkDir, t.Workdir)
	}
	o.Pid1 = o.Pid1 || os.Getpid() == 1
	o.CanSwitchUser = o.CanSwitchUser || canSwitch("/proc/self")
	env := maps.Clone(o.Env)
	if env == nil {
		env = map[string]string{}
	}
	for _, name := range f.pass {
		v, ok := os.LookupEnv(name)
		switch {
		case strings.HasPrefix(name, "SANDBOX_SERVER_"):
			return badMain("--pass " + name + " would hand the settings of the runtime to commands")
		case !ok:
			return badMain("--pass " + name + ": this variable is not set")
		}
		if _, set := env[name]; !set {
			env[name] = v
		}
	}
	// The PATH of an image is where its programs are. A template's own comes first.
	if v := os.Getenv("PATH"); v != "" && env["PATH"] == "" && (o.Template == nil || o.Template.Env["PATH"] == "") {
		env["PATH"] = v
	}
	o.Env = env
	return nil
}

// canSwitch reports whether this process, whose folder in /proc is proc, can start
// others as other users. Root can not, where its user name space or container has
// taken that away.
func canSwitch(proc string) bool {
	if os.Geteuid() != 0 {
		return false
	}
	if b, err := os.ReadFile(proc + "/setgroups"); err == nil && strings.TrimSpace(string(b)) == "deny" {
		return false
	}
	status, err := os.ReadFile(proc + "/status")
	if err != nil {
		return true // without /proc a start says it
	}
	for line := range strings.Lines(string(status)) {
		if caps, ok := strings.CutPrefix(line, "CapEff:"); ok {
			const need = 1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID
			have, err := strconv.ParseUint(strings.TrimSpace(caps), 16, 64)
			return err != nil || have&need == need
		}
	}
	return true
}

func first(texts ...string) string {
	for _, t := range texts {
		if t != "" {
			return t
		}
	}
	return ""
}

func readTemplate(file string) (*model.Template, error) {
	const op = "read template"
	b, err := readBounded(file, maxTemplate)
	if err != nil {
		return nil, errdefs.Wrap("E8007", op, "", err)
	}
	t := &model.Template{}
	if err := json.Unmarshal(b, t); err != nil {
		return nil, errdefs.Wrap("E2004", op, file, err)
	}
	if t.Format > model.Version {
		return nil, errdefs.New("E2004", op, fmt.Sprintf("%s has format %d; this runtime knows those up to %d", file, t.Format, model.Version))
	}
	return t, nil
}

func readBounded(file string, limit int64) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("%s has more than %d bytes", file, limit)
	}
	return b, err
}

// startTemplate starts what the template says, as the default user. It is listed
// like any other command, and its failure is only logged: whoever looks whether
// the sandbox is ready will see it.
func (s *Server) startTemplate() {
	t := s.opts.Template
	if t == nil || t.Start == "" {
		return
	}
	ctx := context.Background()
	u, err := s.users.Lookup("")
	if err == nil {
		none := false
		config := &pb.ProcessConfig{Cmd: first(t.Shell, "/bin/sh"), Args: []string{"-c", t.Start}}
		r, e := s.process.Begin(account.NewContext(ctx, u), &pb.StartRequest{Process: config, Stdin: &none})
		if err = e; err == nil {
			r.Close() // what it prints can be read by whoever connects to it
		}
	}
	if err != nil {
		s.opts.Logger.Error("the command that the template starts did not start", "err", err)
	}
}

// listenMain opens the listeners. Without a token TCP is refused.
func listenMain(addrs []string, o *Options) (out []net.Listener, err error) {
	if len(addrs) == 0 {
		addrs = strings.Split(first(os.Getenv(envListen), defaultListen), ",")
	}
	defer func() {
		if err != nil {
			closeAll(out)
		}
	}()
	sockets := true
	for _, addr := range addrs {
		path, isSocket := strings.CutPrefix(addr, "unix:")
		if !isSocket {
			sockets = false
			if o.Token == "" {
				return out, &errdefs.Error{Code: "E8007", Op: "listen", Message: "there is no access token, and " + addr + " is open to others",
					Suggestion: "set " + envToken + ", or listen on unix:/path"}
			}
		}
		var l net.Listener
		if isSocket {
			l, err = listenSocket(path)
		} else {
			l, err = net.Listen("tcp", addr)
		}
		if err != nil {
			return out, errdefs.Wrap("E8007", "listen", addr, err)
		}
		out = append(out, l)
	}
	o.AllowNoToken = o.AllowNoToken || sockets
	return out, nil
}

// listenSocket makes a socket that only its owner can open. One that nobody serves
// is replaced.
func listenSocket(path string) (net.Listener, error) {
	if !strings.HasPrefix(path, "/") {
		return nil, errors.New("the path of a unix socket has to be absolute")
	}
	if fi, err := os.Lstat(path); err == nil && fi.Mode().Type() == os.ModeSocket {
		c, err := net.Dial("unix", path)
		if err == nil {
			c.Close()
			return nil, errors.New("somebody serves it already")
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	old := unix.Umask(0o177)
	defer unix.Umask(old)
	return net.Listen("unix", path)
}

func addressOf(l net.Listener) string {
	if l.Addr().Network() == "unix" {
		return "unix:" + l.Addr().String()
	}
	return l.Addr().String()
}

func closeAll(listeners []net.Listener) {
	for _, l := range listeners {
		l.Close()
	}
}
