package sandboxfn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"time"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// inputChunk is how much one request carries to standard input at most.
const inputChunk = 1 << 20

// feedBuffer is how much of Stdin is held on its way.
const feedBuffer = 256 << 10

// feed copies Stdin to the process, then lets it read end of file.
func (r *run) feed() {
	defer close(r.inputDone)
	buf := make([]byte, feedBuffer)
	for {
		n, err := r.c.Stdin.Read(buf)
		if n > 0 {
			if werr := r.c.sb.envd.SendInput(r.inputCtx, r.stream.Pid(), buf[:n]); werr != nil {
				// As in os/exec, a command that does not read to the end is fine.
				return
			}
		}
		if err != nil {
			if err != io.EOF {
				r.inputErr = fmt.Errorf("read Stdin: %w", err)
			}
			r.c.sb.envd.CloseStdin(r.inputCtx, r.stream.Pid())
			return
		}
	}
}

// inputAnswer is how long a request that sends input is still waited for when the
// command has ended: perhaps because of what it sends.
const inputAnswer = time.Second

// answered is inputCtx for a request, whose answer the end of a command may overtake.
// Where the command did not end by itself, nothing depends on the answer.
func (r *run) answered() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.inputCtx))
	stop := context.AfterFunc(r.inputCtx, func() {
		r.mu.Lock()
		interrupted := r.stop != nil
		r.mu.Unlock()
		if r.end == nil || interrupted {
			cancel()
			return
		}
		time.AfterFunc(inputAnswer, cancel)
	})
	return ctx, func() { stop(); cancel() }
}

// inPipe is the writing end of a command's standard input.
type inPipe struct {
	c *Cmd

	mu     sync.Mutex // held while writing, so that writes do not mix
	closed bool       // guarded by mu
}

func newInPipe(c *Cmd) *inPipe { return &inPipe{c: c} }

// Write sends p in order. It waits for Start.
func (w *inPipe) Write(p []byte) (int, error) {
	<-w.c.started
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || w.c.run == nil {
		return 0, errdefs.Wrap("E3013", w.c.op(), "write after Close", io.ErrClosedPipe)
	}
	r, sent := w.c.run, 0
	ctx, cancel := r.answered()
	defer cancel()
	for len(p) > 0 {
		n := min(len(p), inputChunk)
		err := r.inputCtx.Err()
		if err == nil {
			err = w.c.sb.envd.SendInput(ctx, r.stream.Pid(), p[:n])
		}
		if err != nil {
			return sent, w.broken(err)
		}
		sent, p = sent+n, p[n:]
	}
	return sent, nil
}

// broken names what a failed write means: mostly that the command has ended.
func (w *inPipe) broken(err error) error {
	if w.c.run.inputCtx.Err() != nil || errors.Is(err, ErrProcessGone) {
		return errdefs.Wrap("E3010", w.c.op(), "the command has ended", syscall.EPIPE)
	}
	if errdefs.CodeOf(err) == "E3013" {
		return errdefs.Wrap("E3013", w.c.op(), "the command does not read its standard input any more", syscall.EPIPE)
	}
	return w.c.sb.explain(w.c.run.inputCtx, err)
}

// Close lets the command read end of file. It is idempotent.
func (w *inPipe) Close() error {
	<-w.c.started
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || w.c.run == nil {
		return nil
	}
	w.closed = true
	err := w.c.sb.envd.CloseStdin(w.c.run.inputCtx, w.c.run.stream.Pid())
	if w.c.run.inputCtx.Err() != nil || errors.Is(err, ErrProcessGone) {
		return nil
	}
	return w.c.sb.explain(w.c.run.inputCtx, err)
}

// finish closes the pipe after the end of the command, once writes in progress have
// been answered or cancelled.
func (w *inPipe) finish() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
}

// pipeBuffer is how much an output pipe holds before the command has to wait.
const pipeBuffer = 1 << 20

var errPipeClosed = errors.New("read end is closed")

