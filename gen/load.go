package gen

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/build"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/tools/go/packages"
)

// loader types packages. What they import comes from export data, which the
// go command has in its cache after any build; only a package that does not
// compile, because output of ours is missing in it, is read from source.
type loader struct {
	g        *generator
	infos    map[string]*packageInfo    // by folder
	tests    map[string]*packageInfo    // by folder, with the files of tests
	external map[string]*packageInfo    // by folder, packages of external tests
	exports  map[string]string          // import path → file with export data; "" if there is none
	faults   map[string]string          // import path → what the go command says about it
	gc       types.Importer             // reads export data
	types    map[string]*types.Package  // packages read from source
	reading  map[string]bool            // packages being read from source now
	products map[string]map[string]bool // names that directives of a package produce
	overlay  map[string][]byte          // output of this run that the go command must see
}

// packageInfo is what the go command knows about a folder.
type packageInfo struct {
	path, name string
	dir        string
	goVersion  string
	module     string        // path of its module; may be empty
	files      []*sourceFile // those in the build, without ours
}

// checked is a package after type checking.
type checked struct {
	info   *packageInfo
	pkg    *types.Package
	types  *types.Info
	output []*ast.File // our own files that were checked too
	errors []types.Error
}

func newLoader(g *generator) *loader {
	l := &loader{
		g: g, infos: make(map[string]*packageInfo), tests: make(map[string]*packageInfo), external: make(map[string]*packageInfo),
		exports: make(map[string]string), faults: make(map[string]string),
		types: make(map[string]*types.Package), reading: make(map[string]bool),
		products: make(map[string]map[string]bool),
	}
	l.gc = importer.ForCompiler(g.fset, "gc", l.open)
	return l
}

// config is for one question to the go command.
func (l *loader) config(ctx context.Context, mode packages.LoadMode) *packages.Config {
	cfg := &packages.Config{Context: ctx, Mode: mode, Dir: l.g.opts.Dir, Env: l.g.opts.Env}
	if l.g.opts.Tags != "" {
		cfg.BuildFlags = append(cfg.BuildFlags, "-tags="+l.g.opts.Tags)
	}
	if l.g.opts.Mod != "" {
		cfg.BuildFlags = append(cfg.BuildFlags, "-mod="+l.g.opts.Mod)
	}
	return cfg
}

// query is packages.Load with the go command's own words as its error.
func query(cfg *packages.Config, patterns ...string) ([]*packages.Package, error) {
	found, err := packages.Load(cfg, patterns...)
	if err == nil || cfg.Context.Err() != nil {
		return found, err
	}
	if _, text, ok := strings.Cut(err.Error(), "stderr: "); ok {
		return nil, errors.New(firstLine(strings.TrimSpace(text)))
	}
	return nil, err
}

const metadata = packages.NeedName | packages.NeedFiles | packages.NeedModule

// resolve turns the patterns into folders, absolute and each once. Only
// patterns that are more than a folder cost a question to the go command.
func (g *generator) resolve(ctx context.Context) ([]string, error) {
	var dirs, patterns []string
	for _, p := range g.opts.Patterns {
		if strings.HasSuffix(p, ".go") {
			return nil, fmt.Errorf("%s is a file; name its folder", p)
		}
		if strings.Contains(p, "...") || !build.IsLocalImport(p) && !filepath.IsAbs(p) {
			patterns = append(patterns, p)
			continue
		}
		dir := p
		if !filepath.IsAbs(dir) {
			dir = filepath.Join(g.opts.Dir, dir)
		}
		st, err := os.Stat(dir)
		if err != nil {
			return nil, err
		}
		if !st.IsDir() {
			return nil, fmt.Errorf("%s is a file; name its folder", p)
		}
		// The go command answers with the real path.
		if dir, err = filepath.EvalSymlinks(dir); err != nil {
			return nil, err
		}
		dirs = append(dirs, dir)
	}
	if len(patterns) > 0 {
		more, err := g.loader.expand(ctx, patterns)
		if err != nil {
			return nil, err
		}
		dirs = append(dirs, more...)
	}
	slices.Sort(dirs)
	return slices.Compact(dirs), nil
}

