//go:build amd64 || arm64

package nsinit

import (
	"syscall"
	"unsafe"
)

// A machine runs one program.
type machine struct {
	control int
	fds     []int // sent with the program
	regs    [maxRegs]uintptr
	out     [maxOut]byte
	fprog   sockFprog

	files  []File
	config []byte
	probe  bool
}

// A sockFprog is struct sock_fprog of linux/filter.h.
type sockFprog struct {
	len    uint16
	filter *byte
}

// run makes the calls of a program that checkProgram approves. It returns the
// name of the one that failed.
func (m *machine) run(body []byte) (failed string, errno syscall.Errno) {
	m.readFiles(body)
	d := decoder{b: body}
	var s step
	var all everyThread
	for n := d.count(maxOps); n > 0; n-- {
		d.step(&s)
		if s.flags&flagAll != 0 {
			all.add(m, &s)
			continue
		}
		if failed, errno = all.run(); errno != 0 {
			return failed, errno
		}
		if errno = m.step(&s); errno != 0 {
			return string(s.name), errno
		}
	}
	m.resolveFiles()
	return all.run()
}

// resolveFiles replaces registers, and numbers of what was sent, by descriptors.
func (m *machine) resolveFiles() {
	for i := range m.files {
		switch f := &m.files[i]; {
		case f.FD&openedFD != 0:
			f.FD = int(m.regs[f.FD&^openedFD])
		case f.FD&sentFD != 0:
			f.FD = m.fds[f.FD&^sentFD]
		}
	}
}

// readFiles reads what comes after the calls.
func (m *machine) readFiles(body []byte) {
	d := decoder{b: body}
	var s step
	for n := d.count(maxOps); n > 0; n-- {
		d.step(&s)
	}
	n := d.count(maxFiles)
	m.files = make([]File, n)
	for i := range m.files {
		m.files[i] = File{string(d.bytes()), int(d.u32())}
	}
	m.config = d.bytes()
	m.probe = d.u8() != 0
}

func (m *machine) step(s *step) syscall.Errno {
	for i := range s.count {
		r, e := m.call(s, uintptr(i))
		if e != 0 && !s.ignores(e) {
			return e
		}
		m.regs[s.store] = r // register 0 is never read
	}
	return 0
}

func (m *machine) call(s *step, i uintptr) (uintptr, syscall.Errno) {
	switch s.nr {
	case CloseInherited:
		return 0, m.closeInherited()
	case Deafen:
		return 0, deafen()
	case RemountTree:
		if s.nargs != 1 || s.args[0].kind != argBytes {
			return 0, syscall.EINVAL
		}
		path := s.args[0].bytes
		return 0, remountTree(string(path[:len(path)-1]))
	case SendFile, KeepFile:
		return 0, m.file(s)
	}
	a := m.arguments(s, i)
	r, _, e := syscall.RawSyscall6(uintptr(s.nr), a[0], a[1], a[2], a[3], a[4], a[5])
	if e != 0 {
		return noFile, e
	}
	if s.flags&flagZero != 0 && r != 0 {
		return noFile, syscall.EINVAL
	}
	if string(m.out[s.expectAt:s.expectAt+len(s.expect)]) != string(s.expect) {
		return noFile, syscall.EINVAL
	}
	return r, 0
}

// noFile is what a call that failed stores: no descriptor has this number.
const noFile = ^uintptr(0)

// file carries out SendFile and KeepFile.
func (m *machine) file(s *step) syscall.Errno {
	if s.nargs < 2 || s.args[0].kind != argBytes || len(s.args[0].bytes) > maxName {
		return syscall.EINVAL
	}
	for i := range s.args[1:s.nargs] {
		a := &s.args[1+i]
		if a.kind != argReg {
			return syscall.EINVAL
		}
		if m.regs[a.value] == noFile {
			return 0
		}
	}
	name := s.args[0].bytes[:len(s.args[0].bytes)-1]
	fd := m.regs[s.args[1].value]
	switch {
	case s.nr == SendFile:
		return sendFile(m.control, name, int(fd))
	case len(m.files) >= maxFiles:
		return syscall.EMFILE
	}
	m.files = append(m.files, File{string(name), int(fd)})
	return 0
}

// arguments returns what goes into the registers of a call, for its repetition i.
func (m *machine) arguments(s *step, i uintptr) (out [maxArgs]uintptr) {
	for k := range s.args[:s.nargs] {
		a := &s.args[k]
		switch a.kind {
		case argReg:
			out[k] = m.regs[a.value]
		case argFD:
			out[k] = uintptr(m.fds[a.value])
		case argBytes:
			out[k] = uintptr(unsafe.Pointer(&a.bytes[0]))
		case argOut:
			clear(m.out[:a.value])
			out[k] = uintptr(unsafe.Pointer(&m.out))
		case argProg:
			m.fprog = sockFprog{uint16(len(a.bytes) / 8), &a.bytes[0]}
			out[k] = uintptr(unsafe.Pointer(&m.fprog))
		default:
			out[k] = uintptr(a.value)
		}
	}
	out[1] += i
	return out
}

// closeInherited tells what the process was given from what it has opened
// itself since (the poller of the Go runtime) by the close-on-exec flag, which
// an inherited descriptor cannot have and the runtime always sets.
func (m *machine) closeInherited() syscall.Errno {
	left := 0
	for fd := range maxDense {
		open, errno := m.closeUnnamed(fd)
		if errno != 0 {
			return errno
		}
		if open {
			left++
		}
	}
	// Since Linux 6.2 the size of the directory is the number of its entries, proc(5).
	// To read it takes ten times as long.
	var st syscall.Stat_t
	if syscall.Stat("/proc/self/fd", &st) == nil && st.Size == int64(left) {
		return 0
	}
	var errno syscall.Errno
	err := eachEntry("/proc/self/fd", func(fd int) {
		if errno == 0 {
			_, errno = m.closeUnnamed(fd)
		}
	})
	if errno == 0 {
		errno = err
	}
	return errno
}

// maxDense is how many descriptors are asked for one by one. They are given out from
// the lowest on, so that there are seldom others.
const maxDense = 128

// closeUnnamed closes a descriptor that was inherited, unless it has a name, and
// reports whether it is still open.
func (m *machine) closeUnnamed(fd int) (open bool, errno syscall.Errno) {
	flags, _, e := syscall.RawSyscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_GETFD, 0)
	switch {
	case e != 0:
		return false, 0
	case fd < 3 || flags&syscall.FD_CLOEXEC != 0:
	case fd != m.control && !m.named(fd):
		syscall.Close(fd)
		return false, 0
	default:
		_, _, errno = syscall.RawSyscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_SETFD, syscall.FD_CLOEXEC)
	}
	return true, errno
}

func (m *machine) named(fd int) bool {
	for _, f := range m.files {
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
