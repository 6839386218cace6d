//go:build amd64 || arm64

package nsinit

import (
	"syscall"
	"unsafe"
)

// Supported says that this package can build a sandbox on this platform.
const Supported = true

// state is what the process keeps of its program. It is written in init, on
// the one goroutine there is, and never after.
var state struct {
	active  bool
	control int
	config  []byte
	files   []File
}

// Active reports whether this process is the pid 1 of a sandbox. When it is,
// the sandbox is complete.
func Active() bool { return state.active }

// Config returns the opaque bytes of the program.
func Config() []byte { return state.config }

// FD returns the descriptor that the client passed under name, or -1. It is
// close-on-exec and belongs to the caller.
func FD(name string) int {
	for _, f := range state.files {
		if f.Name == name {
			return f.FD
		}
	}
	return -1
}

// Ready tells the client that the process serves, with a payload of at most
// [MaxReply] less a hundred bytes, and closes the control socket. A client
// that is gone is an error.
func Ready(payload []byte) error {
	defer syscall.Close(state.control)
	r := Reply{Ready: payload}
	return sendAll(state.control, r.encode())
}

func init() {
	// What the frames of a worker travel on must not reach the children that
	// initialisers of its program may start.
	cloexecNamed("SANDBOX_WORKER_FD")
	cloexecNamed("SANDBOX_WORKER_COUNTER_FD")

	v, ok := syscall.Getenv(EnvSocket)
	if !ok {
		return
	}
	fd, ok := parseFD(v)
	if !ok || !isSocket(fd) {
		die(EnvSocket + "=" + v + " is set, but that descriptor is no socket of a sandbox's client; unset it\n")
	}
	syscall.Unsetenv(EnvSocket)
	state.control = fd

	body, fds := receive(fd)
	m := machine{control: fd, fds: fds}
	if step, errno := m.run(body); errno != 0 {
		r := Reply{Step: step, Errno: errno}
		_ = sendAll(fd, r.encode()) // without a reader there is nobody to tell
		syscall.Exit(1)
	}
	if m.probe {
		if Ready(nil) != nil {
			syscall.Exit(1)
		}
		syscall.Exit(0)
	}
	state.config, state.files, state.active = m.config, m.files, true
}

// receive waits for the program and what is sent with it. A client that goes
// away first wants nothing any more.
func receive(fd int) (body []byte, fds []int) {
	var h [HeaderSize]byte
	oob := make([]byte, 16+4*maxTrees+8)
	n, oobn := recvHeader(fd, h[:], oob)
	if n == 0 || n < len(h) && !readAll(fd, h[n:]) {
		syscall.Exit(0)
	}
	if oobn > 0 {
		msgs, err := syscall.ParseSocketControlMessage(oob[:oobn])
		if err == nil && len(msgs) == 1 {
			fds, err = syscall.ParseUnixRights(&msgs[0])
		}
		if err != nil {
			die("the program on the control socket is malformed\n")
		}
	}
	size := get32(h[4:])
	if get32(h[:]) != magicProgram || size > MaxProgram {
		die("the program on the control socket is malformed\n")
	}
	body = make([]byte, size)
	if !readAll(fd, body) {
		syscall.Exit(0)
	}
	if !checkProgram(body, len(fds)) {
		die("the program on the control socket is malformed\n")
	}
	return body, fds
}

func recvHeader(fd int, p, oob []byte) (n, oobn int) {
	for {
		n, oobn, flags, _, err := syscall.Recvmsg(fd, p, oob, syscall.MSG_CMSG_CLOEXEC)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || flags&syscall.MSG_CTRUNC != 0 {
			return 0, 0
		}
		return n, oobn
	}
}

func die(text string) {
	b := []byte("sandbox: " + text)
	_, _ = syscall.Write(2, b)
	syscall.Exit(2)
}

func cloexecNamed(env string) {
	if v, ok := syscall.Getenv(env); ok {
		if fd, ok := parseFD(v); ok {
			syscall.CloseOnExec(fd)
		}
	}
}

// parseFD reads a descriptor number from 3 up.
func parseFD(s string) (int, bool) {
	if len(s) == 0 || len(s) > 6 {
		return 0, false
	}
	n := 0
	for i := 0; i < len(s); i++ {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
		n = n*10 + int(s[i]-'0')
	}
	return n, n >= 3
}

func isSocket(fd int) bool {
	domain, err := syscall.GetsockoptInt(fd, syscall.SOL_SOCKET, 39) // SO_DOMAIN
	if err != nil || domain != syscall.AF_UNIX {
		return false
	}
	typ, err := syscall.GetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_TYPE)
	return err == nil && typ == syscall.SOCK_STREAM
}

func readAll(fd int, b []byte) bool {
	for len(b) > 0 {
		n, err := syscall.Read(fd, b)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || n == 0 {
			return false
		}
		b = b[n:]
	}
	return true
}

// sendFile sends a name and, with the first byte before it, a descriptor.
func sendFile(fd int, name []byte, file int) syscall.Errno {
	b := make([]byte, HeaderSize, HeaderSize+maxName)
	put32(b, magicFile)
	put32(b[4:], uint32(len(name)))
	b = append(b, name...)
	for {
		n, err := syscall.SendmsgN(fd, b, syscall.UnixRights(file), nil, syscall.MSG_NOSIGNAL)
		if err == syscall.EINTR {
			continue
		}
		if err == nil {
			err = sendAll(fd, b[n:])
		}
		if errno, ok := err.(syscall.Errno); ok {
			return errno
		}
		return 0
	}
}

func sendAll(fd int, b []byte) error {
	for len(b) > 0 {
		n, _, e := syscall.Syscall6(syscall.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), syscall.MSG_NOSIGNAL, 0, 0)
		if e == syscall.EINTR {
			continue
		}
		if e != 0 {
			return e
		}
		b = b[n:]
	}
	return nil
}
