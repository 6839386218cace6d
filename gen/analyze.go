package gen

import (
	"context"
	"go/ast"
	"go/build/constraint"
	"go/token"
	"go/types"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/agent-sandbox/sandbox-go/gen/directive"
)

// model is everything emission needs to know about a package.
type model struct {
	path, name string
	functions  []*function // by name
	classes    []*class    // by name
	embeds     []string    // patterns of go:embed, sorted
	errors     []errorEntry
	names      map[string]string // import path → name in the output
	real       map[string]string // import path → the package's own name
	coder      *typeCoder

	takeover   string          // the unit of workers
	variant    bool            // another file takes over
	bare       bool            // there is nothing but the takeover
	constraint constraint.Expr // nil: it is in every build
}

// empty reports whether there is nothing to generate.
func (m *model) empty() bool { return len(m.functions) == 0 && len(m.classes) == 0 }

// all are the functions with the methods of the classes.
func (m *model) all() []*function {
	list := slices.Clone(m.functions)
	for _, c := range m.classes {
		list = append(list, c.methods...)
	}
	return list
}

// function is an annotated function, or method, that can be generated.
type function struct {
	name     string
	full     string // with the class before it: model.predict
	class    *class // nil: it is not a method
	pos      token.Pos
	doc      []string
	wrapper  string
	handle   string
	variable string // of a method: holds its declaration
	argsType string // set when there are two parameters or more
	outType  string // set when there are two results or more
	id       string // from id=
	hasCtx   bool
	hasErr   bool
	variadic bool
	params   []value
	results  []value
	stream   liveKind   // liveSeq or liveSeq2 when the result is a stream
	elem     types.Type // of the stream
	batch    *batch     // nil: it takes one item at a time
	sig      *types.Signature
	options  *directive.Options
	own      *directive.Options // without those that the class has too
	secrets  []string           // that fields of its parameters are filled from
	checks   []string           // pairs of name and rules; nil: nothing to validate
	schema   string
	pkgPath  string

	ctx, err, result string // names of the wrapper's own variables
	// Names of the variables of the closure that is bound.
	bindCtx, bindArgs, bindResult, bindErr, bindSelf, bindSeq string
}

// batch is a function that takes many items at once. Its one parameter and its
// one result are described by a single item.
type batch struct {
	variadic bool // the items are
	hasErrs  bool // each item has an error of its own
}

// value is a parameter or a result.
type value struct {
	name  string // as the wrapper calls it
	label string // as messages about a call name it: given, or arg1
	given string // as the user calls it; empty: not at all
	field string // in the args or result struct
	text  string // its type as the user spelled it
	typ   types.Type
	pos   token.Pos
	end   token.Pos

	in, out bool // it holds paths on the caller
}

// wireID is the function's name on the wire.
func (f *function) wireID() string {
	if f.id != "" {
		return f.id
	}
	return f.pkgPath + "." + f.full
}

// kind is the kind of its directive.
func (f *function) kind() string {
	if f.class != nil {
		return "method"
	}
	return "func"
}

// variadicElem is the element type of parameter i if it is variadic, else nil.
func (f *function) variadicElem(i int) types.Type {
	if !f.variadic || i != len(f.params)-1 {
		return nil
	}
	return f.params[i].typ.(*types.Slice).Elem()
}

// analysis turns one typed package into a model. It collects what is wrong
// instead of reporting it, because a package may be analyzed several times.
type analysis struct {
	ctx     context.Context // of the run: an analysis is one operation
	g       *generator
	dir     *sourceDir
	unit    *unit
	checked *checked
	model   *model
	faults  reporter
	// taken are the names of the package's scope and who has them.
	taken map[string]token.Pos
	// wanted are all names this run produces, also for faulty functions.
	wanted map[string]bool
	// outputs are the names that the output declares.
	outputs map[string]token.Pos
	others  []*analysis     // of files that go to the same builds
	reasons map[string]bool // messages of faults in types, each once
	tags    *tagChecker
	// waiting are the compile errors about types that another package's output
	// declares; the functions that need them are left out.
	waiting []Diagnostic
	// invalid are functions that were left out because a type is not valid.
	invalid []*ast.FuncDecl
}

