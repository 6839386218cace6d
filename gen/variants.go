package gen

import (
	"context"
	"fmt"
	"go/ast"
	"go/build"
	"go/build/constraint"
	"go/token"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/agent-sandbox/sandbox-go/gen/directive"
)

// Names of the files that hold what tests declare, and the start of those for
// files that are not part of every build.
const (
	testFile     = "zz_generated.sandbox_test.go"
	externalFile = "zz_generated.sandbox_x_test.go"
	variantStart = "zz_generated.sandbox-"
)

// side is a package that one folder holds.
type side int

const (
	plainSide    side = iota
	testSide          // the package with its own tests
	externalSide      // the package of external tests
)

// sideOf says which package of the folder a file belongs to.
func sideOf(f *sourceFile) side {
	switch {
	case !f.test:
		return plainSide
	case strings.HasSuffix(f.ast.Name.Name, "_test"):
		return externalSide
	}
	return testSide
}

// unit is one generated file.
type unit struct {
	name  string
	side  side
	files []*sourceFile // whose directives it is for; none: it only takes over
	// constraint says in which builds it belongs; nil: in all.
	constraint constraint.Expr
	variant    bool // another file takes over
}

// owns reports whether the directives of a file are for the unit.
func (u *unit) owns(f *sourceFile) bool { return slices.Contains(u.files, f) }

// covers reports whether what a file declares is in each build that the unit is
// in, and in no other unit's.
func (u *unit) covers(f *sourceFile) bool {
	if u.variant {
		return u.owns(f)
	}
	return sideOf(f) == u.side && !f.constrained
}

// takeover is the name of the worker's unit.
func (u *unit) takeover(path string) string {
	if u.side == testSide {
		return path + ".test"
	}
	return path // that of external tests ends in _test
}

// filesVar is the variable that holds the content of files=.
func (u *unit) filesVar() string {
	name := filesVar
	if u.side == testSide {
		name += "_test"
	}
	if u.variant {
		name += "_" + strings.Map(func(r rune) rune {
			if r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
				return r
			}
			return '_'
		}, strings.TrimSuffix(strings.TrimPrefix(u.name, variantStart), ".go"))
	}
	return name
}

// units lists the files to generate for a folder: those with takeovers first,
// because what the others hold can use what those declare.
func (d *sourceDir) units() []*unit {
	main := []*unit{{name: OutputFile, side: plainSide}, {name: testFile, side: testSide}, {name: externalFile, side: externalSide}}
	needed := make(map[*unit]bool)
	variants := make(map[*sourceFile]*unit)
	var rest []*unit
	for _, p := range d.found {
		if k := p.kind(); k == directive.Package || k == directive.With {
			continue
		}
		u := main[sideOf(p.file)]
		needed[u] = true
		if p.file.constrained {
			v := variants[p.file]
			if v == nil {
				v = &unit{name: variantStart + p.file.name, side: u.side, variant: true, constraint: p.file.constraint, files: []*sourceFile{p.file}}
				variants[p.file] = v
				rest = append(rest, v)
			}
			continue
		}
		if !u.owns(p.file) {
			u.files = append(u.files, p.file)
		}
	}
	var list []*unit
	for _, u := range main {
		if !needed[u] {
			continue
		}
		// A package that exists in some builds only must not appear in others.
		if u.side == plainSide && d.allConstrained() {
			u.constraint = either(rest, plainSide)
		}
		list = append(list, u)
	}
	for _, s := range []side{plainSide, testSide, externalSide} { // in the order in which they build on each other
		for _, v := range rest {
			if v.side == s {
				list = append(list, v)
			}
		}
	}
	slices.SortStableFunc(list, func(a, b *unit) int { return int(a.side - b.side) })
	return list
}

// either joins the constraints of units.
func either(units []*unit, s side) constraint.Expr {
	var all constraint.Expr
	for _, u := range units {
		switch {
		case u.side != s || u.constraint == nil:
		case all == nil:
			all = u.constraint
		default:
			all = &constraint.OrExpr{X: all, Y: u.constraint}
		}
	}
	return all
}

// allConstrained reports whether there may be builds without this package.
func (d *sourceDir) allConstrained() bool {
	return !slices.ContainsFunc(d.files, func(f *sourceFile) bool { return !f.test && !f.constrained })
}

// has reports whether something is generated for a package of the folder.
func (d *sourceDir) has(s side) bool {
	return slices.ContainsFunc(d.found, func(p *placed) bool { return p.kind() != directive.Package && sideOf(p.file) == s })
}

