package sandboxfn

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// hostTree makes a tree on this machine.
func hostTree(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, c := range map[string]struct {
		content string
		mode    fs.FileMode
	}{
		"run.sh": {"#!/bin/sh\necho ran\n", 0o755}, "a/b/c/deep": {"deep", 0o600}, "empty": {"", 0o644},
		"ü x\n": {"name", 0o640}, "-dash": {"dash", 0o444}, strings.Repeat("l", 150): {"long", 0o644},
	} {
		p := filepath.Join(dir, name)
		must(t, os.MkdirAll(filepath.Dir(p), 0o755))
		must(t, os.WriteFile(p, []byte(c.content), 0o600))
		must(t, os.Chmod(p, c.mode))
		must(t, os.Chtimes(p, time.Time{}, time.Unix(1600000000, 0)))
	}
	must(t, os.Mkdir(filepath.Join(dir, "emptydir"), 0o750))
	must(t, os.Chmod(filepath.Join(dir, "emptydir"), 0o750))
	must(t, os.Symlink("a/b", filepath.Join(dir, "link")))
	return dir
}

// describe lists a tree with everything that a copy keeps.
func describe(t *testing.T, fsys fs.FS, times bool) []string {
	t.Helper()
	var out []string
	must(t, fs.WalkDir(fsys, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == "." {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		line := fmt.Sprintf("%q %v", p, info.Mode())
		switch {
		case info.Mode().IsRegular():
			data, err := fs.ReadFile(fsys, p)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %q", data)
			if times {
				line += fmt.Sprint(" ", info.ModTime().Unix())
			}
		case info.Mode()&fs.ModeSymlink != 0:
			to, err := fs.ReadLink(fsys, p)
			if err != nil {
				return err
			}
			line = fmt.Sprintf("%q -> %s", p, to)
		}
		out = append(out, line)
		return nil
	}))
	return out
}

