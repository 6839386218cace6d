package gen

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// cacheRun runs the generator with a cache, writes its output and reports
// whether the cache knew the package in dir.
func cacheRun(t *testing.T, dir, cache string, opts Options) (hit bool) {
	t.Helper()
	var log strings.Builder
	opts.Dir, opts.Cache = dir, cache
	if opts.Env == nil {
		opts.Env = testEnv()
	}
	opts.Logf = func(format string, args ...any) { fmt.Fprintf(&log, format+"\n", args...) }
	r := generate(t, dir, opts)
	for _, d := range r.Diagnostics {
		t.Error(d)
	}
	if err := r.Commit(); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(log.String(), "no use of the cache") {
		t.Fatal(log.String())
	}
	return strings.Contains(log.String(), "up to date, says the cache")
}

// cacheModule is a package with an import of its module, which has another.
func cacheModule(t *testing.T) string {
	return module(t, map[string]string{
		"go.mod":        "module example.com/m\n\ngo 1.26\n\nrequire example.com/r v1.0.0\n\nreplace example.com/r => ./repl\n",
		"a.go":          "package m\n\nimport \"example.com/m/dep\"\n\n//sandbox:func\nfunc f(x dep.T) int { return 0 }\n",
		"other.go":      "package m\n",
		"sub/x.txt":     "",
		"dep/dep.go":    "package dep\n\nimport (\n\t\"example.com/m/deep\"\n\t\"example.com/r\"\n)\n\ntype T struct{ D deep.T; R r.T }\n",
		"deep/deep.go":  "package deep\n\ntype T struct{ N int }\n",
		"repl/go.mod":   "module example.com/r\n\ngo 1.26\n",
		"repl/r.go":     "package r\n\ntype T struct{ N int }\n",
		"unused/u.go":   "package unused\n",
		"dep/x_test.go": "package dep\n",
	})
}

func TestCacheHits(t *testing.T) {
	dir, cache := cacheModule(t), t.TempDir()
	opts := Options{Patterns: []string{"."}}
	if cacheRun(t, dir, cache, opts) {
		t.Fatal("a hit in an empty cache")
	}
	if !cacheRun(t, dir, cache, opts) {
		t.Fatal("no hit although nothing changed")
	}
	r := generate(t, dir, Options{Patterns: opts.Patterns, Cache: cache})
	want := generate(t, dir, Options{Patterns: opts.Patterns})
	if len(r.Packages) != 1 || r.Packages[0].Changed() || r.Packages[0].Path != "example.com/m" ||
		string(r.Packages[0].Output()) != string(want.Packages[0].Output()) ||
		fmt.Sprint(r.Packages[0].Functions) != fmt.Sprint(want.Packages[0].Functions) {
		t.Errorf("a hit gives %+v, want %+v", r.Packages[0], want.Packages[0])
	}
	forced := opts
	forced.Force = true
	if cacheRun(t, dir, cache, forced) {
		t.Error("a hit in spite of Force")
	}
	// What does not matter.
	write(t, filepath.Join(dir, "unused", "u.go"), "package unused\n\nvar X int\n")
	write(t, filepath.Join(dir, "dep", "x_test.go"), "package dep\n\nvar x int\n")
	t.Setenv("GOLINE", "17")
	if !cacheRun(t, dir, cache, opts) {
		t.Error("no hit after changes that do not matter")
	}
}

// keyOf returns the key of the package in dir.
func keyOf(t *testing.T, dir string, opts Options) (string, error) {
	t.Helper()
	opts.Dir, opts.Cache = dir, t.TempDir()
	if opts.Env == nil {
		opts.Env = testEnv()
	}
	g, err := newGenerator(&opts)
	if err != nil {
		t.Fatal(err)
	}
	d, err := findDir(g.report, g.opts.Dir)
	if err != nil {
		t.Fatal(err)
	}
	return g.cache.key(d)
}

