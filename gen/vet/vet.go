// Package vet holds checks of programs with sandboxed functions, for go vet:
// what compiles and still does something else than it seems to. docs/vet.md
// describes them. A check that is not sure says nothing.
package vet

import (
	"go/ast"
	"go/token"
	"go/types"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/unitchecker"

	"github.com/agent-sandbox/sandbox-go/gen/directive"
)

const sandboxfnPath = "github.com/agent-sandbox/sandbox-go/sandboxfn"

// Analyzers are the checks, by name.
func Analyzers() []*analysis.Analyzer {
	return []*analysis.Analyzer{blankImport, capture, direct, globals, hostOnly, lostCall, stale}
}

// Main is the program that go vet -vettool runs. It does not return.
func Main() { unitchecker.Main(Analyzers()...) }

// reader reads what the checks have in common.
var reader = &analysis.Analyzer{
	Name:       "sandboxfuncs",
	Doc:        "find sandboxed functions and what they reach",
	Run:        func(pass *analysis.Pass) (any, error) { return read(pass), nil },
	ResultType: reflect.TypeFor[*code](),
}

// code is a package as the checks see it.
type code struct {
	pass  *analysis.Pass
	decls map[*types.Func]*ast.FuncDecl // with bodies, without generated ones
	files map[*ast.File]fileKind
	// annotated are the functions and methods that run in a sandbox.
	annotated map[*types.Func]bool
	// inside is what these use of the package, directly or not, with themselves.
	inside map[*types.Func]bool
	// early is what init functions and initialisers of variables use.
	early map[*types.Func]bool
}

// from returns what reader found, for the pass of a check.
func from(pass *analysis.Pass) *code {
	c := *pass.ResultOf[reader].(*code)
	c.pass = pass
	return &c
}

type fileKind struct{ test, generated, ours bool }

func read(pass *analysis.Pass) *code {
	c := &code{
		pass: pass, decls: make(map[*types.Func]*ast.FuncDecl), files: make(map[*ast.File]fileKind),
		annotated: make(map[*types.Func]bool),
	}
	uses := make(map[*types.Func][]*types.Func)
	var early []*types.Func
	for _, f := range pass.Files {
		name := filepath.Base(pass.Fset.PositionFor(f.Package, false).Filename)
		k := fileKind{test: strings.HasSuffix(name, "_test.go"), generated: ast.IsGenerated(f)}
		k.ours = k.generated && strings.HasPrefix(name, "zz_generated.sandbox")
		c.files[f] = k
		if k.ours {
			continue
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				early = append(early, c.used(d)...)
				continue
			}
			if fn.Recv == nil && fn.Name.Name == "init" {
				early = append(early, c.used(fn)...)
			}
			obj, ok := pass.TypesInfo.Defs[fn.Name].(*types.Func)
			if !ok || fn.Body == nil {
				continue
			}
			c.decls[obj] = fn
			uses[obj] = c.used(fn)
			if isAnnotated(fn) {
				c.annotated[obj] = true
			}
		}
	}
	closure := func(from []*types.Func) map[*types.Func]bool {
		seen := make(map[*types.Func]bool)
		for len(from) > 0 {
			fn := from[0]
			from = from[1:]
			if !seen[fn] && c.decls[fn] != nil {
				seen[fn] = true
				from = append(from, uses[fn]...)
			}
		}
		return seen
	}
	var roots []*types.Func
	for fn := range c.annotated {
		roots = append(roots, fn)
	}
	c.inside, c.early = closure(roots), closure(early)
	return c
}

// isAnnotated reports whether a function runs in a sandbox.
func isAnnotated(fn *ast.FuncDecl) bool {
	if fn.Doc == nil {
		return false
	}
	return slices.ContainsFunc(fn.Doc.List, func(c *ast.Comment) bool {
		line, _ := directive.Classify(c)
		return line != nil && slices.Contains([]directive.Kind{directive.Func, directive.Method, directive.Enter, directive.Exit}, line.Kind)
	})
}

// used lists the functions of the package that a node mentions, generic ones
// without their type arguments.
func (c *code) used(n ast.Node) []*types.Func {
	var list []*types.Func
	ast.Inspect(n, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok {
			if fn, ok := c.pass.TypesInfo.Uses[id].(*types.Func); ok && fn.Pkg() == c.pass.Pkg {
				list = append(list, fn.Origin())
			}
		}
		return true
	})
	return list
}

