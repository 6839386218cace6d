// Package gen turns annotated Go functions into the code that runs them in a
// sandbox.
//
// [Generate] does everything but touch the disk; [Result.Commit] writes what
// it returned. The work is done in three stages that never mix: analyze.go
// turns types into plain structs, emit.go turns those into code, write.go
// stores it. Package gen knows the import path of the runtime library but
// never imports it.
package gen

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/agent-sandbox/sandbox-go/gen/directive"
)

const (
	sandboxfnPath = "github.com/agent-sandbox/sandbox-go/sandboxfn"
	validatePath  = sandboxfnPath + "/validate"
)

// Options say what to generate and how the go command sees it. The zero value
// is the package in the working directory in its default build.
type Options struct {
	Dir      string   // where patterns and shown paths start; empty: the working directory
	Patterns []string // as in the go command; empty: "."
	Tags     string   // -tags of the go command
	Mod      string   // -mod of the go command
	Env      []string // environment of the go command; nil: the process's
	// Cache is the folder that remembers of packages that nothing changed, as
	// [CacheDir] gives it; empty: nothing is remembered. Whatever is wrong with
	// it, the result is the same, only later.
	Cache string
	Force bool // look at packages even if the cache knows them
	// Logf is told what was loaded, what was skipped and why; nil: nobody is.
	Logf func(format string, args ...any)
}

// A Result is what a run found. It is not changed by anything but Commit.
type Result struct {
	// Diagnostics are the faults of all packages, sorted by position. When
	// there is one, no package has output.
	Diagnostics []Diagnostic
	Packages    []*Package
}

// A Package is one package with directives, or with output of an earlier run
// that has no directive any more.
type Package struct {
	Path      string // import path; empty for a package that is only cleaned up
	Dir       string
	Functions []Function // by name
	Files     []File     // what the package's output consists of, by name
	Remove    []string   // paths of files that are ours and have no source any more

	waiting []Diagnostic // functions left out until another package's output is there
}

// A File is one generated file.
type File struct {
	Name    string // in the package's folder
	Content []byte

	previous []byte // what the file holds now; nil: it does not exist
}

// Output is the content of the file called [OutputFile]; nil when the package
// has none.
func (p *Package) Output() []byte { return p.file(OutputFile) }

func (p *Package) file(name string) []byte {
	for _, f := range p.Files {
		if f.Name == name {
			return f.Content
		}
	}
	return nil
}

// A Function describes one annotated function, class or method.
type Function struct {
	Kind    string         `json:"kind"` // func, class or method
	Package string         `json:"package"`
	Name    string         `json:"name"`
	Wrapper string         `json:"wrapper"`
	ID      string         `json:"id"`
	Schema  string         `json:"schema"`
	Pos     string         `json:"pos"`
	Options map[string]any `json:"options"` // by key, those that directives set
}

// Generate analyzes the packages and returns what would be written. Faults in
// the user's source are in the result; the error is for what keeps the run
// from looking at it at all, such as a pattern that matches nothing.
func Generate(ctx context.Context, opts *Options) (*Result, error) {
	g, err := newGenerator(opts)
	if err != nil {
		return nil, err
	}
	result, err := g.run(ctx)
	if errors.Is(err, errMeet) {
		g.logf("again, without the cache: functions of several packages have one id")
		without := g.opts
		without.Cache = ""
		if g, err = newGenerator(&without); err != nil {
			return nil, err
		}
		result, err = g.run(ctx)
	}
	return result, err
}

// errMeet means that packages which the cache knows have ids that others have
// too, about which it knows no positions.
var errMeet = errors.New("ids meet")

