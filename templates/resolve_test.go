package templates

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"io/fs"
	"log"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// write makes files of a folder.
func write(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	for name, data := range files {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// gitRun runs git in a repository, with an identity of its own.
func gitRun(t testing.TB, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", append([]string{"-C", dir, "-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false", "-c", "init.defaultBranch=main"}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// gitHost serves repositories below a folder over HTTP, as git does it.
type gitHost struct {
	*httptest.Server
	dir  string
	hits atomic.Int64
	down atomic.Bool
}

func gitServer(t *testing.T) *gitHost {
	t.Helper()
	program, err := exec.LookPath("git")
	if err != nil {
		t.Skip("git is not there")
	}
	out, err := exec.Command(program, "--exec-path").Output()
	if err != nil {
		t.Fatal(err)
	}
	backend := filepath.Join(strings.TrimSpace(string(out)), "git-http-backend")
	if _, err := os.Stat(backend); err != nil {
		t.Skip("git-http-backend is not there")
	}
	s := &gitHost{dir: t.TempDir()}
	h := &cgi.Handler{Path: backend, Stderr: io.Discard, Env: []string{"GIT_PROJECT_ROOT=" + s.dir, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"}}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.hits.Add(1)
		if s.down.Load() {
			http.Error(w, "down", http.StatusBadGateway)
			return
		}
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

// repo makes a repository with one commit and returns the work tree.
func (s *gitHost) repo(t *testing.T, name string, files map[string]string) string {
	t.Helper()
	dir := filepath.Join(s.dir, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	gitRun(t, dir, "init", "-q")
	s.commit(t, dir, files)
	return dir
}

func (s *gitHost) commit(t *testing.T, dir string, files map[string]string) string {
	t.Helper()
	write(t, dir, files)
	gitRun(t, dir, "add", "-A")
	gitRun(t, dir, "commit", "-q", "-m", "x", "--allow-empty")
	return gitRun(t, dir, "rev-parse", "HEAD")
}

func code(err error) errdefs.Code { return errdefs.CodeOf(err) }

func TestResolveGit(t *testing.T) {
	s := gitServer(t)
	dir := s.repo(t, "owner/repo", map[string]string{
		"web/template.yaml": "name: web\ncopy_files: [\"app.txt:/app.txt\"]\n", "web/app.txt": "one", "lib/template.yaml": "name: lib\n",
	})
	first := gitRun(t, dir, "rev-parse", "HEAD")
	gitRun(t, dir, "tag", "v1.0.0")
	second := s.commit(t, dir, map[string]string{"web/app.txt": "two"})
	gitRun(t, dir, "tag", "-a", "-m", "x", "v1.2.0")
	gitRun(t, dir, "tag", "web/v1.2.1")
	gitRun(t, dir, "branch", "feature/x")
	third := s.commit(t, dir, map[string]string{"web/app.txt": "three"})
	o := &ResolveOptions{CacheDir: t.TempDir()}
	base := s.URL + "/owner/repo"
	for _, c := range []struct{ ref, commit, text, version string }{
		{"//web", third, "three", ""},
		{"//web@main", third, "three", ""},
		{"//web@v1.0.0", first, "one", "1.0.0"},
		{"//web@1.0.0", first, "one", "1.0.0"},
		{"//web@" + first, first, "one", ""},
		{"//web@v1.2.0", second, "two", "1.2.0"},
		{"//web@^1", second, "two", "1.2.1"},
		{"//web@~1.0", first, "one", "1.0.0"},
		{"//web@feature/x", second, "two", ""},
	} {
		r, err := Resolve(t.Context(), base+c.ref, o)
		if err != nil {
			t.Errorf("%s: %v", c.ref, err)
			continue
		}
		data, err := fs.ReadFile(r.FS(), r.Template.Build[0].Copy.Src)
		if err != nil || string(data) != c.text || r.Layers[0].Rev != c.commit || r.Template.Version != c.version {
			t.Errorf("%s: %q, %v, commit %s, version %q; want %q, %s, %q", c.ref, data, err, r.Layers[0].Rev, r.Template.Version, c.text, c.commit, c.version)
		}
	}
	if r, err := Resolve(t.Context(), "file://"+dir+"//lib@v1.0.0", o); err != nil || r.Template.Name != "lib" {
		t.Errorf("file: %v", err)
	}
	for ref, want := range map[string]errdefs.Code{
		base + "//web@nothing": "E2001", base + "//web@^7": "E2001", base + "//nothing": "E2001", s.URL + "/owner/none": "E2001",
		base + "@" + strings.Repeat("a", 40): "E2001", base: "E2001",
	} {
		if _, err := Resolve(t.Context(), ref, o); code(err) != want {
			t.Errorf("%s: %v, want %s", ref, err, want)
		}
	}

	// A commit is fetched once, a branch is looked at every time.
	hits := s.hits.Load()
	if _, err := Resolve(t.Context(), base+"//web@"+first, o); err != nil || s.hits.Load() != hits {
		t.Errorf("a commit made %d requests, %v", s.hits.Load()-hits, err)
	}
	fourth := s.commit(t, dir, map[string]string{"web/app.txt": "four"})
	if r, err := Resolve(t.Context(), base+"//web@main", o); err != nil || r.Layers[0].Rev != fourth {
		t.Errorf("a branch that moved: %v", err)
	}

	// Without a network the copy is used, and said to be one.
	s.down.Store(true)
	r, err := Resolve(t.Context(), base+"//web@main", o)
	if err != nil || r.Layers[0].Rev != fourth || len(r.Notices) != 1 || !strings.Contains(r.Notices[0], "copy of") {
		t.Errorf("stale: %v, %+v", err, r)
	}
	if _, err := Resolve(t.Context(), base+"//web@other", o); code(err) != "E2005" {
		t.Errorf("nothing to fall back to: %v", err)
	}
	s.down.Store(false)
	hits = s.hits.Load()
	if _, err := Resolve(t.Context(), base+"//web@main", &ResolveOptions{CacheDir: o.CacheDir, Offline: true}); err != nil || s.hits.Load() != hits {
		t.Errorf("offline: %v", err)
	}
	if _, err := Resolve(t.Context(), base+"//web@v9", &ResolveOptions{CacheDir: o.CacheDir, Offline: true}); code(err) != "E2005" {
		t.Errorf("offline, not there: %v", err)
	}

	// What was changed in the cache is noticed, and fetched again.
	file := filepath.Join(r.Layers[0].Dir, "app.txt")
	if err := os.WriteFile(file, []byte("evil"), 0o644); err != nil {
		t.Fatal(err)
	}
	r, err = Resolve(t.Context(), base+"//web@main", o)
	if err != nil {
		t.Fatal(err)
	}
	if data, err := fs.ReadFile(r.FS(), "app.txt"); string(data) != "four" || err != nil || len(r.Notices) != 1 {
		t.Errorf("a damaged copy: %q, %v, %q", data, err, r.Notices)
	}

	// The cache lists and forgets.
	c, err := OpenCache(o.CacheDir)
	if err != nil {
		t.Fatal(err)
	}
	list, err := c.List()
	if err != nil || len(list) < 6 || !slices.ContainsFunc(list, func(e Entry) bool { return e.Ref == base+"@main" && e.Rev == fourth && e.Bytes > 0 }) {
		t.Errorf("list: %+v, %v", list, err)
	}
	if err := c.Clear(base + "@main"); err != nil {
		t.Error(err)
	}
	if again, err := c.List(); err != nil || len(again) != len(list)-1 {
		t.Errorf("after clearing one: %d of %d, %v", len(again), len(list), err)
	}
	if err := c.Clear(); err != nil {
		t.Error(err)
	}
	if again, err := c.List(); err != nil || len(again) != 0 {
		t.Errorf("after clearing: %v, %v", again, err)
	}
	if left, _ := filepath.Glob(filepath.Join(o.CacheDir, "templates", "*", "*")); len(left) != 0 {
		t.Errorf("left behind: %q", left)
	}
}

// Several at once, on one cache, without a half-written tree.
func TestResolveConcurrently(t *testing.T) {
	s := gitServer(t)
	s.repo(t, "r", map[string]string{"template.yaml": "name: x\n", "a.txt": strings.Repeat("a", 1<<16)})
	o := &ResolveOptions{CacheDir: t.TempDir()}
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			r, err := Resolve(t.Context(), s.URL+"/r", o)
			if err != nil {
				t.Error(err)
				return
			}
			if data, err := fs.ReadFile(r.FS(), "a.txt"); len(data) != 1<<16 || err != nil {
				t.Errorf("%d bytes, %v", len(data), err)
			}
		})
	}
	wg.Wait()
	if left, _ := filepath.Glob(filepath.Join(o.CacheDir, "templates", "tmp", "*")); len(left) != 0 {
		t.Errorf("left behind: %q", left)
	}
}

func TestResolveCancelled(t *testing.T) {
	hang, arrived := make(chan struct{}), make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case arrived <- struct{}{}:
		case <-hang:
		}
		<-hang
	}))
	defer s.Close()
	defer close(hang)
	refs := []string{s.URL + "/a.tar.gz", "oci://" + strings.TrimPrefix(s.URL, "http://") + "/r:v1"}
	if _, err := exec.LookPath("git"); err == nil {
		refs = append(refs, s.URL+"/r")
	}
	for _, ref := range refs {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			_, err := Resolve(ctx, ref, &ResolveOptions{CacheDir: t.TempDir()})
			done <- err
		}()
		<-arrived
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", ref, err)
		}
	}
}

