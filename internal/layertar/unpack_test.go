//go:build linux

package layertar

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// archive is a tar of entries; content is that of files.
func archive(t testing.TB, entries ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range entries {
		content := []byte(nil)
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Typeflag == tar.TypeReg {
			content = []byte("content of " + h.Name)
			if h.Size == 0 {
				h.Size = int64(len(content))
			}
			if int64(len(content)) < h.Size {
				content = append(content, make([]byte, h.Size-int64(len(content)))...)
			}
		}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func dirEntry(name string, mode int64) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: mode}
}

func link(name, target string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: target}
}

func hard(name, target string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: target}
}

func file(name string) tar.Header { return tar.Header{Name: name} }

// place is a directory for a layer with a canary beside it.
type place struct {
	base   string
	dir    *os.File
	canary string
}

func newPlace(t testing.TB) *place {
	t.Helper()
	base := t.TempDir()
	p := &place{base: base, canary: filepath.Join(base, "outside", "canary")}
	for _, d := range []string{"outside", "layer"} {
		if err := os.Mkdir(filepath.Join(base, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(p.canary, []byte("canary"), 0o644); err != nil {
		t.Fatal(err)
	}
	var err error
	if p.dir, err = os.Open(filepath.Join(base, "layer")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.dir.Close() })
	return p
}

// check finds what an archive did outside of its directory.
func (p *place) check(t testing.TB) {
	t.Helper()
	got, err := os.ReadFile(p.canary)
	if err != nil || string(got) != "canary" {
		t.Errorf("the canary is %q, %v", got, err)
	}
	var st unix.Stat_t
	if err := unix.Lstat(p.canary, &st); err != nil || st.Nlink != 1 || st.Mode != unix.S_IFREG|0o644 {
		t.Errorf("the canary has %d names and mode %o, %v", st.Nlink, st.Mode, err)
	}
	for dir, want := range map[string][]string{p.base: {"layer", "outside"}, filepath.Join(p.base, "outside"): {"canary"}} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		if !slices.Equal(names, want) {
			t.Errorf("%s holds %q, want %q", dir, names, want)
		}
	}
}

// list is what the layer holds, a line each.
func (p *place) list(t testing.TB) []string {
	t.Helper()
	var out []string
	top := p.dir.Name()
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == top {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		line := strings.TrimPrefix(path, top+"/")
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			line += "/"
			v := make([]byte, 8)
			if n, err := unix.Lgetxattr(path, opaqueAttr, v); err == nil && string(v[:n]) == "y" {
				line += " opaque"
			}
		case unix.S_IFLNK:
			to, err := os.Readlink(path)
			if err != nil {
				return err
			}
			line += " -> " + to
		case unix.S_IFCHR:
			line += fmt.Sprintf(" dev %d", st.Rdev)
		case unix.S_IFREG:
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			if strings.HasPrefix(string(b), "content of ") {
				line += " = " + strings.TrimPrefix(string(b), "content of ")
			}
		default:
			line += fmt.Sprintf(" type %o", st.Mode&unix.S_IFMT)
		}
		if st.Mode&0o6000 != 0 {
			line += " SET-ID"
		}
		out = append(out, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestUnpack(t *testing.T) {
	for _, c := range []struct {
		name    string
		entries []tar.Header
		want    []string // nil: an error
	}{
		{"a tree", []tar.Header{dirEntry("a/", 0o755), file("a/f"), link("a/l", "f"), hard("a/h", "a/f")},
			[]string{"a/", "a/f = a/f", "a/h = a/f", "a/l -> f"}},
		{"parents without entries", []tar.Header{file("a/b/c")}, []string{"a/", "a/b/", "a/b/c = a/b/c"}},
		{"dots and slashes", []tar.Header{file("./a//./b"), file("/abs")}, []string{"a/", "a/b = ./a//./b", "abs = /abs"}},
		{"up and out", []tar.Header{file("../../outside/canary"), file("a/../../../x")},
			[]string{"outside/", "outside/canary = ../../outside/canary", "x = a/../../../x"}},
		{"through a link upwards", []tar.Header{link("l", "../outside"), file("l/canary")},
			[]string{"l -> ../outside", "outside/", "outside/canary = l/canary"}},
		{"through a chain of links", []tar.Header{link("a", "b"), link("b", "../../outside"), file("a/canary")},
			[]string{"a -> b", "b -> ../../outside", "outside/", "outside/canary = a/canary"}},
		{"a link then a file of its name", []tar.Header{link("f", "../outside/canary"), file("f")}, []string{"f = f"}},
		{"a link then a directory of its name", []tar.Header{link("d", "../outside"), dirEntry("d", 0o700), file("d/x")}, []string{"d/", "d/x = d/x"}},
		{"links in a circle", []tar.Header{link("a", "b"), link("b", "a"), file("a/x")}, nil},
		{"below a file", []tar.Header{file("a"), file("a/b")}, nil},
		{"hard link out", []tar.Header{hard("h", "../outside/canary")}, nil},
		{"hard link through a link", []tar.Header{link("l", "../outside"), hard("h", "l/canary")}, nil},
		{"hard link to a link", []tar.Header{link("l", "../outside/canary"), hard("h", "l")},
			[]string{"h -> ../outside/canary", "l -> ../outside/canary"}},
		{"writing to a hard link of a link", []tar.Header{link("l", "../outside/canary"), hard("h", "l"), file("h")},
			[]string{"h = h", "l -> ../outside/canary"}},
		{"hard link to a directory", []tar.Header{dirEntry("d", 0o755), hard("h", "d")}, nil},
		{"hard link to itself", []tar.Header{file("f"), hard("f", "f")}, []string{"f = f"}},
		{"hard link in the place of its target's directory", []tar.Header{file("d/f"), hard("d", "d/f")}, nil},
		{"hard link to the top", []tar.Header{hard("h", "/")}, nil},
		{"devices and pipes", []tar.Header{
			{Name: "c", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 5}, {Name: "z", Typeflag: tar.TypeChar},
			{Name: "b", Typeflag: tar.TypeBlock, Devmajor: 8}, {Name: "p", Typeflag: tar.TypeFifo}, file("f")},
			[]string{"f = f"}},
		{"set-id bits", []tar.Header{{Name: "s", Mode: 0o6755}, dirEntry("d", 0o7777)}, []string{"d/", "s = s"}},
		{"removal", []tar.Header{file("a/.wh.gone"), file(".wh.x")}, []string{"a/", "a/gone dev 0", "x dev 0"}},
		{"removal of all that is below", []tar.Header{file("a/.wh..wh.opq"), file("a/f")}, []string{"a/ opaque", "a/f = a/f"}},
		{"removal of what the layer has", []tar.Header{file("f"), file(".wh.f"), file("d/x"), file(".wh.d")}, []string{"d/ opaque", "d/x = d/x", "f = f"}},
		{"what the layer has, after its removal", []tar.Header{file(".wh.d"), dirEntry("d", 0o755), file(".wh.f"), file("f"), file(".wh.e"), file("e/x")},
			[]string{"d/ opaque", "e/ opaque", "e/x = e/x", "f = f"}},
		{"removal of nothing", []tar.Header{file(".wh.")}, nil},
		{"removal of dots", []tar.Header{file(".wh...")}, nil},
		{"hard link to a removal", []tar.Header{file(".wh.x"), hard("h", "x")}, nil},
		{"a file in the place of a tree", []tar.Header{file("a/b/c"), file("a")}, []string{"a = a"}},
		{"a tree below itself by a link", []tar.Header{link("a/up", ".."), file("a/up/a/x"), file("a/up/a")}, []string{"a = a/up/a"}},
		{"a long name", []tar.Header{file(strings.Repeat("n", 300))}, nil},
		{"a long path", []tar.Header{file(strings.Repeat("n/", 2100) + "n")}, nil},
		{"the top itself", []tar.Header{dirEntry("./", 0o777), link(".", "/etc"), file("f")}, []string{"f = f"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPlace(t)
			_, err := Unpack(t.Context(), p.dir, bytes.NewReader(archive(t, c.entries...)), Options{})
			p.check(t)
			if c.want == nil {
				if err == nil {
					t.Errorf("it was unpacked as %q", p.list(t))
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			want := slices.Clone(c.want)
			slices.Sort(want)
			got := p.list(t)
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("got  %q\nwant %q", got, want)
			}
		})
	}
}

// Attributes that are kept, and those of archives that nobody else is to have.
func TestUnpackAttributes(t *testing.T) {
	p := newPlace(t)
	h := tar.Header{Name: "d/f", Mode: 0o640, PAXRecords: map[string]string{"SCHILY.xattr.user.x": "y", "SCHILY.xattr.security.capability": "z"}}
	_, err := Unpack(t.Context(), p.dir, bytes.NewReader(archive(t, dirEntry("d", 0o1555), h, file("d/locked"))), Options{})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]fs.FileMode{"d": fs.ModeDir | fs.ModeSticky | 0o555, "d/f": 0o640} {
		fi, err := os.Lstat(filepath.Join(p.dir.Name(), name))
		if err != nil || fi.Mode() != want || fi.ModTime().Unix() != 0 {
			t.Errorf("%s is %v of %v, %v; want %v", name, fi.Mode(), fi.ModTime(), err, want)
		}
	}
	if n, err := unix.Llistxattr(filepath.Join(p.dir.Name(), "d/f"), nil); err != nil || n != 0 {
		t.Errorf("extended attributes of %d bytes, %v", n, err)
	}
	removeLayer(t, p)
}

func TestUnpackOwners(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give files away")
	}
	const base = 0x7fff0000
	p := newPlace(t)
	own := func(h tar.Header, uid, gid int) tar.Header { h.Uid, h.Gid = uid, gid; return h }
	_, err := Unpack(t.Context(), p.dir, bytes.NewReader(archive(t, own(file("a/f"), 33, 34), own(link("l", "x"), 0, 0),
		own(file("big"), 1<<20, -1), own(dirEntry("d", 0o700), 1000, 1000))), Options{OwnerBase: base})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][2]uint32{".": {0, 0}, "a": {0, 0}, "a/f": {33, 34}, "l": {0, 0}, "big": {nobody, nobody}, "d": {1000, 1000}} {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(p.dir.Name(), name), &st); err != nil || st.Uid-base != want[0] || st.Gid-base != want[1] {
			t.Errorf("%s belongs to %d:%d, %v; want %v above the base", name, int(st.Uid)-base, int(st.Gid)-base, err, want)
		}
	}
}

