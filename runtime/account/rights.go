//go:build linux

package account

import (
	"fmt"
	"runtime"
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
	err = u.enter()
	if err == nil {
		err = fn()
	}
	if restoreErr := leave(saved); restoreErr != nil {
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
	if err := setFSIDs(u.UID, u.GID); err != nil {
		return fmt.Errorf("take the rights of %s: %w", u.Name, err)
	}
	return nil
}

func leave(groups []uint32) error {
	if err := setFSIDs(uint32(unix.Geteuid()), uint32(unix.Getegid())); err != nil {
		return err
	}
	return setThreadGroups(groups)
}

// setFSIDs checks its effect: setfsuid(2) and setfsgid(2) report no failure,
// but both return the id before the call.
func setFSIDs(uid, gid uint32) error {
	unix.SetfsgidRetGid(int(gid))
	unix.SetfsuidRetUid(int(uid))
	if now, _ := unix.SetfsgidRetGid(-1); uint32(now) != gid {
		return unix.EPERM
	}
	if now, _ := unix.SetfsuidRetUid(-1); uint32(now) != uid {
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
