// Package archtest holds the rules about which package may import which, as
// tests. It reads the source itself: a test that asked the go command would be
// cached with its old answer after a forbidden import was added.
package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/agent-sandbox/sandbox-go"

// A rule says what one package (or, with a trailing "/...", a tree) may import
// outside its tests. Project imports are relative to the module; "/..." allows
// a tree. Foreign imports are module path prefixes; the standard library is
// always allowed unless std is set.
type rule struct {
	pkg     string
	project []string
	foreign []string
	std     []string // when not nil, the only packages of the standard library
}

const (
	errdefs  = "sandboxfn/errdefs"
	connect  = "connectrpc.com/connect"
	protobuf = "google.golang.org/protobuf"
	xsys     = "golang.org/x/sys"
)

// rules is the import table. A package that is not in it fails the test: a new
// package needs a row in the same change. The first match wins.
var rules = []rule{
	{pkg: errdefs},
	{pkg: "internal/frame"},
	{pkg: "internal/version"},
	{pkg: "internal/redact"},
	{pkg: "internal/raceenv"},
	{pkg: "internal/netrule", foreign: []string{"golang.org/x/net/idna"}},
	{pkg: "internal/archtest"},
	{pkg: "internal/nsinit", std: []string{"syscall", "unsafe"}},
	{pkg: "internal/errdoc", project: []string{errdefs}},
	{pkg: "internal/apidoc", project: []string{"runtime/endpoint", "runtime/server"}},
	{pkg: "internal/artifact", project: []string{errdefs}},
	{pkg: "internal/envelope", project: []string{errdefs}, foreign: []string{"github.com/fxamacker/cbor/v2"}},
	{pkg: "internal/proto/...", foreign: []string{"github.com/bufbuild/protocompile", protobuf}},
	{pkg: "internal/pb/...", project: []string{"internal/pb/..."}, foreign: []string{connect, protobuf}},
	{pkg: "internal/envd", project: []string{errdefs, "internal/pb/...", "internal/redact"}, foreign: []string{connect, protobuf, "github.com/klauspost/compress"}},
	{pkg: "internal/near"},
	{pkg: "internal/config", project: []string{errdefs, "internal/near", "internal/redact"}, foreign: []string{"github.com/pelletier/go-toml/v2"}},
	{pkg: "internal/api", project: []string{errdefs, "internal/redact", "internal/version"}},
	{pkg: "internal/gateway", project: []string{errdefs, "internal/near", "providers", "providers/local", "internal/envd", "internal/api", "internal/netrule", "internal/redact", "internal/version"},
		foreign: []string{"github.com/gorilla/mux", xsys}},
	{pkg: "internal/fakes/...", project: []string{errdefs, "providers", "providers/local", "runtime/...", "internal/..."}, foreign: []string{"github.com/gorilla/mux", xsys}},
	{pkg: "internal/layertar", foreign: []string{xsys}},
	{pkg: "internal/sdktest"},
	{pkg: "internal/sbtest", project: []string{"sandboxfn"}, foreign: []string{"go.uber.org/goleak"}},
	{pkg: "internal/acceptance/...", project: []string{"sandboxfn", "sandboxfn/validate", "internal/acceptance/...", "templates/model"}},
	{pkg: "providers", project: []string{errdefs, "templates/model"}},
	{pkg: "providers/local", project: []string{
		"providers", errdefs, "runtime/...", "internal/artifact", "internal/layertar", "internal/near", "internal/nsinit", "internal/raceenv", "internal/version", "internal/envd", "internal/netrule", "templates/model",
	}, foreign: []string{xsys, "golang.org/x/net/dns/dnsmessage"}},
	{pkg: "providers/local/image", project: []string{"providers/local", errdefs, "internal/version"}, foreign: []string{"github.com/google/go-containerregistry"}},
	{pkg: "providers/e2b", project: []string{"providers", errdefs, "internal/api", "internal/envd", "internal/netrule", "internal/redact", "internal/version"}},
	{pkg: "providers/local/systemd", project: []string{"providers/local"}, foreign: []string{"github.com/godbus/dbus/v5"}},
	{pkg: "providers/fc", project: []string{"providers", "providers/e2b", errdefs, "internal/api", "internal/redact"}},
	{pkg: "providers/providertest", project: []string{"providers", errdefs, "internal/envd", "sandboxfn"}},
	{pkg: "sandboxfn/worker", project: []string{errdefs, "internal/frame", "internal/envelope", "internal/near"}},
	{pkg: "sandboxfn/validate", project: []string{errdefs}, foreign: []string{"github.com/go-playground/validator/v10"}},
	{pkg: "sandboxfn/cmd/sandbox", project: []string{"sandboxfn", errdefs, "providers", "providers/local/image", "templates", "templates/model", "internal/version"},
		foreign: []string{"github.com/spf13/cobra", "golang.org/x/term"}},
	{pkg: "sandboxfn/sandboxotel", project: []string{"sandboxfn"}, foreign: []string{"go.opentelemetry.io/otel"}},
	{pkg: "sandboxfn/sandboxtest", project: []string{"sandboxfn", errdefs, "sandboxfn/worker", "internal/frame", "internal/envelope", "internal/artifact"}, foreign: []string{xsys}},
	{pkg: "sandboxfn", project: []string{
		errdefs, "sandboxfn/worker", "providers", "providers/local", "providers/e2b", "providers/fc",
		"internal/config", "internal/netrule", "internal/redact", "internal/envd", "internal/frame", "internal/envelope", "internal/artifact", "internal/raceenv", "internal/version", "templates/model", "runtime/code/drivers",
	}, foreign: []string{connect, protobuf, "github.com/klauspost/compress"}},
	{pkg: "templates/model"},
	{pkg: "templates", project: []string{errdefs, "internal/near", "internal/netrule", "templates/model"}, foreign: []string{
		"github.com/goccy/go-yaml", "github.com/google/go-containerregistry", "github.com/klauspost/compress", "golang.org/x/mod", xsys,
	}},
	{pkg: "runtime/code/drivers"}, // sandboxfn links it: nothing of the server
	{pkg: "runtime/cmd/...", project: []string{"providers", "providers/local", "runtime/...", errdefs, "internal/version", "internal/gateway", "templates/model"}},
	{pkg: "runtime/...", project: []string{errdefs, "internal/near", "internal/pb/...", "internal/version", "runtime/...", "templates/model"}, foreign: []string{
		connect, protobuf, xsys, "github.com/creack/pty", "github.com/gorilla/mux", "github.com/coder/websocket",
	}},
	{pkg: "gen/directive", project: []string{"internal/netrule"}, foreign: []string{"github.com/go-playground/validator/v10"}},
	// dep.go is never built; it names what generated code imports, so that a module with the tool has the sums of it.
	{pkg: "gen/cmd/sandboxgen", project: []string{"gen", "gen/directive", "internal/version", "sandboxfn", "sandboxfn/validate"}},
	{pkg: "gen/cmd/...", project: []string{"gen", "gen/directive", "gen/vet", "internal/version"}},
	{pkg: "gen/vet", project: []string{"gen", "gen/directive"}, foreign: []string{"golang.org/x/tools"}},
	{pkg: "gen/gentest/...", project: []string{"sandboxfn", "sandboxfn/validate", "gen/gentest/..."}, foreign: []string{"github.com/google/go-cmp", protobuf}},
	{pkg: "gen", project: []string{"gen/directive"}, foreign: []string{"github.com/dave/jennifer", "golang.org/x/mod", "golang.org/x/tools", "github.com/go-playground/validator/v10"}},
	{pkg: "examples/ownruntime", project: []string{"runtime/command", "runtime/server"}},
	{pkg: "examples/...", project: []string{"examples/...", "sandboxfn", "sandboxfn/validate", errdefs}},
}

