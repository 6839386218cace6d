package envelope

import (
	"errors"
	"fmt"
	"reflect"
	"sync"
)

// Kinds of nodes of an error's tree, the first element of each.
const (
	nodeSentinel = 0 // name
	nodeTyped    = 1 // type name, value
	nodeChain    = 2 // text, child: a %w
	nodeTree     = 3 // text, children: a Join or several %w
	nodeOther    = 4 // type name, text, names of sentinels it says it is, children
)

// maxErrors bounds the nodes of an error: errors that share
// what they wrap are sent as a tree, which would grow with each level. Of what
// is beyond, the text of what wraps it is left.
const maxErrors = 1 << 14

// Errors knows the errors that keep their identity on the way: variables, by
// name, and types. It is filled before it is used, and then safe for concurrent
// use.
type Errors struct {
	remote    func(typ, text string, is, children []error) error
	sentinels []sentinel
	types     []reflect.Type

	once   sync.Once
	names  map[error]string
	values map[string]error
	byName map[string]*knownError
	byType map[reflect.Type]*knownError
}

type sentinel struct {
	name string
	v    *error
}

type knownError struct {
	name string
	typ  reflect.Type // as returned: may be a pointer
	data *Codec       // of what is sent: what a pointer points to
}

// NewErrors returns an empty set. remote makes the error that stands for one
// whose type is not in the set: is holds the sentinels that its own Is method
// accepts, children what it wraps.
func NewErrors(remote func(typ, text string, is, children []error) error) *Errors {
	return &Errors{remote: remote}
}

// AddSentinel adds a variable. Its value is read at the first use of the set.
func (s *Errors) AddSentinel(name string, v *error) {
	s.sentinels = append(s.sentinels, sentinel{name, v})
}

// AddType adds a type, as functions return it. One whose data cannot travel is
// as if it had not been added.
func (s *Errors) AddType(t reflect.Type) { s.types = append(s.types, t) }

func (s *Errors) load() {
	s.once.Do(func() {
		s.names, s.values = map[error]string{}, map[string]error{}
		s.byName, s.byType = map[string]*knownError{}, map[reflect.Type]*knownError{}
		for _, x := range s.sentinels {
			err := *x.v
			if err == nil || !reflect.ValueOf(err).Comparable() {
				continue
			}
			s.values[x.name] = err
			if _, dup := s.names[err]; !dup {
				s.names[err] = x.name
			}
		}
		for _, t := range s.types {
			data := t
			if t.Kind() == reflect.Pointer {
				data = t.Elem()
			}
			et := &knownError{name: typeName(t), typ: t, data: &Codec{typ: data, root: typeName(t)}}
			s.byType[t] = et
			s.byName[et.name] = et
		}
	})
}

// encError encodes a value of type error.
func encError(e *encoder, v reflect.Value) error {
	err, _ := v.Interface().(error)
	return e.error(err)
}

func (e *encoder) error(err error) error {
	if err == nil {
		e.buf = append(e.buf, wireNull)
		return nil
	}
	if e.depth++; e.depth > maxDepth {
		return unencodable("error is nested deeper than %d; it may wrap itself", maxDepth)
	}
	outermost := !e.inError
	if outermost {
		e.inError, e.nodes = true, 0
	}
	defer func() {
		e.depth--
		e.inError = !outermost
	}()
	set := e.errors
	if set == nil {
		set = &Errors{}
	}
	set.load()
	if name, ok := set.nameOf(err); ok {
		e.node(nodeSentinel, 2)
		e.buf = appendText(e.buf, name)
		return nil
	}
	if et := set.byType[reflect.TypeOf(err)]; et != nil && e.typed(et, err) {
		return nil
	}
	switch children, kind := unwrap(err); kind {
	case nodeChain:
		e.node(nodeChain, 3)
		e.runText(textOf(err))
		return e.error(children[0])
	case nodeTree:
		e.node(nodeTree, 3)
		e.runText(textOf(err))
		return e.errorList(children)
	default:
		e.node(nodeOther, 5)
		e.buf = appendText(e.buf, typeName(reflect.TypeOf(err)))
		e.runText(textOf(err))
		is := set.accepted(err)
		e.buf = appendHead(e.buf, majorArray, uint64(len(is)))
		for _, name := range is {
			e.buf = appendText(e.buf, name)
		}
		return e.errorList(children)
	}
}

