package vet

import (
	"go/ast"
	"go/token"
	"go/types"

	"golang.org/x/tools/go/analysis"
)

var capture = &analysis.Analyzer{
	Name:     "capture",
	Doc:      "report callbacks and streams of the caller that are kept beyond the call they came with",
	Requires: []*analysis.Analyzer{reader},
	Run:      runCapture,
}

func runCapture(pass *analysis.Pass) (any, error) {
	c := from(pass)
	c.each(func(obj *types.Func, fn *ast.FuncDecl, k fileKind) {
		if !c.annotated[obj] {
			return
		}
		live := make(map[types.Object]bool)
		for p := range obj.Signature().Params().Variables() {
			if isLive(p.Type()) {
				live[p] = true
			}
		}
		if len(live) == 0 {
			return
		}
		var receiver types.Object
		if r := obj.Signature().Recv(); r != nil {
			receiver = r
		}
		c.kept(fn, live, receiver)
		c.goroutines(fn, live)
	})
	return nil, nil
}

// isLive reports whether values of a parameter type end with the call.
func isLive(t types.Type) bool {
	if _, ok := t.Underlying().(*types.Signature); ok {
		return true
	}
	n, ok := types.Unalias(t).(*types.Named)
	if !ok || n.Obj().Pkg() == nil {
		return false
	}
	switch n.Obj().Pkg().Path() + "." + n.Obj().Name() {
	case "io.Reader", "io.Writer", "iter.Seq", "iter.Seq2":
		return true
	}
	return false
}

// kept reports assignments of live parameters to what outlives the call,
// unless the same place is assigned again.
func (c *code) kept(fn *ast.FuncDecl, live map[types.Object]bool, receiver types.Object) {
	info := c.pass.TypesInfo
	places := make(map[string]int)
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		if a, ok := n.(*ast.AssignStmt); ok {
			for _, l := range a.Lhs {
				places[types.ExprString(l)]++
			}
		}
		return true
	})
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		a, ok := n.(*ast.AssignStmt)
		if !ok || a.Tok != token.ASSIGN || len(a.Lhs) != len(a.Rhs) {
			return true
		}
		for i, l := range a.Lhs {
			p := c.liveIn(a.Rhs[i], live)
			if p == nil || places[types.ExprString(l)] > 1 {
				continue
			}
			v, _ := c.pkgVar(l)
			if v != nil || receiver != nil && isField(info, l, receiver) {
				report(c.pass, a, p.Name()+" belongs to the caller and ends with the call, but is kept in "+types.ExprString(l))
			}
		}
		return true
	})
}

// liveIn is the live parameter that an expression is, or that it appends.
func (c *code) liveIn(e ast.Expr, live map[types.Object]bool) types.Object {
	switch x := ast.Unparen(e).(type) {
	case *ast.Ident:
		if o := c.pass.TypesInfo.Uses[x]; live[o] {
			return o
		}
	case *ast.CallExpr:
		id, ok := ast.Unparen(x.Fun).(*ast.Ident)
		if !ok || id.Name != "append" {
			return nil
		}
		for _, arg := range x.Args[1:] {
			if o := c.liveIn(arg, live); o != nil {
				return o
			}
		}
	}
	return nil
}

// isField reports whether an expression is a field of a receiver.
func isField(info *types.Info, e ast.Expr, receiver types.Object) bool {
	for {
		switch x := ast.Unparen(e).(type) {
		case *ast.SelectorExpr:
			if id, ok := ast.Unparen(x.X).(*ast.Ident); ok {
				return info.Uses[id] == receiver
			}
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		default:
			return false
		}
	}
}

// goroutines reports live parameters that goroutines use, in functions that
// wait for nothing after starting them.
func (c *code) goroutines(fn *ast.FuncDecl, live map[types.Object]bool) {
	var started []*ast.GoStmt
	waits := false
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			started = append(started, n)
			return false
		case *ast.SelectStmt:
			waits = true
		case *ast.UnaryExpr:
			waits = waits || n.Op == token.ARROW
		case *ast.RangeStmt:
			t := c.pass.TypesInfo.TypeOf(n.X)
			if t != nil {
				_, channel := t.Underlying().(*types.Chan)
				waits = waits || channel
			}
		case *ast.CallExpr:
			// Anything that is handed on may wait.
			if sel, ok := ast.Unparen(n.Fun).(*ast.SelectorExpr); ok {
				switch sel.Sel.Name {
				case "Wait", "Lock", "Acquire", "Done", "Receive":
					waits = true
				}
			}
			for _, arg := range n.Args {
				if t := c.pass.TypesInfo.TypeOf(arg); t != nil {
					if _, channel := t.Underlying().(*types.Chan); channel {
						waits = true
					}
				}
			}
		}
		return true
	})
	if waits {
		return
	}
	for _, g := range started {
		found := false
		ast.Inspect(g, func(n ast.Node) bool {
			id, ok := n.(*ast.Ident)
			if ok && !found && live[c.pass.TypesInfo.Uses[id]] {
				found = true
				report(c.pass, id, id.Name+" belongs to the caller and ends with the call, but a goroutine uses it that the function does not wait for")
			}
			return true
		})
	}
}
