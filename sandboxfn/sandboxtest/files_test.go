package sandboxtest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/sandboxtest"
)

// What the generator makes of
//
//	//sandbox:func in=src out=dst
//	func convert(ctx context.Context, src, dst, how string) (string, error)
type convertArgs struct{ Src, Dst, How string }

var convertFunc = declareDecl(sandboxfn.Decl{Name: "convert", Params: []sandboxfn.Param{
	{Name: "src", Type: "string", In: true}, {Name: "dst", Type: "string", Out: true}, {Name: "how", Type: "string"},
}}, func(ctx context.Context, a convertArgs) (string, error) { return convert(ctx, a.Src, a.Dst, a.How) })

// convert writes src in capitals to dst, and returns what it sees of them.
func convert(ctx context.Context, src, dst, how string) (string, error) {
	switch how {
	case "nothing":
		return src, nil
	case "dir":
		return src, os.MkdirAll(filepath.Join(dst, "sub"), 0o750)
	case "tree":
		return src, exec.CommandContext(ctx, "cp", "-a", src, dst).Run()
	case "escape":
		return src, errors.Join(os.Mkdir(dst, 0o755), os.Symlink("../../../etc/passwd", filepath.Join(dst, "link")))
	case "socket":
		return src, errors.Join(os.Mkdir(dst, 0o755), syscall.Mkfifo(filepath.Join(dst, "fifo"), 0o600))
	case "look":
		_, err := os.Stat(src)
		return fmt.Sprint(errors.Is(err, fs.ErrNotExist)), nil
	case "wait":
		os.WriteFile(dst, []byte("half"), 0o600)
		<-ctx.Done()
		return "", ctx.Err()
	}
	b, err := os.ReadFile(src)
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(dst, bytes.ToUpper(b), 0o640); err != nil {
		return "", err
	}
	os.Chtimes(dst, time.Time{}, time.Unix(1e9, 5e8))
	switch how {
	case "fail":
		return "", fmt.Errorf("convert: %w", errEmpty)
	case "panic":
		panic("boom")
	case "exit":
		os.Exit(3)
	}
	info, err := os.Stat(src)
	if err != nil {
		return "", err
	}
	os.WriteFile(src, []byte("scribbled"), 0o600) // of the caller's file nothing changes
	return fmt.Sprint(src, " ", info.Mode(), " ", info.ModTime().Unix()), nil
}

type listArgs struct {
	Srcs  []string
	Dsts  []string
	Both  string
	Index *index
}

// index is data with paths in it.
type index struct {
	Title string
	File  string   `sandbox:"file"`
	Files []string `sandbox:"file"`
	Dir   string   `sandbox:"dir"`
	Out   string   `sandbox:"file,out"`
	Tree  string   `sandbox:"dir,out"`
}

var listFunc = declareDecl(sandboxfn.Decl{Name: "list", Params: []sandboxfn.Param{
	{Name: "srcs", In: true}, {Name: "dsts", Out: true}, {Name: "both", In: true, Out: true}, {Name: "index"},
}}, func(_ context.Context, a listArgs) (string, error) {
	var words []string
	folders := map[string]bool{}
	for _, p := range append(a.Srcs, a.Both) {
		if p == "" {
			continue
		}
		b, err := os.ReadFile(p)
		if err != nil {
			return "", err
		}
		words = append(words, filepath.Base(p)+"="+string(b))
		folders[filepath.Dir(p)] = true
	}
	for i, p := range a.Dsts {
		if err := os.WriteFile(p, []byte(fmt.Sprint("out ", i)), 0o600); err != nil {
			return "", err
		}
	}
	if a.Both != "" {
		f, err := os.OpenFile(a.Both, os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			return "", err
		}
		fmt.Fprint(f, " and more")
		f.Close()
	}
	if x := a.Index; x != nil {
		for _, p := range append([]string{x.File}, x.Files...) {
			b, err := os.ReadFile(p)
			if err != nil {
				return "", err
			}
			words = append(words, "tag:"+string(b))
		}
		if err := errors.Join(os.WriteFile(x.Out, []byte("tagged"), 0o600), os.CopyFS(x.Tree, os.DirFS(x.Dir))); err != nil {
			return "", err
		}
	}
	words = append(words, fmt.Sprint(len(folders), " folders"))
	return strings.Join(words, ", "), nil
})

