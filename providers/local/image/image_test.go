//go:build linux

package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/agent-sandbox/sandbox-go/internal/envd"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/providers/local"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

const envPull = "IMAGE_TEST_PULL"

func TestMain(m *testing.M) {
	if ref := os.Getenv(envPull); ref != "" {
		os.Exit(pullRole(ref))
	}
	os.Exit(m.Run())
}

// pullRole is one of several processes that want the same image.
func pullRole(ref string) int {
	p, err := local.New(providers.Config{StateDir: os.Getenv("IMAGE_TEST_STATE")})
	if err == nil {
		_, err = p.Create(context.Background(), providers.CreateRequest{Image: ref})
	}
	if err == nil {
		err = p.Close()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func openLocal(t *testing.T, state string) *local.Provider {
	t.Helper()
	p, err := local.New(providers.Config{StateDir: state, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error("close:", err)
		}
	})
	if err := p.Check(t.Context()); err != nil {
		if os.Getenv("CI") == "" && errors.Is(err, errdefs.ErrIsolation) {
			t.Skip(err)
		}
		t.Fatal(err)
	}
	return p
}

func stateDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// server is a registry on the loopback that counts what is asked of it.
type server struct {
	*httptest.Server
	blobs atomic.Int64
	down  atomic.Bool
}

func newServer(t *testing.T) *server {
	t.Helper()
	s := &server{}
	h := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.down.Load() {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
			s.blobs.Add(1)
		}
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *server) push(t *testing.T, repo string, img v1.Image) string {
	t.Helper()
	text := strings.TrimPrefix(s.URL, "http://") + "/" + repo
	ref, err := name.ParseReference(text)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, img); err != nil {
		t.Fatal(err)
	}
	return text
}

type item struct {
	name, content, link string
	kind                byte
	mode                int64
}

func layer(t *testing.T, items ...item) v1.Layer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, i := range items {
		h := &tar.Header{Name: i.name, Linkname: i.link, Typeflag: i.kind, Mode: i.mode, Size: int64(len(i.content))}
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Mode == 0 {
			h.Mode = 0o755
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, i.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil })
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func build(t *testing.T, c v1.Config, layers ...v1.Layer) v1.Image {
	t.Helper()
	img, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		t.Fatal(err)
	}
	f, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	f = f.DeepCopy()
	f.OS, f.Architecture, f.Config = "linux", runtime.GOARCH, c
	if img, err = mutate.ConfigFile(img, f); err != nil {
		t.Fatal(err)
	}
	return img
}

// programs are files of this machine, with their libraries.
func programs(t *testing.T, names ...string) []item {
	t.Helper()
	need := map[string]string{}
	for _, n := range names {
		path, err := exec.LookPath(n)
		if err != nil {
			t.Skip(err)
		}
		need["bin/"+n] = path
		out, err := exec.Command("ldd", path).Output()
		if err != nil {
			continue // static
		}
		for _, f := range strings.Fields(string(out)) {
			if strings.HasPrefix(f, "/") {
				need[f[1:]] = f
			}
		}
	}
	var items []item
	for to, from := range need {
		b, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		items = append(items, item{name: to, content: string(b)})
	}
	return items
}

func small(t *testing.T) v1.Layer {
	return layer(t, append(programs(t, "sh", "cat", "ls", "id", "touch", "rm"),
		item{name: "etc/passwd", content: "root:x:0:0:root:/root:/bin/sh\nweb:x:33:33:w:/srv:/bin/sh\n", mode: 0o644},
		item{name: "etc/lower", content: "lower"}, item{name: "gone/f", content: "gone"}, item{name: "opaque/old", content: "old"})...)
}

func upper(t *testing.T) v1.Layer {
	return layer(t, item{name: "etc/upper", content: "upper"}, item{name: ".wh.gone"}, item{name: "opaque/.wh..wh.opq"}, item{name: "opaque/new", content: "new"})
}

