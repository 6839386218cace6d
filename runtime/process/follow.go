//go:build linux

package process

import (
	"context"
	"errors"
	"net/http"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	pb "github.com/agent-sandbox/sandbox-go/internal/pb/process"
	"github.com/agent-sandbox/sandbox-go/runtime/fault"
)

// startLostError wraps the failure to deliver the start event.
type startLostError struct{ error }

func (e startLostError) Unwrap() error { return e.error }

// follow sends what sub reads until the end of p or of ctx.
func (s *Service) follow(ctx context.Context, p *proc, sub *subscription, silence time.Duration, send func(*pb.ProcessEvent) error) error {
	if _, _, end := sub.next(nil); end != nil {
		lastMessage(ctx) // of a command that was brief all is there
	}
	if err := send(startEvent(uint32(p.pid))); err != nil {
		return startLostError{err}
	}
	timer := time.NewTimer(silence)
	defer timer.Stop()
	closing := false
	for {
		if ctx.Err() != nil {
			return s.lastWords(ctx, sub, send)
		}
		sent, end, err := sendNext(sub, send)
		switch {
		case err != nil:
			return err
		case sent:
			timer.Reset(silence)
			continue
		case end != nil && late(ctx):
			// Its end is that of the request, and this was the faster of two timers.
			<-ctx.Done()
			return s.lastWords(ctx, sub, send)
		case end != nil:
			lastMessage(ctx)
			return send(&pb.ProcessEvent{Event: &pb.ProcessEvent_End{End: end}})
		case closing:
			return fault.New(connect.CodeUnavailable, "", "server is shutting down")
		}
		select {
		case <-sub.wake:
		case <-ctx.Done():
		case <-s.ctx.Done():
			closing = true // what was ended by Shutdown has its end by now
		case <-timer.C:
			if err := send(&pb.ProcessEvent{Event: &pb.ProcessEvent_Keepalive{Keepalive: &pb.ProcessEvent_KeepAlive{}}}); err != nil {
				return err
			}
			timer.Reset(silence)
		}
	}
}

// late reports whether the deadline of ctx has passed, which ctx itself says a
// moment later.
func late(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ok && !time.Now().Before(deadline)
}

// lastWords sends the output that was there when the deadline passed.
func (s *Service) lastWords(ctx context.Context, sub *subscription, send func(*pb.ProcessEvent) error) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		for left := sub.pending(); left > 0; left -= chunkSize {
			if sent, _, err := sendNext(sub, send); err != nil || !sent {
				break
			}
		}
	}
	return ended(ctx)
}

// ended says how ctx ended, as the wire does.
func ended(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fault.New(connect.CodeDeadlineExceeded, "E3001", "%w", ctx.Err())
	}
	return fault.New(connect.CodeCanceled, "", "%w", ctx.Err())
}

// sendNext sends one piece of output, if there is one.
func sendNext(sub *subscription, send func(*pb.ProcessEvent) error) (sent bool, end *pb.ProcessEvent_EndEvent, err error) {
	buf := chunks.Get().(*[]byte)
	defer chunks.Put(buf)
	i, n, end := sub.next(*buf)
	if n == 0 {
		return false, end, nil
	}
	return true, nil, send(dataEvent(i, sub.o.terminal, (*buf)[:n]))
}

// afterStream decides about a process whose Start stream is over: one that
// nobody learned of, or that was bound to the stream, ends with it.
func (s *Service) afterStream(p *proc, err error, h http.Header) {
	if err == nil || p.collected() {
		return
	}
	lost := startLostError{}
	if errors.As(err, &lost) || h.Get(DisconnectHeader) == "kill" {
		s.killSoon(p)
	}
}

// killAt ends the tree of p at its deadline, whoever listens then.
func (s *Service) killAt(p *proc, deadline time.Time) {
	s.killAfter(p, time.Until(deadline), func() {})
}

// killAfter ends the tree of p after d, unless something else is to end it before,
// and calls why then.
func (s *Service) killAfter(p *proc, d time.Duration, why func()) {
	until := time.Now().Add(d)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.collected() || p.lifetime != nil && p.until.Before(until) {
		return
	}
	if p.lifetime != nil {
		p.lifetime.Stop()
	}
	p.until = until
	p.lifetime = time.AfterFunc(d, func() {
		why()
		s.killSoon(p)
	})
}

// sendNotRunnable reports a program that could not be executed as a shell
// would: it began, said why and ended. The code is in the trailer.
func sendNotRunnable(bad *notRunnable, terminal bool, stream *connect.ServerStream[pb.StartResponse]) error {
	stream.ResponseTrailer().Set(fault.Header, "E3007")
	status := "exit status 127"
	if bad.status == 126 {
		status = "exit status 126"
	}
	for _, e := range []*pb.ProcessEvent{
		startEvent(0),
		dataEvent(stderr, terminal, []byte(bad.text+"\n")),
		{Event: &pb.ProcessEvent_End{End: &pb.ProcessEvent_EndEvent{
			ExitCode: int32(bad.status), Exited: true, Status: status, Error: proto.String(status),
		}}},
	} {
		if err := stream.Send(&pb.StartResponse{Event: e}); err != nil {
			return err
		}
	}
	return nil
}

type lastKey struct{}

// WithLast is ctx for a request whose answer need not be sent on at once from the
// moment that last is called: what there still is to come is there already, and
// then its end. Without it, each message is sent by itself.
func WithLast(ctx context.Context, last func()) context.Context {
	return context.WithValue(ctx, lastKey{}, last)
}

func lastMessage(ctx context.Context) {
	if last, ok := ctx.Value(lastKey{}).(func()); ok {
		last()
	}
}

func startEvent(pid uint32) *pb.ProcessEvent {
	return &pb.ProcessEvent{Event: &pb.ProcessEvent_Start{Start: &pb.ProcessEvent_StartEvent{Pid: pid}}}
}

func dataEvent(i int, terminal bool, b []byte) *pb.ProcessEvent {
	d := &pb.ProcessEvent_DataEvent{}
	switch {
	case terminal:
		d.Output = &pb.ProcessEvent_DataEvent_Pty{Pty: b}
	case i == stderr:
		d.Output = &pb.ProcessEvent_DataEvent_Stderr{Stderr: b}
	default:
		d.Output = &pb.ProcessEvent_DataEvent_Stdout{Stdout: b}
	}
	return &pb.ProcessEvent{Event: &pb.ProcessEvent_Data{Data: d}}
}
