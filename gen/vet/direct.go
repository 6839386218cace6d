package vet

import (
	"go/ast"
	"go/types"

	"golang.org/x/tools/go/analysis"
)

var direct = &analysis.Analyzer{
	Name:     "direct",
	Doc:      "report calls of the annotated function itself, which runs here and not in a sandbox",
	Requires: []*analysis.Analyzer{reader},
	Run:      runDirect,
}

func runDirect(pass *analysis.Pass) (any, error) {
	c := from(pass)
	c.each(func(obj *types.Func, fn *ast.FuncDecl, k fileKind) {
		if k.test || k.generated || c.inside[obj] {
			return
		}
		ast.Inspect(fn.Body, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			target := callee(pass.TypesInfo, call)
			if target == nil || target.Signature().Recv() != nil || target.Pkg() == nil {
				return true
			}
			wrapper, handle := c.outputsOf(target)
			if handle == nil || mentions(pass.TypesInfo, fn.Body, wrapper, handle) {
				return true // nothing to call instead, or both on purpose
			}
			message := target.Name() + " is called itself, so it runs here and not in a sandbox; call "
			if wrapper == nil {
				report(pass, call.Fun, message+handle.Name()+".Call, or "+handle.Name()+".Local to say that it is meant")
				return true
			}
			var fixes []analysis.SuggestedFix
			if id := nameIn(call.Fun); id != nil && types.Identical(target.Signature(), wrapper.Signature()) {
				fixes = append(fixes, replace("call "+wrapper.Name(), id, wrapper.Name()))
			}
			report(pass, call.Fun, message+wrapper.Name()+", or "+handle.Name()+".Local to say that it is meant", fixes...)
			return true
		})
	})
	return nil, nil
}

// outputsOf finds what is generated for an annotated function: its wrapper, nil
// when it has a name that can't be guessed, and its handle, nil when fn is not
// annotated.
func (c *code) outputsOf(fn *types.Func) (wrapper *types.Func, handle *types.Var) {
	scope := fn.Pkg().Scope()
	if fn.Pkg() == c.pass.Pkg {
		if !c.annotated[fn] {
			return nil, nil
		}
		// as= gives other names; the wrapper's body says which handle is whose.
		return c.boundTo(fn)
	}
	if !fn.Exported() {
		return nil, nil
	}
	wrapper, _ = scope.Lookup(fn.Name() + "Remote").(*types.Func)
	handle, _ = scope.Lookup(fn.Name() + "Func").(*types.Var)
	if wrapper == nil || handle == nil || !isHandle(handle.Type()) {
		return nil, nil
	}
	return wrapper, handle
}

func isHandle(t types.Type) bool {
	name := handleName(t)
	return name == "Func" || name == "StreamFunc"
}

// boundTo reads in the generated code which handle is bound to fn, and which
// wrapper calls that handle.
func (c *code) boundTo(fn *types.Func) (wrapper *types.Func, handle *types.Var) {
	info := c.pass.TypesInfo
	variable := func(e ast.Expr) *types.Var {
		id, ok := ast.Unparen(e).(*ast.Ident)
		if !ok {
			return nil
		}
		v, _ := info.Uses[id].(*types.Var)
		return v
	}
	for f, k := range c.files {
		if !k.ours {
			continue
		}
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) != 2 {
				return true
			}
			bind := callee(info, call)
			if !isFrom(bind, sandboxfnPath, "Bind", "BindStream", "BindBatch", "BindBatchResults") || !mentions(info, call.Args[1], fn) {
				return true
			}
			if v := variable(call.Args[0]); v != nil && isHandle(v.Type()) {
				handle = v
			}
			return true
		})
	}
	if handle == nil {
		return nil, nil
	}
	for f, k := range c.files {
		if !k.ours {
			continue
		}
		for _, d := range f.Decls {
			w, ok := d.(*ast.FuncDecl)
			if ok && w.Recv == nil && w.Name.Name != "init" && mentions(info, w.Body, handle) {
				wrapper, _ = info.Defs[w.Name].(*types.Func)
			}
		}
	}
	return wrapper, handle
}

// mentions reports whether a node names one of the objects.
func mentions(info *types.Info, n ast.Node, objs ...types.Object) bool {
	found := false
	ast.Inspect(n, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok {
			use := info.Uses[id]
			for _, o := range objs {
				found = found || use != nil && !isNil(o) && use == o
			}
		}
		return !found
	})
	return found
}

func isNil(o types.Object) bool {
	switch o := o.(type) {
	case *types.Func:
		return o == nil
	case *types.Var:
		return o == nil
	}
	return o == nil
}

// nameIn is the name that a call uses.
func nameIn(fun ast.Expr) *ast.Ident {
	switch x := ast.Unparen(fun).(type) {
	case *ast.Ident:
		return x
	case *ast.SelectorExpr:
		return x.Sel
	}
	return nil
}
