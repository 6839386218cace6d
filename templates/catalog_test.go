package templates

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const goodIndex = `
schema_version: 1
templates:
  - name: Python-Hello
    description: hello
    tags: [python]
    author: me
    repo: owner/repo
    path: templates/python-hello
    ref: v1
    capabilities: [shell, code]
    status: official
  - {name: by-ssh, repo: "git@github.com:owner/repo.git"}
  - {name: ready, template_id: abc}
`

func TestParseIndex(t *testing.T) {
	ix, err := ParseIndex([]byte(goodIndex), "index.yaml")
	if err != nil || len(ix.Templates) != 3 {
		t.Fatalf("%+v, %v", ix, err)
	}
	e, ok := ix.Find("python-hello")
	if !ok {
		t.Fatal("the case of a name counts")
	}
	want := Ref{Source: SourceGit, URL: "https://github.com/owner/repo", Subdir: "templates/python-hello", Rev: "v1"}
	if got, err := e.Source(); got != want || err != nil {
		t.Errorf("source %+v, %v", got, err)
	}
	_, err = ParseIndex([]byte(`templates:
  - {name: a, repo: o/r, stars: 5}
  - {name: A, repo: o/r}
  - {repo: o/r}
  - {name: b}
  - {name: c, repo: "./x", status: oficial}
  - {name: d, repo: o/r@v1}
  - {name: e, repo: o/r, path: ../x}
  - {name: f, repo: o/r, ref: "-x", capabilities: [shel]}
  - {name: "x y", repo: 5}
`), "index.yaml")
	wantErr := `E2007 read catalog: index.yaml:2:26: unknown key "stars" in an element of templates; did you mean "tags"?
index.yaml:3:12: name "A" is there twice
index.yaml:4:5: a template has no name
index.yaml:5:5: a template has no repo
index.yaml:6:21: repo "./x" is not a repository
index.yaml:6:36: unknown status "oficial"; did you mean "official"?
index.yaml:7:21: repo "o/r@v1" is not a repository
index.yaml:8:21: path or ref: subdir "../x" is outside
index.yaml:9:21: path or ref: "-x" is not a ref of git
index.yaml:9:52: unknown capability "shel"
index.yaml:10:12: name "x y" is not kebab-case
index.yaml:10:25: repo is a number, not text; put it in quotes: "5"`
	if err == nil || err.Error() != wantErr {
		t.Errorf("want -, got +:\n%s", cmp.Diff(wantErr, fmt.Sprint(err)))
	}
	if code(err) != "E2007" {
		t.Errorf("code %s", code(err))
	}
	if _, err := ParseIndex([]byte("schema_version: 2\nwhatever: 1\n"), "i"); err == nil || !strings.Contains(err.Error(), "i:1:17: schema_version is 2") {
		t.Errorf("a newer schema: %v", err)
	}
}

