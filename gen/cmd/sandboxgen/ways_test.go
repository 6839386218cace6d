package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestWaysOfRunning starts the tool by go run, by go tool, as an installed
// program and through a go:generate line, in a fresh module. All give the same
// output and none changes go.mod or go.sum.
func TestWaysOfRunning(t *testing.T) {
	if testing.Short() {
		t.Skip("links the tool several times")
	}
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	dir, bin := t.TempDir(), t.TempDir()
	freshModule(t, dir, root)
	env := append(os.Environ(), "GOWORK=off", "GOFLAGS=-buildvcs=false", "GOBIN="+bin, "PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	goTool := func(args ...string) ([]byte, error) {
		cmd := exec.Command("go", args...)
		cmd.Dir, cmd.Env = dir, env
		return cmd.CombinedOutput()
	}
	tidy := true
	if out, err := goTool("mod", "tidy"); err != nil {
		tidy = false
		t.Logf("go.mod is not checked for unused lines, that needs test dependencies of dependencies: %s", lastLine(out))
		freshModule(t, dir, root)
	}
	before := readAll(t, dir, "go.mod", "go.sum")
	if out, err := goTool("install", "github.com/agent-sandbox/sandbox-go/gen/cmd/sandboxgen"); err != nil {
		t.Fatalf("go install: %v\n%s", err, out)
	}
	output := filepath.Join(dir, "zz_generated.sandbox.go")
	ways := []struct {
		name string
		run  func() ([]byte, error)
	}{
		{"go run", func() ([]byte, error) {
			return goTool("run", "github.com/agent-sandbox/sandbox-go/gen/cmd/sandboxgen", ".")
		}},
		{"go tool", func() ([]byte, error) { return goTool("tool", "sandboxgen") }},
		{"installed", func() ([]byte, error) {
			cmd := exec.Command(filepath.Join(bin, "sandboxgen"))
			cmd.Dir, cmd.Env = dir, env
			return cmd.CombinedOutput()
		}},
		{"go generate", func() ([]byte, error) { return goTool("generate", "./...") }},
	}
	var first []byte
	for _, w := range ways {
		out, err := w.run()
		if err != nil || len(out) > 0 {
			t.Fatalf("%s: %v\n%s", w.name, err, out)
		}
		got, err := os.ReadFile(output)
		if err != nil {
			t.Fatalf("%s: %v", w.name, err)
		}
		if first == nil {
			first = got
		}
		if !bytes.Equal(got, first) {
			t.Errorf("%s gives other output than %s", w.name, ways[0].name)
		}
		if err := os.Remove(output); err != nil {
			t.Fatal(err)
		}
		if readAll(t, dir, "go.mod", "go.sum") != before {
			t.Errorf("%s changed go.mod or go.sum", w.name)
		}
	}
	if err := os.WriteFile(output, first, 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := goTool("build", "./..."); err != nil {
		t.Errorf("the output does not build: %v\n%s", err, out)
	}
	if tidy {
		if out, err := goTool("mod", "tidy", "-diff"); err != nil || len(out) > 0 {
			t.Errorf("go.mod is not tidy with the output: %v\n%s", err, out)
		}
	}
}

// TestAnnotatedTests generates for functions that stand in tests and in a file
// with a constraint, and calls them in worker processes of the test.
func TestAnnotatedTests(t *testing.T) {
	if testing.Short() {
		t.Skip("links a test")
	}
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	freshModule(t, dir, root)
	for name, text := range map[string]string{
		"fresh.go": "package fresh\n\ntype Item struct{ N int }\n",
		"constrained.go": `//go:build !none

package fresh

import "errors"

var ErrOdd = errors.New("odd")

//sandbox:func
func half(it Item) (Item, error) {
	if it.N%2 != 0 {
		return it, ErrOdd
	}
	return Item{it.N / 2}, nil
}
`,
		"fresh_test.go": `package fresh

import (
	"os"
	"testing"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/sandboxtest"
)

var prepared int

func init() { prepared = 40 }

type helper struct{ N int }

// inTest uses what an init of the tests did.
//
//sandbox:func
func inTest(h helper) (int, int) { return prepared + h.N, os.Getpid() }

// Seen is for external tests.
func (it Item) Seen() int { return it.N + prepared }

func TestInTest(t *testing.T) {
	ctx := sandboxtest.Process(t)
	if n, pid, err := InTest(ctx, helper{2}); err != nil || n != 42 || pid == os.Getpid() {
		t.Errorf("got %d in process %d, %v", n, pid, err)
	}
	if it, err := Half(ctx, Item{8}); err != nil || it.N != 4 {
		t.Errorf("got %v, %v", it, err)
	}
	if _, err := Half(ctx, Item{7}); err != ErrOdd {
		t.Errorf("error %v, want %v itself", err, ErrOdd)
	}
}
`,
		"through/through.go": `package through

import "example.com/fresh"

func Double(it fresh.Item) fresh.Item { return fresh.Item{N: 2 * it.N} }
`,
		"external_test.go": `package fresh_test

import (
	"os"
	"testing"

	"example.com/fresh"
	"example.com/fresh/through"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/sandboxtest"
)

// external uses what only tests see, and a package that imports this one.
//
//sandbox:func
func external(it fresh.Item) (n, pid int, err error) {
	return through.Double(it).Seen(), os.Getpid(), nil
}

func TestExternal(t *testing.T) {
	if n, pid, err := External(sandboxtest.Process(t), fresh.Item{N: 1}); err != nil || n != 42 || pid == os.Getpid() {
		t.Errorf("got %d in process %d, %v", n, pid, err)
	}
}
`,
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{filepath.Join(tools, "sandboxgen")}, {"go", "test", "./..."}} {
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-buildvcs=false", "SANDBOX_CACHE_DIR="+t.TempDir())
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", args[0], err, out)
		}
	}
}

