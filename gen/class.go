package gen

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"reflect"
	"slices"
	"strings"

	"github.com/agent-sandbox/sandbox-go/gen/directive"
)

// class is an annotated type that can be generated.
type class struct {
	name     string
	base     string // start of the names of what is generated: Model
	pos      token.Pos
	doc      []string
	remote   string // the type of the remote handle: Model
	newName  string // NewModel
	params   string // ModelParams
	variable string // ModelClass
	id       string // from id=
	pkgPath  string
	options  *directive.Options
	secrets  []string
	fields   []classField
	enter    *hook // nil: there is none
	exit     *hook
	methods  []*function // by name
	validate bool        // there are rules for the parameters
	schema   string

	typ   types.Type
	taken map[string]token.Pos // methods of the remote handle

	self                                    string // receiver of the wrappers
	bindParams, bindOpts, bindSelf, bindCtx string // names of the variables of what is bound
}

// classField is a parameter of a class, or an embedded struct whose exported
// fields are parameters.
type classField struct {
	v     *types.Var
	tag   string
	doc   []string
	inner []classField // of an embedded struct; nil: a parameter
}

// hook is an enter or exit method.
type hook struct {
	name           string
	hasCtx, hasErr bool
	sig            *types.Signature
}

// wireID is the class's name on the wire.
func (c *class) wireID() string {
	if c.id != "" {
		return c.id
	}
	return c.pkgPath + "." + c.name
}

// parameters are the fields of the parameter struct, in order.
func (c *class) parameters() []classField {
	var list []classField
	var gather func([]classField)
	gather = func(fields []classField) {
		for _, f := range fields {
			if f.inner == nil {
				list = append(list, f)
			}
			gather(f.inner)
		}
	}
	gather(c.fields)
	return list
}

// paramsStruct is the type of the parameters.
func (c *class) paramsStruct() *types.Struct {
	var fields []*types.Var
	var tags []string
	for _, f := range c.parameters() {
		fields, tags = append(fields, f.v), append(tags, f.tag)
	}
	return types.NewStruct(fields, tags)
}

// class analyzes one annotated type; nil when it can't be generated.
func (a *analysis) class(p *placed) *class {
	spec := p.spec
	c := &class{
		name: spec.Name.Name, pos: spec.Name.Pos(), doc: docLines(p.doc), options: p.options, pkgPath: a.model.path,
		taken: map[string]token.Pos{"Close": token.NoPos, "Object": token.NoPos},
	}
	if p.options.ID != nil {
		c.id = *p.options.ID
	}
	obj, ok := a.checked.types.Defs[spec.Name].(*types.TypeName)
	if !ok || a.checked.pkg.Scope().Lookup(c.name) != obj {
		return nil // declared twice: the compiler's message says so
	}
	before := len(a.faults.list)
	a.nameClass(c)
	if spec.TypeParams != nil {
		a.faults.add(c.pos, spec.Name.End(), "G020", "%s has type parameters %s; classes are not generic, embed it in a type that names them",
			c.name, typeParams(spec.TypeParams))
		return nil
	}
	s, ok := obj.Type().Underlying().(*types.Struct)
	if !ok {
		return nil // does not check, which is reported
	}
	c.typ = obj.Type()
	valid := a.classParameters(c, s)
	for _, m := range a.dir.methodsOf(p) {
		switch m.kind() {
		case directive.Enter:
			c.enter = a.hook(m)
		case directive.Exit:
			c.exit = a.hook(m)
		case directive.Method:
			if fn := a.function(m, c); fn != nil {
				c.methods = append(c.methods, fn)
			} else {
				valid = false
			}
		}
	}
	a.embed(c.options)
	c.options = a.withSecrets(c.options, c.secrets, c.pos)
	if !valid || len(a.faults.list) > before {
		return nil
	}
	slices.SortFunc(c.methods, func(x, y *function) int { return strings.Compare(x.name, y.name) })
	c.schema = classSchema(c)
	return c
}

