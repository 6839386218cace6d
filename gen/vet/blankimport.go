package vet

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strconv"

	"golang.org/x/tools/go/analysis"
)

var blankImport = &analysis.Analyzer{
	Name:      "blankimport",
	Doc:       "report packages that only main imports although a sandboxed function needs what they register",
	Requires:  []*analysis.Analyzer{reader},
	Run:       runBlankImport,
	FactTypes: []analysis.Fact{new(registered)},
}

// registered is the fact of a package about registers: which it or its imports
// fill, and which its sandboxed functions look into although they are empty.
type registered struct {
	Fills []string
	Needs []need
}

// need is a function that looks into a register.
type need struct{ Register, Function, Call string }

// AFact implements analysis.Fact.
func (*registered) AFact() {}

func (f *registered) String() string { return fmt.Sprintf("fills %q, needs %v", f.Fills, f.Needs) }

// registers are what packages fill when they are initialised: by which calls,
// or by being imported, and which calls look into them.
var registers = []struct {
	name    string
	fillPkg string
	fill    []string
	tables  []string // packages that are the register's content
	lookPkg string
	look    []string
}{
	{"image formats", "image", []string{"RegisterFormat"}, nil, "image", []string{"Decode", "DecodeConfig"}},
	{"database drivers", "database/sql", []string{"Register"}, nil, "database/sql", []string{"Open"}},
	{"time zones", "", nil, []string{"time/tzdata"}, "time", []string{"LoadLocation"}},
}

func runBlankImport(pass *analysis.Pass) (any, error) {
	c := from(pass)
	var fact registered
	direct := make(map[string]*registered) // by path of the import
	for _, p := range pass.Pkg.Imports() {
		f := new(registered)
		if pass.ImportPackageFact(p, f) {
			direct[p.Path()] = f
			for _, r := range f.Fills {
				fact.add(r)
			}
		}
	}
	for _, r := range registers {
		if slices.Contains(r.tables, pass.Pkg.Path()) || r.fill != nil && c.calls(nil, r.fillPkg, r.fill) != "" {
			fact.add(r.name)
		}
	}
	if len(c.annotated) > 0 {
		for _, r := range registers {
			if slices.Contains(fact.Fills, r.name) {
				continue
			}
			for _, fn := range c.insideInOrder() {
				if call := c.calls(c.decls[fn], r.lookPkg, r.look); call != "" {
					fact.Needs = append(fact.Needs, need{r.name, pass.Pkg.Name() + "." + c.root(fn), call})
					break
				}
			}
		}
	}
	if len(fact.Fills)+len(fact.Needs) > 0 {
		pass.ExportPackageFact(&fact)
	}
	if pass.Pkg.Name() == "main" && c.calls(nil, sandboxfnPath, []string{"Main"}) == "" {
		c.lacking(direct)
	}
	return nil, nil
}

func (f *registered) add(r string) {
	if !slices.Contains(f.Fills, r) {
		f.Fills = append(f.Fills, r)
	}
}

// lacking reports imports of main that fill what a package with sandboxed
// functions does not have.
func (c *code) lacking(direct map[string]*registered) {
	var needs []need
	for _, p := range c.pass.AllPackageFacts() {
		needs = append(needs, p.Fact.(*registered).Needs...)
	}
	slices.SortFunc(needs, func(a, b need) int {
		if a.Function < b.Function {
			return -1
		}
		return 1
	})
	for f, k := range c.files {
		if k.generated || k.test {
			continue
		}
		for _, s := range f.Imports {
			path, err := strconv.Unquote(s.Path.Value)
			if err != nil || s.Name == nil || s.Name.Name != "_" || direct[path] == nil {
				continue
			}
			for _, n := range needs {
				if slices.Contains(direct[path].Fills, n.Register) {
					report(c.pass, s, n.Function+" calls "+n.Call+" in a sandbox, where only its own package and what that imports is initialised: import "+
						path+" there too, or begin main with sandboxfn.Main()")
					break
				}
			}
		}
	}
}

// insideInOrder lists what runs in sandboxes, by position.
func (c *code) insideInOrder() []*types.Func {
	var list []*types.Func
	for fn := range c.inside {
		list = append(list, fn)
	}
	slices.SortFunc(list, func(a, b *types.Func) int { return int(a.Pos() - b.Pos()) })
	return list
}

// calls finds a use of one of some functions in a declaration, or in the whole
// package, and returns how it reads.
func (c *code) calls(in ast.Node, path string, names []string) string {
	for id, obj := range c.pass.TypesInfo.Uses {
		fn, ok := obj.(*types.Func)
		if ok && isFrom(fn, path, names...) && (in == nil || within(in, id.Pos())) && !c.inTest(id.Pos()) {
			return fn.Pkg().Name() + "." + fn.Name()
		}
	}
	return ""
}

func (c *code) inTest(pos token.Pos) bool {
	for f, k := range c.files {
		if k.test && f.FileStart <= pos && pos <= f.FileEnd {
			return true
		}
	}
	return false
}