func TestCopyTree(t *testing.T) {
	onEach(t, func(t *testing.T, sb *Sandbox) {
		ways := []string{"tar"}
		if sb.Provider() == "host" {
			ways = append(ways, "without tar")
		}
		for _, way := range ways {
			t.Run(way, func(t *testing.T) {
				sb := sb
				if way != "tar" {
					sb = create(t, hostClient(t, &hostProvider{}, nil), &CreateOptions{Env: map[string]string{"PATH": pathWithout(t, "tar")}})
				}
				ctx := t.Context()
				src, dst := hostTree(t), workDir(t, sb)+"/to/dst"
				must(t, sb.CopyTo(ctx, src, dst))
				times := way == "tar"
				want := describe(t, os.DirFS(src), times)
				if got := describe(t, sb.FS(ctx).Root(dst), times); !slices.Equal(got, want) {
					t.Errorf("inside:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
				}
				if out, err := sb.Command(ctx, dst+"/run.sh").Output(); string(out) != "ran\n" || err != nil {
					t.Errorf("got %q, %v", out, err)
				}
				back := filepath.Join(t.TempDir(), "new", "back")
				must(t, sb.CopyFrom(ctx, dst, back))
				if got := describe(t, os.DirFS(back), times); !slices.Equal(got, want) {
					t.Errorf("back:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
				}
				// Changes only, both ways.
				must(t, os.WriteFile(filepath.Join(src, "run.sh"), []byte("#!/bin/sh\necho again\n"), 0))
				must(t, sb.CopyTo(ctx, src, dst))
				must(t, sb.CopyFrom(ctx, dst, back))
				if got, err := os.ReadFile(filepath.Join(back, "run.sh")); string(got) != "#!/bin/sh\necho again\n" || err != nil {
					t.Errorf("got %q, %v", got, err)
				}
			})
		}
	})
}

// pathWithout makes a folder of links to all programs of PATH but one.
func pathWithout(t *testing.T, program string) string {
	t.Helper()
	dir := t.TempDir()
	for _, p := range []string{"/usr/bin", "/bin"} {
		list, err := os.ReadDir(p)
		must(t, err)
		for _, e := range list {
			if e.Name() != program {
				os.Symlink(filepath.Join(p, e.Name()), filepath.Join(dir, e.Name()))
			}
		}
	}
	return dir
}

func TestCopyFile(t *testing.T) {
	onEach(t, func(t *testing.T, sb *Sandbox) {
		ctx := t.Context()
		src, dir := filepath.Join(t.TempDir(), "f"), workDir(t, sb)
		must(t, os.WriteFile(src, []byte("#!/bin/sh\necho hi\n"), 0o755))
		must(t, sb.CopyTo(ctx, src, dir+"/new/f"))
		if out, err := sb.Command(ctx, dir+"/new/f").Output(); string(out) != "hi\n" || err != nil {
			t.Errorf("got %q, %v", out, err)
		}
		back := filepath.Join(t.TempDir(), strings.Repeat("g", 255)) // as long as names can be
		must(t, sb.CopyFrom(ctx, dir+"/new/f", back))
		if i, err := os.Stat(back); err != nil || i.Mode() != 0o755 {
			t.Errorf("got %v, %v", i, err)
		}
		if err := sb.CopyTo(ctx, src+"none", dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("got %v", err)
		}
		if err := sb.CopyFrom(ctx, dir+"/none", back); !errors.Is(err, fs.ErrNotExist) || !errors.Is(err, ErrFile) {
			t.Errorf("got %v", err)
		}
	})
}

// A tree of small files takes a handful of requests, and nothing the second time.
func TestCopyManyFiles(t *testing.T) {
	var requests atomic.Int64
	p := &hostProvider{wrap: func(c net.Conn) net.Conn { return &countingConn{Conn: c, n: &requests} }}
	sb := create(t, hostClient(t, p, nil), nil)
	src, dst := t.TempDir(), workDir(t, sb)+"/dst"
	for i := range 2000 {
		p := filepath.Join(src, fmt.Sprintf("%02d", i%40), fmt.Sprint(i))
		must(t, os.MkdirAll(filepath.Dir(p), 0o755))
		must(t, os.WriteFile(p, bytes.Repeat([]byte{byte(i)}, 2000), 0o644))
	}
	step := func(what string, limit int64, f func() error) {
		t.Helper()
		requests.Store(0)
		start := time.Now()
		must(t, f())
		t.Logf("%s: %d requests, %v", what, requests.Load(), time.Since(start))
		if n := requests.Load(); n > limit {
			t.Errorf("%s took %d requests, want at most %d", what, n, limit)
		}
	}
	back := t.TempDir()
	step("up", 20, func() error { return sb.CopyTo(t.Context(), src, dst) })
	step("up again", 3, func() error { return sb.CopyTo(t.Context(), src, dst) })
	step("down", 20, func() error { return sb.CopyFrom(t.Context(), dst, back) })
	step("down again", 4, func() error { return sb.CopyFrom(t.Context(), dst, back) })
	if got, want := describe(t, os.DirFS(back), true), describe(t, os.DirFS(src), true); !slices.Equal(got, want) {
		t.Error("the copy differs")
	}
}

// countingConn counts requests and delays each by 20 ms.
type countingConn struct {
	net.Conn
	n *atomic.Int64
}

func (c *countingConn) Write(p []byte) (int, error) {
	if bytes.HasPrefix(p, []byte("POST /")) || bytes.HasPrefix(p, []byte("GET /")) {
		c.n.Add(1)
		time.Sleep(20 * time.Millisecond)
	}
	return c.Conn.Write(p)
}

// An archive from a sandbox writes nothing outside its destination.
func TestExtractStaysInside(t *testing.T) {
	reg := func(name string) *tar.Header { return &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644} }
	link := func(name, to string) *tar.Header {
		return &tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to}
	}
	for _, c := range []struct {
		name    string
		headers []*tar.Header
		ok      bool
	}{
		{"plain", []*tar.Header{reg("./a/b"), link("./l", "a/b"), link("./a/up", "../x")}, true},
		{"up", []*tar.Header{reg("../x")}, false},
		{"inside up", []*tar.Header{reg("a/../../x")}, false},
		{"absolute", []*tar.Header{reg("/tmp/x")}, false},
		{"link up", []*tar.Header{link("l", "../x")}, false},
		{"link up after a name", []*tar.Header{link("a/b/c/s", "../../.."), link("a/b/c/x", "s/../outside")}, false},
		{"link at less depth than its name", []*tar.Header{link("a/b/l", "../.."), link("a/b/l/x", "../../outside")}, true}, // l becomes a directory
		{"link in place of a directory", []*tar.Header{{Name: "a/p/", Typeflag: tar.TypeDir}, link("a/p", ".."), link("a/p/x", "../../outside")}, true},
		{"hard link of a link at another depth", []*tar.Header{link("a/b/l", "../../in"), {Name: "h", Typeflag: tar.TypeLink, Linkname: "a/b/l"}}, false},
		{"hard link of a link", []*tar.Header{{Name: "h", Typeflag: tar.TypeLink, Linkname: "l"}, link("l", "a")}, true},
		{"hard link of itself", []*tar.Header{reg("h"), {Name: "h", Typeflag: tar.TypeLink, Linkname: "h"}}, false},
		{"link absolute", []*tar.Header{link("l", "/etc")}, false},
		{"link up from below", []*tar.Header{link("a/l", "../../x")}, false},
		{"through a link to a link", []*tar.Header{link("l", "."), link("l/m", ".."), reg("m/x")}, true},
		{"hard link out", []*tar.Header{{Name: "h", Typeflag: tar.TypeLink, Linkname: "../outside"}}, false},
		{"device", []*tar.Header{{Name: "d", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}}, true},
		{"huge", []*tar.Header{{Name: "z", Typeflag: tar.TypeReg, Size: 1 << 40}}, false},
		{"setuid", []*tar.Header{{Name: "s", Typeflag: tar.TypeReg, Mode: 0o4755}}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			outer := t.TempDir()
			must(t, os.WriteFile(filepath.Join(outer, "outside"), []byte("secret"), 0o600))
			must(t, os.Mkdir(filepath.Join(outer, "in"), 0o755))
			root, err := os.OpenRoot(filepath.Join(outer, "in"))
			must(t, err)
			defer root.Close()
			var buf bytes.Buffer
			w := tar.NewWriter(&buf)
			for _, h := range c.headers {
				must(t, w.WriteHeader(h))
			}
			w.Close() // fails for the one that promises more than it holds
			dst := newDestination(root)
			if err = extract(&buf, dst, anyName, 1<<20); err == nil {
				err = dst.placeLinks()
			}
			if (err == nil) != c.ok {
				t.Errorf("got %v", err)
			}
			if got, _ := os.ReadDir(outer); len(got) != 2 {
				t.Errorf("outside: %v", got)
			}
			must(t, filepath.WalkDir(outer, func(p string, d fs.DirEntry, err error) error {
				staysBelow(t, outer+"/in", p)
				if err == nil && d.Type()&(fs.ModeDevice|fs.ModeSocket) != 0 {
					t.Errorf("%s is a device", p)
				}
				if i, err := d.Info(); err == nil && i.Mode()&fs.ModeSetuid != 0 {
					t.Errorf("%s is set-user-ID", p)
				}
				return err
			}))
		})
	}
}

