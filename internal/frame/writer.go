package frame

import (
	"encoding/binary"
	"io"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
)

// copyMax is the size up to which copying a body into one buffer with its
// header is cheaper than a gather write.
const copyMax = 16 << 10

// A Writer sends messages. It is safe for concurrent use: messages of many
// parts interleave with those of other goroutines, a piece at a time.
type Writer struct {
	w io.Writer

	mu   sync.Mutex // guards the rest, and one piece on its way to w
	buf  []byte
	bufs net.Buffers
	err  error

	pmu      sync.Mutex
	pending  []byte      // guarded by pmu; frames of WriteSoon
	spare    []byte      // guarded by mu; what pending was before
	flushing bool        // guarded by pmu; somebody is about to write pending
	queued   uint64      // guarded by pmu; batches of pending so far, with this one
	flushed  uint64      // guarded by mu; of those that went out
	soon     atomic.Bool // WriteSoon has been used

	line  sync.Mutex // held by the one that waits for its turn
	turns turns
}

// turns are those of messages that take more than one write.
type turns struct {
	mu    sync.Mutex
	less  sync.Cond // sizes has got shorter
	sizes []int64   // guarded by mu; of the messages that are under way
}

// gatherer is a connection with a gather write of its own. Others get theirs
// from package net, when they have one.
type gatherer interface {
	WriteBuffers(net.Buffers) error
}

// NewWriter returns a Writer to w.
func NewWriter(w io.Writer) *Writer {
	x := &Writer{w: w}
	x.turns.less.L = &x.turns.mu
	return x
}

// begin waits until a message of size bytes may be under way beside the others,
// first come, first served.
func (w *Writer) begin(size int64) {
	w.line.Lock()
	defer w.line.Unlock()
	t := &w.turns
	t.mu.Lock()
	defer t.mu.Unlock()
	for !t.room(size) {
		t.less.Wait()
	}
	t.sizes = append(t.sizes, size)
}

func (w *Writer) done(size int64) {
	t := &w.turns
	t.mu.Lock()
	defer t.mu.Unlock()
	i := slices.Index(t.sizes, size)
	t.sizes = slices.Delete(t.sizes, i, i+1)
	t.less.Signal()
}

// room reports whether there is room for a message beside the others.
func (t *turns) room(size int64) bool {
	sum, largest := size, size
	for _, n := range t.sizes {
		sum += n
		largest = max(largest, n)
	}
	return len(t.sizes) < maxOpen && sum-largest <= maxBeside
}

// Write sends m and does not keep its slices. After an error the message is not
// complete at the other end, nor will it ever be: the writer is broken and
// returns the same error from then on.
func (w *Writer) Write(m *Message) error {
	if len(m.Segments) == 0 && len(m.Body) <= MaxPiece {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.flushLocked()
		h := header{length: uint32(len(m.Body)), typ: m.Type, id: m.ID}
		w.buf = h.append(w.buf[:0])
		return w.sendLocked(m.Body)
	}
	return w.writeParts(m)
}

// maxPending is how many bytes may wait for the next system call.
const maxPending = 128 << 10

// WriteSoon is Write for messages of goroutines that run at the same time: those
// that are ready together go out with one system call. An error may come too
// late for its message, and is then that of later ones.
func (w *Writer) WriteSoon(m *Message) error {
	if len(m.Segments) > 0 || len(m.Body) > copyMax {
		return w.Write(m)
	}
	w.soon.Store(true)
	w.pmu.Lock()
	if len(w.pending) > maxPending { // wait for the one who writes
		w.pmu.Unlock()
		return w.Write(m)
	}
	h := header{length: uint32(len(m.Body)), typ: m.Type, id: m.ID}
	w.pending = append(h.append(w.pending), m.Body...)
	if w.flushing {
		w.pmu.Unlock()
		return nil
	}
	w.flushing = true
	batch := w.queued + 1
	w.pmu.Unlock()
	runtime.Gosched() // others that are ready add theirs
	w.mu.Lock()
	defer w.mu.Unlock()
	w.flushLocked()
	if w.flushed >= batch { // perhaps by another, who has failed after that
		return nil
	}
	return w.err
}

