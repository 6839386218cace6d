package frame

import (
	"encoding/binary"
	"io"
)

const bufferSize = 32 << 10

// A Reader receives messages. One goroutine at a time may use it. An error of
// the connection that passes, such as a deadline, loses nothing: the next call
// of [Reader.Next] goes on where the failed one stopped.
type Reader struct {
	// Limit returns the most bytes a message may have, body and segments
	// together. Nil means 1 MiB for every message. One for which it is zero is
	// refused as soon as its first frame says that it has any.
	Limit func(t Type, id uint64) int64

	r        io.Reader
	buf      []byte
	pos, end int // buf[pos:end] is read and not used

	// The frame that is being read.
	in   bool
	h    header
	left int       // bytes of its body that are missing
	body []byte    // what is there of it; nil for segments and unknown types
	asm  *assembly // of a segment

	open map[uint64]*assembly
}

// assembly is a message whose parts are still on their way.
type assembly struct {
	msg   Message
	sizes []uint64
	part  int // being filled: 0 is the body, 1 the first segment
	fill  []byte
	left  uint64 // bytes that are missing over all
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
			r.asm.fill = r.asm.fill[n:]
			r.asm.left -= uint64(n)
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
		r.asm.advance()
		return r.asm.fill[:min(len(r.asm.fill), r.left)]
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
		delete(r.open, r.h.id)
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
	if len(r.open) >= maxOpen {
		return Message{}, false, malformed("more than %d messages at once", maxOpen)
	}
	r.open[r.h.id] = a
	return Message{}, false, nil
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
	sizes := make([]uint64, 1, count+1)
	sizes[0] = total
	limit := uint64(r.limit(r.h.typ, r.h.id))
	for range count {
		n, err := number()
		if err != nil {
			return nil, err
		}
		if total += n; n > limit || total > limit {
			return nil, ErrTooLarge
		}
		sizes = append(sizes, n)
	}
	if total > limit {
		return nil, ErrTooLarge
	}
	if uint64(len(b)) > sizes[0] {
		return nil, malformed("body is longer than its message")
	}
	a := &assembly{msg: Message{Type: r.h.typ, ID: r.h.id}, sizes: sizes, left: total - uint64(len(b))}
	if count > 0 {
		a.msg.Segments = make([][]byte, count)
	}
	a.msg.Body = b
	if uint64(len(b)) < sizes[0] {
		a.msg.Body = make([]byte, sizes[0])
		a.fill = a.msg.Body[copy(a.msg.Body, b):]
	}
	return a, nil
}

// advance makes fill the place of the next byte. A segment is allocated when
// its first byte is there.
func (a *assembly) advance() {
	for len(a.fill) == 0 {
		a.part++
		s := make([]byte, a.sizes[a.part])
		a.msg.Segments[a.part-1] = s
		a.fill = s
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