func anyName(string) bool { return true }

// staysBelow fails when p is a link that leads out of dir.
func staysBelow(t *testing.T, dir, p string) {
	t.Helper()
	if _, err := os.Readlink(p); err != nil {
		return
	}
	if to, err := filepath.EvalSymlinks(p); err == nil && to != dir && !strings.HasPrefix(to, dir+"/") {
		t.Errorf("%s leads to %s", p, to)
	}
}

// A sandbox whose tar is replaced cannot make entries that were not listed, nor
// as many as it likes.
func TestExtractIsBounded(t *testing.T) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for i := range 100 {
		must(t, w.WriteHeader(&tar.Header{Name: fmt.Sprintf("junk/d%d/", i), Typeflag: tar.TypeDir, Mode: 0o755}))
	}
	must(t, w.WriteHeader(&tar.Header{Name: "listed", Typeflag: tar.TypeReg, Mode: 0o644}))
	must(t, w.Close())
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	must(t, err)
	defer root.Close()
	must(t, extract(bytes.NewReader(buf.Bytes()), newDestination(root), func(name string) bool { return name == "listed" }, 1<<20))
	if got, _ := os.ReadDir(dir); len(got) != 1 || got[0].Name() != "listed" {
		t.Errorf("got %v", got)
	}
	if err := extract(&buf, newDestination(root), anyName, 50*entryCost); errdefs.CodeOf(err) != "E4000" {
		t.Errorf("got %v", err)
	}
}

