package templates

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// The rule of inheritance: one value replaces, lists append, mappings join by key.
func TestInherit(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"base/template.yaml": `
name: grand
version: 3.0.0
description: from the base
base: debian:12
tags: [a, b]
copy_files: ["g.txt:/g"]
commands: [echo base]
env: {A: base, B: base}
ports: [80, 81]
user: root
memory_mb: 100
server: {enable: [process]}
policy:
  files: {read: [/a], write: [/a], deny: ["/a/x"]}
  commands: {users: [root], max_processes: 5}
custom_commands: {one: {run: base}, two: {run: base}}
health: {command: "true", retries: 7}
`,
		"base/g.txt": "grand",
		"mid/template.yaml": `
name: mid
base: {from: ../base}
copy_files: ["m.txt:/m"]
env: {B: mid}
`,
		"mid/m.txt": "mid",
		"top/template.yaml": `
name: top
base: {from: ../mid}
tags: [b, c]
copy_files: ["t.txt:/t"]
commands: [echo top]
env: {C: top}
ports: [81, 82]
user: app
server: {enable: [terminal], disable: [process.exec]}
policy:
  files: {read: [/b], write: []}
  commands: {users: [app]}
custom_commands: {two: {run: top, timeout: 5}}
health: {interval: 5, command: "false"}
`,
		"top/t.txt": "top",
	})
	r, err := Resolve(t.Context(), "./top", &ResolveOptions{Dir: dir, CacheDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	want, err := Parse([]byte(`
name: top
description: from the base
base: debian:12
tags: [a, b, c]
build:
  - copy: .base/2/g.txt:/g
  - run: echo base
  - copy: .base/1/m.txt:/m
  - copy: t.txt:/t
  - run: echo top
env: {A: base, B: mid, C: top}
ports: [80, 81, 82]
user: app
memory_mb: 100
server: {enable: [process, terminal], disable: [process.exec]}
policy:
  files: {read: [/a, /b], write: [], deny: ["/a/x"]}
  commands: {users: [root, app], max_processes: 5}
custom_commands: {one: {run: base}, two: {run: top, timeout: 5}}
health: {interval: 5, command: "false", retries: 7}
`), "want")
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, r.Template); d != "" {
		t.Errorf("want -, got +:\n%s", d)
	}
	// Sources are found, whoever's they are, and a walk finds all of them.
	for _, s := range r.Template.Build {
		if s.Copy == nil {
			continue
		}
		data, err := fs.ReadFile(r.FS(), s.Copy.Src)
		if err != nil || string(data[:1]) != s.Copy.Dest[1:] {
			t.Errorf("%s: %q, %v", s.Copy.Src, data, err)
		}
	}
	var walked []string
	err = fs.WalkDir(r.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			walked = append(walked, name)
		}
		return err
	})
	if want := []string{".base/1/m.txt", ".base/1/template.yaml", ".base/2/g.txt", ".base/2/template.yaml", "t.txt", "template.yaml"}; err != nil || !slices.Equal(walked, want) {
		t.Errorf("walked %q, %v", walked, err)
	}
	if err := fstest.TestFS(r.Layers[0].FS(), "t.txt"); err != nil {
		t.Error(err)
	}
	if len(r.Layers) != 3 || r.Layers[2].Template.Name != "grand" || r.Layers[0].Template.Base.From != "../mid" {
		t.Errorf("layers: %+v", r.Layers)
	}
}

