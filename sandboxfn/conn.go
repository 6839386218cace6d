package sandboxfn

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/envelope"
	"github.com/agent-sandbox/sandbox-go/internal/frame"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

const (
	// answerTime is how long a call whose context has ended waits for what the
	// function makes of it. The rest of its grace goes by in the background.
	answerTime = 100 * time.Millisecond

	outputTime = 2 * time.Second // a call that is over waits for its output

	// outputStill is for how long nothing may come of output that a worker has
	// counted: longer than a writer may hold it up. A stream that is dead is
	// noticed in other ways.
	outputStill = 30 * time.Second

	exitTime = 2 * time.Second // a call waits for how its worker ended

	// maxHello bounds what a worker says of itself, in bytes.
	maxHello = 8 << 20
)

// workerHandle is one running worker process.
type workerHandle interface {
	done() <-chan struct{}              // closed when it has ended and all output is delivered
	exit() workerExit                   // valid after done
	delivered() (stdout, stderr uint64) // bytes handed to the callbacks
	waitDelivered(ctx context.Context, stdout, stderr uint64) error
	close() // closes the connection, which ends the worker; idempotent
}

// workerConn is the caller's end of a worker: the frames, and the output. One
// call at a time uses it, from the goroutine of the caller, which also reads:
// handing the answer from one goroutine to another would take longer than the
// rest of a short call.
type workerConn struct {
	conn net.Conn
	r    *frame.Reader
	w    *frame.Writer
	proc workerHandle

	out, err *sink
	logs     workerLogs

	greeted bool // used by the goroutine that reads

	broken chan struct{} // closed when the connection is lost, where another goroutine reads

	hmu     sync.Mutex           // never held while something is read or written
	hosts   map[uint64]*hostCall // the calls in it; guarded by hmu
	last    uint64               // id of the call that was made last; guarded by hmu
	readers int                  // calls that need another goroutine to read; guarded by hmu
	pumping chan struct{}        // closed when that has ended; nil: there is none; guarded by hmu
	halt    bool                 // it is to end; guarded by hmu
	why     error                // with broken; guarded by hmu

	mu          sync.Mutex
	id          uint64 // of the call that reads for itself; guarded by mu
	running     bool   // guarded by mu
	writing     bool   // guarded by mu; the call is not sent yet
	interrupted bool   // guarded by mu
}

func newWorkerConn(conn net.Conn, proc workerHandle, out, err *sink) *workerConn {
	w := &workerConn{
		conn: conn, proc: proc, out: out, err: err, r: frame.NewReader(conn), w: frame.NewWriter(conn),
		hosts: map[uint64]*hostCall{}, broken: make(chan struct{}),
	}
	w.r.Limit, w.r.Live = w.most, w.wanted
	return w
}

// most is how long a message may be. What nobody waits for is refused: a worker
// could fill the memory of the caller with it.
func (w *workerConn) most(t frame.Type, id uint64) int64 {
	const small = 1 << 17
	switch {
	case t == frame.Hello && !w.greeted:
		return maxHello
	case !w.greeted:
		return 0
	case t == frame.Log:
		return frame.MaxPiece
	case t == frame.Credit || t == frame.Cancel:
		return small
	}
	w.hmu.Lock()
	defer w.hmu.Unlock()
	limit := int64(0)
	switch t {
	case frame.Result, frame.Item:
		if h := w.hosts[id]; h != nil {
			limit = h.limit
		}
	case frame.Upcall: // of which call it is, only its body says
		for _, h := range w.hosts {
			limit = max(limit, h.limit)
		}
	}
	return limit
}

// wanted reports whether the call still runs to which a message belongs that
// comes in parts, of which m is the beginning.
func (w *workerConn) wanted(m *frame.Message) bool {
	id := m.ID
	switch m.Type {
	case frame.Result, frame.Item:
	case frame.Upcall:
		call, _, _, _, err := envelope.ParseUpcall(m.Body)
		if err != nil {
			return false
		}
		id = call
	default:
		return true
	}
	return w.host(id) != nil
}

