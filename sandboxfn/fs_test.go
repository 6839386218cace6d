package sandboxfn

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/fstest"
	"testing/iotest"
	"time"
)

func TestFiles(t *testing.T) {
	onEach(t, func(t *testing.T, sb *Sandbox) {
		ctx := t.Context()
		f, dir := sb.FS(ctx), workDir(t, sb)
		t.Run("every byte", func(t *testing.T) {
			data := []byte("\xef\xbb\xbfa\r\nb\rc\n\xc3\x28\xff")
			for i := range 256 {
				data = append(data, byte(i))
			}
			name := dir + "/bytes"
			must(t, f.WriteFile(name, data, 0o644))
			got, err := f.ReadFile(name)
			if err != nil || !bytes.Equal(got, data) {
				t.Errorf("got %d bytes, %v", len(got), err)
			}
			sum, err := sb.Command(ctx, "sha256sum", name).Output()
			if want := fmt.Sprintf("%x", sha256.Sum256(data)); err != nil || !strings.HasPrefix(string(sum), want) {
				t.Errorf("inside: %s, %v; want %s", sum, err, want)
			}
		})
		t.Run("empty", func(t *testing.T) {
			must(t, f.WriteFile(dir+"/empty", nil, 0))
			got, err := f.ReadFile(dir + "/empty")
			if err != nil || got == nil || len(got) != 0 {
				t.Errorf("got %v, %v", got, err)
			}
			must(t, f.MkdirAll(dir+"/emptydir", 0))
			list, err := f.ReadDir(dir + "/emptydir")
			if err != nil || list == nil || len(list) != 0 {
				t.Errorf("got %v, %v", list, err)
			}
		})
		t.Run("names", func(t *testing.T) {
			for _, name := range []string{"a b", "-rf", "ü€😀", `q"'\$x`, "new\nline", "a%2Fb", "a&b=c;d", "~", "...", "#?x"} {
				p := dir + "/names/" + name
				must(t, f.WriteFile(p, []byte(name), 0o600))
				if got, err := f.ReadFile(p); err != nil || string(got) != name {
					t.Errorf("%q: got %q, %v", name, got, err)
				}
				must(t, f.Chmod(p, 0o640))
				if i, err := f.Stat(p); err != nil || i.Mode() != 0o640 || i.Name() != name {
					t.Errorf("%q: got %v, %v", name, i, err)
				}
				must(t, f.Remove(p))
			}
		})
		t.Run("errors", func(t *testing.T) { testFileErrors(t, sb, f, dir) })
		t.Run("modes", func(t *testing.T) {
			for _, perm := range []fs.FileMode{0o644, 0o755, 0o600, 0o400, 0o444, 0o711, 0o666} {
				p := fmt.Sprintf("%s/mode%o", dir, perm)
				must(t, f.WriteFile(p, []byte("#!/bin/sh\necho ran\n"), perm))
				if i, err := f.Stat(p); err != nil || i.Mode() != perm {
					t.Errorf("%v: got %v, %v", perm, i.Mode(), err)
				}
				if perm == 0o755 {
					if out, err := sb.Command(ctx, p).Output(); string(out) != "ran\n" || err != nil {
						t.Errorf("got %q, %v", out, err)
					}
				}
			}
			me, err := sb.Command(ctx, "id", "-un").Output()
			must(t, err)
			i, err := f.Stat(dir + "/mode755")
			must(t, err)
			if got, want := i.Sys().(*FileStat).Owner, strings.TrimSpace(string(me)); got != want {
				t.Errorf("owner %q, want %q", got, want)
			}
			must(t, f.MkdirAll(dir+"/private/deep", 0o700))
			if i, err := f.Stat(dir + "/private/deep"); err != nil || i.Mode() != fs.ModeDir|0o700 {
				t.Errorf("got %v, %v", i, err)
			}
		})
		t.Run("links", func(t *testing.T) { testLinks(t, sb, f, dir+"/links") })
		t.Run("parents", func(t *testing.T) {
			must(t, f.WriteFile(dir+"/p/q/r/f", []byte("x"), 0))
			if i, err := f.Stat(dir + "/p/q"); err != nil || i.Mode() != fs.ModeDir|0o755 {
				t.Errorf("got %v, %v", i, err)
			}
			must(t, f.WriteFile(dir+"/plain", nil, 0))
			err := f.WriteFile(dir+"/plain/f", []byte("x"), 0)
			if !errors.Is(err, syscall.ENOTDIR) || !errors.Is(err, ErrFileKind) || errors.Is(err, fs.ErrNotExist) {
				t.Errorf("below a file: %v", err)
			}
		})
		t.Run("rename and remove", func(t *testing.T) {
			d := dir + "/mv"
			must(t, f.WriteFile(d+"/a", []byte("a"), 0))
			must(t, f.WriteFile(d+"/b", []byte("b"), 0))
			must(t, f.Rename(d+"/a", d+"/b"))
			if got, err := f.ReadFile(d + "/b"); string(got) != "a" || err != nil {
				t.Errorf("got %q, %v", got, err)
			}
			must(t, f.Rename(d+"/b", d+"/new/c"))
			if err := f.Remove(d); !errors.Is(err, syscall.ENOTEMPTY) {
				t.Errorf("remove: %v", err)
			}
			must(t, f.RemoveAll(d))
			must(t, f.RemoveAll(d))
			if there, err := f.Exists(d); there || err != nil {
				t.Errorf("got %v, %v", there, err)
			}
			for _, bad := range []string{"/", ".", "~", "..", dir + "/.."} {
				if bad == dir+"/.." {
					continue
				}
				if err := f.RemoveAll(bad); !errors.Is(err, syscall.EINVAL) {
					t.Errorf("RemoveAll(%q): %v", bad, err)
				}
			}
		})
		t.Run("times", func(t *testing.T) {
			must(t, f.WriteFile(dir+"/t", nil, 0))
			at := time.Unix(1700000000, 123456789)
			must(t, f.Chtimes(dir+"/t", time.Time{}, at))
			if i, err := f.Stat(dir + "/t"); err != nil || !i.ModTime().Equal(at) {
				t.Errorf("got %v, %v", i.ModTime(), err)
			}
			if err := f.Chtimes(dir+"/none", at, at); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("got %v", err)
			}
		})
	})
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func testFileErrors(t *testing.T, sb *Sandbox, f *FS, dir string) {
	must(t, f.WriteFile(dir+"/secret", []byte("x"), 0o200))
	must(t, f.WriteFile(dir+"/file", []byte("x"), 0))
	must(t, f.WriteFile(dir+"/locked/file", []byte("x"), 0))
	must(t, f.Chmod(dir+"/locked", 0o500))
	defer f.Chmod(dir+"/locked", 0o755)
	me, err := sb.Command(t.Context(), "id", "-u").Output()
	must(t, err)
	root := strings.TrimSpace(string(me)) == "0"
	read := func(p string) error { _, err := f.ReadFile(p); return err }
	readDir := func(p string) error { _, err := f.ReadDir(p); return err }
	write := func(p string) error { return f.WriteFile(p, []byte("y"), 0) }
	for _, c := range []struct {
		name   string
		err    error
		target error
		code   ErrorCode
		asUser bool // root may do it
	}{
		{"read missing", read(dir + "/none"), fs.ErrNotExist, "E4001", false},
		{"read unreadable", read(dir + "/secret"), fs.ErrPermission, "E4002", true},
		{"read a directory", read(dir), syscall.EISDIR, "E4003", false},
		{"read below a file", read(dir + "/file/x"), syscall.ENOTDIR, "E4003", false},
		{"list missing", readDir(dir + "/none"), fs.ErrNotExist, "E4001", false},
		{"list a file", readDir(dir + "/file"), syscall.ENOTDIR, "E4003", false},
		{"write a directory", write(dir), syscall.EISDIR, "E4003", false},
		{"write a locked directory", write(dir + "/locked/new"), fs.ErrPermission, "E4002", true},
		{"remove missing", f.Remove(dir + "/none"), fs.ErrNotExist, "E4001", false},
		{"remove from a locked directory", f.Remove(dir + "/locked/file"), fs.ErrPermission, "E4002", true},
		{"rename missing", f.Rename(dir+"/none", dir+"/x"), fs.ErrNotExist, "E4001", false},
		{"chmod missing", f.Chmod(dir+"/none", 0o644), fs.ErrNotExist, "E4001", false},
		{"mkdir over a file", f.MkdirAll(dir+"/file", 0), syscall.ENOTDIR, "E4003", false},
		{"name too long", read(dir + "/" + strings.Repeat("x", 300)), syscall.ENAMETOOLONG, "E4006", false},
		{"write a name too long", write(dir + "/" + strings.Repeat("x", 300)), syscall.ENAMETOOLONG, "E4006", false},
		{"empty", read(""), syscall.ENOENT, "E4006", false},
		{"NUL", read("a\x00b"), syscall.EINVAL, "E4006", false},
		{"not UTF-8", read("\xff"), syscall.EINVAL, "E4006", false},
		{"other home", read("~root/x"), syscall.EINVAL, "E4006", false},
		{"symlink over a file", f.Symlink("x", dir+"/file"), fs.ErrExist, "E4005", false},
		{"readlink of a file", func() error { _, err := f.Readlink(dir + "/file"); return err }(), syscall.EINVAL, "E4003", false},
	} {
		if c.asUser && root {
			continue
		}
		pe, ok := errors.AsType[*fs.PathError](c.err)
		if !ok || !errors.Is(c.err, c.target) || CodeOf(c.err) != c.code || !errors.Is(c.err, ErrFile) {
			t.Errorf("%s: got %v (%s), want %v (%s)", c.name, c.err, CodeOf(c.err), c.target, c.code)
			continue
		}
		if c.target != fs.ErrNotExist && c.target != syscall.ENOENT && errors.Is(c.err, fs.ErrNotExist) {
			t.Errorf("%s counts as missing: %v", c.name, c.err)
		}
		_ = pe
	}
	if there, err := f.Exists(dir + "/none"); there || err != nil {
		t.Errorf("Exists: %v, %v", there, err)
	}
	if there, err := f.Exists(dir + "/file"); !there || err != nil {
		t.Errorf("Exists: %v, %v", there, err)
	}
}