type fileArgs struct {
	How  string
	File sandboxfn.File
	Dir  sandboxfn.Dir
	More map[string]sandboxfn.File
}

type fileResult struct {
	Text string
	File sandboxfn.File
	Dir  sandboxfn.Dir
	List []sandboxfn.File
}

var filesFunc = declareDecl(sandboxfn.Decl{Name: "files", Params: []sandboxfn.Param{{Name: "how"}, {Name: "file"}, {Name: "dir"}, {Name: "more"}}},
	func(_ context.Context, a fileArgs) (r fileResult, err error) {
		switch a.How {
		case "big":
			r.Text, err = a.File.SHA256()
			r.File = a.File
			return r, err
		case "heap":
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			r.Text = fmt.Sprint(m.HeapSys)
			return r, nil
		}
		b, err := os.ReadFile(a.File.Path())
		if err != nil {
			return r, err
		}
		r.Text = fmt.Sprint(a.File.Name(), " ", a.File.Size(), " ", string(b), " ", len(a.More))
		r.File = sandboxfn.FromBytes("x/made.txt", bytes.ToUpper(b))
		for _, name := range []string{"a", "b"} {
			r.List = append(r.List, a.More[name])
		}
		if a.Dir.Path() != "" {
			err = os.WriteFile(filepath.Join(a.Dir.Path(), "new.txt"), []byte("new"), 0o600)
			r.Dir = a.Dir
		}
		return r, err
	})

type rereadArgs struct{ Src, Note string }

var rereadFunc = declareDecl(sandboxfn.Decl{
	Name: "reread", Params: []sandboxfn.Param{{Name: "src", In: true}, {Name: "note"}},
	Options: sandboxfn.Options{Idempotent: true, Backoff: sandboxfn.Backoff{First: time.Millisecond, Max: time.Millisecond, Factor: 1}},
}, func(_ context.Context, a rereadArgs) (string, error) {
	b, err := os.ReadFile(a.Src)
	if _, bad := os.Stat(a.Note); bad != nil { // the first time
		os.WriteFile(a.Note, nil, 0o600)
		os.Exit(3)
	}
	return string(b), err
})

// Files and objects go with calls as JSON, too.
func TestFilesAndObjectsAsJSON(t *testing.T) {
	ctx, dir := sandboxtest.InProcess(t), t.TempDir()
	o := sandboxfn.Options{Codec: sandboxfn.CodecJSON}
	src, dst := write(t, filepath.Join(dir, "src"), "text", 0o600), filepath.Join(dir, "dst")
	if _, err := convertFunc.With(o).Call(ctx, convertArgs{Src: src, Dst: dst}); err != nil || read(t, dst) != "TEXT" {
		t.Error(err)
	}
	r, err := filesFunc.With(o).Call(ctx, fileArgs{File: sandboxfn.FromBytes("f", []byte("x"))})
	if err != nil || read(t, r.File.Path()) != "X" {
		t.Error(err)
	}
	if got, err := NewCounter(CounterParams{Name: "a"}, &o).Add(ctx, 2); got != 14 || err != nil {
		t.Errorf("got %d, %v", got, err)
	}
}

// A call that is made again has its files again.
func TestFilesOfAnotherAttempt(t *testing.T) {
	dir := t.TempDir()
	text := strings.Repeat("text", 1<<20)
	src := write(t, filepath.Join(dir, "src"), text, 0o600)
	got, err := rereadFunc.Call(sandboxtest.Process(t), rereadArgs{src, filepath.Join(dir, "note")})
	if err != nil || got != text {
		t.Errorf("got %d bytes, %v", len(got), err)
	}
}