func newAnalysis(ctx context.Context, g *generator, d *sourceDir, u *unit, c *checked) *analysis {
	a := &analysis{
		ctx: ctx, g: g, dir: d, unit: u, checked: c,
		faults:  reporter{fset: g.fset, dir: g.report.dir},
		taken:   make(map[string]token.Pos),
		wanted:  make(map[string]bool),
		outputs: make(map[string]token.Pos),
		reasons: make(map[string]bool),
		model: &model{
			path: c.info.path, name: c.info.name, takeover: u.takeover(c.info.path), variant: u.variant, bare: len(u.files) == 0, constraint: u.constraint,
			coder: &typeCoder{redefined: make(map[string]bool), filesVar: u.filesVar()},
		},
	}
	for name := range d.produced(u.side, u) {
		a.wanted[name] = true
	}
	a.tags = newTagChecker(a)
	return a
}

// run analyzes the package.
func (a *analysis) run() {
	a.collectNames()
	for _, p := range a.dir.functions() {
		if !a.unit.owns(p.file) {
			continue
		}
		if fn := a.function(p, nil); fn != nil {
			a.model.functions = append(a.model.functions, fn)
		}
	}
	slices.SortFunc(a.model.functions, func(x, y *function) int { return strings.Compare(x.name, y.name) })
	for _, p := range a.dir.classes() {
		if !a.unit.owns(p.file) {
			continue
		}
		if c := a.class(p); c != nil {
			a.model.classes = append(a.model.classes, c)
		}
	}
	slices.SortFunc(a.model.classes, func(x, y *class) int { return strings.Compare(x.name, y.name) })
	a.model.errors = a.errorEntries()
	a.nameImports()
	for _, c := range a.model.classes {
		a.bindNames(c)
	}
	for _, fn := range a.model.all() {
		a.localNames(fn)
	}
	a.lateInits()
}

// report hands the faults over, with the compile errors that are not about
// names this run is about to produce.
func (a *analysis) report() {
	wanted, elsewhere := false, false
	// The faults of other files belong to the report about their unit, unless
	// functions had to be left out because of them.
	all := a.unit.side == plainSide && !a.unit.variant || len(a.invalid) > 0
	for _, e := range a.checked.errors {
		if more := strings.HasPrefix(e.Msg, "\t"); !more {
			elsewhere = !all && !a.covers(e.Pos)
		}
		if elsewhere {
			continue
		}
		pos := a.g.fset.Position(e.Pos)
		pos.Filename = a.g.report.relative(pos.Filename)
		if more, ok := strings.CutPrefix(e.Msg, "\t"); ok { // belongs to the error before it
			if n := len(a.faults.list); n > 0 && !wanted {
				a.faults.list[n-1].Message += "; " + more + " at " + pos.String()
			}
			continue
		}
		if wanted = a.aboutWanted(e); wanted {
			if len(a.invalid) > 0 && !a.inBody(e.Pos) {
				a.waiting = append(a.waiting, Diagnostic{Pos: pos, Code: "G050", Message: oneLine(e.Msg) + "; run sandboxgen for its package first"})
			}
			continue
		}
		a.faults.list = append(a.faults.list, Diagnostic{Pos: pos, Code: "G050", Message: oneLine(e.Msg)})
	}
	if missing := slices.IndexFunc(a.faults.list, aboutLibrary); missing >= 0 { // the rest follows from it
		a.faults.list = a.faults.list[missing : missing+1]
		a.faults.list[0].Message += "; run go mod tidy"
	}
	if len(a.faults.list)+len(a.waiting) == 0 {
		for _, decl := range a.invalid { // the checker is told to take anything of C for granted
			a.faults.add(decl.Name.Pos(), decl.Name.End(), "G021", "%s has a type of package C in its signature, which can't be sent; use Go types", decl.Name.Name)
		}
	}
	a.g.report.list = append(a.g.report.list, a.faults.list...)
}

