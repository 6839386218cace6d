package gen

import (
	"fmt"
	"go/types"
	"reflect"
	"slices"
	"strings"

	"golang.org/x/tools/go/types/typeutil"
)

// traveller decides whether values of a type can be sent without losing
// anything. It goes through everything a type is made of.
type traveller struct {
	a       *analysis
	subject string                     // "parameter o of describe"
	root    string                     // what paths start with when no type has a name
	fault   func(code, message string) // called for each reason why not
	seen    typeutil.Map               // named types that were looked at
	depth   int
	endless bool // depth was reached and reported
	inside  bool // what is walked is part of a live type, never live itself
	files   fileUse
	tagged  func(owner string, f *types.Var, tag string) // called for each field with its whole tag
	lossy   map[string]bool                              // types whose unexported fields are reported, if not nil
}

// fileUse says which files may stand in what is walked.
type fileUse int

const (
	noFiles    fileUse = iota
	fileValues         // sandboxfn.File and sandboxfn.Dir: in results
	filePaths          // and fields that are paths on the caller: in arguments
)

// onlyTop is the hint for live types in data.
const onlyTop = "it can only be a parameter of its own, not part of data"

// maxDepth bounds how deep types may nest: type T[P any] struct{ F *T[[]P] }
// has no end.
const maxDepth = 100

// travelling reports what of fn's signature can't be sent.
func (a *analysis) travelling(fn *function) {
	for i := range fn.params {
		p := &fn.params[i]
		name := p.given
		if name == "" {
			name = fmt.Sprint(i + 1)
		}
		c := &valueCheck{a: a, value: p, subject: fmt.Sprintf("parameter %s of %s", name, fn.full), root: p.name, secrets: &fn.secrets}
		if fn.batch == nil {
			c.files = filePaths
		}
		c.check(liveParam(p.typ))
	}
	a.liveResults(fn)
	for i := range fn.results {
		c := &valueCheck{a: a, value: &fn.results[i], subject: fmt.Sprintf("result %d of %s", i+1, fn.full), root: "result"}
		if fn.batch == nil {
			c.files = fileValues
		}
		c.check(liveResult(fn.results[i].typ))
	}
}

// valueCheck looks at one parameter or result.
type valueCheck struct {
	a       *analysis
	value   *value
	subject string
	root    string
	files   fileUse
	data    bool      // it can't be live
	secrets *[]string // gets the names of secrets that fields are filled from; nil: they don't matter
}

func (c *valueCheck) check(kind liveKind) {
	if kind != notLive {
		c.live(kind)
		return
	}
	t := c.traveller(c.subject, c.root)
	t.files, t.inside = c.files, c.data
	t.walk(c.value.typ, "")
}

// fault reports a reason once, however many functions have it.
func (c *valueCheck) fault(code, message string) {
	if !c.a.reasons[message] {
		c.a.reasons[message] = true
		c.a.faults.add(c.value.pos, c.value.end, code, "%s", message)
	}
}

func (c *valueCheck) traveller(subject, root string) *traveller {
	return &traveller{a: c.a, subject: subject, root: root, fault: c.fault, lossy: c.a.reasons, tagged: func(owner string, f *types.Var, tag string) {
		c.a.tags.sandboxTag(owner, f, tag)
		if c.secrets != nil {
			*c.secrets = append(*c.secrets, secretsOf(tag)...)
		}
	}}
}

// refuse reports that what stands at path has a type that can't be sent.
func (t *traveller) refuse(typ types.Type, path, hint string) {
	if path == "" {
		t.fault("G021", fmt.Sprintf("%s has type %s, which can't be sent; %s", t.subject, t.spell(typ), hint))
		return
	}
	t.fault("G021", fmt.Sprintf("%s: %s has type %s, which can't be sent; %s", t.subject, path, t.spell(typ), hint))
}

func (t *traveller) spell(typ types.Type) string { return spelled(typ, t.a.checked.pkg) }

// inner is the path to a part of what stands at path.
func (t *traveller) inner(path, part string) string {
	if path == "" {
		path = t.root
	}
	return path + part
}