// TestCacheKey: whatever can change the output, or a fault, changes the key.
func TestCacheKey(t *testing.T) {
	file := func(name, text string) func(t *testing.T, dir string, o *Options) {
		return func(t *testing.T, dir string, o *Options) {
			write(t, filepath.Join(dir, filepath.FromSlash(name)), text)
		}
	}
	variable := func(kv string) func(t *testing.T, dir string, o *Options) {
		return func(t *testing.T, dir string, o *Options) { o.Env = append(testEnv(), kv) }
	}
	const mod = "module example.com/m\n\ngo 1.26\n\nrequire example.com/r v1.0.0\n\nreplace example.com/r => ./repl\n"
	for name, change := range map[string]func(t *testing.T, dir string, o *Options){
		"own file":        file("other.go", "package m\n\nvar Err error\n"),
		"new file":        file("new.go", "package m\n"),
		"new test file":   file("new_test.go", "package m\n"),
		"new other file":  file("x.s", ""),
		"import":          file("dep/dep.go", "package dep\n\ntype T struct{ N int }\n"),
		"import's import": file("deep/deep.go", "package deep\n\ntype T struct{ N int64 }\n"),
		"import's file":   file("deep/more.go", "package deep\n\nvar Err error\n"),
		"import's output": file("deep/zz_generated.sandbox.go", header+"\n\npackage deep\n\nvar Err error\n"),
		"nested module":   file("deep/go.mod", "module example.com/x\n"),
		"replaced module": file("repl/r.go", "package r\n\ntype T struct{ M int }\n"),
		"its go.mod":      file("repl/go.mod", "module example.com/r\n\ngo 1.25\n"),
		"go.mod":          file("go.mod", strings.Replace(mod, "1.26", "1.25", 1)),
		"go.sum":          file("go.sum", "\n"),
		"go.work":         file("go.work", "go 1.26\n\nuse .\n"),
		"vendor":          file("vendor/modules.txt", ""),
		"tags":            func(t *testing.T, dir string, o *Options) { o.Tags = "x" },
		"mod":             func(t *testing.T, dir string, o *Options) { o.Mod = "mod" },
		"GOARCH":          variable("GOARCH=386"),
		"GOFLAGS":         variable("GOFLAGS=-buildvcs=false -tags=y"),
		"CGO_ENABLED":     variable("CGO_ENABLED=0"),
		"settings of go": func(t *testing.T, dir string, o *Options) {
			path := filepath.Join(t.TempDir(), "env")
			write(t, path, "GOAMD64=v2\n")
			o.Env = append(testEnv(), "GOENV="+path)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := cacheModule(t)
			o := Options{Env: append(testEnv(), "GOWORK=")}
			before, err := keyOf(t, dir, o)
			if err != nil {
				t.Fatal(err)
			}
			change(t, dir, &o)
			if after, err := keyOf(t, dir, o); err != nil || after == before {
				t.Errorf("key %s (%v) as before", after, err)
			}
		})
	}
	// Trees matter where something names files.
	for _, text := range []string{"package m\n", "package m\n\n//go:embed sub\n"} {
		dir := cacheModule(t)
		write(t, filepath.Join(dir, "other.go"), text)
		before, err := keyOf(t, dir, Options{})
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, "sub", "y.txt"), "")
		after, err := keyOf(t, dir, Options{})
		if same := after == before; err != nil || same == strings.Contains(text, "embed") {
			t.Errorf("%q: the same key %v (%v)", text, same, err)
		}
	}
}

// TestCacheOutput: output that is not what was remembered is written anew.
func TestCacheOutput(t *testing.T) {
	dir, cache := cacheModule(t), t.TempDir()
	opts := Options{Patterns: []string{"."}}
	cacheRun(t, dir, cache, opts)
	output := filepath.Join(dir, OutputFile)
	want, err := os.ReadFile(output)
	if err != nil {
		t.Fatal(err)
	}
	extra := filepath.Join(dir, "zz_generated.sandbox-x.go")
	for name, change := range map[string]func(){
		"changed": func() { write(t, output, header+"\n\npackage m\n") },
		"gone":    func() { os.Remove(output) },
		"more":    func() { write(t, extra, header+"\n\npackage m\n") },
	} {
		change()
		if cacheRun(t, dir, cache, opts) {
			t.Errorf("%s: a hit", name)
		}
		got, err := os.ReadFile(output)
		if _, missing := os.Stat(extra); err != nil || string(got) != string(want) || missing == nil {
			t.Errorf("%s: not restored (%v, %v)", name, err, missing)
		}
		if !cacheRun(t, dir, cache, opts) {
			t.Errorf("%s: no hit afterwards", name)
		}
	}
	write(t, filepath.Join(dir, "deep", "deep.go"), "package deep\n\ntype T struct{ N int64 }\n")
	if cacheRun(t, dir, cache, opts) {
		t.Error("a hit although a type changed that is reached through another package")
	}
	if got, err := os.ReadFile(output); err != nil || string(got) == string(want) {
		t.Error("the output did not change with the type")
	}
}