// aboutLibrary reports whether a fault says that the runtime library, or what it
// needs, is not there.
func aboutLibrary(d Diagnostic) bool {
	return d.Code == "G050" && strings.HasPrefix(d.Message, "could not import "+sandboxfnPath)
}

// covers reports whether pos lies in a file of the unit.
func (a *analysis) covers(pos token.Pos) bool {
	for _, f := range a.dir.files {
		if f.ast.FileStart <= pos && pos <= f.ast.FileEnd {
			return a.unit.covers(f)
		}
	}
	return false
}

// inBody reports whether pos lies in the body of a function, where what is not
// there yet does not change what is generated.
func (a *analysis) inBody(pos token.Pos) bool {
	for _, f := range a.checked.info.files {
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil && fn.Body.Pos() <= pos && pos < fn.Body.End() {
				return true
			}
		}
	}
	return false
}

// oneLine joins the lines of a message of the compiler.
func oneLine(s string) string {
	var parts []string
	for l := range strings.Lines(s) {
		parts = append(parts, strings.TrimSpace(l))
	}
	return strings.Join(parts, "; ")
}

var undefinedName = regexp.MustCompile(`^undefined: (\S+)$`)

// aboutWanted reports whether a compile error comes from a name that this run,
// or a run in an imported package, produces.
func (a *analysis) aboutWanted(e types.Error) bool {
	m := undefinedName.FindStringSubmatch(e.Msg)
	if m == nil {
		return false
	}
	if a.wanted[m[1]] {
		return true
	}
	_, name, qualified := strings.Cut(m[1], ".")
	return qualified && a.importProduces(e.Pos, name)
}

// importProduces reports whether the package that is named before pos has a
// directive which produces name.
func (a *analysis) importProduces(pos token.Pos, name string) bool {
	path := ""
	for _, f := range a.checked.info.files {
		if f.ast.FileStart > pos || pos > f.ast.FileEnd {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok && sel.Sel.Pos() == pos {
				if id, ok := sel.X.(*ast.Ident); ok {
					if pkg, ok := a.checked.types.Uses[id].(*types.PkgName); ok {
						path = pkg.Imported().Path()
					}
				}
			}
			return path == ""
		})
	}
	if a.unit.side == externalSide && path == strings.TrimSuffix(a.model.path, "_test") {
		return a.dir.produced(testSide, nil)[name]
	}
	return path != "" && a.g.loader.produces(a.ctx, path)[name]
}

// collectNames fills taken and redefined.
func (a *analysis) collectNames() {
	scope := a.checked.pkg.Scope()
	for _, name := range scope.Names() {
		obj := scope.Lookup(name)
		if a.checked.inOutput(obj.Pos()) {
			continue
		}
		a.taken[name] = obj.Pos()
		if types.Universe.Lookup(name) != nil {
			a.model.coder.redefined[name] = true
		}
	}
	for _, other := range a.others {
		for name, pos := range other.outputs {
			a.take(name, pos)
		}
	}
	// A name that a file gives to an import, or that a test declares, can't be
	// the package's either.
	for _, f := range a.dir.files {
		if f.ast.Name.Name != a.model.name || f.constrained {
			continue
		}
		for _, s := range f.ast.Imports {
			if s.Name != nil && s.Name.Name != "_" && s.Name.Name != "." {
				a.take(s.Name.Name, s.Name.Pos())
			} else if name := a.importedName(s); s.Name == nil && name != "" {
				a.take(name, s.Pos())
			}
		}
		if !f.test || sideOf(f) == externalSide {
			continue
		}
		for _, d := range f.ast.Decls {
			for _, id := range declared(d) {
				a.take(id.Name, id.Pos())
			}
		}
	}
}