// neverLinked must not be reachable from sandboxfn: what it reaches is sent
// with each user's program.
var neverLinked = []string{
	"github.com/dave/jennifer", "golang.org/x/tools", "github.com/go-playground/validator", "github.com/spf13/cobra",
	"github.com/goccy/go-yaml", "github.com/google/go-containerregistry", "github.com/godbus/dbus", "gvisor.dev/gvisor",
	"github.com/prometheus", "go.opentelemetry.io", "github.com/modelcontextprotocol", "k8s.io", "github.com/moby/moby",
	"github.com/aliyun", "github.com/alibabacloud-go", "github.com/bufbuild/protocompile",
}

// pkgInfo is one package of the module as its source says.
type pkgInfo struct {
	dir     string
	imports map[string]token.Position // of files that are not tests
	docs    []string                  // files with a package comment, tests left out
	files   int                       // that are not tests
}

func TestImports(t *testing.T) {
	for _, p := range packages(t) {
		r := ruleFor(p.dir)
		if r == nil {
			t.Errorf("package %s has no row in the table of %s", p.dir, "internal/archtest")
			continue
		}
		for _, imp := range slices.Sorted(maps.Keys(p.imports)) {
			if !r.allows(p.dir, imp) {
				t.Errorf("%s: %s may not import %s", p.imports[imp], p.dir, imp)
			}
		}
	}
}