// walk looks at typ, which stands at path; the empty path is the value itself.
func (t *traveller) walk(typ types.Type, path string) {
	if isError(typ) {
		return
	}
	if t.depth == maxDepth {
		if !t.endless {
			t.endless = true
			t.fault("G021", t.subject+" has a type that contains ever new instances, which can't be sent; refer to the type with the same arguments")
		}
		return
	}
	t.depth++
	defer func() { t.depth-- }()
	named, hasName := types.Unalias(typ).(*types.Named)
	if hasName {
		if t.seen.At(named) != nil {
			return
		}
		t.seen.Set(named, true)
		if t.named(named, typ, path) {
			return
		}
	}
	switch u := typ.Underlying().(type) {
	case *types.Basic:
		switch {
		case u.Info()&types.IsComplex != 0:
			t.refuse(typ, path, "use two floats")
		case u.Kind() == types.Uintptr:
			t.refuse(typ, path, "use uint64")
		case u.Kind() == types.UnsafePointer:
			t.refuse(typ, path, "send what it points to")
		}
	case *types.Pointer:
		inside := t.inside
		t.inside = true
		t.walk(u.Elem(), path)
		t.inside = inside
	case *types.Slice:
		t.walk(u.Elem(), t.inner(path, "[]"))
	case *types.Array:
		t.walk(u.Elem(), t.inner(path, "[]"))
	case *types.Map:
		t.key(u.Key(), path)
		t.walk(u.Elem(), t.inner(path, "[]"))
	case *types.Struct:
		t.structure(u, typ, path)
	case *types.Chan:
		hint := "use a slice"
		if path == "" && !t.inside {
			hint = "use iter.Seq2[T, error]"
		}
		t.refuse(typ, path, hint)
	case *types.Signature:
		if path == "" && !t.inside && isYield(u) { // as a result; a parameter is live
			t.refuse(typ, path, t.a.seqHint(u))
			return
		}
		t.refuse(typ, path, onlyTop)
	case *types.Interface:
		switch {
		case path == "" && !t.inside && isNamed(typ, "io", "Reader"): // as a parameter it is live
			t.refuse(typ, path, "use io.ReadCloser")
		case path == "" && !t.inside && isNamed(typ, "io", "ReadCloser"): // as a result it is live
			t.refuse(typ, path, "use io.Reader")
		case isNamed(typ, "io", "Reader"), isNamed(typ, "io", "Writer"), isNamed(typ, "io", "ReadCloser"):
			t.refuse(typ, path, onlyTop)
		default:
			t.refuse(typ, path, "use a concrete type")
		}
	}
}

// named handles types that are known by name or by their methods; true means
// that it is all said.
func (t *traveller) named(n *types.Named, typ types.Type, path string) bool {
	if pkg := n.Obj().Pkg(); pkg != nil {
		if p := pkg.Path(); p == "sync" || p == "sync/atomic" {
			t.refuse(typ, path, "keep it in an unexported field of a class")
			return true
		}
		switch {
		case isFile(n):
			if t.files == noFiles {
				t.refuse(typ, path, "files go only with the arguments and the result of a call")
			}
			return true
		case isNamed(n, sandboxfnPath, "Secret"):
			t.refuse(typ, path, `tag a field sandbox:"secret=NAME" to fill it inside`)
			return true
		}
	}
	if _, ok := n.Underlying().(*types.Interface); ok {
		return false
	}
	return marshaler(n) != ""
}

// isFile reports whether values of t are files, which the runtime library
// sends in its own way.
func isFile(t types.Type) bool {
	return isNamed(t, sandboxfnPath, "File") || isNamed(t, sandboxfnPath, "Dir")
}

// pairs are the ways a type can encode itself, in the order the codec asks.
var pairs = [][2]string{{"MarshalCBOR", "UnmarshalCBOR"}, {"MarshalBinary", "UnmarshalBinary"}, {"MarshalText", "UnmarshalText"}}

