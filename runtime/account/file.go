//go:build linux

package account

import (
	"io"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// maxFile bounds what is read of /etc/passwd and /etc/group, in bytes: code in
// the sandbox may be able to replace them.
const maxFile = 4 << 20

// file is a text file that is read again when it has changed.
type file struct {
	path string

	mu      sync.Mutex
	stamp   stamp    // guarded by mu
	content []string // guarded by mu; never changed, only replaced
	version int      // guarded by mu; counts what content was
}

// stamp tells one state of a file from another.
type stamp struct {
	dev, ino     uint64
	size         int64
	mtime, ctime unix.Timespec
}

// lines returns the lines of the file as it is now. A file that is not there, or
// is no regular file, has none.
func (f *file) lines() ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.refreshLocked()
	return f.content, err
}

// state is a number that changes with the lines.
func (f *file) state() (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.refreshLocked()
	return f.version, err
}

func (f *file) refreshLocked() error {
	var st unix.Stat_t
	err := unix.Stat(f.path, &st)
	var now stamp
	switch {
	case err == unix.ENOENT || err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG:
	case err != nil:
		f.setLocked(stamp{}, nil)
		return &os.PathError{Op: "stat", Path: f.path, Err: err}
	default:
		now = stamp{uint64(st.Dev), st.Ino, st.Size, st.Mtim, st.Ctim}
	}
	if now == f.stamp {
		return nil
	}
	if now == (stamp{}) {
		f.setLocked(now, nil)
		return nil
	}
	content, err := readFile(f.path)
	if err != nil {
		f.setLocked(stamp{}, nil)
		return err
	}
	// Changes while it was read show in the next comparison, since the stamp
	// is older than the content.
	f.setLocked(now, strings.Split(content, "\n"))
	return nil
}

func (f *file) setLocked(now stamp, content []string) {
	f.stamp, f.content = now, content
	f.version++
}

func readFile(path string) (string, error) {
	// Without O_NONBLOCK a FIFO put in this place would hold the server.
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", &os.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile))
	return string(data), err
}
