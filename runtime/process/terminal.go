//go:build linux

package process

import (
	"errors"
	"math"
	"os"
	"sync"

	"connectrpc.com/connect"
	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	pb "github.com/agent-sandbox/sandbox-go/internal/pb/process"
	"github.com/agent-sandbox/sandbox-go/runtime/fault"
)

// What a terminal is when the request says nothing.
const (
	defaultCols = 80
	defaultRows = 24
	defaultTerm = "xterm-256color"
	defaultLang = "C.UTF-8"
)

// terminalBuffer bounds what a terminal can hold of the output of a process
// that has ended: 64 KiB, tty_buffer.c, and what one read can give.
const terminalBuffer = 128 << 10

// terminal is the pseudo-terminal of a process.
type terminal struct {
	master *os.File // for reading and writing, with deadlines

	mu sync.Mutex
	// slave is the end of the process. A copy of it is kept until the process has
	// ended: the output of a terminal ends whenever nobody has it open, which is
	// no reason not to open it again. Nil afterwards; guarded by mu.
	slave *os.File
}

// openTerminal makes a terminal of the given size. It belongs to whoever runs
// this, as far as /dev/pts shows.
func openTerminal(size *pb.PTY_Size) (*terminal, error) {
	ws, err := windowSize(size)
	if err != nil {
		return nil, err
	}
	ws.Cols, ws.Rows = orDefault(ws.Cols, defaultCols), orDefault(ws.Rows, defaultRows)
	master, slave, err := pty.Open()
	if err != nil {
		return nil, err
	}
	t := &terminal{slave: slave}
	// The library leaves the file in blocking mode, where a read cannot be ended.
	t.master, err = nonBlocking(master)
	master.Close()
	if err == nil {
		err = errors.Join(pty.Setsize(slave, ws), eraseWholeCharacters(slave))
	}
	if err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

func orDefault(n, def uint16) uint16 {
	if n == 0 {
		return def
	}
	return n
}

// windowSize checks that a size can be one: the kernel has 16 bits for it.
func windowSize(s *pb.PTY_Size) (*pty.Winsize, error) {
	if s.GetCols() > math.MaxUint16 || s.GetRows() > math.MaxUint16 {
		return nil, fault.New(connect.CodeInvalidArgument, "E3011", "size of the terminal is too large: %d columns, %d rows", s.GetCols(), s.GetRows())
	}
	return &pty.Winsize{Cols: uint16(s.GetCols()), Rows: uint16(s.GetRows())}, nil
}

// nonBlocking returns another descriptor of f that package os waits for without
// a thread.
func nonBlocking(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// eraseWholeCharacters tells the kernel that the text is UTF-8, which matters
// for the erase key while no program edits the line itself.
func eraseWholeCharacters(slave *os.File) error {
	fd := int(slave.Fd())
	t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return os.NewSyscallError("tcgetattr", err)
	}
	t.Iflag |= unix.IUTF8
	return os.NewSyscallError("tcsetattr", unix.IoctlSetTermios(fd, unix.TCSETS, t))
}

var errTerminalEnded = errors.New("terminal has ended")

// resize sets the size; the foreground job gets SIGWINCH when it is another one.
func (t *terminal) resize(size *pb.PTY_Size) error {
	ws, err := windowSize(size)
	switch {
	case err != nil:
		return err
	case ws.Cols == 0 || ws.Rows == 0:
		return fault.New(connect.CodeInvalidArgument, "E3011", "size of the terminal is zero: %d columns, %d rows", ws.Cols, ws.Rows)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.slave == nil {
		return errTerminalEnded
	}
	return pty.Setsize(t.slave, ws)
}

// hangUp gives up our copy of the end of the process, which has ended. A nil
// terminal has none.
func (t *terminal) hangUp() {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.slave != nil {
		t.slave.Close()
		t.slave = nil
	}
}

// close is for a terminal that nobody uses.
func (t *terminal) close() {
	t.hangUp()
	if t.master != nil {
		t.master.Close()
	}
}
