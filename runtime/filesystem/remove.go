//go:build linux

package filesystem

import (
	"context"
	"errors"
	"io"

	"golang.org/x/sys/unix"
)

// removeBatch is how many names of a folder are read at a time.
const removeBatch = 1024

// place identifies a folder on the way down of a removal.
type place struct {
	name     string
	dev, ino uint64
}

// removeAll removes name in the open folder dir with all that is below it. It
// walks by descriptor and holds two at a time, so neither the depth of a tree
// nor the length of its paths matters, and a folder that is replaced by a link
// under its hands does not lead it elsewhere.
func removeAll(ctx context.Context, dir int, name string) error {
	err := unix.Unlinkat(dir, name, 0)
	// POSIX wants EPERM for a folder, Linux says EISDIR.
	if err != unix.EISDIR && err != unix.EPERM {
		return err
	}
	refused := err
	cur, here, err := enter(dir, name)
	if err == unix.ENOTDIR {
		return refused // not a folder: the refusal was meant
	}
	if err != nil {
		return err
	}
	w := &removal{ctx: ctx, cur: cur, path: []place{here}}
	defer func() { unix.Close(w.cur) }()
	if err := w.run(); err != nil {
		return err
	}
	return unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
}

// removal is a walk under way; cur is the folder at the end of path.
type removal struct {
	ctx  context.Context // it is one operation
	cur  int
	path []place
}

// run empties the first folder of the path.
func (w *removal) run() error {
	for {
		if err := w.ctx.Err(); err != nil {
			return err
		}
		down, err := w.empty()
		if err != nil {
			return err
		}
		if down != "" {
			next, here, err := enter(w.cur, down)
			if err != nil {
				return err
			}
			unix.Close(w.cur)
			w.cur = next
			w.path = append(w.path, here)
			continue
		}
		if len(w.path) == 1 {
			return nil
		}
		if err := w.up(); err != nil {
			return err
		}
	}
}

// empty removes what it can from the current folder and returns the first
// folder in it that has to be emptied before; "" when nothing is left.
func (w *removal) empty() (down string, err error) {
	for {
		dir, err := openChild(w.cur, ".")
		if err != nil {
			return "", err
		}
		names, err := dir.Readdirnames(removeBatch)
		dir.Close()
		if errors.Is(err, io.EOF) {
			return "", nil
		}
		if err != nil {
			return "", err
		}
		for _, name := range names {
			err := unix.Unlinkat(w.cur, name, 0)
			if err == unix.EISDIR || err == unix.EPERM {
				first := err
				err = unix.Unlinkat(w.cur, name, unix.AT_REMOVEDIR)
				switch err {
				case unix.ENOTEMPTY, unix.EEXIST:
					return name, nil
				case unix.ENOTDIR:
					err = first
				}
			}
			if err != nil && err != unix.ENOENT {
				return "", err
			}
		}
	}
}

// up goes to the parent, which must be the folder we came from, and removes
// the folder that is empty now.
func (w *removal) up() error {
	parent, at, err := enter(w.cur, "..")
	if err != nil {
		return err
	}
	want := w.path[len(w.path)-2]
	if at.dev != want.dev || at.ino != want.ino {
		unix.Close(parent)
		return errors.New("directory was moved while it was being removed")
	}
	gone := w.path[len(w.path)-1].name
	unix.Close(w.cur)
	w.cur = parent
	w.path = w.path[:len(w.path)-1]
	if err := unix.Unlinkat(parent, gone, unix.AT_REMOVEDIR); err != nil && err != unix.ENOENT {
		return err
	}
	return nil
}

// enter opens a folder, never through a link.
func enter(dir int, name string) (int, place, error) {
	fd, err := openPath(dir, name, unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		return -1, place{}, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return -1, place{}, err
	}
	return fd, place{name, uint64(st.Dev), st.Ino}, nil
}
