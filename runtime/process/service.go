//go:build linux

package process

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	pb "github.com/agent-sandbox/sandbox-go/internal/pb/process"
	"github.com/agent-sandbox/sandbox-go/internal/pb/process/processconnect"
	"github.com/agent-sandbox/sandbox-go/runtime/account"
	"github.com/agent-sandbox/sandbox-go/runtime/environment"
	"github.com/agent-sandbox/sandbox-go/runtime/fault"
	"github.com/agent-sandbox/sandbox-go/runtime/policy"
)

// Headers of our own that Start and SendSignal understand; clients of other
// servers may send them too, where they mean nothing.
const (
	// ChannelHeader on Start names a parked connection that the process gets as
	// descriptor 3, with the output counter as descriptor 4.
	ChannelHeader = "Sandbox-Channel"

	// ScopeHeader on SendSignal: "process" signals the first process only,
	// instead of the tree (SIGKILL) or the process group (SIGTERM).
	ScopeHeader = "Sandbox-Signal-Scope"

	// DisconnectHeader on Start: "kill" ends the process when the stream of this
	// Start is lost before its end.
	DisconnectHeader = "Sandbox-On-Disconnect"

	// DroppedHeader in the answer of Connect says how many bytes of stdout and
	// stderr had fallen out of the buffer: "stdout=N, stderr=N", or "pty=N".
	DroppedHeader = "Sandbox-Output-Dropped"
)

const (
	keepaliveHeader  = "Keepalive-Ping-Interval"
	defaultKeepalive = 90 * time.Second

	// killTimeout bounds how long a kill looks for survivors.
	killTimeout = 5 * time.Second

	// deadlineGrace is how long the answer waits for the end of a process that is
	// being killed because of its deadline.
	deadlineGrace = time.Second
)

// Options says how a [Service] starts processes. Zero values are usable.
type Options struct {
	Env     *environment.Environment // for every process, below the variables of its request
	WorkDir string                   // of processes that name none; empty: the home of their user
	Spawner Spawner                  // nil: os.StartProcess
	// Reap collects every dead child of this process, its own and orphans: for
	// pid 1 of a pid name space. Nothing else may then wait for children.
	Reap     bool
	OOMKills func() uint64 // processes killed at the memory limit so far; nil: unknown
	// SpaceKills is the same for those that were killed because they had written
	// too much; nil: none are.
	SpaceKills func() uint64
	OOMScore   int // oom_score_adj of processes; 0 leaves it as it is
	// Policy is asked before anything is started, and about every call; nil: all
	// may be.
	Policy *policy.Policy
	// Channel takes a parked connection by its id; nil: there are none. The file
	// belongs to the caller.
	Channel func(id string) (*os.File, bool)
	Logger  *slog.Logger // nil discards
}

// Service implements process.Process. Its methods are safe for concurrent use.
// The user a request acts as comes from its context, see [account.NewContext].
type Service struct {
	opts   Options
	table  *table
	marker *marker
	reaper *reaper          // nil unless Options.Reap
	stops  *stopGuard       // nil with Options.Reap
	rules  *policy.Commands // of the policy
	slots  slots
	serial atomic.Uint64
	self   string // see ownDescriptors

	// ctx ends with the service; what outlives a request lives under it.
	ctx    context.Context
	cancel context.CancelFunc

	startMu sync.RWMutex
	closing bool // guarded by startMu

	wg sync.WaitGroup
}

var _ processconnect.ProcessHandler = (*Service)(nil)

// New returns a running service. [Service.Shutdown] ends it. It changes what
// commands would inherit from this process: ignored signals and descriptors
// that are not close-on-exec.
func New(o Options) *Service {
	if o.Spawner == nil {
		o.Spawner = plainSpawner
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Service{opts: o, rules: o.Policy.Commands(), table: newTable(), marker: newMarker(), self: ownDescriptors()}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	if o.Reap {
		s.reaper = newReaper()
	} else {
		s.stops = newStopGuard(s.table)
	}
	unignoreSignals()
	s.keepDescriptors()
	return s
}

// keepDescriptors marks what this process was given, by whoever started it, as
// not to be handed on to commands. What Go opens is marked already.
func (s *Service) keepDescriptors() {
	if err := unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		s.opts.Logger.Warn("inherited descriptors may reach commands", "err", err)
	}
}