// newToken makes the mark by which a worker is known to be the one started.
func newToken() string {
	var b [16]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// hello reads what the worker says of itself.
func (w *workerConn) hello(ctx context.Context) (*envelope.Hello, error) {
	stop := context.AfterFunc(ctx, func() { w.conn.SetReadDeadline(time.Unix(1, 0)) })
	m, err := w.r.Next()
	if !stop() {
		return nil, context.Cause(ctx)
	}
	switch {
	case err != nil:
		return nil, w.lost(ctx, "", false, time.Time{}, err)
	case m.Type != frame.Hello:
		return nil, errdefs.New("E9005", "hello", "the worker's first message is not a hello")
	}
	w.greeted = true
	return envelope.DecodeHello(m.Body)
}

// verdict says what came of an attempt.
type verdict uint8

const (
	answered   verdict = iota // the worker answered; it can be used again
	notStarted                // the worker is lost before the call was complete at its end
	lostCall                  // the worker is lost, the function may have run
	gaveUp                    // the context ended, or the timeout passed; the function may still run
	neverSent                 // the timeout passed before the call was complete at the worker's end, which is stuck
)

// attempt sends a request and waits for the response. l is what the call lends;
// it may be nil.
func (w *workerConn) attempt(ctx context.Context, s *setup, p envelope.Payload, l *lent) (*hostCall, envelope.Payload, verdict, error) {
	h := w.open(ctx, s, l, false)
	var m *frame.Message
	var v verdict
	var err error
	if s.shared() {
		w.startReading()
		m, v, err = h.shared(ctx, s, p)
	} else {
		m, v, err = w.alone(ctx, h, s, p)
	}
	if v == gaveUp {
		return h, envelope.Payload{}, v, err // it is still running
	}
	h.close()
	if v != answered {
		return h, envelope.Payload{}, v, err
	}
	return h, envelope.Payload{Body: m.Body, Segments: m.Segments}, answered, nil
}

// alone makes the only call in its worker, and reads the connection.
func (w *workerConn) alone(ctx context.Context, h *hostCall, s *setup, p envelope.Payload) (*frame.Message, verdict, error) {
	id := h.id
	w.mu.Lock()
	w.id = id
	w.running, w.writing, w.interrupted = true, true, false
	w.mu.Unlock()
	stop := func() bool { return true }
	if ctx.Done() != nil {
		stop = context.AfterFunc(ctx, func() { w.interrupt(ctx, id, s.opts.Grace) })
	}
	m, verdict, err := w.exchange(ctx, h, s, p)
	stop()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running = false
	if verdict == answered { // what comes after the call must not end with it
		w.conn.SetDeadline(time.Time{})
	}
	return m, verdict, err
}

func (w *workerConn) exchange(ctx context.Context, h *hostCall, s *setup, p envelope.Payload) (*frame.Message, verdict, error) {
	w.mu.Lock()
	if w.interrupted { // what is to be written must fail at once
		w.conn.SetReadDeadline(h.deadline)
	} else {
		w.conn.SetDeadline(h.deadline) // a worker that is stuck takes no arguments
	}
	w.mu.Unlock()
	err := w.w.Write(&frame.Message{Type: frame.Call, ID: h.id, Body: p.Body, Segments: p.Segments})
	w.mu.Lock()
	w.writing = false
	interrupted := w.interrupted
	w.mu.Unlock()
	if err != nil {
		if ctx.Err() != nil {
			return nil, notStarted, ended(ctx, s.name, "while its arguments were sent")
		}
		if deadlinePassed(err) && h.late() {
			return nil, neverSent, errdefs.New("E9013", s.name, "timed out after "+s.opts.Timeout.String()+", while its arguments were sent")
		}
		return nil, notStarted, w.lost(ctx, s.name, false, h.deadline, err)
	}
	if interrupted { // between the last byte and now: nobody has told the worker
		w.tellCancel(ctx, h.id, s.opts.Grace)
	}
	m, err := w.next(h.id)
	switch {
	case err == nil:
		return m, answered, nil
	case !deadlinePassed(err):
		return nil, lostCall, w.lost(ctx, s.name, true, h.deadline, err)
	case ctx.Err() != nil:
		return nil, gaveUp, ended(ctx, s.name, "while the function ran")
	}
	// The function's own context has ended by itself.
	return nil, gaveUp, errdefs.New("E9013", s.name, "timed out after "+s.opts.Timeout.String())
}

// deadlinePassed reports whether err is of the deadline of a connection. One with a
// code is of another clock.
func deadlinePassed(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) && errdefs.CodeOf(err) == ""
}

