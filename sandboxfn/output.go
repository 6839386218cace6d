package sandboxfn

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"sync"
	"time"
)

const (
	maxBuffered = 1 << 20         // bytes of output that wait for a slow writer
	maxWrite    = 256 << 10       // bytes handed to a writer at once
	slowWriter  = 2 * time.Second // a writer that needs longer for one write: what comes is dropped
	maxLine     = 64 << 10        // bytes of a line that is not written before it ends
	maxTail     = 8 << 10         // bytes of standard error that a lost worker leaves
)

// sink takes what a worker writes to one of its standard streams and hands it
// on, whole lines at a time, in order, from a goroutine of its own. The worker
// never waits for a writer that makes no progress: lines are dropped then, and
// counted.
type sink struct {
	name string
	done chan struct{} // closed when the goroutine has ended

	mu      sync.Mutex
	cond    sync.Cond // of mu; anything below has changed
	to      *target   // guarded by mu; nil before the first call
	buf     []byte    // guarded by mu; not written yet
	busy    bool      // guarded by mu; a write is in progress
	flushed bool      // guarded by mu; the last line may go without its end
	dropped int       // guarded by mu; lines
	midline bool      // guarded by mu; the end of a dropped line is still to come
	moved   time.Time // guarded by mu; when the writer last took something
	tail    []byte    // guarded by mu; of everything, at most maxTail
	closed  bool      // guarded by mu
}

func newSink(name string) *sink {
	s := &sink{name: name, done: make(chan struct{}), moved: time.Now()}
	s.cond.L = &s.mu
	go s.run()
	return s
}

// direct makes later output go to t. What is there already goes where it
// belonged, unless there was nowhere yet.
func (s *sink) direct(t *target) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.to != t {
		s.to = t
		s.cond.Broadcast()
	}
}

// take is the callback of the worker's stream. It waits while the writer makes
// progress, but not for one that does not.
func (s *sink) take(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keepTail(b)
	if len(s.buf) == 0 && !s.busy {
		s.moved = time.Now()
	}
	for len(b) > 0 && !s.closed {
		room := maxBuffered - len(s.buf)
		if room > 0 && !s.midline {
			n := min(room, len(b))
			s.buf = append(s.buf, b[:n]...)
			b = b[n:]
			s.flushed = false
			s.cond.Broadcast()
			continue
		}
		if room <= 0 && s.waitLocked(slowWriter-time.Since(s.moved)) {
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

// run writes until the sink is closed and nothing is left.
func (s *sink) run() {
	defer close(s.done)
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []byte
	for {
		n := s.ready()
		if n == 0 {
			if s.closed {
				return
			}
			s.cond.Wait()
			continue
		}
		t := s.to
		out = append(out[:0], s.buf[:n]...)
		s.buf = append(s.buf[:0], s.buf[n:]...)
		if s.dropped > 0 {
			if len(s.buf) == 0 && out[len(out)-1] != '\n' {
				out = append(out, '\n')
			}
			out = fmt.Appendf(out, "[sandboxfn: %d lines of %s dropped: the reader is too slow]\n", s.dropped, s.name)
			s.dropped = 0
		}
		s.busy = true
		s.cond.Broadcast()
		s.mu.Unlock()
		t.write(out)
		s.mu.Lock()
		s.busy = false
		s.moved = time.Now()
		s.cond.Broadcast()
	}
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
// end. It gives up on a writer that makes no progress.
func (s *sink) flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.flushed = true; len(s.buf) == 0 && !s.busy {
		return
	}
	s.cond.Broadcast()
	begin := time.Now()
	for (len(s.buf) > 0 || s.busy) && s.to != nil {
		s.flushed = true
		last := s.moved
		if last.Before(begin) {
			last = begin
		}
		if !s.waitLocked(slowWriter - time.Since(last)) {
			return
		}
	}
}

// waitLocked waits until something changes, but no longer than d. It reports
// false when d is over.
func (s *sink) waitLocked(d time.Duration) bool {
	if d <= 0 {
		return false
	}
	wake := time.AfterFunc(d, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
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
	return len(s.buf) == 0 && !s.busy
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
	s.closed = true
	s.cond.Broadcast()
	s.mu.Unlock()
	t := time.NewTimer(slowWriter)
	defer t.Stop()
	select {
	case <-s.done:
	case <-t.C:
	}
}

// A target is a place for output. Several workers may have it; one of them
// writes at a time.
type target struct {
	mu   sync.Mutex
	w    io.Writer
	uses int // guarded by the targets that hold it
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
		return &target{w: w, uses: 1}
	}
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t := ts.m[w]
	if t == nil {
		if ts.m == nil {
			ts.m = map[io.Writer]*target{}
		}
		t = &target{w: w}
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
type lineLogger struct{ function, stream string }

func (l lineLogger) Write(b []byte) (int, error) {
	for line := range bytes.Lines(b) {
		slog.Default().Info(string(bytes.TrimRight(line, "\r\n")), "function", l.function, "stream", l.stream)
	}
	return len(b), nil
}
