//go:build linux

package process

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Spawner starts a program as os.StartProcess does. A server can be given one
// that adds restrictions of its own. It is called for one start at a time.
type Spawner func(name string, argv []string, attr *os.ProcAttr) (*os.Process, error)

// plainSpawner is os.StartProcess with a clean signal mask: the one of the
// thread that forks is handed on, and ours may have been handed to us.
func plainSpawner(name string, argv []string, attr *os.ProcAttr) (*os.Process, error) {
	runtime.LockOSThread()
	var none, old unix.Sigset_t
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &none, &old); err != nil {
		runtime.UnlockOSThread()
		return nil, os.NewSyscallError("pthread_sigmask", err)
	}
	p, err := os.StartProcess(name, argv, attr)
	if unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil) == nil {
		runtime.UnlockOSThread()
	}
	return p, err
}
