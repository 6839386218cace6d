package acceptance

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/agent-sandbox/sandbox-go/internal/sbtest"
	"github.com/agent-sandbox/sandbox-go/sandboxfn"
	"github.com/agent-sandbox/sandbox-go/templates"
)

const templateFile = `name: shelf
version: 1.0.0
base: {host: true, image: "debian:12-slim"}
workdir: /shelf
env: {SHELF: wooden}
build:
  - copy: {src: books, dest: books}
  - run: wc -l < books/one > count
requires: [sh, wc]
policy:
  commands: {deny: [{program: mkdir}]}
`

// TestTemplateFolder goes from a template's file to a sandbox.
func TestTemplateFolder(t *testing.T) {
	sbtest.NeedSandbox(t)
	ctx := t.Context()
	dir := t.TempDir()
	for name, text := range map[string]string{"template.yaml": templateFile, "books/one": "a\nb\n"} {
		name = filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := sandboxfn.Create(ctx, &sandboxfn.CreateOptions{Template: dir}); !errors.Is(err, sandboxfn.ErrTemplateNotFound) {
		t.Errorf("a folder that was not built: %v", err)
	}
	c, err := templates.Compile(ctx, dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := sandboxfn.BuildTemplate(ctx, c.Template, &sandboxfn.BuildOptions{Dir: c.Dir}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := sandboxfn.RemoveTemplate(context.Background(), "shelf"); err != nil {
			t.Error(err)
		}
	}()
	sb, err := sandboxfn.Create(ctx, &sandboxfn.CreateOptions{Template: "shelf"})
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Close()
	out, err := sb.Shell(ctx, "cat count books/one; echo $SHELF; pwd").Output()
	if want := "2\na\nb\nwooden\n/shelf\n"; err != nil || string(out) != want {
		t.Errorf("in the sandbox: %q, %v, want %q", out, err, want)
	}
	if err := sb.Command(ctx, "mkdir", "/tmp/x").Run(); err == nil {
		t.Error("mkdir runs, which the template denies")
	}
}

// TestBuiltinTemplates builds those that are part of the module, as far as this
// machine has what they require.
func TestBuiltinTemplates(t *testing.T) {
	sbtest.NeedSandbox(t)
	for _, name := range templates.Builtin() {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			c, err := templates.Compile(ctx, name, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if name != "base" {
				_, err = sandboxfn.BuildTemplate(ctx, c.Template, nil)
				if step := missingProgram(c.Template.Requires); err != nil && step != "" {
					t.Skipf("this machine has no %s below /usr: %v", step, err)
				}
				if err != nil {
					t.Fatal(err)
				}
				defer func() {
					if err := sandboxfn.RemoveTemplate(context.Background(), name); err != nil {
						t.Error(err)
					}
				}()
			}
			sb, err := sandboxfn.Create(ctx, &sandboxfn.CreateOptions{Template: name})
			if err != nil {
				t.Fatal(err)
			}
			defer sb.Close()
			for _, p := range c.Template.Requires {
				if err := sb.Shell(ctx, "command -v "+p).Run(); err != nil {
					t.Errorf("%s: %v", p, err)
				}
			}
		})
	}
}

// missingProgram is one of the programs that is not where sandboxes look for it.
func missingProgram(names []string) string {
	for _, n := range names {
		found := false
		for _, dir := range []string{"/usr/local/go/bin", "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin"} {
			_, err := exec.LookPath(filepath.Join(dir, n))
			found = found || err == nil
		}
		if !found {
			return n
		}
	}
	return ""
}
