package sandboxfn

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// A file, or a tree of files, goes over the connection as a tar archive when it
// comes out of a call, and when it is a tree. The first entry is ".", the file
// or directory itself; an archive without entries says that there is neither.
// Permission bits and times travel. Owners do not, nor do set-user-ID,
// set-group-ID and sticky bits: they mean something only together with owners.

// Limits of what comes out of a call, for each file or tree. What a worker says
// of itself is not believed.
const (
	maxFileBytes = int64(16 << 30)
	maxEntries   = 1_000_000

	maxNameBytes   = 4096     // of a name, and of where a link leads: what Linux takes
	maxNamesBytes  = 64 << 20 // of those that are remembered, of directories and links
	maxRecordBytes = 16 << 10 // of what a header of an archive says beside the usual
)

const permBits = 0o777

// archive writes what is at name to w. What is neither a file, a directory nor a
// link is refused, and so are links that leave the tree.
func archive(w io.Writer, name string) error {
	info, err := os.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return tar.NewWriter(w).Close()
	}
	if err != nil {
		return fileError(name, err)
	}
	tw := tar.NewWriter(w)
	if info.IsDir() {
		err = archiveTree(tw, name)
	} else {
		err = archiveFile(tw, ".", info, func() (*os.File, error) { return os.Open(name) })
	}
	if err != nil {
		return fileError(name, err)
	}
	return tw.Close()
}

func archiveTree(tw *tar.Writer, name string) error {
	root, err := os.OpenRoot(name)
	if err != nil {
		return err
	}
	defer root.Close()
	return fs.WalkDir(root.FS(), ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		switch mode := info.Mode(); {
		case mode.IsDir():
			return tw.WriteHeader(header(p, info, tar.TypeDir))
		case mode&fs.ModeSymlink != 0:
			target, err := root.Readlink(p)
			if err == nil {
				err = checkLink(root, p, target)
			}
			if err != nil {
				return err
			}
			h := header(p, info, tar.TypeSymlink)
			h.Linkname = target
			return tw.WriteHeader(h)
		}
		return archiveFile(tw, p, info, func() (*os.File, error) { return root.Open(p) })
	})
}

// archiveFile adds a file, as long as it is when it is opened.
func archiveFile(tw *tar.Writer, name string, info fs.FileInfo, open func() (*os.File, error)) error {
	if !info.Mode().IsRegular() {
		return errdefs.New("E4003", "send "+name, "it is neither a file, a directory nor a link")
	}
	f, err := open()
	if err != nil {
		return err
	}
	defer f.Close()
	if info, err = f.Stat(); err != nil {
		return err
	}
	if err := tw.WriteHeader(header(name, info, tar.TypeReg)); err != nil {
		return err
	}
	n, err := io.Copy(tw, io.LimitReader(f, info.Size()))
	if err == nil && n < info.Size() {
		err = fmt.Errorf("%s became shorter while it was read", name)
	}
	return err
}

func header(name string, info fs.FileInfo, kind byte) *tar.Header {
	h := &tar.Header{
		Name: name, Typeflag: kind, Mode: int64(info.Mode().Perm()), ModTime: info.ModTime(),
		Format: tar.FormatPAX, // with fractions of a second, and sizes and names of any length
	}
	if kind == tar.TypeReg {
		h.Size = info.Size()
	}
	return h
}

// checkLink refuses a link that leads out of root, as it stands or by way of
// other links. What goes up after it has gone down is refused as well: where
// that leads depends on what other links will lead to.
func checkLink(root *os.Root, name, target string) error {
	refuse := func(why string) error {
		return errdefs.New("E4003", "link "+name, "it leads to "+target+", "+why)
	}
	if filepath.IsAbs(target) || !filepath.IsLocal(filepath.Join(filepath.Dir(filepath.FromSlash(name)), filepath.FromSlash(target))) {
		return refuse("outside of its directory")
	}
	down := false
	for e := range strings.SplitSeq(filepath.ToSlash(target), "/") {
		switch {
		case e == "..":
			if down {
				return refuse("with \"..\" behind a name")
			}
		case e != "" && e != ".":
			down = true
		}
	}
	if _, err := root.Stat(name); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) {
		return refuse("which can't be followed within its directory: " + cause(err).Error())
	}
	return nil
}

