//go:build amd64 || arm64

package nsinit

import (
	"syscall"
	"unsafe"
)

// run makes the calls of p. It returns the name of the one that failed.
func run(p *Program, control int) (step string, errno syscall.Errno) {
	m := machine{p: p, control: control}
	for i := 0; i < len(p.Calls); i++ {
		c := &p.Calls[i]
		if c.All {
			n := 1
			for i+n < len(p.Calls) && p.Calls[i+n].All {
				n++
			}
			if step, errno := m.everyThread(p.Calls[i : i+n]); errno != 0 {
				return step, errno
			}
			i += n - 1
			continue
		}
		r, e := m.call(c)
		if e != 0 {
			if !ignored(c, e) {
				return c.Name, e
			}
			i += c.Skip
			continue
		}
		if c.Store != 0 {
			m.regs[c.Store] = r
		}
	}
	return "", 0
}

func ignored(c *Call, e syscall.Errno) bool {
	for _, want := range c.Ignore {
		if want == e {
			return true
		}
	}
	return false
}

type machine struct {
	p       *Program
	control int
	regs    [maxRegs]uintptr
	keep    [maxArgs]any // what pointers in args point to
}

// A sockFprog is struct sock_fprog of linux/filter.h.
type sockFprog struct {
	len    uint16
	filter *byte
}

func (m *machine) call(c *Call) (uintptr, syscall.Errno) {
	switch c.Nr {
	case CloseInherited:
		return 0, m.closeInherited()
	case RemountTree:
		if len(c.Args) != 1 || len(c.Args[0].bytes) == 0 {
			return 0, syscall.EINVAL
		}
		return 0, remountTree(string(c.Args[0].bytes[:len(c.Args[0].bytes)-1]))
	}
	var a [maxArgs]uintptr
	for i := range c.Args {
		a[i] = m.arg(i, &c.Args[i])
	}
	r, _, e := syscall.RawSyscall6(uintptr(c.Nr), a[0], a[1], a[2], a[3], a[4], a[5])
	if e != 0 {
		return 0, e
	}
	if c.Zero && r != 0 {
		return 0, syscall.EINVAL
	}
	if c.Expect != nil {
		out := m.keep[c.ExpectArg].([]byte)
		if string(out[c.ExpectAt:c.ExpectAt+len(c.Expect)]) != string(c.Expect) {
			return 0, syscall.EINVAL
		}
	}
	return r, 0
}

func (m *machine) arg(i int, a *Arg) uintptr {
	switch a.kind {
	case argReg:
		return m.regs[a.value]
	case argBytes:
		if len(a.bytes) == 0 {
			return 0
		}
		m.keep[i] = a.bytes
		return uintptr(unsafe.Pointer(&a.bytes[0]))
	case argOut:
		b := make([]byte, a.value+1)
		m.keep[i] = b
		return uintptr(unsafe.Pointer(&b[0]))
	case argProg:
		if len(a.bytes) < 8 {
			return 0
		}
		f := &sockFprog{len: uint16(len(a.bytes) / 8), filter: &a.bytes[0]}
		m.keep[i] = f
		return uintptr(unsafe.Pointer(f))
	}
	return uintptr(a.value)
}

// closeInherited tells what the process was given from what it has opened
// itself since (the poller of the Go runtime) by the close-on-exec flag, which
// an inherited descriptor cannot have and the runtime always sets.
func (m *machine) closeInherited() syscall.Errno {
	var errno syscall.Errno
	err := eachEntry("/proc/self/fd", func(fd int) {
		if fd < 3 || errno != 0 {
			return
		}
		flags, _, e := syscall.RawSyscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_GETFD, 0)
		if e != 0 || flags&syscall.FD_CLOEXEC != 0 {
			return
		}
		if fd != m.control && !m.named(fd) {
			syscall.Close(fd)
			return
		}
		_, _, errno = syscall.RawSyscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_SETFD, syscall.FD_CLOEXEC)
	})
	if errno == 0 {
		errno = err
	}
	return errno
}

func (m *machine) named(fd int) bool {
	for _, f := range m.p.Files {
		if f.FD == fd {
			return true
		}
	}
	return false
}

// eachEntry calls f with the numbers among the names in a directory of procfs.
func eachEntry(dir string, f func(n int)) syscall.Errno {
	d, err := syscall.Open(dir, syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return err.(syscall.Errno)
	}
	defer syscall.Close(d)
	buf := make([]byte, 4096)
	var names []string
	for {
		n, err := syscall.ReadDirent(d, buf)
		if err != nil {
			return err.(syscall.Errno)
		}
		if n <= 0 {
			break
		}
		_, _, names = syscall.ParseDirent(buf[:n], -1, names)
	}
	for _, name := range names {
		if n, ok := number(name); ok {
			f(n)
		}
	}
	return 0
}

func number(s string) (int, bool) {
	n := 0
	for i := 0; i < len(s); i++ {
		if s[i] < '0' || s[i] > '9' || n > 1<<24 {
			return 0, false
		}
		n = n*10 + int(s[i]-'0')
	}
	return n, len(s) > 0
}
