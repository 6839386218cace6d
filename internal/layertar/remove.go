//go:build linux

package layertar

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Remove removes the entry name of parent and everything below it, however deep
// it is and whatever names and modes it has. It follows no link. Something that
// is not there is no error.
func Remove(parent *os.File, name string) error {
	err := unix.Unlinkat(int(parent.Fd()), name, 0)
	if err == nil || err == unix.ENOENT {
		return nil
	}
	if err != unix.EISDIR && err != unix.EPERM {
		return &os.PathError{Op: "remove", Path: name, Err: err}
	}
	return removeAt(int(parent.Fd()), name)
}

// removeAt removes the directory name of in.
func removeAt(in int, name string) error {
	w, err := enter(in, name, true)
	if err != nil {
		return err
	}
	defer w.close()
	for {
		e, err := w.next()
		switch {
		case err == io.EOF:
			left, err := w.leave()
			if err != nil {
				return err
			}
			if left == "" { // the top
				if err := unix.Unlinkat(in, name, unix.AT_REMOVEDIR); err != nil {
					return &os.PathError{Op: "remove", Path: name, Err: err}
				}
				return nil
			}
			err = unix.Unlinkat(w.fd, left, unix.AT_REMOVEDIR)
			if err != nil {
				return &os.PathError{Op: "remove", Path: left, Err: err}
			}
		case err != nil:
			return err
		default:
			err := unix.Unlinkat(w.fd, e, 0)
			if err == unix.EISDIR || err == unix.EPERM {
				err = w.down(e)
			}
			if err != nil && err != unix.ENOENT {
				return &os.PathError{Op: "remove", Path: e, Err: err}
			}
		}
	}
}

// A walker goes through a tree that nobody else changes. It holds two
// descriptors, however deep the tree is: the way back is "..".
type walker struct {
	fd     int // of the directory that it is in
	stack  []level
	opened bool // directories are opened up for their owner
}

type level struct {
	name     string   // in the directory above
	dev, ino uint64   // of the directory itself
	names    []string // that are to be visited
}

func enter(in int, name string, open bool) (*walker, error) {
	w := &walker{fd: -1, opened: open}
	fd, err := w.open(in, name)
	if err != nil {
		return nil, err
	}
	w.fd = fd
	if err := w.push(""); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

func (w *walker) close() {
	if w.fd >= 0 {
		unix.Close(w.fd)
		w.fd = -1
	}
}

func (w *walker) open(in int, name string) (int, error) {
	fd, err := openDir(in, name)
	if errors.Is(err, unix.EACCES) && w.opened {
		var st unix.Stat_t
		if unix.Fstatat(in, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
			_ = unix.Fchmodat(in, name, 0o700, 0)
			fd, err = openDir(in, name)
		}
	}
	if err == nil && w.opened && os.Geteuid() != 0 {
		_ = unix.Fchmod(fd, 0o700) // not ours: the removal says so
	}
	return fd, err
}

// push starts with the directory that is open.
func (w *walker) push(name string) error {
	var st unix.Stat_t
	if err := unix.Fstat(w.fd, &st); err != nil {
		return err
	}
	names, err := namesOf(w.fd)
	if err != nil {
		return err
	}
	w.stack = append(w.stack, level{name, st.Dev, st.Ino, names})
	return nil
}

// namesOf reads a directory from its start.
func namesOf(fd int) ([]string, error) {
	dup, err := openDir(fd, ".") // the position of a descriptor is shared
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(dup), "directory")
	defer f.Close()
	return f.Readdirnames(-1)
}

// next returns a name of the directory that the walker is in, io.EOF when there
// is no more.
func (w *walker) next() (string, error) {
	top := &w.stack[len(w.stack)-1]
	if len(top.names) == 0 {
		return "", io.EOF
	}
	name := top.names[0]
	top.names = top.names[1:]
	return name, nil
}

// down goes into a directory.
func (w *walker) down(name string) error {
	fd, err := w.open(w.fd, name)
	if err != nil {
		return err
	}
	unix.Close(w.fd)
	w.fd = fd
	return w.push(name)
}

// leave goes back to the directory above and returns the name of the one that
// was left; it is empty for the top, which stays open.
func (w *walker) leave() (string, error) {
	last := w.stack[len(w.stack)-1]
	w.stack = w.stack[:len(w.stack)-1]
	if len(w.stack) == 0 {
		return "", nil
	}
	fd, err := openDir(w.fd, "..")
	if err != nil {
		return "", err
	}
	unix.Close(w.fd)
	w.fd = fd
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return "", err
	}
	if up := w.stack[len(w.stack)-1]; st.Ino != up.ino || st.Dev != up.dev {
		return "", errors.New("a directory was moved while its tree was walked")
	}
	return last.name, nil
}

// Seal sums up what the tree of dir is: names, kinds, modes, owners, sizes, links
// and times of change. It reads no file, and still shows whether one was written
// since. Renaming dir does not change it.
func Seal(dir *os.File) (string, error) {
	w, err := enter(int(dir.Fd()), ".", false)
	if err != nil {
		return "", err
	}
	defer w.close()
	var sum [sha256.Size]byte
	for n := 0; ; {
		e, err := w.next()
		if err == io.EOF {
			left, err := w.leave()
			if err != nil {
				return "", err
			}
			if left == "" {
				return fmt.Sprintf("%s-%d", hex.EncodeToString(sum[:]), n), nil
			}
			continue
		}
		n++
		dir, err := w.seal(e, &sum)
		if err != nil {
			return "", err
		}
		if dir {
			if err := w.down(e); err != nil {
				return "", err
			}
		}
	}
}

// seal adds one entry to the sum, in which the order does not count.
func (w *walker) seal(name string, sum *[sha256.Size]byte) (dir bool, err error) {
	var st unix.Stat_t
	if err := unix.Fstatat(w.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return false, &os.PathError{Op: "stat", Path: name, Err: err}
	}
	up := w.stack[len(w.stack)-1].ino
	dir = st.Mode&unix.S_IFMT == unix.S_IFDIR
	size := st.Size
	if dir {
		size = 0 // of the file system's own making
	}
	h := sha256.Sum256(fmt.Appendf(nil, "%d/%d %o %d:%d %d %d.%d %d.%d %s", up, st.Ino, st.Mode, st.Uid, st.Gid, size,
		st.Mtim.Sec, st.Mtim.Nsec, st.Ctim.Sec, st.Ctim.Nsec, name))
	for i, b := range h {
		sum[i] ^= b
	}
	return dir, nil
}