// splitClasses reports methods that stand in files with another build than
// their class.
func (d *sourceDir) splitClasses(r *reporter) {
	d.found = slices.DeleteFunc(d.found, func(p *placed) bool {
		c := p.class
		if c == nil || c.file == p.file || sideOf(c.file) == sideOf(p.file) && !c.file.constrained && !p.file.constrained {
			return false
		}
		l := p.lines[0]
		r.add(l.Pos, l.KindEnd, "G004", "//sandbox:%s stands in a file that is not in the same builds as %s at %s; move it there",
			l.Kind, c.spec.Name.Name, r.at(c.spec.Name.Pos()))
		return true
	})
}

// The names that the go command reads in file names; see internal/syslist.
var (
	systems = strings.Fields("linux darwin windows freebsd netbsd openbsd dragonfly solaris illumos aix plan9 android ios js wasip1 hurd nacl zos")
	arches  = strings.Fields("amd64 arm64 386 arm riscv64 loong64 ppc64le ppc64 s390x mips mipsle mips64 mips64le wasm " +
		"amd64p32 armbe arm64be mips64p32 mips64p32le ppc riscv s390 sparc sparc64")
	unixSystems = strings.Fields("linux darwin freebsd netbsd openbsd dragonfly solaris illumos aix android ios hurd")
)

// fileConstraint joins what the name of a file and its //go:build line say; nil
// when that is nothing.
func fileConstraint(name string, f *ast.File) constraint.Expr {
	var all constraint.Expr
	and := func(x constraint.Expr) {
		if all == nil {
			all = x
			return
		}
		all = &constraint.AndExpr{X: all, Y: x}
	}
	for _, tag := range nameTags(name) {
		and(&constraint.TagExpr{Tag: tag})
	}
	var plus []constraint.Expr
	for _, g := range f.Comments {
		if g.Pos() > f.Package {
			break
		}
		for _, c := range g.List {
			x, err := constraint.Parse(c.Text)
			switch {
			case err != nil:
			case constraint.IsGoBuild(c.Text): // makes the other form a mere copy
				and(x)
				return all
			default:
				plus = append(plus, x)
			}
		}
	}
	for _, x := range plus {
		and(x)
	}
	return all
}

// nameTags are the system and the processor that a file is named for.
func nameTags(name string) []string {
	name, _, _ = strings.Cut(name, ".")
	i := strings.Index(name, "_")
	if i < 0 {
		return nil
	}
	parts := strings.Split(name[i+1:], "_")
	if n := len(parts); parts[n-1] == "test" {
		parts = parts[:n-1]
	}
	n := len(parts)
	switch {
	case n >= 2 && slices.Contains(systems, parts[n-2]) && slices.Contains(arches, parts[n-1]):
		return parts[n-2:]
	case n >= 1 && (slices.Contains(systems, parts[n-1]) || slices.Contains(arches, parts[n-1])):
		return parts[n-1:]
	}
	return nil
}

// A platform is a build in which a constrained file can be looked at.
type platform struct{ goos, goarch, tags string }

// buildOf finds a build that x holds in, as near as possible to the one at
// hand.
func (g *generator) buildOf(x constraint.Expr) (platform, bool) {
	var free []string // tags of the user
	constraintTags(x, func(tag string) {
		known := slices.Contains(systems, tag) || slices.Contains(arches, tag) || slices.Contains([]string{"unix", "cgo", "gc", "gccgo", "ignore"}, tag)
		if !known && !strings.HasPrefix(tag, "go1.") && !slices.Contains(free, tag) {
			free = append(free, tag)
		}
	})
	if len(free) > 8 {
		return platform{}, false
	}
	given := g.givenTags()
	goos, goarch := g.setting("GOOS", runtime.GOOS), g.setting("GOARCH", runtime.GOARCH)
	for _, sys := range slices.Insert(slices.Clone(systems), 0, goos) {
		for _, arch := range slices.Insert(slices.Clone(arches), 0, goarch) {
			if arch == "wasm" != (sys == "js" || sys == "wasip1") {
				continue
			}
			for set := range 1 << len(free) {
				tags := slices.Clone(given)
				for i, tag := range free {
					if set&(1<<i) != 0 {
						tags = append(tags, tag)
					}
				}
				ok := x.Eval(func(tag string) bool {
					switch tag {
					case "gc":
						return true
					case "unix":
						return slices.Contains(unixSystems, sys)
					case "ignore", "gccgo", "cgo":
						return false
					case "linux":
						return sys == "linux" || sys == "android"
					case "darwin":
						return sys == "darwin" || sys == "ios"
					case "solaris":
						return sys == "solaris" || sys == "illumos"
					}
					return tag == sys || tag == arch || slices.Contains(tags, tag) || slices.Contains(build.Default.ReleaseTags, tag)
				})
				if ok {
					return platform{sys, arch, strings.Join(tags, ",")}, true
				}
			}
		}
	}
	return platform{}, false
}

