package sandboxfn

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// CallInfo says where a call was when it failed. What was not known yet is zero.
type CallInfo struct {
	Function  string // id: import path and name
	CallID    string
	SandboxID string // empty too where calls run without a sandbox
	Worker    string // "w7": of this process
	Attempt   int    // from 1; 0: it did not come to one
}

// InfoFrom returns what is known about the call that err comes from. It finds it
// in every error of a call that is ours. Errors that a function has returned come
// back as they are: for those, and for nil, it reports false.
func InfoFrom(err error) (CallInfo, bool) {
	if e, ok := errors.AsType[*callError](err); ok {
		return e.Info, true
	}
	return CallInfo{}, false
}

// callError is an error of ours with where it happened. Text and identity are
// those of what it holds.
type callError struct {
	Err  error
	Info CallInfo
}

func (e *callError) Error() string { return e.Err.Error() }
func (e *callError) Unwrap() error { return e.Err }

// Format prints what it holds: a panic has a stack for %+v.
func (e *callError) Format(f fmt.State, verb rune) {
	if x, ok := e.Err.(fmt.Formatter); ok {
		x.Format(f, verb)
		return
	}
	fmt.Fprintf(f, fmt.FormatString(f, verb), e.Err)
}

// informed adds to an error of ours what is known of its call, unless it says so
// already.
func informed(err error, i CallInfo) error {
	if err == nil {
		return nil
	}
	if _, known := InfoFrom(err); known {
		return err
	}
	return &callError{err, i}
}

// trail follows one call through its attempts, for logs, spans and errors. A nil
// trail follows nothing.
type trail struct {
	s     *setup
	n     uint64 // of the call in this process
	begun time.Time
	ctx   context.Context // of the call, with its span
	span  Span            // of the call
	run   Span            // of the attempt

	mu      sync.Mutex
	attempt int         // guarded by mu
	worker  *workerConn // guarded by mu; of the last attempt
	over    bool        // guarded by mu
}

var lastCall atomic.Uint64

// callPrefix tells the calls of this process from those of others.
var callPrefix = sync.OnceValue(func() string { return strings.ToLower(rand.Text()[:10]) })

// follow begins the trail of a call, and returns the context of the call.
func (s *setup) follow(ctx context.Context) (context.Context, *trail) {
	t := &trail{s: s, n: callNumber(ctx)}
	if s.set.log.Enabled(ctx, slog.LevelDebug) {
		t.begun = time.Now()
	}
	if tr := s.tracerOf(); tr != nil {
		ctx, t.span = tr.Start(ctx, spanCall, slog.String(attrFunction, s.fn.id), slog.String(attrCallID, t.id()))
	}
	t.ctx = ctx
	return ctx, t
}

// id is the call's id among all calls.
func (t *trail) id() string { return callPrefix() + strconv.FormatUint(t.n, 36) }

// at says that an attempt begins in a worker. The function's context belongs to
// the span of the call: its request is the same for all attempts.
func (t *trail) at(w *workerConn) {
	if t == nil {
		return
	}
	t.mu.Lock()
	t.attempt++
	t.worker = w
	n := t.attempt
	t.mu.Unlock()
	w.logs.last.Store(t)
	if tr := t.s.tracerOf(); tr != nil {
		_, t.run = tr.Start(t.ctx, spanRun, append(w.logs.attrs(), slog.Int(attrAttempt, n))...)
	}
}

// left says what came of an attempt.
func (t *trail) left(err error) {
	if t != nil {
		t.run.end(err)
		t.run = Span{}
	}
}

// appendMeta appends what makes the call's span the parent of others to what
// goes with the call.
func (t *trail) appendMeta(meta []string) []string {
	if t == nil {
		return meta
	}
	return t.span.appendMeta(meta)
}

// info is what is known so far.
func (t *trail) info() CallInfo {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := CallInfo{Function: t.s.fn.id, CallID: t.id(), Attempt: t.attempt}
	if t.worker != nil {
		i.SandboxID, i.Worker = t.worker.logs.sandbox, t.worker.logs.name
	}
	return i
}

// informed adds what is known of the call to an error that is ours.
func (t *trail) informed(err error) error {
	if t == nil || err == nil {
		return err
	}
	return informed(err, t.info())
}

// end ends the trail, once: err is what came of the call.
func (t *trail) end(err error) {
	if t == nil {
		return
	}
	t.mu.Lock()
	over := t.over
	t.over = true
	t.mu.Unlock()
	if over {
		return
	}
	if err == errStreamLeft {
		err = nil // its reader has all that it wanted
	}
	t.left(err)
	t.span.end(err)
	if !t.begun.IsZero() {
		t.log(err)
	}
}

// log writes the one record of a call.
func (t *trail) log(err error) {
	i := t.info()
	attrs := []slog.Attr{
		slog.String(keyFunction, i.Function), slog.String(keyCallID, i.CallID),
		slog.Int("attempt", i.Attempt), slog.Duration("duration", time.Since(t.begun)),
	}
	if i.Worker != "" {
		attrs = append(attrs, slog.String(keyWorker, i.Worker))
	}
	if i.SandboxID != "" {
		attrs = append(attrs, slog.String(keySandboxID, i.SandboxID))
	}
	if err != nil {
		attrs = append(attrs, slog.Any("err", err))
	}
	t.s.set.log.LogAttrs(t.ctx, slog.LevelDebug, "call ended", attrs...)
}