var bothModes = map[string]func(testing.TB) context.Context{"in process": sandboxtest.InProcess, "process": sandboxtest.Process}

func write(t *testing.T, path, text string, mode fs.FileMode) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Chmod(path, mode), os.Chtimes(path, time.Time{}, time.Unix(1e9, 0))); err != nil {
		t.Fatal(err)
	}
	return path
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
	}
	return string(b)
}

// left are the names in dir, which show what was left behind.
func left(t *testing.T, dir string) string {
	t.Helper()
	es, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range es {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

func TestPaths(t *testing.T) {
	for name, mode := range bothModes {
		t.Run(name, func(t *testing.T) {
			tmp := t.TempDir()
			t.Setenv("TMPDIR", tmp)
			t.Run("calls", func(t *testing.T) { testPaths(t, mode(t), name) })
			if got := left(t, tmp); got != "" {
				t.Errorf("left behind in TMPDIR: %s", got)
			}
		})
	}
}

func testPaths(t *testing.T, ctx context.Context, name string) {
	dir := t.TempDir()
	src, dst := write(t, filepath.Join(dir, "src.txt"), "text", 0o740), filepath.Join(dir, "dst.txt")
	got, err := convertFunc.Call(ctx, convertArgs{Src: src, Dst: dst})
	if err != nil || !strings.HasSuffix(got, "/src.txt -rwxr----- 1000000000") || strings.Contains(got, dir) {
		t.Errorf("the function saw %q, %v", got, err)
	}
	info, err := os.Stat(dst)
	if err != nil || info.Mode() != 0o640 || !info.ModTime().Equal(time.Unix(1e9, 5e8)) || read(t, dst) != "TEXT" {
		t.Errorf("dst: %v, %v", info, err)
	}
	if read(t, src) != "text" {
		t.Error("the function has changed the caller's file")
	}
	// The folder of the call is gone, whatever came of it.
	path, _, _ := strings.Cut(got, " ")
	if got, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder of the call is still there: %v, %v", got, err)
	}
	for how, is := range map[string]error{"fail": errEmpty, "panic": sandboxfn.ErrPanic, "exit": sandboxfn.ErrWorkerLost, "wait": context.DeadlineExceeded, "escape": sandboxfn.ErrFileKind, "socket": sandboxfn.ErrFileKind} {
		if how == "exit" && name == "in process" {
			continue
		}
		f := convertFunc
		if how == "wait" {
			f = f.With(sandboxfn.Options{Timeout: 50 * time.Millisecond})
		}
		if _, err := f.Call(ctx, convertArgs{src, dst, how}); !errors.Is(err, is) {
			t.Errorf("%s: %v", how, err)
		}
		if read(t, dst) != "TEXT" {
			t.Errorf("%s has changed dst", how)
		}
	}
	if _, err := convertFunc.Call(ctx, convertArgs{src, dst, "nothing"}); err != nil || read(t, dst) != "TEXT" {
		t.Errorf("a function that writes nothing: %v", err)
	}
	if got := left(t, dir); got != "dst.txt src.txt" {
		t.Errorf("left behind: %s", got)
	}
}

func TestPathsAreChecked(t *testing.T) {
	ctx, dir := sandboxtest.InProcess(t), t.TempDir()
	src := write(t, filepath.Join(dir, "src"), "x", 0o600)
	for name, c := range map[string]struct {
		args convertArgs
		want error
	}{
		"no source":      {convertArgs{Src: filepath.Join(dir, "none"), Dst: filepath.Join(dir, "dst")}, sandboxfn.ErrPathNotFound},
		"no directory":   {convertArgs{Src: src, Dst: filepath.Join(dir, "none", "dst")}, sandboxfn.ErrPathNotFound},
		"file, not dir":  {convertArgs{Src: src, Dst: filepath.Join(src, "dst")}, sandboxfn.ErrFile},
		"a device":       {convertArgs{Src: "/dev/null", Dst: filepath.Join(dir, "dst")}, sandboxfn.ErrFileKind},
		"file over dir":  {convertArgs{Src: src, Dst: dir}, sandboxfn.ErrFileKind},
		"dir over file":  {convertArgs{Src: src, Dst: src, How: "dir"}, sandboxfn.ErrFileKind},
		"nothing, fine":  {convertArgs{How: "look"}, nil},
		"a link through": {convertArgs{Src: src, Dst: filepath.Join(dir, "link")}, nil},
	} {
		os.Remove(filepath.Join(dir, "link"))
		if err := os.Symlink(write(t, filepath.Join(dir, "real"), "old", 0o600), filepath.Join(dir, "link")); err != nil {
			t.Fatal(err)
		}
		_, err := convertFunc.Call(ctx, c.args)
		if c.want == nil && err != nil || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if c.args.Dst == filepath.Join(dir, "link") && read(t, filepath.Join(dir, "real")) != "X" {
			t.Error("the link was replaced, not written through")
		}
	}
}

func TestPathsOfTrees(t *testing.T) {
	for name, mode := range bothModes {
		t.Run(name, func(t *testing.T) {
			ctx, dir := mode(t), t.TempDir()
			src, dst := filepath.Join(dir, "src"), filepath.Join(dir, "dst")
			makeTree(t, src)
			for range 2 { // the second time it replaces the first
				if _, err := convertFunc.Call(ctx, convertArgs{src, dst, "tree"}); err != nil {
					t.Fatal(err)
				}
				checkTree(t, dst)
				os.WriteFile(filepath.Join(dst, "stale"), nil, 0o600)
			}
			if _, err := convertFunc.Call(ctx, convertArgs{src, dst, "fail"}); err == nil {
				t.Error("a directory was read as a file")
			}
			os.Remove(filepath.Join(dst, "stale"))
			checkTree(t, dst)
			if got := left(t, dir); got != "dst src" {
				t.Errorf("left behind: %s", got)
			}
			for _, target := range []string{"/etc/passwd", "../../x", "sub/../../x"} {
				os.Remove(filepath.Join(src, "out"))
				if err := os.Symlink(target, filepath.Join(src, "out")); err != nil {
					t.Fatal(err)
				}
				if _, err := convertFunc.Call(ctx, convertArgs{src, dst, "tree"}); !errors.Is(err, sandboxfn.ErrFileKind) {
					t.Errorf("a link to %s: %v", target, err)
				}
			}
		})
	}
}

func makeTree(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(dir, "sub", "empty"), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "sub", "run.sh"), "echo", 0o750)
	write(t, filepath.Join(dir, "zero"), "", 0o400)
	if err := errors.Join(
		os.Symlink("sub/run.sh", filepath.Join(dir, "link")),
		os.Symlink("missing", filepath.Join(dir, "dangling")),
		os.Chtimes(filepath.Join(dir, "sub"), time.Time{}, time.Unix(1e9, 0)),
	); err != nil {
		t.Fatal(err)
	}
}

