package envd

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"github.com/agent-sandbox/sandbox-go/internal/pb/process"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

const (
	inputPiece = 64 << 10         // bytes of one message of a stream
	inputCall  = 1 << 20          // bytes of one SendInput
	inputRest  = 10 * time.Second // for the server to take what is on its way at Close
	inputLate  = 5 * time.Second  // for the answer to input whose process has ended meanwhile
)

// Input is the way to the input of one process. What is written arrives in
// order, in a stream where the server says that it has them, piece by piece in
// requests of their own otherwise. It is safe for concurrent use; Close or
// Abandon must be called.
type Input struct {
	c        *Client
	ctx      context.Context // of the stream; ended by Close
	cancel   context.CancelFunc
	pid      uint32
	terminal bool
	streamed bool

	lock   chan struct{} // held while writing; a channel, so that waiting can be given up
	stream *connect.ClientStreamForClient[process.StreamInputRequest, process.StreamInputResponse]
	beat   *time.Timer // sends a sign of life, which starts it anew
	err    error       // why nothing can be written any more
	closed bool

	beating atomic.Bool // a sign of life waits for lock
}

// OpenInput prepares to write to pid: to its terminal, or to its standard input.
// It asks the server what it can do when that is not known yet. ctx does not
// bound the Input.
func (c *Client) OpenInput(ctx context.Context, pid uint32, terminal bool) (*Input, error) {
	f, err := c.Features(ctx)
	if err != nil {
		return nil, err
	}
	in := &Input{c: c, pid: pid, terminal: terminal, streamed: f.Input, lock: make(chan struct{}, 1)}
	in.ctx, in.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return in, nil
}

const inputOp = "write to process"

// Write sends p. In a stream it returns when p is on its way, so that a broken
// connection, or a process that has ended, shows at a later Write or at Close;
// a process that does not read holds it up. When ctx ends first, some of p may
// have been sent, and a stream takes no more. A process that is gone is E3010.
func (in *Input) Write(ctx context.Context, p []byte) error {
	select {
	case in.lock <- struct{}{}:
		defer func() { <-in.lock }()
	case <-ctx.Done():
		return ContextError(ctx, inputOp)
	}
	size := inputCall
	if in.streamed {
		size = inputPiece
	}
	for len(p) > 0 && in.err == nil {
		n := min(len(p), size)
		if err := in.send(ctx, p[:n]); err != nil {
			return err
		}
		p = p[n:]
	}
	return in.err
}

// send sends one piece; lock is held.
func (in *Input) send(ctx context.Context, p []byte) error {
	input := &process.ProcessInput{Input: &process.ProcessInput_Stdin{Stdin: p}}
	if in.terminal {
		input.Input = &process.ProcessInput_Pty{Pty: p}
	}
	if !in.streamed {
		// The last input of a process, which ends on it, was taken all the same:
		// only the answer says so, and the end of ctx may come before it.
		late, cancel := lingering(ctx, in.ctx, inputLate)
		defer cancel()
		_, err := in.c.process.SendInput(late, connect.NewRequest(&process.SendInputRequest{Process: selector(in.pid), Input: input}))
		if err != nil && late.Err() != nil && ctx.Err() != nil {
			return ContextError(ctx, inputOp)
		}
		return wrap(late, inputOp, onInput, err)
	}
	if ctx.Err() != nil {
		return ContextError(ctx, inputOp)
	}
	// A message that was begun has to be sent whole, so ctx ends the stream.
	stop := context.AfterFunc(ctx, in.cancel)
	if in.stream == nil {
		in.open()
	}
	if in.err == nil {
		in.say(&process.StreamInputRequest{Event: &process.StreamInputRequest_Data{Data: &process.StreamInputRequest_DataEvent{Input: input}}})
	}
	if !stop() && in.err != nil {
		in.err = ContextError(ctx, inputOp)
	}
	return in.err
}