func (a *analysis) take(name string, pos token.Pos) {
	if _, taken := a.taken[name]; !taken {
		a.taken[name] = pos
	}
}

// importedName is the name of an imported package, when it could be read.
func (a *analysis) importedName(s *ast.ImportSpec) string {
	path, err := strconv.Unquote(s.Path.Value)
	if err != nil {
		return ""
	}
	for _, p := range a.checked.pkg.Imports() {
		if p.Path() == path {
			return p.Name()
		}
	}
	return ""
}

// declared lists what a declaration adds to the package's scope.
func declared(d ast.Decl) []*ast.Ident {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil && d.Name.Name != "init" && d.Name.Name != "_" {
			return []*ast.Ident{d.Name}
		}
	case *ast.GenDecl:
		var ids []*ast.Ident
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.TypeSpec:
				ids = append(ids, s.Name)
			case *ast.ValueSpec:
				ids = append(ids, s.Names...)
			}
		}
		return ids
	}
	return nil
}

// function analyzes one annotated function, or method of class c; nil when it
// can't be generated.
func (a *analysis) function(p *placed, c *class) *function {
	decl := p.fn
	fn := &function{
		name: decl.Name.Name, full: decl.Name.Name, class: c, pos: decl.Name.Pos(), doc: docLines(decl.Doc),
		options: p.options, own: p.own, pkgPath: a.model.path,
	}
	if p.options.ID != nil {
		fn.id = *p.options.ID
	}
	if c != nil {
		fn.full = c.name + "." + fn.name
		if c.id != "" {
			fn.id = c.id + "." + fn.name
		}
	}
	obj, ok := a.checked.types.Defs[decl.Name].(*types.Func)
	if !ok || c == nil && fn.name != "main" && a.checked.pkg.Scope().Lookup(fn.name) != obj {
		return nil // declared twice: the compiler's message says so
	}
	before := len(a.faults.list)
	a.nameOutputs(fn, obj.Signature())
	if decl.Type.TypeParams != nil {
		a.faults.add(fn.pos, decl.Name.End(), "G020",
			"%s has type parameters %s; sandboxed functions are not generic, annotate a function that calls it with concrete types",
			fn.name, typeParams(decl.Type.TypeParams))
		return nil
	}
	fn.sig = obj.Signature()
	valid := a.params(fn, decl)
	valid = a.results(fn, decl) && valid
	a.parameterNames(fn)
	if valid {
		a.batch(fn)
	}
	a.travelling(fn)
	a.paths(fn)
	a.checkRules(fn)
	a.embed(fn.options)
	if c == nil {
		fn.options = a.withSecrets(fn.options, fn.secrets, fn.pos)
		fn.own = fn.options
	} else { // all methods run where the instance is
		c.secrets = append(c.secrets, fn.secrets...)
	}
	if !valid {
		a.invalid = append(a.invalid, decl)
	}
	if !valid || len(a.faults.list) > before {
		return nil
	}
	fn.schema = schema(fn)
	return fn
}

