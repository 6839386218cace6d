// Package frame cuts the connection between a caller and a worker into typed
// messages: [Writer] and [Reader] are its two ends. It knows nothing about what
// the messages mean.
//
// A frame is a header of 16 bytes, little endian, and a body: length of the
// body (4), type (1), flags (1), reserved (2), call id (8). A message that is
// small is one frame. One that is not starts with a frame that has [flagParts]:
// a table of sizes and the beginning of the message's body; the rest of the body
// and the message's segments follow in frames of type Segment, at most 1 MiB
// each, so that messages of other calls can go between them. Few messages are
// under way in parts at once, and only one of them may be large.
package frame

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Type says what a message is.
type Type uint8

// The types of messages. A reader skips types it does not know.
const (
	Hello    Type = 1  // worker: who it is
	Call     Type = 2  // caller: run a function
	Result   Type = 3  // worker: a call has ended
	Item     Type = 4  // either: the next of a stream, or its end
	Credit   Type = 5  // either: how much more of a stream may come, or that no more is wanted
	Segment  Type = 6  // bytes of an earlier message; never seen by users of Reader
	Upcall   Type = 7  // worker: run something at the caller
	Upresult Type = 8  // caller: an upcall has ended
	Cancel   Type = 9  // caller: the context of a call has ended; worker: that of an upcall
	Log      Type = 10 // worker: a log record
	Bye      Type = 12 // caller: finish
)

func (t Type) known() bool {
	switch t {
	case Hello, Call, Result, Item, Credit, Segment, Upcall, Upresult, Cancel, Log, Bye:
		return true
	}
	return false
}

const (
	headerSize = 16

	// MaxPiece is the most a frame carries of a message's parts, in bytes: a
	// frame of another call waits for no more than this.
	MaxPiece = 1 << 20

	// maxBody bounds the body of a frame, so that a corrupt length cannot make
	// the reader allocate gigabytes: a piece and a table of sizes.
	maxBody = MaxPiece + maxTable

	maxTable = 1 << 20 // bytes of a table of sizes

	// Of messages whose parts are still on their way a writer has no more than
	// maxOpen, and all but the largest have together no more than maxBeside bytes.
	// So what a reader holds of them is bounded by the size of one.
	maxOpen   = 16
	maxBeside = 8 << 20

	flagParts = 1
)

// segmentsOf is how many segments a message of size bytes may have: what a
// reader keeps of each is more than a segment without bytes costs the writer.
func segmentsOf(size uint64) uint64 { return max(16<<10, size>>10) }

// Message is what the two ends exchange.
type Message struct {
	Type Type
	ID   uint64 // of the call; zero for messages of none
	Body []byte

	// Segments are runs of bytes that go around the encoding of Body. The
	// reader gives each a slice of its own, which the receiver may keep.
	Segments [][]byte
}

// Size is the number of bytes of the body and all segments.
func (m *Message) Size() int64 {
	n := int64(len(m.Body))
	for _, s := range m.Segments {
		n += int64(len(s))
	}
	return n
}

// ErrMalformed is returned, wrapped, for bytes that are not frames. The
// connection is of no use after it.
var ErrMalformed = errors.New("malformed frame")

// ErrTooLarge is returned, wrapped, for a message above the reader's limit.
var ErrTooLarge = errors.New("message over the limit")

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrMalformed, fmt.Sprintf(format, args...))
}

type header struct {
	length uint32
	typ    Type
	flags  uint8
	id     uint64
}

func (h header) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, h.length)
	b = append(b, byte(h.typ), h.flags, 0, 0)
	return binary.LittleEndian.AppendUint64(b, h.id)
}

func parseHeader(b []byte) (header, error) {
	h := header{
		length: binary.LittleEndian.Uint32(b),
		typ:    Type(b[4]),
		flags:  b[5],
		id:     binary.LittleEndian.Uint64(b[8:]),
	}
	if h.length > maxBody {
		return h, malformed("length %d is above %d", h.length, maxBody)
	}
	if h.flags&^flagParts != 0 || h.flags != 0 && h.typ == Segment {
		return h, malformed("unknown flags %#x", h.flags)
	}
	return h, nil
}
