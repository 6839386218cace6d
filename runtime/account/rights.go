//go:build linux

package account

import (
	"fmt"
	"runtime"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Do runs fn with the file rights of u: files it makes belong to u, and what u
// may not reach, fn may not reach. fn must not start goroutines that need these
// rights: they are those of one thread.
func (u *User) Do(fn func() error) error {
	if !u.switches {
		return fn()
	}
	runtime.LockOSThread()
	saved, err := threadGroups()
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("read the groups of the server: %w", err)
	}
	own := ids{uint32(unix.Geteuid()), uint32(unix.Getegid())}
	err = u.enter()
	if err == nil {
		err = fn()
	}
	if restoreErr := leave(own, saved); restoreErr != nil {
		// The thread stays locked, so it ends with this goroutine and nobody
		// else runs with the rights of u.
		return fmt.Errorf("return to the rights of the server: %w", restoreErr)
	}
	runtime.UnlockOSThread()
	return err
}

// enter changes the identity of this thread only, which is what the raw calls
// do; the wrappers of package syscall change all threads.
func (u *User) enter() error {
	if err := setThreadGroups(u.Groups); err != nil {
		return fmt.Errorf("take the groups of %s: %w", u.Name, err)
	}
	if err := setFileIDs(ids{u.UID, u.GID}); err != nil {
		return fmt.Errorf("take the rights of %s: %w", u.Name, err)
	}
	return nil
}

func leave(own ids, groups []uint32) error {
	if err := setFileIDs(own); err != nil {
		return err
	}
	return setThreadGroups(groups)
}

type ids struct{ uid, gid uint32 }

// setFileIDs changes whose files this thread can reach.
func setFileIDs(to ids) error {
	if !hasFSIDs() {
		return setEffectiveIDs(to)
	}
	return setFSIDs(to)
}

// hasFSIDs reports whether the kernel knows setfsuid(2), which gVisor's does not.
var hasFSIDs = sync.OnceValue(func() bool {
	_, err := unix.SetfsuidRetUid(-1)
	return err != unix.ENOSYS
})

// setEffectiveIDs stands in for setFSIDs. Who may send signals to this thread is
// decided by the other two of its ids, which stay the server's; so does the right
// to return. The capabilities are gone with the effective id of root and come
// back with it, so that the group has to be changed while they are there.
func setEffectiveIDs(to ids) error {
	const keep = ^uintptr(0)
	uid := func() error { return call(unix.SYS_SETRESUID, keep, uintptr(to.uid), keep) }
	gid := func() error { return call(unix.SYS_SETRESGID, keep, uintptr(to.gid), keep) }
	if to.uid == 0 {
		if err := uid(); err != nil {
			return err
		}
		return gid()
	}
	if err := gid(); err != nil {
		return err
	}
	return uid()
}

func call(nr uintptr, a, b, c uintptr) error {
	if _, _, e := unix.RawSyscall(nr, a, b, c); e != 0 {
		return e
	}
	return nil
}

// setFSIDs checks its effect: setfsuid(2) and setfsgid(2) report no failure,
// but both return the id before the call.
func setFSIDs(to ids) error {
	unix.SetfsgidRetGid(int(to.gid))
	unix.SetfsuidRetUid(int(to.uid))
	if now, _ := unix.SetfsgidRetGid(-1); uint32(now) != to.gid {
		return unix.EPERM
	}
	if now, _ := unix.SetfsuidRetUid(-1); uint32(now) != to.uid {
		return unix.EPERM
	}
	return nil
}

func setThreadGroups(groups []uint32) error {
	var p unsafe.Pointer
	if len(groups) > 0 {
		p = unsafe.Pointer(&groups[0])
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(p), 0); e != 0 {
		return e
	}
	return nil
}

func threadGroups() ([]uint32, error) {
	n, _, e := unix.RawSyscall(unix.SYS_GETGROUPS, 0, 0, 0)
	if e != 0 {
		return nil, e
	}
	if n == 0 {
		return nil, nil
	}
	groups := make([]uint32, n)
	n, _, e = unix.RawSyscall(unix.SYS_GETGROUPS, n, uintptr(unsafe.Pointer(&groups[0])), 0)
	if e != 0 {
		return nil, e
	}
	return groups[:n], nil
}
