//go:build linux

package filesystem

import (
	"encoding/binary"
	"errors"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// watchMask is what is asked of the kernel about a folder, inotify(7). A folder
// is added by its descriptor, and nothing but a folder is.
const watchMask = unix.IN_CREATE | unix.IN_DELETE | unix.IN_DELETE_SELF | unix.IN_MODIFY | unix.IN_ATTRIB |
	unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_MOVE_SELF | unix.IN_ONLYDIR

// notifier is one inotify instance. read is for one goroutine, which also is
// the only one that calls the other methods, but for stop.
type notifier struct {
	fd   int
	file *os.File
	buf  []byte
}

// notice is one event of inotify(7). name is empty where the watched folder
// itself is meant.
type notice struct {
	wd     int32
	mask   uint32
	cookie uint32
	name   string
}

func newNotifier() (*notifier, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, err
	}
	return &notifier{fd: fd, file: os.NewFile(uintptr(fd), "inotify"), buf: make([]byte, 64<<10)}, nil
}

// add watches the open folder dir, with the rights in force now: the kernel asks
// for the right to read it.
func (n *notifier) add(dir *os.File) (wd int32, err error) {
	for {
		w, err := unix.InotifyAddWatch(n.fd, fdPath(int(dir.Fd())), watchMask)
		if err != unix.EINTR {
			return int32(w), err
		}
	}
}

// drop ends a watch. One that has ended by itself is not an error.
func (n *notifier) drop(wd int32) { _, _ = unix.InotifyRmWatch(n.fd, uint32(wd)) }

// read waits for events and returns some, in order.
func (n *notifier) read() ([]notice, error) {
	k, err := n.file.Read(n.buf)
	if err != nil {
		return nil, err
	}
	return parseNotices(n.buf[:k])
}

// idle reports whether every event so far has been read.
func (n *notifier) idle() bool {
	left, err := unix.IoctlGetInt(n.fd, unix.TIOCINQ) // FIONREAD by another name
	return err != nil || left == 0
}

// wakeAt makes a read that is waiting then fail; zero: never.
func (n *notifier) wakeAt(t time.Time) { _ = n.file.SetReadDeadline(t) }

func (n *notifier) close() { n.file.Close() }

var errNotices = errors.New("the kernel sent half an event")

// parseNotices takes the events of one read apart.
func parseNotices(b []byte) ([]notice, error) {
	out := make([]notice, 0, len(b)/unix.SizeofInotifyEvent)
	for len(b) > 0 {
		if len(b) < unix.SizeofInotifyEvent {
			return out, errNotices
		}
		e := notice{
			wd:     int32(binary.NativeEndian.Uint32(b)),
			mask:   binary.NativeEndian.Uint32(b[4:]),
			cookie: binary.NativeEndian.Uint32(b[8:]),
		}
		size := binary.NativeEndian.Uint32(b[12:])
		b = b[unix.SizeofInotifyEvent:]
		if uint64(size) > uint64(len(b)) {
			return out, errNotices
		}
		e.name, _, _ = strings.Cut(string(b[:size]), "\x00") // filled up with zeros
		b = b[size:]
		out = append(out, e)
	}
	return out, nil
}
