package gen

import (
	"go/token"
	"go/types"
	"path/filepath"
	"slices"
	"strings"
)

// errorEntry is a value or a type that the worker and the caller must know by
// name, so that errors keep their identity.
type errorEntry struct {
	name string // of a sentinel: import path and variable; "" for a type
	obj  types.Object
	// pointer says that the type's pointer is the error.
	pointer bool
}

// knownByRuntime are the packages whose errors sandboxfn registers itself.
var knownByRuntime = []string{
	"io", "io/fs", "os", "context", "errors", "net", "syscall", "strconv", "bufio",
}

// deprecated are errors of the standard library that nothing returns any more.
// Naming them would only make linters complain about generated code.
var deprecated = map[string]bool{
	"compress/flate.ReadError": true, "compress/flate.WriteError": true, "encoding/csv.ErrTrailingComma": true,
	"encoding/json.InvalidUTF8Error": true, "encoding/json.UnmarshalFieldError": true,
	"net/http.ErrHeaderTooLong": true, "net/http.ErrMissingContentLength": true, "net/http.ErrShortBody": true,
	"net/http.ErrUnexpectedTrailer": true, "net/http.ErrWriteAfterFlush": true, "net/http.ProtocolError": true,
	"net/http/httputil.ErrClosed": true, "net/http/httputil.ErrPersistEOF": true, "net/http/httputil.ErrPipeline": true,
}

// errorEntries lists the errors of the package and of the packages that its
// files import, by package, sentinels before types. Only packages that are
// imported anyway are named: generated code adds no weight.
func (a *analysis) errorEntries() []errorEntry {
	if a.model.empty() {
		return nil
	}
	imported := make(map[string]bool)
	for _, f := range a.checked.info.files {
		if !a.unit.covers(f) {
			continue
		}
		for _, p := range importsOf(f.ast) {
			imported[p] = true
		}
	}
	entries := a.errorsOf(a.checked.pkg)
	others := slices.DeleteFunc(slices.Clone(a.checked.pkg.Imports()), func(p *types.Package) bool {
		return !imported[p.Path()] || slices.Contains(knownByRuntime, p.Path()) || p.Path() == "unsafe" ||
			p.Path() == sandboxfnPath || strings.HasPrefix(p.Path(), sandboxfnPath+"/")
	})
	slices.SortFunc(others, func(x, y *types.Package) int { return strings.Compare(x.Path(), y.Path()) })
	for _, p := range others {
		entries = append(entries, a.errorsOf(p)...)
	}
	return entries
}

// errorsOf lists the errors of one package that this one can name.
func (a *analysis) errorsOf(p *types.Package) []errorEntry {
	own := p == a.checked.pkg
	var sentinels, kinds []errorEntry
	for _, name := range p.Scope().Names() {
		obj := p.Scope().Lookup(name)
		if !own && !obj.Exported() || own && !a.covers(obj.Pos()) || !own && a.notEverywhere(obj.Pos()) || deprecated[p.Path()+"."+name] {
			continue
		}
		switch obj := obj.(type) {
		case *types.Var:
			if isError(obj.Type()) {
				sentinels = append(sentinels, errorEntry{name: p.Path() + "." + name, obj: obj})
			}
		case *types.TypeName:
			kinds = append(kinds, a.errorKinds(obj)...)
		}
	}
	return append(sentinels, kinds...)
}

// notEverywhere reports whether an imported package declares something in a
// file that is not part of every build, as far as the name of the file and, for
// the package under test, its source say so.
func (a *analysis) notEverywhere(pos token.Pos) bool {
	if a.unit.constraint != nil {
		return false // looked at in a build of its own
	}
	path := a.g.fset.PositionFor(pos, false).Filename
	if len(nameTags(filepath.Base(path))) > 0 {
		return true
	}
	return slices.ContainsFunc(a.dir.files, func(f *sourceFile) bool { return f.path == path && f.constrained })
}

// errorKinds returns the entries of an error type: its pointer, and the type
// itself when its Error method has a value receiver, because both may be used.
func (a *analysis) errorKinds(obj *types.TypeName) []errorEntry {
	n, ok := obj.Type().(*types.Named)
	if !ok || obj.IsAlias() || n.TypeParams().Len() > 0 {
		return nil
	}
	if _, iface := n.Underlying().(*types.Interface); iface {
		return nil
	}
	failure := errorType.Underlying().(*types.Interface)
	if !types.Implements(types.NewPointer(n), failure) || !a.canTravel(n) {
		return nil
	}
	entries := []errorEntry{{obj: obj, pointer: true}}
	if types.Implements(n, failure) {
		entries = append(entries, errorEntry{obj: obj})
	}
	return entries
}

// canTravel reports whether values of t can be sent.
func (a *analysis) canTravel(t types.Type) bool {
	ok := isValid(t)
	walk := &traveller{a: a, fault: func(string, string) { ok = false }, tagged: func(string, *types.Var, string) {}}
	walk.walk(t, "")
	return ok
}
