package envelope

import (
	"bytes"
	"encoding"
	"encoding/binary"
	"math"
	"reflect"
	"strconv"
	"unsafe"

	"github.com/fxamacker/cbor/v2"
)

// strict is how CBOR that a user's type has made itself is checked.
var strict = func() cbor.DecMode {
	m, err := cbor.DecOptions{
		DupMapKey:        cbor.DupMapKeyEnforcedAPF,
		IndefLength:      cbor.IndefLengthForbidden,
		MaxNestedLevels:  maxDepth,
		MaxArrayElements: math.MaxInt32,
		MaxMapPairs:      math.MaxInt32,
	}.DecMode()
	if err != nil {
		panic(err) // the options are constant
	}
	return m
}()

// decoder reads a body whose segments are beside it.
type decoder struct {
	reader
	segments [][]byte
	next     int // segment that must be referred to next
	errors   *Errors
	live     Importer // nil: nothing can be borrowed
	depth    int
	json     bool // the body was made from JSON
}

func (d *decoder) value(p *plan, v reflect.Value) error {
	if d.depth++; d.depth > maxDepth {
		return malformed("nested deeper than %d", maxDepth)
	}
	err := p.dec(d, v)
	d.depth--
	return err
}

// bytes reads a run of bytes. own means that the slice is no part of the body.
func (d *decoder) bytes(what string, text bool) (b []byte, own bool, err error) {
	c, err := d.peek()
	if err != nil {
		return nil, false, err
	}
	switch major := c >> 5; {
	case major == majorBytes, major == majorText && text:
		_, n, err := d.head()
		if err != nil {
			return nil, false, err
		}
		b, err = d.run(n)
		return b, false, err
	case major == majorText && d.json:
		b, err = d.base64JSON()
		return b, true, err
	case major == majorTag:
		_, tag, err := d.head()
		if err != nil {
			return nil, false, err
		}
		if tag != tagSegment {
			return nil, false, malformed("expected %s, found tag %d", what, tag)
		}
		n, err := d.uint()
		if err != nil {
			return nil, false, err
		}
		// Each segment belongs to one value, in order.
		if n != uint64(d.next) || d.next >= len(d.segments) {
			return nil, false, malformed("segment %d is out of order or not there", n)
		}
		d.next++
		return d.segments[n], true, nil
	}
	return nil, false, malformed("expected %s, found %s", what, kindOf(c))
}

func decBool(d *decoder, v reflect.Value) error {
	c, err := d.peek()
	if err != nil {
		return err
	}
	if c != wireTrue && c != wireFalse {
		return malformed("expected a bool, found %s", kindOf(c))
	}
	d.pos++
	v.SetBool(c == wireTrue)
	return nil
}

func decInt(d *decoder, v reflect.Value) error {
	i, err := d.int()
	if err != nil {
		return err
	}
	if v.OverflowInt(i) {
		return malformed("%d overflows %s", i, v.Type())
	}
	v.SetInt(i)
	return nil
}

func decUint(d *decoder, v reflect.Value) error {
	u, err := d.uint()
	if err != nil {
		return err
	}
	if v.OverflowUint(u) {
		return malformed("%d overflows %s", u, v.Type())
	}
	v.SetUint(u)
	return nil
}

// float reads the bits of a float of size bytes.
func (d *decoder) float(first byte, size int) ([]byte, error) {
	c, err := d.peek()
	if err != nil {
		return nil, err
	}
	if c != first {
		return nil, malformed("expected a float of %d bits, found %s", 8*size, kindOf(c))
	}
	d.pos++
	return d.run(uint64(size))
}

func decFloat32(d *decoder, v reflect.Value) error {
	if d.json {
		f, err := d.numberJSON(32)
		v.SetFloat(f)
		return err
	}
	b, err := d.float(wireFloat32, 4)
	if err == nil {
		*(*uint32)(v.Addr().UnsafePointer()) = binary.BigEndian.Uint32(b)
	}
	return err
}

func decFloat64(d *decoder, v reflect.Value) error {
	if d.json {
		f, err := d.numberJSON(64)
		v.SetFloat(f)
		return err
	}
	b, err := d.float(wireFloat64, 8)
	if err == nil {
		v.SetFloat(math.Float64frombits(binary.BigEndian.Uint64(b)))
	}
	return err
}

