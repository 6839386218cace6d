//go:build linux

package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/internal/pb/filesystem/filesystemconnect"
	"github.com/agent-sandbox/sandbox-go/internal/pb/process/processconnect"
	"github.com/agent-sandbox/sandbox-go/runtime/account"
	"github.com/agent-sandbox/sandbox-go/runtime/code"
	"github.com/agent-sandbox/sandbox-go/runtime/command"
	"github.com/agent-sandbox/sandbox-go/runtime/environment"
	"github.com/agent-sandbox/sandbox-go/runtime/filesystem"
	"github.com/agent-sandbox/sandbox-go/runtime/httpapi"
	"github.com/agent-sandbox/sandbox-go/runtime/policy"
	"github.com/agent-sandbox/sandbox-go/runtime/process"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// Limits on what a client may send, and on how long it may take.
const (
	maxHeaderBytes  = 64 << 10         // of one request
	maxMessageBytes = 32 << 20         // of one RPC message, decoded; uploads have no such limit
	minCompress     = 1 << 10          // bytes of a message below which compressing only costs time
	headerTimeout   = 10 * time.Second // until the header of a request is complete
	bodyTimeout     = 60 * time.Second // without a byte of a body that is being read or written
	idleTimeout     = 5 * time.Minute  // of a connection between requests
)

// Options says how a [Server] runs. See New for which are required.
type Options struct {
	Token        string            // access token of every call but GET /health
	AllowNoToken bool              // allow an empty Token: only for a socket that only its owner can open
	Env          map[string]string // variables of everything that is started; they win over those of Template
	SecretEnv    []string          // names in Env that are never listed, beside those that look like secrets

	// DefaultUser acts where a request names nobody; empty: the user the server runs as.
	DefaultUser    string
	DefaultWorkDir string // empty: the home of the user

	Spawner       process.Spawner // starts commands; nil: os.StartProcess
	Pid1          bool            // this process is pid 1: it collects every orphan and has umask 022
	CanSwitchUser bool            // other users than DefaultUser can be asked for; needs root
	// OOMKills is the number of processes killed so far at the memory limit of
	// the sandbox; nil: unknown.
	OOMKills func() uint64
	// SpaceKills is the number of times that processes were killed because they
	// had written too much, where no file system refuses it; nil: never.
	SpaceKills func() uint64
	// Room is asked before uploads write n bytes more; an error, such as ENOSPC,
	// refuses them. It is called concurrently. Nil: the file system decides.
	Room func(n int) error
	// Paused reports whether calls are refused with E2024 for now; nil: never.
	Paused func() bool
	// Usage measures the sandbox for GET /metrics; nil: what /proc and the control
	// group that is to be seen say. It may be called concurrently.
	Usage           func() Usage
	CommandOOMScore int // oom_score_adj of commands
	// Commands are the named commands of a program that is its own runtime, beside
	// those of Template. New freezes it. Nil: there are none.
	Commands *command.Registry
	// Template is what the sandbox was made from; nil: nothing was said. The server
	// keeps it and does not change it.
	Template *model.Template
	Logger   *slog.Logger // nil discards

	testOnlyHeartbeat, testOnlyTerminalIdle time.Duration // zero: those of package httpapi
}

// Server is the runtime of one sandbox.
type Server struct {
	opts     Options
	policy   *policy.Policy
	process  *process.Service
	files    *filesystem.Service
	api      *httpapi.API
	env      *environment.Environment
	users    *account.Book
	commands *command.Service
	code     *code.Service
	channels *channels
	tunnels  *tunnels
	meter    meter
	http     *http.Server
	lingers  lingers
	prepare  []func() // see later
	prestart func()   // of interpreters; the first call counts
}

