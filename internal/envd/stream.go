package envd

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"github.com/agent-sandbox/sandbox-go/internal/pb/process"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// Stream is what a process prints and how it ends. Next and Close may run
// concurrently; Next itself is for one goroutine.
type Stream struct {
	pid       uint32
	op        string
	domain    domain
	ctx       context.Context // of this one stream; ended by Close
	cancel    context.CancelCauseFunc
	in        receiver
	keepAlive time.Duration
	alarm     *time.Timer // cancels ctx when the stream falls silent
	ended     bool
}

// Event is one thing that happened to a process: exactly one field is set. The
// bytes belong to the receiver of the event.
type Event struct {
	Stdout, Stderr []byte
	Terminal       []byte // what a process with a terminal prints
	End            *End
}

// End says how a process ended.
type End struct {
	ExitCode int    // -1 after a signal
	Exited   bool   // false after a signal
	Status   string // "exit status 1", "signal: killed"
	Error    string // the server's remark; empty after exit status 0

	MemoryLimit bool // the sandbox's memory limit ended it
	NoSpace     bool // it was ended because the sandbox had written too much

	// TimeLimit is the rule of the sandbox that ended it because it had run for too
	// long; empty: none did.
	TimeLimit string
}

// Pid is the process's id inside the sandbox.
func (s *Stream) Pid() uint32 { return s.pid }

// Next returns the next event. After the one with End set comes io.EOF. A
// stream that stops without it is E5003: success is never inferred.
func (s *Stream) Next() (Event, error) {
	if s.ended {
		return Event{}, io.EOF
	}
	for {
		ev, err := s.receive()
		if err != nil {
			return Event{}, err
		}
		switch e := ev.GetEvent().(type) {
		case *process.ProcessEvent_Data:
			switch o := e.Data.GetOutput().(type) {
			case *process.ProcessEvent_DataEvent_Stdout:
				return Event{Stdout: o.Stdout}, nil
			case *process.ProcessEvent_DataEvent_Stderr:
				return Event{Stderr: o.Stderr}, nil
			case *process.ProcessEvent_DataEvent_Pty:
				return Event{Terminal: o.Pty}, nil
			}
		case *process.ProcessEvent_End:
			end := &End{
				ExitCode: int(e.End.GetExitCode()),
				Exited:   e.End.GetExited(),
				Status:   cut(e.End.GetStatus()),
				Error:    cut(e.End.GetError()),
			}
			end.MemoryLimit = !end.Exited && strings.Contains(end.Error, "memory limit")
			if err := s.finish(end); err != nil {
				return Event{}, err
			}
			return Event{End: end}, nil
		case *process.ProcessEvent_Start:
			return Event{}, protocolError(s.op, "the server reported a second start of one process")
		}
		// Signs of life, and kinds of events that a later protocol may add.
	}
}

// remark is what stands in the last brackets of how a process ended: "signal: killed
// (core dumped) (memory limit)".
func remark(text string) string {
	return strings.TrimSuffix(text[strings.LastIndexByte(text, '(')+1:], ")")
}

// finish takes the trailer that must follow the end of the process. Reading it
// also gives the connection back for the next request.
func (s *Stream) finish(end *End) error {
	if s.keepAlive > 0 {
		s.alarm.Reset(3 * s.keepAlive)
		defer s.alarm.Stop()
	}
	_, err := s.in.receive()
	switch {
	case errors.Is(err, errEndOfStream):
		s.ended = true
		switch code, _ := hinted(s.in.trailer()); code {
		case "E3009":
			end.MemoryLimit = true
		case "E4004":
			end.NoSpace = true
		case "E3001":
			end.TimeLimit = remark(end.Error)
		}
		return nil
	case err == nil:
		return protocolError(s.op, "the server sent an event after the end of the process")
	}
	return wrap(s.ctx, s.op, s.domain, err)
}

// receive waits for one message, for as long as the stream shows life.
func (s *Stream) receive() (*process.ProcessEvent, error) {
	if s.keepAlive > 0 {
		s.alarm.Reset(3 * s.keepAlive)
		defer s.alarm.Stop()
	}
	ev, err := s.in.receive()
	switch {
	case err == nil:
		return ev, nil
	case errors.Is(err, errEndOfStream):
		return nil, errdefs.New("E5003", s.op, "the stream ended without saying how the process ended")
	}
	return nil, wrap(s.ctx, s.op, s.domain, err)
}

// Close gives the stream up and frees its connection. The process goes on; a
// Next in progress fails with cause. It is idempotent and must be called also
// after the end.
func (s *Stream) Close(cause error) { s.cancel(cause) }

