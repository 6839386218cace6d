package templates_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
	"github.com/agent-sandbox/sandbox-go/templates"
)

// localClient is a client of the local provider with a state of its own.
func localClient(t *testing.T) *sandboxfn.Client {
	t.Helper()
	dir, err := os.MkdirTemp("", "sbx") // short: paths of sockets are bounded
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	c, err := sandboxfn.NewClient(&sandboxfn.ClientOptions{Provider: "local", StateDir: filepath.Join(dir, "state"), CacheDir: filepath.Join(dir, "cache")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close client: %v", err)
		}
	})
	return c
}

// sandboxOf compiles and builds a template and makes a sandbox from it.
func sandboxOf(t *testing.T, ref string) *sandboxfn.Sandbox {
	t.Helper()
	c := localClient(t)
	compiled, err := templates.Compile(t.Context(), ref, &templates.ResolveOptions{CacheDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer compiled.Close()
	if compiled.Template.Name != "base" { // which is there without a build
		_, err = c.BuildTemplate(t.Context(), compiled.Template, &sandboxfn.BuildOptions{Dir: compiled.Dir})
	}
	var sb *sandboxfn.Sandbox
	if err == nil {
		sb, err = c.Create(t.Context(), &sandboxfn.CreateOptions{Template: compiled.Template.Name})
	}
	if (errors.Is(err, sandboxfn.ErrIsolation) || errors.Is(err, sandboxfn.ErrNotSupported)) && os.Getenv("CI") != "true" {
		t.Skipf("this machine cannot: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sb.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return sb
}

// A sandbox of a built-in template has the programs that it promises.
func TestBuiltinInSandbox(t *testing.T) {
	for name, c := range map[string]struct {
		line, want string
		programs   []string
	}{
		"base":             {"echo $((6*7))", "42", []string{"/bin/sh"}},
		"python":           {"python3 -c 'print(6*7)'", "42", []string{"/usr/bin/python3", "/usr/local/bin/python3"}},
		"node":             {"node -e 'console.log(6*7)'", "42", []string{"/usr/bin/node", "/usr/local/bin/node"}},
		"go":               {"go env GOOS", "linux", []string{"/usr/bin/go", "/usr/local/bin/go"}},
		"code-interpreter": {"python3 -c 'print(6*7)' && bash -c 'echo $((40+2))'", "42\n42", []string{"/usr/bin/python3", "/usr/local/bin/python3"}},
	} {
		t.Run(name, func(t *testing.T) {
			found := false
			for _, p := range c.programs {
				_, err := os.Stat(p)
				found = found || err == nil
			}
			if !found {
				t.Skipf("this machine has none of %v", c.programs)
			}
			out, err := sandboxOf(t, name).Shell(t.Context(), c.line).Output()
			if got := strings.TrimSpace(string(out)); got != c.want || err != nil {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}

// What two folders say, one based on the other, is what the sandbox has: files of
// both, environment, working folder, and what the steps made in their order.
func TestFolderInSandbox(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"base/template.yaml": "name: lower\nbase: {host: true}\nenv: {A: lower, B: lower}\ncopy_files: [\"data:/srv/lower\"]\ncommands: [\"cat /srv/lower/x > /srv/made\"]\n",
		"base/data/x":        "one\n",
		"top/template.yaml":  "name: upper\nbase: {from: ../base}\nenv: {B: upper}\nworkdir: /srv\ncopy_files: [\"t.txt:/srv/\"]\ncommands: [\"cat t.txt >> made\"]\n",
		"top/t.txt":          "two\n",
	} {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	out, err := sandboxOf(t, filepath.Join(dir, "top")).Shell(t.Context(), `pwd; cat made; echo "$A $B"`).Output()
	if got, want := string(out), "/srv\none\ntwo\nlower upper\n"; got != want || err != nil {
		t.Errorf("got %q, want %q, %v", got, want, err)
	}
}
