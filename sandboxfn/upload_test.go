package sandboxfn

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/agent-sandbox/sandbox-go/internal/artifact"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// gate stands in front of a runtime and counts and refuses uploads.
type gate struct {
	limit     int64        // of one request's body; above it is 413
	version   string       // that the provider tells
	noCompose bool         // is a server of before
	breaks    atomic.Int32 // so many uploads break in the middle

	uploads, composed, packed, forms atomic.Int32
}

func (g *gate) client(t *testing.T) *Client {
	t.Helper()
	return hostClient(t, &hostProvider{edit: func(_ *providers.CreateRequest, s *providers.Sandbox) {
		dial := s.Data.Dial
		proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "sandbox"})
		transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) }}
		proxy.Transport, proxy.FlushInterval, proxy.ErrorLog = transport, -1, log.New(io.Discard, "", 0)
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost && r.URL.Path == "/files" && !g.passes(w, r) {
				return
			}
			if b, err := io.ReadAll(r.Body); err == nil { // an answer may begin at once
				r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(b)), int64(len(b))
			}
			if r.URL.Path == "/files/compose" {
				if g.noCompose {
					http.NotFound(w, r)
					return
				}
				g.composed.Add(1)
			}
			proxy.ServeHTTP(w, r)
		}))
		t.Cleanup(func() { srv.CloseClientConnections(); srv.Close(); transport.CloseIdleConnections() })
		s.Data = providers.Endpoint{URL: srv.URL, Token: s.Data.Token, Limits: providers.TransportLimits{RequestBytes: g.limit}}
		s.RuntimeVersion = g.version
	}}, nil)
}

func (g *gate) passes(w http.ResponseWriter, r *http.Request) bool {
	g.uploads.Add(1)
	if g.breaks.Add(-1) >= 0 {
		io.CopyN(io.Discard, r.Body, 100)
		if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
			conn.Close()
		}
		return false
	}
	if r.Header.Get("Content-Encoding") == "gzip" {
		g.packed.Add(1)
	}
	if strings.HasPrefix(r.Header.Get("Content-Type"), "multipart/") {
		g.forms.Add(1)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil || g.limit > 0 && int64(len(body)) > g.limit {
		w.WriteHeader(http.StatusRequestEntityTooLarge)
		return false
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return true
}

// program is an artifact of some size that prints "ran".
func program(t *testing.T, size int) artifact.Self {
	t.Helper()
	text := "#!/bin/sh\necho ran; exit 0; " + randomID() + "\n"
	data := append([]byte(text), bytes.Repeat([]byte("0123456789abcde\n"), size/16)...)
	path := filepath.Join(t.TempDir(), "program")
	must(t, os.WriteFile(path, data, 0o600))
	sum := sha256.Sum256(data)
	file, err := artifact.Open(path)
	if err != nil { // it is no executable of a platform
		file = artifact.Self{Path: path}
	}
	t.Cleanup(func() { // these sandboxes share our home
		me, err := user.Current()
		must(t, err)
		left, err := filepath.Glob(filepath.Join(me.HomeDir, ".cache/sandbox-worker", file.Digest+"*"))
		must(t, err)
		for _, f := range left {
			os.Remove(f)
			if filepath.Base(f) != file.Digest {
				t.Errorf("left: %s", f)
			}
		}
		os.Remove(filepath.Join(me.HomeDir, ".cache/sandbox-worker"))
	})
	file.Digest, file.Size = hex.EncodeToString(sum[:]), int64(len(data))
	return file
}

func TestUpload(t *testing.T) {
	for _, c := range []struct {
		name     string
		g        *gate
		uploads  int32
		composed int32
		packed   bool
		forms    bool
		near     bool
	}{
		{name: "on this machine", g: &gate{version: "0.6.13"}, uploads: 1, near: true},
		{name: "in one", g: &gate{version: "0.6.13"}, uploads: 1, packed: true},
		{name: "unknown version", g: &gate{}, uploads: 1},
		{name: "form", g: &gate{version: "0.5.6"}, uploads: 1, forms: true},
		{name: "in parts", g: &gate{version: "0.6.13", limit: 128 << 10}, uploads: 10, composed: 1, packed: true},
		{name: "parts joined by a command", g: &gate{version: "0.5.7", limit: 128 << 10, noCompose: true}, uploads: 10, packed: true},
		{name: "form in parts", g: &gate{version: "0.1.0", limit: 128 << 10, noCompose: true}, uploads: 10, forms: true},
		{name: "broken on the way", g: &gate{version: "0.6.13", limit: 128 << 10}, uploads: 12, composed: 1, packed: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.name == "broken on the way" {
				c.g.breaks.Store(2)
			}
			a := program(t, 1<<20)
			sb := create(t, c.g.client(t), nil)
			if !sb.near {
				t.Error("127.0.0.1 counts as far away")
			}
			sb.near = c.near
			path, err := sb.ensureArtifact(t.Context(), a, "")
			must(t, err)
			if out, err := sb.Command(t.Context(), path).Output(); string(out) != "ran\n" || err != nil {
				t.Errorf("it says %q, %v", out, err)
			}
			again, err := sb.ensureArtifact(t.Context(), a, "")
			if again != path || err != nil {
				t.Errorf("again: %q, %v", again, err)
			}
			if got := c.g.uploads.Load(); got != c.uploads || c.g.composed.Load() != c.composed {
				t.Errorf("%d uploads, composed %d times", got, c.g.composed.Load())
			}
			if c.packed != (c.g.packed.Load() > 0) || c.forms != (c.g.forms.Load() > 0) {
				t.Errorf("%d were compressed, %d were forms", c.g.packed.Load(), c.g.forms.Load())
			}
			// One who has changed it since is not trusted.
			must(t, sb.Command(t.Context(), "/bin/sh", "-c", `printf '#!/bin/sh\necho no' | dd conv=notrunc "of=$1" 2>/dev/null`, "sh", path).Run())
			if again, err = sb.ensureArtifact(t.Context(), a, ""); err != nil {
				t.Fatal(err)
			}
			if out, err := sb.Command(t.Context(), again).Output(); string(out) != "ran\n" || err != nil {
				t.Errorf("after a change: %q, %v", out, err)
			}
		})
	}
}