func TestUnpackLimits(t *testing.T) {
	many := make([]tar.Header, 50)
	for i := range many {
		many[i] = file(fmt.Sprint("f", i))
	}
	big := tar.Header{Name: "big", Size: 1 << 20}
	for _, c := range []struct {
		name    string
		o       Options
		entries []tar.Header
		what    string
	}{
		{"entries", Options{Entries: 49}, many, "entries"},
		{"dropped entries", Options{Entries: 1}, []tar.Header{{Name: "a", Typeflag: tar.TypeFifo}, {Name: "b", Typeflag: tar.TypeFifo}}, "entries"},
		{"bytes", Options{Bytes: 1<<20 - 1}, []tar.Header{big}, "bytes"},
		{"bytes of many", Options{Bytes: 10 << 10}, many, "bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPlace(t)
			_, err := Unpack(t.Context(), p.dir, bytes.NewReader(archive(t, c.entries...)), c.o)
			if le, ok := errors.AsType[*LimitError](err); !ok || le.What != c.what {
				t.Errorf("got %v, want a limit of %s", err, c.what)
			}
		})
	}
	p := newPlace(t)
	endless := io.MultiReader(bytes.NewReader(archive(t, file("f"))), zeros{})
	if _, err := Unpack(t.Context(), p.dir, endless, Options{Bytes: 1 << 20}); err == nil {
		t.Error("an archive without an end was unpacked")
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestUnpackStops(t *testing.T) {
	p := newPlace(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	r := io.MultiReader(bytes.NewReader(archive(t, file("f"))[:1024]), readerFunc(func([]byte) (int, error) { cancel(why); return 0, nil }), zeros{})
	if _, err := Unpack(ctx, p.dir, r, Options{}); !errors.Is(err, why) {
		t.Errorf("got %v, want the cause of the end of its context", err)
	}
	if _, err := Unpack(t.Context(), newPlace(t).dir, bytes.NewReader(archive(t, file("f"))[:520]), Options{}); err == nil {
		t.Error("an archive that was cut was unpacked")
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func removeLayer(t *testing.T, p *place) {
	t.Helper()
	parent, err := os.Open(p.base)
	if err != nil {
		t.Fatal(err)
	}
	defer parent.Close()
	if err := Remove(parent, "layer"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(p.dir.Name()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the layer is there after its removal: %v", err)
	}
	if err := Remove(parent, "layer"); err != nil {
		t.Errorf("second removal: %v", err)
	}
	if err := os.Mkdir(p.dir.Name(), 0o755); err != nil {
		t.Fatal(err)
	}
	p.check(t)
}

// A tree deeper than any path, closed to its owner, with links to the outside.
func TestRemoveHostileTree(t *testing.T) {
	p := newPlace(t)
	var entries []tar.Header
	at := ""
	for range 40 { // each link leads 40 directories further down
		deep := strings.Repeat("d/", 40)
		entries = append(entries, dirEntry(at+deep, 0o000), link(at+"l", deep))
		at = "l/"
		entries = append(entries, link(at+"out", "../../../outside/canary"), file(at+strings.Repeat("ü", 127)))
		if len(entries) > 6 { // from here on relative to the link before
			break
		}
	}
	if _, err := Unpack(t.Context(), p.dir, bytes.NewReader(archive(t, entries...)), Options{}); err != nil {
		t.Fatal(err)
	}
	fd := int(p.dir.Fd())
	for range 5000 {
		if err := unix.Mkdirat(fd, "e", 0o700); err != nil {
			t.Fatal(err)
		}
		next, err := openDir(fd, "e")
		if err != nil {
			t.Fatal(err)
		}
		if fd != int(p.dir.Fd()) {
			unix.Close(fd)
		}
		fd = next
	}
	unix.Close(fd)
	removeLayer(t, p)
}

func TestSeal(t *testing.T) {
	p := newPlace(t)
	if _, err := Unpack(t.Context(), p.dir, bytes.NewReader(archive(t, file("a/b"), file("c"), link("l", "c"))), Options{}); err != nil {
		t.Fatal(err)
	}
	seal := func() string {
		s, err := Seal(p.dir)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	was := seal()
	if got := seal(); got != was {
		t.Errorf("sealed twice: %s, %s", was, got)
	}
	top := p.dir.Name()
	moved := top + "-moved"
	if err := os.Rename(top, moved); err != nil {
		t.Fatal(err)
	}
	if got := seal(); got != was {
		t.Error("a new name of the top changes the seal")
	}
	for what, do := range map[string]func() error{
		"content":  func() error { return os.WriteFile(moved+"/a/b", []byte("content of A/b"), 0o644) },
		"mode":     func() error { return os.Chmod(moved+"/c", 0o600) },
		"new file": func() error { return os.WriteFile(moved+"/a/n", nil, 0o644) },
		"removal":  func() error { return os.Remove(moved + "/l") },
	} {
		before := seal()
		if err := do(); err != nil {
			t.Fatal(err)
		}
		if seal() == before {
			t.Errorf("%s: the seal did not break", what)
		}
	}
}

func FuzzUnpack(f *testing.F) {
	f.Add(archive(f, file("../../outside/canary"), link("l", "../outside"), file("l/canary"), hard("h", "l/canary")))
	f.Add(archive(f, file("a/.wh.x"), file("a/.wh..wh.opq"), dirEntry("a/x", 0o7777), file("a/x/y")))
	f.Add(archive(f, link("a", "/b"), link("b", "../c"), file("a/d"), tar.Header{Name: "dev", Typeflag: tar.TypeChar, Devmajor: 1}))
	f.Add(archive(f, link("a/up", ".."), file("a/up/a/x"), file("a/up/a"), hard("z", "a")))
	f.Fuzz(func(t *testing.T, b []byte) {
		p := newPlace(t)
		const most = 1 << 20
		stats, err := Unpack(t.Context(), p.dir, bytes.NewReader(b), Options{Entries: 100, Bytes: most})
		p.check(t)
		if stats.Bytes > most || stats.Entries > 100 {
			t.Errorf("%+v is above the limits", stats)
		}
		if err == nil && os.Geteuid() == 0 { // others may be locked out
			for _, line := range p.list(t) {
				if strings.HasSuffix(line, " SET-ID") || strings.Contains(line, " dev ") && !strings.HasSuffix(line, " dev 0") || strings.Contains(line, " type ") {
					t.Errorf("the layer holds %s", line)
				}
			}
		}
		parent, err := os.Open(p.base)
		if err != nil {
			t.Fatal(err)
		}
		defer parent.Close()
		if err := Remove(parent, "layer"); err != nil {
			t.Fatal(err)
		}
	})
}