func testLinks(t *testing.T, sb *Sandbox, f *FS, dir string) {
	must(t, f.WriteFile(dir+"/target", []byte("content"), 0))
	must(t, f.MkdirAll(dir+"/sub/x", 0))
	for name, to := range map[string]string{"tofile": "target", "dangling": "nowhere", "self": "self", "todir": "sub"} {
		must(t, f.Symlink(to, dir+"/"+name))
		if got, err := f.Readlink(dir + "/" + name); got != to || err != nil {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
	}
	list, err := f.ReadDir(dir)
	must(t, err)
	var got []string
	for _, e := range list {
		got = append(got, fmt.Sprint(e.Name(), " ", e.Type()))
	}
	want := "[dangling L--------- self L--------- sub d--------- target ---------- todir L--------- tofile L---------]"
	if fmt.Sprint(got) != want {
		t.Errorf("got %v, want %s", got, want)
	}
	if i, err := f.Stat(dir + "/tofile"); err != nil || i.Mode() != 0o644 || i.Size() != 7 || i.Name() != "tofile" {
		t.Errorf("stat of a link: %v, %v", i, err)
	}
	if i, err := f.Lstat(dir + "/tofile"); err != nil || i.Mode().Type() != fs.ModeSymlink || i.Sys().(*FileStat).Target != path.Join(resolve(t, sb, dir), "target") {
		t.Errorf("lstat of a link: %v, %v", i, err)
	}
	if _, err := f.Stat(dir + "/dangling"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("stat of a dangling link: %v", err)
	}
	if there, err := f.Exists(dir + "/dangling"); !there || err != nil {
		t.Errorf("a dangling link exists: %v, %v", there, err)
	}
	seen := 0
	must(t, fs.WalkDir(f, dir, func(p string, d fs.DirEntry, err error) error {
		seen++
		return err
	}))
	if seen != 8 {
		t.Errorf("walked over %d entries", seen)
	}
	must(t, f.WriteFile(dir+"/tofile", []byte("new"), 0o600))
	if got, err := f.ReadFile(dir + "/target"); string(got) != "new" || err != nil {
		t.Errorf("write through a link: %q, %v", got, err)
	}
	if i, err := f.Lstat(dir + "/tofile"); err != nil || i.Mode().Type() != fs.ModeSymlink {
		t.Errorf("the link was replaced: %v, %v", i, err)
	}
	must(t, f.Remove(dir+"/todir"))
	must(t, f.RemoveAll(dir+"/tofile"))
	if there, _ := f.Exists(dir + "/sub/x"); !there {
		t.Error("removing a link removed what it leads to")
	}
}

func resolve(t *testing.T, sb *Sandbox, dir string) string {
	out, err := sb.Command(t.Context(), "realpath", dir).Output()
	must(t, err)
	return strings.TrimSpace(string(out))
}

// Relative paths mean the same to files and to commands.
func TestRelativePaths(t *testing.T) {
	sb := localSandbox(t)
	ctx := t.Context()
	f := sb.FS(ctx)
	must(t, f.WriteFile("f.txt", []byte("x"), 0))
	must(t, f.WriteFile("~/g.txt", []byte("y"), 0))
	must(t, f.WriteFile("./~/h.txt", []byte("z"), 0))
	out, err := sb.Shell(ctx, `cat f.txt ~/f.txt g.txt './~/h.txt'; cd ~; pwd`).Output()
	home, err2 := f.Stat("~")
	if err != nil || err2 != nil || string(out) != "xxyz"+home.Sys().(*FileStat).Path+"\n" {
		t.Errorf("got %q, %v, %v", out, err, err2)
	}
	for _, p := range []string{"d/../f.txt", "./f.txt", "~/./f.txt"} {
		if got, err := f.ReadFile(p); string(got) != "x" || err != nil {
			t.Errorf("%s: %q, %v", p, got, err)
		}
	}
}

// What tools of the sandbox do is done to the home too, not to a file called "~".
func TestTilde(t *testing.T) {
	sb := localSandbox(t)
	f := sb.FS(t.Context())
	must(t, f.MkdirAll("./~", 0))
	must(t, f.MkdirAll("~/d", 0))
	must(t, f.Remove("~/d"))
	must(t, f.MkdirAll("~/p", 0o700))
	must(t, f.WriteFile("~/g", []byte("x"), 0o600))
	must(t, f.Chtimes("~/g", time.Time{}, time.Unix(1600000000, 0)))
	must(t, f.Chmod("~/g", 0o640))
	must(t, f.Symlink("g", "~/l"))
	if got, err := f.Readlink("~/l"); got != "g" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	w, err := f.OpenFile("~/excl", os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_TRUNC, 0o600)
	must(t, err)
	must(t, w.Close())
	w, err = f.OpenFile("~/excl", os.O_WRONLY|os.O_APPEND, 0)
	must(t, err)
	_, err = w.Write([]byte("more"))
	must(t, errors.Join(err, w.Close()))
	out, err := sb.Shell(t.Context(), `stat -c '%n %a %Y' p g; stat -c '%n %a' excl; cat excl; ls -A ./~`).Output()
	if i, serr := f.Stat("p"); serr == nil {
		want := fmt.Sprintf("p 700 %d\ng 640 1600000000\nexcl 600\nmore", i.ModTime().Unix())
		if string(out) != want || err != nil {
			t.Errorf("got %q, %v, want %q", out, err, want)
		}
	} else {
		t.Error(serr)
	}
	if err := f.Remove("~"); err == nil {
		t.Error("the home was removed")
	}
	must(t, f.Remove("./~"))
	if there, err := f.Exists("~/../" + "g"); there || err != nil {
		t.Errorf("~/.. is the home: %v, %v", there, err)
	}
	if err := f.RemoveAll("~/.."); err == nil {
		t.Error("the parent of the home was removed")
	}
}

func TestOperands(t *testing.T) {
	for name, want := range map[string][2]string{
		"~": {"~", "."}, "~/": {"~", "."}, "~/x": {"~/x", "./x"}, "~/./x/../y/": {"~/y", "./y"}, "~/../x": {"~/../x", "./../x"},
		"~//x": {"~/x", "./x"}, "./~/x": {"./~/x", "./~/x"}, "-x": {"-x", "-x"}, "/~/x": {"/~/x", "/~/x"},
	} {
		p, err := (&Sandbox{}).FS(t.Context()).path("test", name)
		if got := [2]string{p, operand(p)}; got != want || err != nil {
			t.Errorf("%s: got %q, %v, want %q", name, got, err, want)
		}
	}
}

// The tree below a directory is an fs.FS by the book.
func TestRootIsFS(t *testing.T) {
	onEach(t, func(t *testing.T, sb *Sandbox) {
		f, dir := sb.FS(t.Context()), workDir(t, sb)
		names := []string{"a.txt", "dir/b", "dir/c/d", "empty", "ü x"}
		for _, n := range names {
			data := []byte(n)
			if n == "empty" {
				data = nil
			}
			must(t, f.WriteFile(dir+"/"+n, data, 0))
		}
		if err := fstest.TestFS(f.Root(dir), names...); err != nil {
			t.Error(err)
		}
		got, err := fs.Glob(f, dir+"/dir/*")
		if err != nil || fmt.Sprint(got) != fmt.Sprint([]string{dir + "/dir/b", dir + "/dir/c"}) {
			t.Errorf("got %v, %v", got, err)
		}
		if _, err := f.Root(dir).Open("../x"); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("got %v", err)
		}
	})
}

