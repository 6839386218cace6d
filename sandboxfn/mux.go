package sandboxfn

import (
	"context"
	"errors"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/envelope"
	"github.com/agent-sandbox/sandbox-go/internal/frame"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// Calls that run at once in one worker, and calls whose results are streams,
// have a goroutine that reads the connection and hands on what comes.

// shared reports whether calls of s may run at once in a worker.
func (s *setup) shared() bool { return s.opts.Concurrency > 1 }

// startReading makes a goroutine read, for one call more.
func (w *workerConn) startReading() {
	w.hmu.Lock()
	defer w.hmu.Unlock()
	w.readers++
	if w.pumping == nil {
		w.conn.SetReadDeadline(time.Time{})
		w.pumping = make(chan struct{})
		w.halt = false
		go w.pump(w.pumping)
	}
}

// stopReading ends what startReading has begun for the only call in the worker,
// so that the next one can read by itself. Where calls share a worker, the
// goroutine stays until the connection ends.
func (w *workerConn) stopReading(s *setup) {
	w.hmu.Lock()
	w.readers--
	pumping := w.pumping
	last := w.readers == 0 && !s.shared() && pumping != nil
	if last {
		w.halt = true
	}
	w.hmu.Unlock()
	if !last {
		return
	}
	w.conn.SetReadDeadline(time.Unix(1, 0))
	<-pumping
	w.conn.SetReadDeadline(time.Time{})
	w.hmu.Lock()
	w.pumping = nil
	w.hmu.Unlock()
}

// pump reads until it is told to halt, or the connection is lost.
func (w *workerConn) pump(done chan struct{}) {
	defer close(done)
	for {
		m, err := w.r.Next()
		if deadlinePassed(err) {
			w.hmu.Lock()
			halt := w.halt
			w.hmu.Unlock()
			if halt {
				return
			}
		}
		if err == nil {
			err = w.deliverMessage(&m)
		}
		if err != nil {
			w.fail(err)
			return
		}
	}
}

func (w *workerConn) deliverMessage(m *frame.Message) error {
	if m.Type != frame.Result {
		return w.dispatch(m)
	}
	h := w.host(m.ID)
	if h == nil || h.result == nil {
		return nil
	}
	select {
	case h.result <- *m:
	default:
		return frame.ErrMalformed // a second result
	}
	if h.items != nil {
		h.items.End() // what has come before is still read
	}
	return nil
}

// fail tells all calls that the connection is lost.
func (w *workerConn) fail(err error) {
	w.hmu.Lock()
	defer w.hmu.Unlock()
	if w.why != nil {
		return
	}
	w.why = err
	close(w.broken)
	w.conn.Close()
	for _, h := range w.hosts {
		if h.items != nil {
			h.items.End()
		}
	}
}

// shared makes a call beside others, while another goroutine reads.
func (h *hostCall) shared(ctx context.Context, s *setup, p envelope.Payload) (*frame.Message, verdict, error) {
	if v, err := h.send(ctx, s, p); err != nil {
		return nil, v, err
	}
	return h.await(ctx, s)
}

// send sends the call.
func (h *hostCall) send(ctx context.Context, s *setup, p envelope.Payload) (verdict, error) {
	w := h.w
	// A message can't be taken back in the middle: a worker that does not take it
	// in time is given up, with every call in it.
	written := make(chan struct{})
	abort := func(d time.Duration) {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-written:
		case <-t.C:
			w.conn.Close()
		}
	}
	stop := context.AfterFunc(ctx, func() { abort(max(min(s.opts.Grace, time.Second), answerTime)) })
	defer stop()
	if !h.deadline.IsZero() {
		defer time.AfterFunc(time.Until(h.deadline), func() { abort(0) }).Stop()
	}
	err := w.w.WriteSoon(&frame.Message{Type: frame.Call, ID: h.id, Body: p.Body, Segments: p.Segments})
	close(written)
	switch {
	case err == nil:
		return answered, nil
	case ctx.Err() != nil:
		return notStarted, ended(ctx, s.name, "while its arguments were sent")
	case h.late():
		return neverSent, errdefs.New("E9013", s.name, "timed out after "+s.opts.Timeout.String()+", while its arguments were sent")
	}
	return notStarted, w.lost(ctx, s.name, false, h.deadline, err)
}

// await waits for the result of a call that was sent.
func (h *hostCall) await(ctx context.Context, s *setup) (*frame.Message, verdict, error) {
	w := h.w
	var timeout, late <-chan time.Time
	if !h.deadline.IsZero() {
		t := time.NewTimer(time.Until(h.deadline))
		defer t.Stop()
		timeout = t.C
	}
	cancelled := ctx.Done()
	for {
		select {
		case m := <-h.result:
			return &m, answered, nil
		case <-w.broken:
			select {
			case m := <-h.result:
				return &m, answered, nil
			default:
			}
			w.hmu.Lock()
			why := w.why
			w.hmu.Unlock()
			return nil, lostCall, w.lost(ctx, s.name, true, h.deadline, why)
		case <-cancelled:
			cancelled = nil
			h.tellCancel(ctx)
			t := time.NewTimer(min(answerTime, s.opts.Grace))
			defer t.Stop()
			late = t.C
		case <-late:
			return nil, gaveUp, ended(ctx, s.name, "while the function ran")
		case <-timeout:
			if ctx.Err() != nil {
				return nil, gaveUp, ended(ctx, s.name, "while the function ran")
			}
			return nil, gaveUp, errdefs.New("E9013", s.name, "timed out after "+s.opts.Timeout.String())
		}
	}
}

// tellCancel tells the worker that the call's context has ended.
func (h *hostCall) tellCancel(ctx context.Context) {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return // the function's context has the same deadline, and ends with the right error
	}
	cause := context.Cause(ctx)
	if cause == ctx.Err() {
		cause = nil
	}
	h.w.sendCancel(h.id, cause)
}
