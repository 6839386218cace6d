package vet

import (
	"go/ast"
	"go/token"
	"go/types"
	"maps"
	"slices"

	"golang.org/x/tools/go/analysis"
)

var globals = &analysis.Analyzer{
	Name: "globals",
	Doc: "report package variables that a sandboxed function and the rest of the program do not share: " +
		"those it writes and others read, and those it reads and only the running program sets",
	Requires: []*analysis.Analyzer{reader},
	Run:      runGlobals,
}

// variable is how a package uses one of its variables.
type variable struct {
	inWrite, inRead   ast.Node // the first by a sandboxed function
	in                *types.Func
	outWrite, outRead bool // by what only the running program reaches
	other             bool // written while the package is initialised, or in ways not understood
}

func runGlobals(pass *analysis.Pass) (any, error) {
	c := from(pass)
	if len(c.annotated) == 0 {
		return nil, nil
	}
	vars := make(map[*types.Var]*variable)
	of := func(v *types.Var) *variable {
		if vars[v] == nil {
			vars[v] = new(variable)
		}
		return vars[v]
	}
	for f, k := range c.files {
		if k.ours {
			continue
		}
		for _, d := range f.Decls {
			if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.VAR {
				c.initialised(g, of)
			}
		}
	}
	c.each(func(obj *types.Func, fn *ast.FuncDecl, k fileKind) {
		if k.test {
			return
		}
		early := c.early[obj] || fn.Recv == nil && fn.Name.Name == "init"
		for _, u := range c.varUses(fn.Body) {
			v := of(u.v)
			switch {
			case u.kind == strange || u.kind == written && early:
				v.other = true
			case c.inside[obj] && u.kind == written:
				if v.inWrite == nil {
					v.inWrite, v.in = u.n, obj
				}
			case c.inside[obj]:
				if v.inRead == nil {
					v.inRead, v.in = u.n, obj
				}
			case u.kind == written:
				v.outWrite = true
			case !early:
				v.outRead = true
			}
		}
	})
	for _, v := range slices.SortedFunc(maps.Keys(vars), func(a, b *types.Var) int { return int(a.Pos() - b.Pos()) }) {
		switch u := vars[v]; {
		case u.inWrite != nil && u.inRead == nil && u.outRead && !u.other:
			report(pass, u.inWrite, c.root(u.in)+" runs in a sandbox, so what it writes to "+v.Name()+" is not seen by the rest of the program; return it")
		case u.inRead != nil && u.inWrite == nil && u.outWrite && !u.other:
			report(pass, u.inRead, c.root(u.in)+" runs in a sandbox, where "+v.Name()+" is never set: only the running program sets it; pass it as a parameter")
		}
	}
	return nil, nil
}

// initialised notes variables that have a value from the start, or whose type
// makes sharing them plain.
func (c *code) initialised(g *ast.GenDecl, of func(*types.Var) *variable) {
	for _, s := range g.Specs {
		spec := s.(*ast.ValueSpec)
		for _, id := range spec.Names {
			v, ok := c.pass.TypesInfo.Defs[id].(*types.Var)
			if ok && len(spec.Values) > 0 {
				of(v).other = of(v).other || c.hasValue(spec, id)
			}
		}
	}
}

// hasValue reports whether a variable starts with more than the zero value or
// an empty map or slice.
func (c *code) hasValue(spec *ast.ValueSpec, id *ast.Ident) bool {
	if len(spec.Names) != len(spec.Values) {
		return true
	}
	switch x := ast.Unparen(spec.Values[slices.Index(spec.Names, id)]).(type) {
	case *ast.CompositeLit:
		return len(x.Elts) > 0
	case *ast.BasicLit:
		return x.Value != "0" && x.Value != `""` && x.Value != "``"
	case *ast.Ident:
		return x.Name != "nil" && x.Name != "false"
	case *ast.CallExpr:
		b, ok := ast.Unparen(x.Fun).(*ast.Ident)
		if !ok {
			return true
		}
		_, builtin := c.pass.TypesInfo.Uses[b].(*types.Builtin)
		return !builtin || b.Name != "make" && b.Name != "new"
	}
	return true
}

type useKind int

const (
	readOnly useKind = iota
	written          // assigned, also a part of it
	strange          // its address taken, or a method called that may change it
)

type varUse struct {
	v    *types.Var
	n    ast.Node
	kind useKind
}

// varUses lists the uses of package variables in a body.
func (c *code) varUses(body *ast.BlockStmt) []varUse {
	info := c.pass.TypesInfo
	var uses []varUse
	done := make(map[*ast.Ident]bool)
	root := func(e ast.Expr) *ast.Ident {
		for {
			switch x := ast.Unparen(e).(type) {
			case *ast.SelectorExpr:
				e = x.X
			case *ast.IndexExpr:
				e = x.X
			case *ast.StarExpr:
				e = x.X
			case *ast.SliceExpr:
				e = x.X
			case *ast.Ident:
				return x
			default:
				return nil
			}
		}
	}
	add := func(e ast.Expr, kind useKind) {
		if v, _ := c.pkgVar(e); v != nil {
			if id := root(e); id != nil && !done[id] {
				done[id] = true
				uses = append(uses, varUse{v, e, kind})
			}
		}
	}
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			for _, l := range n.Lhs {
				v, _ := c.pkgVar(l)
				add(l, written)
				for _, r := range n.Rhs { // x = append(x, …) reads nothing that matters
					ast.Inspect(r, func(n ast.Node) bool {
						if id, ok := n.(*ast.Ident); ok && v != nil && info.Uses[id] == v {
							done[id] = true
						}
						return true
					})
				}
			}
		case *ast.IncDecStmt:
			add(n.X, written)
		case *ast.RangeStmt:
			if n.Key != nil {
				add(n.Key, written)
			}
			if n.Value != nil {
				add(n.Value, written)
			}
		case *ast.UnaryExpr:
			if n.Op == token.AND {
				add(n.X, strange)
			}
		case *ast.CallExpr:
			fn := callee(info, n)
			if isFrom(fn, "flag", flagSetters...) && len(n.Args) > 0 {
				if u, ok := ast.Unparen(n.Args[0]).(*ast.UnaryExpr); ok && u.Op == token.AND {
					add(u.X, written)
				}
			}
			if id, ok := ast.Unparen(n.Fun).(*ast.Ident); ok && len(n.Args) > 0 {
				if _, builtin := info.Uses[id].(*types.Builtin); builtin && slices.Contains([]string{"clear", "copy", "delete"}, id.Name) {
					add(n.Args[0], written)
				}
			}
		case *ast.SelectorExpr:
			if s, ok := info.Selections[n]; ok && s.Kind() != types.FieldVal {
				add(n.X, strange)
			}
		case *ast.SliceExpr:
			add(n.X, strange) // shares the memory
		case *ast.Ident:
			add(n, readOnly)
		}
		return true
	})
	return uses
}