// nameClass chooses the names of what is generated for a class.
func (a *analysis) nameClass(c *class) {
	c.base = upperFirst(c.name)
	c.remote = c.base
	if ast.IsExported(c.name) {
		c.remote = c.name + "Remote"
	}
	pos := c.pos
	if as := c.options.As; as != nil && *as != "" {
		c.base, c.remote, pos = *as, *as, c.options.Pos("as")
	}
	c.newName = "New" + upperFirst(c.remote)
	if !ast.IsExported(c.remote) {
		c.newName = "new" + upperFirst(c.remote)
	}
	c.params, c.variable = c.base+"Params", c.base+"Class"
	for _, name := range []string{c.remote, c.newName, c.params, c.variable} {
		a.produce(name, pos)
	}
}

// takeMethod takes a name of a class's remote handle.
func (a *analysis) takeMethod(c *class, name string, pos token.Pos) {
	at, taken := c.taken[name]
	switch {
	case taken && at.IsValid():
		a.faults.add(pos, token.NoPos, "G030", "%s is already declared at %s; choose another name with as=", name, a.faults.at(at))
	case taken:
		a.faults.add(pos, token.NoPos, "G030", "the name %s belongs to every handle of a class; choose another with as=", name)
	default:
		c.taken[name] = pos
	}
}

// classParameters finds the parameters of a class and checks them. It reports
// false when a type is not valid; the compiler's message says why.
func (a *analysis) classParameters(c *class, s *types.Struct) bool {
	c.fields = a.classFields(c, s, c.name, nil)
	valid := true
	first := make(map[string]string)
	for _, f := range c.parameters() {
		pos := a.ownPos(f.v, c)
		if other, twice := first[f.v.Name()]; twice {
			a.faults.add(pos, token.NoPos, "G023", "two parameters of %s go by the name %s, so only one would be sent; rename one (the other is at %s)", c.name, f.v.Name(), other)
			return false
		}
		first[f.v.Name()] = a.faults.at(pos)
	}
	w := &ruleWalker{a: a}
	params := c.paramsStruct()
	for _, x := range collisions(params) {
		a.faults.add(c.pos, token.NoPos, "G023", "%s and %s both go by the name %q, so only one would be sent; give one another name with sandbox:\"name=…\"",
			c.name+"."+x.first, c.name+"."+x.second, x.name)
	}
	for _, f := range c.parameters() {
		name := f.v.Name()
		pos := a.ownPos(f.v, c)
		if !isValid(f.v.Type()) {
			valid = false
			continue
		}
		v := &value{name: name, typ: f.v.Type(), pos: pos, text: spelled(f.v.Type(), a.checked.pkg)}
		check := &valueCheck{a: a, value: v, subject: fmt.Sprintf("parameter %s of %s", name, c.name), root: name, data: true, secrets: &c.secrets}
		check.check(notLive)
		w.field(params, f.v, f.tag, c.name)
		w.walk(f.v.Type(), c.name+"."+name)
	}
	c.validate = w.found
	return valid
}

// ownPos is where a field stands; that of an embedded struct of another package
// where the class does.
func (a *analysis) ownPos(f *types.Var, c *class) token.Pos {
	if f.Pkg() == a.checked.pkg && f.Pos().IsValid() {
		return f.Pos()
	}
	return c.pos
}

// classFields finds the parameters among the fields of a struct. Like the
// encoders of the standard library it looks through embedded structs, except
// those that encode or check themselves or have a name of their own in a tag.
// seen are the structs around this one.
func (a *analysis) classFields(c *class, s *types.Struct, owner string, seen []types.Type) []classField {
	fields := []classField{}
	for i := range s.NumFields() {
		f, tag := s.Field(i), s.Tag(i)
		if f.Name() == "_" {
			continue
		}
		a.tags.sandboxTag(owner, f, tag)
		tags := reflect.StructTag(tag)
		if isPath(tags) {
			pos, end := a.tags.tagPos(f)
			a.faults.add2(pos, end, "G040", fmt.Sprintf("sandbox tag of %s.%s: paths go only with the arguments of a call, not with parameters of a class", owner, f.Name()))
			continue
		}
		if sandboxSkips(tags) {
			c.secrets = append(c.secrets, secretsOf(tag)...)
			if tags.Get("validate") != "" {
				(&ruleWalker{a: a}).field(s, f, tag, owner)
			}
			continue
		}
		if inner := promoted(f, tags); inner != nil {
			t := inner
			if rules := tags.Get("validate"); rules != "" && rules != "-" {
				pos, end := a.tags.tagPos(f)
				a.faults.add2(pos, end, "G041", fmt.Sprintf("validate tag of %s.%s: the fields of an embedded struct are parameters themselves; write rules on them", owner, f.Name()))
			}
			if slices.ContainsFunc(seen, func(o types.Type) bool { return types.Identical(o, t) }) {
				continue // what it has is there already
			}
			list := a.classFields(c, t.Underlying().(*types.Struct), owner+"."+f.Name(), append(slices.Clone(seen), t))
			if len(list) > 0 {
				fields = append(fields, classField{v: f, tag: tag, inner: list})
			}
			continue
		}
		if !f.Exported() {
			continue // state
		}
		if key := dropped(tags); key != "" {
			pos, end := a.tags.tagPos(f)
			a.faults.add2(pos, end, "G023", fmt.Sprintf("%s.%s is tagged %s:\"-\", so it would not be sent; tag it cbor:\"%s\" to send it or sandbox:\"-\" to leave it out",
				owner, f.Name(), key, f.Name()))
			continue
		}
		fields = append(fields, classField{v: f, tag: tag, doc: a.fieldDoc(f)})
	}
	return fields
}

