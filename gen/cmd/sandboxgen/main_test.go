package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/tools/txtar"
	// Not used here: the goldens are compiled against them, so a change of
	// theirs must run this test again.
	//TMP 	_ "github.com/agent-sandbox/sandbox-go/sandboxfn"
	//TMP 	_ "github.com/agent-sandbox/sandbox-go/sandboxfn/validate"
)

var update = flag.Bool("update", false, "rewrite the expected output of scripts")

// tools is the folder that holds the programs scripts run.
var tools string

// TestMain builds the tool. Scripts run what users run: this test itself would
// be many times slower under the race detector, which sees the generator at
// work in the tests of package gen.
func TestMain(m *testing.M) {
	os.Exit(func() int {
		flag.Parse()
		dir, err := os.MkdirTemp("", "sandboxgen-test")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		tools = dir
		cmd := exec.Command("go", "build", "-buildvcs=false", "-o", dir+string(filepath.Separator), ".", "../sandboxvet")
		cmd.Stderr = os.Stderr
		if err := cmd.Run(); err != nil {
			fmt.Fprintln(os.Stderr, "go build:", err)
			return 1
		}
		return m.Run()
	}())
}

// goEnv is what scripts need of the go command's surroundings: its caches, and
// no network.
func goEnv(t testing.TB) map[string]string {
	t.Helper()
	out, err := exec.Command("go", "env", "GOCACHE", "GOMODCACHE", "GOPATH").Output()
	if err != nil {
		t.Fatal(err)
	}
	v := strings.Split(strings.TrimSpace(string(out)), "\n")
	return map[string]string{
		"GOCACHE": v[0], "GOMODCACHE": v[1], "GOPATH": v[2],
		"GOPROXY": "off", "GOFLAGS": "-buildvcs=false", "GOTOOLCHAIN": "local", "GOWORK": "off", "GOENV": "off",
	}
}

func TestScript(t *testing.T) {
	env := goEnv(t)
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script", UpdateScripts: *update,
		RequireExplicitExec: true, RequireUniqueNames: true,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"unix2crlf": unix2crlf},
		Condition: func(cond string) (bool, error) {
			if cond == "ci" {
				return os.Getenv("CI") == "true", nil
			}
			return false, fmt.Errorf("unknown condition %s", cond)
		},
		Setup: func(e *testscript.Env) error {
			for k, v := range env {
				e.Setenv(k, v)
			}
			e.Setenv("HOSTARCH", runtime.GOARCH)
			e.Setenv("SANDBOXVET", filepath.Join(tools, "sandboxvet"))
			e.Setenv("SANDBOX_CACHE_DIR", filepath.Join(e.WorkDir, ".tmp", "cache"))
			e.Setenv("PATH", tools+string(os.PathListSeparator)+e.Getenv("PATH"))
			return nil
		},
	})
}

// TestGoldensCompile builds and vets every expected output together with its
// source, all in one workspace so that it is one build.
func TestGoldensCompile(t *testing.T) {
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	scripts, err := filepath.Glob("testdata/script/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	work := t.TempDir()
	uses, patterns := []string{root}, []string{}
	for _, path := range scripts {
		name := strings.TrimSuffix(filepath.Base(path), ".txtar")
		if extractGolden(t, path, filepath.Join(work, name)) {
			uses = append(uses, "./"+name)
			patterns = append(patterns, "./"+name+"/...")
		}
	}
	if len(patterns) < 10 {
		t.Fatalf("only %d goldens", len(patterns))
	}
	text := "go 1.26.0\n\nuse (\n\t" + strings.Join(uses, "\n\t") + "\n)\n"
	if err := os.WriteFile(filepath.Join(work, "go.work"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"build", "vet"} {
		cmd := exec.Command("go", append([]string{verb}, patterns...)...)
		cmd.Dir = work
		cmd.Env = append(os.Environ(), "GOFLAGS=-buildvcs=false", "GOWORK="+filepath.Join(work, "go.work"))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("go %s: %v\n%s", verb, err, out)
		}
	}
}

// extractGolden writes the source of a script and its expected output below
// dir. It reports false for scripts that expect none.
func extractGolden(t *testing.T, path, dir string) bool {
	t.Helper()
	a, err := txtar.ParseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	found := false
	outputs := make(map[string]bool)
	for _, f := range a.Files {
		if name, ok := strings.CutPrefix(f.Name, "_want/"); ok && strings.HasSuffix(name, ".go") {
			found, outputs[name] = true, true
		}
	}
	if !found {
		return false
	}
	for _, f := range a.Files {
		name := strings.TrimPrefix(f.Name, "_want/")
		if f.Name == name && outputs[name] {
			continue // what an earlier run left
		}
		if strings.HasPrefix(name, "lib/") {
			continue // stands for this module, which the workspace has
		}
		if name == "go.mod" {
			f.Data, _, _ = bytes.Cut(f.Data, []byte("require github.com/agent-sandbox/sandbox-go "))
		}
		target := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(target, f.Data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return true
}

// unix2crlf gives a file of a script the line ends of Windows.
func unix2crlf(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: unix2crlf file")
	}
	text := strings.ReplaceAll(ts.ReadFile(args[0]), "\n", "\r\n")
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(text), 0o644))
}