// run does the work of Generate.
func (g *generator) run(ctx context.Context) (*Result, error) {
	start := time.Now()
	dirs, err := g.resolve(ctx)
	if err != nil {
		return nil, err
	}
	result := new(Result)
	var work []*sourceDir
	for _, dir := range dirs {
		d, err := findDir(g.report, dir)
		if err != nil {
			return nil, err
		}
		switch {
		case len(d.files) == 0 && len(d.owned) == 0:
			return nil, fmt.Errorf("no Go files in %s", g.report.relative(dir))
		case d.productive():
			work = append(work, d)
		case len(d.owned) > 0 && !d.problems:
			g.logf("%s: no annotated function any more, its output goes", g.report.relative(dir))
			result.Packages = append(result.Packages, &Package{Dir: dir, Remove: d.owned})
		default:
			g.logf("%s: skipped, no annotated function", g.report.relative(dir))
		}
	}
	g.logf("parsed %d folders in %v", len(dirs), time.Since(start).Round(time.Millisecond))
	keys := make(map[string]string)
	work = slices.DeleteFunc(work, func(d *sourceDir) bool {
		p := g.cached(d, keys)
		if p != nil {
			result.Packages = append(result.Packages, p)
		}
		return p != nil
	})
	if len(work) > 0 {
		packages, err := g.packages(ctx, work)
		if err != nil {
			return nil, err
		}
		result.Packages = append(result.Packages, packages...)
		if len(g.report.list) == 0 && g.loader.overlay == nil {
			for _, p := range packages {
				if key := keys[p.Dir]; key != "" {
					g.cache.store(key, p)
				}
			}
		}
	}
	if g.idsMeet(result.Packages) {
		return nil, errMeet
	}
	slices.SortFunc(result.Packages, func(a, b *Package) int { return strings.Compare(a.Dir, b.Dir) })
	result.Diagnostics = g.report.sorted()
	if len(result.Diagnostics) > 0 {
		for _, p := range result.Packages {
			p.Files, p.Remove = nil, nil
		}
	}
	return result, nil
}

// generator is one run.
type generator struct {
	opts   Options
	fset   *token.FileSet
	report *reporter
	loader *loader
	cache  *cache // nil: none
	ids    map[string]wireID
	builds map[platform]*generator // for files that are not in the build at hand
}

// wireID is a function's name on the wire and who has it.
type wireID struct {
	owner   string
	pos     token.Pos
	variant bool // in a file that is not part of every build
}

func newGenerator(opts *Options) (*generator, error) {
	g := &generator{fset: token.NewFileSet(), ids: make(map[string]wireID)}
	if opts != nil {
		g.opts = *opts
	}
	dir, err := filepath.Abs(g.opts.Dir)
	if err != nil {
		return nil, err
	}
	// Positions are compared by path; a link must not make two of one.
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	} else {
		return nil, err
	}
	g.opts.Dir = dir
	if len(g.opts.Patterns) == 0 {
		g.opts.Patterns = []string{"."}
	}
	g.report = &reporter{fset: g.fset, dir: dir}
	g.loader = newLoader(g)
	if g.opts.Cache != "" {
		g.cache = newCache(g, g.opts.Cache)
	}
	return g, nil
}

// cached returns a package that need not be looked at, and keeps the keys of
// others.
func (g *generator) cached(d *sourceDir, keys map[string]string) *Package {
	if g.cache == nil || d.problems {
		return nil
	}
	key, err := g.cache.key(d)
	if err != nil {
		g.logf("%s: no use of the cache: %v", g.report.relative(d.path), err)
		return nil
	}
	keys[d.path] = key
	if g.opts.Force {
		return nil
	}
	p := g.cache.lookup(key, d)
	if p != nil {
		g.logf("%s: up to date, says the cache", g.report.relative(d.path))
	}
	return p
}

// idsMeet reports whether the cache hid that functions have one id.
func (g *generator) idsMeet(packages []*Package) bool {
	if g.cache == nil {
		return false
	}
	owner := make(map[string]*Package)
	for _, p := range packages {
		for _, fn := range p.Functions {
			if other := owner[fn.ID]; other != nil && other != p {
				return true
			}
			owner[fn.ID] = p
		}
	}
	return false
}

func (g *generator) logf(format string, args ...any) {
	if g.opts.Logf != nil {
		g.opts.Logf(format, args...)
	}
}

// packages types and emits the folders that have directives.
func (g *generator) packages(ctx context.Context, work []*sourceDir) ([]*Package, error) {
	start := time.Now()
	if err := g.loader.load(ctx, work); err != nil {
		return nil, err
	}
	g.logf("loaded %d packages in %v", len(work), time.Since(start).Round(time.Millisecond))
	before := len(g.report.list)
	var last []*Package
	for {
		result, err := g.allPackages(ctx, work)
		if err != nil {
			return nil, err
		}
		if !waiting(result) || last != nil && sameOutput(last, result) {
			for _, p := range result {
				g.report.list = append(g.report.list, p.waiting...)
			}
			return result, nil
		}
		// Signatures name types that the output of other packages declares:
		// again, with that output in sight.
		g.logf("again, with the output of %d packages in sight", len(result))
		g.loader.show(result)
		g.report.list = g.report.list[:before]
		clear(g.ids)
		last = result
	}
}

