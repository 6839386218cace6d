package providertest

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
	"path/filepath"
	"slices"
	"time"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
)

// dir is a fresh directory inside.
func (s *clientSuite) dir() string {
	s.t.Helper()
	d := fmt.Sprintf("/tmp/suite-%d", rand.Uint64())
	s.must(s.sb.FS(s.t.Context()).MkdirAll(d, 0o755))
	return d
}

func (s *clientSuite) files() {
	f := s.sb.FS(s.t.Context())
	d := s.dir()
	for _, name := range []string{"plain", "with blanks & % + #?", "ü 日本 😀", ".hidden", "a'b\"c$d`e", "-rf"} {
		for _, data := range []string{"", "text\n", "\x00\xff\xfe bytes"} {
			p := path.Join(d, name)
			s.must(f.WriteFile(p, []byte(data), 0o600))
			got, err := f.ReadFile(p)
			if err != nil || string(got) != data {
				s.t.Errorf("%q holds %q, %v, want %q", name, got, err, data)
			}
			info, err := f.Stat(p)
			if err != nil || info.Size() != int64(len(data)) || info.Mode() != 0o600 || info.Name() != name {
				s.t.Errorf("%q: %+v, %v", name, info, err)
			}
		}
	}
	list, err := f.ReadDir(d)
	if err != nil || len(list) != 6 {
		s.t.Errorf("directory: %v, %v", list, err)
	}
	deep := path.Join(d, "a/b/c/file")
	s.must(f.WriteFile(deep, []byte("deep"), 0o644)) // the directories are made
	s.must(f.Rename(deep, path.Join(d, "moved")))
	if _, err := f.Stat(deep); !errors.Is(err, fs.ErrNotExist) || !errors.Is(err, sandboxfn.ErrPathNotFound) {
		s.t.Errorf("a file that was moved: %v", err)
	}
	s.must(f.Symlink("moved", path.Join(d, "link")))
	if got, err := f.ReadFile(path.Join(d, "link")); err != nil || string(got) != "deep" {
		s.t.Errorf("through a link: %q, %v", got, err)
	}
	if to, err := f.Readlink(path.Join(d, "link")); err != nil || to != "moved" {
		s.t.Errorf("link to %q, %v", to, err)
	}
	if err := f.WriteFile(d, nil, 0o644); err == nil {
		s.t.Error("a directory was written as a file")
	}
	s.must(f.Remove(path.Join(d, "link")))
	s.must(f.RemoveAll(d))
	if ok, err := f.Exists(d); ok || err != nil {
		s.t.Errorf("after RemoveAll: %v, %v", ok, err)
	}
}

func (s *clientSuite) bigFile() {
	const size = 48<<20 + 7
	f := s.sb.FS(s.t.Context())
	d := s.dir()
	p := path.Join(d, "big")
	w, err := f.Create(p)
	s.must(err)
	sum := sha256.New()
	_, err = io.CopyN(io.MultiWriter(w, sum), rand.NewChaCha8([32]byte{1}), size)
	s.must(err)
	s.must(w.Close())
	if got := s.shell("sha256sum " + p); got[:64] != fmt.Sprintf("%x", sum.Sum(nil)) {
		s.t.Errorf("inside it has the sum %s", got)
	}
	r, err := f.Open(p)
	s.must(err)
	back := sha256.New()
	n, err := io.Copy(back, r)
	s.must(err)
	s.must(r.Close())
	if n != size || !bytes.Equal(back.Sum(nil), sum.Sum(nil)) {
		s.t.Errorf("%d bytes came back", n)
	}
	s.must(f.RemoveAll(d))
}

// trees: directories travel both ways.
func (s *clientSuite) trees() {
	ctx := s.t.Context()
	from, to := s.t.TempDir(), filepath.Join(s.t.TempDir(), "back")
	want := map[string]string{}
	for i := range 40 {
		name := fmt.Sprintf("d%d/ü %d", i%5, i)
		want[name] = fmt.Sprint("content ", i)
		s.must(os.MkdirAll(filepath.Dir(filepath.Join(from, name)), 0o755))
		s.must(os.WriteFile(filepath.Join(from, name), []byte(want[name]), 0o644))
	}
	d := s.dir()
	s.must(s.sb.CopyTo(ctx, from, path.Join(d, "tree")))
	s.must(s.sb.CopyFrom(ctx, path.Join(d, "tree"), to))
	n := 0
	s.must(filepath.WalkDir(to, func(p string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		n++
		rel, err := filepath.Rel(to, p)
		if err != nil {
			return err
		}
		got, err := os.ReadFile(p)
		if err == nil && string(got) != want[filepath.ToSlash(rel)] {
			err = fmt.Errorf("%s holds %q", rel, got)
		}
		return err
	}))
	if n != len(want) {
		s.t.Errorf("%d files came back, want %d", n, len(want))
	}
	s.must(s.sb.FS(ctx).RemoveAll(d))
}

func (s *clientSuite) watch() {
	ctx, cancel := context.WithTimeout(s.t.Context(), 30*time.Second)
	defer cancel()
	d := s.dir()
	f := s.sb.FS(ctx)
	var seen []string
	started := func() {
		s.must(f.WriteFile(path.Join(d, "ü new"), []byte("x"), 0o644))
		s.must(f.Remove(path.Join(d, "ü new")))
	}
	for ev, err := range s.sb.Watch(ctx, d, &sandboxfn.WatchOptions{Started: started}) {
		if err != nil {
			s.t.Fatalf("%v after %q", err, seen)
		}
		seen = append(seen, ev.Op.String()+" "+ev.Name)
		if ev.Op == sandboxfn.OpRemove {
			break
		}
	}
	if !slices.Contains(seen, "create ü new") || !slices.Contains(seen, "remove ü new") {
		s.t.Errorf("seen: %q", seen)
	}
	for _, err := range s.sb.Watch(ctx, path.Join(d, "none"), nil) {
		if !errors.Is(err, fs.ErrNotExist) {
			s.t.Errorf("watch of a directory that is not there: %v", err)
		}
	}
	s.must(f.RemoveAll(d))
}
