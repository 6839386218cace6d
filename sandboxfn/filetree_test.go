package sandboxfn

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// archiveOf makes an archive as nobody should.
func archiveOf(t testing.TB, hs ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range hs {
		if h.Typeflag == tar.TypeReg {
			h.Size = 1
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			w.Write([]byte("x"))
		}
	}
	w.Close()
	return b.Bytes()
}

func TestUnarchiveRefuses(t *testing.T) {
	top := tar.Header{Name: ".", Typeflag: tar.TypeDir, Mode: 0o755}
	dir := func(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755} }
	file := func(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644} }
	link := func(name, to string) tar.Header {
		return tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to}
	}
	for name, c := range map[string]struct {
		b    []byte
		want errdefs.Code
	}{
		"no tar":                {bytes.Repeat([]byte("x"), 1024), "E9005"},
		"cut":                   {archiveOf(t, top, file("a"))[:1600], "E9005"},
		"begins elsewhere":      {archiveOf(t, file("a")), "E9005"},
		"two files":             {archiveOf(t, file("."), file("a")), "E9005"},
		"a link alone":          {archiveOf(t, link(".", "/etc")), "E9005"},
		"absolute name":         {archiveOf(t, top, file("/tmp/x")), "E9005"},
		"name up":               {archiveOf(t, top, file("../x")), "E9005"},
		"name up inside":        {archiveOf(t, top, dir("a"), file("a/../../x")), "E9005"},
		"no parent":             {archiveOf(t, top, file("a/b")), "E9005"},
		"twice":                 {archiveOf(t, top, file("a"), file("a")), "E4005"},
		"through a link":        {archiveOf(t, top, dir("d"), link("l", "d"), file("l/x")), "E9005"},
		"link over file":        {archiveOf(t, top, file("a"), link("a", "b")), "E4005"},
		"absolute link":         {archiveOf(t, top, link("a", "/etc/passwd")), "E4003"},
		"link up":               {archiveOf(t, top, link("a", "../x")), "E4003"},
		"link up by a link":     {archiveOf(t, top, dir("p"), dir("p/q"), link("p/q/d", "../.."), link("l", "p/q/d/../x")), "E4003"},
		"link down and up":      {archiveOf(t, top, dir("a"), link("a/l", "../zzz"), link("m", "a/l/../../x")), "E4003"},
		"link to a long name":   {archiveOf(t, top, link("a", strings.Repeat("n/", 3000))), "E9003"},
		"links in a circle":     {archiveOf(t, top, link("a", "b"), link("b", "a")), "E4003"},
		"device":                {archiveOf(t, top, tar.Header{Name: "a", Typeflag: tar.TypeChar}), "E9005"},
		"hard link":             {archiveOf(t, top, file("a"), tar.Header{Name: "b", Typeflag: tar.TypeLink, Linkname: "a"}), "E9005"},
		"more than it may hold": {archiveOf(t, top, tar.Header{Name: "a", Typeflag: tar.TypeDir}, tar.Header{Name: "b", Typeflag: tar.TypeDir, Size: 0})[:1], "E9005"},
		"noise behind":          {append(archiveOf(t, file(".")), make([]byte, 2<<20)...), "E9003"},
	} {
		t.Run(name, func(t *testing.T) {
			outside := t.TempDir()
			_, err := unarchive(bytes.NewReader(c.b), filepath.Join(outside, "x"))
			if err != nil {
				err = fileError("x", err)
			}
			if got := errdefs.CodeOf(err); got != c.want {
				t.Errorf("got %v, want %s", err, c.want)
			}
			if es, _ := os.ReadDir(outside); len(es) > 1 || len(es) == 1 && es[0].Name() != "x" {
				t.Errorf("it wrote %v", es)
			}
		})
	}
}