// waiting reports whether a package has functions that can't be generated
// until another's output is there.
func waiting(packages []*Package) bool {
	return slices.ContainsFunc(packages, func(p *Package) bool { return len(p.waiting) > 0 })
}

// sameOutput reports whether two rounds gave the same.
func sameOutput(a, b []*Package) bool {
	return slices.EqualFunc(a, b, func(x, y *Package) bool {
		return slices.EqualFunc(x.Files, y.Files, func(x, y File) bool { return x.Name == y.Name && bytes.Equal(x.Content, y.Content) })
	})
}

// allPackages types and emits each package once.
func (g *generator) allPackages(ctx context.Context, work []*sourceDir) ([]*Package, error) {
	var result []*Package
	for _, d := range work {
		start := time.Now()
		p, err := g.onePackage(ctx, d)
		if err != nil {
			return nil, err
		}
		if p != nil {
			result = append(result, p)
		}
		g.logf("%s: analyzed in %v", g.report.relative(d.path), time.Since(start).Round(time.Millisecond))
	}
	return result, nil
}

// onePackage analyzes and emits one package, with its tests. Signatures may use
// types that the output itself declares, so output and analysis are repeated
// until neither changes: names this run produces are never a fault of the user.
func (g *generator) onePackage(ctx context.Context, d *sourceDir) (*Package, error) {
	units := d.units()
	if g.named(d, units) {
		return nil, nil
	}
	var jobs []*job
	for _, u := range units {
		from, err := g.buildFor(ctx, d, u)
		if err != nil {
			return nil, err
		}
		if from == nil {
			continue
		}
		info := from.loader.info(d, u.side)
		if d.syntaxErrors(g.report, info.files) {
			return nil, nil
		}
		jobs = append(jobs, &job{unit: u, g: from, info: info})
	}
	if len(jobs) == 0 {
		return nil, nil
	}
	for round := 0; ; round++ {
		changed, failed := false, false
		for i, j := range jobs {
			j.others = nil
			for _, o := range jobs[:i] {
				if o.unit.side == j.unit.side || o.unit.side == plainSide && j.unit.side == testSide {
					if !o.unit.variant || !j.unit.variant {
						j.others = append(j.others, o.analysis)
					}
				}
			}
			before := j.output
			if err := g.generate(ctx, d, j, jobs); err != nil {
				return nil, err
			}
			changed = changed || !bytes.Equal(before, j.output)
			failed = failed || len(j.analysis.checked.errors) > 0
		}
		// What was missing may be in the output of another job.
		if len(jobs) == 1 || !changed || !failed || round > len(jobs) {
			return g.finish(d, jobs), nil
		}
	}
}

// job is a unit that is being generated.
type job struct {
	unit     *unit
	g        *generator // of a build that the unit is in
	info     *packageInfo
	others   []*analysis // of jobs before this one whose names it must not take
	analysis *analysis   // the last one
	output   []byte
	sees     bool // the output of all jobs: something was missing without
}

// generate analyzes and emits one unit.
func (g *generator) generate(ctx context.Context, d *sourceDir, j *job, jobs []*job) error {
	for round := 0; ; round++ {
		checked, err := j.check(ctx, jobs)
		if err != nil {
			return err
		}
		a := newAnalysis(ctx, j.g, d, j.unit, checked)
		a.others = j.others
		a.run()
		next, err := emit(a.model)
		if err != nil {
			return fmt.Errorf("%s: %w", j.info.path, err)
		}
		stable := j.sees && bytes.Equal(next, j.output) || round > len(d.found)+1
		j.analysis, j.output = a, next
		if stable || len(checked.errors) == 0 {
			return nil
		}
		j.sees = true
	}
}