// marshaler returns the method by which n encodes itself, or "". A method that
// comes from an embedded field knows nothing of the others, so it does not
// count; n travels field by field then.
func marshaler(n *types.Named) string {
	set := types.NewMethodSet(types.NewPointer(n))
	if m := set.Lookup(nil, "ProtoReflect"); m != nil && len(m.Index()) == 1 {
		return "ProtoReflect"
	}
	for _, p := range pairs {
		m, un := set.Lookup(nil, p[0]), set.Lookup(nil, p[1])
		if m != nil && un != nil && hasForm(m, 0, 2) && hasForm(un, 1, 1) && len(m.Index()) == 1 {
			return p[0]
		}
	}
	return ""
}

// hasForm reports whether a method is func() ([]byte, error) or
// func([]byte) error.
func hasForm(m *types.Selection, params, results int) bool {
	sig, ok := m.Type().(*types.Signature)
	if !ok || sig.Params().Len() != params || sig.Results().Len() != results || !isError(sig.Results().At(results-1).Type()) {
		return false
	}
	data := sig.Results().At(0).Type()
	if params == 1 {
		data = sig.Params().At(0).Type()
	}
	s, ok := data.Underlying().(*types.Slice)
	if !ok {
		return false
	}
	b, ok := s.Elem().Underlying().(*types.Basic)
	return ok && b.Kind() == types.Byte
}

// key checks the type of a map's keys.
func (t *traveller) key(typ types.Type, path string) {
	if n, ok := types.Unalias(typ).(*types.Named); ok {
		if _, iface := n.Underlying().(*types.Interface); !iface {
			set := types.NewMethodSet(types.NewPointer(n))
			m, un := set.Lookup(nil, "MarshalText"), set.Lookup(nil, "UnmarshalText")
			if m != nil && un != nil && hasForm(m, 0, 2) && hasForm(un, 1, 1) {
				return
			}
		}
	}
	if b, ok := typ.Underlying().(*types.Basic); ok && b.Info()&(types.IsBoolean|types.IsInteger|types.IsString) != 0 && b.Kind() != types.Uintptr {
		return
	}
	t.refuse(typ, t.inner(path, " key"), "use keys that are bool, integers, strings or marshal to text")
}

// structure checks the fields of a struct.
func (t *traveller) structure(s *types.Struct, typ types.Type, path string) {
	owner := t.spell(typ)
	t.unexported(s, typ, path)
	_, named := types.Unalias(typ).(*types.Named)
	if path == "" {
		path = t.root
		if named {
			path = owner
		}
	}
	if !named {
		owner = path
	}
	for i := range s.NumFields() {
		f, tag := s.Field(i), s.Tag(i)
		t.tagged(owner, f, tag)
		tags := reflect.StructTag(tag)
		if f.Name() == "_" || sandboxSkips(tags) {
			continue
		}
		if !f.Exported() && !promotes(f) {
			continue // unexported has reported it
		}
		if t.files != filePaths && isPath(tags) {
			t.fault("G040", fmt.Sprintf("sandbox tag of %s.%s: paths go only with the arguments of a call, not with %s; use sandboxfn.File or sandboxfn.Dir",
				owner, f.Name(), t.subject))
			continue
		}
		if key := dropped(tags); key != "" {
			t.fault("G023", fmt.Sprintf("%s.%s is tagged %s:\"-\", so it would not be sent; tag it cbor:\"%s\" to send it or sandbox:\"-\" to leave it out",
				owner, f.Name(), key, f.Name()))
			continue
		}
		t.walk(f.Type(), path+"."+f.Name())
	}
	for _, c := range collisions(s) {
		t.fault("G023", fmt.Sprintf("%s and %s both go by the name %q, so only one would be sent; give one another name with sandbox:\"name=…\"",
			owner+"."+c.first, owner+"."+c.second, c.name))
	}
}