// A size that is announced is not believed, nor is what does not come written.
func TestUnarchiveHugeSize(t *testing.T) {
	for name, hs := range map[string][]tar.Header{
		"file": {{Name: ".", Typeflag: tar.TypeReg, Size: maxFileBytes + 1}},
		"tree": {{Name: ".", Typeflag: tar.TypeDir}, {Name: "a", Typeflag: tar.TypeReg, Size: maxFileBytes + 1}},
	} {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, h := range hs {
			h.Format = tar.FormatPAX
			if err := w.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
		}
		_, err := unarchive(&b, filepath.Join(t.TempDir(), "x"))
		if !errors.Is(err, ErrPayloadTooLarge) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Of what is in a header only that is kept that the end of the archive needs.
func TestUnarchiveKeepsLittle(t *testing.T) {
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	for name, c := range map[string]struct {
		junk int
		want errdefs.Code
	}{
		"within the limit": {maxRecordBytes - 100, ""},
		"above it":         {maxRecordBytes, "E9005"},
	} {
		r, w := io.Pipe()
		before := heap()
		var grown int64
		go func() {
			tw := tar.NewWriter(w)
			tw.WriteHeader(&tar.Header{Name: ".", Typeflag: tar.TypeDir, Mode: 0o755})
			records := map[string]string{"X.y": strings.Repeat("j", c.junk)}
			for i := range 1000 {
				tw.WriteHeader(&tar.Header{Name: fmt.Sprint("d", i), Typeflag: tar.TypeDir, Mode: 0o755, Format: tar.FormatPAX, PAXRecords: records})
			}
			grown = heap() - before
			tw.Close()
			w.Close()
		}()
		_, err := unarchive(r, filepath.Join(t.TempDir(), "x"))
		r.Close()
		if got := errdefs.CodeOf(err); got != c.want {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil && grown > 4<<20 {
			t.Errorf("%s: the directories of 1000 headers take %v", name, Bytes(grown))
		}
	}
}

// The names that are remembered have a limit together.
func TestUnarchiveManyNames(t *testing.T) {
	tr := tree{names: maxNamesBytes - 10}
	if _, _, err := tr.remember("12345", "67890"); err != nil {
		t.Error(err)
	}
	if _, _, err := tr.remember("1", ""); !errors.Is(err, ErrPayloadTooLarge) {
		t.Errorf("one more: %v", err)
	}
}

func TestArchiveAndBack(t *testing.T) {
	dir := t.TempDir()
	src := filepath.Join(dir, "src")
	long := filepath.Join(src, string(bytes.Repeat([]byte("n"), 200)))
	when := time.Unix(1_000_000_000, 123_456_789)
	for _, err := range []error{
		os.MkdirAll(filepath.Join(src, "closed"), 0o755),
		os.WriteFile(long, []byte("long"), 0o600),
		os.WriteFile(filepath.Join(src, "closed", "ä b"), []byte("inside"), 0o444),
		os.Symlink("closed", filepath.Join(src, "link")),
		os.Chmod(long, 0o4751|fs.ModeSetuid),
		os.Chtimes(long, when, when),
		os.Chmod(filepath.Join(src, "closed"), 0o555),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	var b bytes.Buffer
	if err := archive(&b, src); err != nil {
		t.Fatal(err)
	}
	dst := filepath.Join(dir, "dst")
	if what, err := unarchive(&b, dst); what != foundDir || err != nil {
		t.Fatalf("%v, %v", what, err)
	}
	info, err := os.Stat(filepath.Join(dst, filepath.Base(long)))
	if err != nil || info.Mode() != 0o751 || !info.ModTime().Equal(when) {
		t.Errorf("long name: %v, %v", info, err)
	}
	if b, err := os.ReadFile(filepath.Join(dst, "link", "ä b")); string(b) != "inside" || err != nil {
		t.Errorf("through the link: %q, %v", b, err)
	}
	if info, err := os.Stat(filepath.Join(dst, "closed")); err != nil || info.Mode().Perm() != 0o555 {
		t.Errorf("directory: %v, %v", info, err)
	}
	if err := errors.Join(removeTree(src), removeTree(dst)); err != nil {
		t.Error(err)
	}
	b.Reset()
	if err := archive(&b, filepath.Join(dir, "none")); err != nil {
		t.Fatal(err)
	}
	if what, err := unarchive(&b, dst); what != foundNothing || err != nil {
		t.Errorf("nothing: %v, %v", what, err)
	}
}

func FuzzUnarchive(f *testing.F) {
	top := tar.Header{Name: ".", Typeflag: tar.TypeDir, Mode: 0o755}
	f.Add(archiveOf(f, top, tar.Header{Name: "a", Typeflag: tar.TypeReg}, tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "../x"}))
	f.Add(archiveOf(f, tar.Header{Name: ".", Typeflag: tar.TypeReg}))
	f.Fuzz(func(t *testing.T, b []byte) {
		dir := t.TempDir()
		_, err := unarchive(bytes.NewReader(b), filepath.Join(dir, "x"))
		es, _ := os.ReadDir(dir)
		if len(es) > 1 {
			t.Fatalf("it wrote %v", es)
		}
		if err != nil {
			return
		}
		root, err := os.OpenRoot(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		fs.WalkDir(root.FS(), ".", func(p string, d fs.DirEntry, err error) error {
			if err == nil && d.Type()&fs.ModeSymlink != 0 {
				if _, err := root.Stat(p); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) {
					t.Errorf("link %s: %v", p, err)
				}
			}
			return nil
		})
		removeTree(filepath.Join(dir, "x"))
	})
}

// The cache gives what it has, keeps within its bounds, and keeps nothing that
// is not what it says.
func TestContentCache(t *testing.T) {
	c := contentCache{most: 2, bytes: 10}
	fetch := func(text string, have bool) {
		t.Helper()
		_, sum, _ := digest(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader([]byte(text))), nil })
		var out bytes.Buffer
		read := false
		err := c.fetch(&out, readerFunc(func(p []byte) (int, error) {
			if read {
				return 0, io.EOF
			}
			read = true
			return copy(p, text), nil
		}), int64(len(text)), sum)
		if err != nil || out.String() != text || read == have {
			t.Errorf("%s: %q, %v, read %v", text, &out, err, read)
		}
	}
	fetch("one", false)
	fetch("one", true)
	fetch("two", false)
	fetch("one", true)
	fetch("three", false) // two goes
	fetch("one", true)
	fetch("two", false)
	fetch("three", false)
	fetch("more than ten bytes", false)
	fetch("more than ten bytes", false)
	fetch("123456789", false) // all others go
	if n := c.used.Len(); n != 1 || c.size != 9 || len(c.m) != 1 {
		t.Errorf("%d files with %d bytes", n, c.size)
	}
	for _, text := range []string{"short", "longer than that", "same len"} {
		_, sum, _ := digest(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader([]byte("the text"))), nil })
		var out bytes.Buffer
		if err := c.fetch(&out, bytes.NewReader([]byte(text)), 8, sum); err != errChanged {
			t.Errorf("%s: %v", text, err)
		}
	}
	if len(c.m) != 1 {
		t.Error("it keeps what is not what it says")
	}
}

// What is only kept makes room for what a call needs.
func TestContentCacheMakesRoom(t *testing.T) {
	c := contentCache{most: 10, bytes: 100}
	get := func(text string, w io.Writer) error {
		_, sum, _ := digest(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader([]byte(text))), nil })
		return c.fetch(w, bytes.NewReader([]byte(text)), int64(len(text)), sum)
	}
	if err := errors.Join(get("one", io.Discard), get("two", io.Discard)); err != nil || c.used.Len() != 2 {
		t.Fatalf("%d kept, %v", c.used.Len(), err)
	}
	for _, text := range []string{"three", "one"} {
		var out bytes.Buffer
		full := true
		w := writerFunc(func(p []byte) (int, error) {
			if full {
				full = false
				n, _ := out.Write(p[:1])
				return n, &fs.PathError{Op: "write", Err: syscall.ENOSPC}
			}
			return out.Write(p)
		})
		if err := get(text, w); err != nil || out.String() != text || c.used.Len() != 0 || c.size != 0 {
			t.Errorf("got %q, %v; %d kept", &out, err, c.used.Len())
		}
		if err := get("one", io.Discard); err != nil || c.used.Len() != 1 {
			t.Errorf("afterwards: %d kept, %v", c.used.Len(), err)
		}
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