func decString(d *decoder, v reflect.Value) error {
	b, own, err := d.bytes("text", true)
	if err != nil {
		return err
	}
	if own {
		v.SetString(unsafe.String(unsafe.SliceData(b), len(b))) // nobody else has the segment
	} else {
		v.SetString(string(b))
	}
	return nil
}

func decBytes(d *decoder, v reflect.Value) error {
	if d.null() {
		v.SetZero()
		return nil
	}
	b, own, err := d.bytes("bytes", false)
	if err != nil {
		return err
	}
	if !own {
		b = append(make([]byte, 0, len(b)), b...)
	}
	v.SetBytes(b)
	return nil
}

func decByteArray(d *decoder, v reflect.Value) error {
	b, _, err := d.bytes("bytes", false)
	if err != nil {
		return err
	}
	if len(b) != v.Len() {
		return malformed("expected %d bytes, found %d", v.Len(), len(b))
	}
	copy(v.Bytes(), b)
	return nil
}

// count reads the head of an array or map of elements that need min bytes each,
// so that a corrupt length cannot make us allocate more than a true one would.
func (d *decoder) count(major byte, what string, min int) (int, error) {
	n, err := d.expect(major, what)
	if err != nil {
		return 0, err
	}
	if n > uint64(d.left()/max(min, 1)) {
		return 0, malformed("length %d is beyond the end", n)
	}
	return int(n), nil
}

func (d *decoder) elements(elem *plan, v reflect.Value) error {
	for i := range v.Len() {
		if err := d.value(elem, v.Index(i)); err != nil {
			return at(err, "["+strconv.Itoa(i)+"]")
		}
	}
	return nil
}

func decSlice(elem *plan) func(*decoder, reflect.Value) error {
	return func(d *decoder, v reflect.Value) error {
		if d.null() {
			v.SetZero()
			return nil
		}
		n, err := d.count(majorArray, "an array", elem.min)
		if err != nil {
			return err
		}
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		return d.elements(elem, v)
	}
}

func decArray(elem *plan) func(*decoder, reflect.Value) error {
	return func(d *decoder, v reflect.Value) error {
		if err := d.array(uint64(v.Len())); err != nil {
			return err
		}
		return d.elements(elem, v)
	}
}

// maxHint bounds the pairs for which a map is made before they are there.
const maxHint = 64 << 10

func decMap(t reflect.Type, key, elem *plan) func(*decoder, reflect.Value) error {
	own, _ := marshalPlan(t.Key())
	number := own == nil && t.Key().Kind() != reflect.String
	return func(d *decoder, v reflect.Value) error {
		if d.null() {
			v.SetZero()
			return nil
		}
		n, err := d.count(majorMap, "a map", key.min+elem.min)
		if err != nil {
			return err
		}
		// What a map takes for each pair may be many times what is sent of it.
		m := reflect.MakeMapWithSize(t, min(n, maxHint))
		k, x := reflect.New(t.Key()).Elem(), reflect.New(t.Elem()).Elem()
		for i := range n {
			k.SetZero()
			x.SetZero()
			read := d.value
			if d.json && number {
				read = d.keyJSON
			}
			if err := read(key, k); err != nil {
				return at(err, "[key]")
			}
			if err := d.value(elem, x); err != nil {
				return at(err, keyPlace(k))
			}
			m.SetMapIndex(k, x)
			if m.Len() == i {
				return at(malformed("duplicate key"), keyPlace(k))
			}
		}
		v.Set(m)
		return nil
	}
}

func decPointer(t reflect.Type, elem *plan) func(*decoder, reflect.Value) error {
	return func(d *decoder, v reflect.Value) error {
		if d.null() {
			v.SetZero()
			return nil
		}
		if elem.null {
			if err := d.array(1); err != nil {
				return err
			}
		}
		p := reflect.New(t.Elem())
		if err := d.value(elem, p.Elem()); err != nil {
			return err
		}
		v.Set(p.Convert(t))
		return nil
	}
}