// unexported reports the fields of a struct that nobody else can read, once for
// each type.
func (t *traveller) unexported(s *types.Struct, typ types.Type, path string) {
	var names []string
	var at string
	for i := range s.NumFields() {
		f := s.Field(i)
		if f.Exported() || f.Name() == "_" || promotes(f) || sandboxSkips(reflect.StructTag(s.Tag(i))) {
			continue
		}
		if at == "" {
			at = t.a.fieldPos(f)
		}
		names = append(names, f.Name())
	}
	if len(names) == 0 {
		return
	}
	what, export, tag := "unexported field ", "export it", "tag the field"
	if len(names) > 1 {
		what, export, tag = "unexported fields ", "export them", "tag the fields"
	}
	lost := "type " + t.spell(typ) + " with " + what + strings.Join(names, ", ") + " (at " + at + ")"
	if t.lossy[lost] {
		return
	}
	if t.lossy != nil {
		t.lossy[lost] = true
	}
	named, _ := types.Unalias(typ).(*types.Named)
	hint := export + " or " + tag + ` sandbox:"-"`
	switch {
	case named != nil && t.a.isForeign(named.Obj().Pkg()):
		hint = "send a struct of your own with what the function needs"
	case named != nil:
		hint = export + ", give " + t.spell(typ) + " MarshalBinary and UnmarshalBinary, or " + tag + ` sandbox:"-"`
	default:
		lost = what + strings.Join(names, ", ") + " (at " + at + ")"
	}
	where := t.subject
	if path != "" {
		where += ": " + path
	}
	t.fault("G022", fmt.Sprintf("%s has %s, which would be lost; %s", where, lost, hint))
}

// isForeign reports whether p is of another module, so that its types are not
// for the reader to change.
func (a *analysis) isForeign(p *types.Package) bool {
	module := a.checked.info.module
	return p != nil && module != "" && p != a.checked.pkg && p.Path() != module && !strings.HasPrefix(p.Path(), module+"/")
}

// sandboxSkips reports whether a field is never sent: it is left out on
// purpose, or filled on the other side.
func sandboxSkips(tags reflect.StructTag) bool {
	for _, it := range sandboxItemsOf(tags) {
		if it.key == "-" || it.key == "secret" || it.key == "env" {
			return true
		}
	}
	return false
}

// isPath reports whether a field is a path on the caller.
func isPath(tags reflect.StructTag) bool {
	return slices.ContainsFunc(sandboxItemsOf(tags), func(it tagItem) bool { return it.key == "file" || it.key == "dir" })
}

// dropped returns the tag that makes the codec leave a field out, if any.
func dropped(tags reflect.StructTag) string {
	if cbor, ok := tags.Lookup("cbor"); ok {
		if cbor == "-" {
			return "cbor"
		}
		return ""
	}
	if tags.Get("json") == "-" {
		return "json"
	}
	return ""
}

// promotes reports whether an unexported field is an embedded struct, which
// travels under the name of its type.
func promotes(f *types.Var) bool {
	t := f.Type()
	if p, ok := t.Underlying().(*types.Pointer); ok {
		t = p.Elem()
	}
	_, ok := t.Underlying().(*types.Struct)
	return f.Embedded() && ok
}

// collision is two fields of one name on the wire.
type collision struct{ first, second, name string }

// collisions finds the fields of a struct that have one name on the wire.
func collisions(s *types.Struct) []collision {
	byName := make(map[string]string)
	var list []collision
	for i := range s.NumFields() {
		f, tags := s.Field(i), reflect.StructTag(s.Tag(i))
		if f.Name() == "_" || sandboxSkips(tags) || dropped(tags) != "" {
			continue
		}
		name := wireName(f, tags)
		if first, taken := byName[name]; taken {
			list = append(list, collision{first, f.Name(), name})
			continue
		}
		byName[name] = f.Name()
	}
	return list
}

// wireName is the name of a field on the wire: that of its sandbox, cbor or
// json tag, in this order, or its own.
func wireName(f *types.Var, tags reflect.StructTag) string {
	for _, it := range sandboxItemsOf(tags) {
		if it.key == "name" {
			return it.value
		}
	}
	for _, key := range []string{"cbor", "json"} {
		if tag, ok := tags.Lookup(key); ok {
			if name, _, _ := strings.Cut(tag, ","); name != "" {
				return name
			}
			break
		}
	}
	return f.Name()
}
