//go:build linux

package local

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/runtime/process"
)

// A guard is a thread of init that the Go runtime does not know and therefore
// cannot hold up. It exists because of vfork: while a new command is between
// clone and exec, the Go runtime can neither collect garbage nor, with one
// processor, run anything else, and whoever runs inside as the same user may
// stop that child with a signal, for ever. The guard
//
//   - ends the sandbox when its lifetime is over, or its client is gone, and the
//     rest of init has not done so within guardGrace;
//   - continues a child that was stopped before its program ran, and kills it
//     when it is stopped again and again.
//
// It makes system calls from a page of memory of its own and touches nothing of
// the Go heap.
type guard struct {
	life, spawns *os.File // timers that it waits for
	news         *os.File // eventfd: it has to look at guardMem.poll again
	number       uint32   // of the last start of a command; starts are one at a time
}

const (
	guardGrace = 2 * time.Second // for init to end by itself

	guardFirst = 50 * time.Millisecond // from clone until the guard looks at a start
	guardNext  = 10 * time.Millisecond // between two looks
	guardKill  = 30                    // looks before a child that is stopped is killed
)

// spawnComm is the name of a child of init until its program runs.
const spawnComm = "sandbox-start"

// guardMem is all that the guard works with. Its memory holds no pointers, so
// that no barrier of the garbage collector is ever needed.
var guardMem struct {
	poll [4]struct {
		fd              int32
		events, revents int16
	}
	note     int32  // descriptor, or -1
	spawning uint32 // number of the start under way, or zero; written by init
	killed   uint32 // number of the start whose child was killed; written by the guard

	ticks [8]byte
	info  [128]byte // siginfo_t
	path  [32]byte
	comm  [16]byte
	pause [2]int64 // struct timespec
}

// Positions in guardMem.poll.
const (
	guardLife = iota
	guardLifeline
	guardSpawns
	guardNews
)

// startGuard starts the guard of a sandbox that ends at deadline, and has no
// lifeline yet. It lives as long as the process; one process has at most one.
func startGuard(deadline int64, note *os.File) (*guard, error) {
	g := &guard{}
	var err error
	if g.life, err = guardTimer(unix.CLOCK_BOOTTIME); err == nil {
		g.spawns, err = guardTimer(unix.CLOCK_MONOTONIC)
	}
	if err == nil {
		var fd int
		fd, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
		g.news = os.NewFile(uintptr(fd), "guard")
	}
	if err == nil {
		err = g.expire(deadline)
	}
	if err != nil {
		return nil, err
	}
	m := &guardMem
	m.poll[guardLife].fd, m.poll[guardLife].events = int32(g.life.Fd()), unix.POLLIN
	m.poll[guardSpawns].fd, m.poll[guardSpawns].events = int32(g.spawns.Fd()), unix.POLLIN
	m.poll[guardNews].fd, m.poll[guardNews].events = int32(g.news.Fd()), unix.POLLIN
	m.poll[guardLifeline].fd = -1
	if m.note, err = guardCopy(note); err != nil {
		return nil, err
	}
	return g, startGuardThread()
}

// guardCopy is a copy of f, because numbers that are closed elsewhere are given
// out again; -1 for nil.
func guardCopy(f *os.File) (int32, error) {
	if f == nil {
		return -1, nil
	}
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	return int32(fd), err
}

// follow has the guard end the sandbox also when the other end of lifeline, which
// may be nil, is closed. It is called once.
func (g *guard) follow(lifeline *os.File) error {
	fd, err := guardCopy(lifeline)
	if err != nil {
		return err
	}
	atomic.StoreInt32(&guardMem.poll[guardLifeline].fd, fd)
	_, err = unix.Write(int(g.news.Fd()), []byte{1, 0, 0, 0, 0, 0, 0, 0}) // a number in the order of the machine, other than 0
	return err
}

// guardInit starts the guard of this sandbox, which ends with life, and has it look
// after all starts of commands.
func guardInit(in *inside, l *life) error {
	g, err := startGuard(l.deadline, in.extra[extraNote])
	if err != nil {
		return err
	}
	l.guard = g
	in.spawn = g.spawner(in.spawn)
	return nil
}