func TestOpenFile(t *testing.T) {
	onEach(t, func(t *testing.T, sb *Sandbox) {
		f, dir := sb.FS(t.Context()), workDir(t, sb)
		t.Run("read, seek and read at", func(t *testing.T) {
			data := make([]byte, 3_000)
			rand.NewChaCha8([32]byte{2}).Read(data)
			must(t, f.WriteFile(dir+"/r", data, 0))
			file, err := f.OpenFile(dir+"/r", os.O_RDONLY, 0)
			must(t, err)
			defer file.Close()
			if err := iotest.TestReader(file, data); err != nil {
				t.Error(err)
			}
			if _, err := file.Write([]byte("x")); err == nil {
				t.Error("wrote to a file open for reading")
			}
		})
		t.Run("create", func(t *testing.T) {
			must(t, f.WriteFile(dir+"/c", []byte("old"), 0))
			file, err := f.Create(dir + "/c")
			must(t, err)
			fmt.Fprint(file, "ne")
			fmt.Fprint(file, "w")
			if got, err := f.ReadFile(dir + "/c"); string(got) != "old" || err != nil {
				t.Errorf("before close: %q, %v", got, err)
			}
			must(t, file.Close())
			if got, err := f.ReadFile(dir + "/c"); string(got) != "new" || err != nil {
				t.Errorf("after close: %q, %v", got, err)
			}
			if err := file.Close(); !errors.Is(err, fs.ErrClosed) {
				t.Errorf("second close: %v", err)
			}
			if _, err := file.Write(nil); !errors.Is(err, fs.ErrClosed) {
				t.Errorf("write after close: %v", err)
			}
		})
		t.Run("given up", func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			for _, flag := range []int{os.O_WRONLY | os.O_CREATE | os.O_TRUNC, os.O_WRONLY | os.O_CREATE | os.O_APPEND} {
				file, err := sb.FS(ctx).OpenFile(fmt.Sprint(dir, "/given-up", flag), flag, 0)
				must(t, err)
				fmt.Fprint(file, "part")
				defer func() {
					if err := file.Close(); !errors.Is(err, context.Canceled) {
						t.Errorf("close: %v", err)
					}
				}()
			}
			cancel() // nothing waits for the Close that never comes
		})
		t.Run("exclusive", func(t *testing.T) {
			flag := os.O_WRONLY | os.O_CREATE | os.O_EXCL | os.O_TRUNC
			file, err := f.OpenFile(dir+"/sub/e", flag, 0o600)
			must(t, err)
			fmt.Fprint(file, "x")
			must(t, file.Close())
			if i, err := f.Stat(dir + "/sub/e"); err != nil || i.Mode() != 0o600 || i.Size() != 1 {
				t.Errorf("got %v, %v", i, err)
			}
			if _, err := f.OpenFile(dir+"/sub/e", flag, 0o600); !errors.Is(err, fs.ErrExist) {
				t.Errorf("got %v", err)
			}
		})
		t.Run("append", func(t *testing.T) {
			for _, s := range []string{"one\n", "two\n"} {
				file, err := f.OpenFile(dir+"/log", os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o640)
				must(t, err)
				fmt.Fprint(file, s)
				must(t, file.Close())
			}
			if got, err := f.ReadFile(dir + "/log"); string(got) != "one\ntwo\n" || err != nil {
				t.Errorf("got %q, %v", got, err)
			}
			if i, err := f.Stat(dir + "/log"); err != nil || i.Mode() != 0o640 {
				t.Errorf("got %v, %v", i, err)
			}
			for p, want := range map[string]error{dir + "/none": fs.ErrNotExist, dir: syscall.EISDIR} {
				if _, err := f.OpenFile(p, os.O_WRONLY|os.O_APPEND, 0); !errors.Is(err, want) {
					t.Errorf("append to %s: %v", p, err)
				}
			}
		})
		t.Run("refused", func(t *testing.T) {
			for _, flag := range []int{os.O_RDWR, os.O_WRONLY, os.O_WRONLY | os.O_CREATE, os.O_RDWR | os.O_CREATE | os.O_TRUNC} {
				if _, err := f.OpenFile(dir+"/r", flag, 0); !errors.Is(err, ErrNotSupported) {
					t.Errorf("flag %#x: %v", flag, err)
				}
			}
			if _, err := f.OpenFile(dir+"/none", os.O_WRONLY|os.O_TRUNC, 0); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("got %v", err)
			}
			if _, err := f.Create(dir); !errors.Is(err, syscall.EISDIR) {
				t.Errorf("got %v", err)
			}
		})
	})
}

