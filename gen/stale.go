package gen

import (
	"bytes"
	"context"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/agent-sandbox/sandbox-go/gen/directive"
)

// A Stale is a function whose generated code is not what would be generated.
type Stale struct {
	Pos, End token.Pos // of the function's name, or of what is left of its output
	Message  string
}

// FindStale compares what directives say with the generated code of a package,
// as far as types, options and ids go: comments do not count. files are those
// of one build, with comments and with the generated ones; imported finds the
// packages they import. Where it can't be sure, it finds nothing.
func FindStale(fset *token.FileSet, path string, files []*ast.File, imported func(path string) *types.Package) ([]Stale, error) {
	if len(files) == 0 {
		return nil, nil
	}
	path, _, _ = strings.Cut(path, " [") // of a package with its tests
	dir := filepath.Dir(fset.PositionFor(files[0].Package, false).Filename)
	d := &sourceDir{path: dir, broken: make(map[string]bool)}
	ours := make(map[string]*ast.File)
	for _, f := range files {
		name := fset.PositionFor(f.Package, false).Filename
		if filepath.Dir(name) != dir || slices.ContainsFunc(f.Imports, func(s *ast.ImportSpec) bool { return s.Path.Value == `"C"` }) {
			return nil, nil // cgo has made other files of these
		}
		base := filepath.Base(name)
		if isOutputName(base) && ast.IsGenerated(f) {
			ours[base] = f
			continue
		}
		s := &sourceFile{path: name, name: base, ast: f, test: strings.HasSuffix(base, "_test.go"), constraint: fileConstraint(base, f)}
		s.constrained = s.constraint != nil
		d.files = append(d.files, s)
	}
	r := &reporter{fset: fset, dir: dir}
	for _, f := range d.files {
		d.findFile(r, f)
	}
	d.decode(r)
	if len(r.list) > 0 || len(d.files) == 0 || slices.ContainsFunc(d.files, func(f *sourceFile) bool { return sideOf(f) == externalSide }) {
		return nil, nil
	}
	c, ok := checkAgain(fset, path, d, ours, files, imported)
	if !ok {
		return nil, nil
	}
	g := &generator{fset: fset, report: r, ids: make(map[string]wireID)}
	g.opts.Dir = dir
	g.loader = newLoader(g)
	var stale []Stale
	for _, u := range d.units() {
		a := newAnalysis(context.Background(), g, d, u, c)
		a.run()
		if len(a.faults.list)+len(a.invalid) > 0 {
			return nil, nil // which sandboxgen says better
		}
		text, err := emit(a.model)
		if err != nil {
			return nil, err
		}
		if text == nil {
			continue
		}
		want, err := parser.ParseFile(fset, u.name, text, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		stale = append(stale, compareOutput(fset, d, u, want, ours[u.name])...)
		delete(ours, u.name)
	}
	for _, f := range ours {
		for _, decl := range handles(fset, f) {
			stale = append(stale, Stale{decl.pos, token.NoPos, decl.name + " is not annotated any more; run go generate"})
		}
	}
	slices.SortFunc(stale, func(a, b Stale) int { return int(a.Pos - b.Pos) })
	return stale, nil
}

// checkAgain types the package under its own path.
func checkAgain(fset *token.FileSet, path string, d *sourceDir, ours map[string]*ast.File, files []*ast.File, imported func(string) *types.Package) (*checked, bool) {
	c := &checked{
		info:  &packageInfo{path: path, name: d.files[0].ast.Name.Name, dir: d.path, files: d.files},
		types: &types.Info{Defs: make(map[*ast.Ident]types.Object), Uses: make(map[*ast.Ident]types.Object)},
	}
	for _, f := range ours {
		c.output = append(c.output, f)
	}
	ok := true
	conf := &types.Config{Importer: importerFunc(imported), Error: func(error) { ok = false }}
	c.pkg, _ = conf.Check(path, fset, files, c.types)
	return c, ok
}

// importerFunc finds packages that were read before.
type importerFunc func(path string) *types.Package

// Import implements types.Importer.
func (f importerFunc) Import(path string) (*types.Package, error) {
	if path == "unsafe" {
		return types.Unsafe, nil
	}
	if p := f(path); p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("no package %s", path)
}

// handle is the declaration of one in generated code.
type handleDecl struct {
	name   string // of the function
	pos    token.Pos
	fields map[string]string // of the Decl
}

// handles lists the handles that generated code declares.
func handles(fset *token.FileSet, f *ast.File) []handleDecl {
	var list []handleDecl
	if f == nil {
		return nil
	}
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.VAR {
			continue
		}
		for _, s := range g.Specs {
			v := s.(*ast.ValueSpec)
			if len(v.Values) != 1 {
				continue
			}
			ast.Inspect(v.Values[0], func(n ast.Node) bool {
				lit, ok := n.(*ast.CompositeLit)
				if !ok {
					return true
				}
				if sel, ok := lit.Type.(*ast.SelectorExpr); ok && (sel.Sel.Name == "Decl" || sel.Sel.Name == "ClassDecl") {
					list = append(list, handleOf(fset, v, lit))
				}
				return false
			})
		}
	}
	return list
}

