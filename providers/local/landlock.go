//go:build linux

package local

import (
	"fmt"
	"io/fs"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Landlock is a second fence around commands, where the kernel has it: what the
// mounts allow, said once more, and no signals or abstract sockets to init. The
// calls are made here and not through a library because the domain is meant
// for one thread only, the one that starts commands: init stays outside of it.

// landlockABI is the version of this kernel's Landlock; zero: none.
func landlockABI() int {
	n, _, e := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if e != 0 {
		return 0
	}
	return int(n)
}

const landlockScopesABI = 6

// Rights on files by the ABI that brought them.
func landlockRights(abi int) uint64 {
	rights := uint64(unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE |
		unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR |
		unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE |
		unix.LANDLOCK_ACCESS_FS_MAKE_CHAR | unix.LANDLOCK_ACCESS_FS_MAKE_DIR |
		unix.LANDLOCK_ACCESS_FS_MAKE_REG | unix.LANDLOCK_ACCESS_FS_MAKE_SOCK |
		unix.LANDLOCK_ACCESS_FS_MAKE_FIFO | unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK |
		unix.LANDLOCK_ACCESS_FS_MAKE_SYM)
	if abi >= 2 {
		rights |= unix.LANDLOCK_ACCESS_FS_REFER
	}
	if abi >= 3 {
		rights |= unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	if abi >= 5 {
		rights |= unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	}
	return rights
}

const (
	landlockRead  = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR
	landlockWrite = unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	// Device nodes cannot be made anywhere.
	landlockDevices = unix.LANDLOCK_ACCESS_FS_MAKE_CHAR | unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK
)

// landlockRules are the trees of a sandbox and what is allowed below them.
var landlockRules = []struct {
	path   string
	rights uint64
}{
	{"/", landlockRead},
	// Not even its own entries: those of the threads of init, which the root
	// inside owns, have names that no mount covers.
	{"/proc", landlockRead},
	{"/dev", landlockRead | landlockWrite},
	{"/dev/shm", ^uint64(landlockDevices)},
	{"/tmp", ^uint64(landlockDevices)},
	{"/var/tmp", ^uint64(landlockDevices)},
	{"/run", ^uint64(landlockDevices)},
	{"/home/user", ^uint64(landlockDevices)},
	{"/root", ^uint64(landlockDevices)},
}

// restrictThread puts the calling thread, and what it will start, in a Landlock
// domain, where the kernel has Landlock; writable are paths beside those of every
// sandbox. The goroutine must be locked to the
// thread.
func restrictThread(writable []string) error {
	abi := landlockABI()
	if abi == 0 {
		return nil
	}
	attr := unix.LandlockRulesetAttr{Handled_access_fs: landlockRights(abi)}
	size := unsafe.Sizeof(attr.Handled_access_fs)
	if abi >= landlockScopesABI {
		attr.Scoped = unix.LANDLOCK_SCOPE_SIGNAL | unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET
		size = unsafe.Offsetof(attr.Quiet_access_fs) // up to Scoped: older kernels refuse what they do not know
	}
	r, _, e := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), size, 0)
	if e != 0 {
		return os.NewSyscallError("landlock_create_ruleset", e)
	}
	ruleset := int(r)
	defer unix.Close(ruleset)
	for _, rule := range landlockRules {
		if err := allowBeneath(ruleset, rule.path, rule.rights&attr.Handled_access_fs); err != nil {
			return err
		}
	}
	for _, path := range writable {
		rights := attr.Handled_access_fs &^ landlockDevices
		if fi, err := os.Lstat(path); err == nil && !fi.IsDir() {
			rights &= landlockWrite | landlockRead&^unix.LANDLOCK_ACCESS_FS_READ_DIR
		}
		if err := allowBeneath(ruleset, path, rights); err != nil {
			return err
		}
	}
	if _, _, e := unix.RawSyscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(ruleset), 0, 0); e != 0 {
		return os.NewSyscallError("landlock_restrict_self", e)
	}
	return nil
}

func allowBeneath(ruleset int, path string, rights uint64) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err == unix.ENOENT {
		return nil // not in every sandbox
	}
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	attr := unix.LandlockPathBeneathAttr{Allowed_access: rights, Parent_fd: int32(fd)}
	_, _, e := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(ruleset), unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&attr)), 0, 0, 0)
	if e != 0 {
		return fmt.Errorf("landlock rule for %s: %w", path, e)
	}
	return nil
}
