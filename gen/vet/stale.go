package vet

import (
	"go/types"

	"golang.org/x/tools/go/analysis"

	"github.com/agent-sandbox/sandbox-go/gen"
)

var stale = &analysis.Analyzer{
	Name:     "stale",
	Doc:      "report generated code that is not what directives and types say now",
	Requires: []*analysis.Analyzer{reader},
	Run: func(pass *analysis.Pass) (any, error) {
		c := from(pass)
		ours := false
		for _, k := range c.files {
			ours = ours || k.ours
		}
		if !ours && len(c.annotated) == 0 {
			return nil, nil
		}
		imported := make(map[string]*types.Package)
		for _, p := range pass.Pkg.Imports() {
			imported[p.Path()] = p
		}
		list, err := gen.FindStale(pass.Fset, pass.Pkg.Path(), pass.Files, func(path string) *types.Package { return imported[path] })
		if err != nil {
			return nil, nil // sandboxgen reports it
		}
		for _, s := range list {
			pass.Report(analysis.Diagnostic{Pos: s.Pos, End: s.End, Message: s.Message})
		}
		return nil, nil
	},
}