func handleOf(fset *token.FileSet, v *ast.ValueSpec, lit *ast.CompositeLit) handleDecl {
	h := handleDecl{pos: v.Pos(), fields: make(map[string]string)}
	for _, e := range lit.Elts {
		kv, ok := e.(*ast.KeyValueExpr)
		if !ok {
			continue
		}
		key, ok := kv.Key.(*ast.Ident)
		if !ok {
			continue
		}
		var b bytes.Buffer
		if format.Node(&b, fset, kv.Value) == nil {
			h.fields[key.Name] = strings.Join(strings.Fields(b.String()), "")
		}
		if text, ok := kv.Value.(*ast.BasicLit); ok && key.Name == "Name" {
			h.name, _ = strconv.Unquote(text.Value)
		}
	}
	return h
}

// compareOutput compares the handles of one file with what they should be.
func compareOutput(fset *token.FileSet, d *sourceDir, u *unit, want, have *ast.File) []Stale {
	var stale []Stale
	existing := make(map[string]handleDecl)
	for _, h := range handles(fset, have) {
		existing[h.name] = h
	}
	for _, w := range handles(fset, want) {
		at := d.nameOf(w.name, u)
		if at == nil {
			continue
		}
		h, ok := existing[w.name]
		delete(existing, w.name)
		what := ""
		switch {
		case !ok:
			stale = append(stale, Stale{at.Pos(), at.End(), w.name + " has no generated code; run go generate"})
			continue
		case h.fields["Schema"] != w.fields["Schema"]:
			what = "its types"
		case h.fields["Options"] != w.fields["Options"]:
			what = "its options"
		case h.fields["ID"] != w.fields["ID"] || h.fields["Package"] != w.fields["Package"]:
			what = "its id"
		case h.fields["Params"] != w.fields["Params"] || h.fields["Validate"] != w.fields["Validate"]:
			what = "its parameters"
		default:
			continue
		}
		stale = append(stale, Stale{at.Pos(), at.End(), w.name + ": " + what + " changed since its code was generated; run go generate"})
	}
	for _, h := range existing {
		stale = append(stale, Stale{h.pos, token.NoPos, h.name + " is not annotated any more; run go generate"})
	}
	return stale
}

// nameOf finds the name of an annotated function, method or class in its
// source.
func (d *sourceDir) nameOf(name string, u *unit) *ast.Ident {
	for _, p := range d.found {
		if !u.owns(p.file) {
			continue
		}
		switch {
		case p.kind() == directive.Func && p.fn.Name.Name == name:
			return p.fn.Name
		case p.kind() == directive.Class && p.spec.Name.Name == name:
			return p.spec.Name
		case p.class != nil && p.class.spec.Name.Name+"."+p.fn.Name.Name == name:
			return p.fn.Name
		}
	}
	return nil
}
