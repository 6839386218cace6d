package worker

import (
	"context"
	"log"
	"log/slog"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/envelope"
	"github.com/agent-sandbox/sandbox-go/internal/frame"
)

const (
	maxLogQueue = 1 << 20 // bytes of records that wait for a slow caller
	logOverhead = 64      // bytes that a record counts beside its own

	// errorWait is how long a record of an error may hold up who logs it, so that
	// it is not lost when the process exits next. Where one has waited in vain,
	// others do not until the caller takes records again.
	errorWait = 100 * time.Millisecond
)

// MetaOwn begins the names of what goes with a call and is ours. The rest are
// the headers of a trace.
const MetaOwn = "sandbox-"

// MetaLog is the name under which a call says from which level on it wants log
// records. Without it that is Info.
const MetaLog = MetaOwn + "log"

// LogOff is the level at which there are none.
const LogOff = "off"

// LogBase is what places in a program are measured from when they travel: both
// sides are the same executable, perhaps at different addresses.
func LogBase() uintptr { return reflect.ValueOf(Main).Pointer() }

// records takes what is logged in a worker to its caller. It is nil in other
// processes.
//
// It becomes the default of slog when this package is initialised: before every
// package that uses sandboxfn, so that whatever a program sets itself, in an
// init function or in main, comes later and stays. A default that another
// package has set before is left alone. The default of package log goes on
// writing to standard error.
var records = func() *logQueue {
	if len(launch.token) < minTokenSize || reflect.TypeOf(slog.Default().Handler()).String() != "*slog.defaultHandler" {
		return nil
	}
	q := &logQueue{}
	flags, w := log.Flags(), log.Writer()
	slog.SetDefault(slog.New(&logHandler{q: q}))
	log.SetOutput(w)
	log.SetFlags(flags)
	return q
}()

// logQueue holds records until they are sent. What does not fit is dropped, and
// counted: a function never waits for a slow caller.
type logQueue struct {
	least   atomic.Int64 // level, for what belongs to no call
	pending atomic.Int64 // records that are not sent yet
	sending sync.Mutex   // held by who sends
	server  *server      // guarded by mu; nil before the worker serves

	mu      sync.Mutex
	queue   []logEntry    // guarded by mu
	size    int           // guarded by mu; of queue
	dropped int           // guarded by mu
	busy    bool          // guarded by mu; a goroutine sends
	empty   chan struct{} // guarded by mu; closed when all are sent; nil: nobody waits
	stuck   bool          // guarded by mu; somebody has waited in vain
}

type logEntry struct {
	call uint64
	body []byte
}

// open begins to send, to the caller of s.
func (q *logQueue) open(s *server) {
	if q == nil {
		return
	}
	q.mu.Lock()
	q.server = s
	q.sendLocked()
	q.mu.Unlock()
}

// begin is told what goes with a call that begins.
func (q *logQueue) begin(meta []string) {
	if q != nil {
		q.least.Store(leastOf(meta))
	}
}

// leastOf is the level from which on a call wants records.
func leastOf(meta []string) int64 {
	for i := 0; i+1 < len(meta); i += 2 {
		if meta[i] != MetaLog {
			continue
		}
		if meta[i+1] == LogOff {
			return math.MaxInt64
		}
		if n, err := strconv.ParseInt(meta[i+1], 10, 32); err == nil {
			return n
		}
	}
	return int64(slog.LevelInfo)
}

func (q *logQueue) put(call uint64, body []byte) {
	n := len(body) + logOverhead
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.size+n > maxLogQueue {
		q.dropped++
		return
	}
	q.queue = append(q.queue, logEntry{call, body})
	q.size += n
	q.pending.Add(1)
	q.sendLocked()
}

func (q *logQueue) sendLocked() {
	if !q.busy && q.server != nil && len(q.queue) > 0 {
		q.busy = true
		go q.run()
	}
}

// run sends until there is nothing more.
func (q *logQueue) run() {
	q.sending.Lock()
	defer q.sending.Unlock()
	for q.drain() {
	}
}

// flush sends what is there, before the result of a call.
func (q *logQueue) flush(s *server) {
	if q == nil || q.pending.Load() == 0 || s.base != nil {
		return
	}
	q.sending.Lock()
	defer q.sending.Unlock()
	for q.drain() {
	}
}