// unignored gets signals that nobody wants.
var unignored = make(chan os.Signal, 1)

// unignoreSignals keeps what was ignored when this process was started from
// being ignored in all commands too: execve(2) hands ignoring on, but not
// handlers. It is for good: taken back, they would be ignored once more, and no
// later service could see that.
func unignoreSignals() {
	for n := unix.Signal(1); n <= 64; n++ {
		if n != unix.SIGKILL && n != unix.SIGSTOP && signal.Ignored(n) {
			signal.Notify(unignored, n)
		}
	}
}

// Shutdown refuses new processes, ends all that were ever started here and are
// left, and waits until nothing of the service runs, or ctx ends.
func (s *Service) Shutdown(ctx context.Context) error {
	s.startMu.Lock()
	s.closing = true
	s.startMu.Unlock()
	err := sweep(ctx, s.leftovers)
	for _, p := range s.table.living() {
		// Where /proc is not to be read, the groups are what can be found.
		_ = p.signalGroup(unix.SIGKILL)
	}
	done := make(chan struct{})
	go func() {
		s.wg.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		return errors.Join(err, ctx.Err())
	}
	s.cancel()
	s.table.close()
	if s.reaper != nil {
		s.reaper.close()
		s.reaper = nil
	}
	if s.stops != nil {
		s.stops.close()
		s.stops = nil
	}
	return err
}

// leftovers finds what is left of all commands, also of those that have ended:
// by their marks, and by session and parent where none could be set.
func (s *Service) leftovers() ([]task, error) {
	out, err := s.marker.all()
	for _, p := range s.table.living() {
		if err == nil && p.mark == 0 {
			var more []task
			more, err = p.prey(s.table).tree()
			out = append(out, more...)
		}
	}
	return out, err
}

// settle waits for starts that are under way: a new process can have told of
// itself before the table knows it.
func (s *Service) settle() {
	s.startMu.Lock()
	//lint:ignore SA2001 nothing is to be done in here
	s.startMu.Unlock()
}

// find is that of the table.
func (s *Service) find(sel *pb.ProcessSelector, past bool) (*proc, error) {
	p, err := s.table.find(sel, past)
	if err != nil {
		s.settle()
		p, err = s.table.find(sel, past)
	}
	return p, err
}

// List lists the living processes.
func (s *Service) List(context.Context, *connect.Request[pb.ListRequest]) (*connect.Response[pb.ListResponse], error) {
	if err := s.opts.Policy.Endpoint("process.list"); err != nil {
		return nil, policy.Connect(err)
	}
	s.settle()
	resp := &pb.ListResponse{}
	for _, p := range s.table.living() {
		resp.Processes = append(resp.Processes, &pb.ProcessInfo{Config: p.config, Pid: uint32(p.pid), Tag: p.tag})
	}
	return connect.NewResponse(resp), nil
}

// Start starts a process and follows it. A deadline of the request is also that
// of the process: its tree is killed then. Without one the process outlives
// the stream, unless DisconnectHeader says otherwise.
func (s *Service) Start(ctx context.Context, req *connect.Request[pb.StartRequest], stream *connect.ServerStream[pb.StartResponse]) error {
	if ctx.Err() != nil {
		return ended(ctx)
	}
	if err := s.mayStart(req.Msg.GetPty() != nil, req.Header().Get(ChannelHeader) != ""); err != nil {
		return err
	}
	l := &launch{
		svc: s, user: account.FromContext(ctx), config: req.Msg.GetProcess(),
		stdin: req.Msg.Stdin == nil || req.Msg.GetStdin(), terminal: req.Msg.GetPty(),
	}
	defer l.close()
	if id := req.Header().Get(ChannelHeader); id != "" {
		if l.terminal != nil {
			return fault.New(connect.CodeInvalidArgument, "E3011", "a process with a terminal has no channel")
		}
		var ok bool
		if s.opts.Channel != nil {
			l.channel, ok = s.opts.Channel(id)
		}
		if !ok {
			return fault.New(connect.CodeFailedPrecondition, "E9015", "no connection waits under this channel id")
		}
	}
	if l.config == nil {
		l.config = &pb.ProcessConfig{}
	}
	if err := l.prepare(); err != nil {
		return err
	}
	p, sub, err := l.start(req.Msg.Tag)
	if bad := (*notRunnable)(nil); errors.As(err, &bad) {
		return sendNotRunnable(bad, l.terminal != nil, stream)
	}
	if err != nil {
		return err
	}
	l.close()
	defer sub.close()
	if deadline, ok := ctx.Deadline(); ok {
		s.killAt(p, deadline)
	}
	err = s.follow(ctx, p, sub, keepalive(req.Header()), func(e *pb.ProcessEvent) error {
		return stream.Send(&pb.StartResponse{Event: e})
	})
	s.afterStream(p, err, req.Header())
	if err != nil {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			p.wait(deadlineGrace) // so that lists do not show it any more
		}
		return err // it may run still
	}
	if limit, ok := p.hitLimit(); ok {
		stream.ResponseTrailer().Set(fault.Header, string(limit.code))
	}
	return nil
}