func checkTree(t *testing.T, dir string) {
	t.Helper()
	if got := left(t, dir); got != "dangling link sub zero" {
		t.Errorf("the tree has %s", got)
	}
	target, err := os.Readlink(filepath.Join(dir, "link"))
	info, err2 := os.Stat(filepath.Join(dir, "link"))
	if err != nil || err2 != nil || target != "sub/run.sh" || info.Mode() != 0o750 || read(t, filepath.Join(dir, "link")) != "echo" {
		t.Errorf("link to %s: %v, %v, %v", target, info, err, err2)
	}
	if info, err := os.Stat(filepath.Join(dir, "sub", "empty")); err != nil || !info.IsDir() {
		t.Errorf("empty directory: %v, %v", info, err)
	}
}

func TestPathsInListsAndTags(t *testing.T) {
	for name, mode := range bothModes {
		t.Run(name, func(t *testing.T) {
			ctx, dir := mode(t), t.TempDir()
			for _, sub := range []string{"a", "b", "tree"} {
				os.Mkdir(filepath.Join(dir, sub), 0o755)
			}
			x, y := write(t, filepath.Join(dir, "a", "same"), "1", 0o600), write(t, filepath.Join(dir, "b", "same"), "2", 0o600)
			both := write(t, filepath.Join(dir, "both"), "3", 0o600)
			write(t, filepath.Join(dir, "tree", "leaf"), "leaf", 0o600)
			a := listArgs{
				Srcs: []string{x, y}, Dsts: []string{filepath.Join(dir, "o1"), filepath.Join(dir, "o2")}, Both: both,
				Index: &index{File: x, Files: []string{y, x}, Dir: filepath.Join(dir, "tree"), Out: filepath.Join(dir, "o3"), Tree: filepath.Join(dir, "o4")},
			}
			got, err := listFunc.Call(ctx, a)
			if want := "same=1, same=2, both=3, tag:1, tag:2, tag:1, 3 folders"; got != want || err != nil {
				t.Errorf("got %q, %v; want %q", got, err, want)
			}
			for file, want := range map[string]string{"o1": "out 0", "o2": "out 1", "both": "3 and more", "o3": "tagged", "o4/leaf": "leaf"} {
				if got := read(t, filepath.Join(dir, file)); got != want {
					t.Errorf("%s holds %q, want %q", file, got, want)
				}
			}
			if got, err := listFunc.Call(ctx, listArgs{}); got != "0 folders" || err != nil {
				t.Errorf("without paths: %q, %v", got, err)
			}
			a.Index.File = filepath.Join(dir, "tree")
			if _, err := listFunc.Call(ctx, a); !errors.Is(err, sandboxfn.ErrFileKind) {
				t.Errorf("a directory tagged file: %v", err)
			}
			// Called locally, they are plain paths.
			a.Index.File, a.Index.Tree = x, filepath.Join(dir, "o5")
			if _, err := listFunc.Local(ctx, a); err != nil || read(t, filepath.Join(dir, "o5", "leaf")) != "leaf" {
				t.Errorf("locally: %v", err)
			}
		})
	}
}

