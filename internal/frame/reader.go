package frame

import (
	"encoding/binary"
	"io"
	"sync"
)

const bufferSize = 32 << 10

// growth is how many times of what has come of a large part is allocated.
const growth = 4

// A Reader receives messages. One goroutine at a time may use it, but for
// [Reader.Sweep]. An error of the connection that passes, such as a deadline,
// loses nothing: the next call of [Reader.Next] goes on where the failed one
// stopped.
//
// What a Reader holds of messages that are not complete grows with the bytes that
// come, not with those that are announced, and is bounded for all of them
// together by the largest limit and a few MiB.
type Reader struct {
	// Limit returns the most bytes a message may have, body and segments
	// together. Nil means 1 MiB for every message. One for which it is zero is
	// refused as soon as its first frame says that it has any.
	Limit func(t Type, id uint64) int64

	// Live reports whether anybody waits for a message that comes in parts, of
	// which m has the type, the id and the beginning of the body. One that is not
	// live is skipped: Next does not return it. Nil means that all are live. It
	// must not call the Reader.
	Live func(m *Message) bool

	// AtOnce is how many bytes of a part are allocated as soon as they are
	// announced; beyond it memory grows with what comes. Zero means a piece: who
	// sends may lie. It costs nothing where who sends is believed, and spares a
	// copy of what has come of a part.
	AtOnce uint64

	r        io.Reader
	buf      []byte
	pos, end int // buf[pos:end] is read and not used

	// The frame that is being read.
	in   bool
	h    header
	left int       // bytes of its body that are missing
	body []byte    // what is there of it; nil for segments and unknown types
	asm  *assembly // of a segment

	mu   sync.Mutex           // not held while something is read
	open map[uint64]*assembly // written with mu held, by the goroutine that reads
}

// assembly is a message whose parts are still on their way.
type assembly struct {
	size uint64 // over all, as announced
	left uint64 // bytes that are missing of it; of the goroutine that reads

	// Guarded by the mu of the reader.
	msg   Message
	sizes []uint64
	part  int    // being filled: 0 is the body, 1 the first segment
	buf   []byte // what is there of it
	dead  bool   // nobody waits for it: its bytes are skipped
}

// NewReader returns a Reader from r.
func NewReader(r io.Reader) *Reader {
	return &Reader{r: r, buf: make([]byte, bufferSize), open: map[uint64]*assembly{}}
}

// Next returns the next message, whose slices belong to the caller. [io.EOF] is
// an end between two messages, [io.ErrUnexpectedEOF] one within.
func (r *Reader) Next() (Message, error) {
	for {
		if !r.in {
			if err := r.begin(); err != nil {
				return Message{}, err
			}
		}
		if err := r.readBody(); err != nil {
			return Message{}, err
		}
		r.in = false
		m, ok, err := r.finish()
		if ok || err != nil {
			return m, err
		}
	}
}

// Buffered reports whether the beginning of another frame has been read already.
func (r *Reader) Buffered() bool { return r.end-r.pos >= headerSize }

// begin reads a header.
func (r *Reader) begin() error {
	for r.end-r.pos < headerSize {
		if err := r.more(); err != nil {
			if err == io.EOF && (r.end > r.pos || len(r.open) > 0) {
				return io.ErrUnexpectedEOF
			}
			return err
		}
	}
	h, err := parseHeader(r.buf[r.pos:])
	if err != nil {
		return err
	}
	r.pos += headerSize
	r.h, r.left, r.body, r.asm = h, int(h.length), nil, nil
	switch {
	case h.typ == Segment:
		if r.asm = r.open[h.id]; r.asm == nil {
			return malformed("segment of no message")
		}
		if uint64(h.length) > r.asm.left {
			return malformed("segment is longer than its message")
		}
	case h.typ.known():
		limit := r.limit(h.typ, h.id)
		if h.flags == 0 && int64(h.length) > limit || h.flags != 0 && limit == 0 {
			return ErrTooLarge
		}
		r.body = make([]byte, 0, h.length)
	}
	r.in = true
	return nil
}

