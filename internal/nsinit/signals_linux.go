//go:build amd64 || arm64

package nsinit

import (
	"syscall"
	"unsafe"
)

// The kernel keeps signals from inside away from a pid 1 that has no handler
// for them, but the Go runtime has one for nearly all and ends the process in
// some. Landlock cannot keep commands from sending them: the thread that starts
// commands is in the same domain as they are, and signals to a thread reach the
// whole process. So they are taken out of the runtime's hands here.

// ignored are signals that init has no use for. Their action is set without the
// runtime's knowledge: it goes on believing that they have its handler, and so
// resets them in the children that it starts.
var ignored = [...]syscall.Signal{
	syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGABRT, syscall.SIGUSR1, syscall.SIGUSR2,
	syscall.SIGPIPE, syscall.SIGALRM, syscall.SIGTERM, syscall.SIGSTKFLT, syscall.SIGXCPU, syscall.SIGXFSZ,
	syscall.SIGVTALRM, syscall.SIGPROF, syscall.SIGWINCH, syscall.SIGIO, syscall.SIGPWR,
}

// faults are signals that the runtime turns into panics. Those that the kernel
// raises must still reach it; those that somebody has sent are dropped. They
// differ in si_code, which no sender can make positive (rt_sigqueueinfo(2)).
var faults = [...]syscall.Signal{
	syscall.SIGILL, syscall.SIGTRAP, syscall.SIGBUS, syscall.SIGFPE, syscall.SIGSEGV, syscall.SIGSYS,
}

// goHandler is the runtime's handler of faults; the filter jumps there.
var goHandler uintptr

// filterAddr returns the address of the filter.
func filterAddr() uintptr

// deafen keeps signals from inside from ending this process.
func deafen() syscall.Errno {
	for _, sig := range ignored {
		if e := rtSigaction(sig, &sigaction{handler: 1}, nil); e != 0 { // SIG_IGN
			return e
		}
	}
	for _, sig := range faults {
		var act sigaction
		if e := rtSigaction(sig, nil, &act); e != 0 {
			return e
		}
		if act.handler <= 1 || goHandler != 0 && act.handler != goHandler {
			return syscall.EINVAL // not what the runtime does
		}
		goHandler = act.handler
		act.handler = filterAddr()
		if e := rtSigaction(sig, &act, nil); e != 0 {
			return e
		}
	}
	return 0
}

// sigaction is the kernel's struct, which amd64 and arm64 share.
type sigaction struct {
	handler  uintptr
	flags    uint64
	restorer uintptr
	mask     uint64
}

func rtSigaction(sig syscall.Signal, act, old *sigaction) syscall.Errno {
	_, _, e := syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(act)), uintptr(unsafe.Pointer(old)), 8, 0, 0)
	return e
}
