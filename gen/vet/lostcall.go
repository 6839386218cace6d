package vet

import (
	"go/ast"
	"go/types"
	"strings"

	"golang.org/x/tools/go/analysis"
)

var lostCall = &analysis.Analyzer{
	Name:     "lostcall",
	Doc:      "report spawned calls that nobody waits for and streams that nobody ranges over",
	Requires: []*analysis.Analyzer{reader},
	Run:      runLostCall,
}

func runLostCall(pass *analysis.Pass) (any, error) {
	c := from(pass)
	for f, k := range c.files {
		if k.generated {
			continue
		}
		ast.Inspect(f, func(n ast.Node) bool {
			var call *ast.CallExpr
			blank := false
			switch n := n.(type) {
			case *ast.ExprStmt:
				call, _ = ast.Unparen(n.X).(*ast.CallExpr)
			case *ast.GoStmt:
				call = n.Call
			case *ast.DeferStmt:
				call = n.Call
			case *ast.AssignStmt:
				if len(n.Lhs) == 1 && len(n.Rhs) == 1 {
					if id, ok := n.Lhs[0].(*ast.Ident); ok && id.Name == "_" {
						call, _ = ast.Unparen(n.Rhs[0]).(*ast.CallExpr)
						blank = true
					}
				}
			}
			if call == nil {
				return true
			}
			switch name := c.lost(call); {
			case name == "Spawn" && !blank: // _ = says that it is meant
				report(pass, call.Fun, "the result of Spawn is dropped, so nobody sees whether the call failed; keep it and Wait, or write _ = to say that it is meant")
			case name != "" && name != "Spawn":
				report(pass, call.Fun, name+" does nothing until its result is ranged over")
			}
			return true
		})
	}
	return nil, nil
}

// lost names the method or wrapper that a call is of, if its result matters.
func (c *code) lost(call *ast.CallExpr) string {
	fn := callee(c.pass.TypesInfo, call)
	if fn == nil || fn.Pkg() == nil {
		return ""
	}
	if recv := fn.Signature().Recv(); recv != nil {
		switch handle := handleName(recv.Type()); {
		case handle == "Func" && fn.Name() == "Spawn":
			return "Spawn"
		case handle == "Func" && (fn.Name() == "Map" || fn.Name() == "MapUnordered"), handle == "StreamFunc" && fn.Name() == "Stream":
			return fn.Name()
		}
		return ""
	}
	if handle, ok := fn.Pkg().Scope().Lookup(handleOf(fn.Name())).(*types.Var); ok && handleName(handle.Type()) == "StreamFunc" && isSeq2(fn.Signature()) {
		return fn.Name()
	}
	return ""
}

// handleOf is the name of a wrapper's handle.
func handleOf(wrapper string) string {
	if base, ok := strings.CutSuffix(wrapper, "Remote"); ok && base != "" {
		return base + "Func"
	}
	return wrapper + "Func"
}

// isSeq2 reports whether a function returns an iter.Seq2 and nothing else.
func isSeq2(sig *types.Signature) bool {
	if sig.Results().Len() != 1 {
		return false
	}
	n, ok := types.Unalias(sig.Results().At(0).Type()).(*types.Named)
	return ok && n.Obj().Pkg() != nil && n.Obj().Pkg().Path() == "iter" && n.Obj().Name() == "Seq2"
}