// check types the package of a job, with the output so far if it needs that.
func (j *job) check(ctx context.Context, jobs []*job) (*checked, error) {
	l := j.g.loader
	if !j.sees {
		jobs = nil
	}
	if j.unit.side == externalSide {
		base := l.tests[j.info.dir]
		s := testSide
		if base == nil {
			base, s = l.infos[j.info.dir], plainSide
		}
		if base != nil {
			c, err := l.check(ctx, base, outputFor(jobs, base, s))
			if err != nil {
				return nil, err
			}
			var imports []string
			for _, f := range j.info.files {
				imports = append(imports, importsOf(f.ast)...)
			}
			if l, err = l.withTests(ctx, c.pkg, imports); err != nil {
				return nil, err
			}
		}
	}
	return l.check(ctx, j.info, outputFor(jobs, j.info, j.unit.side))
}

// outputFor selects the output that belongs to a package in a build.
func outputFor(jobs []*job, info *packageInfo, s side) []File {
	var files []File
	for _, j := range jobs {
		u := j.unit
		if j.output == nil || u.side != s && !(s == testSide && u.side == plainSide) || u.variant && !slices.Contains(info.files, u.files[0]) {
			continue
		}
		files = append(files, File{Name: u.name, Content: j.output})
	}
	return files
}

// finish reports what the last rounds found and describes the result.
func (g *generator) finish(d *sourceDir, jobs []*job) *Package {
	p := &Package{Path: strings.TrimSuffix(jobs[0].info.path, "_test"), Dir: d.path}
	if jobs[0].unit.side != externalSide {
		p.Path = jobs[0].info.path
	}
	for _, j := range jobs {
		a := j.analysis
		a.report()
		g.claimIDs(a.model, j.unit)
		p.waiting = append(p.waiting, a.waiting...)
		if j.output != nil {
			p.Files = append(p.Files, File{Name: j.unit.name, Content: j.output})
		}
		for _, fn := range a.model.all() {
			p.Functions = append(p.Functions, Function{
				Kind: fn.kind(), Package: j.info.path, Name: fn.full, Wrapper: fn.wrapper, ID: fn.wireID(), Schema: fn.schema,
				Pos: g.report.at(fn.pos), Options: optionMap(fn.options),
			})
		}
		for _, c := range a.model.classes {
			p.Functions = append(p.Functions, Function{
				Kind: "class", Package: j.info.path, Name: c.name, Wrapper: c.remote, ID: c.wireID(), Schema: c.schema,
				Pos: g.report.at(c.pos), Options: optionMap(c.options),
			})
		}
	}
	slices.SortFunc(p.Files, func(a, b File) int { return strings.Compare(a.Name, b.Name) })
	slices.SortStableFunc(p.Functions, func(a, b Function) int { return strings.Compare(a.Name, b.Name) })
	for _, path := range d.owned {
		i := slices.IndexFunc(p.Files, func(f File) bool { return f.Name == filepath.Base(path) })
		if i < 0 {
			p.Remove = append(p.Remove, path)
			continue
		}
		p.Files[i].previous, _ = os.ReadFile(path)
	}
	return p
}

// claimIDs checks that no two functions or classes of the run have one wire id.
func (g *generator) claimIDs(m *model, u *unit) {
	claim := func(id, name string, pos, idPos token.Pos) bool {
		name = m.name + "." + name
		other, taken := g.ids[id]
		if taken && other.variant && u.variant && other.owner == name {
			return true // two files for different builds
		}
		if taken {
			if idPos.IsValid() {
				pos = idPos
			}
			g.report.add(pos, token.NoPos, "G031", "wire id %s is also used by %s at %s", show(id), other.owner, g.report.at(other.pos))
			return false
		}
		g.ids[id] = wireID{owner: name, pos: pos, variant: u.variant}
		return true
	}
	for _, fn := range m.functions {
		claim(fn.wireID(), fn.full, fn.pos, fn.options.Pos("id"))
	}
	for _, c := range m.classes {
		if !claim(c.wireID(), c.name, c.pos, c.options.Pos("id")) {
			continue // the same goes for its methods
		}
		for _, fn := range c.methods {
			claim(fn.wireID(), fn.full, fn.pos, token.NoPos)
		}
	}
}

// optionMap gives the options that are set, by key, for -list.
func optionMap(o *directive.Options) map[string]any {
	m := make(map[string]any)
	for key, value := range o.Set() {
		m[key] = value
	}
	return m
}