// expand asks the go command for the folders that patterns stand for.
func (l *loader) expand(ctx context.Context, patterns []string) ([]string, error) {
	found, err := query(l.config(ctx, metadata), patterns...)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("no packages match %s", strings.Join(patterns, " "))
	}
	var dirs []string
	for _, p := range found {
		if p.Dir == "" {
			if len(p.Errors) > 0 {
				return nil, errors.New(firstLine(p.Errors[0].Msg))
			}
			return nil, fmt.Errorf("no folder for %s", p.ID)
		}
		if p.Module != nil && !p.Module.Main || p.Module == nil && len(p.Errors) == 0 {
			l.g.logf("%s: skipped, not in a main module", p.PkgPath)
			continue
		}
		dirs = append(dirs, p.Dir)
	}
	return dirs, nil
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	return strings.TrimSuffix(s, "; to add it:")
}

// load asks two things about the folders at once: what the packages are, and
// where the export data of their imports lies. The packages themselves are
// never compiled, so that output which is stale or gone can't be in the way.
func (l *loader) load(ctx context.Context, work []*sourceDir) error {
	dirs := make([]string, len(work))
	for i, d := range work {
		dirs[i] = d.path
	}
	var found []*packages.Package
	var infoErr, exportErr error
	var wg sync.WaitGroup
	cfg := l.config(ctx, metadata)
	cfg.Overlay = hidden(work)
	cfg.Tests = slices.ContainsFunc(work, func(d *sourceDir) bool { return d.has(testSide) || d.has(externalSide) })
	wg.Go(func() { found, infoErr = query(cfg, dirs...) })
	exportErr = l.loadExports(ctx, likelyImports(work))
	wg.Wait()
	if err := errors.Join(infoErr, exportErr); err != nil {
		return err
	}
	byDir := make(map[string]*sourceDir)
	for _, d := range work {
		byDir[d.path] = d
	}
	var missing []string
	for _, p := range found {
		d := byDir[p.Dir]
		if d == nil {
			if len(p.Errors) > 0 {
				return errors.New(firstLine(p.Errors[0].Msg))
			}
			continue
		}
		infos := l.infos
		switch _, variant, _ := strings.Cut(p.ID, " ["); {
		case variant != "" && strings.HasSuffix(p.Name, "_test"):
			infos = l.external
		case variant != "":
			infos = l.tests
		case cfg.Tests && p.Name == "main" && strings.HasSuffix(p.ID, ".test"):
			continue // what go test adds
		case cfg.Tests && len(p.GoFiles) == 0 && !d.has(plainSide):
			continue
		case len(p.GoFiles) == 0 && d.allConstrained():
			continue // its files are looked at in other builds
		}
		info := l.describe(p, d)
		if info == nil {
			continue
		}
		infos[d.path] = info
		for _, f := range info.files {
			missing = append(missing, importsOf(f.ast)...)
		}
	}
	for _, d := range work {
		if l.infos[d.path] == nil && l.tests[d.path] == nil && l.external[d.path] == nil && len(l.g.report.list) == 0 && !d.allConstrained() {
			return fmt.Errorf("the go command does not know %s as a package", l.g.report.relative(d.path))
		}
	}
	return l.loadExports(ctx, missing)
}

// info is what is known about a package of a folder.
func (l *loader) info(d *sourceDir, s side) *packageInfo {
	switch s {
	case testSide:
		return l.tests[d.path]
	case externalSide:
		return l.external[d.path]
	}
	return l.infos[d.path]
}

// hidden takes our own files out of the go command's sight: their package
// clause may be that of a package which was renamed since.
func hidden(work []*sourceDir) map[string][]byte {
	overlay := make(map[string][]byte)
	for _, d := range work {
		for _, path := range d.owned {
			overlay[path] = []byte("//go:build ignore\n\npackage ignored\n")
		}
	}
	return overlay
}

// likelyImports guesses what the packages import before the go command has
// said which of their files are in the build.
func likelyImports(work []*sourceDir) []string {
	paths := []string{"context"}
	for _, d := range work {
		for _, f := range d.files {
			if !f.test && !f.constrained {
				paths = append(paths, importsOf(f.ast)...)
			}
		}
		for _, path := range d.owned { // the rest of the package may use what we wrote
			f, _ := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
			if f != nil {
				paths = append(paths, importsOf(f)...)
			}
		}
	}
	return paths
}

// show makes the go command see output of this run as if it were written, and
// forgets what was read before.
func (l *loader) show(packages []*Package) {
	l.overlay = make(map[string][]byte)
	for _, p := range packages {
		for _, f := range p.Files {
			l.overlay[filepath.Join(p.Dir, f.Name)] = f.Content
		}
	}
	clear(l.exports)
	clear(l.faults)
	clear(l.types)
	l.gc = importer.ForCompiler(l.g.fset, "gc", l.open)
}