// open runs start and waits for the first event, which names the process. When
// ctx ends first and the process may have been made by this call, it is killed.
func (c *Client) open(ctx context.Context, op string, d domain, start func(context.Context) (receiver, error)) (*Stream, error) {
	if ctx.Err() != nil {
		return nil, ContextError(ctx, op)
	}
	sctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	type result struct {
		s   *Stream
		err error
	}
	opened, gone := make(chan result), make(chan struct{})
	c.reapers.Go(func() {
		defer close(gone)
		s, err := c.first(sctx, cancel, op, d, start)
		select {
		case opened <- result{s, err}:
		case <-ctx.Done():
			if s != nil {
				c.abandon(sctx, s, d)
			}
			cancel(context.Canceled)
		}
	})
	select {
	case r := <-opened:
		if r.err != nil {
			cancel(context.Canceled)
		}
		return r.s, r.err
	case <-ctx.Done():
	}
	give := time.AfterFunc(abandonWait, func() { cancel(context.Canceled) })
	select {
	case <-gone:
		give.Stop()
	case <-time.After(time.Second): // the rest goes on behind; Close waits for it
	}
	return nil, ContextError(ctx, op)
}

// abandon ends a stream nobody waits for, and the process if we started it.
func (c *Client) abandon(ctx context.Context, s *Stream, d domain) {
	if d == onStart {
		kctx, stop := context.WithTimeout(context.WithoutCancel(ctx), abandonWait)
		defer stop()
		c.Signal(kctx, s.pid, syscall.SIGKILL, Tree) // not found: it has ended by itself
	}
	s.Close(context.Canceled)
}

// first opens the stream and takes its first event.
func (c *Client) first(ctx context.Context, cancel context.CancelCauseFunc, op string, d domain, start func(context.Context) (receiver, error)) (*Stream, error) {
	if c.timeout > 0 {
		t := time.AfterFunc(c.timeout, func() { cancel(&requestTimeout{after: c.timeout}) })
		defer t.Stop()
	}
	in, err := start(ctx)
	if err != nil {
		return nil, wrap(ctx, op, d, err)
	}
	ev, err := in.receive()
	if err != nil {
		in.close()
		if errors.Is(err, errEndOfStream) {
			return nil, errdefs.New("E5003", op, "the stream ended before the process started")
		}
		return nil, wrap(ctx, op, d, err)
	}
	st := ev.GetStart()
	if st == nil {
		in.close()
		return nil, protocolError(op, "the server did not say first which process it started")
	}
	if st.GetPid() == 0 {
		defer in.close()
		return nil, notStarted(ctx, op, d, in)
	}
	s := &Stream{pid: st.GetPid(), op: "run process", domain: onProcess, ctx: ctx, cancel: cancel, in: in, keepAlive: c.keepAlive}
	s.alarm = time.AfterFunc(time.Hour, func() { cancel(errSilent) })
	s.alarm.Stop()
	return s, nil
}

// notStarted reads the rest of a stream whose process could not be started: the
// server says why on standard error, as a shell would, and names the code in
// the trailer.
func notStarted(ctx context.Context, op string, d domain, in receiver) error {
	const limit = 64 // events; more are no message
	var why []byte
	for range limit {
		ev, err := in.receive()
		if errors.Is(err, errEndOfStream) {
			code, ok := hinted(in.trailer())
			if !ok {
				return protocolError(op, "the server did not say which process it started")
			}
			return coded(code, op, cut(strings.TrimSpace(string(why))))
		}
		if err != nil {
			return wrap(ctx, op, d, err)
		}
		if d := ev.GetData(); len(why) < 4<<10 {
			why = append(append(why, d.GetStderr()...), d.GetPty()...)
		}
	}
	return protocolError(op, "the server did not say which process it started")
}

// errEndOfStream says that the stream ended in order.
var errEndOfStream = errors.New("end of stream")

// receiver is a stream of events, whichever call opened it.
type receiver interface {
	receive() (*process.ProcessEvent, error)
	trailer() http.Header // after the end of the stream
	close()
}

type startReceiver struct {
	st *connect.ServerStreamForClient[process.StartResponse]
}

func (r startReceiver) receive() (*process.ProcessEvent, error) {
	if r.st.Receive() {
		return r.st.Msg().GetEvent(), nil
	}
	return nil, endOr(r.st.Err())
}

func (r startReceiver) trailer() http.Header { return r.st.ResponseTrailer() }
func (r startReceiver) close()               { r.st.Close() }

type attachReceiver struct {
	st *connect.ServerStreamForClient[process.ConnectResponse]
}

func (r attachReceiver) receive() (*process.ProcessEvent, error) {
	if r.st.Receive() {
		return r.st.Msg().GetEvent(), nil
	}
	return nil, endOr(r.st.Err())
}

func (r attachReceiver) trailer() http.Header { return r.st.ResponseTrailer() }
func (r attachReceiver) close()               { r.st.Close() }

func endOr(err error) error {
	if err == nil {
		return errEndOfStream
	}
	return err
}