// next reads up to the result of a call.
func (w *workerConn) next(id uint64) (*frame.Message, error) {
	for {
		m, err := w.r.Next()
		if err != nil {
			return nil, err
		}
		if m.Type == frame.Result && m.ID == id {
			return &m, nil
		}
		if err := w.dispatch(&m); err != nil {
			return nil, err
		}
	}
}

// interrupt runs when the context of a call ends: it tells the worker, and
// bounds how long the caller still waits.
func (w *workerConn) interrupt(ctx context.Context, id uint64, grace time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.running || w.id != id {
		return
	}
	w.interrupted = true
	if w.writing {
		w.conn.SetWriteDeadline(time.Unix(1, 0)) // the worker sees no complete call
		return
	}
	w.tellCancel(ctx, id, grace)
}

func (w *workerConn) tellCancel(ctx context.Context, id uint64, grace time.Duration) {
	now := time.Now()
	w.conn.SetReadDeadline(now.Add(min(answerTime, grace)))
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return // the function's context has the same deadline, and ends with the right error
	}
	w.conn.SetWriteDeadline(now.Add(max(grace, answerTime)))
	cause := context.Cause(ctx)
	if cause == ctx.Err() {
		cause = nil
	}
	w.sendCancel(id, cause)
}

// sendCancel ends the context of a function. It does not wait for a worker that
// takes nothing: that is ended with the grace of the call.
func (w *workerConn) sendCancel(id uint64, cause error) {
	m := &frame.Message{Type: frame.Cancel, ID: id, Body: envelope.EncodeCause(cause, knownErrors())}
	go w.w.Write(m) // a failure shows where the connection is read
}

// settle waits, after a call was given up, for what is left of its grace. It
// reports whether the function has returned, so that the worker can be used
// again.
func (w *workerConn) settle(ctx context.Context, h *hostCall, s *setup) bool {
	defer h.close()
	left := s.opts.Grace - min(answerTime, s.opts.Grace)
	var m *frame.Message
	if h.result != nil {
		t := time.NewTimer(left)
		defer t.Stop()
		select {
		case r := <-h.result:
			m = &r
		case <-w.broken:
			return false
		case <-t.C:
			return false
		}
	} else {
		w.conn.SetDeadline(time.Now().Add(left))
		var err error
		if m, err = w.next(h.id); err != nil {
			return false
		}
		w.conn.SetDeadline(time.Time{})
	}
	unused := &lent{}
	d, err := envelope.DecodeResponse(envelope.Payload{Body: m.Body, Segments: m.Segments}, s.fn.res, knownErrors(), unused, s.fn.newResult())
	unused.end(errLeft)
	late := h.deliver(ctx, d.Counters) // before another call has the worker, with other writers
	return late == nil && err == nil && d.Outcome != envelope.Panicked
}

// deliver waits until what the function has written is with the caller's
// writers. It fails when some of that has not come, and the worker must not be
// used again then: what comes later would go to the writers of other calls.
func (h *hostCall) deliver(ctx context.Context, c envelope.Counters) error {
	w := h.w
	stdout, stderr := w.proc.delivered()
	if stdout >= c.Stdout && stderr >= c.Stderr && w.out.idle() && w.err.idle() {
		return nil
	}
	last, cancel := lastOutput(ctx, h.deadline)
	defer cancel()
	// In steps: a machine that stands still for a while is no reason to give up.
	const steps = 40
	missing := func() bool { return stdout < c.Stdout || stderr < c.Stderr }
	for still := 0; still < steps && missing() && last.Err() == nil; still++ {
		before := stdout + stderr
		step, cancel := context.WithTimeout(last, outputStill/steps)
		err := w.proc.waitDelivered(step, c.Stdout, c.Stderr)
		cancel()
		if stdout, stderr = w.proc.delivered(); stdout+stderr != before {
			still = -1
		} else if err == nil {
			break // the process has ended
		}
	}
	w.out.flush(last)
	w.err.flush(last)
	if missing() {
		return h.outputLost(ctx, max(c.Stdout, stdout)-stdout+max(c.Stderr, stderr)-stderr)
	}
	return nil
}

