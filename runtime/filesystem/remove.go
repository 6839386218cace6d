//go:build linux

package filesystem

import (
	"context"
	"errors"
	"io"

	"golang.org/x/sys/unix"
)

const (
	removeBatch = 1024     // names of a folder that are read at a time
	removeNames = 64 << 10 // names that a walk remembers of all folders together
)

// place is a folder on the way down of a removal.
type place struct {
	name     string
	dev, ino uint64
	rest     []string // names in it that were read and not looked at
}

// removeAll removes name in the open folder dir with all that is below it. It
// walks by descriptor and holds two at a time, so neither the depth of a tree
// nor the length of its paths matters, and a folder that is replaced by a link
// under its hands does not lead it elsewhere.
func (g guard) removeAll(ctx context.Context, dir int, name string) error {
	if err := g.writeIn(dir, name); err != nil {
		return err
	}
	if err := unix.Fstatat(dir, name, new(unix.Stat_t), unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	full, err := removeOne(dir, name)
	if err != nil || !full {
		return err
	}
	cur, here, err := g.enter(dir, name)
	if err != nil {
		return err
	}
	w := &removal{ctx: ctx, guard: g, cur: cur, path: []place{here}}
	defer func() { unix.Close(w.cur) }()
	if err := w.run(); err != nil {
		return err
	}
	return unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
}

// removal is a walk under way; cur is the folder at the end of path.
type removal struct {
	ctx   context.Context // it is one operation
	guard guard
	cur   int
	path  []place
	names int // in the rests of path
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
		switch {
		case down != "":
			err = w.down(down)
		case len(w.path) == 1:
			return nil
		default:
			err = w.up()
		}
		if err != nil {
			return err
		}
	}
}

// empty removes what it can from the current folder and returns the first
// folder in it that has to be emptied before; "" when nothing is left.
func (w *removal) empty() (down string, err error) {
	here := &w.path[len(w.path)-1]
	names := here.rest
	w.names -= len(names)
	here.rest = nil
	for {
		if len(names) == 0 {
			if names, err = w.read(); err != nil || len(names) == 0 {
				return "", err
			}
		}
		for i, name := range names {
			if err := w.guard.writeIn(w.cur, name); err != nil {
				return "", err
			}
			full, err := removeOne(w.cur, name)
			if err != nil {
				return "", err
			}
			if !full {
				continue
			}
			// Read again what there is no room to remember.
			if rest := names[i+1:]; w.names+len(rest) <= removeNames {
				here.rest = rest
				w.names += len(rest)
			}
			return name, nil
		}
		names = nil
	}
}

// read lists some names of the current folder, none when it is empty.
func (w *removal) read() ([]string, error) {
	dir, err := openChild(w.cur, ".")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(removeBatch)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return names, err
}

// removeOne removes a name, unless it is a folder that is not empty.
func removeOne(dir int, name string) (full bool, err error) {
	err = unix.Unlinkat(dir, name, 0)
	if err == unix.EISDIR || err == unix.EPERM {
		refused := err
		switch err = unix.Unlinkat(dir, name, unix.AT_REMOVEDIR); err {
		case unix.ENOTEMPTY, unix.EEXIST:
			return true, nil
		case unix.ENOTDIR:
			err = refused // no folder: the refusal was meant
		}
	}
	if err == unix.ENOENT {
		err = nil
	}
	return false, err
}

// down enters a folder of the current one.
func (w *removal) down(name string) error {
	next, here, err := w.guard.enter(w.cur, name)
	if err != nil {
		return err
	}
	unix.Close(w.cur)
	w.cur = next
	w.path = append(w.path, here)
	return nil
}

// up goes to the parent, which must be the folder we came from, and removes
// the folder that is empty now.
func (w *removal) up() error {
	parent, at, err := w.guard.enter(w.cur, "..")
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
func (g guard) enter(dir int, name string) (int, place, error) {
	fd, err := g.openPath(dir, name, unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		return -1, place{}, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return -1, place{}, err
	}
	return fd, place{name: name, dev: uint64(st.Dev), ino: st.Ino}, nil
}
