package sandboxfn

import (
	"context"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/artifact"
	"github.com/agent-sandbox/sandbox-go/internal/envelope"
	"github.com/agent-sandbox/sandbox-go/internal/frame"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/worker"
)

// Keys of attributes.
const (
	keyFunction  = "function"
	keyCallID    = "call_id"
	keySandboxID = "sandbox_id"
	keyWorker    = "worker"
	keyStream    = "stream"
)

// workerLogs is how a worker is named in logs, and whose records it sends.
type workerLogs struct {
	name    string // of the worker: "w7"
	sandbox string // its id; empty: there is none
	strange bool   // it is another executable: places in it mean nothing here
	last    atomic.Pointer[trail]
}

var lastWorker atomic.Uint64

// named gives a worker its name.
func (l *workerLogs) named(m *made) {
	l.name, l.sandbox = "w"+strconv.FormatUint(lastWorker.Add(1), 10), m.sandbox
	own, err := artifact.Own()
	l.strange = m.digest != "" && (err != nil || own.Digest != m.digest)
}

// attrs are the attributes of spans in the worker.
func (l *workerLogs) attrs() []slog.Attr {
	attrs := make([]slog.Attr, 0, 4)
	if l.sandbox != "" {
		attrs = append(attrs, slog.String(attrSandbox, l.sandbox))
	}
	return append(attrs, slog.String(attrWorker, l.name))
}

// logger is where what functions log goes: the client's own logger, or the
// program's default.
func (s *setup) logger() *slog.Logger {
	if s.records != nil {
		return s.records
	}
	return slog.Default()
}

// levelTexts are the usual levels as text.
var levelTexts = func() (texts [32]string) {
	for i := range texts {
		texts[i] = strconv.Itoa(i - 16)
	}
	return texts
}()

// logMeta appends from which level on calls of s want log records to what goes
// with one. The usual level, Info, is not said.
func (s *setup) logMeta(ctx context.Context, meta []string) []string {
	if s.inProcess {
		return meta // it logs here
	}
	if s.opts.Log == LogDiscard {
		return append(meta, worker.MetaLog, worker.LogOff)
	}
	h := s.logger().Handler()
	const low, high = -16, 15
	least := int(slog.LevelInfo)
	on := func(level int) bool { return h.Enabled(ctx, slog.Level(level)) }
	switch {
	case !on(least):
		for least++; !on(least); least++ {
			if least > high {
				return append(meta, worker.MetaLog, worker.LogOff)
			}
		}
	case on(least - 1):
		for least--; least > low && on(least-1); least-- {
		}
	default:
		return meta
	}
	if least > high {
		least = high
	}
	return append(meta, worker.MetaLog, levelTexts[least-low])
}

// logRecord takes a record that a function has logged. It does not wait: the
// goroutine that reads must go on.
func (w *workerConn) logRecord(m *frame.Message) {
	t, mine := w.logs.last.Load(), false
	if h := w.logger(m.ID); h != nil && h.lent.trail != nil {
		t, mine = h.lent.trail, true
	}
	if t == nil || t.s.opts.Log == LogDiscard {
		return
	}
	note := func(missed int) {
		r := slog.NewRecord(time.Now(), slog.LevelWarn, "log records dropped: they came faster than they were handled", 0)
		r.AddAttrs(slog.Int("dropped", missed))
		t.emit(w, false, r)
	}
	if n, ok := envelope.DecodeDropped(m.Body); ok {
		w.err.missRecords(n, note)
		return
	}
	base := worker.LogBase()
	if w.logs.strange {
		base = 0
	}
	r, err := envelope.DecodeRecord(m.Body, base, knownErrors())
	if err != nil {
		r = slog.NewRecord(r.Time, slog.LevelWarn, "malformed log record of a function", 0)
		r.AddAttrs(slog.Any("err", err))
	}
	w.err.record(len(m.Body), func() { t.emit(w, mine, r) }, note)
}

// logger returns the call that a record is of, or nil: a record that names none
// is of the call that has the worker for itself.
func (w *workerConn) logger(id uint64) *hostCall {
	w.hmu.Lock()
	defer w.hmu.Unlock()
	if id != 0 || len(w.hosts) != 1 {
		return w.hosts[id]
	}
	for _, h := range w.hosts {
		if h.lent.trail != nil && !h.lent.trail.s.shared() {
			return h
		}
	}
	return nil
}

// emit hands a record to the caller's handler. mine says that it is the call's,
// not only the worker's.
func (t *trail) emit(w *workerConn, mine bool, r slog.Record) {
	ctx := context.Background()
	if mine {
		ctx = t.ctx
	}
	h := t.s.logger().Handler()
	if !h.Enabled(ctx, r.Level) {
		return
	}
	if mine {
		r.AddAttrs(slog.String(keyFunction, t.s.fn.id), slog.String(keyCallID, t.id()))
	} else {
		r.AddAttrs(slog.String(keyWorker, w.logs.name))
	}
	if w.logs.sandbox != "" {
		r.AddAttrs(slog.String(keySandboxID, w.logs.sandbox))
	}
	_ = h.Handle(ctx, r) // nobody could be told that a handler fails
}
