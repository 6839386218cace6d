//go:build linux

package local

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// A foreignTree reads what a sandbox will see of its layers, before there is a
// sandbox: names of users, and whether there is a shell. Whoever made the layers
// chose their links, so nothing is followed but by its own reading of them, and
// nothing leads out of the layers.
type foreignTree struct{ tops []*folder } // uppermost first

func openForeign(layers []stackLayer) (*foreignTree, error) {
	t := &foreignTree{}
	for _, l := range layers {
		fd, err := unix.Open(l.source, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			t.close()
			return nil, &fs.PathError{Op: "open", Path: l.source, Err: err}
		}
		t.tops = append(t.tops, &folder{os.NewFile(uintptr(fd), l.source)})
	}
	return t, nil
}

func (t *foreignTree) close() {
	for _, d := range t.tops {
		d.close()
	}
}

// maxForeignLinks is how many links are followed on the way to one file.
const maxForeignLinks = 40

// read returns the content of the regular file at a path of the tree.
func (t *foreignTree) read(at string, limit int64) ([]byte, error) {
	f, err := t.open(at)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("%s is larger than %d bytes", at, limit)
	}
	return b, err
}

// has reports whether there is a regular file at a path of the tree.
func (t *foreignTree) has(at string) bool {
	f, err := t.open(at)
	if err != nil {
		return false
	}
	f.Close()
	return true
}

// open opens the regular file at a path of the tree.
func (t *foreignTree) open(at string) (*os.File, error) {
	fail := func(err error) (*os.File, error) { return nil, &fs.PathError{Op: "open", Path: at, Err: err} }
	todo := parts(at)
	var done []string // directories, without links
	for links := 0; len(todo) > 0; {
		name := todo[0]
		todo = todo[1:]
		if name == ".." {
			done = done[:max(len(done)-1, 0)]
			continue
		}
		n, err := t.look(append(slices.Clone(done), name))
		switch {
		case err != nil:
			return fail(err)
		case n.file != nil && len(todo) == 0:
			return n.file, nil
		case n.file != nil:
			n.file.Close()
			return fail(unix.ENOTDIR)
		case n.link == "":
			done = append(done, name)
			continue
		}
		if links++; links > maxForeignLinks {
			return fail(unix.ELOOP)
		}
		if path.IsAbs(n.link) {
			done = nil
		}
		todo = append(parts(n.link), todo...)
	}
	return fail(unix.EISDIR)
}

func parts(p string) []string {
	return slices.DeleteFunc(strings.Split(p, "/"), func(c string) bool { return c == "" || c == "." })
}

// foreignNode is a regular file, a link, or else a directory.
type foreignNode struct {
	file *os.File
	link string
}

// look finds out what is at a path whose directories are no links.
func (t *foreignTree) look(names []string) (foreignNode, error) {
	dirs := slices.Clone(t.tops)
	defer func() { closeBut(t.tops, dirs) }()
	for i, name := range names {
		node, next, err := merge(dirs, name)
		closeBut(t.tops, dirs)
		dirs = next
		if err != nil || node != (foreignNode{}) {
			if err == nil && i < len(names)-1 {
				node.close()
				err = unix.ENOTDIR
			}
			return node, err
		}
	}
	return foreignNode{}, nil
}

func (n foreignNode) close() {
	if n.file != nil {
		n.file.Close()
	}
}

func closeBut(keep, dirs []*folder) {
	for _, d := range dirs {
		if !slices.Contains(keep, d) {
			d.close()
		}
	}
}

// merge is what overlayfs makes of one name in directories on top of each other.
func merge(dirs []*folder, name string) (foreignNode, []*folder, error) {
	var next []*folder
	for _, d := range dirs {
		var st unix.Stat_t
		if unix.Fstatat(d.fd(), name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
			continue
		}
		kind := st.Mode & unix.S_IFMT
		switch {
		case kind == unix.S_IFDIR:
			sub, err := d.sub(name)
			if err != nil {
				return foreignNode{}, next, err
			}
			next = append(next, sub)
			v := make([]byte, 1)
			if n, err := unix.Fgetxattr(sub.fd(), "user.overlay.opaque", v); err == nil && n == 1 && v[0] == 'y' {
				return foreignNode{}, next, nil
			}
			continue
		case len(next) > 0: // hidden by a directory above
			return foreignNode{}, next, nil
		case kind == unix.S_IFLNK:
			b := make([]byte, 4096)
			n, err := unix.Readlinkat(d.fd(), name, b)
			if err != nil || n == 0 || n == len(b) {
				return foreignNode{}, nil, unix.ENOENT
			}
			return foreignNode{link: string(b[:n])}, nil, nil
		case kind == unix.S_IFREG:
			f, err := d.open(name, unix.O_RDONLY, 0)
			return foreignNode{file: f}, nil, err
		}
		return foreignNode{}, nil, unix.ENOENT // a mark of removal, or nothing that is read
	}
	if len(next) == 0 {
		return foreignNode{}, nil, unix.ENOENT
	}
	return foreignNode{}, next, nil
}
