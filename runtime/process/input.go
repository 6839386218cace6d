//go:build linux

package process

import (
	"context"
	"errors"
	"sync"

	"connectrpc.com/connect"

	pb "github.com/agent-sandbox/sandbox-go/internal/pb/process"
	"github.com/agent-sandbox/sandbox-go/runtime/fault"
)

// SendInput writes to the standard input or the terminal of a process and
// returns once that has taken all of it.
func (s *Service) SendInput(ctx context.Context, req *connect.Request[pb.SendInputRequest]) (*connect.Response[pb.SendInputResponse], error) {
	p, err := s.findFor("input", req.Msg.GetProcess(), false)
	if err != nil {
		return nil, err
	}
	if err := p.write(ctx, req.Msg.GetInput()); err != nil {
		return nil, err
	}
	return connect.NewResponse(&pb.SendInputResponse{}), nil
}

// write writes input of the kind that p has.
func (p *proc) write(ctx context.Context, input *pb.ProcessInput) error {
	switch in := input.GetInput().(type) {
	case *pb.ProcessInput_Stdin:
		if p.term != nil {
			return fault.New(connect.CodeInternal, "E3011", "error writing to stdin: this process has a terminal, so its input is pty")
		}
		if err := p.in.write(ctx, in.Stdin); err != nil {
			return inputError(ctx, "stdin", err)
		}
	case *pb.ProcessInput_Pty:
		if p.term == nil {
			return fault.New(connect.CodeInternal, "E3011", "error writing to tty: this process has no terminal, so its input is stdin")
		}
		if err := p.in.write(ctx, in.Pty); err != nil {
			return inputError(ctx, "tty", err)
		}
	default:
		return fault.New(connect.CodeUnimplemented, "", "invalid input type %T", in)
	}
	return nil
}

func inputError(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil {
		return ended(ctx)
	}
	return fault.New(connect.CodeInternal, "E3013", "error writing to %s: %v", what, err)
}

// CloseStdin ends the standard input after what was sent before. It may be
// repeated. A terminal has no such end: programs take the byte 4 for it.
func (s *Service) CloseStdin(ctx context.Context, req *connect.Request[pb.CloseStdinRequest]) (*connect.Response[pb.CloseStdinResponse], error) {
	p, err := s.findFor("input", req.Msg.GetProcess(), false)
	if err != nil {
		return nil, err
	}
	if p.term != nil {
		return nil, fault.New(connect.CodeUnknown, "E3011", "error closing stdin: this process has a terminal; send Ctrl-D (0x04) instead")
	}
	if err := p.in.end(ctx); err != nil {
		return nil, inputError(ctx, "stdin", err)
	}
	return connect.NewResponse(&pb.CloseStdinResponse{}), nil
}

// Update sets the size of a terminal. Without a size it does nothing.
func (s *Service) Update(_ context.Context, req *connect.Request[pb.UpdateRequest]) (*connect.Response[pb.UpdateResponse], error) {
	if err := s.may("resize", true); err != nil {
		return nil, err
	}
	p, err := s.find(req.Msg.GetProcess(), false)
	if err != nil {
		return nil, err
	}
	if req.Msg.Pty != nil && p.term == nil {
		return nil, fault.New(connect.CodeInternal, "E3011", "error resizing tty: this process has no terminal")
	}
	if size := req.Msg.GetPty().GetSize(); size != nil {
		var coded *connect.Error
		switch err := p.term.resize(size); {
		case errors.Is(err, errTerminalEnded):
			return nil, gone(p)
		case errors.As(err, &coded):
			return nil, err
		case err != nil:
			return nil, fault.New(connect.CodeInternal, "E3006", "error resizing tty: %v", err)
		}
	}
	return connect.NewResponse(&pb.UpdateResponse{}), nil
}

// gone says that p has ended.
func gone(p *proc) error {
	return fault.New(connect.CodeNotFound, "E3010", "process with pid %d not found", p.pid)
}

// StreamInput writes one message after the other to a process, in order. The
// first one says which process. There is one answer, at the end: a client that
// wants to know whether all has arrived stops sending and waits for it.
func (s *Service) StreamInput(ctx context.Context, stream *connect.ClientStream[pb.StreamInputRequest]) (*connect.Response[pb.StreamInputResponse], error) {
	body := bodyOf(ctx)
	err := s.streamInput(ctx, stream, body)
	if err != nil {
		// The answer does not wait for what the client may still want to send.
		body.Abort()
		return nil, err
	}
	return connect.NewResponse(&pb.StreamInputResponse{}), nil
}

func (s *Service) streamInput(ctx context.Context, stream *connect.ClientStream[pb.StreamInputRequest], body Body) error {
	var p *proc
	var wg sync.WaitGroup
	over := make(chan struct{})
	defer wg.Wait()
	defer close(over)
	for stream.Receive() {
		var err error
		switch e := stream.Msg().GetEvent().(type) {
		case *pb.StreamInputRequest_Start:
			if p != nil {
				return fault.New(connect.CodeInvalidArgument, "E3011", "a stream of input is for one process")
			}
			if p, err = s.findFor("input", e.Start.GetProcess(), false); err != nil {
				return err
			}
			body.Endless()
			wg.Go(func() {
				select {
				case <-p.done:
					body.Abort()
				case <-over:
				}
			})
		case *pb.StreamInputRequest_Data:
			if p == nil {
				return fault.New(connect.CodeInvalidArgument, "E3011", "a stream of input begins with the process that it is for")
			}
			err = p.write(ctx, e.Data.GetInput())
		case *pb.StreamInputRequest_Keepalive:
		default:
			err = fault.New(connect.CodeUnimplemented, "", "invalid event type %T", e)
		}
		switch {
		case err != nil && p != nil && p.collected():
			return gone(p)
		case err != nil:
			return err
		}
	}
	err := stream.Err()
	if err != nil && p != nil && p.collected() {
		return gone(p)
	}
	return err
}

// Body is the body of a request as the server around this service sees it. Its
// methods are safe for concurrent use.
type Body interface {
	Endless() // the client may be silent for any time
	Abort()   // whoever reads gets an error
}

type bodyKey struct{}

// WithBody is ctx for a request with this body. Without one, a StreamInput is
// held to the limits of the server, and lives on when its process has ended.
func WithBody(ctx context.Context, b Body) context.Context {
	return context.WithValue(ctx, bodyKey{}, b)
}

func bodyOf(ctx context.Context) Body {
	if b, ok := ctx.Value(bodyKey{}).(Body); ok {
		return b
	}
	return noBody{}
}

type noBody struct{}

func (noBody) Endless() {}
func (noBody) Abort()   {}
