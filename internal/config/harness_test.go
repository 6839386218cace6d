package config

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A world is what Load can see: variables, and files below a home and in a
// repository. Names of files start with ~ or with ./ for the working directory,
// which is the folder "work" of the repository.
type world struct {
	env   map[string]string
	files map[string]string
	opts  map[string]Override
}

// build writes the files; credentials get the mode they need.
func (w world) build(t testing.TB) Options {
	t.Helper()
	root := t.TempDir()
	home, repo := filepath.Join(root, "home"), filepath.Join(root, "repo")
	dir := filepath.Join(repo, "work")
	for _, d := range []string{home, dir, filepath.Join(repo, ".git")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range w.files {
		file := filepath.Join(dir, name)
		if rest, ok := strings.CutPrefix(name, "~/"); ok {
			file = filepath.Join(home, rest)
		}
		write(t, file, text)
	}
	env := maps.Clone(w.env)
	return Options{
		Lookup: func(n string) (string, bool) { v, ok := env[n]; return v, ok },
		Dir:    dir, Home: home, Overrides: w.opts,
	}
}

func write(t testing.TB, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	mode := os.FileMode(0o644)
	if filepath.Base(file) == "credentials.toml" {
		mode = 0o600
	}
	if err := os.WriteFile(file, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(file, mode); err != nil { // whatever the umask
		t.Fatal(err)
	}
}

func (w world) load(t testing.TB) *Config {
	t.Helper()
	c, err := Load(w.build(t))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// wantError checks code and parts of a text.
func wantError(t testing.TB, err error, code errdefs.Code, parts ...string) {
	t.Helper()
	if !errors.Is(err, &errdefs.Error{Code: code}) {
		t.Errorf("got %v, want %s", err, code)
		return
	}
	text := withHint(err)
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("%q does not say %q", text, p)
		}
	}
}

// withHint is an error as commands show it.
func withHint(err error) string {
	text := err.Error()
	if e, ok := errors.AsType[*errdefs.Error](err); ok {
		text += " (hint: " + e.Suggestion + ")"
	}
	return text
}
