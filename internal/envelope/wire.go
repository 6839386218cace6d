package envelope

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Major types and simple values of RFC 8949, section 3.
const (
	majorUint  = 0
	majorInt   = 1
	majorBytes = 2
	majorText  = 3
	majorArray = 4
	majorMap   = 5
	majorTag   = 6

	wireFalse   = 0xf4
	wireTrue    = 0xf5
	wireNull    = 0xf6
	wireFloat32 = 0xfa
	wireFloat64 = 0xfb

	tagSegment = 0x5347 // index of a segment
	tagCBOR    = 24     // a byte string that holds CBOR
)

// SegmentMin is the length, in bytes, from which byte slices and strings go
// around the body.
const SegmentMin = 32 << 10

// maxDepth bounds how deep values may be nested, so that one that contains
// itself is refused.
const maxDepth = 1000

func appendHead(b []byte, major byte, n uint64) []byte {
	m := major << 5
	switch {
	case n < 24:
		return append(b, m|byte(n))
	case n <= math.MaxUint8:
		return append(b, m|24, byte(n))
	case n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(b, m|25), uint16(n))
	case n <= math.MaxUint32:
		return binary.BigEndian.AppendUint32(append(b, m|26), uint32(n))
	}
	return binary.BigEndian.AppendUint64(append(b, m|27), n)
}

// longHead appends a head that has room for every number, so that it can be
// filled in later.
func longHead(b []byte, major byte, n uint64) []byte {
	return binary.BigEndian.AppendUint64(append(b, major<<5|27), n)
}

func appendInt(b []byte, i int64) []byte {
	if i < 0 {
		return appendHead(b, majorInt, uint64(^i))
	}
	return appendHead(b, majorUint, uint64(i))
}

func appendText(b []byte, s string) []byte {
	return append(appendHead(b, majorText, uint64(len(s))), s...)
}

// reader walks over a body.
type reader struct {
	b   []byte
	pos int
}

func (r *reader) left() int { return len(r.b) - r.pos }

func (r *reader) peek() (byte, error) {
	if r.pos >= len(r.b) {
		return 0, malformed("ends too early")
	}
	return r.b[r.pos], nil
}

// head reads the head of an item. Floats and simple values are not read by it.
func (r *reader) head() (major byte, n uint64, err error) {
	c, err := r.peek()
	if err != nil {
		return 0, 0, err
	}
	major, info := c>>5, c&31
	if info < 24 {
		r.pos++
		return major, uint64(info), nil
	}
	if info > 27 {
		return 0, 0, malformed("indefinite or reserved length")
	}
	size := 1 << (info - 24)
	if r.left() < 1+size {
		return 0, 0, malformed("ends too early")
	}
	for _, c := range r.b[r.pos+1 : r.pos+1+size] {
		n = n<<8 | uint64(c)
	}
	r.pos += 1 + size
	return major, n, nil
}

// expect reads a head of one major type.
func (r *reader) expect(major byte, what string) (uint64, error) {
	c, err := r.peek()
	if err != nil {
		return 0, err
	}
	if c>>5 != major {
		return 0, malformed("expected %s, found %s", what, kindOf(c))
	}
	_, n, err := r.head()
	return n, err
}

// run reads the n bytes that follow a head.
func (r *reader) run(n uint64) ([]byte, error) {
	if n > uint64(r.left()) {
		return nil, malformed("length %d is beyond the end", n)
	}
	b := r.b[r.pos : r.pos+int(n)]
	r.pos += int(n)
	return b, nil
}

// null reads a null if there is one.
func (r *reader) null() bool {
	if r.pos < len(r.b) && r.b[r.pos] == wireNull {
		r.pos++
		return true
	}
	return false
}

func (r *reader) int() (int64, error) {
	c, err := r.peek()
	if err == nil && c>>5 > majorInt {
		err = malformed("expected an integer, found %s", kindOf(c))
	}
	if err != nil {
		return 0, err
	}
	major, n, err := r.head()
	switch {
	case err != nil:
		return 0, err
	case n > math.MaxInt64:
		return 0, malformed("integer overflows int64")
	case major == majorInt:
		return ^int64(n), nil
	}
	return int64(n), nil
}

func (r *reader) uint() (uint64, error) { return r.expect(majorUint, "an unsigned integer") }

func (r *reader) text() (string, error) {
	n, err := r.expect(majorText, "text")
	if err != nil {
		return "", err
	}
	b, err := r.run(n)
	return string(b), err
}

// array reads the head of an array of exactly n elements.
func (r *reader) array(n uint64) error {
	got, err := r.expect(majorArray, "an array")
	if err == nil && got != n {
		err = malformed("expected %d elements, found %d", n, got)
	}
	return err
}

func kindOf(c byte) string {
	switch c {
	case wireNull:
		return "null"
	case wireTrue, wireFalse:
		return "a bool"
	case wireFloat32, wireFloat64:
		return "a float"
	case majorTag<<5 | 27:
		return "a number that is no integer" // of JSON
	}
	switch c >> 5 {
	case majorUint, majorInt:
		return "an integer"
	case majorBytes:
		return "bytes"
	case majorText:
		return "text"
	case majorArray:
		return "an array"
	case majorMap:
		return "a map"
	case majorTag:
		return "a tag"
	}
	return fmt.Sprintf("%#x", c)
}