// Connect follows a process from the oldest output that is still kept. One that
// has ended can be connected to for [KeepEnded].
func (s *Service) Connect(ctx context.Context, req *connect.Request[pb.ConnectRequest], stream *connect.ServerStream[pb.ConnectResponse]) error {
	p, err := s.findFor("connect", req.Msg.GetProcess(), true)
	if err != nil {
		return err
	}
	sub := p.out.subscribe()
	defer sub.close()
	if n := sub.dropped; n[stdout]+n[stderr] > 0 {
		text := "stdout=" + strconv.FormatUint(n[stdout], 10) + ", stderr=" + strconv.FormatUint(n[stderr], 10)
		if p.term != nil {
			text = "pty=" + strconv.FormatUint(n[stdout], 10)
		}
		stream.ResponseHeader().Set(DroppedHeader, text)
	}
	return s.follow(ctx, p, sub, keepalive(req.Header()), func(e *pb.ProcessEvent) error {
		return stream.Send(&pb.ConnectResponse{Event: e})
	})
}

// keepalive is the silence after which the client wants a sign of life.
func keepalive(h http.Header) time.Duration {
	n, err := strconv.Atoi(h.Get(keepaliveHeader))
	if err != nil || n <= 0 || n > 24*3600 {
		return defaultKeepalive
	}
	return time.Duration(n) * time.Second
}

// SendSignal sends SIGKILL to the whole tree of a process and returns when it
// is gone, or SIGTERM to its process group.
func (s *Service) SendSignal(ctx context.Context, req *connect.Request[pb.SendSignalRequest]) (*connect.Response[pb.SendSignalResponse], error) {
	p, err := s.findFor("signal", req.Msg.GetProcess(), false)
	if err != nil {
		return nil, err
	}
	one := req.Header().Get(ScopeHeader) == "process"
	switch sig := req.Msg.GetSignal(); {
	case sig == pb.Signal_SIGNAL_SIGKILL && one:
		err = p.signal(unix.SIGKILL)
	case sig == pb.Signal_SIGNAL_SIGKILL:
		err = s.kill(ctx, p)
	case sig == pb.Signal_SIGNAL_SIGTERM && one:
		err = p.signal(unix.SIGTERM)
	case sig == pb.Signal_SIGNAL_SIGTERM:
		err = p.signalGroup(unix.SIGTERM)
	default:
		return nil, fault.New(connect.CodeUnimplemented, "", "invalid signal: %v", sig)
	}
	switch {
	case errors.Is(err, errGone):
		return nil, gone(p)
	case ctx.Err() != nil:
		return nil, ended(ctx)
	case err != nil:
		return nil, fault.New(connect.CodeInternal, "E3006", "error sending signal: %v", err)
	}
	return connect.NewResponse(&pb.SendSignalResponse{}), nil
}

// kill ends a tree, whether or not the request that asked for it goes on.
func (s *Service) kill(ctx context.Context, p *proc) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTimeout)
	defer cancel()
	return p.kill(ctx, s.table)
}

func uitoa(n uint32) string { return strconv.FormatUint(uint64(n), 10) }