// batch makes the function that one of many items is for its callers.
func (a *analysis) batch(fn *function) {
	if fn.options.Batch == nil {
		return
	}
	fit := len(fn.params) == 1 && len(fn.results) == 1
	var in, out *types.Slice
	if fit {
		in, _ = fn.params[0].typ.Underlying().(*types.Slice)
		out, _ = fn.results[0].typ.Underlying().(*types.Slice)
	}
	if in == nil || out == nil {
		pos := fn.options.Pos("batch")
		a.faults.add(pos, pos+token.Pos(len("batch")), "G029", "option batch needs one slice parameter and a slice result; %s has %s",
			fn.full, strings.TrimPrefix(spelled(fn.sig, a.checked.pkg), "func"))
		return
	}
	fn.batch, fn.variadic = &batch{variadic: fn.variadic}, false
	p, r := &fn.params[0], &fn.results[0]
	p.typ, r.typ = in.Elem(), out.Elem()
	if isNamed(r.typ, sandboxfnPath, "Result") {
		fn.batch.hasErrs = true
		r.typ = types.Unalias(r.typ).(*types.Named).TypeArgs().At(0)
	}
	p.text, r.text = spelled(p.typ, a.checked.pkg), spelled(r.typ, a.checked.pkg)
	for i, v := range []*value{p, r} {
		if liveParam(v.typ) != notLive || liveResult(v.typ) != notLive {
			a.faults.add(v.pos, v.end, "G021", "%s of %s have type %s, which can't be sent; %s", []string{"items", "results"}[i], fn.full, v.text, onlyTop)
			v.typ = types.Typ[types.Int] // said enough
		}
	}
}

// paths marks the parameters that hold paths on the caller.
func (a *analysis) paths(fn *function) {
	mark := func(option string, names *[]directive.Name, set func(*value)) {
		if names == nil {
			return
		}
		for _, n := range *names {
			end := n.Pos + token.Pos(len(n.Text))
			i := slices.IndexFunc(fn.params, func(p value) bool { return p.given == n.Text })
			if i < 0 {
				a.faults.add(n.Pos, end, "G016", "option %s: %s has no parameter %s%s", option, fn.full, n.Text, parameterList(fn))
				continue
			}
			p := &fn.params[i]
			s, list := p.typ.(*types.Slice)
			if t := types.Unalias(p.typ); !types.Identical(t, types.Typ[types.String]) && !(list && types.Identical(s.Elem(), types.Typ[types.String])) && isValid(t) {
				a.faults.add(n.Pos, end, "G016", "option %s: parameter %s of %s has type %s; paths are string or []string", option, n.Text, fn.full, p.text)
				continue
			}
			if fn.batch != nil {
				a.faults.add(n.Pos, end, "G015", "options batch and %s exclude each other", option)
				continue
			}
			set(p)
		}
	}
	mark("in", fn.options.In, func(p *value) { p.in = true })
	mark("out", fn.options.Out, func(p *value) { p.out = true })
}

// withSecrets adds the secrets that fields are filled from to options.
func (a *analysis) withSecrets(o *directive.Options, names []string, pos token.Pos) *directive.Options {
	var list []directive.Secret
	if o.Secrets != nil {
		list = slices.Clone(*o.Secrets)
	}
	before := len(list)
	for _, name := range names {
		if o.Env != nil && slices.ContainsFunc(*o.Env, func(p directive.Pair) bool { return p.Name == name }) {
			a.faults.add(pos, token.NoPos, "G015", "option env and a sandbox tag exclude each other: both set %s", name)
		}
		if !slices.ContainsFunc(list, func(s directive.Secret) bool { return s.Name == name }) {
			list = append(list, directive.Secret{Name: name})
		}
	}
	if len(list) == before {
		return o
	}
	with := *o
	with.Secrets = &list
	return &with
}

// typeParams prints names as in "K, V".
func typeParams(list *ast.FieldList) string {
	var names []string
	for _, f := range list.List {
		for _, n := range f.Names {
			names = append(names, n.Name)
		}
	}
	return strings.Join(names, ", ")
}

// fieldsOf calls visit for every variable of a list with what the source says
// about it.
func fieldsOf(list *ast.FieldList, visit func(i int, name *ast.Ident, typ ast.Expr)) {
	if list == nil {
		return
	}
	i := 0
	for _, f := range list.List {
		if len(f.Names) == 0 {
			visit(i, nil, f.Type)
			i++
		}
		for _, n := range f.Names {
			visit(i, n, f.Type)
			i++
		}
	}
}