// setThreadName names the thread, and so the children that it starts.
func setThreadName(name string) error {
	b, err := unix.BytePtrFromString(name)
	if err != nil {
		return err
	}
	return unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(b)), 0, 0, 0)
}

// onThread runs f on one thread.
func onThread(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return f()
}

func guardTimer(clock int) (*os.File, error) {
	fd, err := unix.TimerfdCreate(clock, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "guard"), nil
}

// startGuardThread starts the thread with every signal blocked: a handler of
// the Go runtime must not run on it.
func startGuardThread() error {
	const size = 64 << 10
	stack, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_STACK)
	if err != nil {
		return err
	}
	var all, old unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^all.Val[i]
	}
	const flags = unix.CLONE_VM | unix.CLONE_FS | unix.CLONE_FILES | unix.CLONE_SIGHAND | unix.CLONE_THREAD | unix.CLONE_SYSVSEM
	return onThread(func() error {
		if err := unix.PthreadSigmask(unix.SIG_SETMASK, &all, &old); err != nil {
			return err
		}
		tid := cloneGuard(flags, uintptr(unsafe.Pointer(&stack[0]))+size)
		if err := unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil); err != nil {
			return err
		}
		if int(tid) < 0 {
			return syscall.Errno(-tid)
		}
		return nil
	})
}

// cloneGuard is clone(2); the new thread runs guardMain on the stack below
// stack. The result is its number, or a negative errno.
func cloneGuard(flags, stack uintptr) (tid uintptr)

// expire sets the end of the lifetime, CLOCK_BOOTTIME in ns.
func (g *guard) expire(deadline int64) error {
	at := max(deadline, 1)
	if at+int64(guardGrace) > at {
		at += int64(guardGrace)
	}
	return unix.TimerfdSettime(int(g.life.Fd()), unix.TFD_TIMER_ABSTIME, &unix.ItimerSpec{Value: unix.NsecToTimespec(at)}, nil)
}

// errHeldUp is the answer to the start of a command that other processes did
// not let come to its program.
var errHeldUp = errors.New("processes of the sandbox stopped it again and again before its program ran")

// spawner has the guard look after starts, which come one at a time.
func (g *guard) spawner(next process.Spawner) process.Spawner {
	return func(name string, argv []string, attr *os.ProcAttr) (*os.Process, error) {
		if g.number++; g.number == 0 {
			g.number = 1
		}
		watch := &unix.ItimerSpec{Value: unix.NsecToTimespec(int64(guardFirst)), Interval: unix.NsecToTimespec(int64(guardNext))}
		if err := unix.TimerfdSettime(int(g.spawns.Fd()), 0, watch, nil); err != nil {
			return nil, fmt.Errorf("watch the start: %w", err)
		}
		atomic.StoreUint32(&guardMem.spawning, g.number)
		p, err := next(name, argv, attr)
		atomic.StoreUint32(&guardMem.spawning, 0)
		_ = unix.TimerfdSettime(int(g.spawns.Fd()), 0, &unix.ItimerSpec{}, nil) // what fires finds no start
		if err == nil && atomic.LoadUint32(&guardMem.killed) == g.number {
			_ = p.Kill()
			return nil, errors.Join(errHeldUp, wait(p))
		}
		return p, err
	}
}

// guardMain is the guard. It runs without a goroutine: it must not allocate,
// grow its stack, panic, or call anything that may.
//
//lint:ignore U1000 guard_*.s calls it
//go:nosplit
//go:norace
//go:nocheckptr
func guardMain() {
	m := &guardMem
	looks, number := 0, uint32(0)
	for {
		n, _, _ := syscall.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&m.poll)), uintptr(len(m.poll)), 0, 0, 0, 0)
		if int(n) <= 0 {
			continue // cannot be: there is no time limit, and no signal
		}
		if m.poll[guardLife].revents != 0 {
			guardEnd(&guardExpired)
		}
		if m.poll[guardLifeline].revents&(unix.POLLHUP|unix.POLLERR) != 0 {
			m.pause = [2]int64{int64(guardGrace / time.Second), 0}
			syscall.RawSyscall6(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&m.pause)), 0, 0, 0, 0, 0)
			guardEnd(&guardClient)
		}
		if m.poll[guardNews].revents != 0 {
			syscall.RawSyscall6(unix.SYS_READ, uintptr(m.poll[guardNews].fd), uintptr(unsafe.Pointer(&m.ticks)), 8, 0, 0, 0)
		}
		if m.poll[guardSpawns].revents == 0 {
			continue
		}
		syscall.RawSyscall6(unix.SYS_READ, uintptr(m.poll[guardSpawns].fd), uintptr(unsafe.Pointer(&m.ticks)), 8, 0, 0, 0)
		if now := m.spawning; now != number {
			looks, number = 0, now
		}
		if number == 0 {
			continue
		}
		looks++
		guardStopped(looks > guardKill, number)
	}
}

