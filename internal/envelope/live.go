package envelope

import (
	"context"
	"encoding/binary"
	"io"
	"iter"
	"math"
	"reflect"
	"strings"
	"sync"
)

// An Exporter is the caller's end of a call: it lends values that go on during
// the call to the worker.
type Exporter interface {
	// Export lends a function, a sequence, a [LentReader] or a [LentWriter], and
	// returns the number by which the worker knows it.
	Export(v any) (uint64, error)

	// After registers what runs once, when the call has ended, before its result
	// is handed over: err is why it failed, nil after a success. What f returns
	// fails a call that has not failed yet.
	After(f func(err error) error)
}

// An Importer is the worker's end of a call.
type Importer interface {
	// Import returns a value of the live type t that stands for what the caller
	// has lent under number n.
	Import(t reflect.Type, n uint64) (reflect.Value, error)

	// Returned registers what runs after the function has returned without an
	// error, before its result is sent. An error of f fails the call.
	Returned(f func() error)

	// Ended registers what runs at the end of the call, whatever came of it; the
	// last registered first.
	Ended(f func())
}

// LiveKind says how a value goes on during a call.
type LiveKind uint8

// The kinds of live types.
const (
	NotLive LiveKind = iota
	LiveFunc
	LiveSeq    // iter.Seq[T]
	LiveSeq2   // iter.Seq2[T, error]
	LiveReader // io.Reader
	LiveWriter // io.Writer
)

// LiveKindOf tells how values of type t go on during a call.
func LiveKindOf(t reflect.Type) LiveKind {
	switch {
	case t == readerType:
		return LiveReader
	case t == writerType:
		return LiveWriter
	case t.Kind() != reflect.Func:
		return NotLive
	case t.PkgPath() == seqPkg && strings.HasPrefix(t.Name(), "Seq["):
		return LiveSeq
	case t.PkgPath() == seqPkg && strings.HasPrefix(t.Name(), "Seq2["):
		if t.In(0).In(1) != errorType {
			return NotLive
		}
		return LiveSeq2
	}
	return LiveFunc
}

var (
	readerType = reflect.TypeFor[io.Reader]()
	writerType = reflect.TypeFor[io.Writer]()
	seqPkg     = reflect.TypeFor[iter.Seq[int]]().PkgPath()
)

// livePlan is the plan of a live type at the top of a list of arguments: its
// number, or null.
func livePlan(t reflect.Type) *plan {
	return &plan{
		null: true, min: 1,
		enc: func(e *encoder, v reflect.Value) error {
			if v.IsNil() {
				e.buf = append(e.buf, wireNull)
				return nil
			}
			if e.live == nil {
				return unencodable("%s can only go with a call", t)
			}
			n, err := e.live.Export(only(v))
			if err == nil {
				e.buf = appendHead(e.buf, majorUint, n)
			}
			return err
		},
		dec: func(d *decoder, v reflect.Value) error {
			if d.null() {
				v.SetZero()
				return nil
			}
			n, err := d.uint()
			if err != nil {
				return err
			}
			if d.live == nil {
				return malformed("%s outside of a call", t)
			}
			x, err := d.live.Import(t, n)
			if err == nil {
				v.Set(x)
			}
			return err
		},
	}
}

// LentReader is a reader that is lent: nothing else that its value can do is.
type LentReader struct{ R io.Reader }

// LentWriter is a writer that is lent.
type LentWriter struct{ W io.Writer }

// only is the value of a live type with nothing but what the type says.
func only(v reflect.Value) any {
	switch v.Type() {
	case readerType:
		return LentReader{v.Interface().(io.Reader)}
	case writerType:
		return LentWriter{v.Interface().(io.Writer)}
	}
	return v.Interface()
}

// RegisterVia makes values of type T travel as a W wherever they stand in
// arguments and results. The exporter and the importer are those of the call;
// nil where there is none. It is called before anything is encoded.
func RegisterVia[T, W any](to func(Exporter, T) (W, error), from func(Importer, W) (T, error)) {
	plans.Lock()
	defer plans.Unlock()
	if plans.m == nil {
		plans.m = map[reflect.Type]*plan{}
	}
	w := planLocked(reflect.TypeFor[W]())
	plans.m[reflect.TypeFor[T]()] = &plan{
		enc: func(e *encoder, v reflect.Value) error {
			x, err := to(e.live, v.Interface().(T))
			if err != nil {
				return &fault{code: "E9002", text: "can't be sent", cause: err}
			}
			return e.value(w, reflect.ValueOf(&x).Elem())
		},
		dec: func(d *decoder, v reflect.Value) error {
			var x W
			if err := d.value(w, reflect.ValueOf(&x).Elem()); err != nil {
				return err
			}
			y, err := from(d.live, x)
			if err != nil {
				return &fault{code: "E9005", text: "can't be used", cause: err}
			}
			v.Set(reflect.ValueOf(&y).Elem())
			return nil
		},
		min: w.min,
	}
}