func TestPackageComments(t *testing.T) {
	for _, p := range packages(t) {
		switch {
		case p.files == 0:
		case under(p.dir, "internal/pb"): // protoc-gen-go leaves a blank line below the comment
		case len(p.docs) == 0:
			t.Errorf("package %s has no package comment", p.dir)
		case len(p.docs) > 1:
			t.Errorf("package %s has more than one package comment: %s", p.dir, strings.Join(p.docs, ", "))
		}
	}
}

func TestWeight(t *testing.T) {
	all := packages(t)
	byPath := map[string]*pkgInfo{}
	for _, p := range all {
		byPath[path.Join(module, p.dir)] = p
	}
	seen := map[string]bool{}
	var walk func(string, string)
	walk = func(pkg, chain string) {
		if seen[pkg] {
			return
		}
		seen[pkg] = true
		for _, bad := range neverLinked {
			if under(pkg, bad) {
				t.Errorf("sandboxfn reaches %s: %s", pkg, chain)
			}
		}
		if p := byPath[pkg]; p != nil {
			for imp := range p.imports {
				walk(imp, chain+" → "+imp)
			}
		}
	}
	walk(module+"/sandboxfn", "sandboxfn")
	if !seen[module+"/providers/local"] {
		t.Error("sandboxfn does not reach providers/local: the default would need a second import")
	}
}

func TestNoReplace(t *testing.T) {
	mod, err := os.ReadFile(filepath.Join(root(t), "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	for i, line := range strings.Split(string(mod), "\n") {
		if strings.HasPrefix(strings.TrimSpace(line), "replace") {
			t.Errorf("go.mod:%d: replace is not allowed", i+1)
		}
	}
}

func TestNoForbiddenNames(t *testing.T) {
	for _, p := range packages(t) {
		if p.files == 0 {
			continue
		}
		switch base := path.Base(p.dir); base {
		case "runtime", "util", "common", "types", "errors":
			t.Errorf("package %s: %q is not a name for a package", p.dir, base)
		}
	}
}

func ruleFor(dir string) *rule {
	for i, r := range rules {
		if r.pkg == dir {
			return &rules[i]
		}
	}
	for i, r := range rules {
		if tree, ok := strings.CutSuffix(r.pkg, "/..."); ok && under(dir, tree) {
			return &rules[i]
		}
	}
	return nil
}

func (r *rule) allows(dir, imp string) bool {
	if rel, ok := strings.CutPrefix(imp, module+"/"); ok {
		for _, p := range r.project {
			if tree, isTree := strings.CutSuffix(p, "/..."); rel == p || isTree && under(rel, tree) {
				return true
			}
		}
		return false
	}
	if !strings.Contains(strings.SplitN(imp, "/", 2)[0], ".") {
		return r.std == nil || slices.Contains(r.std, imp)
	}
	return slices.ContainsFunc(r.foreign, func(f string) bool { return under(imp, f) })
}

func under(p, tree string) bool { return p == tree || strings.HasPrefix(p, tree+"/") }

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// packages reads the import clauses of every Go file of the module, whatever
// its build constraints.
func packages(t *testing.T) []*pkgInfo {
	t.Helper()
	base := root(t)
	byDir := map[string]*pkgInfo{}
	err := filepath.WalkDir(base, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if file != base && (name == "testdata" || name == "bin" || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_")) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		rel, err := filepath.Rel(base, filepath.Dir(file))
		if err != nil {
			return err
		}
		dir := filepath.ToSlash(rel)
		p := byDir[dir]
		if p == nil {
			p = &pkgInfo{dir: dir, imports: map[string]token.Position{}}
			byDir[dir] = p
		}
		if strings.HasSuffix(name, "_test.go") && dir != "internal/archtest" {
			return nil
		}
		return p.read(file)
	})
	if err != nil {
		t.Fatal(err)
	}
	out := slices.Collect(maps.Values(byDir))
	slices.SortFunc(out, func(a, b *pkgInfo) int { return strings.Compare(a.dir, b.dir) })
	if len(out) < 5 {
		t.Fatalf("only %d packages found below %s", len(out), base)
	}
	return out
}

func (p *pkgInfo) read(file string) error {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, file, nil, parser.ImportsOnly|parser.ParseComments)
	if err != nil {
		return fmt.Errorf("parse %s: %w", file, err)
	}
	p.files++
	if f.Doc != nil && !isDirectiveOnly(f.Doc) {
		p.docs = append(p.docs, filepath.Base(file))
	}
	for _, spec := range f.Imports {
		p.imports[strings.Trim(spec.Path.Value, `"`)] = fset.Position(spec.Pos())
	}
	return nil
}

// isDirectiveOnly reports whether a comment holds nothing but tool directives,
// as a //sandbox:package line without text.
func isDirectiveOnly(doc *ast.CommentGroup) bool { return strings.TrimSpace(doc.Text()) == "" }
