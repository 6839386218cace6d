package gen

import (
	"context"
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"maps"
	"path"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/dave/jennifer/jen"
)

// nameOutputs chooses the names of what is generated for fn and reports those
// that are taken.
func (a *analysis) nameOutputs(fn *function, sig *types.Signature) {
	base := upperFirst(fn.name)
	fn.wrapper = base
	if ast.IsExported(fn.name) && fn.class == nil {
		fn.wrapper = fn.name + "Remote"
	}
	if as := fn.options.As; as != nil && *as != "" {
		base, fn.wrapper = *as, *as
	}
	fn.handle = base + "Func"
	pos := fn.pos
	if p := fn.options.Pos("as"); p.IsValid() {
		pos = p
	}
	outputs := []string{fn.wrapper, fn.handle}
	if c := fn.class; c != nil {
		for _, name := range outputs {
			a.takeMethod(c, name, pos)
		}
		base = c.base + upperFirst(base)
		fn.variable = "sandbox_" + c.name + upperFirst(fn.name)
		outputs = []string{fn.variable}
	}
	fn.argsType, fn.outType = base+"Args", base+"Result"
	if params, _ := counted(sig); params < 2 {
		fn.argsType = ""
	} else {
		outputs = append(outputs, fn.argsType)
	}
	if _, results := counted(sig); results < 2 {
		fn.outType = ""
	} else {
		outputs = append(outputs, fn.outType)
	}
	for _, name := range outputs {
		a.produce(name, pos)
	}
}

// produce takes a name of the package for the output and reports when it is
// taken.
func (a *analysis) produce(name string, pos token.Pos) {
	a.wanted[name] = true
	if at, taken := a.taken[name]; taken {
		a.faults.add(pos, token.NoPos, "G030", "%s is already declared at %s; choose another name with as=", name, a.faults.at(at))
		return
	}
	a.taken[name] = pos
	a.outputs[name] = pos
}

// counted returns how many parameters without the context and results without
// the error a function has.
func counted(sig *types.Signature) (params, results int) {
	params, results = sig.Params().Len(), sig.Results().Len()
	if params > 0 && isContext(sig.Params().At(0).Type()) {
		params--
	}
	if results > 0 && isError(sig.Results().At(results-1).Type()) {
		results--
	}
	return params, results
}

// allocator hands out names that differ from all others.
type allocator map[string]bool

// name returns base, or base with the first number from 2 that is free.
func (al allocator) name(base string) string {
	name := base
	for i := 2; al[name]; i++ {
		name = fmt.Sprintf("%s%d", base, i)
	}
	al[name] = true
	return name
}

// parameterNames gives every parameter and result its name and its field.
func (a *analysis) parameterNames(fn *function) {
	used := make(allocator)
	for _, p := range fn.params {
		if p.given != "" {
			used[p.given] = true
		}
	}
	fields := make(allocator)
	for i := range fn.params {
		p := &fn.params[i]
		p.name = p.given
		if p.name == "" {
			p.name = used.name(fmt.Sprintf("arg%d", i+1))
		}
		p.label = p.name
		p.field = fields.name(exportedName(p.name))
	}
	fields = make(allocator)
	for i := range fn.results {
		r := &fn.results[i]
		r.name = r.given
		field := fmt.Sprintf("R%d", i+1)
		if r.given != "" {
			field = exportedName(r.given)
		}
		r.field = fields.name(field)
	}
}

// localNames chooses the names of variables in the wrapper, after the names of
// imports are known to matter: a parameter must not hide what the body uses.
func (a *analysis) localNames(fn *function) {
	used := allocator{a.model.names[sandboxfnPath]: true}
	if fn.class == nil {
		used[fn.handle], used[fn.wrapper] = true, true
	} else {
		used[fn.class.self] = true
	}
	if fn.argsType != "" {
		used[fn.argsType] = true
	}
	for i := range fn.params {
		fn.params[i].name = used.name(fn.params[i].name)
	}
	fn.ctx, fn.err, fn.result = used.name("ctx"), used.name("err"), used.name("r")
	used = allocator{a.model.names[sandboxfnPath]: true}
	if fn.class == nil {
		used[fn.name] = true
	}
	fn.bindCtx, fn.bindArgs = used.name("ctx"), used.name("a")
	fn.bindResult, fn.bindErr, fn.bindSelf, fn.bindSeq = used.name("r"), used.name("err"), used.name("m"), used.name("s")
}

// exportedName makes a field name of a parameter's name.
func exportedName(name string) string {
	trimmed := strings.TrimLeft(name, "_")
	r, _ := utf8.DecodeRuneInString(trimmed)
	if trimmed == "" || !unicode.IsUpper(unicode.ToUpper(r)) {
		return "P" + trimmed // no upper case: a digit, or a script without cases
	}
	return upperFirst(trimmed)
}