func TestParallelWrites(t *testing.T) {
	onEach(t, func(t *testing.T, sb *Sandbox) {
		f, dir := sb.FS(t.Context()), workDir(t, sb)
		var wg sync.WaitGroup
		for i := range 64 {
			wg.Go(func() {
				if err := f.WriteFile(fmt.Sprintf("%s/new/dir/%d", dir, i), []byte{byte(i)}, 0); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if list, err := f.ReadDir(dir + "/new/dir"); len(list) != 64 || err != nil {
			t.Errorf("got %d, %v", len(list), err)
		}
		for i := range 16 {
			wg.Go(func() {
				perm := fs.FileMode(0o644)
				if i%2 == 0 {
					perm = 0o600
				}
				if err := f.WriteFile(dir+"/one", bytes.Repeat([]byte{byte('a' + i)}, 100_000+i), perm); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		got, err := f.ReadFile(dir + "/one")
		must(t, err)
		if want := bytes.Repeat(got[:1], 100_000+int(got[0]-'a')); !bytes.Equal(got, want) {
			t.Errorf("%d bytes of several writers", len(got))
		}
		if list, err := f.ReadDir(dir); len(list) != 2 || err != nil {
			t.Errorf("left over: %v, %v", list, err)
		}
	})
}

func TestBigDirectory(t *testing.T) {
	onEachWith(t, &CreateOptions{Disk: 1 * GiB}, func(t *testing.T, sb *Sandbox) {
		n := 50_000
		if testing.Short() {
			n = 5_000
		}
		f, dir := sb.FS(t.Context()), workDir(t, sb)
		if err := sb.Shell(t.Context(), fmt.Sprintf("cd %s && seq 1 %d | xargs touch", dir, n)).Run(); err != nil {
			e, _ := errors.AsType[*ExitError](err)
			t.Fatalf("%v: %s", err, e.Stderr)
		}
		start := time.Now()
		list, err := f.ReadDir(dir)
		if d := time.Since(start); err != nil || len(list) != n || d > 20*time.Second { // 2 s on a quiet machine, without the race detector
			t.Errorf("got %d in %v, %v", len(list), d, err)
		}
		for i := 1; i < len(list); i++ {
			if list[i-1].Name() >= list[i].Name() {
				t.Fatalf("%s before %s", list[i-1].Name(), list[i].Name())
			}
		}
	})
}

// A big file is never held as a whole, and a part of it costs what it is.
func TestBigFile(t *testing.T) {
	sb := hostSandbox(t)
	f, dir := sb.FS(t.Context()), workDir(t, sb)
	size := int64(512 << 20)
	if testing.Short() {
		size = 64 << 20
	}
	var peak uint64
	stop := sampleHeap(&peak)
	file, err := f.Create(dir + "/big")
	must(t, err)
	if _, err := io.CopyN(file, zeros{}, size); err != nil {
		t.Fatal(err)
	}
	must(t, file.Close())
	got, err := f.Open(dir + "/big")
	must(t, err)
	defer got.Close()
	n, err := io.Copy(io.Discard, got)
	if n != size || err != nil {
		t.Errorf("read %d, %v", n, err)
	}
	part := make([]byte, 1<<20)
	start := time.Now()
	if n, err := got.(*FSFile).ReadAt(part, size-1<<20); n != 1<<20 || err != nil && err != io.EOF {
		t.Errorf("read at: %d, %v", n, err)
	}
	if d := time.Since(start); d > 10*time.Second {
		t.Errorf("1 MiB from the end took %v", d)
	}
	stop()
	if peak > 64<<20 { // client and runtime share this process
		t.Errorf("heap grew by %d MiB", peak>>20)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// sampleHeap measures how much the heap grows until stop.
func sampleHeap(peak *uint64) (stop func()) {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	base := m.HeapAlloc
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			runtime.ReadMemStats(&m)
			if m.HeapAlloc > base {
				*peak = max(*peak, m.HeapAlloc-base)
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
	return func() { cancel(); wg.Wait() }
}

// Memory does not grow with output that nobody keeps.
func TestOutputMemory(t *testing.T) {
	sb := hostSandbox(t)
	mib := 256
	if testing.Short() {
		mib = 64
	}
	var peak uint64
	stop := sampleHeap(&peak)
	cmd := sb.Shell(t.Context(), fmt.Sprintf("head -c %d /dev/zero", mib<<20))
	cmd.MaxOutput = 1 << 20
	out, err := cmd.Output()
	stop()
	if err != nil || len(out) > 1<<20+100 || peak > 32<<20 {
		t.Errorf("%d bytes, %v, heap grew by %d MiB", len(out), err, peak>>20)
	}
}
