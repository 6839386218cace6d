package templates

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// into extracts an archive into an empty folder and returns what is there.
func into(t testing.TB, data []byte) (files, links string, err error) {
	t.Helper()
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	l, err := extract(root, bytes.NewReader(data))
	walk := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if !d.Type().IsRegular() {
			return fmt.Errorf("%s is no file", name)
		}
		text, err := os.ReadFile(name)
		info, _ := d.Info()
		files += fmt.Sprintf("%s=%.9s %v,", strings.TrimPrefix(name, dir+"/"), text, info.Mode())
		return err
	})
	if walk != nil {
		t.Fatal(walk)
	}
	return files, strings.Join(l, ","), err
}

func TestExtract(t *testing.T) {
	good := tarOf(t, tar.Header{Name: "./a/b.txt", Uname: "one"}, tar.Header{Name: "run.sh", Mode: 0o4777, Uname: "two"}, tar.Header{Name: "link", Typeflag: tar.TypeSymlink, Linkname: "/etc"},
		tar.Header{Name: "link/x", Uname: "3"}, tar.Header{Name: "hard", Typeflag: tar.TypeLink, Linkname: "run.sh"}, tar.Header{Name: "..x", Uname: "4"})
	plain, err := gzip.NewReader(bytes.NewReader(good))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := io.ReadAll(plain)
	if err != nil {
		t.Fatal(err)
	}
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{"gzip": good, "plain": raw, "zstd": z.EncodeAll(raw, nil)} {
		files, links, err := into(t, data)
		if want := "..x=4 -rw-r--r--,a/b.txt=one -rw-r--r--,link/x=3 -rw-r--r--,run.sh=two -rwxr-xr-x,"; files != want || links != "link,hard" || err != nil {
			t.Errorf("%s: %s, links %s, %v", name, files, links, err)
		}
	}
}

func TestExtractHostile(t *testing.T) {
	members, bytesAll, member := maxMembers, maxArchive, maxMember
	maxMembers, maxArchive, maxMember = 10, 1<<20, 1<<18
	t.Cleanup(func() { maxMembers, maxArchive, maxMember = members, bytesAll, member })
	many := make([]tar.Header, 11)
	for i := range many {
		many[i] = tar.Header{Name: fmt.Sprint(i)}
	}
	folders := make([]tar.Header, 11)
	for i := range folders {
		folders[i] = tar.Header{Name: fmt.Sprint(i, "/"), Typeflag: tar.TypeDir}
	}
	// Packed it is small, and nothing in it counts as a member.
	globals := make([]tar.Header, 2000)
	for i := range globals {
		globals[i] = tar.Header{Typeflag: tar.TypeXGlobalHeader, Name: "g", PAXRecords: map[string]string{"comment": strings.Repeat("x", 1000)}}
	}
	for name, data := range map[string][]byte{
		"above":         tarOf(t, tar.Header{Name: "../x", Uname: "x"}),
		"above within":  tarOf(t, tar.Header{Name: "a/../../x", Uname: "x"}),
		"absolute":      tarOf(t, tar.Header{Name: "/etc/x", Uname: "x"}),
		"backslash":     tarOf(t, tar.Header{Name: `..\x`, Uname: "x"}),
		"device":        tarOf(t, tar.Header{Name: "x", Typeflag: tar.TypeChar}),
		"block device":  tarOf(t, tar.Header{Name: "x", Typeflag: tar.TypeBlock}),
		"pipe":          tarOf(t, tar.Header{Name: "x", Typeflag: tar.TypeFifo}),
		"twice":         tarOf(t, tar.Header{Name: "x", Uname: "1"}, tar.Header{Name: "./x", Uname: "2"}),
		"file a folder": tarOf(t, tar.Header{Name: "x", Uname: "1"}, tar.Header{Name: "x/y", Uname: "2"}),
		"folder a file": tarOf(t, tar.Header{Name: "x/y", Uname: "1"}, tar.Header{Name: "x", Uname: "2"}),
		"root a file":   tarOf(t, tar.Header{Name: ".", Uname: "1"}),
		"deep":          tarOf(t, tar.Header{Name: strings.Repeat("a/", 70) + "x", Uname: "1"}),
		"large":         tarOf(t, tar.Header{Name: "x", Uname: strings.Repeat("x", 1<<18+1)}),
		"large in all":  tarOf(t, bigOnes(5)...),
		"many":          tarOf(t, many...),
		"many folders":  tarOf(t, folders...),
		"bomb":          tarOf(t, globals...),
	} {
		if files, _, err := into(t, data); !errors.Is(err, errHostile) {
			t.Errorf("%s: %v, files %s", name, err, files)
		}
	}
	for name, data := range map[string][]byte{"not an archive": []byte(strings.Repeat("hello", 200)), "cut": tarOf(t, tar.Header{Name: "x", Uname: "1"})[:40]} {
		if _, _, err := into(t, data); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func bigOnes(n int) []tar.Header {
	out := make([]tar.Header, n)
	for i := range out {
		out[i] = tar.Header{Name: fmt.Sprint(i), Uname: strings.Repeat("x", 1<<18-1)}
	}
	return out
}

// Whatever the archive, only regular files appear, and only in the folder.
func FuzzExtract(f *testing.F) {
	f.Add(tarOf(f, tar.Header{Name: "top/a", Uname: "x"}, tar.Header{Name: "top/.top/b", Uname: "y"}))
	f.Add(tarOf(f, tar.Header{Name: "../x", Uname: "x"}))
	f.Add([]byte("x"))
	members, bytesAll, member := maxMembers, maxArchive, maxMember
	maxMembers, maxArchive, maxMember = 20, 1<<20, 1<<18
	f.Cleanup(func() { maxMembers, maxArchive, maxMember = members, bytesAll, member })
	f.Fuzz(func(t *testing.T, data []byte) {
		outer := t.TempDir()
		dir := filepath.Join(outer, "in")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		root, err := os.OpenRoot(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		_, err = unpack(bytes.NewReader(data), root)
		if beside, _ := os.ReadDir(outer); len(beside) != 1 {
			t.Fatalf("it left the folder: %v", beside)
		}
		if _, size, bad := treeDigest(os.DirFS(dir)); err == nil && (bad != nil || size > maxArchive) {
			t.Fatalf("%d bytes, %v", size, bad)
		}
	})
}
