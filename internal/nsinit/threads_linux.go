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
	batch      *rawCall //lint:ignore U1000 for the handler
	batchLen   uintptr  //lint:ignore U1000 for the handler
	batchErrno uintptr  // of the last call that failed, or zero
	batchIndex uintptr  // of that call, counted from the end
	batchDone  uint32   //lint:ignore U1000 for the handler
)

// handlerAddr and restorerAddr return the addresses of assembly functions.
func handlerAddr() uintptr
func restorerAddr() uintptr

// loadDone reads batchDone, which another thread writes.
func loadDone() uint32

// threadSignal is the last real-time signal: nothing of Go or a C library uses it.
const threadSignal = 64

const (
	saSiginfo  = 0x4
	saOnstack  = 0x08000000
	saRestart  = 0x10000000
	saRestorer = 0x04000000 // needed on amd64, ignored on arm64
)

// everyThread collects calls and makes them in this thread, then in all others,
// those that are started meanwhile included.
type everyThread struct {
	calls [maxAll]rawCall
	names [maxAll][]byte
	may   [maxAll][]byte // errors of each that are ignored
	n     int
	first syscall.Errno // of a call that failed in this thread
	which []byte
}

// add makes the call of s in this thread and keeps it for the others.
func (t *everyThread) add(m *machine, s *step) {
	for i := range s.count {
		c := &t.calls[t.n]
		c.nr, c.args = uintptr(s.nr), m.arguments(s, uintptr(i))
		t.names[t.n], t.may[t.n] = s.name, s.ignore
		t.n++
		_, _, e := syscall.RawSyscall6(c.nr, c.args[0], c.args[1], c.args[2], c.args[3], c.args[4], c.args[5])
		if e != 0 && s.ignores(e) {
			c.nr = noCall
		} else if e != 0 && t.first == 0 {
			t.first, t.which = e, s.name
		}
	}
}

// run makes what was added in all other threads.
func (t *everyThread) run() (string, syscall.Errno) {
	if t.n == 0 || t.first != 0 {
		return string(t.which), t.first
	}
	batch, batchLen = &t.calls[0], uintptr(t.n)
	defer func() { batch = nil }()
	act := sigaction{handlerAddr(), saSiginfo | saOnstack | saRestart | saRestorer, restorerAddr(), ^uint64(0)}
	var old sigaction
	if e := rtSigaction(threadSignal, &act, &old); e != 0 {
		return "install the thread signal", e
	}
	defer rtSigaction(threadSignal, &old, nil)

	self, _, _ := syscall.RawSyscall(syscall.SYS_GETTID, 0, 0, 0)
	done := map[int]bool{int(self): true}
	var late syscall.Errno
	var lateName string
	for {
		sent := 0
		var failed syscall.Errno
		before := loadDone()
		e := eachEntry("/proc/self/task", func(tid int) {
			if done[tid] || failed != 0 {
				return
			}
			done[tid] = true
			switch e := signalThread(tid); e {
			case 0:
				sent++
			case syscall.ESRCH: // it has ended
			default:
				failed = e
			}
		})
		if e == 0 {
			e = failed
		}
		if e == 0 {
			e = awaitThreads(before, sent)
		}
		if e == syscall.EPERM || t.failedMay(e) {
			// The thread may have been started by one that had made the calls
			// already, and then it has their effect and not the right to make
			// them; or the call may fail, and hides the failure of another.
			// What the thread has is looked at in the end.
			late, lateName = e, t.failedName()
			batchErrno = 0
			e = 0
		}
		if e != 0 {
			return t.failedName(), e
		}
		if sent == 0 {
			if late != 0 && !sameCredentials() {
				return lateName, late
			}
			t.n = 0
			return "", 0
		}
	}
}

// sameCredentials reports whether all threads have the ids, the capabilities
// and the no_new_privs of this one.
func sameCredentials() bool {
	self, _, _ := syscall.RawSyscall(syscall.SYS_GETTID, 0, 0, 0)
	want, ok := credentials(int(self))
	if !ok {
		return false
	}
	e := eachEntry("/proc/self/task", func(tid int) {
		got, there := credentials(tid)
		ok = ok && (got == want || !there)
	})
	return ok && e == 0
}

// credentials returns the lines of a thread's status that say what it may do;
// false: the thread has ended.
func credentials(tid int) (string, bool) {
	fd, err := syscall.Open("/proc/self/task/"+decimal(tid)+"/status", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return "", err != syscall.ENOENT && err != syscall.ESRCH
	}
	defer syscall.Close(fd)
	var buf [8192]byte
	n, err := syscall.Read(fd, buf[:])
	if err != nil {
		return "", err != syscall.ESRCH
	}
	var out []byte
	for line := buf[:n]; len(line) > 0; {
		end := 0
		for end < len(line) && line[end] != '\n' {
			end++
		}
		for _, name := range [...]string{"Uid:", "Gid:", "Groups:", "Cap", "NoNewPrivs:"} {
			if end >= len(name) && string(line[:len(name)]) == name {
				out = append(append(out, line[:end]...), '\n')
			}
		}
		line = line[min(end+1, len(line)):]
	}
	return string(out), true
}

func decimal(n int) string {
	var b [20]byte
	i := len(b)
	for {
		i--
		b[i] = byte('0' + n%10)
		if n /= 10; n == 0 {
			return string(b[i:])
		}
	}
}

// failedMay reports whether the call that failed in another thread may fail so.
func (t *everyThread) failedMay(e syscall.Errno) bool {
	i := t.n - int(batchIndex)
	return batchErrno != 0 && i >= 0 && i < t.n && (&step{ignore: t.may[i]}).ignores(e)
}

func (t *everyThread) failedName() string {
	if i := t.n - int(batchIndex); batchErrno != 0 && i >= 0 && i < t.n {
		return string(t.names[i])
	}
	return "restrict every thread"
}

// noCall stands for a call that failed with an ignored error: getpid.
const noCall = syscall.SYS_GETPID

// signalThread has one thread make the calls.
func signalThread(tid int) syscall.Errno {
	pid, _, _ := syscall.RawSyscall(syscall.SYS_GETPID, 0, 0, 0)
	_, _, e := syscall.RawSyscall(syscall.SYS_TGKILL, pid, uintptr(tid), threadSignal)
	return e
}

const prSetTimerSlack = 29 // PR_SET_TIMERSLACK of linux/prctl.h

// maxAwaits bounds the pauses, which take 6 s and more: many sandboxes may start at
// once.
const maxAwaits = 60000

// awaitThreads waits until n threads have made the calls. One that ends instead
// makes it fail: who has what cannot be told any more.
func awaitThreads(before uint32, n int) syscall.Errno {
	// By default the kernel lets a pause last 50 µs longer than it was asked to,
	// prctl(2), which here is the greater part of it.
	syscall.RawSyscall(syscall.SYS_PRCTL, prSetTimerSlack, 1, 0)
	defer syscall.RawSyscall(syscall.SYS_PRCTL, prSetTimerSlack, 0, 0) // what it was
	for waited := 0; loadDone()-before < uint32(n); waited++ {
		if waited < 10 {
			syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0)
			continue
		}
		if waited > maxAwaits {
			return syscall.ETIMEDOUT
		}
		pause := syscall.Timespec{Nsec: 10000}
		if waited > 1000 {
			pause.Nsec = 100000 // other processes need the processor more
		}
		syscall.RawSyscall(syscall.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&pause)), 0, 0)
	}
	return syscall.Errno(batchErrno)
}