func TestOnLoopback(t *testing.T) {
	for address, want := range map[string]bool{
		"http://127.0.0.1:3000": true, "http://127.9.9.9": true, "https://[::1]:1/x": true, "http://[::ffff:127.0.0.1]": true,
		"http://localhost:80": true, "https://49983-abc.localhost": true, "http://box": false, "https://127.0.0.1.example.com": false,
		"https://49983-abc.e2b.app": false, "http://10.0.0.1": false, "": false, "http://%zz": false,
	} {
		if got := onLoopback(address); got != want {
			t.Errorf("%q: %v", address, got)
		}
	}
}

func TestUploadGivesUp(t *testing.T) {
	g := &gate{version: "0.6.13"}
	g.breaks.Store(100)
	sb := create(t, g.client(t), nil)
	if _, err := sb.ensureArtifact(t.Context(), program(t, 1<<20), ""); errdefs.CodeOf(err) != "E5003" || g.uploads.Load() != uploadTries {
		t.Errorf("%v after %d uploads", err, g.uploads.Load())
	}
}

// Several workers of one sandbox may want the same program at once.
func TestUploadTogether(t *testing.T) {
	g := &gate{version: "0.6.13", limit: 200 << 10}
	sb := create(t, g.client(t), nil)
	a := program(t, 1<<20)
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			path, err := sb.ensureArtifact(t.Context(), a, "")
			if err != nil {
				t.Error(err)
				return
			}
			if out, err := sb.Command(t.Context(), path).Output(); string(out) != "ran\n" || err != nil {
				t.Errorf("it says %q, %v", out, err)
			}
		})
	}
	wg.Wait()
}

// For another user the program lies where that user can reach it, and nobody
// can have put something.
func TestUploadForAnotherUser(t *testing.T) {
	sb := create(t, (&gate{version: "0.6.13"}).client(t), nil)
	a := program(t, 1<<10)
	one, err := sb.ensureArtifact(t.Context(), a, "somebody")
	must(t, err)
	defer os.RemoveAll(filepath.Dir(one)) // these sandboxes share our /tmp
	two, err := sb.ensureArtifact(t.Context(), a, "somebody")
	must(t, err)
	defer os.RemoveAll(filepath.Dir(two))
	if one == two || !strings.HasPrefix(one, "/tmp/sandbox-worker-") {
		t.Errorf("at %s and %s", one, two)
	}
	fi, err := os.Stat(one)
	must(t, err)
	dir, err := os.Stat(filepath.Dir(one))
	must(t, err)
	if fi.Mode().Perm() != 0o755 || dir.Mode().Perm()&0o022 != 0 {
		t.Errorf("modes %v and %v", fi.Mode(), dir.Mode())
	}
}

func TestVersionAtLeast(t *testing.T) {
	for _, c := range []struct {
		have string
		want bool
	}{{"0.5.7", true}, {"0.5.10", true}, {"0.6", true}, {"1.0.0", true}, {"0.5.6", false}, {"0.5", false}, {"", false}, {"x", false}, {"0.5.x", false}} {
		if got := versionAtLeast(c.have, "0.5.7"); got != c.want {
			t.Errorf("%q: %v", c.have, got)
		}
	}
}
