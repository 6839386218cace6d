package sandboxfn

import (
	"context"
	"errors"
	"io"
	"sync"
	"syscall"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/envd"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// run is a command between Start and the end of Wait.
type run struct {
	c      *Cmd
	stream *envd.Stream
	done   chan struct{} // closed when the last byte was delivered
	undo   []func() bool // stops what would interrupt

	end     *envd.End // valid after done
	lost    error     // valid after done
	copyErr error     // valid after done; of a writer of the caller's
	cut     bool      // valid after done; a pipe has lost output, because we were to end the command

	inputCtx   context.Context // of writes to standard input; ends with the process
	inputStop  context.CancelFunc
	inputDone  chan struct{} // closed when Stdin is not read any more
	inputErr   error         // valid after inputDone
	interrupts sync.WaitGroup

	mu    sync.Mutex
	stop  error // guarded by mu; why we ended it
	ended bool  // guarded by mu; nothing is left to end
}

func startRun(c *Cmd, stream *envd.Stream, leave func()) *run {
	r := &run{c: c, stream: stream, done: make(chan struct{}), inputDone: make(chan struct{})}
	r.inputCtx, r.inputStop = context.WithCancel(context.WithoutCancel(c.ctx))
	if c.follow {
		r.undo = append(r.undo, context.AfterFunc(c.ctx, func() { r.leave(contextError(c.ctx, c.op())) }))
	} else if !c.Detach {
		r.undo = append(r.undo, context.AfterFunc(c.ctx, func() { r.interrupt(contextError(c.ctx, c.op())) }))
	}
	if c.limit() > 0 {
		t := time.AfterFunc(c.limit(), func() {
			r.interrupt(errdefs.New("E3001", c.op(), "the command timeout of "+c.Timeout.String()+" passed"))
		})
		r.undo = append(r.undo, t.Stop)
	}
	r.undo = append(r.undo, context.AfterFunc(c.sb.life, func() {
		reason := context.Cause(c.sb.life)
		if c.Detach || errors.Is(reason, ErrKilled) { // the sandbox took it along
			r.leave(reason)
			return
		}
		r.interrupt(reason)
	}))
	go func() {
		defer leave()
		r.pump()
	}()
	if c.Stdin != nil {
		go r.feed() // may outlive the command in a Read of the caller's
	} else {
		close(r.inputDone)
	}
	return r
}

const (
	// interruptGrace is how long the end of a killed command is waited for.
	interruptGrace = 300 * time.Millisecond
	// killRequest bounds the request that kills.
	killRequest = 10 * time.Second
)

// interrupt kills the command and everything it started, once, and makes sure
// that Wait returns soon whether the sandbox answers or not.
func (r *run) interrupt(reason error) {
	if !r.setStop(reason, 1) {
		return
	}
	giveUp := time.AfterFunc(interruptGrace, func() { r.stream.Close(reason) })
	r.abandonPipes(reason)
	go func() {
		defer r.interrupts.Done()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.c.ctx), killRequest)
		defer cancel()
		err := r.c.sb.envd.Signal(ctx, r.stream.Pid(), syscall.SIGKILL, envd.Tree)
		if err != nil && !errors.Is(err, ErrProcessGone) {
			r.c.sb.log.WarnContext(ctx, "command not killed", "pid", r.stream.Pid(), "err", err)
		}
	}()
	<-r.done
	giveUp.Stop()
}

// leave gives the stream up; the process goes on.
func (r *run) leave(reason error) {
	if r.setStop(reason, 0) {
		r.abandonPipes(reason)
		r.stream.Close(reason)
	}
}

// setStop remembers the first reason and counts requests that are about to be
// made for it. It reports whether reason is the one.
func (r *run) setStop(reason error, requests int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stop != nil || r.ended {
		return false
	}
	r.stop = reason
	r.interrupts.Add(requests)
	return true
}

// abandonPipes lets the pump go on where nobody reads a pipe.
func (r *run) abandonPipes(reason error) {
	for _, p := range r.c.pipes {
		p.overflow(reason)
	}
}

// pump delivers output until the process has ended.
func (r *run) pump() {
	defer r.interrupts.Wait()
	defer func() {
		r.mu.Lock()
		r.ended = true
		r.mu.Unlock()
		for _, f := range r.undo {
			f()
		}
		r.stream.Close(context.Canceled)
		r.inputStop()
		close(r.done)
	}()
	stdout, stderr := cmdSink{w: r.c.Stdout}, cmdSink{w: r.c.Stderr}
	if r.c.tail != nil {
		stderr.w = r.c.tail
	}
	for {
		ev, err := r.stream.Next()
		if err != nil || ev.End != nil {
			r.end, r.lost = ev.End, err
			break
		}
		stdout.write(ev.Stdout)
		stdout.write(ev.Terminal)
		stderr.write(ev.Stderr)
	}
	r.copyErr = errors.Join(stdout.err, stderr.err)
	for _, p := range r.c.pipes {
		lossy := p.lossy()
		r.cut = r.cut || lossy
		p.finish(r.pipeEnd(lossy))
	}
}

// pipeEnd is what readers of a pipe see after the last byte: no end in order
// when there would have been more.
func (r *run) pipeEnd(lossy bool) error {
	if r.lost == nil && !lossy {
		return io.EOF
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stop != nil {
		return r.stop
	}
	return r.lost
}

// cmdSink is one writer of the caller's. After its first failure it gets no more.
type cmdSink struct {
	w   io.Writer
	err error
}

func (s *cmdSink) write(b []byte) {
	if s.w == nil || s.err != nil || len(b) == 0 {
		return
	}
	n, err := s.w.Write(b)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	if err != nil && !errors.Is(err, errPipeClosed) {
		s.err = err
	}
	if err != nil {
		s.w = nil
	}
}

// inputLinger is how long Wait waits for a Read of Stdin to return.
const inputLinger = 50 * time.Millisecond

func (r *run) wait() error {
	<-r.done
	if r.c.input != nil {
		r.c.input.finish()
	}
	select {
	case <-r.inputDone:
	case <-time.After(inputLinger):
	}
	return r.outcome()
}

// outcome says what happened: a result of the command's own, unless it lacks
// output, beats our reasons for ending it, which beat a lost connection.
func (r *run) outcome() error {
	r.mu.Lock()
	stop := r.stop
	r.mu.Unlock()
	if r.end != nil && (r.end.Exited || stop == nil) {
		if r.end.Exited && r.end.ExitCode == 0 {
			if r.cut && stop != nil {
				return stop
			}
			return errors.Join(r.copyErr, r.readError())
		}
		return newExitError(r.c, r.end)
	}
	if stop != nil {
		return stop
	}
	if errors.Is(r.lost, ErrCommandTimeout) { // the server's clock was first
		return errdefs.New("E3001", r.c.op(), "the command timeout of "+r.c.Timeout.String()+" passed")
	}
	return r.c.sb.explain(r.c.ctx, renamed(r.lost, r.c.op()))
}

func (r *run) readError() error {
	select {
	case <-r.inputDone:
		return r.inputErr
	default:
		return nil
	}
}
