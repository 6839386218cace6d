//go:build linux

package filesystem

import (
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// openParent opens the folder that p lies in. p is absolute and clean.
func (g guard) openParent(p string) (dir int, name string, err error) {
	dir, err = g.openPath(unix.AT_FDCWD, path.Dir(p), unix.O_DIRECTORY)
	return dir, path.Base(p), err
}

// reopen opens what fd stands for with other flags and the rights in force now.
func reopen(fd int, flags int) (*os.File, error) {
	p := fdPath(fd)
	for {
		n, err := unix.Open(p, flags|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, err
		}
		return os.NewFile(uintptr(n), p), nil
	}
}

func fdPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// openRegular opens the regular file at p for reading. Anything else is refused
// before it is opened: opening a device can do something.
func (g guard) openRegular(p string) (f *os.File, st unix.Stat_t, err error) {
	fd, err := g.openPath(unix.AT_FDCWD, p, 0)
	if err != nil {
		return nil, st, err
	}
	defer unix.Close(fd)
	if err := g.read(fd); err != nil {
		return nil, st, err
	}
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, st, err
	}
	if err := checkReadable(fd, &st); err != nil {
		return nil, st, err
	}
	f, err = reopen(fd, unix.O_RDONLY)
	return f, st, err
}

func checkRegular(st *unix.Stat_t) error {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return nil
	case unix.S_IFDIR:
		return unix.EISDIR
	}
	return errKind
}

// memoryFiles are what /proc shows of the memory of a process, proc(5).
var memoryFiles = []string{"mem", "environ", "maps", "smaps", "smaps_rollup", "numa_maps", "pagemap", "auxv"}

// checkReadable refuses what is no regular file, and what /proc shows of the memory
// of this process: the kernel lets a process read its own, in which there are tokens
// and the secrets of the sandbox.
func checkReadable(fd int, st *unix.Stat_t) error {
	if err := checkRegular(st); err != nil || st.Size != 0 {
		return err
	}
	var on unix.Statfs_t
	if err := unix.Fstatfs(fd, &on); err != nil || on.Type != unix.PROC_SUPER_MAGIC {
		return err
	}
	p, err := pathOf(fd)
	if err != nil || !slices.Contains(memoryFiles, path.Base(p)) {
		return err
	}
	// Each thread has a folder beside those of processes, too.
	for elem := range strings.SplitSeq(p, "/") {
		if _, err := strconv.Atoi(elem); err != nil {
			continue
		}
		if unix.Faccessat(unix.AT_FDCWD, "/proc/self/task/"+elem, unix.F_OK, 0) == nil {
			return unix.EACCES
		}
	}
	return nil
}

// makeDirs makes the folder p and those above it that are missing, and returns
// it open.
func (g guard) makeDirs(p string) (int, error) {
	dir, err := g.openPath(unix.AT_FDCWD, "/", unix.O_DIRECTORY)
	for rest := p; err == nil && rest != "" && rest != "/"; {
		var name string
		name, rest = firstElem(rest)
		var next int
		next, err = g.openPath(dir, name, unix.O_DIRECTORY)
		if err == unix.ENOENT {
			next, err = g.makeDir(dir, name)
		} else if err != nil && g.rules != nil {
			err = g.explain(p, err)
		}
		unix.Close(dir)
		dir = next
	}
	return dir, err
}

func (g guard) makeDir(dir int, name string) (int, error) {
	if err := g.writeIn(dir, name); err != nil {
		return -1, err
	}
	err := unix.Mkdirat(dir, name, 0o755)
	if err != nil && err != unix.EEXIST {
		return -1, err
	}
	if err == unix.EEXIST { // somebody else was faster
		return g.openPath(dir, name, unix.O_DIRECTORY)
	}
	fd, err := g.openPath(dir, name, unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		return -1, err
	}
	// Whatever our file creation mask is; by descriptor, since the name may lead
	// elsewhere by now.
	if err := unix.Chmod(fdPath(fd), 0o755); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// firstElem takes the first name off an absolute clean path.
func firstElem(p string) (name, rest string) {
	p = p[1:]
	for i := range len(p) {
		if p[i] == '/' {
			return p[:i], p[i:]
		}
	}
	return p, ""
}