func (e *encoder) node(kind, length uint64) {
	e.buf = appendHead(e.buf, majorArray, length)
	e.buf = appendHead(e.buf, majorUint, kind)
}

func (e *encoder) runText(s string) {
	v := reflect.ValueOf(&s).Elem()
	encString(e, v)
}

func (e *encoder) errorList(errs []error) error {
	// All of a list is counted before any of what is below it: there must be
	// room for the rest of each list that has been begun.
	errs = errs[:min(len(errs), maxErrors-e.nodes)]
	e.nodes += len(errs)
	e.buf = appendHead(e.buf, majorArray, uint64(len(errs)))
	for _, err := range errs {
		if err := e.error(err); err != nil {
			return err
		}
	}
	return nil
}

// typed encodes an error of a known type by its data. It reports false, and
// leaves no trace, when the data cannot travel.
func (e *encoder) typed(et *knownError, err error) bool {
	if et.data.Check() != nil {
		return false
	}
	buf, segments, outside, depth := len(e.buf), len(e.segments), e.outside, e.depth
	over := e.over
	e.node(nodeTyped, 3)
	e.buf = appendText(e.buf, et.name)
	v := reflect.New(et.typ).Elem()
	v.Set(reflect.ValueOf(err))
	if et.typ.Kind() == reflect.Pointer {
		if v.IsNil() {
			e.buf = append(e.buf, wireNull)
			return true
		}
		e.buf = appendHead(e.buf, majorArray, 1)
		v = v.Elem()
	}
	if e.value(et.data.plan, v) != nil {
		if !over && !e.over {
			e.buf, e.segments, e.outside = e.buf[:buf], e.segments[:segments], outside
		}
		e.depth = depth
		return false
	}
	return true
}

// nameOf finds the variable whose value err is.
func (s *Errors) nameOf(err error) (string, bool) {
	if len(s.names) == 0 || !reflect.ValueOf(err).Comparable() {
		return "", false
	}
	name, ok := s.names[err]
	return name, ok
}

// accepted lists the sentinels that err's own Is method accepts. It is asked
// only here: the error that stands for err has no such method.
func (s *Errors) accepted(err error) (names []string) {
	x, ok := err.(interface{ Is(error) bool })
	if !ok {
		return nil
	}
	defer func() { recover() }() // the user's method may expect other errors
	for _, c := range s.sentinels {
		if v := s.values[c.name]; v != nil && x.Is(v) {
			names = append(names, c.name)
		}
	}
	return names
}

// unwrap returns what err wraps. Errors of fmt and errors that only add text or
// join have kinds of their own; of others the type is told.
func unwrap(err error) ([]error, int) {
	kind := nodeOther
	switch x := err.(type) {
	case interface{ Unwrap() error }:
		child := x.Unwrap()
		if child == nil {
			return nil, kind
		}
		if fromStd(err) {
			kind = nodeChain
		}
		return []error{child}, kind
	case interface{ Unwrap() []error }:
		var children []error
		for _, c := range x.Unwrap() {
			if c != nil && len(children) < maxErrors {
				children = append(children, c)
			}
		}
		if fromStd(err) {
			kind = nodeTree
		}
		return children, kind
	}
	return nil, kind
}

func fromStd(err error) bool {
	switch reflect.TypeOf(err).String() {
	case "*fmt.wrapError", "*fmt.wrapErrors", "*errors.joinError":
		return true
	}
	switch err.(type) {
	case *chain, *tree:
		return true
	}
	return false
}

// textOf is err.Error(), whose panic would hide the error itself.
func textOf(err error) (s string) {
	defer func() {
		if r := recover(); r != nil {
			s = fmt.Sprintf("%T: Error method panicked: %v", err, r)
		}
	}()
	return err.Error()
}

// chain stands for an error of fmt.Errorf with one %w.
type chain struct {
	text string
	err  error
}