func TestIndexCache(t *testing.T) {
	var asked, sent atomic.Int64
	var down atomic.Bool
	text := atomic.Value{}
	text.Store(goodIndex)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		body := text.Load().(string)
		etag := fmt.Sprintf(`"%d"`, len(body))
		switch {
		case down.Load():
			http.Error(w, "down", http.StatusBadGateway)
		case r.Header.Get("If-None-Match") == etag:
			w.WriteHeader(http.StatusNotModified)
		default:
			sent.Add(1)
			w.Header().Set("ETag", etag)
			_, _ = w.Write([]byte(body))
		}
	}))
	defer s.Close()
	o := &ResolveOptions{CacheDir: t.TempDir(), Index: s.URL + "/index.yaml"}
	state := func() string { return fmt.Sprintf("asked %d, sent %d", asked.Load(), sent.Load()) }
	load := func(o *ResolveOptions, wantNotices int, want string) {
		t.Helper()
		ix, notices, err := LoadIndex(t.Context(), o)
		if err != nil || len(ix.Templates) == 0 || len(notices) != wantNotices || state() != want {
			t.Errorf("%v, notices %q, %s, want %s", err, notices, state(), want)
		}
	}
	load(o, 0, "asked 1, sent 1")
	load(o, 0, "asked 1, sent 1") // fresh
	refresh := *o
	refresh.Refresh = true
	load(&refresh, 0, "asked 2, sent 1") // the tag still holds
	old := func() {                      // as if it was looked at two hours ago
		t.Helper()
		files, _ := filepath.Glob(filepath.Join(o.CacheDir, "templates", "index", "*.json"))
		if len(files) != 1 {
			t.Fatalf("files %q", files)
		}
		data, err := os.ReadFile(files[0])
		if err != nil {
			t.Fatal(err)
		}
		year := fmt.Sprintf(`"checked":"%d-`, time.Now().UTC().Year())
		changed := strings.Replace(string(data), year, `"checked":"2001-`, 1)
		if changed == string(data) {
			t.Fatalf("no time in %s", data)
		}
		if err := os.WriteFile(files[0], []byte(changed), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	old()
	load(o, 0, "asked 3, sent 1")
	old()
	text.Store(goodIndex + "  - {name: new, repo: o/r}\n")
	load(o, 0, "asked 4, sent 2")
	old()
	down.Store(true)
	load(o, 1, "asked 5, sent 2") // stale, with a notice
	offline := *o
	offline.Offline = true
	load(&offline, 0, "asked 5, sent 2")
	down.Store(false)
	text.Store("nonsense: 1\n")
	if _, _, err := LoadIndex(t.Context(), o); code(err) != "E2007" {
		t.Errorf("a catalog that went bad: %v", err)
	}
	for _, address := range []string{"http://example.com/i.yaml", "ftp://h/i", "file:///x"} {
		if _, _, err := LoadIndex(t.Context(), &ResolveOptions{CacheDir: o.CacheDir, Index: address}); code(err) != "E8007" {
			t.Errorf("%s: %v", address, err)
		}
	}
}

// A name of the catalog is found in its repository, with a version too.
func TestResolveNames(t *testing.T) {
	s := gitServer(t)
	dir := s.repo(t, "all", map[string]string{"web/template.yaml": "name: web\ndescription: one\n"})
	gitRun(t, dir, "tag", "v1.0.0")
	s.commit(t, dir, map[string]string{"web/template.yaml": "name: web\ndescription: two\n"})
	gitRun(t, dir, "tag", "v1.1.0")
	file := filepath.Join(t.TempDir(), "index.yaml")
	if err := os.WriteFile(file, []byte("templates: [{name: web, repo: "+s.URL+"/all, path: web, ref: v1.0.0}]\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SANDBOX_TEMPLATE_INDEX", file)
	o := &ResolveOptions{CacheDir: t.TempDir()}
	for ref, want := range map[string]string{"web": "one 1.0.0", "web:^1": "two 1.1.0", "web:1.0.0": "one 1.0.0"} {
		r, err := Resolve(t.Context(), ref, o)
		if err != nil || r.Template.Description+" "+r.Template.Version != want {
			t.Errorf("%s: %v", ref, err)
		}
	}
	for ref, hinted := range map[string]string{"wbe": "web", "web:^2": "v1.1.0", "nothing": ""} {
		if _, err := Resolve(t.Context(), ref, o); code(err) != "E2001" || !strings.Contains(hint(err), hinted) {
			t.Errorf("%s: %v, hint %q", ref, err, hint(err))
		}
	}
}

// A name that stands for nothing is told with where was looked, and with what is
// probably meant: built in, of the catalog, a folder beside, or a copy.
func TestUnknownName(t *testing.T) {
	t.Setenv("SANDBOX_TEMPLATE_INDEX", "")
	s := gitServer(t)
	s.repo(t, "warehouse", map[string]string{"template.yaml": "name: warehouse\n"})
	dir := t.TempDir()
	for _, name := range []string{"Tooling/template.yaml", "empty-folder/x", "own/Dockerfile"} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755), os.WriteFile(filepath.Join(dir, name), []byte("name: x\n"), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	index := filepath.Join(dir, "index.yaml")
	if err := os.WriteFile(index, []byte("templates: [{name: Browser, repo: o/r}]\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	o := &ResolveOptions{CacheDir: t.TempDir(), Dir: dir}
	if _, err := Resolve(t.Context(), s.URL+"/warehouse", o); err != nil {
		t.Fatal(err)
	}
	const built = "none of the built-in base, code-interpreter, go, node, python, and "
	for _, c := range []struct{ name, index, says, hint string }{
		{"nodes", "", built + "is nowhere else, as no catalog is configured", `did you mean "node"? Otherwise set SANDBOX_TEMPLATE_INDEX to the address or the file of a catalog; a folder is written ./nodes`},
		{"browsre", index, built + "is not in the catalog " + index, `did you mean "browser"? Otherwise a folder is written ./browsre`},
		{"tooling", index, "", `did you mean "./Tooling"?`},
		{"owm", index, "", `did you mean "./own"?`},
		{"warehose", "", "", `did you mean "` + s.URL + `/warehouse`},
		{"empty-folder", index, "", `a folder is written ./empty-folder`},
		{"completely-different", index, "", `a folder is written ./completely-different`},
	} {
		o.Index = c.index
		_, err := Resolve(t.Context(), c.name, o)
		if code(err) != "E2001" || !strings.Contains(err.Error(), c.says) || !strings.HasPrefix(hint(err), c.hint) {
			t.Errorf("%s: %v, hint %q, want %q", c.name, err, hint(err), c.hint)
		}
	}
	if _, _, err := LoadIndex(t.Context(), &ResolveOptions{CacheDir: o.CacheDir}); code(err) != "E8007" || !strings.Contains(hint(err), "SANDBOX_TEMPLATE_INDEX") {
		t.Errorf("no catalog: %v, hint %q", err, hint(err))
	}
}
