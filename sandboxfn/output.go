package sandboxfn

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"strings"
	"sync"
	"time"
)

const (
	maxBuffered = 1 << 20         // bytes of output that wait for a slow writer
	maxWrite    = 256 << 10       // bytes handed to a writer at once
	slowWriter  = 5 * time.Second // a writer that needs longer for one write: what comes is dropped
	slowTick    = slowWriter / 100
	slowTicks   = int(slowWriter / slowTick)
	moment      = 2        // ticks: what a writer that was slow gets at each flush
	maxLine     = 64 << 10 // bytes of a line that is not written before it ends
	maxTail     = 8 << 10  // bytes of standard error that a lost worker leaves

	recordOverhead = 256 // bytes that a record counts beside what was sent of it
)

// sink takes what a worker writes to one of its standard streams and hands it
// on, whole lines at a time, in order, from a goroutine of its own. The worker
// never waits for a writer that makes no progress: lines are dropped then, and
// counted. Only what can block is ever found slow, and only while it has the
// output: a busy machine alone drops nothing.
type sink struct {
	name string

	mu      sync.Mutex
	cond    sync.Cond // of mu; anything below has changed
	to      *target   // guarded by mu; nil before the first call
	buf     []byte    // guarded by mu; not written yet
	earlier []rest    // guarded by mu; what goes elsewhere before buf is written
	queued  uint64    // guarded by mu; bytes that have ever been in buf
	written uint64    // guarded by mu; of those
	flushed bool      // guarded by mu; the last line may go without its end
	dropped int       // guarded by mu; lines
	midline bool      // guarded by mu; the end of a dropped line is still to come
	held    bool      // guarded by mu; a writer or a handler that may block has what comes next
	ticks   int       // guarded by mu; how often it has been seen with the same
	ticked  time.Time // guarded by mu; when it was last
	tail    []byte    // guarded by mu; of everything, at most maxTail
	closed  bool      // guarded by mu
	over    bool      // guarded by mu; the goroutine has ended

	records []queuedRecord // guarded by mu; not handed on yet
	waiting int            // guarded by mu; bytes that they count
	missed  int            // guarded by mu; records that found no room
}

// queuedRecord is a log record that waits for its handler.
type queuedRecord struct {
	size int
	emit func()
	note func(missed int) // how many after it found no room
}

func newSink(name string) *sink {
	s := &sink{name: name}
	s.cond.L = &s.mu
	go s.run()
	return s
}

// rest is output that was there when the target changed.
type rest struct {
	to   *target // held for it
	text []byte
}

// direct makes later output go to t. What is there already goes where it
// belonged, also a line without an end, unless there was nowhere yet.
func (s *sink) direct(t *target) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.to == t {
		return
	}
	if s.to != nil && len(s.buf) > 0 {
		n := len(s.buf)
		text := bytes.Clone(s.buf)
		s.buf = s.buf[:0]
		text = s.noteDropped(text)
		s.queued += uint64(len(text) - n)
		s.to.hold()
		s.earlier = append(s.earlier, rest{s.to, text})
	}
	s.midline = false // its beginning went elsewhere
	s.to = t
	s.cond.Broadcast()
}

// waitingLocked is how many bytes are not with a writer yet.
func (s *sink) waitingLocked() int {
	n := len(s.buf)
	for _, r := range s.earlier {
		n += len(r.text)
	}
	return n
}

// take is the callback of the worker's stream. It waits while the writer makes
// progress, but not for one that does not.
func (s *sink) take(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keepTail(b)
	for len(b) > 0 && !s.closed {
		room := maxBuffered - s.waitingLocked()
		if room > 0 && !s.midline {
			n := min(room, len(b))
			s.buf = append(s.buf, b[:n]...)
			b = b[n:]
			s.queued += uint64(n)
			s.flushed = false
			s.cond.Broadcast()
			continue
		}
		if room <= 0 && s.waitLocked() {
			continue
		}
		b = s.drop(b)
	}
}

// drop drops what is left of a line of b, and returns the rest.
func (s *sink) drop(b []byte) []byte {
	if !s.midline {
		s.dropped++
		if n := len(s.buf); n > 0 && s.buf[n-1] != '\n' {
			s.buf = append(s.buf, '\n') // what comes next is another line
			s.queued++
		}
	}
	n := bytes.IndexByte(b, '\n') + 1
	if s.midline = n == 0; s.midline {
		return nil
	}
	return b[n:]
}

