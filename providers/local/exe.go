//go:build linux

package local

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// How the file that pid 1 executes is kept from the sandbox.
const (
	exeDetached = "detached" // through a read-only copy of its mount
	exeMemfd    = "memfd"    // a sealed copy in memory
	exePlain    = "plain"    // the file itself, of which /proc/1/exe shows nothing
)

// envRuntime names another executable to run as pid 1.
const envRuntime = "SANDBOX_RUNTIME_BINARY"

// An executable is what pid 1 of every sandbox of this process executes. The
// file stays open until the process ends.
type executable struct {
	file *os.File
	how  string
}

// executables holds what was opened, by path; a program has one, or two.
var executables struct {
	sync.Mutex
	open map[string]*executable
}

// runtimeExecutable opens what pid 1 executes, once per process.
func runtimeExecutable() (*executable, error) {
	path := "/proc/self/exe" // also right when the file was replaced or removed
	if own := os.Getenv(envRuntime); own != "" {
		if err := checkRuntime(own); err != nil {
			return nil, err
		}
		real, err := filepath.EvalSymlinks(own)
		if err != nil {
			return nil, badRuntime(own, err)
		}
		path = real
	}
	return openedExecutable(path)
}

// openedExecutable opens the executable at path, once per process.
func openedExecutable(path string) (*executable, error) {
	executables.Lock()
	defer executables.Unlock()
	if e := executables.open[path]; e != nil {
		return e, nil
	}
	e, err := openExecutable(path, os.Geteuid() == 0)
	if err != nil {
		return nil, err
	}
	if executables.open == nil {
		executables.open = map[string]*executable{}
	}
	executables.open[path] = e
	return e, nil
}

func checkRuntime(path string) error {
	if !filepath.IsAbs(path) {
		return badRuntime(path, errors.New("the path is not absolute"))
	}
	fi, err := os.Stat(path)
	if err == nil && !fi.Mode().IsRegular() {
		err = errors.New("not a regular file")
	}
	if err == nil {
		err = unix.Access(path, unix.X_OK)
	}
	if err == nil {
		return nil
	}
	return badRuntime(path, err)
}

func badRuntime(path string, err error) error {
	return &errdefs.Error{
		Code: "E8007", Op: "create sandbox", Message: envRuntime + "=" + path + " is not an executable",
		Suggestion: "unset it, or name a program that imports sandboxfn", Err: err,
	}
}

// openExecutable takes hold of the executable at path. Root does it through a
// detached read-only copy of its mount, which costs nothing; for others a copy
// in memory is the only file that the user inside, who is the same user outside,
// cannot change.
func openExecutable(path string, root bool) (*executable, error) {
	if root {
		if f, err := detachedTree(path, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV); err == nil {
			return &executable{f, exeDetached}, nil
		}
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, errdefs.Wrap("E2000", "create sandbox", "open the executable of pid 1", err)
	}
	defer f.Close()
	if m, err := sealedCopy(f); err == nil {
		return &executable{m, exeMemfd}, nil
	}
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, errdefs.Wrap("E2000", "create sandbox", "open the executable of pid 1", err)
	}
	return &executable{os.NewFile(uintptr(fd), path), exePlain}, nil
}

// sealedCopy copies a file to memory that nobody can change any more.
func sealedCopy(f *os.File) (*os.File, error) {
	const mfdExec = 0x10 // MFD_EXEC of memfd_create(2), since Linux 6.3
	flags := unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate("sandbox-init", flags|mfdExec)
	if err == unix.EINVAL {
		fd, err = unix.MemfdCreate("sandbox-init", flags)
	}
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	m := os.NewFile(uintptr(fd), "sandbox-init")
	_, err = io.Copy(m, f)
	if err == nil {
		err = m.Chmod(0o555)
	}
	if err == nil {
		_, err = unix.FcntlInt(m.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SEAL|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE)
	}
	if err != nil {
		m.Close()
		return nil, fmt.Errorf("copy the executable: %w", err)
	}
	return m, nil
}

// detachedTree makes a copy of the mount of path, from path down, that is
// attached nowhere, and sets attr on all of it. The last element of path is
// followed only when it is a link of procfs.
func detachedTree(path string, attr uint64) (*os.File, error) {
	flags := unix.O_PATH | unix.O_CLOEXEC
	if path != "/proc/self/exe" {
		flags |= unix.O_NOFOLLOW
	}
	source, err := unix.Open(path, flags, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(source)
	fd, err := unix.OpenTree(source, "", openTreeFlags)
	if err != nil {
		return nil, &os.PathError{Op: "open_tree", Path: path, Err: err}
	}
	err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: attr, Propagation: unix.MS_PRIVATE})
	if err != nil {
		unix.Close(fd)
		return nil, &os.PathError{Op: "mount_setattr", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}