// asTag tells as which type a field travels by its sandbox tag; nil: as what it
// is.
var asTag func(tag string, t reflect.Type) reflect.Type

// RegisterTags makes f decide as which type a field of type t with the given
// sandbox tag travels; nil means as t. The type must have the same underlying
// type as t. It is called before anything is encoded.
func RegisterTags(f func(tag string, t reflect.Type) reflect.Type) { asTag = f }

// planAs is the plan of values of type t that travel as what their tag, or the
// parameter, says.
func planAs(t, as reflect.Type) *plan {
	if as == nil || as == t {
		return planLocked(t)
	}
	if !t.ConvertibleTo(as) || t.Kind() != as.Kind() {
		return refuse("%s can't travel as %s", t, as)
	}
	p := planLocked(as)
	if p.err != nil {
		return p
	}
	cast := func(v reflect.Value) reflect.Value { return reflect.NewAt(as, v.Addr().UnsafePointer()).Elem() }
	return &plan{
		enc:  func(e *encoder, v reflect.Value) error { return p.enc(e, cast(v)) },
		dec:  func(d *decoder, v reflect.Value) error { return p.dec(d, cast(v)) },
		null: p.null, min: p.min,
	}
}

// A Tuple knows how a list of values of given types travels: the arguments or
// the results of a callback, an item of a stream. It is safe for concurrent use.
type Tuple struct {
	op    string
	types []reflect.Type
	plans []*plan
	err   error
}

// NewTuple returns the tuple of types; op is how errors name it.
func NewTuple(op string, types ...reflect.Type) *Tuple {
	t := &Tuple{op: op, types: types}
	for _, typ := range types {
		p, err := planFor(typ)
		if err != nil && t.err == nil {
			t.err = coded(err, op, typ.String())
		}
		t.plans = append(t.plans, p)
	}
	return t
}

// Encode encodes values, which must be addressable or copies are made, after
// prefix. Errors: E9002, E9003.
func (t *Tuple) Encode(prefix []byte, vs []reflect.Value, errs *Errors, limit int64) (Payload, error) {
	if t.err != nil {
		return Payload{}, t.err
	}
	e := newEncoder(errs, limit)
	e.buf = append(e.buf, prefix...)
	e.outside = -int64(len(prefix))
	err := guarded(t.op, "E9002", func() error {
		for i, p := range t.plans {
			v := vs[i]
			if !v.CanAddr() {
				c := reflect.New(t.types[i]).Elem()
				c.Set(v)
				v = c
			}
			if err := e.value(p, v); err != nil {
				return coded(err, t.op, "")
			}
		}
		if e.size() > limit {
			return coded(tooLarge("the value", e.size(), limit), t.op, "")
		}
		return nil
	})
	if err != nil {
		return Payload{}, err
	}
	return e.payload(), nil
}

// Decode decodes values from p after skip bytes of its body.
func (t *Tuple) Decode(p Payload, skip int, errs *Errors) ([]reflect.Value, error) {
	if t.err != nil {
		return nil, t.err
	}
	if skip > len(p.Body) {
		return nil, coded(malformed("too short"), t.op, "")
	}
	d := &decoder{reader: reader{b: p.Body[skip:]}, segments: p.Segments, errors: errs}
	vs := make([]reflect.Value, len(t.types))
	err := guarded(t.op, "E9005", func() error {
		for i, pl := range t.plans {
			vs[i] = reflect.New(t.types[i]).Elem()
			if err := d.value(pl, vs[i]); err != nil {
				return coded(err, t.op, "")
			}
		}
		return coded(d.end(), t.op, "")
	})
	return vs, err
}

// inlineText is how much of a text stays in a body without segments.
const inlineText = SegmentMin / 2