// decStruct expects the fields in the order in which they are sent, and looks
// further only when one is not where it should be.
func decStruct(fields []field) func(*decoder, reflect.Value) error {
	return func(d *decoder, v reflect.Value) error {
		n, err := d.expect(majorMap, "a map")
		if err != nil {
			return err
		}
		if n > uint64(len(fields)) {
			return malformed("%s has %d fields, found %d", v.Type(), len(fields), n)
		}
		var seen []bool
		for i := range int(n) {
			f := &fields[i]
			if seen == nil && bytes.HasPrefix(d.b[d.pos:], f.key) {
				d.pos += len(f.key)
			} else {
				if seen == nil {
					seen = make([]bool, len(fields))
					for j := range i {
						seen[j] = true
					}
				}
				if f, err = d.field(fields, seen); err != nil {
					return err
				}
			}
			if err := d.value(f.plan, f.of(v)); err != nil {
				return at(err, "."+f.name)
			}
		}
		if n < uint64(len(fields)) {
			return malformed("%s has %d fields, found %d", v.Type(), len(fields), n)
		}
		return nil
	}
}

// field reads a key and finds its field.
func (d *decoder) field(fields []field, seen []bool) (*field, error) {
	start := d.pos
	n, err := d.expect(majorText, "the name of a field")
	if err != nil {
		return nil, err
	}
	name, err := d.run(n)
	if err != nil {
		return nil, err
	}
	key := d.b[start:d.pos]
	for i := range fields {
		if !bytes.Equal(fields[i].key, key) {
			continue
		}
		if seen[i] {
			return nil, at(malformed("duplicate field"), "."+fields[i].name)
		}
		seen[i] = true
		return &fields[i], nil
	}
	return nil, malformed("unknown field %q", name[:min(len(name), 100)])
}

func decPositional(fields []field) func(*decoder, reflect.Value) error {
	return func(d *decoder, v reflect.Value) error {
		if err := d.array(uint64(len(fields))); err != nil {
			return err
		}
		for i := range fields {
			f := &fields[i]
			if err := d.value(f.plan, v.Field(f.index)); err != nil {
				return at(err, f.name)
			}
		}
		return nil
	}
}

// refused is an error of a decoding method of the user's type.
func refused(method string, t reflect.Type, err error) error {
	return &fault{code: "E9005", text: method + " of " + t.String(), cause: err}
}

func decOwnCBOR(d *decoder, v reflect.Value) error {
	tag, err := d.expect(majorTag, "a tag")
	if err != nil {
		return err
	}
	if tag != tagCBOR {
		return malformed("expected tag %d, found %d", tagCBOR, tag)
	}
	b, _, err := d.bytes("bytes", false)
	if err != nil {
		return err
	}
	if err := strict.Wellformed(b); err != nil {
		return &fault{code: "E9005", text: "not CBOR", cause: err}
	}
	if err := v.Addr().Interface().(cborUnmarshaler).UnmarshalCBOR(bytes.Clone(b)); err != nil {
		return refused("UnmarshalCBOR", v.Type(), err)
	}
	return nil
}

func decBinary(d *decoder, v reflect.Value) error {
	b, _, err := d.bytes("bytes", false)
	if err != nil {
		return err
	}
	if err := v.Addr().Interface().(encoding.BinaryUnmarshaler).UnmarshalBinary(bytes.Clone(b)); err != nil {
		return refused("UnmarshalBinary", v.Type(), err)
	}
	return nil
}

func decMarshalText(d *decoder, v reflect.Value) error {
	b, _, err := d.bytes("text", d.json)
	if err != nil {
		return err
	}
	if err := v.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText(bytes.Clone(b)); err != nil {
		return refused("UnmarshalText", v.Type(), err)
	}
	return nil
}

// decode decodes a value into v.
func (c *Codec) decode(d *decoder, v reflect.Value) error {
	if err := c.Check(); err != nil {
		return err
	}
	return guarded(c.op, "E9005", func() error { return coded(d.value(c.plan, v), c.op, c.root) })
}

// end refuses bytes and segments that no value has used.
func (d *decoder) end() error {
	if d.left() > 0 {
		return malformed("%d bytes too many", d.left())
	}
	if d.next < len(d.segments) {
		return malformed("%d segments too many", len(d.segments)-d.next)
	}
	return nil
}