func (s *sink) keepTail(b []byte) {
	if len(b) >= maxTail {
		s.tail = append(s.tail[:0], b[len(b)-maxTail:]...)
		return
	}
	if over := len(s.tail) + len(b) - maxTail; over > 0 {
		s.tail = append(s.tail[:0], s.tail[over:]...)
	}
	s.tail = append(s.tail, b...)
}

// record queues a log record of size bytes. emit is called from the goroutine of
// the sink, in order. It never waits: what finds no room is counted, and note is
// told when there is room again.
func (s *sink) record(size int, emit func(), note func(missed int)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	size += recordOverhead
	if s.closed || s.waiting+size > maxBuffered {
		s.missed++
		return
	}
	s.records = append(s.records, queuedRecord{size, emit, note})
	s.waiting += size
	s.queued += uint64(size)
	s.cond.Broadcast()
}

// missRecords counts n records that were dropped elsewhere.
func (s *sink) missRecords(n int, note func(missed int)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.missed += n
	if !s.closed && len(s.records) == 0 {
		s.records = append(s.records, queuedRecord{emit: func() {}, note: note})
		s.cond.Broadcast()
	}
}

// emitLocked hands on the first record, if there is one.
func (s *sink) emitLocked() bool {
	if len(s.records) == 0 {
		return false
	}
	r := s.records[0]
	if s.records = s.records[1:]; len(s.records) == 0 {
		s.records = nil // what was handed on is no longer needed
	}
	s.heldLocked(true)
	s.mu.Unlock()
	r.emit()
	s.mu.Lock()
	for len(s.records) == 0 && s.missed > 0 {
		missed := s.missed
		s.missed = 0
		s.mu.Unlock()
		r.note(missed)
		s.mu.Lock()
	}
	s.heldLocked(false)
	s.waiting -= r.size
	s.written += uint64(r.size)
	s.cond.Broadcast()
	return true
}

// run writes until the sink is closed and nothing is left.
func (s *sink) run() {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() {
		s.over = true
		s.cond.Broadcast()
	}()
	var out []byte
	for {
		if s.emitLocked() {
			continue
		}
		var t *target
		var n int
		if t, out, n = s.nextLocked(out[:0]); t == nil {
			if s.closed {
				return
			}
			s.cond.Wait()
			continue
		}
		s.cond.Broadcast()
		s.heldLocked(t.mayBlock())
		s.mu.Unlock()
		t.write(out)
		t.letGo()
		s.mu.Lock()
		s.heldLocked(false)
		s.written += uint64(n)
		s.cond.Broadcast()
	}
}

// nextLocked appends what is written next to out. It returns for whom it is,
// held, and how many bytes of what was queued it is; no target means that there
// is nothing.
func (s *sink) nextLocked(out []byte) (*target, []byte, int) {
	if len(s.earlier) > 0 {
		r := &s.earlier[0]
		t, n := r.to, min(len(r.text), maxWrite)
		out = append(out, r.text[:n]...)
		if r.text = r.text[n:]; len(r.text) > 0 {
			t.hold()
		} else {
			s.earlier = append(s.earlier[:0], s.earlier[1:]...)
		}
		return t, out, n
	}
	n := s.ready()
	if n == 0 {
		return nil, out, 0
	}
	out = append(out, s.buf[:n]...)
	s.buf = append(s.buf[:0], s.buf[n:]...)
	s.to.hold()
	return s.to, s.noteDropped(out), n
}

// noteDropped says after out how many lines are missing there.
func (s *sink) noteDropped(out []byte) []byte {
	if s.dropped == 0 {
		return out
	}
	if len(s.buf) == 0 && out[len(out)-1] != '\n' {
		out = append(out, '\n')
	}
	out = fmt.Appendf(out, "[sandboxfn: %d lines of %s dropped: the reader is too slow]\n", s.dropped, s.name)
	s.dropped = 0
	return out
}

// ready is how much may be written now: whole lines, unless there is a reason
// to cut one.
func (s *sink) ready() int {
	if s.to == nil {
		return 0
	}
	b := s.buf[:min(len(s.buf), maxWrite)]
	n := bytes.LastIndexByte(b, '\n') + 1
	if n == 0 && len(b) >= maxLine || len(b) == len(s.buf) && (s.flushed || s.closed) {
		return len(b)
	}
	return n
}