// EncodeError encodes err, which may be nil, after prefix.
func EncodeError(prefix []byte, err error, errs *Errors) []byte {
	r := &Response{e: newEncoder(errs, math.MaxInt64)}
	r.e.buf = append(r.e.buf, prefix...)
	n := len(r.e.buf)
	if bad := r.e.error(err); bad != nil || len(r.e.segments) > 0 {
		r.e.buf, r.e.segments = r.e.buf[:n], nil
		r.plainError(err, inlineText)
	}
	return r.e.buf
}

// DecodeError decodes an error that stands alone.
func DecodeError(b []byte, errs *Errors) (error, error) {
	d := &decoder{reader: reader{b: b}, errors: errs}
	err, bad := d.error()
	if bad == nil {
		bad = d.end()
	}
	return err, coded(bad, "error", "")
}

// A FuncShape is the signature of a callback.
type FuncShape struct {
	Context  bool // the first parameter is a context, which stays where it is
	Err      bool // the last result is an error
	Variadic bool
	In       *Tuple // without the context
	Out      *Tuple // with the error
	OutTypes []reflect.Type
}

var shapes sync.Map // reflect.Type → *FuncShape

// ShapeOf returns the shape of a function type.
func ShapeOf(t reflect.Type) *FuncShape {
	if s, ok := shapes.Load(t); ok {
		return s.(*FuncShape)
	}
	s := &FuncShape{Variadic: t.IsVariadic()}
	var in []reflect.Type
	for i := range t.NumIn() {
		if i == 0 && t.In(0) == contextType {
			s.Context = true
			continue
		}
		in = append(in, t.In(i))
	}
	for i := range t.NumOut() {
		s.OutTypes = append(s.OutTypes, t.Out(i))
	}
	s.Err = len(s.OutTypes) > 0 && s.OutTypes[len(s.OutTypes)-1] == errorType
	s.In, s.Out = NewTuple("call back", in...), NewTuple("call back", s.OutTypes...)
	shapes.Store(t, s)
	return s
}

// ItemOf returns the tuple for the items of a sequence type.
func ItemOf(t reflect.Type) *Tuple {
	if s, ok := shapes.Load(t); ok {
		return s.(*Tuple)
	}
	s := NewTuple("stream", t.In(0).In(0))
	shapes.Store(t, s)
	return s
}

var contextType = reflect.TypeFor[context.Context]()

// Upcall says what an upcall asks for.
type Upcall uint8

// The kinds of upcalls.
const (
	UpCall   Upcall = 1 // run a callback: its arguments
	UpRange  Upcall = 2 // send the items of a sequence, or the bytes of a reader
	UpWrite  Upcall = 3 // write bytes to a writer
	UpNested Upcall = 4 // run another function: a request
	UpSpool  Upcall = 5 // make a place for bytes that a result refers to, and answer with its number
)

// AppendUpcall begins the body of an upcall of a call: what it asks for, of
// which lent object.
func AppendUpcall(b []byte, call uint64, kind Upcall, object uint64) []byte {
	b = binary.AppendUvarint(b, call)
	b = append(b, byte(kind))
	return binary.AppendUvarint(b, object)
}

// ParseUpcall reads what AppendUpcall has written, and returns its length.
func ParseUpcall(b []byte) (call uint64, kind Upcall, object uint64, n int, err error) {
	call, n = binary.Uvarint(b)
	if n <= 0 || n >= len(b) {
		return 0, 0, 0, 0, malformed("upcall")
	}
	kind = Upcall(b[n])
	object, m := binary.Uvarint(b[n+1:])
	if m <= 0 {
		return 0, 0, 0, 0, malformed("upcall")
	}
	return call, kind, object, n + 1 + m, nil
}

// EncodePanic encodes a panic after prefix.
func EncodePanic(prefix []byte, p Panic) []byte {
	r := &Response{e: newEncoder(nil, math.MaxInt64)}
	r.e.buf = append(r.e.buf, prefix...)
	r.e.runText(p.Value[:min(len(p.Value), inlineText)])
	r.e.runText(p.Stack[:min(len(p.Stack), inlineText)])
	return r.e.buf
}

// DecodePanic decodes a panic that stands alone.
func DecodePanic(b []byte) (p Panic, err error) {
	d := &decoder{reader: reader{b: b}}
	if p.Value, err = d.runText(); err == nil {
		if p.Stack, err = d.runText(); err == nil {
			err = d.end()
		}
	}
	return p, coded(err, "panic", "")
}