// describe keeps what matters of the go command's answer, nil when there is
// nothing to generate for.
func (l *loader) describe(p *packages.Package, d *sourceDir) *packageInfo {
	info := &packageInfo{path: p.PkgPath, name: p.Name, dir: d.path}
	if p.Module != nil {
		info.module = p.Module.Path
		if p.Module.GoVersion != "" {
			info.goVersion = "go" + p.Module.GoVersion
		}
	}
	for _, path := range p.GoFiles {
		name := filepath.Base(path)
		if i := slices.IndexFunc(d.files, func(f *sourceFile) bool { return f.name == name }); i >= 0 {
			info.files = append(info.files, d.files[i])
		}
	}
	ok := len(info.files) > 0
	for _, e := range p.Errors {
		if e.Kind == packages.ParseError {
			continue // we parsed it ourselves and say it better
		}
		ok = false
		l.g.report.list = append(l.g.report.list, Diagnostic{Pos: l.listPos(e.Pos, d), Code: "G050", Message: strings.ReplaceAll(firstLine(e.Msg), d.path, l.g.report.relative(d.path))})
	}
	if !ok {
		return nil
	}
	return info
}

// listPos reads a position of the go command; without one, the package clause
// of the first file stands for it.
func (l *loader) listPos(s string, d *sourceDir) token.Position {
	parts := strings.Split(s, ":")
	if n := len(parts); n >= 2 {
		col, err := strconv.Atoi(parts[n-1])
		line, err2 := strconv.Atoi(parts[max(n-2, 0)])
		if err == nil && err2 == nil && n >= 3 {
			name := strings.Join(parts[:n-2], ":")
			if !filepath.IsAbs(name) {
				name = filepath.Join(l.g.opts.Dir, name)
			}
			return token.Position{Filename: l.g.report.relative(name), Line: line, Column: col}
		}
	}
	if len(d.files) == 0 {
		return token.Position{}
	}
	return l.g.report.position(d.files[0].ast.Package)
}

// importsOf lists the import paths of a file.
func importsOf(f *ast.File) []string {
	var paths []string
	for _, s := range f.Imports {
		if path, err := strconv.Unquote(s.Path.Value); err == nil {
			paths = append(paths, path)
		}
	}
	return paths
}

// loadExports finds the export data of packages that are not known yet.
func (l *loader) loadExports(ctx context.Context, paths []string) error {
	missing := make(map[string]bool)
	for _, p := range paths {
		if _, done := l.exports[p]; !done && p != "C" && p != "unsafe" && p != "" && !build.IsLocalImport(p) && !strings.Contains(p, "...") {
			missing[p] = true
		}
	}
	if len(missing) == 0 {
		return nil
	}
	cfg := l.config(ctx, packages.NeedName|packages.NeedExportFile)
	cfg.Overlay = l.overlay
	found, err := query(cfg, slices.Sorted(maps.Keys(missing))...)
	if err != nil {
		return err
	}
	for p := range missing {
		l.exports[p] = ""
	}
	for _, p := range found {
		l.exports[p.PkgPath] = p.ExportFile
		if len(p.Errors) > 0 {
			l.faults[p.PkgPath] = firstLine(p.Errors[0].Msg)
		}
	}
	return nil
}

// dependencies reads packages for the type checker.
type dependencies struct {
	ctx context.Context
	l   *loader
}

// Import implements types.Importer.
func (d dependencies) Import(path string) (*types.Package, error) {
	l := d.l
	if p := l.types[path]; p != nil {
		return p, nil
	}
	if path != "unsafe" && l.exports[path] == "" {
		return l.fromSource(d.ctx, path)
	}
	return l.gc.Import(path)
}

// open finds export data for the standard library's importer.
func (l *loader) open(path string) (io.ReadCloser, error) {
	file := l.exports[path]
	if file == "" {
		return nil, fmt.Errorf("no export data for %s", path)
	}
	return os.Open(file)
}