// cause is what a path error says without the path, which may be none that the
// reader knows.
func cause(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err
	}
	return err
}

// found says what an archive held.
type found uint8

const (
	foundNothing found = iota
	foundFile
	foundDir
)

// unarchive makes what the archive of r holds at name, where nothing is yet. Its
// entries may come from anybody: nothing is written outside of name.
func unarchive(r io.Reader, name string) (found, error) {
	limited := &io.LimitedReader{R: r, N: maxFileBytes + maxEntries*2048}
	tr := tar.NewReader(limited)
	h, err := tr.Next()
	if err == io.EOF {
		return foundNothing, drained(limited)
	}
	if err != nil {
		return 0, malformedTree(err.Error())
	}
	if h.Name != "." && h.Name != "./" {
		return 0, malformedTree(fmt.Sprintf("it begins with %q", h.Name[:min(len(h.Name), maxNameBytes)]))
	}
	if h.Typeflag == tar.TypeDir {
		err = extractTree(tr, h, name)
		if err == nil {
			err = drained(limited)
		}
		return foundDir, err
	}
	if h.Typeflag != tar.TypeReg {
		return 0, malformedTree("it is neither a file nor a directory")
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return 0, err
	}
	if err := fillFile(f, tr, h); err != nil {
		return 0, err
	}
	if _, err := tr.Next(); err != io.EOF {
		return 0, malformedTree("something follows the file")
	}
	return foundFile, drained(limited)
}

// drained reads what is behind the end of an archive, which must be next to
// nothing.
func drained(r *io.LimitedReader) error {
	r.N = min(r.N, 1<<20)
	_, err := io.Copy(io.Discard, r)
	if err == nil && r.N == 0 {
		err = overLimit()
	}
	return err
}

func malformedTree(why string) error { return errdefs.New("E9005", "receive files", why) }

func overLimit() error {
	return errdefs.New("E9003", "receive files", fmt.Sprintf("more than %v or %d entries", Bytes(maxFileBytes), maxEntries))
}

func longNames() error {
	return errdefs.New("E9003", "receive files", fmt.Sprintf("names of more than %v, or of %v together", Bytes(maxNameBytes), Bytes(maxNamesBytes)))
}

// fillFile writes the content, the permissions and the time of a file, and
// closes it.
func fillFile(f *os.File, r io.Reader, h *tar.Header) error {
	err := func() error {
		if h.Size > maxFileBytes {
			return overLimit()
		}
		n, err := io.Copy(f, r)
		if err == nil && n != h.Size {
			err = malformedTree("a file is shorter than it says")
		}
		if err == nil {
			err = f.Chmod(perm(h))
		}
		return err
	}()
	if bad := f.Close(); err == nil {
		err = bad
	}
	if err == nil {
		err = os.Chtimes(f.Name(), time.Time{}, h.ModTime)
	}
	return err
}

func perm(h *tar.Header) fs.FileMode { return fs.FileMode(h.Mode) & permBits }

// extractTree makes a directory and what follows in the archive.
func extractTree(tr *tar.Reader, top *tar.Header, name string) error {
	if err := os.Mkdir(name, 0o700); err != nil {
		return err
	}
	root, err := os.OpenRoot(name)
	if err != nil {
		return err
	}
	defer root.Close()
	t := tree{root: root, dirs: []treeDir{{".", perm(top), top.ModTime}}, isDir: map[string]bool{".": true}}
	for entries, total := 0, int64(0); ; entries++ {
		h, err := tr.Next()
		if err == io.EOF {
			return t.finish()
		}
		if err != nil {
			return malformedTree(err.Error())
		}
		if total += h.Size; entries >= maxEntries || h.Size < 0 || total > maxFileBytes || total < 0 {
			return overLimit()
		}
		if err := t.add(tr, h); err != nil {
			return err
		}
	}
}

