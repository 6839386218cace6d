package envelope

import (
	"encoding"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"sync"
)

// A Codec knows how values of one type travel. It is safe for concurrent use.
type Codec struct {
	op     string // how errors name the function
	root   string // how they name the value: a parameter, "result"
	typ    reflect.Type
	params []Param // of arguments by position; nil for a plain value
	args   bool    // a live type may stand for itself
	as     reflect.Type

	once sync.Once
	plan *plan
	err  error
}

// Param is a parameter of a function.
type Param struct {
	Name string
	As   reflect.Type // it travels as a value of this type, which has the same underlying type; nil: as it is
}

// Args returns the codec for the arguments of a function: with fewer than two
// parameters a value of type t itself, else a struct with a field for each. op
// is how errors name the function.
func Args(t reflect.Type, op string, params []Param) *Codec {
	c := &Codec{op: op, typ: t, args: true}
	switch {
	case len(params) >= 2:
		c.params = params
	case len(params) == 1:
		c.root, c.as = params[0].Name, params[0].As
	}
	return c
}

// Result returns the codec for the result of a function. results is how many
// values it has besides its error; two or more make t a struct with a field for
// each.
func Result(t reflect.Type, op string) *Codec {
	return &Codec{op: op, typ: t, root: "result"}
}

// Check reports whether values of the type can travel: E9002 with the path of
// what cannot.
func (c *Codec) Check() error {
	c.once.Do(func() {
		c.plan, c.err = c.makePlan()
		c.err = coded(c.err, c.op, c.root)
	})
	return c.err
}

func (c *Codec) makePlan() (*plan, error) {
	if c.params != nil {
		return positional(c.typ, c.params)
	}
	if !c.args {
		return planFor(c.typ)
	}
	plans.Lock()
	defer plans.Unlock()
	p := topLocked(c.typ, c.as)
	return p, clonePath(p.err)
}

// Live reports whether the arguments have something that goes on during the
// call.
func (c *Codec) Live() bool {
	if c.params == nil {
		return c.args && LiveKindOf(c.typ) != NotLive
	}
	for i := range c.typ.NumField() {
		if LiveKindOf(c.typ.Field(i).Type) != NotLive {
			return true
		}
	}
	return false
}

// topLocked is the plan of a parameter.
func topLocked(t, as reflect.Type) *plan {
	if LiveKindOf(t) != NotLive {
		return livePlan(t)
	}
	return planAs(t, as)
}

// plan is how values of one type are encoded and decoded. Values are always
// addressable.
type plan struct {
	enc  func(*encoder, reflect.Value) error
	dec  func(*decoder, reflect.Value) error
	null bool // null is a value of the type
	min  int  // bytes that the shortest value needs
	err  error
}

var plans struct {
	sync.Mutex
	m map[reflect.Type]*plan
}

// planFor returns the plan of t. Types that contain themselves meet their own
// plan while it is made.
func planFor(t reflect.Type) (*plan, error) {
	plans.Lock()
	defer plans.Unlock()
	p := planLocked(t)
	return p, clonePath(p.err)
}

// clonePath gives every user of a kept error a path of their own to add to.
func clonePath(err error) error {
	if f, ok := err.(*fault); ok {
		g := *f
		g.path = append([]string(nil), f.path...)
		return &g
	}
	return err
}

func planLocked(t reflect.Type) *plan {
	if plans.m == nil {
		plans.m = map[reflect.Type]*plan{}
	}
	if p := plans.m[t]; p != nil {
		return p
	}
	p := &plan{min: 1}
	plans.m[t] = p
	q := makePlan(t)
	*p = *q
	return p
}

// failed is the plan of a type that cannot travel.
func failed(err error) *plan {
	return &plan{
		enc: func(*encoder, reflect.Value) error { return clonePath(err) },
		dec: func(*decoder, reflect.Value) error { return clonePath(err) },
		err: err,
	}
}

func refuse(format string, args ...any) *plan { return failed(unencodable(format, args...)) }

func refuseAt(p *plan, place string) *plan { return failed(at(clonePath(p.err), place)) }

func makePlan(t reflect.Type) *plan {
	if p := builtin(t); p != nil {
		return p
	}
	own, promoted := marshalPlan(t)
	if own != nil && !promoted {
		return own
	}
	p := kindPlan(t)
	if p.err != nil && own != nil {
		return own
	}
	return p
}