// drain sends one batch. It reports false when there is none.
func (q *logQueue) drain() bool {
	q.mu.Lock()
	batch, dropped, s := q.queue, q.dropped, q.server
	q.queue, q.size, q.dropped = nil, 0, 0
	if len(batch) == 0 || s == nil {
		q.queue, q.busy = batch, false
		if q.empty != nil {
			close(q.empty)
			q.empty = nil
		}
		q.mu.Unlock()
		return false
	}
	q.mu.Unlock()
	if dropped > 0 {
		batch = append(batch, logEntry{body: envelope.EncodeDropped(dropped)})
	}
	for _, x := range batch {
		if err := s.w.Write(&frame.Message{Type: frame.Log, ID: x.call, Body: x.body}); err != nil {
			s.end(err)
			break
		}
	}
	n := len(batch)
	if dropped > 0 {
		n--
	}
	q.pending.Add(-int64(n))
	q.mu.Lock()
	q.stuck = false
	q.mu.Unlock()
	return true
}

// wait waits until everything is sent, for a moment.
func (q *logQueue) wait() {
	q.mu.Lock()
	if q.stuck || len(q.queue) == 0 && !q.busy || q.server == nil {
		q.mu.Unlock()
		return
	}
	if q.empty == nil {
		q.empty = make(chan struct{})
	}
	empty := q.empty
	q.mu.Unlock()
	t := time.NewTimer(errorWait)
	defer t.Stop()
	select {
	case <-empty:
	case <-t.C:
		q.mu.Lock()
		q.stuck = true
		q.mu.Unlock()
	}
}

// logHandler is the default handler of slog in a worker.
type logHandler struct {
	q     *logQueue
	scope []logScope // outermost first
}

// logScope is a group, or attributes.
type logScope struct {
	group string
	attrs []slog.Attr
}

// Enabled implements [slog.Handler].
func (h *logHandler) Enabled(ctx context.Context, l slog.Level) bool {
	if c := callOf(ctx); c != nil {
		return int64(l) >= leastOf(c.meta)
	}
	return int64(l) >= h.q.least.Load()
}

// Handle implements [slog.Handler].
func (h *logHandler) Handle(ctx context.Context, r slog.Record) error {
	if len(h.scope) > 0 {
		r = h.scoped(r)
	}
	var id uint64
	if c := callOf(ctx); c != nil {
		id = c.id
	}
	h.q.put(id, envelope.EncodeRecord(r, LogBase(), h.q.errors()))
	if r.Level >= slog.LevelError {
		h.q.wait()
	}
	return nil
}

func (q *logQueue) errors() *envelope.Errors {
	if s := current.Load(); s != nil {
		return s.errors
	}
	return nil
}

// scoped puts the record's attributes into the handler's groups.
func (h *logHandler) scoped(r slog.Record) slog.Record {
	var attrs []slog.Attr
	r.Attrs(func(a slog.Attr) bool {
		attrs = append(attrs, a)
		return true
	})
	for _, s := range slices.Backward(h.scope) {
		if s.group != "" {
			attrs = []slog.Attr{{Key: s.group, Value: slog.GroupValue(attrs...)}}
			continue
		}
		attrs = append(slices.Clip(s.attrs), attrs...)
	}
	out := slog.NewRecord(r.Time, r.Level, r.Message, r.PC)
	out.AddAttrs(attrs...)
	return out
}

// WithAttrs implements [slog.Handler].
func (h *logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	if len(attrs) == 0 {
		return h
	}
	return &logHandler{h.q, append(slices.Clip(h.scope), logScope{attrs: attrs})}
}

// WithGroup implements [slog.Handler].
func (h *logHandler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	return &logHandler{h.q, append(slices.Clip(h.scope), logScope{group: name})}
}

// join makes the trace of a caller that of a context.
var join atomic.Pointer[func(context.Context, map[string]string) context.Context]

// SetJoin sets what puts the headers of a trace into the context of a function;
// nil: nothing.
func SetJoin(f func(context.Context, map[string]string) context.Context) {
	if f == nil {
		join.Store(nil)
		return
	}
	join.Store(&f)
}

// joined is the context that the function of a call is given. One that runs in
// the process of its caller has the caller's values already.
func joined(c *callContext) context.Context {
	f := join.Load()
	if f == nil || len(c.call.meta) == 0 || c.call.s.base != nil {
		return c
	}
	headers := map[string]string{}
	for i := 0; i+1 < len(c.call.meta); i += 2 {
		if name := c.call.meta[i]; !strings.HasPrefix(name, MetaOwn) {
			headers[name] = c.call.meta[i+1]
		}
	}
	if len(headers) == 0 {
		return c
	}
	return (*f)(c, headers)
}
