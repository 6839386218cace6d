package worker

import (
	"bytes"
	"errors"
)

// A RecordKind says what is in a record of a relay: 1 byte kind, 3 bytes length
// with the highest first, and so many bytes.
type RecordKind byte

// The kinds of records.
const (
	RecordFrames RecordKind = 1 // of the worker's connection
	RecordStdout RecordKind = 2 // that it has printed
	RecordStderr RecordKind = 3
)

const (
	recordHeader = 4
	maxRecord    = 256 << 10 // bytes; no relay sends more

	// maxBefore bounds what is kept of what comes before the mark.
	maxBefore = 8 << 10
)

// ErrRecord says that what comes is no record.
var ErrRecord = errors.New("malformed record of a worker without a channel")

// Records takes the standard output of a relay apart, however it is cut. It is
// not safe for concurrent use.
type Records struct {
	before Before
	kind   RecordKind
	left   int    // bytes of the record that are still to come
	head   []byte // the header, as far as it has come
}

// NewRecords expects records behind the line that is mark.
func NewRecords(mark string) *Records { return &Records{before: *NewBefore(mark)} }

// Started reports whether the mark has been seen.
func (r *Records) Started() bool { return r.before.Over() }

// Before is the end of what came in front of the mark.
func (r *Records) Before() []byte { return r.before.Text() }

// Feed hands on what is in b. It returns ErrRecord when b is no part of records,
// or what to returns. to must not keep the bytes.
func (r *Records) Feed(b []byte, to func(RecordKind, []byte) error) error {
	b = r.before.Cut(b)
	for len(b) > 0 {
		if r.left == 0 {
			n := min(recordHeader-len(r.head), len(b))
			r.head = append(r.head, b[:n]...)
			b = b[n:]
			if len(r.head) < recordHeader {
				return nil
			}
			h := r.head
			r.kind, r.left = RecordKind(h[0]), int(h[1])<<16|int(h[2])<<8|int(h[3])
			r.head = r.head[:0]
			if r.kind < RecordFrames || r.kind > RecordStderr || r.left == 0 || r.left > maxRecord {
				return ErrRecord
			}
			continue
		}
		n := min(r.left, len(b))
		r.left -= n
		if err := to(r.kind, b[:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// Before tells what comes in front of a mark from what comes behind it. It is
// not safe for concurrent use.
type Before struct {
	mark []byte
	text []byte // the end of what came before; while the mark is missing it holds each beginning of it
	over bool
}

// NewBefore waits for the line that is mark.
func NewBefore(mark string) *Before { return &Before{mark: []byte(mark + "\n")} }

// Over reports whether the mark has been seen.
func (x *Before) Over() bool { return x.over }

// Text is the end of what came before, 8 KiB of it.
func (x *Before) Text() []byte { return x.text }

// Cut returns what of b is behind the mark.
func (x *Before) Cut(b []byte) []byte {
	if x.over {
		return b
	}
	x.text = append(x.text, b...)
	// The mark ends in what is new.
	from := max(0, len(x.text)-len(b)-len(x.mark)+1)
	if i := bytes.Index(x.text[from:], x.mark); i >= 0 {
		x.over = true
		behind := len(x.text) - (from + i + len(x.mark))
		x.text = tail(x.text[:from+i])
		return b[len(b)-behind:]
	}
	if len(x.text) > 2*maxBefore {
		x.text = tail(x.text)
	}
	return nil
}

func tail(b []byte) []byte {
	return append([]byte(nil), b[max(0, len(b)-maxBefore):]...)
}
