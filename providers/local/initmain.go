//go:build linux

package local

import (
	"fmt"
	"os"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/internal/nsinit"
)

// In pid 1 of a sandbox this never returns: the server runs here, before the
// initialisers of everything that imports the client, and main never runs.
func init() {
	if nsinit.Active() {
		serveMain(takeOver())
	}
}

// Names of the descriptors that init is given; extras are numbered.
const (
	fdListener = "listener"
	fdControl  = "control"
	fdLock     = "lock"
	fdLifeline = "lifeline"
	fdExtra    = "extra"
)

// takeOver turns what the construction left into what serveMain needs. A
// failure here means that a protection is missing, so it ends the sandbox.
func takeOver() *inside {
	in := &inside{
		config:   nsinit.Config(),
		listener: inherited(fdListener),
		control:  inherited(fdControl),
		lock:     inherited(fdLock),
		lifeline: inherited(fdLifeline),
		ready:    nsinit.Ready,
	}
	for i := 0; ; i++ {
		f := inherited(fdExtra + strconv.Itoa(i))
		if f == nil {
			break
		}
		in.extra = append(in.extra, f)
	}
	s, err := newSpawner(func() (err error) {
		in.landlock, err = restrictThread()
		return err
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "sandbox: the thread that starts commands cannot be restricted:", err)
		os.Exit(1)
	}
	in.spawn, in.onSpawner = s.spawn, s.run
	in.canSwitchUser = os.Geteuid() == 0
	shrugOff(in.landlock >= landlockScopesABI)
	return in
}

func inherited(name string) *os.File {
	fd := nsinit.FD(name)
	if fd < 0 {
		return nil
	}
	return os.NewFile(uintptr(fd), name)
}

// shrugOff keeps signals from inside from ending init. The kernel drops those
// that pid 1 has no handler for, but the Go runtime has handlers for nearly all
// and ends the process in some. They are ignored behind the runtime's back: it
// goes on believing that they have its handler, and so resets them in children,
// which package signal would not do for ignored ones.
//
// Signals that tell of faults stay as they are where Landlock keeps commands
// from sending any. Elsewhere a command of the same user could pass one off as
// a fault of init's own, so there they are ignored, too, at the price that a
// true fault ends init.
func shrugOff(scoped bool) {
	for _, sig := range []syscall.Signal{
		unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGABRT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGPIPE,
		unix.SIGALRM, unix.SIGTERM, unix.SIGSTKFLT, unix.SIGXCPU, unix.SIGXFSZ, unix.SIGVTALRM,
		unix.SIGWINCH, unix.SIGIO, unix.SIGPWR,
	} {
		ignoreSignal(sig)
	}
	if scoped {
		return
	}
	for _, sig := range []syscall.Signal{unix.SIGILL, unix.SIGTRAP, unix.SIGBUS, unix.SIGFPE, unix.SIGSEGV, unix.SIGPROF, unix.SIGSYS} {
		ignoreSignal(sig)
	}
}

// ignoreSignal sets the action of a signal to SIG_IGN without telling the Go
// runtime.
func ignoreSignal(sig syscall.Signal) {
	var act [4]uintptr // struct sigaction of the kernel; amd64 and arm64 share it
	act[0] = 1         // SIG_IGN
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&act)), 0, 8, 0, 0)
}