func TestFileValues(t *testing.T) {
	for name, mode := range bothModes {
		t.Run(name, func(t *testing.T) {
			ctx, dir := mode(t), t.TempDir()
			file, err := sandboxfn.Open(write(t, filepath.Join(dir, "in.txt"), "text", 0o640))
			if err != nil {
				t.Fatal(err)
			}
			makeTree(t, filepath.Join(dir, "tree"))
			tree, err := sandboxfn.OpenDir(filepath.Join(dir, "tree"))
			if err != nil {
				t.Fatal(err)
			}
			r, err := filesFunc.Call(ctx, fileArgs{File: file, Dir: tree, More: map[string]sandboxfn.File{"a": file, "b": {}}})
			if err != nil || r.Text != "in.txt 4 text 2" {
				t.Fatalf("got %q, %v", r.Text, err)
			}
			if sum, err := r.File.SHA256(); r.File.Name() != "made.txt" || r.File.Size() != 4 || sum != "3e8b5c8e9c6c4b1a" && len(sum) != 64 || err != nil {
				t.Errorf("file: %q, %d, %s, %v", r.File.Name(), r.File.Size(), sum, err)
			}
			for range 2 {
				in, err := r.File.Open()
				if err != nil {
					t.Fatal(err)
				}
				if b, err := io.ReadAll(in); string(b) != "TEXT" || err != nil {
					t.Errorf("file: %q, %v", b, err)
				}
				in.Close()
			}
			path := r.File.Path()
			if info, err := os.Stat(path); filepath.Base(path) != "made.txt" || err != nil || info.Mode() != 0o644 || read(t, path) != "TEXT" {
				t.Errorf("path %s: %v, %v", path, info, err)
			}
			if len(r.List) != 2 || r.List[1] != (sandboxfn.File{}) || read(t, r.List[0].Path()) != "text" {
				t.Errorf("list: %v", r.List)
			}
			if info, err := os.Stat(r.List[0].Path()); err != nil || info.Mode() != 0o640 || info.ModTime().Unix() != 1e9 {
				t.Errorf("an argument as a result: %v, %v", info, err)
			}
			if b, err := fs.ReadFile(r.Dir.FS(), "new.txt"); string(b) != "new" || err != nil || r.Dir.Name() != "tree" {
				t.Errorf("dir: %q, %v", b, err)
			}
			if _, err := os.Stat(filepath.Join(dir, "tree", "new.txt")); err == nil {
				t.Error("the caller's directory has changed")
			}
			gone := []string{path, r.List[0].Path(), r.Dir.Path()}
			for range 2 {
				if err := errors.Join(r.File.Close(), r.List[0].Close(), r.List[1].Close(), r.Dir.Close(), file.Close()); err != nil {
					t.Error(err)
				}
			}
			for _, p := range gone {
				if _, err := os.Stat(p); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("%s is still there: %v", p, err)
				}
			}
			if _, err := r.File.Open(); err == nil || r.File.Path() != "" || r.Dir.Path() != "" {
				t.Error("a closed file can be used")
			}
			if read(t, filepath.Join(dir, "in.txt")) != "text" {
				t.Error("Close has removed the caller's file")
			}
		})
	}
}

