package gen

import (
	"bytes"
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/types"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// module writes a module of the given files and returns its folder.
func module(t testing.TB, files map[string]string) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := files["go.mod"]; !ok {
		write(t, filepath.Join(dir, "go.mod"), "module example.com/m\n\ngo 1.26\n")
	}
	for name, text := range files {
		write(t, filepath.Join(dir, filepath.FromSlash(name)), text)
	}
	return dir
}

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// generate runs the generator over ./... of dir.
func generate(t testing.TB, dir string, opts Options) *Result {
	t.Helper()
	opts.Dir = dir
	if opts.Env == nil {
		opts.Env = testEnv()
	}
	if opts.Patterns == nil {
		opts.Patterns = []string{"./..."}
	}
	r, err := Generate(context.Background(), &opts)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// testEnv keeps the go command off the network and out of workspaces.
func testEnv() []string {
	return append(os.Environ(), "GOWORK=off", "GOPROXY=off", "GOFLAGS=-buildvcs=false")
}

// output returns the only output of a result without faults.
func output(t testing.TB, r *Result) string {
	t.Helper()
	for _, d := range r.Diagnostics {
		t.Error(d)
	}
	if len(r.Packages) != 1 {
		t.Fatalf("%d packages, want 1", len(r.Packages))
	}
	return string(r.Packages[0].Output())
}

// fifty returns a package of n annotated functions of common shapes.
func fifty(n int) string {
	var b strings.Builder
	b.WriteString("package m\n\nimport (\n\t\"context\"\n\t\"net/http\"\n\t\"time\"\n)\n\nvar _ = http.MethodGet\n\n")
	b.WriteString("type Item struct {\n\tName string\n\tAt time.Time\n\tTags map[string][]string\n}\n")
	for i := range n {
		switch i % 4 {
		case 0:
			fmt.Fprintf(&b, "\n// fn%02d does something with a picture.\n//\n//sandbox:func timeout=30s memory=512MiB\nfunc fn%02d(ctx context.Context, img []byte, width, height int) ([]byte, error) { return img, nil }\n", i, i)
		case 1:
			fmt.Fprintf(&b, "\n// fn%02d looks at an item.\n//\n//sandbox:func\nfunc fn%02d(ctx context.Context, it *Item) (Item, error) { return *it, nil }\n", i, i)
		case 2:
			fmt.Fprintf(&b, "\n//sandbox:func template=base env=MODE=fast,LEVEL=3\nfunc fn%02d(names ...string) (first, last string, err error) { return }\n", i)
		case 3:
			fmt.Fprintf(&b, "\n//sandbox:func idempotent retries=2\nfunc fn%02d(items map[string][]*Item, deadline time.Duration, limit float64, strict bool) (n int) { return }\n", i)
		}
	}
	return b.String()
}

func TestThin(t *testing.T) {
	dir := module(t, map[string]string{"m.go": fifty(50)})
	first := output(t, generate(t, dir, Options{}))
	// What a file costs without functions is not counted.
	one := string(quickly(t, strings.ReplaceAll(strings.ReplaceAll(fifty(1), "\t\"net/http\"\n", ""), "var _ = http.MethodGet\n", "")).pkg.Output())
	perFunction := (len(first) - len(one)) / 49
	if perFunction > 1536 {
		t.Errorf("%d bytes a function, want at most 1536", perFunction)
	}
	if n := strings.Count(first, "func(ctx context.Context, a "); n != 50 {
		t.Errorf("%d closures for 50 functions", n)
	}
}

// TestDeterminism: order of functions and files, working directory, and flags
// of the go command that do not choose files, change nothing.
func TestDeterminism(t *testing.T) {
	src := fifty(12)
	head, body, _ := strings.Cut(src, "\ntype Item")
	parts := strings.SplitAfter("\ntype Item"+body, "}\n\n")
	dir := module(t, map[string]string{"m.go": src})
	want := output(t, generate(t, dir, Options{}))
	for seed := range uint64(1) {
		r := rand.New(rand.NewPCG(seed, 1))
		r.Shuffle(len(parts), func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
		files := map[string]string{"go.mod": "module example.com/m\n\ngo 1.26\n"}
		imports := head
		for i, p := range parts {
			text := "package m\n\n" + p
			for _, name := range []string{"context", "time"} {
				if strings.Contains(p, name+".") {
					text = strings.Replace(text, "package m\n", "package m\n\nimport \""+name+"\"\n", 1)
				}
			}
			files[fmt.Sprintf("%c%d.go", 'a'+rune(r.IntN(26)), i)] = text
		}
		files["imports.go"] = strings.Replace(strings.Replace(imports, "\t\"context\"\n", "", 1), "\t\"time\"\n", "", 1)
		shuffled := module(t, files)
		if got := output(t, generate(t, shuffled, Options{})); got != want {
			t.Errorf("seed %d (-got +want):\n%s", seed, cmp.Diff(got, want))
		}
	}
	// Flags that compile the standard library anew, such as -trimpath, would take a minute.
	env := append(testEnv(), "GOFLAGS=-buildvcs=false -mod=mod -ldflags=-w -p=1")
	if got := output(t, generate(t, dir, Options{Env: env})); got != want {
		t.Error("another GOFLAGS changes the output")
	}
	wd := t.TempDir()
	t.Chdir(wd)
	rel, err := filepath.Rel(wd, dir)
	if err != nil {
		t.Fatal(err)
	}
	if got := output(t, generate(t, rel, Options{Patterns: []string{dir}})); got != want {
		t.Error("another working directory changes the output")
	}
}

// TestSchema: what the wire depends on changes the schema, the rest does not.
func TestSchema(t *testing.T) {
	schemaOf := func(src string) string {
		t.Helper()
		q := quickly(t, "package m\n"+src)
		for _, d := range q.g.report.sorted() {
			t.Fatal(d)
		}
		return q.pkg.Functions[0].Schema
	}
	base := schemaOf("type T struct{ A int; B []*T }\n//sandbox:func\nfunc f(t T, n int) (string, error) { return \"\", nil }")
	if len(base) != 64 {
		t.Fatalf("schema %q", base)
	}
	same := map[string]string{
		"names":      "type Other struct{ A int; B []*Other }\n//sandbox:func as=Look\nfunc f(other Other, number int) (text string, err error) { return \"\", nil }",
		"comments":   "// T.\ntype T struct{ A int // a\n B []*T }\n// f.\n//\n//sandbox:func timeout=5s\nfunc f(t T, n int) (string, error) { return \"\", nil }",
		"alias":      "type N = int\ntype T struct{ A N; B []*T }\n//sandbox:func\nfunc f(t T, n N) (string, error) { return \"\", nil }",
		"defined":    "type N int\ntype T struct{ A N; B []*T }\n//sandbox:func\nfunc f(t T, n N) (string, error) { return \"\", nil }",
		"skipped":    "type T struct{ A int; B []*T; c int `sandbox:\"-\"` }\n//sandbox:func\nfunc f(t T, n int) (string, error) { return \"\", nil }",
		"no error":   "type T struct{ A int; B []*T }\n//sandbox:func\nfunc f(t T, n int) string { return \"\" }",
		"other tags": "type T struct{ A int `yaml:\"a\"`; B []*T }\n//sandbox:func\nfunc f(t T, n int) (string, error) { return \"\", nil }",
	}
	for name, src := range same {
		if got := schemaOf(src); got != base {
			t.Errorf("%s: schema changed", name)
		}
	}
	different := map[string]string{
		"id":     "type T struct{ A int; B []*T }\n//sandbox:func id=x\nfunc f(t T, n int) (string, error) { return \"\", nil }",
		"type":   "type T struct{ A int; B []*T }\n//sandbox:func\nfunc f(t T, n int64) (string, error) { return \"\", nil }",
		"field":  "type T struct{ C int; B []*T }\n//sandbox:func\nfunc f(t T, n int) (string, error) { return \"\", nil }",
		"tag":    "type T struct{ A int `json:\"a\"`; B []*T }\n//sandbox:func\nfunc f(t T, n int) (string, error) { return \"\", nil }",
		"result": "type T struct{ A int; B []*T }\n//sandbox:func\nfunc f(t T, n int) error { return nil }",
		"order":  "type T struct{ A int; B []*T }\n//sandbox:func\nfunc f(n int, t T) (string, error) { return \"\", nil }",
		"marsh":  "type T struct{ A int; B []*T }\nfunc (T) MarshalText() ([]byte, error) { return nil, nil }\nfunc (*T) UnmarshalText([]byte) error { return nil }\n//sandbox:func\nfunc f(t T, n int) (string, error) { return \"\", nil }",
	}
	seen := map[string]string{base: "base"}
	for name, src := range different {
		got := schemaOf(src)
		if other, ok := seen[got]; ok {
			t.Errorf("%s has the schema of %s", name, other)
		}
		seen[got] = name
	}
}

// TestSchemaOfLive is TestSchema for live types, batches, paths and tags.
func TestSchemaOfLive(t *testing.T) {
	schemas := func(src string) (list []string) {
		t.Helper()
		q := quickly(t, "package m\nimport (\"context\"; \"io\"; \"iter\"; \"time\")\nvar ( _ context.Context; _ io.Reader; _ iter.Seq[int]; _ time.Time )\n"+src)
		for _, d := range q.g.report.sorted() {
			t.Fatal(d)
		}
		for _, f := range q.pkg.Functions {
			list = append(list, f.Schema)
		}
		return list
	}
	one := func(directive, signature string) string {
		t.Helper()
		return schemas("type Named func(int) string\n//sandbox:func " + directive + "\nfunc f" + signature + " { panic(0) }")[0]
	}
	same := [][2]string{
		{one("", "(f func(int) string)"), one("", "(call Named)")},
		{one("", "(f func(int) string)"), one("", "(f func(ctx context.Context, n int) (text string))")},
		{one("", "() iter.Seq[int]"), one("", "(ctx context.Context) (iter.Seq2[int, error], error)")},
		{one("batch=2", "(a []int) []string"), one("batch=3 batch_wait=1s", "(ctx context.Context, b ...int) ([]string, error)")},
		{one("in=a", "(a string)"), one("in=b", "(b string)")},
	}
	for i, pair := range same {
		if pair[0] != pair[1] {
			t.Errorf("pair %d: the schemas differ", i)
		}
	}
	seen := make(map[string]int)
	for i, s := range []string{
		one("", "(f func(int) string)"), one("", "(f func(int) (string, error))"), one("", "(f func(int, int) string)"), one("", "(f func(string) int)"),
		one("", "(s iter.Seq[int])"), one("", "(s iter.Seq2[int, error])"), one("", "(s iter.Seq[string])"), one("", "(s []int)"),
		one("", "(r io.Reader)"), one("", "(w io.Writer)"), one("", "() io.ReadCloser"), one("", "() iter.Seq[int]"), one("", "() []int"),
		one("batch=2", "(a []int) []string"), one("", "(a int) string"), one("", "(a []int) []string"),
		one("", "(a string)"), one("in=a", "(a string)"), one("out=a", "(a string)"), one("in=a out=a", "(a string)"),
	} {
		if other, ok := seen[s]; ok {
			t.Errorf("signatures %d and %d have one schema", other, i)
		}
		seen[s] = i
	}
	tagged := func(tag string) string {
		t.Helper()
		return schemas("type T struct{ A int; B string `" + tag + "` }\n//sandbox:func\nfunc f(t T) {}")[0]
	}
	if a, b := tagged(`sandbox:"secret=X"`), tagged(`sandbox:"-"`); a != b {
		t.Error("a secret is part of the schema")
	}
	if a, b := tagged(""), tagged(`sandbox:"default=x" validate:"required"`); a != b {
		t.Error("defaults and rules are part of the schema")
	}
	if a, b, c := tagged(""), tagged(`sandbox:"file"`), tagged(`sandbox:"file,out"`); a == b || b == c || a == c {
		t.Error("paths are not part of the schema")
	}
	class := func(fields string) string {
		t.Helper()
		return schemas("type Base struct{ A int; state int }\n//sandbox:class\ntype c struct{ " + fields + " }")[0]
	}
	if a, b := class("A int; B string; net []byte"), class("Base; B string; mu chan int"); a != b {
		t.Error("state, or where a parameter comes from, is part of a class's schema")
	}
	if a, b := class("A int"), class("A int8"); a == b {
		t.Error("parameters are not part of a class's schema")
	}
}

// TestRuleNames: every rule that may be suggested exists.
func TestRuleNames(t *testing.T) {
	structure := []string{"dive", "keys", "endkeys"}
	for _, name := range ruleNames {
		if !knownRule(name) && !strings.Contains(strings.Join(structure, " "), name) {
			t.Errorf("validator/v10 does not know %s", name)
		}
	}
}

func TestCommit(t *testing.T) {
	dir := module(t, map[string]string{"m.go": "package m\n\n//sandbox:func\nfunc f(n int) error { return nil }\n"})
	path := filepath.Join(dir, OutputFile)
	if err := generate(t, dir, Options{}).Commit(); err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if st.Mode().Perm() != 0o644 {
		t.Errorf("mode %v, want 0644", st.Mode())
	}
	old := time.Now().Add(-time.Hour).Truncate(time.Second)
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
	}
	r := generate(t, dir, Options{})
	if r.Packages[0].Changed() {
		t.Error("a second run would change something")
	}
	if err := r.Commit(); err != nil {
		t.Fatal(err)
	}
	if st, err = os.Stat(path); err != nil || !st.ModTime().Equal(old) {
		t.Errorf("time changed to %v (%v), want %v", st.ModTime(), err, old)
	}
	names, err := filepath.Glob(filepath.Join(dir, ".*"))
	if err != nil || len(names) > 0 {
		t.Errorf("left behind: %v %v", names, err)
	}
}

// TestCancelled: a cancelled run ends with an error and writes nothing.
func TestCancelled(t *testing.T) {
	dir := module(t, map[string]string{"m.go": "package m\n\n//sandbox:func\nfunc f(n int) error { return nil }\n"})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Generate(ctx, &Options{Dir: dir, Env: testEnv()}); err == nil {
		t.Error("no error")
	}
}

// TestDiff applies its own diffs with the tool they are meant for.
func TestDiff(t *testing.T) {
	if _, err := exec.LookPath("patch"); err != nil {
		t.Log("no patch command; only the form is checked")
	}
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 50 {
		before := make([]string, r.IntN(40))
		for j := range before {
			before[j] = fmt.Sprint(r.IntN(5))
		}
		after := append([]string{}, before...)
		for range r.IntN(6) {
			at := r.IntN(len(after) + 1)
			if r.IntN(2) == 0 && at < len(after) {
				after = append(after[:at], after[at+1:]...)
			} else {
				after = append(after[:at], append([]string{"x" + fmt.Sprint(r.IntN(5))}, after[at:]...)...)
			}
		}
		join := func(l []string) []byte {
			if len(l) == 0 {
				return nil
			}
			return []byte(strings.Join(l, "\n") + "\n")
		}
		diff := unified("f", join(before), join(after))
		got, err := apply(join(before), diff)
		if err != nil || !bytes.Equal(got, join(after)) {
			t.Fatalf("case %d: %v\n%q\n%q\n%s", i, err, before, after, diff)
		}
	}
}

// apply is a strict reader of unified diffs.
func apply(src []byte, diff string) ([]byte, error) {
	if diff == "" {
		return src, nil
	}
	old, out, at := lines(src), []string(nil), 0
	all := strings.Split(strings.TrimSuffix(diff, "\n"), "\n")
	for _, l := range all[2:] {
		if strings.HasPrefix(l, "@@") {
			var start, count int
			if _, err := fmt.Sscanf(l, "@@ -%d,%d", &start, &count); err != nil {
				return nil, err
			}
			if count == 0 {
				start++
			}
			if start-1 < at || start-1 > len(old) {
				return nil, fmt.Errorf("hunk %s out of order", l)
			}
			out, at = append(out, old[at:start-1]...), start-1
			continue
		}
		switch l[0] {
		case '+':
			out = append(out, l[1:])
		default:
			if at >= len(old) || old[at] != l[1:] {
				return nil, fmt.Errorf("line %q does not match", l)
			}
			if l[0] == ' ' {
				out = append(out, l[1:])
			}
			at++
		}
	}
	out = append(out, old[at:]...)
	if len(out) == 0 {
		return nil, nil
	}
	return []byte(strings.Join(out, "\n") + "\n"), nil
}

// stub stands for sandboxfn when output is only type-checked.
const stub = `package sandboxfn
import ("context"; "io/fs"; "iter"; "time")
const Generated1 = 1
type None struct{}
type Param struct{ Name, Type string; In, Out bool }
type Bytes int64
const ( KiB Bytes = 1<<10; MiB Bytes = 1<<20; GiB Bytes = 1<<30 )
type Options struct { Template string; Timeout time.Duration; Memory Bytes; Batch int; Secrets map[string]string; Files []FileMount }
type FileMount struct { Remote string; FS fs.FS; Name string }
type Decl struct { Package, Name, ID, Schema string; Params []Param; Options Options; Validate func(any) error }
type Func[A, R any] struct{}
func (Func[A, R]) Call(context.Context, A) (r R, err error) { return }
func Declare[A, R any](Decl) (f Func[A, R]) { return }
func Bind[A, R any](Func[A, R], func(context.Context, A) (R, error)) {}
type StreamFunc[A, T any] struct{}
func (StreamFunc[A, T]) Stream(context.Context, A) (s iter.Seq2[T, error]) { return }
func DeclareStream[A, T any](Decl) (f StreamFunc[A, T]) { return }
func BindStream[A, T any](StreamFunc[A, T], func(context.Context, A) (iter.Seq2[T, error], error)) {}
func Pairs[T any](iter.Seq[T]) (s iter.Seq2[T, error]) { return }
type Result[T any] struct { Value T; Err error }
func DeclareBatch[In, Out any](Decl) (f Func[In, Out]) { return }
func BindBatch[In, Out any](Func[In, Out], func(context.Context, []In) ([]Out, error)) {}
func BindBatchResults[In, Out any](Func[In, Out], func(context.Context, []In) ([]Result[Out], error)) {}
type ClassDecl struct { Package, Name, ID, Schema string; Options Options; Validate func(any) error }
type Class[P any] struct{}
type Object struct{}
func (Object) Close() (err error) { return }
func DeclareClass[P any](ClassDecl) (c Class[P]) { return }
func NewObject[P any](Class[P], P, *Options) (o Object) { return }
func BindClass[P, T any](Class[P], func(P) *T, func(context.Context, *T) error, func(context.Context, *T) error) {}
type Method[A, R any] struct{}
func (Method[A, R]) Of(Object) (f Func[A, R]) { return }
func DeclareMethod[A, R, P any](Class[P], Decl) (m Method[A, R]) { return }
func BindMethod[A, R, T any](Method[A, R], func(context.Context, *T, A) (R, error)) {}
type StreamMethod[A, T any] struct{}
func (StreamMethod[A, T]) Of(Object) (f StreamFunc[A, T]) { return }
func DeclareStreamMethod[A, T, P any](Class[P], Decl) (m StreamMethod[A, T]) { return }
func BindStreamMethod[A, T, C any](StreamMethod[A, T], func(context.Context, *C, A) (iter.Seq2[T, error], error)) {}
func Takeover(string) {}
type ErrorEntry struct{}
func Errors(string, ...ErrorEntry) {}
func Sentinel(string, *error) (e ErrorEntry) { return }
func ErrorType[T error]() (e ErrorEntry) { return }
type ( PredeclaredError = error; PredeclaredString = string; PredeclaredInt = int; PredeclaredByte = byte; PredeclaredBool = bool; PredeclaredAny = any )
`

// cachedExports is where the export data of the packages lies that quick
// tests import; it is found out once.
var cachedExports = sync.OnceValues(func() (map[string]string, error) {
	g, err := newGenerator(&Options{Env: testEnv()})
	if err != nil {
		return nil, err
	}
	err = g.loader.loadExports(context.Background(), []string{
		"context", "embed", "errors", "io", "io/fs", "iter", "sync", "sync/atomic", "time", "unsafe", "net/url", "math/big", "encoding/json",
	})
	return g.loader.exports, err
})

// quick is one package that is generated without asking the go command.
type quick struct {
	g    *generator
	dir  *sourceDir
	info *packageInfo
	pkg  *Package
}

// quickly generates for one file of package example.com/m.
func quickly(t testing.TB, src string) *quick {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "m.go"), src)
	g, err := newGenerator(&Options{Dir: dir, Env: testEnv()})
	if err != nil {
		t.Fatal(err)
	}
	exports, err := cachedExports()
	if err != nil {
		t.Fatal(err)
	}
	for path, file := range exports {
		g.loader.exports[path] = file
	}
	q := &quick{g: g}
	g.loader.exports[sandboxfnPath], g.loader.exports[validatePath] = "", ""
	g.loader.types[sandboxfnPath] = q.library(t, sandboxfnPath, stub)
	g.loader.types[validatePath] = q.library(t, validatePath, "package validate\nfunc Args(...string) func(any) error { return nil }\n")
	if q.dir, err = findDir(g.report, g.opts.Dir); err != nil {
		t.Fatal(err)
	}
	q.info = &packageInfo{path: "example.com/m", name: "m", dir: q.dir.path, goVersion: "go1.26", files: q.dir.files}
	g.loader.infos[q.dir.path] = q.info
	if q.dir.productive() {
		if q.pkg, err = g.onePackage(context.Background(), q.dir); err != nil {
			t.Fatalf("%v\n%s", err, src)
		}
	}
	return q
}

// library types the stub of a package of ours.
func (q *quick) library(t testing.TB, path, src string) *types.Package {
	t.Helper()
	f, err := parser.ParseFile(q.g.fset, path, src, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	conf := types.Config{Importer: dependencies{context.Background(), q.g.loader}}
	p, err := conf.Check(path, q.g.fset, []*ast.File{f}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// compile checks source and output together, faults in output included.
func (q *quick) compile(t testing.TB) {
	t.Helper()
	var files []*ast.File
	for _, f := range q.info.files {
		files = append(files, f.ast)
	}
	f, err := parser.ParseFile(q.g.fset, OutputFile, q.pkg.Output(), parser.SkipObjectResolution)
	if err != nil {
		t.Fatalf("%v\n%s", err, q.pkg.Output())
	}
	conf := types.Config{Importer: dependencies{context.Background(), q.g.loader}, GoVersion: "go1.26"}
	if _, err := conf.Check("example.com/m", q.g.fset, append(files, f), nil); err != nil {
		t.Fatalf("%v\n%s", err, q.pkg.Output())
	}
}