// fromSource types the declarations of a package that does not compile.
func (l *loader) fromSource(ctx context.Context, path string) (*types.Package, error) {
	if l.reading[path] {
		return nil, errors.New("import cycle")
	}
	l.reading[path] = true
	defer delete(l.reading, path)
	cfg := l.config(ctx, metadata)
	cfg.Overlay = l.overlay
	found, err := query(cfg, path)
	if err != nil {
		return nil, err
	}
	if len(found) != 1 || len(found[0].GoFiles) == 0 || path == sandboxfnPath {
		if f := l.faults[path]; f != "" {
			return nil, errors.New(f)
		}
		return nil, errors.New("no such package")
	}
	var files []*ast.File
	var imports []string
	for _, name := range found[0].GoFiles {
		src := l.overlay[name]
		if src == nil {
			if src, err = os.ReadFile(name); err != nil {
				return nil, err
			}
			if isOutputName(filepath.Base(name)) && isOurs(src) {
				continue
			}
		}
		f, _ := parser.ParseFile(l.g.fset, name, src, parser.SkipObjectResolution)
		if f != nil {
			files = append(files, f)
			imports = append(imports, importsOf(f)...)
		}
	}
	if err := l.loadExports(ctx, imports); err != nil {
		return nil, err
	}
	conf := &types.Config{
		Importer: dependencies{ctx, l}, IgnoreFuncBodies: true, FakeImportC: true,
		Error: func(error) {}, // its own run reports them
	}
	p, _ := conf.Check(path, l.g.fset, files, nil)
	l.types[path] = p
	return p, nil
}

// check types a package, with output as some of its files. Errors in output
// itself are not the user's and left out.
func (l *loader) check(ctx context.Context, info *packageInfo, output []File) (*checked, error) {
	c := &checked{info: info, types: &types.Info{
		Defs: make(map[*ast.Ident]types.Object), Uses: make(map[*ast.Ident]types.Object),
	}}
	files := make([]*ast.File, 0, len(info.files)+len(output))
	for _, f := range info.files {
		files = append(files, f.ast)
	}
	for _, o := range output {
		f, err := parser.ParseFile(l.g.fset, o.Name, o.Content, parser.SkipObjectResolution)
		if err != nil {
			return nil, fmt.Errorf("%s: generated code does not parse: %w", info.path, err)
		}
		c.output = append(c.output, f)
		files = append(files, f)
		if err := l.loadExports(ctx, importsOf(f)); err != nil {
			return nil, err
		}
	}
	conf := &types.Config{
		Importer: dependencies{ctx, l}, FakeImportC: true, GoVersion: info.goVersion,
		Sizes: types.SizesFor("gc", l.g.setting("GOARCH", build.Default.GOARCH)),
		Error: func(err error) {
			var e types.Error
			if errors.As(err, &e) && !c.inOutput(e.Pos) {
				c.errors = append(c.errors, e)
			}
		},
	}
	c.pkg, _ = conf.Check(info.path, l.g.fset, files, c.types)
	return c, nil
}

// inOutput reports whether pos lies in a file of ours.
func (c *checked) inOutput(pos token.Pos) bool {
	return slices.ContainsFunc(c.output, func(f *ast.File) bool { return f.FileStart <= pos && pos <= f.FileEnd })
}

// withTests returns a loader for the external tests of a package: they see it
// with what its own tests add, and so does every package they import that
// imports it.
func (l *loader) withTests(ctx context.Context, p *types.Package, imports []string) (*loader, error) {
	other := *l
	other.exports, other.types, other.reading = maps.Clone(l.exports), maps.Clone(l.types), make(map[string]bool)
	other.exports[p.Path()], other.types[p.Path()] = "", p
	imports = slices.DeleteFunc(slices.Clone(imports), func(path string) bool { return path == p.Path() || path == "C" || path == "unsafe" })
	if len(imports) == 0 {
		return &other, nil
	}
	cfg := l.config(ctx, packages.NeedName|packages.NeedImports|packages.NeedDeps)
	found, err := query(cfg, imports...)
	if err != nil {
		return nil, err
	}
	through := make(map[string]bool)
	var reaches func(q *packages.Package) bool
	reaches = func(q *packages.Package) bool {
		if q.PkgPath == p.Path() {
			return true
		}
		if known, ok := through[q.PkgPath]; ok {
			return known
		}
		through[q.PkgPath] = false
		for _, i := range q.Imports {
			if reaches(i) {
				through[q.PkgPath] = true
			}
		}
		return through[q.PkgPath]
	}
	for _, q := range found {
		reaches(q)
	}
	for path, yes := range through {
		if yes {
			other.exports[path] = ""
			delete(other.types, path)
		}
	}
	return &other, nil
}