func TestFileErrors(t *testing.T) {
	dir := t.TempDir()
	if _, err := sandboxfn.Open(filepath.Join(dir, "none")); !errors.Is(err, sandboxfn.ErrPathNotFound) {
		t.Error(err)
	}
	if _, err := sandboxfn.Open(dir); !errors.Is(err, sandboxfn.ErrFileKind) {
		t.Error(err)
	}
	if _, err := sandboxfn.OpenDir(write(t, filepath.Join(dir, "f"), "", 0o600)); !errors.Is(err, sandboxfn.ErrFileKind) {
		t.Error(err)
	}
	var none sandboxfn.File
	if _, err := none.Open(); !errors.Is(err, sandboxfn.ErrPathNotFound) || none.Path() != "" || none.Size() != 0 || none.Name() != "" {
		t.Error(err)
	}
	if _, err := filesFunc.Call(sandboxtest.InProcess(t), fileArgs{}); err == nil {
		t.Error("a path of no file")
	}
}

// What nobody uses any more goes by itself.
func TestFileGarbage(t *testing.T) {
	r, err := filesFunc.Call(sandboxtest.InProcess(t), fileArgs{File: sandboxfn.FromBytes("f", []byte("x"))})
	if err != nil {
		t.Fatal(err)
	}
	path := r.File.Path()
	if _, err := os.Stat(path); err != nil {
		t.Fatal(err)
	}
	r = fileResult{}
	for range 1000 {
		runtime.GC()
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Errorf("%s is still there", path)
}

// A big file goes there and back in little memory, and once only.
func TestBigFile(t *testing.T) {
	const size = 64 << 20
	ctx, dir := sandboxtest.Process(t), t.TempDir()
	path := filepath.Join(dir, "big")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(f, rand.NewChaCha8([32]byte{1}), size); err != nil {
		t.Fatal(err)
	}
	f.Close()
	file, err := sandboxfn.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	want, err := file.SHA256()
	if err != nil {
		t.Fatal(err)
	}
	heap := func() (here, there uint64) {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		r, err := filesFunc.Call(ctx, fileArgs{How: "heap"})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Sscan(r.Text, &there)
		return m.HeapSys, there
	}
	here, there := heap()
	for range 2 {
		r, err := filesFunc.Call(ctx, fileArgs{How: "big", File: file})
		if err != nil || r.Text != want || r.File.Size() != size {
			t.Fatalf("got %s, %d, %v", r.Text, r.File.Size(), err)
		}
		if sum, err := r.File.SHA256(); sum != want || err != nil {
			t.Errorf("came back as %s, %v", sum, err)
		}
		r.File.Close()
	}
	if h, th := heap(); h > here+size/2 || th > there+size/2 {
		t.Errorf("the heap grew from %d to %d, that of the worker from %d to %d", here, h, there, th)
	}
}