// freshModule writes a module that uses the tool of this checkout, with the
// requirements of this one so that no network is needed.
func freshModule(t *testing.T, dir, root string) {
	t.Helper()
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	sum, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	_, requires, _ := strings.Cut(string(mod), "\nrequire")
	text := "module example.com/fresh\n\ngo 1.26.0\n\ntool github.com/agent-sandbox/sandbox-go/gen/cmd/sandboxgen\n\n" +
		"require github.com/agent-sandbox/sandbox-go v0.0.0\n\nreplace github.com/agent-sandbox/sandbox-go => " + root + "\n\nrequire" + requires
	source := `package fresh

import (
	"context"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
)

//go:generate go tool sandboxgen

var _ = sandboxfn.GiB

// Work uses what is generated.
func Work(ctx context.Context) (int, error) { return Double(ctx, 21) }

// double doubles.
//
//sandbox:func check.n=min=1
func double(n int) int { return 2 * n }
`
	for name, text := range map[string]string{"go.mod": text, "go.sum": string(sum), "fresh.go": source} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func readAll(t *testing.T, dir string, names ...string) string {
	t.Helper()
	var b strings.Builder
	for _, n := range names {
		text, err := os.ReadFile(filepath.Join(dir, n))
		if err != nil {
			t.Fatal(err)
		}
		b.Write(text)
	}
	return b.String()
}

func lastLine(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1]
}

// TestOtherSystems compiles the tool for systems that it must run on.
func TestOtherSystems(t *testing.T) {
	if os.Getenv("CI") != "true" {
		t.Skip("compiles the standard library for other systems, which takes minutes; CI=true makes it run")
	}
	for _, system := range []string{"windows/amd64", "darwin/arm64"} {
		goos, goarch, _ := strings.Cut(system, "/")
		cmd := exec.Command("go", "build", ".", "../../...") // several packages are not linked
		cmd.Env = append(os.Environ(), "GOOS="+goos, "GOARCH="+goarch, "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", system, err, out)
		}
	}
}