// nameImports chooses the name of every package that the output mentions: its
// own, unless something in this package or an import before it has that name.
// Then the element of the path that tells it apart is added, then a number.
func (a *analysis) nameImports() {
	m := a.model
	paths := map[string]string{"context": "context", sandboxfnPath: "sandboxfn", "time": "time", validatePath: "validate"}
	visit := func(p *types.Package) {
		if p.Path() != m.path {
			paths[p.Path()] = p.Name()
		}
	}
	for _, fn := range m.all() {
		packagesOf(fn.sig, visit)
		if fn.stream != notLive { // an alias may hide its element
			paths["iter"] = "iter"
			packagesOf(fn.elem, visit)
		}
		if fn.batch != nil {
			packagesOf(fn.params[0].typ, visit)
			packagesOf(fn.results[0].typ, visit)
		}
	}
	for _, c := range m.classes {
		c.packages(visit)
	}
	if len(m.embeds) > 0 {
		paths["embed"] = "embed"
	}
	for _, e := range m.errors {
		visit(e.obj.Pkg())
	}
	m.real, m.names = paths, make(map[string]string)
	used := make(allocator)
	for name := range a.taken {
		used[name] = true
	}
	for name := range a.wanted { // of an earlier round these are not taken
		used[name] = true
	}
	// What the package imports under a name is no name of the package.
	for name, pos := range a.taken {
		if a.isImportName(name, pos) {
			delete(used, name)
		}
	}
	for _, p := range slices.Sorted(maps.Keys(paths)) {
		name := paths[p]
		if used[name] || jen.IsReservedWord(name) {
			name = longerName(p, name)
		}
		for jen.IsReservedWord(name) {
			name += "pkg"
		}
		m.names[p] = used.name(name)
	}
}

// isImportName reports whether the package has a name only as the name of an
// import in some file.
func (a *analysis) isImportName(name string, pos token.Pos) bool {
	if a.checked.pkg.Scope().Lookup(name) != nil && !a.checked.inOutput(a.checked.pkg.Scope().Lookup(name).Pos()) {
		return false
	}
	for _, f := range a.dir.files {
		for _, s := range f.ast.Imports {
			if s.Pos() <= pos && pos <= s.End() {
				return true
			}
		}
	}
	return false
}

// longerName adds to a package name what tells its path apart: x/api/v2 is
// apiv2, html/template is htmltemplate.
func longerName(importPath, name string) string {
	last := path.Base(importPath)
	if last != name {
		return name + letters(last)
	}
	if parent := path.Base(path.Dir(importPath)); parent != "." && parent != "/" {
		return letters(parent) + name
	}
	return name
}

// letters drops what an identifier can't hold.
func letters(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < utf8.RuneSelf && (unicode.IsLetter(r) || unicode.IsDigit(r)) {
			return unicode.ToLower(r)
		}
		return -1
	}, s)
	if s != "" && unicode.IsDigit(rune(s[0])) {
		return "x" + s
	}
	return s
}

// produces lists the names that directives of another package produce.
func (l *loader) produces(ctx context.Context, importPath string) map[string]bool {
	if names, ok := l.products[importPath]; ok {
		return names
	}
	l.products[importPath] = make(map[string]bool)
	dir := l.folder(ctx, importPath)
	if dir == "" {
		return nil
	}
	quiet := &reporter{fset: l.g.fset, dir: l.g.report.dir}
	d, err := findDir(quiet, dir)
	if err != nil {
		return nil
	}
	l.products[importPath] = d.produced(plainSide, nil)
	return l.products[importPath]
}

// produced lists the names that the directives of a package of the folder
// produce, without those of one unit.
func (d *sourceDir) produced(s side, without *unit) map[string]bool {
	names := make(map[string]bool)
	elsewhere := func(p *placed) bool {
		of := sideOf(p.file)
		return without != nil && without.owns(p.file) || of != s && !(s == testSide && of == plainSide)
	}
	for _, p := range slices.DeleteFunc(d.classes(), elsewhere) {
		base := upperFirst(p.spec.Name.Name)
		if p.options.As != nil && *p.options.As != "" {
			base = *p.options.As
		}
		for _, name := range []string{base, base + "Remote", "New" + base, "New" + base + "Remote", base + "Params", base + "Class"} {
			names[name] = true
		}
		for _, m := range d.methodsOf(p) {
			method := upperFirst(m.fn.Name.Name)
			if m.options.As != nil && *m.options.As != "" {
				method = upperFirst(*m.options.As)
			}
			names[base+method+"Args"], names[base+method+"Result"] = true, true
		}
	}
	for _, p := range slices.DeleteFunc(d.functions(), elsewhere) {
		base := upperFirst(p.fn.Name.Name)
		names[base], names[p.fn.Name.Name+"Remote"] = true, true
		if p.options.As != nil && *p.options.As != "" {
			base = *p.options.As
			names[base] = true
		}
		for _, suffix := range []string{"Func", "Args", "Result"} {
			names[base+suffix] = true
		}
	}
	return names
}

// folder is where the source of a package lies, "" if that can't be found out.
func (l *loader) folder(ctx context.Context, importPath string) string {
	for dir, info := range l.infos {
		if info.path == importPath {
			return dir
		}
	}
	found, err := query(l.config(ctx, metadata), importPath)
	if err != nil || len(found) != 1 {
		return ""
	}
	return found[0].Dir
}