// TestCacheUnsure: where the go command may answer by something that is not
// hashed, the cache is not used.
func TestCacheUnsure(t *testing.T) {
	bin := t.TempDir()
	write(t, filepath.Join(bin, "go"), "#!/bin/sh\nexec false\n")
	if err := os.Chmod(filepath.Join(bin, "go"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		env  string
		file string
		text string
	}{
		"overlay":    {env: "GOFLAGS=-overlay=x.json"},
		"driver":     {env: "GOPACKAGESDRIVER=x"},
		"GOPATH":     {env: "GO111MODULE=off"},
		"cgo":        {file: "deep/deep.go", text: "package deep\n\nimport \"C\"\n\ntype T struct{ N int }\n"},
		"other PATH": {env: "PATH=" + bin},
	} {
		t.Run(name, func(t *testing.T) {
			dir := cacheModule(t)
			env := testEnv()
			if c.env != "" {
				env = append(env, c.env)
			}
			if c.file != "" {
				write(t, filepath.Join(dir, filepath.FromSlash(c.file)), c.text)
			}
			if key, err := keyOf(t, dir, Options{Env: env}); err == nil {
				t.Errorf("key %s, want an error", key)
			}
		})
	}
}

// TestCacheWorkspace: other modules of a workspace count as source.
func TestCacheWorkspace(t *testing.T) {
	dir := module(t, map[string]string{
		"go.work":  "go 1.26\n\nuse (\n\t./a\n\t./b\n)\n",
		"go.mod":   "module example.com/none\n",
		"a/go.mod": "module example.com/a\n\ngo 1.26\n",
		"a/a.go":   "package a\n\nimport \"example.com/b\"\n\n//sandbox:func\nfunc f(x b.T) {}\n",
		"b/go.mod": "module example.com/b\n\ngo 1.26\n",
		"b/b.go":   "package b\n\ntype T struct{ N int }\n",
	})
	cache := t.TempDir()
	o := Options{Patterns: []string{"."}, Env: append(testEnv(), "GOWORK=")}
	a := filepath.Join(dir, "a")
	cacheRun(t, a, cache, o)
	if !cacheRun(t, a, cache, o) {
		t.Fatal("no hit")
	}
	write(t, filepath.Join(dir, "b", "b.go"), "package b\n\ntype T struct{ N string }\n")
	if cacheRun(t, a, cache, o) {
		t.Error("a hit although the other module changed")
	}
	write(t, filepath.Join(dir, "go.work"), "go 1.26.0\n\nuse (\n\t./a\n\t./b\n)\n")
	if cacheRun(t, a, cache, o) {
		t.Error("a hit although go.work changed")
	}
}

// TestCacheIDs: two packages with one id are found, also when the cache knows
// both.
func TestCacheIDs(t *testing.T) {
	dir := module(t, map[string]string{
		"a/a.go": "package a\n\n//sandbox:func id=x\nfunc f() {}\n",
		"b/b.go": "package b\n\n//sandbox:func id=x\nfunc f() {}\n",
	})
	cache := t.TempDir()
	for _, p := range []string{"./a", "./b"} {
		cacheRun(t, dir, cache, Options{Patterns: []string{p}})
	}
	r := generate(t, dir, Options{Cache: cache})
	if len(r.Diagnostics) != 1 || r.Diagnostics[0].Code != "G031" {
		t.Errorf("diagnostics %v, want one G031", r.Diagnostics)
	}
}

// TestCacheBroken: a cache that holds nonsense or can't be written changes
// nothing.
func TestCacheBroken(t *testing.T) {
	dir, cache := cacheModule(t), t.TempDir()
	opts := Options{Patterns: []string{"."}}
	cacheRun(t, dir, cache, opts)
	entries, err := filepath.Glob(filepath.Join(cache, "*", "*"))
	if err != nil || len(entries) != 1 {
		t.Fatal(entries, err)
	}
	good, err := os.ReadFile(entries[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"", "{", "null", "{}", string(good[:len(good)/2]), strings.Replace(string(good), `"key":"`, `"key":"0`, 1)} {
		write(t, entries[0], text)
		if cacheRun(t, dir, cache, opts) {
			t.Errorf("a hit on %q", text)
		}
		write(t, entries[0], string(good))
		if !cacheRun(t, dir, cache, opts) {
			t.Error("no hit on what was written before")
		}
	}
	blocked := filepath.Join(cache, "file")
	write(t, blocked, "")
	if cacheRun(t, dir, blocked, opts) {
		t.Error("a hit in a cache that can't be there")
	}
	if !cacheRun(t, dir, cache, opts) {
		t.Error("no hit after it")
	}
}

func TestCacheTrim(t *testing.T) {
	dir := t.TempDir()
	c := &cache{dir: dir}
	now := time.Now()
	name := func(i int) string { return filepath.Join(dir, "00", fmt.Sprintf("%064d", i)) }
	for i := range cacheEntries + 5 {
		write(t, name(i), "")
		used := now.Add(-time.Duration(i) * time.Second)
		if i == 3 {
			used = now.Add(-cacheAge - time.Hour)
		}
		if err := os.Chtimes(name(i), used, used); err != nil {
			t.Fatal(err)
		}
	}
	foreign := filepath.Join(dir, "00", "notes")
	write(t, foreign, "")
	old := now.Add(-2 * cacheAge)
	if err := os.Chtimes(foreign, old, old); err != nil {
		t.Fatal(err)
	}
	if err := c.trim(now); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join(dir, "00", "0*"))
	if err != nil || len(left) != cacheEntries {
		t.Errorf("%d entries left (%v), want %d", len(left), err, cacheEntries)
	}
	for path, want := range map[string]bool{name(0): true, name(3): false, name(cacheEntries + 4): false, foreign: true} {
		if _, err := os.Stat(path); (err == nil) != want {
			t.Errorf("%s is there: %v, want %v", path, err == nil, want)
		}
	}
	write(t, name(9999), "")
	if err := os.Chtimes(name(9999), old, old); err != nil {
		t.Fatal(err)
	}
	if err := c.trim(now); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(name(9999)); err != nil {
		t.Error("trimmed again at once")
	}
}