// lingering ends with end, or late after ctx has ended.
func lingering(ctx, end context.Context, late time.Duration) (context.Context, context.CancelFunc) {
	lingers, cancel := context.WithCancel(end)
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-time.After(late):
			cancel()
		case <-lingers.Done():
		}
	})
	return lingers, func() { stop(); cancel() }
}

// open begins the stream; lock is held.
func (in *Input) open() {
	in.stream = in.c.process.StreamInput(in.ctx)
	in.say(&process.StreamInputRequest{Event: &process.StreamInputRequest_Start{Start: &process.StreamInputRequest_StartEvent{Process: selector(in.pid)}}})
	if in.c.keepAlive > 0 {
		in.beat = time.AfterFunc(in.c.keepAlive, in.live)
	}
}

// say sends one message; lock is held. A stream that the server has ended tells
// why.
func (in *Input) say(m *process.StreamInputRequest) {
	if in.beat != nil {
		in.beat.Reset(in.c.keepAlive)
	}
	switch err := in.stream.Send(m); {
	case errors.Is(err, io.EOF):
		if in.err = in.finish(); in.err == nil {
			in.err = protocolError(inputOp, "the server ended the stream of input by itself")
		}
	case err != nil:
		in.err = wrap(in.ctx, inputOp, onInput, err)
		in.cancel()
		_ = in.finish() // frees what the stream holds
	}
}

// live shows the server, and what is in between, that the stream is in use.
func (in *Input) live() {
	if !in.beating.CompareAndSwap(false, true) {
		return // one waits
	}
	select {
	case in.lock <- struct{}{}: // after a Write, which may have been held up for long
	case <-in.ctx.Done():
		return
	}
	in.beating.Store(false)
	defer func() { <-in.lock }()
	if in.err == nil {
		in.say(&process.StreamInputRequest{Event: &process.StreamInputRequest_Keepalive{Keepalive: &process.StreamInputRequest_KeepAlive{}}})
	}
}

// finish takes the answer to the stream, and gives it up; lock is held.
func (in *Input) finish() error {
	_, err := in.stream.CloseAndReceive()
	in.stream = nil
	return wrap(in.ctx, inputOp, onInput, err)
}

func errClosedInput() error {
	return errdefs.Wrap("E3013", inputOp, "the input was closed", io.ErrClosedPipe)
}

// Abandon ends the Input and whatever it is doing. What is on its way may or may
// not arrive.
func (in *Input) Abandon() { in.abandon(0) }

// Ended is Abandon once the process has ended: a Write under way gets its answer
// first, if that comes within 5 s.
func (in *Input) Ended() { in.abandon(inputLate) }

func (in *Input) abandon(after time.Duration) {
	late := time.AfterFunc(after, in.cancel)
	in.lock <- struct{}{} // soon: nothing can wait for long
	late.Stop()
	in.cancel()
	defer func() { <-in.lock }()
	if in.beat != nil {
		in.beat.Stop()
	}
	if in.stream != nil {
		_ = in.finish() // it was cancelled
	}
	in.closed, in.err = true, errClosedInput()
}

// Close ends the Input, not the input of the process. It waits until the server
// has taken what was written, at most 10 s and until ctx ends, and reports
// whether it has. It is idempotent.
func (in *Input) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, inputRest)
	defer cancel()
	defer context.AfterFunc(ctx, in.cancel)()
	defer in.cancel()
	select {
	case in.lock <- struct{}{}:
		defer func() { <-in.lock }()
	case <-ctx.Done():
		in.cancel() // ends the Write
		in.lock <- struct{}{}
		defer func() { <-in.lock }()
	}
	if in.beat != nil {
		in.beat.Stop()
	}
	if in.closed {
		return nil
	}
	err := in.err
	if in.stream != nil {
		err = in.finish()
		if ctx.Err() != nil && err != nil {
			err = ContextError(ctx, inputOp)
		}
	}
	in.closed, in.err = true, errClosedInput()
	return err
}
