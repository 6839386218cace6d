//go:build linux

package code

import (
	"context"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	pb "github.com/agent-sandbox/sandbox-go/internal/pb/process"
	"github.com/agent-sandbox/sandbox-go/runtime/code/drivers"
	"github.com/agent-sandbox/sandbox-go/runtime/process"
)

// Event is one thing that a cell tells.
type Event = drivers.Event

// The types of events that are looked at here.
const (
	eventCount     = drivers.Count
	eventStdout    = drivers.Stdout
	eventStderr    = drivers.Stderr
	eventResult    = drivers.Result
	eventError     = drivers.Error
	eventKeepalive = drivers.Keepalive
	eventEnd       = drivers.End
	eventRestarted = drivers.Restarted
)

// start starts a process and waits until it is ready. ctx has the user.
func (s *Service) start(ctx context.Context, l drivers.Language, id, cwd string) (*drivers.Engine, error) {
	dir := ""
	if l.Driver != "" {
		var err error
		if dir, err = s.folder.dir(l.Driver); err != nil {
			return nil, fmt.Errorf("write driver: %w", err)
		}
	}
	argv := l.Command(dir)
	reqR, reqW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer reqR.Close()
	evR, evW, err := os.Pipe()
	if err != nil {
		reqW.Close()
		return nil, err
	}
	defer evW.Close()
	reqR.Fd() // both ends of the process block
	evW.Fd()
	tag, no := "code-"+id, false
	run, err := s.opts.Process.Begin(ctx, &pb.StartRequest{
		Process: &pb.ProcessConfig{Cmd: argv[0], Args: argv[1:], Cwd: &cwd}, Tag: &tag, Stdin: &no,
	}, reqR, evW)
	if err != nil {
		reqW.Close()
		evR.Close()
		return nil, err
	}
	e := drivers.Start(s.ctx, running{run}, l, reqW, evR)
	e.Grace, e.Beat = s.grace, s.beat
	s.wg.Go(func() { <-e.Over() })
	if err := e.Ready(ctx); err != nil {
		return nil, err
	}
	return e, nil
}

// running is a process of this runtime.
type running struct{ *process.Running }

var _ drivers.Process = running{}

// Follow implements [drivers.Process].
func (r running) Follow(ctx context.Context, output func(stdout, stderr []byte)) {
	defer r.Close()
	for {
		ev, err := r.Next(ctx)
		if err != nil {
			return
		}
		if d := ev.GetData(); d != nil {
			output(d.GetStdout(), d.GetStderr())
		}
	}
}

// Interrupt implements [drivers.Process].
func (r running) Interrupt(_ context.Context, all bool) { _ = r.Signal(unix.SIGINT, all) }

// Kill implements [drivers.Process].
func (r running) Kill(ctx context.Context) { _ = r.Running.Kill(ctx) }

// End implements [drivers.Process].
func (r running) End() string {
	switch end := r.Running.End(); {
	case end == nil:
		return ""
	case strings.Contains(end.GetError(), "memory limit"):
		return "out of memory"
	case end.GetExited():
		return fmt.Sprintf("exit code %d", end.GetExitCode())
	default:
		return end.GetStatus()
	}
}