// readBody reads what is missing of the frame's body.
func (r *Reader) readBody() error {
	for r.left > 0 {
		n, err := r.readInto(r.target())
		r.left -= n
		switch {
		case r.asm != nil:
			r.mu.Lock()
			r.asm.took(n)
			r.mu.Unlock()
		case r.body != nil:
			r.body = r.body[:len(r.body)+n]
		}
		if err == io.EOF {
			return io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// target is where the next bytes of the body go; nil when they are skipped.
func (r *Reader) target() []byte {
	switch {
	case r.asm != nil:
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.asm.room(r.left, max(r.AtOnce, MaxPiece))
	case r.body != nil:
		return r.body[len(r.body) : len(r.body)+r.left]
	}
	return nil
}

// readInto reads into dst at least one byte, or, when dst is nil, skips up to
// r.left bytes.
func (r *Reader) readInto(dst []byte) (int, error) {
	if r.pos == r.end {
		if len(dst) >= bufferSize {
			return r.r.Read(dst) // straight to where it belongs
		}
		if err := r.more(); err != nil {
			return 0, err
		}
	}
	if dst == nil {
		n := min(r.left, r.end-r.pos)
		r.pos += n
		return n, nil
	}
	n := copy(dst, r.buf[r.pos:r.end])
	r.pos += n
	return n, nil
}

// more reads into the buffer.
func (r *Reader) more() error {
	if r.pos == r.end {
		r.pos, r.end = 0, 0
	} else if r.end == len(r.buf) {
		r.end = copy(r.buf, r.buf[r.pos:r.end])
		r.pos = 0
	}
	for range 100 {
		n, err := r.r.Read(r.buf[r.end:])
		r.end += n
		if n > 0 {
			return nil // an error will come again
		}
		if err != nil {
			return err
		}
	}
	return io.ErrNoProgress
}

// finish looks at a frame that is complete, and returns a message when one is.
func (r *Reader) finish() (Message, bool, error) {
	switch {
	case r.asm != nil:
		if r.asm.left > 0 {
			return Message{}, false, nil
		}
		r.mu.Lock()
		delete(r.open, r.h.id)
		r.mu.Unlock()
		if r.asm.dead {
			return Message{}, false, nil
		}
		return r.asm.complete(), true, nil
	case r.body == nil:
		return Message{}, false, nil // a type from the future
	case r.h.flags&flagParts == 0:
		return Message{Type: r.h.typ, ID: r.h.id, Body: r.body}, true, nil
	}
	a, err := r.newAssembly()
	if err != nil {
		return Message{}, false, err
	}
	if a.left == 0 {
		return a.complete(), true, nil
	}
	if r.open[r.h.id] != nil {
		return Message{}, false, malformed("two messages of call %d at once", r.h.id)
	}
	if err := r.admit(a.size); err != nil {
		return Message{}, false, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open[r.h.id] = a
	r.check(a)
	return Message{}, false, nil
}

// admit refuses a message of size bytes that a [Writer] would not have begun
// beside those that are open. One that goes out in one piece does not count
// there.
func (r *Reader) admit(size uint64) error {
	sum, largest := uint64(0), uint64(0)
	for _, a := range r.open {
		sum += a.size
		largest = max(largest, a.size)
	}
	if len(r.open) > maxOpen {
		return malformed("more than %d messages at once", maxOpen)
	}
	if sum-largest+min(largest, size) > maxBeside+MaxPiece {
		return ErrTooLarge
	}
	return nil
}

// check drops what has come of a, unless somebody waits for it.
func (r *Reader) check(a *assembly) {
	if a.dead || r.Live == nil {
		return
	}
	m := Message{Type: a.msg.Type, ID: a.msg.ID, Body: a.msg.Body}
	if a.part == 0 {
		m.Body = a.buf
	}
	if !r.Live(&m) {
		a.dead = true
		a.msg, a.sizes, a.buf = Message{}, nil, nil
	}
}

// Sweep drops what has come of messages that nobody waits for any more. Any
// goroutine may call it, also while another is in [Reader.Next].
func (r *Reader) Sweep() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range r.open {
		r.check(a)
	}
}

// newAssembly reads the table of a message that comes in parts.
func (r *Reader) newAssembly() (*assembly, error) {
	b := r.body
	number := func() (uint64, error) {
		v, n := binary.Uvarint(b)
		if n <= 0 || v > 1<<62 {
			return 0, malformed("table of sizes")
		}
		b = b[n:]
		return v, nil
	}
	total, err := number()
	if err != nil {
		return nil, err
	}
	count, err := number()
	if err != nil {
		return nil, err
	}
	if count > uint64(len(b)) {
		return nil, malformed("table of sizes")
	}
	body, limit, table := total, uint64(r.limit(r.h.typ, r.h.id)), b
	for range count {
		n, err := number()
		if err != nil {
			return nil, err
		}
		if total += n; n > limit || total > limit {
			return nil, ErrTooLarge
		}
	}
	if total > limit {
		return nil, ErrTooLarge
	}
	if count > segmentsOf(total) {
		return nil, malformed("%d segments of %d bytes", count, total)
	}
	if uint64(len(b)) > body {
		return nil, malformed("body is longer than its message")
	}
	// Only now anything is kept.
	a := &assembly{
		msg: Message{Type: r.h.typ, ID: r.h.id}, size: total, left: total - uint64(len(b)),
		sizes: make([]uint64, 1, count+1), buf: b[:len(b):len(b)],
	}
	a.sizes[0] = body
	for range count {
		n, k := binary.Uvarint(table)
		table = table[k:]
		a.sizes = append(a.sizes, n)
	}
	if count > 0 {
		a.msg.Segments = make([][]byte, count)
	}
	a.took(0)
	return a, nil
}

// room is where the next bytes go, most of them at most; nil when they are
// skipped. What is announced is allocated at once only up to so many bytes.
func (a *assembly) room(most int, atOnce uint64) []byte {
	if a.dead {
		return nil
	}
	for uint64(len(a.buf)) == a.sizes[a.part] {
		a.part++
		a.buf = nil
	}
	have := len(a.buf)
	if have == cap(a.buf) {
		// By steps that end at the size, so that little is copied.
		n := a.sizes[a.part]
		for n > max(atOnce, growth*uint64(have)) {
			n = (n + growth - 1) / growth
		}
		b := make([]byte, have, n)
		copy(b, a.buf)
		a.buf = b
	}
	return a.buf[have:min(cap(a.buf), have+most)]
}

// took says that n bytes have been read.
func (a *assembly) took(n int) {
	a.left -= uint64(n)
	if a.dead {
		return
	}
	a.buf = a.buf[:len(a.buf)+n]
	switch {
	case uint64(len(a.buf)) < a.sizes[a.part]:
	case a.part == 0:
		a.msg.Body = a.buf
	default:
		a.msg.Segments[a.part-1] = a.buf
	}
}

// complete returns the message; segments without bytes are empty, not nil.
func (a *assembly) complete() Message {
	for i, s := range a.msg.Segments {
		if s == nil {
			a.msg.Segments[i] = []byte{}
		}
	}
	return a.msg
}

func (r *Reader) limit(t Type, id uint64) int64 {
	if r.Limit == nil {
		return MaxPiece
	}
	return max(r.Limit(t, id), 0)
}