// What the guard writes into the note of the end.
var (
	guardExpired = [8]byte{'e', 'x', 'p', 'i', 'r', 'e', 'd', '\n'}
	guardClient  = [8]byte{'c', 'l', 'i', 'e', 'n', 't', '\n', '\n'}
)

//go:nosplit
//go:norace
//go:nocheckptr
func guardEnd(why *[8]byte) {
	syscall.RawSyscall6(unix.SYS_WRITE, uintptr(guardMem.note), uintptr(unsafe.Pointer(why)), 8, 0, 0, 0)
	syscall.RawSyscall6(unix.SYS_EXIT_GROUP, 0, 0, 0, 0, 0, 0)
}

// guardStopped looks at children that have stopped since the last look and
// continues, or kills, the one whose program does not run yet.
//
//go:nosplit
//go:norace
//go:nocheckptr
func guardStopped(kill bool, number uint32) {
	m := &guardMem
	for range 64 {
		*(*int32)(unsafe.Pointer(&m.info[siPid])) = 0
		syscall.RawSyscall6(unix.SYS_WAITID, unix.P_ALL, 0, uintptr(unsafe.Pointer(&m.info)), unix.WSTOPPED|unix.WNOHANG, 0, 0)
		pid := *(*int32)(unsafe.Pointer(&m.info[siPid]))
		if pid <= 1 {
			return
		}
		if !guardIsStart(pid) {
			continue
		}
		sig := uintptr(unix.SIGCONT)
		if kill {
			m.killed = number
			sig = uintptr(unix.SIGKILL)
		}
		syscall.RawSyscall6(unix.SYS_KILL, uintptr(pid), sig, 0, 0, 0, 0)
	}
}

// siPid is where siginfo_t has si_pid, sigaction(2).
const siPid = (3*4 + unsafe.Sizeof(uintptr(0)) - 1) &^ (unsafe.Sizeof(uintptr(0)) - 1)

// guardIsStart reports whether a child of init is one whose program does not
// run yet. Programs may call themselves so, too: then they are taken for one.
//
//go:nosplit
//go:norace
//go:nocheckptr
func guardIsStart(pid int32) bool {
	const before, after = "/proc/", "/comm"
	m := &guardMem
	n := 0
	for i := range len(before) {
		m.path[n&31] = before[i]
		n++
	}
	div := int32(1)
	for pid/div >= 10 {
		div *= 10
	}
	for ; div > 0; div /= 10 {
		m.path[n&31] = byte('0' + pid/div%10)
		n++
	}
	for i := range len(after) {
		m.path[n&31] = after[i]
		n++
	}
	m.path[n&31] = 0
	at := int32(unix.AT_FDCWD)
	fd, _, e := syscall.RawSyscall6(unix.SYS_OPENAT, uintptr(at), uintptr(unsafe.Pointer(&m.path)), unix.O_RDONLY|unix.O_CLOEXEC, 0, 0, 0)
	if e != 0 {
		return false
	}
	got, _, _ := syscall.RawSyscall6(unix.SYS_READ, fd, uintptr(unsafe.Pointer(&m.comm)), uintptr(len(m.comm)), 0, 0, 0)
	syscall.RawSyscall6(unix.SYS_CLOSE, fd, 0, 0, 0, 0, 0)
	if int(got) != len(spawnComm)+1 {
		return false
	}
	for i := range len(spawnComm) {
		if m.comm[i&15] != spawnComm[i] {
			return false
		}
	}
	return true
}