// flushLocked writes what waits for it.
func (w *Writer) flushLocked() {
	if !w.soon.Load() {
		return
	}
	w.pmu.Lock()
	b := w.pending
	w.pending, w.flushing = w.spare[:0], false
	if len(b) > 0 {
		w.queued++
	}
	batch := w.queued
	w.pmu.Unlock()
	w.spare = b
	if len(b) > 0 && w.err == nil {
		if _, w.err = w.w.Write(b); w.err == nil {
			w.flushed = batch
		}
	}
}

// writeParts sends a table with the beginning of the body, then everything else
// in pieces.
func (w *Writer) writeParts(m *Message) error {
	table := binary.AppendUvarint(nil, uint64(len(m.Body)))
	table = binary.AppendUvarint(table, uint64(len(m.Segments)))
	for _, s := range m.Segments {
		table = binary.AppendUvarint(table, uint64(len(s)))
	}
	size := m.Size()
	if len(table) > maxTable || uint64(len(m.Segments)) > segmentsOf(uint64(size)) {
		return ErrTooLarge
	}
	if size > MaxPiece {
		w.begin(size)
		defer w.done(size)
	}
	first := m.Body[:min(len(m.Body), MaxPiece)]
	p := pieces{m: m, rest: m.Body[len(first):], next: 0}

	w.mu.Lock()
	defer w.mu.Unlock()
	w.flushLocked()
	h := header{length: uint32(len(table) + len(first)), typ: m.Type, flags: flagParts, id: m.ID}
	w.buf = append(h.append(w.buf[:0]), table...)
	room := MaxPiece - len(first)
	w.bufs = append(w.bufs[:0], nil) // the first is w.buf, once it is complete
	if len(first) > 0 {
		w.bufs = append(w.bufs, first)
	}
	for {
		// What of the next piece still fits goes out in the same system call.
		if n := p.ahead(room); n > 0 {
			at := len(w.buf)
			w.buf = header{length: uint32(n), typ: Segment, id: m.ID}.append(w.buf)
			if at == 0 {
				w.bufs = append(w.bufs, nil)
			} else {
				w.bufs = append(w.bufs, w.buf[at:])
				w.buf = w.buf[:at]
			}
			w.bufs = p.take(w.bufs, n)
		}
		w.bufs[0] = w.buf
		if err := w.gatherLocked(); err != nil {
			return err
		}
		if p.ahead(1) == 0 {
			return nil
		}
		w.mu.Unlock() // let messages of other calls go between
		w.mu.Lock()
		w.buf, w.bufs, room = w.buf[:0], w.bufs[:0], MaxPiece
	}
}

// sendLocked writes w.buf and then body.
func (w *Writer) sendLocked(body []byte) error {
	if w.err != nil {
		return w.err
	}
	if len(body) <= copyMax {
		w.buf = append(w.buf, body...)
		_, w.err = w.w.Write(w.buf)
		return w.err
	}
	w.bufs = append(w.bufs[:0], w.buf, body)
	return w.gatherLocked()
}

// gatherLocked writes w.bufs.
func (w *Writer) gatherLocked() error {
	if w.err != nil {
		return w.err
	}
	bufs := w.bufs
	if g, ok := w.w.(gatherer); ok {
		w.err = g.WriteBuffers(bufs)
	} else {
		_, w.err = bufs.WriteTo(w.w)
	}
	clear(w.bufs)
	return w.err
}

// pieces walks over what is left of a message.
type pieces struct {
	m    *Message
	rest []byte // of the current part
	next int    // segment after it
}

// ahead is how much is left, but no more than most.
func (p *pieces) ahead(most int) int {
	n := len(p.rest)
	for i := p.next; n < most && i < len(p.m.Segments); i++ {
		n += len(p.m.Segments[i])
	}
	return min(n, most)
}

// take moves n bytes to bufs.
func (p *pieces) take(bufs net.Buffers, n int) net.Buffers {
	for n > 0 {
		if len(p.rest) == 0 {
			p.rest = p.m.Segments[p.next]
			p.next++
			continue
		}
		k := min(n, len(p.rest))
		bufs = append(bufs, p.rest[:k])
		p.rest = p.rest[k:]
		n -= k
	}
	return bufs
}