func tarOf(t testing.TB, members ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, h := range members {
		data := h.Uname // tests put the content here
		h.Uname = ""
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Typeflag == tar.TypeReg && h.Size == 0 {
			h.Size = int64(len(data))
		}
		if h.Mode == 0 && h.Typeflag != tar.TypeXGlobalHeader {
			h.Mode = 0o644
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := w.Write([]byte(data)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestResolveArchive(t *testing.T) {
	good := tarOf(t, tar.Header{Name: "top/", Typeflag: tar.TypeDir}, tar.Header{Name: "top/template.yaml", Uname: "name: packed\n"}, tar.Header{Name: "top/sub/template.yaml", Uname: "name: below\n"})
	var asked, sent atomic.Int64
	var down atomic.Bool
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		switch {
		case down.Load():
			http.Error(w, "down", http.StatusServiceUnavailable)
		case r.URL.Path == "/away.tar.gz":
			http.Redirect(w, r, "http://192.0.2.1/x.tar.gz", http.StatusFound)
		case r.URL.Path != "/x.tar.gz":
			http.NotFound(w, r)
		case r.Header.Get("If-None-Match") == `"1"`:
			w.WriteHeader(http.StatusNotModified)
		default:
			sent.Add(1)
			w.Header().Set("ETag", `"1"`)
			_, _ = w.Write(good)
		}
	}))
	defer s.Close()
	o := &ResolveOptions{CacheDir: t.TempDir()}
	for ref, want := range map[string]string{"/x.tar.gz": "packed", "/x.tar.gz//sub": "below"} {
		if r, err := Resolve(t.Context(), s.URL+ref, o); err != nil || r.Template.Name != want {
			t.Errorf("%s: %v", ref, err)
		}
	}
	if asked.Load() != 2 || sent.Load() != 1 {
		t.Errorf("asked %d times, sent %d times", asked.Load(), sent.Load())
	}
	for ref, want := range map[string]errdefs.Code{"/y.tar.gz": "E2001", "/away.tar.gz": "E2005", "/x.tar.gz//none": "E2001"} {
		if _, err := Resolve(t.Context(), s.URL+ref, o); code(err) != want {
			t.Errorf("%s: %v, want %s", ref, err, want)
		}
	}
	if _, err := Resolve(t.Context(), s.URL+"/away.tar.gz", o); err == nil || !strings.Contains(err.Error(), "without encryption") {
		t.Errorf("a redirect to an address without encryption: %v", err)
	}
	down.Store(true)
	if r, err := Resolve(t.Context(), s.URL+"/x.tar.gz", o); err != nil || len(r.Notices) != 1 {
		t.Errorf("stale: %v", err)
	}
	file := filepath.Join(t.TempDir(), "x.tgz")
	if err := os.WriteFile(file, good, 0o644); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if r, err := Resolve(t.Context(), file+"//sub", o); err != nil || r.Template.Name != "below" || r.Layers[0].Rev == "" {
			t.Errorf("file: %v", err)
		}
	}
}