// each calls visit for every function with a body that users wrote.
func (c *code) each(visit func(obj *types.Func, fn *ast.FuncDecl, k fileKind)) {
	for _, f := range c.pass.Files {
		k := c.files[f]
		if k.ours {
			continue
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil {
				if obj, ok := c.pass.TypesInfo.Defs[fn.Name].(*types.Func); ok {
					visit(obj, fn, k)
				}
			}
		}
	}
}

// root names one of the annotated functions that reach fn, for messages: fn
// itself, or the first in the source.
func (c *code) root(fn *types.Func) string {
	if c.annotated[fn] {
		return fn.Name()
	}
	var first *types.Func
	for a := range c.annotated {
		if c.reaches(a, fn) && (first == nil || a.Pos() < first.Pos()) {
			first = a
		}
	}
	if first == nil {
		return fn.Name()
	}
	return first.Name()
}

func (c *code) reaches(from, to *types.Func) bool {
	seen := make(map[*types.Func]bool)
	var walk func(*types.Func) bool
	walk = func(fn *types.Func) bool {
		if fn == to {
			return true
		}
		if seen[fn] || c.decls[fn] == nil {
			return false
		}
		seen[fn] = true
		return slices.ContainsFunc(c.used(c.decls[fn]), walk)
	}
	return walk(from)
}

// callee is the function or method that a call names; nil for others.
func callee(info *types.Info, call *ast.CallExpr) *types.Func {
	fun := ast.Unparen(call.Fun)
	switch x := fun.(type) {
	case *ast.IndexExpr:
		fun = x.X
	case *ast.IndexListExpr:
		fun = x.X
	}
	var id *ast.Ident
	switch x := fun.(type) {
	case *ast.Ident:
		id = x
	case *ast.SelectorExpr:
		id = x.Sel
	default:
		return nil
	}
	fn, _ := info.Uses[id].(*types.Func)
	return fn
}

// isFrom reports whether fn is the function name of a package, by its path.
func isFrom(fn *types.Func, path string, names ...string) bool {
	return fn != nil && fn.Pkg() != nil && fn.Pkg().Path() == path && fn.Signature().Recv() == nil && slices.Contains(names, fn.Name())
}

// handleName is the name of the type of sandboxfn that t is an instance of; ""
// for other types.
func handleName(t types.Type) string {
	if p, ok := types.Unalias(t).(*types.Pointer); ok {
		t = p.Elem()
	}
	n, ok := types.Unalias(t).(*types.Named)
	if !ok || n.Obj().Pkg() == nil || n.Obj().Pkg().Path() != sandboxfnPath {
		return ""
	}
	return n.Obj().Name()
}

// pkgVar is the package-level variable of this package at the root of an
// expression such as x, x.f, x[i] or *x; nil for others. deep says that it is
// not the variable itself.
func (c *code) pkgVar(e ast.Expr) (v *types.Var, deep bool) {
	for {
		switch x := ast.Unparen(e).(type) {
		case *ast.SelectorExpr:
			if _, ok := c.pass.TypesInfo.Selections[x]; !ok {
				return nil, false // of another package
			}
			e, deep = x.X, true
		case *ast.IndexExpr:
			e, deep = x.X, true
		case *ast.StarExpr:
			e, deep = x.X, true
		case *ast.Ident:
			v, ok := c.pass.TypesInfo.Uses[x].(*types.Var)
			if !ok || v.Pkg() != c.pass.Pkg || v.Parent() != c.pass.Pkg.Scope() {
				return nil, false
			}
			return v, deep
		default:
			return nil, false
		}
	}
}

func report(pass *analysis.Pass, n ast.Node, message string, fixes ...analysis.SuggestedFix) {
	pass.Report(analysis.Diagnostic{Pos: n.Pos(), End: n.End(), Message: message, SuggestedFixes: fixes})
}

// replace is a fix that puts text in the place of a node.
func replace(message string, n ast.Node, text string) analysis.SuggestedFix {
	return analysis.SuggestedFix{Message: message, TextEdits: []analysis.TextEdit{{Pos: n.Pos(), End: n.End(), NewText: []byte(text)}}}
}

// within reports whether pos lies in n.
func within(n ast.Node, pos token.Pos) bool { return n != nil && n.Pos() <= pos && pos < n.End() }
