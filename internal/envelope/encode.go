package envelope

import (
	"encoding"
	"encoding/binary"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"unicode/utf8"
	"unsafe"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// encoder builds a body and its segments.
type encoder struct {
	buf      []byte
	segments [][]byte
	errors   *Errors
	live     Exporter // nil: nothing can be lent
	depth    int
	json     bool // the body will be turned into JSON
	inError  bool // within an error, of which
	nodes    int  // so many are in lists

	limit   int64 // of body and segments
	outside int64 // bytes of segments, and of the body where it was thrown away
	over    bool  // above the limit: only sizes count from now on
}

// size is how many bytes the payload has so far.
func (e *encoder) size() int64 { return int64(len(e.buf)) + e.outside }

// throw keeps what is above the limit from filling memory while its size is
// still being found out.
func (e *encoder) throw() {
	if !e.over && e.size() > e.limit {
		e.over = true
		e.segments = nil
	}
	if e.over {
		e.outside += int64(len(e.buf))
		e.buf = e.buf[:0]
	}
}

// value encodes v. Everything that can be nested goes through it.
func (e *encoder) value(p *plan, v reflect.Value) error {
	if e.depth++; e.depth > maxDepth {
		return unencodable("nested deeper than %d; the value may contain itself", maxDepth)
	}
	err := p.enc(e, v)
	e.depth--
	if len(e.buf) > 1<<16 {
		e.throw()
	}
	return err
}

func (e *encoder) bytes(major byte, b []byte) {
	if len(b) < SegmentMin || e.json {
		e.buf = append(appendHead(e.buf, major, uint64(len(b))), b...)
		return
	}
	e.buf = appendHead(e.buf, majorTag, tagSegment)
	e.buf = appendHead(e.buf, majorUint, uint64(len(e.segments)))
	e.outside += int64(len(b))
	if e.throw(); !e.over {
		e.segments = append(e.segments, b)
	}
}

func encBool(e *encoder, v reflect.Value) error {
	c := byte(wireFalse)
	if v.Bool() {
		c = wireTrue
	}
	e.buf = append(e.buf, c)
	return nil
}

func encInt(e *encoder, v reflect.Value) error {
	e.buf = appendInt(e.buf, v.Int())
	return nil
}

func encUint(e *encoder, v reflect.Value) error {
	e.buf = appendHead(e.buf, majorUint, v.Uint())
	return nil
}

func encFloat32(e *encoder, v reflect.Value) error {
	// Value.Float converts, which would change the bits of a signalling NaN.
	bits := *(*uint32)(v.Addr().UnsafePointer())
	e.buf = binary.BigEndian.AppendUint32(append(e.buf, wireFloat32), bits)
	return e.finite(v.Float())
}

func encFloat64(e *encoder, v reflect.Value) error {
	e.buf = binary.BigEndian.AppendUint64(append(e.buf, wireFloat64), math.Float64bits(v.Float()))
	return e.finite(v.Float())
}

// encString encodes text that is not UTF-8 as bytes: CBOR text must be.
func encString(e *encoder, v reflect.Value) error {
	s := v.String()
	if e.json {
		e.textJSON(unsafe.Slice(unsafe.StringData(s), len(s)))
		return nil
	}
	major := byte(majorText)
	if len(s) < SegmentMin && !utf8.ValidString(s) {
		major = majorBytes
	}
	e.bytes(major, unsafe.Slice(unsafe.StringData(s), len(s)))
	return nil
}

func encBytes(e *encoder, v reflect.Value) error {
	if v.IsNil() {
		e.buf = append(e.buf, wireNull)
		return nil
	}
	e.bytes(majorBytes, v.Bytes())
	return nil
}

func encByteArray(e *encoder, v reflect.Value) error {
	e.bytes(majorBytes, v.Bytes())
	return nil
}

func encSlice(elem *plan) func(*encoder, reflect.Value) error {
	array := encArray(elem)
	return func(e *encoder, v reflect.Value) error {
		if v.IsNil() {
			e.buf = append(e.buf, wireNull)
			return nil
		}
		return array(e, v)
	}
}

func encArray(elem *plan) func(*encoder, reflect.Value) error {
	return func(e *encoder, v reflect.Value) error {
		n := v.Len()
		e.buf = appendHead(e.buf, majorArray, uint64(n))
		for i := range n {
			if err := e.value(elem, v.Index(i)); err != nil {
				return at(err, "["+strconv.Itoa(i)+"]")
			}
		}
		return nil
	}
}

func encMap(t reflect.Type, key, elem *plan) func(*encoder, reflect.Value) error {
	return func(e *encoder, v reflect.Value) error {
		if v.IsNil() {
			e.buf = append(e.buf, wireNull)
			return nil
		}
		e.buf = appendHead(e.buf, majorMap, uint64(v.Len()))
		k, x := reflect.New(t.Key()).Elem(), reflect.New(t.Elem()).Elem()
		for i := v.MapRange(); i.Next(); {
			k.SetIterKey(i)
			x.SetIterValue(i)
			if err := e.value(key, k); err != nil {
				return at(err, keyPlace(k))
			}
			if err := e.value(elem, x); err != nil {
				return at(err, keyPlace(k))
			}
		}
		return nil
	}
}

func keyPlace(k reflect.Value) string {
	if k.Kind() == reflect.String {
		return "[" + strconv.Quote(k.String()) + "]"
	}
	return fmt.Sprintf("[%v]", k)
}

func encPointer(elem *plan) func(*encoder, reflect.Value) error {
	return func(e *encoder, v reflect.Value) error {
		if v.IsNil() {
			e.buf = append(e.buf, wireNull)
			return nil
		}
		if elem.null {
			e.buf = appendHead(e.buf, majorArray, 1)
		}
		return e.value(elem, v.Elem())
	}
}

func encStruct(fields []field) func(*encoder, reflect.Value) error {
	return func(e *encoder, v reflect.Value) error {
		e.buf = appendHead(e.buf, majorMap, uint64(len(fields)))
		for i := range fields {
			f := &fields[i]
			e.buf = append(e.buf, f.key...)
			if err := e.value(f.plan, f.of(v)); err != nil {
				return at(err, "."+f.name)
			}
		}
		return nil
	}
}

// encPositional also finds the parameter that is too large.
func encPositional(fields []field) func(*encoder, reflect.Value) error {
	return func(e *encoder, v reflect.Value) error {
		e.buf = appendHead(e.buf, majorArray, uint64(len(fields)))
		largest, most := "", int64(0)
		for i := range fields {
			f := &fields[i]
			before := e.size()
			if err := e.value(f.plan, v.Field(f.index)); err != nil {
				return at(err, f.name)
			}
			if n := e.size() - before; n > most {
				largest, most = f.name, n
			}
		}
		if e.size() > e.limit {
			return tooLarge(largest, most, e.limit)
		}
		return nil
	}
}

func tooLarge(what string, size, limit int64) error {
	return &fault{code: "E9003", text: fmt.Sprintf("%s has %d bytes, which is over the limit of %d (max_payload)", what, size, limit)}
}

// own runs an encoding method of the user's type.
func own(method string, t reflect.Type, marshal func() ([]byte, error)) ([]byte, error) {
	b, err := marshal()
	if err != nil {
		return nil, &fault{code: "E9002", text: method + " of " + t.String(), cause: err}
	}
	return b, nil
}

func encOwnCBOR(e *encoder, v reflect.Value) error {
	b, err := own("MarshalCBOR", v.Type(), v.Addr().Interface().(cborMarshaler).MarshalCBOR)
	if err != nil {
		return err
	}
	if err := strict.Wellformed(b); err != nil {
		return &fault{code: "E9002", text: "MarshalCBOR of " + v.Type().String(), cause: err}
	}
	e.buf = appendHead(e.buf, majorTag, tagCBOR)
	e.bytes(majorBytes, b)
	return nil
}

func encBinary(e *encoder, v reflect.Value) error {
	b, err := own("MarshalBinary", v.Type(), v.Addr().Interface().(encoding.BinaryMarshaler).MarshalBinary)
	if err == nil {
		e.bytes(majorBytes, b)
	}
	return err
}

func encMarshalText(e *encoder, v reflect.Value) error {
	b, err := own("MarshalText", v.Type(), v.Addr().Interface().(encoding.TextMarshaler).MarshalText)
	switch {
	case err != nil:
	case e.json:
		e.textJSON(b)
	default:
		e.bytes(majorBytes, b)
	}
	return err
}

// encode encodes what v points to, after what e holds already.
func (c *Codec) encode(e *encoder, v reflect.Value) error {
	if err := c.Check(); err != nil {
		return err
	}
	return guarded(c.op, "E9002", func() error {
		before := e.size()
		if err := e.value(c.plan, v); err != nil {
			return coded(err, c.op, c.root)
		}
		if e.size() > e.limit {
			name := c.root
			if name == "" {
				name = "the argument"
			}
			return coded(tooLarge(name, e.size()-before, e.limit), c.op, "")
		}
		return nil
	})
}

// guarded runs f, and makes a panic of a method of the user's types an error.
func guarded(op string, code errdefs.Code, f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			verb := map[errdefs.Code]string{"E9002": "encoded", "E9005": "decoded"}[code]
			err = errdefs.New(code, op, fmt.Sprintf("a value can't be %s: panic: %v", verb, r))
		}
	}()
	return f()
}
