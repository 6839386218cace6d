package envelope

import (
	"math"
	"reflect"
)

// Protocol is the version of frames and envelopes. Both sides are built from
// the same source nearly always; the number tells when they are not.
const Protocol = 1

// Hello is what a worker says of itself, before anything else.
type Hello struct {
	Protocol  int
	Token     string // that the caller gave it
	Digest    string // of its executable
	Unit      string // that has been taken over
	Platform  string // GOOS/GOARCH
	Functions []FunctionInfo
}

// FunctionInfo names a function and the types that travel.
type FunctionInfo struct{ ID, Schema string }

// Encode encodes h.
func (h *Hello) Encode() ([]byte, error) {
	e := newEncoder(nil, math.MaxInt64)
	err := helloCodec.encode(e, reflect.ValueOf(h).Elem())
	return e.buf, err
}

// DecodeHello decodes a hello.
func DecodeHello(b []byte) (*Hello, error) {
	var h Hello
	d := &decoder{reader: reader{b: b}}
	if err := helloCodec.decode(d, reflect.ValueOf(&h).Elem()); err != nil {
		return nil, err
	}
	return &h, coded(d.end(), "hello", "")
}

var helloCodec = &Codec{op: "hello", typ: reflect.TypeFor[Hello]()}

// EncodeCause encodes why a call's context ended. A cause that can't be encoded
// is left out: the receiver then knows only that it ended.
func EncodeCause(cause error, errs *Errors) []byte {
	e := newEncoder(errs, 1<<16)
	if e.error(cause) != nil || e.size() > e.limit || len(e.segments) > 0 {
		return []byte{wireNull}
	}
	return e.buf
}

// DecodeCause decodes a cause; nil when there is none, or it is malformed.
func DecodeCause(b []byte, errs *Errors) error {
	d := &decoder{reader: reader{b: b}, errors: errs}
	err, bad := d.error()
	if bad != nil {
		return nil
	}
	return err
}
