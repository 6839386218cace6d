package sandboxtest_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/sandboxtest"
)

// What a call writes to a link that leads to nothing yet is where it leads.
func TestPathsThroughDanglingLinks(t *testing.T) {
	ctx, dir := sandboxtest.InProcess(t), t.TempDir()
	src := write(t, filepath.Join(dir, "src"), "x", 0o600)
	os.Mkdir(filepath.Join(dir, "real"), 0o755)
	for link, target := range map[string]string{
		"abs": filepath.Join(dir, "real", "a"), "rel": "real/b", "twice": "rel2", "rel2": "./real/../real/c", "none": "missing/d", "self": "self",
	} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	for link, real := range map[string]string{"abs": "a", "rel": "b", "twice": "c"} {
		_, err := convertFunc.Call(ctx, convertArgs{Src: src, Dst: filepath.Join(dir, link)})
		if err != nil || read(t, filepath.Join(dir, "real", real)) != "X" {
			t.Errorf("%s: %v", link, err)
		}
		if info, err := os.Lstat(filepath.Join(dir, link)); err != nil || info.Mode()&fs.ModeSymlink == 0 {
			t.Errorf("%s was replaced: %v, %v", link, info, err)
		}
	}
	for link, want := range map[string]error{"none": sandboxfn.ErrPathNotFound, "self": sandboxfn.ErrFile} {
		if _, err := convertFunc.Call(ctx, convertArgs{Src: src, Dst: filepath.Join(dir, link)}); !errors.Is(err, want) {
			t.Errorf("%s: %v", link, err)
		}
	}
}

// What is there keeps its mode, as it does when a plain call writes to it.
func TestPathsKeepMode(t *testing.T) {
	ctx, dir := sandboxtest.InProcess(t), t.TempDir()
	src := write(t, filepath.Join(dir, "src"), "x", 0o644)
	dst := write(t, filepath.Join(dir, "dst"), "secret", 0o600)
	if _, err := convertFunc.Call(ctx, convertArgs{Src: src, Dst: dst}); err != nil || read(t, dst) != "X" {
		t.Fatal(err)
	}
	if info, _ := os.Stat(dst); info.Mode() != 0o600 {
		t.Errorf("a file of mode 0600 has %v", info.Mode())
	}
	tree := filepath.Join(dir, "tree")
	os.Mkdir(tree, 0o700)
	if _, err := convertFunc.Call(ctx, convertArgs{src, tree, "dir"}); err != nil {
		t.Fatal(err)
	}
	if info, _ := os.Stat(tree); info.Mode().Perm() != 0o700 {
		t.Errorf("a directory of mode 0700 has %v", info.Mode())
	}
	if info, err := os.Stat(filepath.Join(tree, "sub")); err != nil || info.Mode().Perm() != 0o750 {
		t.Errorf("within it: %v, %v", info, err)
	}
}

// Each output is put into its place as a whole, so none can be in another.
func TestPathsWithinEachOther(t *testing.T) {
	ctx, dir := sandboxtest.InProcess(t), t.TempDir()
	a := filepath.Join(dir, "a")
	os.MkdirAll(filepath.Join(a, "b"), 0o755)
	os.Symlink("a", filepath.Join(dir, "link"))
	for _, dsts := range [][]string{
		{a, filepath.Join(a, "log")},
		{filepath.Join(a, "b", "log"), a},
		{filepath.Join(dir, "link", "log"), filepath.Join(dir, "x"), a},
	} {
		_, err := listFunc.Call(ctx, listArgs{Dsts: dsts})
		if !errors.Is(err, sandboxfn.ErrFileKind) || !strings.Contains(err.Error(), "log") || !strings.Contains(err.Error(), a+",") {
			t.Errorf("%q: %v", dsts, err)
		}
	}
	if _, err := listFunc.Call(ctx, listArgs{Dsts: []string{filepath.Join(a, "x"), filepath.Join(a, "xy"), filepath.Join(dir, "ab")}}); err != nil {
		t.Error(err)
	}
}

// A file of bytes has the name of a file, or can't be used.
func TestFromBytesNames(t *testing.T) {
	ctx := sandboxtest.InProcess(t)
	for name, want := range map[string]string{"": "", "..": "", ".": "", "a/..": "", "/": "", "a\x00": "", strings.Repeat("n", 256): "", "a/b": "b", "a/": "a"} {
		f := sandboxfn.FromBytes(name, []byte("x"))
		if want != "" {
			if f.Name() != want {
				t.Errorf("%q is %q", name, f.Name())
			}
			continue
		}
		_, err := f.Open()
		_, bad := filesFunc.Call(ctx, fileArgs{File: f})
		for _, err := range []error{err, bad} {
			if !errors.Is(err, sandboxfn.ErrFile) || !strings.Contains(err.Error(), "E4006") {
				t.Errorf("%q: %v", name, err)
			}
		}
		if f.Path() != "" {
			t.Errorf("%q is at %s", name, f.Path())
		}
	}
}

// The end of the context ends a call that reads the files it sends.
func TestFilesAreReadNoLongerThanTheCall(t *testing.T) {
	path := filepath.Join(t.TempDir(), "big")
	if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, 64<<30)); err != nil {
		t.Skip(err)
	}
	file, err := sandboxfn.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := sandboxfn.OpenDir(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	for name, call := range map[string]func(context.Context) error{
		"path": func(ctx context.Context) error {
			_, err := convertFunc.Call(ctx, convertArgs{Src: path, Dst: path + ".out"})
			return err
		},
		"tree": func(ctx context.Context) error {
			_, err := convertFunc.Call(ctx, convertArgs{Src: filepath.Dir(path), Dst: path + ".out"})
			return err
		},
		"File": func(ctx context.Context) error { _, err := filesFunc.Call(ctx, fileArgs{File: file}); return err },
		"Dir":  func(ctx context.Context) error { _, err := filesFunc.Call(ctx, fileArgs{Dir: dir}); return err },
	} {
		ctx, cancel := context.WithTimeout(sandboxtest.InProcess(t), 50*time.Millisecond)
		begin := time.Now()
		err := call(ctx)
		cancel()
		if took := time.Since(begin); took > 10*time.Second {
			t.Errorf("%s: it took %v", name, took)
		}
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, sandboxfn.ErrTimeout) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The results of one call are readable on their own.
func TestFilesOfOneResult(t *testing.T) {
	ctx := sandboxtest.InProcess(t)
	r, err := filesFunc.Call(ctx, fileArgs{
		File: sandboxfn.FromBytes("f", []byte("first")),
		More: map[string]sandboxfn.File{"a": sandboxfn.FromBytes("a", []byte("second")), "b": sandboxfn.FromBytes("b", nil)},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.File.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.File.Open(); err == nil {
		t.Error("a closed file can be read")
	}
	for i, want := range []string{"second", ""} {
		f, err := r.List[i].Open()
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(f); string(b) != want || err != nil {
			t.Errorf("%q, %v, want %q", b, err, want)
		}
		if err := errors.Join(f.Close(), r.List[i].Close()); err != nil {
			t.Error(err)
		}
	}
}