// A directory of the sandbox takes the place of a link that an earlier copy left.
func TestCopyFromReplacesLinks(t *testing.T) {
	sb := create(t, hostClient(t, &hostProvider{}, nil), nil)
	ctx, src, dst := t.Context(), workDir(t, sb)+"/src", filepath.Join(t.TempDir(), "dst")
	must(t, sb.FS(ctx).MkdirAll(src+"/a", 0))
	must(t, sb.FS(ctx).Symlink("a", src+"/l"))
	must(t, sb.CopyFrom(ctx, src, dst))
	must(t, sb.FS(ctx).Remove(src+"/l"))
	must(t, sb.FS(ctx).MkdirAll(src+"/l", 0))
	must(t, sb.FS(ctx).Symlink("../a", src+"/l/m"))
	must(t, sb.CopyFrom(ctx, src, dst))
	if got, err := os.Readlink(dst + "/l/m"); got != "../a" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if i, err := os.Lstat(dst + "/l"); err != nil || !i.IsDir() {
		t.Errorf("got %v, %v", i, err)
	}
}

// A file that says it is empty and has no end fills neither disk nor memory.
func TestEndlessFile(t *testing.T) {
	sb := create(t, hostClient(t, &hostProvider{}, nil), nil)
	ctx, dir, back := t.Context(), workDir(t, sb), t.TempDir()
	must(t, sb.FS(ctx).MkdirAll(dir, 0))
	must(t, sb.FS(ctx).Symlink("/proc/self/pagemap", dir+"/result"))
	if err := sb.CopyFrom(ctx, dir+"/result", back+"/result"); err == nil {
		t.Error("it was copied")
	}
	if got, _ := os.ReadDir(back); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
	if data, err := sb.FS(ctx).ReadFile(dir + "/result"); err == nil || len(data) > 64<<20 {
		t.Errorf("read %d bytes, %v", len(data), err)
	}
	// Servers of others do not stop by themselves.
	n, err := io.Copy(io.Discard, bounded(endless{}, "x", 1<<20))
	if errdefs.CodeOf(err) != "E4000" || n > 1<<20 {
		t.Errorf("got %d, %v", n, err)
	}
	if n, err := io.Copy(io.Discard, bounded(strings.NewReader("four"), "x", 4)); n != 4 || err != nil {
		t.Errorf("got %d, %v", n, err)
	}
	for size, want := range map[int64]int64{-1: 64 << 20, 0: 64 << 20, 1 << 40: 64<<20 + 2<<40, math.MaxInt64: math.MaxInt64 / 2} {
		if got := allowance(size); got != want {
			t.Errorf("of %d: got %d, want %d", size, got, want)
		}
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

func FuzzExtract(f *testing.F) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	w.WriteHeader(&tar.Header{Name: "a/../../x", Typeflag: tar.TypeReg, Mode: 0o644, Size: 1})
	w.Write([]byte("x"))
	w.WriteHeader(&tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: ".."})
	w.WriteHeader(&tar.Header{Name: "l/y", Typeflag: tar.TypeReg})
	w.Close()
	f.Add(buf.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		outer := t.TempDir()
		must(t, os.Mkdir(filepath.Join(outer, "in"), 0o755))
		root, err := os.OpenRoot(filepath.Join(outer, "in"))
		must(t, err)
		defer root.Close()
		dst := newDestination(root)
		extract(bytes.NewReader(data), dst, anyName, 1<<20)
		dst.placeLinks()
		if got, err := os.ReadDir(outer); err != nil || len(got) != 1 {
			t.Errorf("outside: %v, %v", got, err)
		}
		filepath.WalkDir(outer, func(p string, d fs.DirEntry, err error) error {
			staysBelow(t, outer+"/in", p)
			return nil
		})
	})
}