func constraintTags(x constraint.Expr, visit func(string)) {
	switch x := x.(type) {
	case *constraint.TagExpr:
		visit(x.Tag)
	case *constraint.NotExpr:
		constraintTags(x.X, visit)
	case *constraint.AndExpr:
		constraintTags(x.X, visit)
		constraintTags(x.Y, visit)
	case *constraint.OrExpr:
		constraintTags(x.X, visit)
		constraintTags(x.Y, visit)
	}
}

// setting is a variable of the go command's environment.
func (g *generator) setting(name, fallback string) string {
	for _, kv := range slices.Backward(g.environ()) {
		if v, ok := strings.CutPrefix(kv, name+"="); ok && v != "" {
			return v
		}
	}
	return fallback
}

func (g *generator) environ() []string {
	if g.opts.Env != nil {
		return g.opts.Env
	}
	return os.Environ()
}

// givenTags are the tags of the build at hand.
func (g *generator) givenTags() []string {
	tags := g.opts.Tags
	if tags == "" {
		for _, flag := range strings.Fields(g.setting("GOFLAGS", "")) {
			if v, ok := strings.CutPrefix(strings.TrimLeft(flag, "-"), "tags="); ok {
				tags = v
			}
		}
	}
	return strings.FieldsFunc(tags, func(r rune) bool { return r == ',' || r == ' ' })
}

// forBuild is the generator with another build. It reports to the same place.
func (g *generator) forBuild(b platform) *generator {
	if other := g.builds[b]; other != nil {
		return other
	}
	other := *g
	other.cache = nil
	other.opts.Tags = b.tags
	env := g.environ()
	other.opts.Env = append(env[:len(env):len(env)], "GOOS="+b.goos, "GOARCH="+b.goarch, "CGO_ENABLED=0")
	other.loader = newLoader(&other)
	if g.builds == nil {
		g.builds = make(map[platform]*generator)
	}
	g.builds[b] = &other
	return &other
}

// buildFor returns a generator in whose build the unit is, with the folder
// loaded; nil when there is none, which is reported.
func (g *generator) buildFor(ctx context.Context, d *sourceDir, u *unit) (*generator, error) {
	leftOut := func(what string) (*generator, error) {
		for _, p := range d.found {
			if u.owns(p.file) {
				l := p.lines[0]
				g.report.add(l.Pos, l.KindEnd, "G004", "//sandbox:%s stands in a file that %s leaves out", l.Kind, what)
			}
		}
		return nil, nil
	}
	has := func(g *generator) bool {
		info := g.loader.info(d, u.side)
		return info != nil && (len(u.files) == 0 || slices.Contains(info.files, u.files[0]))
	}
	if has(g) {
		return g, nil
	}
	if u.constraint == nil {
		if g.loader.info(d, u.side) == nil && len(g.report.list) > 0 {
			return nil, nil // which says why
		}
		return leftOut("this build")
	}
	b, ok := g.buildOf(u.constraint)
	if !ok {
		return leftOut("every build")
	}
	other := g.forBuild(b)
	if other.loader.info(d, u.side) == nil {
		g.logf("%s: looked at as %s/%s with tags %q", u.name, b.goos, b.goarch, b.tags)
		if err := other.loader.load(ctx, []*sourceDir{d}); err != nil {
			return nil, fmt.Errorf("%s/%s: %w", b.goos, b.goarch, err)
		}
	}
	if !has(other) {
		return leftOut("this build")
	}
	return other, nil
}

// lateInits reports init functions that run after the takeover of the unit.
func (a *analysis) lateInits() {
	if a.unit.variant {
		return
	}
	for _, f := range a.dir.files {
		if sideOf(f) != a.unit.side || f.name <= a.unit.name || f.ast.Name.Name != a.model.name {
			continue
		}
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
				a.faults.add(fn.Name.Pos(), fn.Name.End(), "G032",
					"init in a file that sorts after %s does not run before a worker starts; rename the file", a.unit.name)
			}
		}
	}
}

// named reports source files that have the name of output.
func (g *generator) named(d *sourceDir, units []*unit) bool {
	found := false
	for _, f := range d.files {
		if slices.ContainsFunc(units, func(u *unit) bool { return u.name == f.name }) {
			g.report.add(f.ast.Package, token.NoPos, "G030", "%s was not written by sandboxgen; rename it", f.name)
			found = true
		}
	}
	return found
}