func TestInheritRefused(t *testing.T) {
	dir := t.TempDir()
	files := map[string]string{
		"self/template.yaml":      "name: x\nbase: {from: ./}\n",
		"a/template.yaml":         "name: a\nbase: {from: ../b}\n",
		"b/template.yaml":         "name: b\nbase: {from: ../a/../a}\n",
		"docker/Dockerfile":       "FROM x\n",
		"on-docker/template.yaml": "name: x\nbase: {from: ../docker}\n",
		"own/template.yaml":       "name: x\nbase: {from: ../docker}\n",
		"own/Dockerfile":          "FROM y\n",
		"roots/template.yaml":     "name: x\npolicy: {files: {read: [/a]}}\n",
		"widens/template.yaml":    "name: x\nbase: {from: ../roots}\npolicy: {files: {write: [/b]}}\n",
		"missing/template.yaml":   "name: x\nbase: {from: ../nothing}\n",
		"bad/template.yaml":       "nme: x\n",
		"on-bad/template.yaml":    "name: x\nbase: {from: ../bad}\n",
		"builtin/template.yaml":   "name: x\nbase: {from: python}\n",
		"old/template.yaml":       "name: x\nbase: {from: \"python:^9\"}\n",
	}
	for i := range 7 {
		files[fmt.Sprintf("d%d/template.yaml", i)] = fmt.Sprintf("name: d%d\nbase: {from: ../d%d}\n", i, i+1)
	}
	files["d7/template.yaml"] = "name: end\n"
	write(t, dir, files)
	for name, want := range map[string]string{
		"self": ": templates are based on each other", "a": ": templates are based on each other", "on-docker": "Dockerfile", "own": "", "widens": "outside every readable one", "missing": "E2001",
		"on-bad": `template.yaml:1:1: unknown key "nme"`, "d0": "more than 5", "d2": "", "builtin": "", "old": "E2001",
	} {
		_, err := Resolve(t.Context(), "./"+name, &ResolveOptions{Dir: dir, CacheDir: t.TempDir()})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
}

// A template that came over the network names nothing of this machine, and nothing
// outside of its repository.
func TestInheritTrust(t *testing.T) {
	secret := t.TempDir()
	write(t, secret, map[string]string{"template.yaml": "name: secret\n"})
	remote := &found{layer: Layer{Ref: "o/r"}, key: "o/r", tree: fstest.MapFS{"sub/template.yaml": {Data: []byte("name: x\n")}, "other/template.yaml": {Data: []byte("name: y\n")}}, sub: "sub"}
	r, err := (&ResolveOptions{CacheDir: t.TempDir(), Offline: true}).resolver()
	if err != nil {
		t.Fatal(err)
	}
	for s, want := range map[string]string{
		secret: "E2004", "file://" + secret: "E2004", "http://127.0.0.1:1/r": "E2004", "http://localhost/x.tar.gz": "E2004", "oci://127.0.0.1:1/x:v1": "E2004", "https://u@[::1]/r": "E2004",
		"../../x": "E2004", "./x.tar.gz": "E2004", "../other": "", "o/other": "E2005",
	} {
		ref, err := ParseRef(s)
		if err != nil {
			t.Fatal(s, err)
		}
		if _, err := r.locate(t.Context(), ref, remote); string(code(err)) != want {
			t.Errorf("%s: %v, want %s", s, err, want)
		}
	}
}

func TestBuiltin(t *testing.T) {
	if want := []string{"base", "code-interpreter", "go", "node", "python"}; !slices.Equal(Builtin(), want) {
		t.Errorf("built-in: %q", Builtin())
	}
	for _, name := range Builtin() {
		r, err := Resolve(t.Context(), name+":^1", &ResolveOptions{CacheDir: t.TempDir()})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		m := r.Template
		if m.Name != name || !m.Base.Host || m.Base.Image == "" || len(m.Requires) == 0 || m.Description == "" {
			t.Errorf("%s: %+v", name, m)
		}
		if text, err := Dockerfile(m); err != nil || !strings.HasPrefix(text, "FROM "+m.Base.Image+"\n") {
			t.Errorf("%s: %q, %v", name, text, err)
		}
		if got := Missing(m.Requires, func(p string) (string, error) { return "", fs.ErrNotExist }); !slices.Equal(got, m.Requires) {
			t.Errorf("%s misses %q", name, got)
		}
	}
	_, err := Resolve(t.Context(), "pyhton", &ResolveOptions{CacheDir: t.TempDir()})
	if code(err) != "E2001" || !strings.Contains(hint(err), `did you mean "python"?`) {
		t.Errorf("a typing mistake: %v, hint %q", err, hint(err))
	}
}

// An empty reference is refused, as one that cannot be read is.
func TestResolveEmpty(t *testing.T) {
	o := &ResolveOptions{Dir: t.TempDir(), CacheDir: t.TempDir()}
	_, err := Resolve(t.Context(), "", o)
	if code(err) != "E2001" || !strings.Contains(err.Error(), "the reference is empty") || hint(err) == "" {
		t.Errorf("Resolve: %v, hint %q", err, hint(err))
	}
	if _, err := Compile(t.Context(), "", o); code(err) != "E2001" {
		t.Errorf("Compile: %v", err)
	}
}

func hint(err error) string {
	if e, ok := err.(interface{ Hint() string }); ok {
		return e.Hint()
	}
	return ""
}

// Every field of the model can be written in a file: no field is forgotten by the
// reader or by Merge.
func TestMergeIsWhole(t *testing.T) {
	ar, err := txtar.ParseFile("testdata/read/good_flat.txtar") // says every key
	if err != nil {
		t.Fatal(err)
	}
	fsys, err := txtar.FS(ar)
	if err != nil {
		t.Fatal(err)
	}
	full, err := LoadFS(fsys, "full")
	if err != nil {
		t.Fatal(err)
	}
	none := &model.Template{Format: model.Version}
	child := Merge(none, full)
	full.Base = model.Base{} // decided by the base
	if d := cmp.Diff(full, child); d != "" {
		t.Errorf("a child on nothing is not itself:\n%s", d)
	}
	full.Name, full.Version = "", ""
	if d := cmp.Diff(full, Merge(full, none)); d != "" {
		t.Errorf("nothing on a base is not the base:\n%s", d)
	}
	if _, err := Resolve(t.Context(), filepath.Join(t.TempDir(), "none"), nil); code(err) != "E2001" {
		t.Errorf("no folder: %v", err)
	}
}