// promoted is the type of an embedded struct whose fields count as those of the
// struct around it; nil when f is not one.
func promoted(f *types.Var, tags reflect.StructTag) types.Type {
	t := f.Type()
	if p, ok := t.Underlying().(*types.Pointer); ok {
		t = p.Elem()
	}
	n, ok := types.Unalias(t).(*types.Named)
	if !f.Embedded() || !ok || marshaler(n) != "" || validates(n) || wireName(f, tags) != f.Name() {
		return nil
	}
	if _, ok := n.Underlying().(*types.Struct); !ok {
		return nil
	}
	return t
}

// fieldDoc is the comment above a field of this package.
func (a *analysis) fieldDoc(f *types.Var) []string {
	if f.Pkg() != a.checked.pkg {
		return nil
	}
	field, _ := a.sourceOf(f)
	if field == nil || field.Doc == nil || len(field.Names) != 1 {
		return nil
	}
	return docLines(field.Doc)
}

// hook analyzes an enter or exit method; nil when it can't be one.
func (a *analysis) hook(p *placed) *hook {
	name := p.fn.Name
	obj, ok := a.checked.types.Defs[name].(*types.Func)
	if !ok {
		return nil
	}
	sig := obj.Signature()
	h := &hook{name: name.Name, sig: sig}
	h.hasCtx = sig.Params().Len() == 1 && isContext(sig.Params().At(0).Type())
	h.hasErr = sig.Results().Len() == 1 && isError(sig.Results().At(0).Type())
	if sig.Params().Len() > 0 && !h.hasCtx || sig.Results().Len() > 0 && !h.hasErr || sig.Variadic() {
		a.faults.add(name.Pos(), name.End(), "G028", "%s method %s must be func([context.Context]) [error]", p.kind(), name.Name)
	}
	if _, pointer := types.Unalias(sig.Recv().Type()).(*types.Pointer); !pointer {
		a.faults.add(name.Pos(), name.End(), "G028", "%s method %s needs a pointer receiver", p.kind(), name.Name)
	}
	return h
}

// packages calls visit with every package that the output for c names.
func (c *class) packages(visit func(*types.Package)) {
	var walk func([]classField)
	walk = func(fields []classField) {
		for _, f := range fields {
			packagesOf(f.v.Type(), visit)
			walk(f.inner)
		}
	}
	walk(c.fields)
	for _, h := range []*hook{c.enter, c.exit} {
		if h != nil {
			packagesOf(h.sig, visit)
		}
	}
}

// bindNames chooses the receiver of a class's wrappers, which no parameter may
// hide, and the variables of what is bound for it.
func (a *analysis) bindNames(c *class) {
	used := make(allocator)
	for _, fn := range c.methods {
		for _, p := range fn.params {
			used[p.name] = true
		}
	}
	c.self = used.name("m")
	used = make(allocator)
	for name := range a.taken {
		used[name] = true
	}
	for _, name := range a.model.names {
		used[name] = true
	}
	c.bindParams, c.bindOpts, c.bindSelf, c.bindCtx = used.name("p"), used.name("opts"), used.name("m"), used.name("ctx")
}