// flush waits until everything taken so far is written, also a line without an
// end, but not for what comes meanwhile. It gives up on a writer that makes no
// progress, and when ctx ends.
func (s *sink) flush(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	goal := s.queued
	if s.flushed = true; s.written >= goal {
		return
	}
	s.ticks = min(s.ticks, slowTicks-moment)
	s.cond.Broadcast()
	stop := context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.cond.Broadcast()
	})
	defer stop()
	for s.written < goal && (s.to != nil || s.waiting > 0) && ctx.Err() == nil {
		s.flushed = true
		if !s.waitLocked() {
			return
		}
	}
}

// heldLocked notes that a writer or a handler is given something, or is done.
func (s *sink) heldLocked(held bool) { s.held, s.ticks, s.ticked = held, 0, time.Now() }

// waitLocked waits until something changes, but no longer than a tick. It
// reports false when what has the output has not moved for slowWriter. Ticks are
// counted, so that a machine that stands still for a while does not make every
// writer a slow one.
func (s *sink) waitLocked() bool {
	if s.ticks >= slowTicks {
		return false
	}
	wake := time.AfterFunc(slowTick, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		// Several may wait. Where there is no writer, none will come to take it.
		if now := time.Now(); (s.held || s.to == nil) && now.Sub(s.ticked) >= slowTick {
			s.ticks, s.ticked = s.ticks+1, now
		}
		s.cond.Broadcast()
	})
	s.cond.Wait()
	wake.Stop()
	return true
}

// idle reports whether everything taken so far is written.
func (s *sink) idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.written == s.queued
}

// last is the end of everything taken so far.
func (s *sink) last() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.tail)
}

// close writes what is left, and ends the goroutine. It does not wait for a
// writer that is stuck: the goroutine then ends when that returns.
func (s *sink) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.cond.Broadcast()
	for !s.over && s.waitLocked() {
	}
}

// A target is a place for output. Several workers may have it; one of them
// writes at a time.
type target struct {
	mu   sync.Mutex
	w    io.Writer
	set  *targets // nil: it is in none
	uses int      // guarded by set.mu
}

// hold keeps t in its set, so that nobody writes to the same writer beside it,
// until letGo.
func (t *target) hold() {
	if t.set != nil {
		t.set.mu.Lock()
		defer t.set.mu.Unlock()
		t.uses++
	}
}

func (t *target) letGo() {
	if t.set != nil {
		t.set.put(t)
	}
}

// mayBlock reports whether a write to t can take as long as somebody likes. One
// to memory takes as long as the machine needs.
func (t *target) mayBlock() bool {
	switch t.w.(type) {
	case *bytes.Buffer, *strings.Builder:
		return false
	}
	return t.w != io.Discard
}

func (t *target) write(b []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.w.Write(b) // the function does not wait for its output, and nobody could be told
}

// targets keeps one target for each writer in use.
type targets struct {
	mu sync.Mutex
	m  map[io.Writer]*target // guarded by mu
}

// get returns the target of w. It is given back with put.
func (ts *targets) get(w io.Writer) *target {
	if !reflect.ValueOf(w).Comparable() {
		return &target{w: w, set: ts, uses: 1}
	}
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t := ts.m[w]
	if t == nil {
		if ts.m == nil {
			ts.m = map[io.Writer]*target{}
		}
		t = &target{w: w, set: ts}
		ts.m[w] = t
	}
	t.uses++
	return t
}

func (ts *targets) put(t *target) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if t.uses--; t.uses == 0 && reflect.ValueOf(t.w).Comparable() {
		delete(ts.m, t.w)
	}
}

// lineLogger writes each line as a record.
type lineLogger struct {
	log              *slog.Logger // nil: slog.Default
	function, stream string
}

func (l lineLogger) Write(b []byte) (int, error) {
	log := l.log
	if log == nil {
		log = slog.Default()
	}
	for line := range bytes.Lines(b) {
		log.Info(string(bytes.TrimRight(line, "\r\n")), keyFunction, l.function, keyStream, l.stream)
	}
	return len(b), nil
}