// newValue describes variable v, which the source calls name.
func (a *analysis) newValue(v *types.Var, name *ast.Ident, typ ast.Expr) value {
	val := value{typ: v.Type(), pos: typ.Pos(), end: typ.End(), text: spelled(v.Type(), a.checked.pkg)}
	if name != nil {
		val.pos = name.Pos()
		if name.Name != "_" {
			val.given = name.Name
		}
	}
	return val
}

// params reads the parameters. It reports false when a type is not valid; the
// compiler's message says why.
func (a *analysis) params(fn *function, decl *ast.FuncDecl) bool {
	fn.variadic = fn.sig.Variadic()
	valid := true
	fieldsOf(decl.Type.Params, func(i int, name *ast.Ident, typ ast.Expr) {
		v := fn.sig.Params().At(i)
		val := a.newValue(v, name, typ)
		switch last := i == fn.sig.Params().Len()-1; {
		case !isValid(v.Type()):
			valid = false
			return
		case isContext(v.Type()) && i == 0:
			fn.hasCtx = true
			return
		case isContext(v.Type()), fn.variadic && last && isContext(v.Type().(*types.Slice).Elem()):
			a.faults.add(val.pos, val.end, "G024", "context.Context must be the first parameter of %s", fn.full)
			valid = false
			return
		default:
			val.text = spelledParam(v.Type(), fn.variadic && last, a.checked.pkg)
		}
		fn.params = append(fn.params, val)
	})
	return valid
}

// results reads the results, as params does.
func (a *analysis) results(fn *function, decl *ast.FuncDecl) bool {
	valid := true
	fieldsOf(decl.Type.Results, func(i int, name *ast.Ident, typ ast.Expr) {
		v := fn.sig.Results().At(i)
		val := a.newValue(v, name, typ)
		switch {
		case !isValid(v.Type()):
			valid = false
			return
		case isError(v.Type()) && i == fn.sig.Results().Len()-1:
			fn.hasErr = true
			return
		case isError(v.Type()):
			a.faults.add(val.pos, val.end, "G025", "error must be the last result of %s", fn.full)
			valid = false
			return
		}
		fn.results = append(fn.results, val)
	})
	return valid
}

// isValid reports whether t holds no type that failed to check.
func isValid(t types.Type) bool {
	valid := true
	var walk func(types.Type)
	walk = func(t types.Type) {
		switch t := t.(type) {
		case *types.Basic:
			valid = valid && t.Kind() != types.Invalid
		case *types.Alias:
			if b, ok := types.Unalias(t).(*types.Basic); ok && b.Kind() == types.Invalid {
				valid = false
			}
			for arg := range t.TypeArgs().Types() {
				walk(arg)
			}
		case *types.Named:
			for arg := range t.TypeArgs().Types() {
				walk(arg)
			}
			if b, ok := t.Underlying().(*types.Basic); ok && b.Kind() == types.Invalid {
				valid = false
			}
		case *types.Map:
			walk(t.Key())
			walk(t.Elem())
		case interface{ Elem() types.Type }:
			walk(t.Elem())
		case *types.Struct:
			for f := range t.Fields() {
				walk(f.Type())
			}
		}
	}
	walk(t)
	return valid
}

func isContext(t types.Type) bool { return isNamed(t, "context", "Context") }

// isNamed reports whether t is the type path.name, by whatever alias.
func isNamed(t types.Type, path, name string) bool {
	n, ok := types.Unalias(t).(*types.Named)
	return ok && n.Obj().Pkg() != nil && n.Obj().Pkg().Path() == path && n.Obj().Name() == name
}

var errorType = types.Universe.Lookup("error").Type()

// isError reports whether t is the predeclared error, by whatever alias.
func isError(t types.Type) bool { return types.Identical(t, errorType) }

// docLines is the text of a doc comment, line by line, without directives.
func docLines(doc *ast.CommentGroup) []string {
	text := strings.TrimSpace(doc.Text())
	if text == "" {
		return nil
	}
	return strings.Split(strings.TrimRight(doc.Text(), "\n"), "\n")
}
