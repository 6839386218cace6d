//go:build linux

package filesystem

import (
	"errors"
	"os"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/runtime/fault"
	"github.com/agent-sandbox/sandbox-go/runtime/policy"
)

// open opens the watched folder d for reading, by its path below the first one
// and never through a link. It returns nil when it is not there: it is gone, or
// what moved it has yet to be read.
func (w *watcher) open(d *watchedDir) (*os.File, error) {
	rel, ok := w.tree.path(d)
	if !ok {
		return nil, nil
	}
	if err := w.openRoot(); err != nil || w.root < 0 {
		return nil, err
	}
	f, err := openBelow(w.root, rel)
	if f == nil {
		return nil, err
	}
	at, err := inodeOf(f)
	if err != nil || at != d.inode {
		f.Close()
		return nil, err
	}
	return f, nil
}

// inode tells a folder from every other one.
type inode struct{ dev, ino uint64 }

func inodeOf(f *os.File) (inode, error) {
	var st unix.Stat_t
	err := unix.Fstat(int(f.Fd()), &st)
	return inode{uint64(st.Dev), st.Ino}, err
}

// openRoot opens the first folder, if it still is where it was.
func (w *watcher) openRoot() error {
	if w.root >= 0 {
		return nil
	}
	fd, err := w.guard.openFolder(w.path, w.dev, w.ino)
	if err != nil {
		return err
	}
	w.root, w.unreachable = fd, fd < 0
	return nil
}

// openFolder opens the folder at p, or returns -1 when another one or none is
// there.
func (g guard) openFolder(p string, dev, ino uint64) (int, error) {
	fd, err := g.openPath(unix.AT_FDCWD, p, unix.O_DIRECTORY)
	if _, refused := errors.AsType[*policy.Refusal](err); refused {
		return -1, nil
	}
	switch err {
	case nil:
	case unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.EACCES:
		return -1, nil
	default:
		return -1, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || uint64(st.Dev) != dev || st.Ino != ino {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// openBelow opens a folder below dir for reading; nil when there is none that
// may be read.
func openBelow(dir int, rel string) (*os.File, error) {
	fd, err := resolveBelow(dir, rel, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK)
	if gone(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), fdPath(fd)), nil
}

// resolveBelow opens rel below dir, never through a link; "" is dir.
func resolveBelow(dir int, rel string, flags uint64) (int, error) {
	if rel == "" {
		rel = "."
	}
	for {
		fd, err := unix.Openat2(dir, rel, &unix.OpenHow{
			Flags: unix.O_CLOEXEC | flags, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
		})
		if err != unix.EINTR && err != unix.EAGAIN {
			return fd, err
		}
	}
}

// gone reports whether err says that there is no folder, or none that the user
// may read.
func gone(err error) bool {
	return err == unix.ENOENT || err == unix.ENOTDIR || err == unix.ELOOP || err == unix.EACCES || err == unix.EPERM
}

// networkTypes are the file systems where changes made by others are not seen,
// statfs(2).
var networkTypes = map[uint32]string{
	unix.NFS_SUPER_MAGIC: "nfs", 0xff534d42: "cifs", unix.SMB_SUPER_MAGIC: "smb", 0xfe534d42: "smb2",
	unix.FUSE_SUPER_MAGIC: "fuse", unix.V9FS_MAGIC: "9p", unix.CODA_SUPER_MAGIC: "coda", unix.AFS_SUPER_MAGIC: "afs",
	0x00c36400: "ceph", 0x0bd00bd0: "lustre",
}

// refuseNetwork refuses the open folder fd if it lies on one of them.
func refuseNetwork(fd int, p string) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return err
	}
	if name := networkTypes[uint32(st.Type)]; name != "" {
		return fault.New(connect.CodeInvalidArgument, "E4000",
			"path %s is on a network file system (%s), where changes made elsewhere are not seen; allow_network_mounts watches it all the same", p, name)
	}
	return nil
}