func (c *chain) Error() string { return c.text }
func (c *chain) Unwrap() error { return c.err }

// tree stands for an error of errors.Join, or of fmt.Errorf with several %w.
type tree struct {
	text string
	errs []error
}

func (t *tree) Error() string   { return t.text }
func (t *tree) Unwrap() []error { return t.errs }

func decError(d *decoder, v reflect.Value) error {
	err, bad := d.error()
	if bad != nil {
		return bad
	}
	if err == nil {
		v.SetZero()
	} else {
		v.Set(reflect.ValueOf(err))
	}
	return nil
}

// error decodes an error; bad is what is wrong with the bytes.
func (d *decoder) error() (err, bad error) {
	if d.null() {
		return nil, nil
	}
	if d.depth++; d.depth > maxDepth {
		return nil, malformed("error is nested deeper than %d", maxDepth)
	}
	defer func() { d.depth-- }()
	set := d.errors
	if set == nil {
		set = &Errors{}
	}
	set.load()
	n, bad := d.expect(majorArray, "an error")
	if bad != nil {
		return nil, bad
	}
	kind, bad := d.uint()
	if bad != nil {
		return nil, bad
	}
	switch lengths := [...]uint64{2, 3, 3, 3, 5}; {
	case kind >= uint64(len(lengths)) || n != lengths[kind]:
		return nil, malformed("error node %d with %d elements", kind, n)
	case kind == nodeSentinel:
		return d.sentinel(set)
	case kind == nodeTyped:
		return d.typed(set)
	case kind == nodeOther:
		return d.other(set)
	}
	text, bad := d.runText()
	if bad != nil {
		return nil, bad
	}
	if kind == nodeChain {
		child, bad := d.error()
		return &chain{text, child}, bad
	}
	children, bad := d.errorList()
	return &tree{text, children}, bad
}

func (d *decoder) sentinel(set *Errors) (err, bad error) {
	name, bad := d.text()
	if bad != nil {
		return nil, bad
	}
	if err := set.values[name]; err != nil {
		return err, nil
	}
	return nil, malformed("error variable %q is not known here", name)
}

func (d *decoder) typed(set *Errors) (err, bad error) {
	name, bad := d.text()
	if bad != nil {
		return nil, bad
	}
	et := set.byName[name]
	if et == nil || et.data.Check() != nil {
		return nil, malformed("error type %q is not known here", name)
	}
	v := reflect.New(et.typ).Elem()
	data := v
	if et.typ.Kind() == reflect.Pointer {
		if d.null() {
			return v.Interface().(error), nil
		}
		if bad := d.array(1); bad != nil {
			return nil, bad
		}
		v.Set(reflect.New(et.typ.Elem()).Convert(et.typ))
		data = v.Elem()
	}
	if bad := d.value(et.data.plan, data); bad != nil {
		return nil, bad
	}
	return v.Interface().(error), nil
}

func (d *decoder) other(set *Errors) (err, bad error) {
	typ, bad := d.text()
	if bad != nil {
		return nil, bad
	}
	text, bad := d.runText()
	if bad != nil {
		return nil, bad
	}
	n, bad := d.count(majorArray, "an array", 1)
	if bad != nil {
		return nil, bad
	}
	var is []error
	for range n {
		e, bad := d.sentinel(set)
		if bad != nil {
			return nil, bad
		}
		is = append(is, e)
	}
	children, bad := d.errorList()
	if bad != nil {
		return nil, bad
	}
	if set.remote == nil {
		return errors.New(text), nil
	}
	return set.remote(typ, text, is, children), nil
}

func (d *decoder) runText() (string, error) {
	var s string
	err := decString(d, reflect.ValueOf(&s).Elem())
	return s, err
}

func (d *decoder) errorList() ([]error, error) {
	n, bad := d.count(majorArray, "an array", 1)
	if bad != nil {
		return nil, bad
	}
	var errs []error
	for range n {
		err, bad := d.error()
		if bad != nil {
			return nil, bad
		}
		if err == nil {
			return nil, malformed("null in a list of errors")
		}
		errs = append(errs, err)
	}
	return errs, nil
}
