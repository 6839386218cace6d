package gen

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/tools/go/packages"
)

// BenchmarkGenerate50 measures a full run over a package of 50 annotated
// functions, output included, against a warm go build of the same package and
// against a bare load of it with types. The metrics x-build and x-load are the
// ratios; they should stay below 1.6 and 1.25, and x-build below 0.15 when the
// cache knows the package.
func BenchmarkGenerate50(b *testing.B) {
	root, err := filepath.Abs("..")
	if err != nil {
		b.Fatal(err)
	}
	dir := module(b, map[string]string{"m.go": fifty(50)})
	write(b, filepath.Join(dir, "go.work"), "go 1.26.0\n\nuse (\n\t.\n\t"+root+"\n)\n")
	env := append(os.Environ(), "GOWORK="+filepath.Join(dir, "go.work"), "GOFLAGS=-buildvcs=false")
	build := func() {
		cmd := exec.Command("go", "build", ".")
		cmd.Dir, cmd.Env = dir, env
		if out, err := cmd.CombinedOutput(); err != nil {
			b.Fatalf("%v\n%s", err, out)
		}
	}
	load := func() {
		cfg := &packages.Config{Dir: dir, Env: env, Mode: packages.NeedName | packages.NeedFiles | packages.NeedCompiledGoFiles |
			packages.NeedImports | packages.NeedTypes | packages.NeedSyntax | packages.NeedTypesInfo}
		if _, err := packages.Load(cfg, "."); err != nil {
			b.Fatal(err)
		}
	}
	cache := b.TempDir()
	with := func(opts Options) func() {
		opts.Dir, opts.Env = dir, env
		return func() {
			r, err := Generate(context.Background(), &opts)
			if err != nil || len(r.Diagnostics) > 0 {
				b.Fatal(err, r)
			}
			if err := r.Commit(); err != nil {
				b.Fatal(err)
			}
		}
	}
	run, hit := with(Options{Cache: cache, Force: true}), with(Options{Cache: cache})
	run()
	build() // from here on the build is warm
	mean := make(map[string]time.Duration)
	measure := func(name string, f func(), ratios func(*testing.B)) {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				f()
			}
			mean[name] = b.Elapsed() / time.Duration(b.N)
			ratios(b)
		})
	}
	measure("build", build, func(*testing.B) {})
	measure("load", load, func(*testing.B) {})
	against := func(name string, bases ...string) func(*testing.B) {
		return func(b *testing.B) {
			for _, base := range bases {
				if d := mean[base]; d > 0 { // a -bench pattern may leave it out
					b.ReportMetric(float64(mean[name])/float64(d), "x-"+base)
				}
			}
		}
	}
	measure("generate", run, against("generate", "build", "load"))
	measure("hit", hit, against("hit", "build"))
}

// BenchmarkSkip measures what a package costs that has neither directives nor
// output.
func BenchmarkSkip(b *testing.B) {
	dir := module(b, map[string]string{"m.go": "package m\n"})
	for b.Loop() {
		if _, err := Generate(context.Background(), &Options{Dir: dir}); err != nil {
			b.Fatal(err)
		}
	}
}