// outPipe hands output from the pump to a reader.
type outPipe struct {
	mu      sync.Mutex
	changed sync.Cond // on mu
	buf     []byte    // guarded by mu
	err     error     // guarded by mu; what follows the bytes
	closed  bool      // guarded by mu; by the reader
	drop    bool      // guarded by mu; nobody waits for a reader any more
	lost    bool      // guarded by mu; something was dropped for it
}

func newOutPipe() *outPipe {
	p := &outPipe{}
	p.changed.L = &p.mu
	return p
}

// Write waits while the pipe is full.
func (p *outPipe) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.buf) >= pipeBuffer && !p.closed && !p.drop {
		p.changed.Wait()
	}
	if full := len(p.buf) >= pipeBuffer; p.closed || full {
		p.lost = full && !p.closed
		return 0, errPipeClosed
	}
	p.buf = append(p.buf, b...)
	p.changed.Broadcast()
	return len(b), nil
}

// Read waits for output or the end of the command.
func (p *outPipe) Read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.buf) == 0 && p.err == nil && !p.closed && len(b) > 0 {
		p.changed.Wait()
	}
	if p.closed {
		return 0, io.ErrClosedPipe
	}
	if len(p.buf) == 0 {
		if len(b) == 0 {
			return 0, nil
		}
		return 0, p.err
	}
	n := copy(b, p.buf)
	if p.buf = p.buf[n:]; len(p.buf) == 0 {
		p.buf = nil
	}
	p.changed.Broadcast()
	return n, nil
}

// Close discards what the command prints from now on.
func (p *outPipe) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed, p.buf = true, nil
	p.changed.Broadcast()
	return nil
}

// finish says what readers see after the last byte.
func (p *outPipe) finish(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.err = err
	}
	p.changed.Broadcast()
}

// lossy reports whether something was dropped that a reader might still have
// wanted.
func (p *outPipe) lossy() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lost
}

// overflow lets a full pipe lose what follows instead of waiting for a reader.
func (p *outPipe) overflow(error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop = true
	p.changed.Broadcast()
}

// boundedBuffer keeps everything, or the first and the last half of its limit.
type boundedBuffer struct {
	limit   int // zero: none
	head    []byte
	tail    []byte // a ring once it is full
	at      int    // oldest byte of the ring
	skipped int64
}

func newBoundedBuffer(limit int) *boundedBuffer { return &boundedBuffer{limit: limit} }

// Write never fails.
func (b *boundedBuffer) Write(p []byte) (int, error) {
	n := len(p)
	if b.limit == 0 {
		b.head = append(b.head, p...)
		return n, nil
	}
	if room := (b.limit+1)/2 - len(b.head); room > 0 {
		k := min(room, len(p))
		b.head, p = append(b.head, p[:k]...), p[k:]
	}
	size := b.limit / 2
	if over := len(p) - size; over > 0 { // all that the ring holds goes, and more
		b.skipped += int64(len(b.tail) + over)
		b.tail, b.at, p = b.tail[:0], 0, p[over:]
	}
	if room := size - len(b.tail); room > 0 {
		k := min(room, len(p))
		b.tail, p = append(b.tail, p[:k]...), p[k:]
	}
	for len(p) > 0 {
		k := copy(b.tail[b.at:], p)
		b.skipped += int64(k)
		p = p[k:]
		if b.at += k; b.at == size {
			b.at = 0
		}
	}
	return n, nil
}

// Bytes is what was kept; never nil, so that no output is empty output.
func (b *boundedBuffer) Bytes() []byte {
	out := append(make([]byte, 0, len(b.head)), b.head...)
	if b.limit == 0 {
		return out
	}
	if b.skipped > 0 {
		out = append(out, fmt.Sprintf("\n... %d bytes left out ...\n", b.skipped)...)
	}
	out = append(out, b.tail[b.at:]...)
	return append(out, b.tail[:b.at]...)
}