// New returns a server that does not listen yet. It is closed by default: an
// empty Token is refused unless AllowNoToken is set. A nil o is the zero Options.
func New(o *Options) (*Server, error) {
	var opts Options
	if o != nil {
		opts = *o
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	const op = "start runtime"
	if opts.Token == "" && !opts.AllowNoToken {
		return nil, errdefs.New("E8007", op, "no access token, and none is not allowed")
	}
	if opts.CanSwitchUser && os.Geteuid() != 0 {
		return nil, errdefs.New("E8007", op, "only root can act as other users")
	}
	users := account.NewBook(opts.DefaultUser, opts.CanSwitchUser)
	if _, err := users.Lookup(""); err != nil {
		return nil, errdefs.Wrap("E3008", op, fmt.Sprintf("default user %q", opts.DefaultUser), err)
	}
	if opts.Pid1 {
		// Commands inherit the mask of file modes; ours came with whoever made
		// the sandbox.
		unix.Umask(0o022)
	}
	rules, err := policy.Compile(opts.Template, os.LookupEnv)
	if err != nil {
		return nil, err
	}
	if err := rules.Know(slices.Concat(protocolRows, Endpoints())); err != nil {
		return nil, err
	}
	commands, err := opts.Commands.With(opts.Template)
	if err != nil {
		return nil, err
	}
	s := &Server{opts: opts, users: users, policy: rules, env: variables(&opts, rules), channels: newChannels(), tunnels: newTunnels(), meter: meter{proc: "/proc", cgroup: "/sys/fs/cgroup", disk: "/"}}
	s.process = process.New(process.Options{
		Env: s.env, WorkDir: opts.DefaultWorkDir, Spawner: opts.Spawner, Reap: opts.Pid1,
		OOMKills: opts.OOMKills, SpaceKills: opts.SpaceKills, OOMScore: opts.CommandOOMScore, Channel: s.channels.take, Policy: rules, Logger: opts.Logger,
	})
	s.commands = command.New(command.Options{Registry: commands, Process: s.process, Users: users, WorkDir: opts.DefaultWorkDir})
	s.code = code.New(code.Options{Process: s.process, Users: users, Interpreter: interpreter(opts.Template), Logger: opts.Logger})
	s.prestart = sync.OnceFunc(func() {
		if rules.On("dev_tools.code_run") { // else no cell would ever run there
			s.code.Prestart()
		}
	})
	s.http = &http.Server{
		Handler:           s.routes(users),
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(opts.Logger.Handler(), slog.LevelDebug),
		ConnContext:       connContext,
	}
	return s, nil
}

// Handler is the whole service, its authentication included.
func (s *Server) Handler() http.Handler { return s.http.Handler }

// Serve answers connections of l until Shutdown; it returns nil then. It closes l.
// The first call starts the interpreters that the template names.
func (s *Server) Serve(l net.Listener) error {
	s.prestart()
	if err := s.http.Serve(s.lingers.listen(l)); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Shutdown ends all processes and their streams, then the connections, and
// returns when nothing is left or ctx ends. The server cannot be used again.
func (s *Server) Shutdown(ctx context.Context) error {
	err := s.process.Shutdown(ctx)
	s.code.Close()
	s.api.Close()
	s.files.Close()
	s.channels.close()
	s.tunnels.close()
	// Streams have got their end event and return by themselves; a client that
	// does not read holds one only until its connection is closed.
	grace, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if e := s.http.Shutdown(grace); e != nil {
		e = s.http.Close()
		err = errors.Join(err, e)
	}
	s.lingers.close()
	return err
}

// routes builds the handler. From the outside in: token, limits, route.
func (s *Server) routes(users *account.Book) http.Handler {
	connectOpts := []connect.HandlerOption{
		connect.WithReadMaxBytes(maxMessageBytes),
		connect.WithCompressMinBytes(minCompress),
		connect.WithInterceptors(refuseCalls{s.opts.Paused}, gate{s.policy}, asUser{users}),
	}
	s.files = filesystem.New(filesystem.Options{Users: users, WorkDir: s.opts.DefaultWorkDir, Room: s.opts.Room, Rules: s.policy.Files()})
	s.api = s.newAPI()
	mux := http.NewServeMux()
	mux.Handle("/"+processconnect.ProcessName+"/", s.later(func() http.Handler {
		_, calls := processconnect.NewProcessHandler(s.process, connectOpts...)
		return withTail(calls)
	}))
	s.prepare = append(s.prepare, process.Prepare)
	mux.Handle("/"+filesystemconnect.FilesystemName+"/", s.later(func() http.Handler {
		_, calls := filesystemconnect.NewFilesystemHandler(s.files, connectOpts...)
		return calls
	}))
	mux.HandleFunc("/health", only(http.MethodGet, health))
	mux.HandleFunc("/metrics", only(http.MethodGet, s.named("system.metrics", s.metrics)))
	mux.HandleFunc("/envs", only(http.MethodGet, s.named("system.env_read", s.envs)))
	mux.Handle("/files", s.switched(transferName, s.files.Transfer()))
	mux.Handle("/files/compose", s.named("file_ops.upload", s.files.Compose().ServeHTTP))
	mux.HandleFunc("/sandbox/channels/{id}", only(http.MethodPost, s.named("functions.call", s.channels.park)))
	mux.HandleFunc("/sandbox/ports/{port}", only(http.MethodPost, s.named("ports.connect", s.tunnels.connect)))
	api := s.later(func() http.Handler { return s.routeAPI(users) }) // the last one, see Prepare
	mux.Handle("DELETE /files", api)
	mux.Handle("/", api)
	return authenticate(s.opts.Token, whilePaused(s.opts.Paused, patient(s.cells(mux))))
}