// outputLost is the error of a call of whose output bytes have not come.
func (h *hostCall) outputLost(ctx context.Context, bytes uint64) error {
	const doing = "while its output was received"
	if ctx.Err() != nil {
		return ended(ctx, h.name, doing)
	}
	if h.late() {
		return errdefs.New("E9013", h.name, "timed out "+doing)
	}
	err := errdefs.New("E9005", h.name, fmt.Sprintf("%d bytes of its output have not come", bytes))
	lost := h.w.lost(ctx, h.name, true, h.deadline, err)
	if lost.Err == nil { // how the worker ended is not why
		lost.Err = err
	}
	return lost
}

// showOutput gives the writers a moment for what a call that was given up has
// printed so far.
func (w *workerConn) showOutput(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTime)
	defer cancel()
	w.out.flush(ctx)
	w.err.flush(ctx)
}

// lastOutput returns a context for the wait for output. It ends a little after
// ctx, because what has been printed belongs to the call also when its context
// ends now, and a little after the call's timeout: a function that has left
// something that prints for ever, or counts what it never printed, must not
// keep the caller.
func lastOutput(ctx context.Context, deadline time.Time) (context.Context, context.CancelFunc) {
	out := context.WithoutCancel(ctx)
	var cancel context.CancelFunc
	if deadline.IsZero() {
		out, cancel = context.WithCancel(out)
	} else {
		out, cancel = context.WithDeadline(out, deadline.Add(outputTime))
	}
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(outputTime, cancel) })
	return out, func() {
		stop()
		cancel()
	}
}

// lost describes the end of the worker, for which it waits a little.
func (w *workerConn) lost(ctx context.Context, name string, started bool, deadline time.Time, err error) *WorkerLostError {
	e := &WorkerLostError{Func: name, Started: started, ExitCode: -1}
	w.conn.Close()
	timer := time.NewTimer(exitTime)
	defer timer.Stop()
	select {
	case <-w.proc.done():
		x := w.proc.exit()
		e.ExitCode, e.Signal, e.OOM, e.Err = x.Code, x.Signal, x.OOM, x.Err
	case <-timer.C:
	}
	if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && e.Err == nil && e.ExitCode < 0 && e.Signal == "" {
		e.Err = err
	}
	if errors.Is(err, frame.ErrTooLarge) || errors.Is(err, frame.ErrMalformed) {
		e.Err = err // the worker ended because of it, not the other way round
	}
	e.Stderr = w.err.last()
	ctx, cancel := lastOutput(ctx, deadline)
	defer cancel()
	w.out.flush(ctx)
	w.err.flush(ctx)
	return e
}

// check compares what a worker says of itself with this program.
func checkHello(h *envelope.Hello, token, digest, unit, name string) error {
	differ := func(format string, args ...any) error {
		return errdefs.New("E9004", name, fmt.Sprintf(format, args...))
	}
	switch {
	case h.Protocol != envelope.Protocol:
		return differ("protocol %d in this program, %d in the worker", envelope.Protocol, h.Protocol)
	case h.Token != token:
		return differ("the worker is not the one that was started")
	case h.Unit != unit:
		return differ("the worker has taken over %q, not %q", h.Unit, unit)
	}
	theirs := make(map[string]string, len(h.Functions))
	for _, f := range h.Functions {
		theirs[f.ID] = f.Schema
	}
	for _, f := range functions.ofUnit(unit) {
		schema, ok := theirs[f.id]
		if ok && schema != f.decl.Schema {
			return differ("%s: schema %s in this program, %s in the worker (executable %s): the worker was built from other source",
				f.id, short(f.decl.Schema), short(schema), short(h.Digest))
		}
	}
	if h.Digest != digest {
		return differ("executable %s is this program, %s the worker", short(digest), short(h.Digest))
	}
	return nil
}

func short(hex string) string {
	if len(hex) > 16 {
		return hex[:16]
	}
	if strings.TrimSpace(hex) == "" {
		return "none"
	}
	return hex
}