func kindPlan(t reflect.Type) *plan {
	switch t.Kind() {
	case reflect.Bool:
		return &plan{enc: encBool, dec: decBool, min: 1}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return &plan{enc: encInt, dec: decInt, min: 1}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return &plan{enc: encUint, dec: decUint, min: 1}
	case reflect.Float32:
		return &plan{enc: encFloat32, dec: decFloat32, min: 5}
	case reflect.Float64:
		return &plan{enc: encFloat64, dec: decFloat64, min: 9}
	case reflect.String:
		return &plan{enc: encString, dec: decString, min: 1}
	case reflect.Slice:
		return slicePlan(t)
	case reflect.Array:
		return arrayPlan(t)
	case reflect.Map:
		return mapPlan(t)
	case reflect.Pointer:
		return pointerPlan(t)
	case reflect.Struct:
		return structPlan(t)
	case reflect.Interface:
		if t == errorType {
			return &plan{enc: encError, dec: decError, null: true, min: 1}
		}
	}
	return refuse("type %s can't be sent", t)
}

var errorType = reflect.TypeFor[error]()

// rawBytes reports whether values of the element type t are bytes and nothing
// more.
func rawBytes(t reflect.Type) bool {
	if t.Kind() != reflect.Uint8 {
		return false
	}
	own, _ := marshalPlan(t)
	return own == nil
}

func slicePlan(t reflect.Type) *plan {
	if rawBytes(t.Elem()) {
		return &plan{enc: encBytes, dec: decBytes, null: true, min: 1}
	}
	elem := planLocked(t.Elem())
	if elem.err != nil {
		return refuseAt(elem, "[]")
	}
	return &plan{enc: encSlice(elem), dec: decSlice(elem), null: true, min: 1}
}

func arrayPlan(t reflect.Type) *plan {
	if rawBytes(t.Elem()) {
		return &plan{enc: encByteArray, dec: decByteArray, min: 1}
	}
	elem := planLocked(t.Elem())
	if elem.err != nil {
		return refuseAt(elem, "[]")
	}
	return &plan{enc: encArray(elem), dec: decArray(elem), min: 1 + t.Len()*elem.min}
}

func mapPlan(t reflect.Type) *plan {
	key := planLocked(t.Key())
	own, _ := marshalPlan(t.Key())
	switch k := t.Key().Kind(); {
	case key.err != nil:
		return refuseAt(key, "[key]")
	case own != nil, k == reflect.Bool, k == reflect.String, k >= reflect.Int && k <= reflect.Uint64:
	default:
		return refuse("type %s can't be sent: its keys are not bool, integer, string or text", t)
	}
	elem := planLocked(t.Elem())
	if elem.err != nil {
		return refuseAt(elem, "[]")
	}
	return &plan{enc: encMap(t, key, elem), dec: decMap(t, key, elem), null: true, min: 1}
}

// pointerPlan encodes what a pointer points to, or null. Where that can be null
// itself it is put into an array, so that nil and a pointer to nil differ.
func pointerPlan(t reflect.Type) *plan {
	elem := planLocked(t.Elem())
	if elem.err != nil {
		return refuseAt(elem, "")
	}
	return &plan{enc: encPointer(elem), dec: decPointer(t, elem), null: true, min: 1}
}

// field is a struct field that travels.
type field struct {
	name  string
	key   []byte // name, encoded
	index int
	typ   reflect.Type
	open  bool // unexported, but embedded: reached past reflect's guard
	plan  *plan
}

// of returns the field's value in the struct v.
func (f *field) of(v reflect.Value) reflect.Value {
	w := v.Field(f.index)
	if f.open {
		w = reflect.NewAt(f.typ, w.Addr().UnsafePointer()).Elem()
	}
	return w
}

func structPlan(t reflect.Type) *plan {
	fields, err := fieldsOf(t)
	if err != nil {
		return failed(err)
	}
	size := 1
	for _, f := range fields {
		size += len(f.key) + f.plan.min
	}
	return &plan{enc: encStruct(fields), dec: decStruct(fields), min: size}
}

// positional is the plan of a struct that stands for a list of parameters.
func positional(t reflect.Type, params []Param) (*plan, error) {
	if t.Kind() != reflect.Struct || t.NumField() != len(params) {
		return nil, unencodable("%s does not have a field for each of %d parameters", t, len(params))
	}
	plans.Lock()
	defer plans.Unlock()
	fields := make([]field, t.NumField())
	for i := range fields {
		p := topLocked(t.Field(i).Type, params[i].As)
		if p.err != nil {
			return nil, at(clonePath(p.err), params[i].Name)
		}
		fields[i] = field{name: params[i].Name, index: i, plan: p}
	}
	return &plan{enc: encPositional(fields), dec: decPositional(fields)}, nil
}