func TestResolveOCI(t *testing.T) {
	s := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer s.Close()
	host := strings.TrimPrefix(s.URL, "http://")
	push := func(tag, text string) string {
		layer := static.NewLayer(tarOf(t, tar.Header{Name: "template.yaml", Uname: text}), "application/vnd.sandbox.template.v1.tar+gzip")
		img, err := mutate.AppendLayers(mutate.MediaType(empty.Image, types.OCIManifestSchema1), layer)
		if err != nil {
			t.Fatal(err)
		}
		ref, err := name.ParseReference(host + "/team/tmpl:" + tag)
		if err != nil {
			t.Fatal(err)
		}
		if err := remote.Write(ref, img, remote.WithContext(t.Context())); err != nil {
			t.Fatal(err)
		}
		d, err := img.Digest()
		if err != nil {
			t.Fatal(err)
		}
		return d.String()
	}
	digest := push("v1", "name: one\n")
	o := &ResolveOptions{CacheDir: t.TempDir()}
	get := func(ref string) string {
		r, err := Resolve(t.Context(), "oci://"+host+"/team/tmpl"+ref, o)
		if err != nil {
			return string(code(err))
		}
		return r.Template.Name
	}
	if got := get(":v1") + get("@"+digest); got != "oneone" {
		t.Errorf("got %s", got)
	}
	push("v1", "name: two\n")
	if got := get(":v1") + get("@"+digest) + get(":v2"); got != "twooneE2001" {
		t.Errorf("after a push: %s", got)
	}
	s.Close()
	if got := get(":v1") + get("@"+digest) + get(":v2"); got != "twooneE2005" {
		t.Errorf("after the registry went: %s", got)
	}
}
