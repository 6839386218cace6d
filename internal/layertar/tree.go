//go:build linux

package layertar

import (
	"cmp"
	"errors"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// maxLinks is how many links are followed on the way to one directory, as in
// path_resolution(7).
const maxLinks = 40

// tree finds directories below a top. Nothing leads out of it: every name is
// opened by itself, in an open directory and without following it, and what a
// link says is taken as a path below the top.
type tree struct {
	top  int
	base int    // owner of directories that have no entry; zero: the caller
	at   string // name that was asked for, of the directory below
	path string // where it really is
	fd   int    // of it; -1: none
}

func newTree(top *os.File, base int) *tree { return &tree{top: int(top.Fd()), base: base, fd: -1} }

func (t *tree) close() { t.forget() }

// forget closes the directory that is kept for the next entry. It must be
// called when the way to it may have changed.
func (t *tree) forget() {
	if t.fd >= 0 {
		unix.Close(t.fd)
		t.fd = -1
	}
}

// dir opens a directory, which is made when it is not there. The descriptor is
// good until the next call of a method.
func (t *tree) dir(name string) (int, error) {
	name = strings.Trim(name, "/")
	if t.fd >= 0 && t.at == name {
		return t.fd, nil
	}
	t.forget()
	fd, real, err := t.walk(name, true)
	if err != nil {
		return -1, err
	}
	t.fd, t.at, t.path = fd, name, real
	return fd, nil
}

// real is the name of base of the directory opened last, without links.
func (t *tree) real(base string) string { return path.Join(t.path, base) }

// existing opens a directory that is there. The caller closes it.
func (t *tree) existing(name string) (int, error) {
	fd, _, err := t.walk(strings.Trim(name, "/"), false)
	return fd, err
}

// plain opens a directory by its real name. The caller closes it.
func (t *tree) plain(name string) (int, error) {
	fd, err := openDir(t.top, ".")
	for c := range strings.SplitSeq(name, "/") {
		if err != nil {
			return -1, err
		}
		if c != "" {
			fd, err = into(fd, c)
		}
	}
	return fd, err
}

// walk goes to a directory as a process would for which the top is the root.
// The caller closes the descriptor.
func (t *tree) walk(name string, create bool) (fd int, real string, err error) {
	todo := components(name)
	var done []string
	if fd, err = openDir(t.top, "."); err != nil {
		return -1, "", err
	}
	restart := func() error {
		unix.Close(fd)
		fd, err = t.plain(strings.Join(done, "/"))
		return err
	}
	for links := 0; len(todo) > 0; {
		c := todo[0]
		todo = todo[1:]
		if c == ".." {
			done = done[:max(len(done)-1, 0)]
			if err := restart(); err != nil {
				return -1, "", err
			}
			continue
		}
		target, err := t.step(fd, c, create)
		if err != nil {
			unix.Close(fd)
			return -1, "", err
		}
		if target == "" {
			if fd, err = into(fd, c); err != nil {
				return -1, "", err
			}
			done = append(done, c)
			continue
		}
		if links++; links > maxLinks {
			unix.Close(fd)
			return -1, "", unix.ELOOP
		}
		todo = append(components(target), todo...)
		if strings.HasPrefix(target, "/") {
			done = nil
			if err := restart(); err != nil {
				return -1, "", err
			}
		}
		if len(todo) > maxPath {
			unix.Close(fd)
			return -1, "", unix.ENAMETOOLONG
		}
	}
	return fd, strings.Join(done, "/"), nil
}

// step looks at one name on the way. It returns what it says when it is a link,
// and makes sure that it is a directory otherwise.
func (t *tree) step(in int, name string, create bool) (link string, err error) {
	var st unix.Stat_t
	err = unix.Fstatat(in, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case err == unix.ENOENT && create:
		return "", t.mkdirat(in, name)
	case err != nil:
		return "", &os.PathError{Op: "stat", Path: name, Err: err}
	case isWhiteout(&st) && create:
		return "", t.mkdir(in, name)
	case st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return "", nil
	case st.Mode&unix.S_IFMT == unix.S_IFLNK:
		return readlink(in, name)
	}
	return "", &os.PathError{Op: "enter", Path: name, Err: unix.ENOTDIR}
}

// mkdir makes a directory, or keeps the one that is there. One in the place of a
// removed name hides what is below.
func (t *tree) mkdir(in int, name string) error {
	var st unix.Stat_t
	err := unix.Fstatat(in, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return nil
	}
	opaque := err == nil && isWhiteout(&st)
	if err == nil {
		if err := unix.Unlinkat(in, name, 0); err != nil {
			return &os.PathError{Op: "remove", Path: name, Err: err}
		}
	}
	if err := t.mkdirat(in, name); err != nil || !opaque {
		return err
	}
	fd, err := openDir(in, name)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return setOpaque(fd)
}

// clear makes a name free. It reports whether a directory was removed.
func (t *tree) clear(in int, name string) (emptied bool, err error) {
	err = unix.Unlinkat(in, name, 0)
	switch {
	case err == nil || err == unix.ENOENT:
		return false, nil
	case err != unix.EISDIR && err != unix.EPERM:
		return false, &os.PathError{Op: "remove", Path: name, Err: err}
	}
	return true, removeAt(in, name)
}

func components(name string) []string {
	return slices.DeleteFunc(strings.Split(name, "/"), func(c string) bool { return c == "" || c == "." })
}

// mkdirat makes a directory that its owner can use; finish gives it the mode
// that it is to have.
func (t *tree) mkdirat(in int, name string) error {
	err := unix.Mkdirat(in, name, 0o755)
	if err == nil { // whatever the mask is
		err = unix.Fchmodat(in, name, 0o755, 0)
	}
	if err == nil && t.base != 0 {
		err = unix.Fchownat(in, name, t.base, t.base, unix.AT_SYMLINK_NOFOLLOW)
	}
	if err != nil {
		return &os.PathError{Op: "mkdir", Path: name, Err: err}
	}
	return nil
}

func openDir(in int, name string) (int, error) {
	for {
		fd, err := unix.Openat(in, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		switch {
		case err == nil:
			return fd, nil
		case err != unix.EINTR:
			return -1, &os.PathError{Op: "open", Path: name, Err: err}
		}
	}
}

// into replaces an open directory by one that is in it.
func into(fd int, name string) (int, error) {
	defer unix.Close(fd)
	return openDir(fd, name)
}

func readlink(in int, name string) (string, error) {
	b := make([]byte, maxPath)
	n, err := unix.Readlinkat(in, name, b)
	if err != nil || n == 0 || n == len(b) {
		return "", &os.PathError{Op: "readlink", Path: name, Err: errors.Join(err, unix.ENAMETOOLONG)}
	}
	return string(b[:n]), nil
}

// deepestFirst sorts names so that what is in a directory comes before it.
func deepestFirst[V any](m map[string]V) []string {
	return slices.SortedFunc(maps.Keys(m), func(a, b string) int {
		return cmp.Or(cmp.Compare(strings.Count(b, "/"), strings.Count(a, "/")), cmp.Compare(a, b))
	})
}
