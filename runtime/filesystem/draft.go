//go:build linux

package filesystem

import (
	"errors"
	"io"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

// draft is where the content of a file is collected: beside it, or without a
// name when it will be written over a file in a folder that stays as it is.
type draft struct {
	f    *os.File
	name string // in the folder of the target; empty: none

	over *os.File // the file that is written over; nil: none
	old  unix.Stat_t
}

func (d *draft) close(up *uploads) {
	d.f.Close()
	if d.over != nil {
		d.over.Close()
	}
	if d.name != "" {
		up.end(d.name)
	}
}

// overID is the file that is written over; nil: none.
func (d *draft) overID() *fileID {
	if d.over == nil {
		return nil
	}
	id := idOf(&d.old)
	return &id
}

// draftOver makes a draft without a name, and opens the file that it will be
// written over.
func (t *target) draftOver(g guard, up *uploads) (_ *draft, err error) {
	fd, err := g.openPath(t.dir, t.name, unix.O_NOFOLLOW)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	d := &draft{}
	if err := unix.Fstat(fd, &d.old); err != nil {
		return nil, err
	}
	if err := checkRegular(&d.old); err != nil {
		return nil, err
	}
	if d.over, err = reopen(fd, unix.O_WRONLY); err != nil {
		return nil, err
	}
	if d.f, err = unnamed(up); err != nil {
		d.over.Close()
		return nil, err
	}
	return d, nil
}

// unnamed makes a file without a name, wherever the user can make one.
func unnamed(up *uploads) (*os.File, error) {
	var errs []error
	for _, dir := range []string{os.TempDir(), "/dev/shm"} {
		name := up.begin()
		f, err := os.OpenFile(path.Join(dir, name), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if err == nil {
			err = os.Remove(f.Name())
		}
		up.end(name)
		if err == nil {
			return f, nil
		}
		if f != nil {
			f.Close()
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// writeOver makes the draft the content of the file that it is for. The room is
// taken first, so that a full disk changes nothing.
func (d *draft) writeOver(meta map[string]string) error {
	size, err := d.f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	if _, err := d.f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	fd := int(d.over.Fd())
	if err := reserve(fd, size); err != nil {
		return err
	}
	if err := writeMetadata(fd, meta); err != nil {
		return err
	}
	if err := copyBody(d.over, d.f); err != nil {
		return err
	}
	return unix.Ftruncate(fd, size)
}

// reserve takes room for size bytes of an open file, which stays as long as it is.
// Where that is not supported, a full disk is found later.
func reserve(fd int, size int64) error {
	if size == 0 {
		return nil
	}
	err := unix.EINTR
	for err == unix.EINTR {
		err, _ = unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE, 0, size).(unix.Errno)
	}
	if err != unix.ENOSPC && err != unix.EDQUOT {
		return nil
	}
	var st unix.Stat_t
	if unix.Fstat(fd, &st) == nil { // some file systems keep what they had found
		_ = unix.Ftruncate(fd, st.Size)
	}
	return err
}
