//go:build amd64 || arm64

package nsinit

import (
	"syscall"
	"unsafe"
)

// Capabilities, the bounding set and ids belong to a thread, and the Go runtime
// has started threads before the first init function runs.
// syscall.AllThreadsSyscall does not work in programs with cgo, which is what
// go build makes wherever it finds a C compiler. So every other thread gets a
// signal whose handler, a few lines of assembly that touch nothing of the Go
// runtime, makes the calls.

// rawCall is laid out for the handler: number and arguments.
type rawCall struct {
	nr   uintptr
	args [maxArgs]uintptr
}

// Read and written by the handler.
var (
	batch      *rawCall
	batchLen   uintptr
	batchErrno uintptr // of the last call that failed, or zero
	batchIndex uintptr // of that call, counted from the end
	batchDone  uint32
)

// handlerAddr and restorerAddr return the addresses of assembly functions.
func handlerAddr() uintptr
func restorerAddr() uintptr

// loadDone reads batchDone, which another thread writes.
func loadDone() uint32

// threadSignal is the last real-time signal: nothing of Go or a C library uses it.
const threadSignal = 64

// sigaction is the kernel's struct, which amd64 and arm64 share.
type sigaction struct {
	handler  uintptr
	flags    uint64
	restorer uintptr
	mask     uint64
}

const (
	saSiginfo  = 0x4
	saOnstack  = 0x08000000
	saRestart  = 0x10000000
	saRestorer = 0x04000000 // needed on amd64, ignored on arm64
)

// everyThread makes calls in this thread, then in all others, those that are
// started meanwhile included.
func (m *machine) everyThread(calls []Call) (string, syscall.Errno) {
	raw := make([]rawCall, len(calls))
	for i := range calls {
		c := &calls[i]
		raw[i].nr = uintptr(c.Nr)
		for j := range c.Args {
			raw[i].args[j] = m.arg(j, &c.Args[j])
		}
		a := &raw[i].args
		_, _, e := syscall.RawSyscall6(raw[i].nr, a[0], a[1], a[2], a[3], a[4], a[5])
		if e != 0 {
			if !ignored(c, e) {
				return c.Name, e
			}
			raw[i].nr = noCall
		}
	}
	batch, batchLen = &raw[0], uintptr(len(raw))
	defer func() { batch = nil }()

	act := sigaction{handlerAddr(), saSiginfo | saOnstack | saRestart | saRestorer, restorerAddr(), ^uint64(0)}
	var old sigaction
	if e := rtSigaction(&act, &old); e != 0 {
		return "install the thread signal", e
	}
	defer rtSigaction(&old, nil)

	self, _, _ := syscall.RawSyscall(syscall.SYS_GETTID, 0, 0, 0)
	done := map[int]bool{int(self): true}
	for again := true; again; {
		again = false
		var errno syscall.Errno
		if e := eachEntry("/proc/self/task", func(tid int) {
			if errno == 0 && !done[tid] {
				errno = signalThread(tid)
				done[tid], again = true, true
			}
		}); e != 0 {
			return "list the threads", e
		}
		if errno != 0 {
			name := "restrict every thread"
			if i := len(calls) - int(batchIndex); batchErrno != 0 && i >= 0 && i < len(calls) {
				name = calls[i].Name
			}
			return name, errno
		}
	}
	return "", 0
}

// noCall stands for a call that failed with an ignored error: getpid.
const noCall = syscall.SYS_GETPID

// signalThread has one thread make the calls and waits for it.
func signalThread(tid int) syscall.Errno {
	pid, _, _ := syscall.RawSyscall(syscall.SYS_GETPID, 0, 0, 0)
	before := loadDone()
	_, _, e := syscall.RawSyscall(syscall.SYS_TGKILL, pid, uintptr(tid), threadSignal)
	for waited := 0; e == 0; waited++ {
		if loadDone() != before {
			return syscall.Errno(batchErrno)
		}
		if waited > 40000 { // 2 s
			return syscall.ETIMEDOUT
		}
		if waited > 20 {
			pause := syscall.Timespec{Nsec: 50000}
			syscall.RawSyscall(syscall.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&pause)), 0, 0)
		} else {
			syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0)
		}
		_, _, e = syscall.RawSyscall(syscall.SYS_TGKILL, pid, uintptr(tid), 0)
	}
	if e == syscall.ESRCH {
		return 0 // it has ended
	}
	return e
}

func rtSigaction(act, old *sigaction) syscall.Errno {
	_, _, e := syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, threadSignal, uintptr(unsafe.Pointer(act)), uintptr(unsafe.Pointer(old)), 8, 0, 0)
	return e
}
