//go:build linux

package layertar

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func openTest(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// describe says what a tree is.
func describe(t *testing.T, root string) string {
	t.Helper()
	var b strings.Builder
	inodes := map[uint64]string{}
	err := filepath.Walk(root, func(path string, fi os.FileInfo, err error) error {
		if err != nil || path == root {
			return err
		}
		name, _ := filepath.Rel(root, path)
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		fmt.Fprintf(&b, "%q %o %d.%d", name, st.Mode, st.Mtim.Sec, st.Mtim.Nsec)
		switch {
		case fi.Mode().IsRegular():
			content, _ := os.ReadFile(path)
			fmt.Fprintf(&b, " %d %x", len(content), content[:min(len(content), 20)])
			if first := inodes[st.Ino]; first != "" {
				fmt.Fprintf(&b, " = %q", first)
			}
			inodes[st.Ino] = name
			var v [100]byte
			if n, err := unix.Lgetxattr(path, "user.colour", v[:]); err == nil {
				fmt.Fprintf(&b, " %s", v[:n])
			}
		case fi.Mode()&os.ModeSymlink != 0:
			link, _ := os.Readlink(path)
			fmt.Fprintf(&b, " -> %q", link)
		}
		b.WriteByte('\n')
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestPackAndUnpack(t *testing.T) {
	root := t.TempDir()
	at := func(name string) string { return filepath.Join(root, name) }
	write := func(name, content string, mode os.FileMode) {
		if err := errors.Join(os.WriteFile(at(name), []byte(content), 0o600), os.Chmod(at(name), mode)); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []string{"d", "d/e", "shut", "sticky"} {
		if err := os.Mkdir(at(d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write("d/e/file", "content", 0o640)
	write(".wh.d", "not an instruction", 0o644)
	write("\xff\nname", "odd", 0o644)
	write("unreadable", "secret", 0)
	write("shut/in", "in", 0o644)
	write("sparse", "", 0o644)
	f, err := os.OpenFile(at("sparse"), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.WriteAt([]byte("middle"), 8<<20)
	f.Truncate(16 << 20)
	f.Close()
	if err := errors.Join(
		os.Link(at("d/e/file"), at("link")), os.Symlink("../../etc/passwd", at("d/out")),
		unix.Mkfifo(at("fifo"), 0o644), os.Chmod(at("shut"), 0), os.Chmod(at("sticky"), 0o777|os.ModeSticky),
		os.Chtimes(at("d/e"), time.Time{}, time.Unix(1e9, 123456789)),
	); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setxattr(at("d/e/file"), "user.colour", []byte("red"), 0); err != nil {
		t.Skip("attributes:", err)
	}
	if err := unix.Setxattr(at("d"), "user.overlay.redirect", []byte("/etc"), 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Chmod(at("shut"), 0o700) })

	var archive bytes.Buffer
	stats, err := Pack(&archive, openTest(t, root), PackOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if stats.Dropped != 1 {
		t.Errorf("%d entries dropped, want the pipe", stats.Dropped)
	}
	if archive.Len() > 1<<20 {
		t.Errorf("the archive of a sparse file has %d bytes", archive.Len())
	}
	var again bytes.Buffer
	if _, err := Pack(&again, openTest(t, root), PackOptions{}); err != nil || !bytes.Equal(again.Bytes(), archive.Bytes()) {
		t.Errorf("the same tree gives another archive: %v", err)
	}
	if fi, err := os.Lstat(at("shut")); err != nil || fi.Mode().Perm() != 0 {
		t.Errorf("shut was left open: %v, %v", fi.Mode(), err)
	}

	out := t.TempDir()
	if _, err := Unpack(t.Context(), openTest(t, out), bytes.NewReader(archive.Bytes()), Options{Snapshot: true}); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(at("fifo")); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() != 0 { // to be able to look
		for _, dir := range []string{root, out} {
			os.Chmod(dir+"/shut", 0o700)
			os.Chmod(dir+"/unreadable", 0o600)
		}
	}
	if got, want := describe(t, out), describe(t, root); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	var st unix.Stat_t
	if err := unix.Lstat(out+"/sparse", &st); err != nil || st.Blocks*512 > 1<<20 {
		t.Errorf("the sparse file takes %d bytes: %v", st.Blocks*512, err)
	}
	if _, err := unix.Lgetxattr(out+"/d", "user.overlay.redirect", make([]byte, 10)); err != unix.ENODATA {
		t.Errorf("a mark of overlayfs that a user had set: %v", err)
	}
}

func TestPackUpper(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"gone", "d/gone"} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755), unix.Mknod(filepath.Join(root, name), unix.S_IFCHR, 0)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Setxattr(root+"/d", opaqueAttr, []byte("y"), 0); err != nil {
		t.Skip("attributes:", err)
	}
	var archive bytes.Buffer
	if _, err := Pack(&archive, openTest(t, root), PackOptions{Upper: true}); err != nil {
		t.Fatal(err)
	}
	out := t.TempDir()
	if _, err := Unpack(t.Context(), openTest(t, out), &archive, Options{Snapshot: true}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"gone", "d/gone"} {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(out, name), &st); err != nil || !isWhiteout(&st) {
			t.Errorf("%s: mode %o, %v", name, st.Mode, err)
		}
	}
	v := make([]byte, 4)
	if n, err := unix.Lgetxattr(out+"/d", opaqueAttr, v); err != nil || string(v[:n]) != "y" {
		t.Errorf("opaque %q, %v", v[:n], err)
	}
	archive.Reset()
	stats, err := Pack(&archive, openTest(t, root), PackOptions{})
	if err != nil || stats.Dropped != 2 {
		t.Errorf("not an upper directory: %+v, %v", stats, err)
	}
}

func TestPackDeep(t *testing.T) {
	root := t.TempDir()
	in, err := unix.Open(root, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range maxDepth + 10 {
		if err := unix.Mkdirat(in, "x", 0o755); err != nil {
			t.Fatal(err)
		}
		if in, err = into(in, "x"); err != nil {
			t.Fatal(err)
		}
	}
	unix.Close(in)
	var archive bytes.Buffer
	if _, err := Pack(&archive, openTest(t, root), PackOptions{}); err == nil {
		t.Error("accepted")
	}
	if _, err := Pack(&archive, openTest(t, root), PackOptions{Bytes: 1}); err == nil {
		t.Error("accepted")
	}
	if err := Remove(openTest(t, root), "x"); err != nil {
		t.Error(err)
	}
}

func FuzzSparse(f *testing.F) {
	f.Add("100 0 10 20 5", int64(15))
	f.Fuzz(func(t *testing.T, s string, total int64) {
		size, parts, err := decodeSparse(s, total)
		if err != nil {
			return
		}
		at, sum := int64(0), int64(0)
		for _, x := range parts {
			if x.offset < at || x.length < 0 || x.offset+x.length > size {
				t.Fatalf("%q: %v", s, parts)
			}
			at = x.offset + x.length
			sum += x.length
		}
		if sum != total {
			t.Fatalf("%q: %d bytes, want %d", s, sum, total)
		}
	})
}
