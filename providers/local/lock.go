//go:build linux

package local

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// errBusy says that somebody living holds a lock.
var errBusy = errors.New("locked by a living process")

// tryLock takes the lock file name in d, made when it is not there. The lock
// belongs to the open file: it goes with the file to whoever inherits it and is
// free when the last holder has ended, however it ended.
func (d *folder) tryLock(name string) (*os.File, error) {
	return d.lockWith(name, unix.O_CREAT)
}

// lockThere is tryLock for a file that is not made: fs.ErrNotExist when there is none.
func (d *folder) lockThere(name string) (*os.File, error) { return d.lockWith(name, 0) }

func (d *folder) lockWith(name string, flags int) (*os.File, error) {
	for range 100 {
		f, err := d.open(name, unix.O_RDWR|flags, 0o600)
		if errors.Is(err, unix.EROFS) { // who is alive can be seen there too
			if g, gerr := d.open(name, unix.O_RDONLY, 0); !errors.Is(gerr, fs.ErrNotExist) {
				f, err = g, gerr
			}
		}
		if err != nil {
			return nil, err
		}
		ok, err := d.flock(f, name)
		if ok {
			return f, nil
		}
		f.Close()
		if err != nil {
			return nil, err
		}
	}
	return nil, errBusy
}

// newLock is like tryLock for a file that must not be there yet.
func (d *folder) newLock(name string) (*os.File, error) {
	f, err := d.open(name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		if errors.Is(err, fs.ErrExist) {
			return nil, errBusy
		}
		return nil, err
	}
	ok, err := d.flock(f, name)
	if ok {
		return f, nil
	}
	f.Close()
	if err == nil {
		err = errBusy
	}
	return nil, err
}

// flock locks f and reports whether f still is the file called name: between
// open and lock its last owner may have removed it, and a lock on a removed
// file would exclude nobody.
func (d *folder) flock(f *os.File, name string) (bool, error) {
	_, err := retryEINTR(func() (int, error) { return 0, unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) })
	if err == unix.EWOULDBLOCK {
		return false, errBusy
	}
	if err != nil {
		return false, err
	}
	return d.holds(f, name), nil
}

// holds reports whether name in d is the open file f.
func (d *folder) holds(f *os.File, name string) bool {
	var open, named unix.Stat_t
	return unix.Fstat(int(f.Fd()), &open) == nil &&
		unix.Fstatat(d.fd(), name, &named, unix.AT_SYMLINK_NOFOLLOW) == nil &&
		open.Dev == named.Dev && open.Ino == named.Ino
}