func run(t *testing.T, sb *providers.Sandbox, path string, args ...string) string {
	t.Helper()
	c, err := envd.New(&envd.Options{Dial: sb.Data.Dial, Token: sb.Data.Token.Reveal()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := c.Start(t.Context(), &envd.StartOptions{Path: path, Args: args})
	if err != nil {
		return "error: " + err.Error()
	}
	defer s.Close(nil)
	var out strings.Builder
	for {
		ev, err := s.Next()
		if err != nil {
			return out.String() + "error: " + err.Error()
		}
		if ev.End != nil {
			return out.String()
		}
		out.Write(ev.Stdout)
		out.Write(ev.Stderr)
	}
}

func report(t *testing.T, p *local.Provider, id string) string {
	t.Helper()
	r, err := p.Report(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return r.Root
}

// The same image from each kind of place.
func TestImageFromEveryPlace(t *testing.T) {
	img := build(t, v1.Config{Env: []string{"FROM_IMAGE=1", "BOTH=image", "PATH=/bin"}, WorkingDir: "/opaque", Entrypoint: []string{"/bin/false"}}, small(t), upper(t))
	s := newServer(t)
	byTag := s.push(t, "tools:v1", img)
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	path, err := layout.Write(filepath.Join(dir, "layout"), empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := path.AppendImage(img, layout.WithAnnotations(map[string]string{refNameKey: "v1"})); err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag("example.com/tools:v1")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "tools.tar")
	if err := tarball.WriteToFile(file, tag, img); err != nil {
		t.Fatal(err)
	}
	p := openLocal(t, stateDir(t))
	for _, ref := range []string{
		byTag, strings.TrimSuffix(byTag, ":v1") + "@" + digest.String(),
		"oci:" + string(path), "oci:" + string(path) + ":v1",
		"docker-archive:" + file, "docker-archive:" + file + ":example.com/tools:v1",
	} {
		sb, err := p.Create(t.Context(), providers.CreateRequest{Image: ref, Env: map[string]string{"BOTH": "caller"},
			Volumes: []providers.Volume{{Name: "v", Path: "/data"}}})
		if err != nil {
			t.Errorf("%s: %v", ref, err)
			continue
		}
		got := run(t, sb, "/bin/sh", "-c", "cat /etc/lower /etc/upper; ls -d /gone /opaque/old 2>/dev/null; cat new; pwd; id -un; echo $FROM_IMAGE $BOTH; touch /etc/x 2>/dev/null && echo written; ls /usr/share /home 2>/dev/null; touch /data/f /tmp/f && echo fine")
		if want := "lowerupper" + "new/opaque\nuser\n1 caller\n/home:\nuser\nfine\n"; got != want {
			t.Errorf("%s: got %q, want %q", ref, got, want)
		}
		if sb.Template != ref || !strings.HasPrefix(report(t, p, sb.ID), "image sha256:") {
			t.Errorf("%s: listed as %q, reported as %q", ref, sb.Template, report(t, p, sb.ID))
		}
		if err := p.Kill(t.Context(), sb.ID); err != nil {
			t.Error(err)
		}
	}
	if n := s.blobs.Load(); n != 3 { // two layers and a configuration, once
		t.Errorf("the registry sent %d blobs, want 3", n)
	}
}

func TestImageNotThere(t *testing.T) {
	s := newServer(t)
	host := strings.TrimPrefix(s.URL, "http://")
	p := openLocal(t, stateDir(t))
	dir := t.TempDir()
	for ref, code := range map[string]errdefs.Code{
		host + "/none:v1": "E2001", "A B": "E2011", "oci:relative": "E2011", "oci:" + dir + "/none": "E2001",
		"oci:" + dir: "E8006", "docker-archive:" + dir + "/none.tar": "E2001", "docker-archive:" + dir: "E8006",
		"127.0.0.1:1/x": "E5001",
	} {
		if _, err := p.Create(t.Context(), providers.CreateRequest{Image: ref}); errdefs.CodeOf(err) != code {
			t.Errorf("%s: got %v, want %s", ref, err, code)
		}
	}
	if _, err := (careful{http.DefaultTransport}).RoundTrip(httptest.NewRequest("GET", "http://192.0.2.1/v2/", nil)); errdefs.CodeOf(err) != "E5001" {
		t.Errorf("plain HTTP to elsewhere: %v", err)
	}
}

// An image of one static program: no shell, no /etc, no /tmp.
func TestScratchImage(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	src := filepath.Join(dir, "main.go")
	if err := os.WriteFile(src, []byte("package main\nimport (\"fmt\"; \"os\"; \"os/user\")\nfunc main() { u, err := user.Current(); fmt.Print(u.Username, err); os.WriteFile(\"/tmp/x\", nil, 0o644) }\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "build", "-buildvcs=false", "-o", filepath.Join(dir, "prog"), src)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	b, err := os.ReadFile(filepath.Join(dir, "prog"))
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(t)
	ref := s.push(t, "static:v1", build(t, v1.Config{User: "4711:4712"}, layer(t, item{name: "prog", content: string(b)})))
	p := openLocal(t, stateDir(t))
	sb, err := p.Create(t.Context(), providers.CreateRequest{Image: ref})
	if err != nil {
		t.Fatal(err)
	}
	want := "u4711<nil>"
	if os.Geteuid() != 0 {
		want = sb.DefaultUser + "<nil>" // as the mapping lets it
	}
	if got := run(t, sb, "/prog"); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := run(t, sb, "/bin/sh", "-c", "true"); !strings.Contains(got, "/bin/sh") || !strings.Contains(got, "error") {
		t.Errorf("a shell that is not there: %q", got)
	}
	if err := p.Kill(t.Context(), sb.ID); err != nil {
		t.Error(err)
	}
}

// Layers that lie about themselves, and hostile ones: contained, nothing is left.
func TestHostileImages(t *testing.T) {
	s := newServer(t)
	for _, c := range []struct {
		name  string
		layer v1.Layer
		fails bool
	}{
		{"link then file", layer(t, item{name: "l", link: "../../../../../../../../tmp/image-marker", kind: tar.TypeSymlink}, item{name: "l/f", content: "x"}), false},
		{"upwards", layer(t, item{name: "../../../../../../../../tmp/image-marker", content: "x"}), false},
		{"absolute", layer(t, item{name: "/tmp/image-marker", content: "x"}), false},
		{"hard link out", layer(t, item{name: "h", link: "../../../../../../../../etc/passwd", kind: tar.TypeLink}), true},
		{"device and set-uid", layer(t, item{name: "dev/sda", kind: tar.TypeBlock}, item{name: "su", content: "x", mode: 0o4755}), false},
		{"inflated", layer(t, item{name: "zeros", content: string(make([]byte, 300<<20))}), true},
		{"links where the sandbox mounts", layer(t, item{name: "proc", link: "/tmp", kind: tar.TypeSymlink}, item{name: "etc", link: "/tmp/image-marker", kind: tar.TypeSymlink}, item{name: "tmp", link: "/root", kind: tar.TypeSymlink}), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			state := stateDir(t)
			p := openLocal(t, state)
			sb, err := p.Create(t.Context(), providers.CreateRequest{Image: s.push(t, "bad:v1", build(t, v1.Config{}, c.layer))})
			if (err != nil) != c.fails {
				t.Fatalf("got %v, want an error: %v", err, c.fails)
			}
			if err == nil {
				if err := p.Kill(t.Context(), sb.ID); err != nil {
					t.Error(err)
				}
			} else if left, _ := filepath.Glob(filepath.Join(state, "local/images/layers/*")); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
			if _, err := os.Lstat("/tmp/image-marker"); err == nil {
				t.Error("there is a marker outside")
				os.Remove("/tmp/image-marker")
			}
		})
	}
}

// A registry that sends something else than the digest says.
func TestWrongContent(t *testing.T) {
	img := build(t, v1.Config{}, layer(t, item{name: "f", content: "right"}))
	f, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	f = f.DeepCopy()
	f.RootFS.DiffIDs[0].Hex = strings.Repeat("ab", 32)
	if img, err = mutate.ConfigFile(img, f); err != nil {
		t.Fatal(err)
	}
	p := openLocal(t, stateDir(t))
	if _, err := p.Create(t.Context(), providers.CreateRequest{Image: newServer(t).push(t, "wrong:v1", img)}); errdefs.CodeOf(err) != "E8006" {
		t.Errorf("got %v, want E8006", err)
	}
}

func TestDamagedLayer(t *testing.T) {
	s := newServer(t)
	ref := s.push(t, "tools:v1", build(t, v1.Config{}, layer(t, item{name: "f", content: "right"})))
	state := stateDir(t)
	pull := func() {
		t.Helper()
		p := openLocal(t, state) // another process, as far as seals go
		sb, err := p.Create(t.Context(), providers.CreateRequest{Image: ref})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Kill(t.Context(), sb.ID); err != nil {
			t.Fatal(err)
		}
	}
	pull()
	files, err := filepath.Glob(filepath.Join(state, "local/images/layers/*/f"))
	if err != nil || len(files) != 1 {
		t.Fatalf("%q, %v", files, err)
	}
	if err := os.WriteFile(files[0], []byte("WRONG"), 0o644); err != nil {
		t.Fatal(err)
	}
	pull()
	if b, err := os.ReadFile(files[0]); err != nil || string(b) != "right" {
		t.Errorf("the layer holds %q, %v", b, err)
	}
	n := s.blobs.Load()
	pull()
	if s.blobs.Load() != n {
		t.Error("a layer that is as it was is fetched again")
	}
	s.down.Store(true) // what the tag stood for last does
	pull()
}

func TestTwoProcessesPull(t *testing.T) {
	s := newServer(t)
	ref := s.push(t, "tools:v1", build(t, v1.Config{}, small(t)))
	state := stateDir(t)
	openLocal(t, state)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), envPull+"="+ref, "IMAGE_TEST_STATE="+state)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	wg.Wait()
	if n := s.blobs.Load(); n > 4 { // the layer once, the configuration by each
		t.Errorf("the registry sent %d blobs, want 4 at most", n)
	}
}

// TestSnapshotKeepsImage moves the tag of an image after files were kept in a
// sandbox of it: those are seen in the image as it was.
func TestSnapshotKeepsImage(t *testing.T) {
	s := newServer(t)
	one := s.push(t, "tools:v1", build(t, v1.Config{Env: []string{"PATH=/bin", "IMAGE=one"}}, small(t)))
	state := stateDir(t)
	shown := t.TempDir()
	if err := errors.Join(os.Chmod(shown, 0o755), os.WriteFile(filepath.Join(shown, "f"), []byte("exposed"), 0o644)); err != nil {
		t.Fatal(err)
	}
	const look = "cat /home/user/f; echo $IMAGE; cat /etc/upper 2>/dev/null || echo one; cat "
	p := openLocal(t, state)
	sb, err := p.Create(t.Context(), providers.CreateRequest{Image: one, Root: providers.RootView{Expose: []string{shown}}})
	if err != nil {
		t.Fatal(err)
	}
	run(t, sb, "/bin/sh", "-c", "echo kept > /home/user/f")
	snap, err := p.Snapshot(t.Context(), sb.ID, providers.SnapshotRequest{})
	if errdefs.CodeOf(err) == "E2010" && os.Getenv("CI") == "" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Hibernate(t.Context(), sb.ID); err != nil {
		t.Fatal(err)
	}
	s.push(t, "tools:v1", build(t, v1.Config{Env: []string{"PATH=/bin", "IMAGE=two"}}, small(t), upper(t)))
	p = openLocal(t, state) // it knows nothing of what the tag was
	if sb, err = p.Connect(t.Context(), sb.ID, providers.ConnectRequest{}); err != nil {
		t.Fatal("wake:", err)
	}
	const want = "kept\none\none\nexposed"
	if got := run(t, sb, "/bin/sh", "-c", look+shown+"/f"); got != want {
		t.Errorf("woken: got %q, want %q", got, want)
	}
	// Also when the image has to be fetched once more.
	for i := range 2 {
		child, err := p.Create(t.Context(), providers.CreateRequest{Snapshot: snap.ID})
		if err != nil {
			t.Fatal("create:", err)
		}
		if got := run(t, child, "/bin/sh", "-c", look+shown+"/f"); got != want {
			t.Errorf("child %d: got %q, want %q", i, got, want)
		}
		if child.Template != one {
			t.Errorf("listed as %q", child.Template)
		}
		if err := p.Kill(t.Context(), child.ID); err != nil {
			t.Error(err)
		}
		files, err := filepath.Glob(filepath.Join(state, "local", "images", "*.json"))
		if err != nil || len(files) == 0 {
			t.Fatal(files, err)
		}
		for _, f := range files {
			if err := os.Remove(f); err != nil {
				t.Fatal(err)
			}
		}
	}
	now, err := p.Create(t.Context(), providers.CreateRequest{Image: one})
	if err != nil {
		t.Fatal(err)
	}
	if got := run(t, now, "/bin/sh", "-c", "echo $IMAGE"); got != "two\n" {
		t.Errorf("the tag stands for %q", got)
	}
	for _, id := range []string{sb.ID, now.ID} {
		if err := p.Kill(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
	if err := p.DeleteSnapshot(t.Context(), snap.ID); err != nil {
		t.Error(err)
	}
}
