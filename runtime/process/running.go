//go:build linux

package process

import (
	"context"
	"errors"
	"io"
	"os"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	pb "github.com/agent-sandbox/sandbox-go/internal/pb/process"
	"github.com/agent-sandbox/sandbox-go/runtime/account"
	"github.com/agent-sandbox/sandbox-go/runtime/fault"
	"github.com/agent-sandbox/sandbox-go/runtime/policy"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// Running is a process followed by code of the runtime itself, such as the HTTP
// API: it passes the same checks and is found in the same lists as one that was
// started over the process protocol. Next is for one goroutine; the other
// methods are safe for concurrent use.
type Running struct {
	svc *Service
	p   *proc
	sub *subscription
}

type declaredKey struct{}

// Declared is ctx for [Service.Begin] where what is started, with its variables,
// was not said by a client but by who made the sandbox.
func Declared(ctx context.Context) context.Context {
	return context.WithValue(ctx, declaredKey{}, true)
}

// Begin starts a process as the user of ctx. It outlives ctx and the Running.
// Extra files are the process's descriptors 3 and following; they stay the
// caller's. Errors are those of the protocol; a program that is not there is
// E3007.
func (s *Service) Begin(ctx context.Context, req *pb.StartRequest, extra ...*os.File) (*Running, error) {
	if ctx.Err() != nil {
		return nil, ended(ctx)
	}
	l := &launch{
		svc: s, user: account.FromContext(ctx), config: req.GetProcess(), extra: extra,
		stdin: req.Stdin == nil || req.GetStdin(), terminal: req.GetPty(),
	}
	if ctx.Value(declaredKey{}) != nil {
		l.source = policy.OfCommand
	}
	defer l.close()
	if l.config == nil {
		l.config = &pb.ProcessConfig{}
	}
	if err := l.prepare(); err != nil {
		return nil, err
	}
	p, sub, err := l.start(req.Tag)
	if bad := (*notRunnable)(nil); errors.As(err, &bad) {
		return nil, fault.New(connect.CodeNotFound, "E3007", "%s", bad.text)
	}
	if err != nil {
		return nil, err
	}
	return &Running{svc: s, p: p, sub: sub}, nil
}

// Follow follows a process from the oldest output that is still kept, as
// [Service.Connect] does. It is refused where the endpoint is off that what is for
// processes or, where it is one, for terminals: "connect", "input" or "signal".
func (s *Service) Follow(what string, sel *pb.ProcessSelector) (*Running, error) {
	p, err := s.findFor(what, sel, true)
	if err != nil {
		return nil, err
	}
	return &Running{svc: s, p: p, sub: p.out.subscribe()}, nil
}

// Pid is the number of the process.
func (r *Running) Pid() int { return r.p.pid }

// Terminal reports whether it runs in a terminal.
func (r *Running) Terminal() bool { return r.p.term != nil }

// Done is closed when the process has ended and its output is complete.
func (r *Running) Done() <-chan struct{} { return r.p.ended }

// Exited reports whether the process has ended. There may be output that nobody has
// read yet, and Done is not closed before.
func (r *Running) Exited() bool { return r.p.collected() }

// End says how it ended; nil before Done is closed.
func (r *Running) End() *pb.ProcessEvent_EndEvent {
	select {
	case <-r.p.ended:
		return r.p.endEvent()
	default:
		return nil
	}
}

// Limit says which limit of the sandbox ended the process, once Done is closed;
// empty: none did.
func (r *Running) Limit() errdefs.Code {
	limit, _ := r.p.hitLimit()
	return limit.code
}

// Next waits for what comes next: output, and last an end event. After that, and
// after Close, it returns io.EOF.
func (r *Running) Next(ctx context.Context) (*pb.ProcessEvent, error) {
	if r.sub == nil {
		return nil, io.EOF
	}
	closing := false
	for {
		var e *pb.ProcessEvent
		sent, end, err := sendNext(r.sub, func(data *pb.ProcessEvent) error {
			e = cloneData(data)
			return nil
		})
		switch {
		case err != nil:
			return nil, err
		case sent:
			return e, nil
		case end != nil:
			r.detach()
			<-r.p.ended // it follows at once, and End knows nothing before
			return &pb.ProcessEvent{Event: &pb.ProcessEvent_End{End: end}}, nil
		case closing:
			return nil, fault.New(connect.CodeUnavailable, "", "server is shutting down")
		}
		select {
		case <-r.sub.wake:
		case <-ctx.Done():
			return nil, ended(ctx)
		case <-r.svc.ctx.Done():
			closing = true // what was ended by Shutdown has its end by now
		}
	}
}

// cloneData copies what lies in a buffer that is used again.
func cloneData(e *pb.ProcessEvent) *pb.ProcessEvent {
	d := e.GetData()
	switch o := d.GetOutput().(type) {
	case *pb.ProcessEvent_DataEvent_Stdout:
		o.Stdout = append([]byte(nil), o.Stdout...)
	case *pb.ProcessEvent_DataEvent_Stderr:
		o.Stderr = append([]byte(nil), o.Stderr...)
	case *pb.ProcessEvent_DataEvent_Pty:
		o.Pty = append([]byte(nil), o.Pty...)
	}
	return e
}

// Write writes to the standard input or the terminal and returns once the process
// has taken all of b.
func (r *Running) Write(ctx context.Context, b []byte) error {
	in := &pb.ProcessInput{Input: &pb.ProcessInput_Stdin{Stdin: b}}
	if r.p.term != nil {
		in.Input = &pb.ProcessInput_Pty{Pty: b}
	}
	return r.p.write(ctx, in)
}

// TakesInput reports whether there is an input that is not closed: a terminal, or a
// standard input.
func (r *Running) TakesInput() bool { return r.p.in.f != nil && !r.p.in.isClosed() }

// CloseInput ends the standard input. A terminal has no such end.
func (r *Running) CloseInput(ctx context.Context) error {
	if r.p.term != nil {
		return nil
	}
	if err := r.p.in.end(ctx); err != nil {
		return inputError(ctx, "stdin", err)
	}
	return nil
}

// Resize sets the size of the terminal.
func (r *Running) Resize(size *pb.PTY_Size) error {
	if r.p.term == nil {
		return fault.New(connect.CodeInternal, "E3011", "error resizing tty: this process has no terminal")
	}
	if err := r.p.term.resize(size); errors.Is(err, errTerminalEnded) {
		return gone(r.p)
	} else {
		return err
	}
}

// Signal signals the process, or with group its process group.
func (r *Running) Signal(sig unix.Signal, group bool) error {
	send := r.p.signal
	if group {
		send = r.p.signalGroup
	}
	if err := send(sig); errors.Is(err, errGone) {
		return gone(r.p)
	} else {
		return err
	}
}

// Kill ends the whole tree and returns when it is gone; one that has ended is no
// error.
func (r *Running) Kill(ctx context.Context) error {
	if err := r.svc.kill(ctx, r.p); !errors.Is(err, errGone) {
		return err
	}
	return nil
}

// afterKill is how long the output may take that was printed before a kill.
const afterKill = 5 * time.Second

// KillWith kills the whole tree as soon as ctx ends, unless the process has ended
// before, whatever the follower waits for then. The kill and the end of the process
// that it brings cannot overtake each other: ask stop when there was an end.
//
// Follow is the context for Next meanwhile. It outlives ctx, so that the last output
// is read, and ends where the kill has failed or that output takes too long. Stop
// lifts this, waits for a kill under way and reports whether there was one; it is to
// be called at least once, by one goroutine.
func (r *Running) KillWith(ctx context.Context) (follow context.Context, stop func() (killed bool, err error)) {
	follow, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var killed bool
	var err error
	done := make(chan struct{})
	lift := context.AfterFunc(ctx, func() {
		defer close(done)
		if killed = !r.Exited(); killed {
			if err = r.Kill(ctx); err != nil {
				cancel()
				return
			}
		}
		late := time.AfterFunc(afterKill, cancel)
		context.AfterFunc(follow, func() { late.Stop() })
	})
	return follow, func() (bool, error) {
		defer cancel()
		if lift() {
			close(done)
		}
		<-done
		return killed, err
	}
}

// Close stops following. The process goes on, and is not held back any more by
// output that nobody reads. It is not to be called together with Next.
func (r *Running) Close() { r.detach() }

func (r *Running) detach() {
	if r.sub != nil {
		r.sub.close()
		r.sub = nil
	}
}