// tree is a directory that is being made.
type tree struct {
	root  *os.Root
	dirs  []treeDir       // made so far, parents first
	links []treeLink      // made so far
	isDir map[string]bool // what is a directory of the archive: entries lie in nothing else
	names int             // bytes of the names in them
}

type treeDir struct {
	name string
	mode fs.FileMode
	time time.Time
}

type treeLink struct{ name, target string }

// remember copies names: what a header says of them may be part of much more.
func (t *tree) remember(name, target string) (string, string, error) {
	if t.names += len(name) + len(target); t.names > maxNamesBytes {
		return "", "", longNames()
	}
	return strings.Clone(name), strings.Clone(target), nil
}

func (t *tree) add(tr *tar.Reader, h *tar.Header) error {
	records := 0
	for k, v := range h.PAXRecords {
		records += len(k) + len(v)
	}
	switch {
	case len(h.Name) > maxNameBytes || len(h.Linkname) > maxNameBytes:
		return longNames()
	case records > maxRecordBytes:
		return malformedTree(fmt.Sprintf("entry %q has %v of records", h.Name, Bytes(records)))
	}
	name := strings.TrimSuffix(h.Name, "/")
	if !fs.ValidPath(name) || name == "." || !filepath.IsLocal(filepath.FromSlash(name)) || !t.isDir[path.Dir(name)] {
		return malformedTree(fmt.Sprintf("entry %q is not in a directory of the tree", h.Name))
	}
	switch h.Typeflag {
	case tar.TypeDir:
		name, _, err := t.remember(name, "")
		if err != nil {
			return err
		}
		t.dirs, t.isDir[name] = append(t.dirs, treeDir{name, perm(h), h.ModTime}), true
		return t.root.Mkdir(name, 0o700)
	case tar.TypeSymlink:
		name, target, err := t.remember(name, h.Linkname)
		if err != nil {
			return err
		}
		t.links = append(t.links, treeLink{name, target})
		return t.root.Symlink(target, name)
	case tar.TypeReg:
		f, err := t.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		return fillFileIn(t.root, name, f, tr, h)
	}
	return malformedTree(fmt.Sprintf("entry %q is neither a file, a directory nor a link", h.Name))
}

func fillFileIn(root *os.Root, name string, f *os.File, r io.Reader, h *tar.Header) error {
	n, err := io.Copy(f, r)
	if err == nil && n != h.Size {
		err = malformedTree("a file is shorter than it says")
	}
	if err == nil {
		err = f.Chmod(perm(h))
	}
	if bad := f.Close(); err == nil {
		err = bad
	}
	if err == nil {
		err = root.Chtimes(name, time.Time{}, h.ModTime)
	}
	return err
}

// finish checks the links, now that everything is there that they may lead to,
// and gives the directories their permissions and times.
func (t *tree) finish() error {
	for _, l := range t.links {
		if err := checkLink(t.root, l.name, l.target); err != nil {
			return err
		}
	}
	for i := len(t.dirs) - 1; i >= 0; i-- {
		d := t.dirs[i]
		if err := t.root.Chmod(d.name, d.mode); err != nil {
			return err
		}
		if err := t.root.Chtimes(d.name, time.Time{}, d.time); err != nil {
			return err
		}
	}
	return nil
}

// fileError is a failure of the file system as an error with a code.
func fileError(name string, err error) error {
	if errdefs.CodeOf(err) != "" {
		return err
	}
	code := errdefs.Code("E4000")
	switch {
	case errors.Is(err, fs.ErrNotExist):
		code = "E4001"
	case errors.Is(err, fs.ErrPermission):
		code = "E4002"
	case errors.Is(err, fs.ErrExist):
		code = "E4005"
	}
	return errdefs.Wrap(code, "file "+name, "", err)
}

// removeTree removes what is at name, also below directories that may not be
// written.
func removeTree(name string) error {
	if os.RemoveAll(name) == nil {
		return nil
	}
	filepath.WalkDir(name, func(p string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() {
			os.Chmod(p, 0o700) // before it is read
		}
		return nil
	})
	return os.RemoveAll(name)
}
