package vet

import (
	"go/ast"
	"go/types"
	"slices"

	"golang.org/x/tools/go/analysis"
)

var hostOnly = &analysis.Analyzer{
	Name:     "hostonly",
	Doc:      "report flags, arguments, the working directory and the terminal of the caller in what runs in a sandbox",
	Requires: []*analysis.Analyzer{reader},
	Run:      runHostOnly,
}

// flagFuncs are the functions of package flag that look at the command line.
var flagFuncs = []string{"Parse", "Parsed", "Arg", "Args", "NArg", "NFlag", "Lookup", "Visit", "VisitAll"}

// termFuncs are the functions of golang.org/x/term that need a terminal.
var termFuncs = []string{"GetSize", "GetState", "IsTerminal", "MakeRaw", "ReadPassword", "Restore"}

func runHostOnly(pass *analysis.Pass) (any, error) {
	c := from(pass)
	if len(c.annotated) == 0 {
		return nil, nil
	}
	flags := c.flagVars()
	c.each(func(obj *types.Func, fn *ast.FuncDecl, k fileKind) {
		if !c.inside[obj] {
			return
		}
		say := func(n ast.Node, what string) {
			report(pass, n, what+"; "+c.root(obj)+" runs in a sandbox: pass it as a parameter")
		}
		ast.Inspect(fn.Body, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				target := callee(pass.TypesInfo, n)
				switch {
				case isFrom(target, "flag", flagFuncs...):
					say(n.Fun, "flags are not parsed in a worker")
				case isFrom(target, "os", "Getwd"):
					say(n.Fun, "the working directory in a worker is not the caller's")
				case isFrom(target, "golang.org/x/term", termFuncs...):
					say(n.Fun, "a worker has no terminal")
				}
			case *ast.SelectorExpr:
				if v, ok := pass.TypesInfo.Uses[n.Sel].(*types.Var); ok && v.Pkg() != nil && v.Pkg().Path() == "os" && v.Name() == "Args" {
					say(n, "os.Args in a worker are not the caller's")
				}
			case *ast.StarExpr:
				if id, ok := ast.Unparen(n.X).(*ast.Ident); ok && flags[pass.TypesInfo.Uses[id]] {
					say(n, "flags are not parsed in a worker, so *"+id.Name+" is always its default")
				}
			}
			return true
		})
	})
	return nil, nil
}

// flagVars are the package variables that hold what flag.Int and its like
// return.
func (c *code) flagVars() map[types.Object]bool {
	vars := make(map[types.Object]bool)
	for f, k := range c.files {
		if k.test || k.ours {
			continue
		}
		for _, d := range f.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, s := range g.Specs {
				v, ok := s.(*ast.ValueSpec)
				if !ok || len(v.Names) != len(v.Values) {
					continue
				}
				for i, value := range v.Values {
					call, ok := ast.Unparen(value).(*ast.CallExpr)
					if ok && isFrom(callee(c.pass.TypesInfo, call), "flag", flagMakers...) {
						vars[c.pass.TypesInfo.Defs[v.Names[i]]] = true
					}
				}
			}
		}
	}
	return vars
}

// flagMakers return a pointer to the value of a new flag.
var flagMakers = []string{"Bool", "Duration", "Float64", "Int", "Int64", "String", "Uint", "Uint64"}

// flagSetters store the value of a new flag where their first argument points.
var flagSetters = append([]string{"TextVar", "Var"}, suffixed(flagMakers, "Var")...)

func suffixed(list []string, suffix string) []string {
	list = slices.Clone(list)
	for i := range list {
		list[i] += suffix
	}
	return list
}