// fieldsOf lists what travels of a struct. An embedded struct is a field like
// others, under the name of its type, so that nothing is lost when two embedded
// structs have fields of one name.
func fieldsOf(t reflect.Type) ([]field, error) {
	var fields []field
	names := map[string]bool{}
	for i := range t.NumField() {
		sf := t.Field(i)
		name, skip, err := fieldName(sf)
		if err != nil {
			return nil, err
		}
		if skip || sf.Name == "_" {
			continue
		}
		if !sf.IsExported() && !embeddedStruct(sf) {
			return nil, at(unencodable("unexported field of %s would be lost; export it, give %s MarshalBinary and UnmarshalBinary, or tag the field sandbox:\"-\"", t, t), "."+sf.Name)
		}
		if names[name] {
			return nil, at(unencodable("%s has two fields that are called %q on the wire", t, name), "."+sf.Name)
		}
		names[name] = true
		var as reflect.Type
		if asTag != nil {
			as = asTag(sf.Tag.Get("sandbox"), sf.Type)
		}
		p := planAs(sf.Type, as)
		if p.err != nil {
			return nil, at(clonePath(p.err), "."+sf.Name)
		}
		fields = append(fields, field{name: sf.Name, key: appendText(nil, name), index: i, typ: sf.Type, open: !sf.IsExported(), plan: p})
	}
	return fields, nil
}

func embeddedStruct(sf reflect.StructField) bool {
	t := sf.Type
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return sf.Anonymous && t.Kind() == reflect.Struct
}

// fieldName is the name of a field on the wire. skip means that a tag leaves
// the field out.
func fieldName(sf reflect.StructField) (name string, skip bool, err error) {
	for _, item := range TagItems(sf.Tag) {
		switch item.Key {
		case "-", "secret", "env": // the last two are filled where the function runs
			return "", true, nil
		case "name":
			name = item.Value
		}
	}
	if name != "" {
		return name, false, nil
	}
	if tag, ok := sf.Tag.Lookup("cbor"); ok {
		if tag == "-" {
			return "", false, at(unencodable("tagged cbor:\"-\", so it would not be sent; tag it sandbox:\"-\" to leave it out"), "."+sf.Name)
		}
		if n, _, _ := strings.Cut(tag, ","); n != "" {
			return n, false, nil
		}
		return sf.Name, false, nil
	}
	if tag := sf.Tag.Get("json"); tag == "-" {
		return "", false, at(unencodable("tagged json:\"-\", so it would not be sent; tag it cbor:%q to send it or sandbox:\"-\" to leave it out", sf.Name), "."+sf.Name)
	} else if n, _, _ := strings.Cut(tag, ","); n != "" {
		return n, false, nil
	}
	return sf.Name, false, nil
}

type (
	cborMarshaler   interface{ MarshalCBOR() ([]byte, error) }
	cborUnmarshaler interface{ UnmarshalCBOR([]byte) error }
)

// marshalPlan is the plan of a type that encodes itself, or nil. promoted means
// that it got the method from an embedded field, which knows nothing of the
// type's other fields.
func marshalPlan(t reflect.Type) (p *plan, promoted bool) {
	if t.Kind() == reflect.Pointer || t.Kind() == reflect.Interface {
		return nil, false
	}
	ptr := reflect.PointerTo(t)
	both := func(m, u reflect.Type) bool { return ptr.Implements(m) && ptr.Implements(u) }
	switch {
	case both(reflect.TypeFor[cborMarshaler](), reflect.TypeFor[cborUnmarshaler]()):
		return &plan{enc: encOwnCBOR, dec: decOwnCBOR, min: 1}, isPromoted(t, "MarshalCBOR")
	case both(reflect.TypeFor[encoding.BinaryMarshaler](), reflect.TypeFor[encoding.BinaryUnmarshaler]()):
		return &plan{enc: encBinary, dec: decBinary, min: 1}, isPromoted(t, "MarshalBinary")
	case both(reflect.TypeFor[encoding.TextMarshaler](), reflect.TypeFor[encoding.TextUnmarshaler]()):
		return &plan{enc: encMarshalText, dec: decMarshalText, min: 1}, isPromoted(t, "MarshalText")
	}
	return nil, false
}

// isPromoted reports whether a method of t or *t is that of an embedded field.
// The compiler makes a wrapper for it, which has no source file.
func isPromoted(t reflect.Type, method string) bool {
	if t.Kind() != reflect.Struct {
		return false
	}
	embeds := false
	for i := range t.NumField() {
		embeds = embeds || t.Field(i).Anonymous
	}
	if !embeds {
		return false
	}
	m, ok := t.MethodByName(method)
	if !ok {
		if m, ok = reflect.PointerTo(t).MethodByName(method); !ok {
			return false
		}
	}
	pc := m.Func.Pointer()
	file, _ := runtime.FuncForPC(pc).FileLine(pc)
	return file == "<autogenerated>"
}

// Proto encodes protocol buffer messages. Package sandboxfn sets it before any
// codec is made; here it would pull the protobuf runtime into every user of the
// package.
var Proto struct {
	Is        func(reflect.Type) bool // of a pointer type
	Marshal   func(any) ([]byte, error)
	Unmarshal func([]byte, any) error
}

func typeName(t reflect.Type) string {
	if t.Kind() == reflect.Pointer {
		return "*" + typeName(t.Elem())
	}
	if t.PkgPath() == "" {
		return t.String()
	}
	return fmt.Sprintf("%s.%s", t.PkgPath(), t.Name())
}
