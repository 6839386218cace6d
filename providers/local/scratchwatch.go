//go:build linux

package local

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// A scratchWatch keeps, in init, what is written to disk below a limit, where no
// file system does: it looks every second, and when there is too much it stops
// everything inside, looks again, and kills all commands. What is there stays, so
// that somebody can remove it: commands are killed again only when there is more
// than the time before. Uploads are refused before they write too much.
//
// The nil scratchWatch watches nothing.
type scratchWatch struct {
	dir   *os.File // of everything that is written
	limit diskUse
	pause *pauser
	log   *slog.Logger

	used  atomic.Int64 // bytes: what was found last, and uploaded since
	kills atomic.Uint64
	bar   diskUse // above it commands are killed; only of run
}

const (
	watchInterval = time.Second
	watchShare    = 4 // times as long as a look took until the next one
	watchTries    = 3 // looks while the tree is being changed, before it is stopped
)

// diskUse is what a tree takes.
type diskUse struct{ bytes, inodes int64 }

func (u diskUse) above(v diskUse) bool { return u.bytes > v.bytes || u.inodes > v.inodes }

// newScratchWatch returns nil when limit is zero.
func newScratchWatch(dir *os.File, limit int64, pause *pauser, log *slog.Logger) *scratchWatch {
	if limit == 0 {
		return nil
	}
	w := &scratchWatch{dir: dir, limit: diskUse{limit, scratchInodes(limit)}, pause: pause, log: log}
	w.bar = w.limit
	return w
}

func (w *scratchWatch) run() {
	for w != nil {
		start := time.Now()
		if !w.pause.paused() { // nothing changes then
			if err := w.look(); err != nil {
				w.log.Warn("what is written to disk is not measured", "err", err)
			}
		}
		time.Sleep(max(watchInterval, watchShare*time.Since(start)))
	}
}

// look measures, and kills when there is too much.
func (w *scratchWatch) look() error {
	u, err := w.measure()
	if err == nil && !u.above(w.bar) {
		w.settle(u)
		return nil
	}
	return w.pause.during(func() error {
		u, err := measureTree(w.dir)
		if err != nil {
			return err
		}
		if u.above(w.bar) {
			w.kills.Add(1)
			w.log.Warn("disk limit reached", "bytes", u.bytes, "limit", w.limit.bytes, "files", u.inodes, "limit_files", w.limit.inodes)
			if err := unix.Kill(-1, unix.SIGKILL); err != nil && err != unix.ESRCH {
				return err
			}
		}
		w.settle(u)
		return nil
	})
}

// settle takes note of what there is.
func (w *scratchWatch) settle(u diskUse) {
	w.used.Store(u.bytes)
	w.bar = diskUse{max(w.limit.bytes, u.bytes), max(w.limit.inodes, u.inodes)}
}

func (w *scratchWatch) measure() (u diskUse, err error) {
	for range watchTries {
		if u, err = measureTree(w.dir); err == nil {
			break
		}
	}
	return u, err
}

// room is asked before n bytes more are uploaded.
func (w *scratchWatch) room(n int) error {
	if w.used.Add(int64(n)) > w.limit.bytes {
		w.used.Add(int64(-n))
		return unix.ENOSPC
	}
	return nil
}

// asker is room as server.Options want it.
func (w *scratchWatch) asker() func(n int) error {
	if w == nil {
		return nil
	}
	return w.room
}

// counter is the number of kills as server.Options want it.
func (w *scratchWatch) counter() func() uint64 {
	if w == nil {
		return nil
	}
	return w.kills.Load
}

// errTreeMoved says that directories were moved while their tree was measured.
var errTreeMoved = errors.New("a directory was moved while its tree was measured")

// measureTree adds up everything below dir. It holds two descriptors, however
// deep the tree is, follows no link and enters no other file system; content that
// has several names counts once. What is removed meanwhile is left out.
func measureTree(dir *os.File) (diskUse, error) {
	fd, err := openSub(int(dir.Fd()), ".")
	if err != nil {
		return diskUse{}, err
	}
	m := &treeMeter{fd: fd, linked: map[uint64]bool{}}
	defer func() { unix.Close(m.fd) }()
	err = m.walk()
	return m.use, err
}

type treeMeter struct {
	fd     int // of the directory that it is in
	dev    uint64
	stack  []treeLevel
	linked map[uint64]bool // inodes with several names
	use    diskUse
}

type treeLevel struct {
	ino  uint64
	dirs []string // that are to be entered
}

func openSub(in int, name string) (int, error) {
	return retryEINTR(func() (int, error) {
		return unix.Openat(in, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
}

func (m *treeMeter) walk() error {
	var st unix.Stat_t
	if err := unix.Fstat(m.fd, &st); err != nil {
		return err
	}
	m.dev = st.Dev
	if err := m.enter(st.Ino); err != nil {
		return err
	}
	for len(m.stack) > 0 {
		top := &m.stack[len(m.stack)-1]
		if len(top.dirs) == 0 {
			if err := m.leave(); err != nil {
				return err
			}
			continue
		}
		name := top.dirs[len(top.dirs)-1]
		top.dirs = top.dirs[:len(top.dirs)-1]
		fd, err := openSub(m.fd, name)
		if vanished(err) {
			continue
		}
		if err == nil {
			err = unix.Fstat(fd, &st)
		}
		if err != nil {
			return &os.PathError{Op: "measure", Path: name, Err: err}
		}
		if st.Dev != m.dev {
			unix.Close(fd)
			continue
		}
		unix.Close(m.fd)
		m.fd = fd
		if err := m.enter(st.Ino); err != nil {
			return err
		}
	}
	return nil
}

// vanished reports whether a name stands for something else, or nothing, by now.
func vanished(err error) bool { return err == unix.ENOENT || err == unix.ENOTDIR || err == unix.ELOOP }

// enter counts what is in the directory that is open.
func (m *treeMeter) enter(ino uint64) error {
	fd, err := openSub(m.fd, ".") // the position of a descriptor is shared
	if vanished(err) {
		m.stack = append(m.stack, treeLevel{ino: ino})
		return nil
	}
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), "directory")
	defer f.Close()
	level := treeLevel{ino: ino}
	for {
		names, err := f.Readdirnames(1024)
		for _, name := range names {
			if m.count(name) {
				level.dirs = append(level.dirs, name)
			}
		}
		if err == io.EOF || vanished(errnoOf(err)) {
			break
		}
		if err != nil {
			return err
		}
	}
	m.stack = append(m.stack, level)
	return nil
}

// count adds what a name stands for, and reports whether it is a directory.
func (m *treeMeter) count(name string) (dir bool) {
	var st unix.Stat_t
	if unix.Fstatat(m.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil || st.Dev != m.dev {
		return false
	}
	dir = st.Mode&unix.S_IFMT == unix.S_IFDIR
	if !dir && st.Nlink > 1 {
		if m.linked[st.Ino] {
			return false
		}
		m.linked[st.Ino] = true
	}
	m.use.bytes += st.Blocks * 512 // stat(2)
	m.use.inodes++
	return dir
}

// leave goes back to the directory above.
func (m *treeMeter) leave() error {
	m.stack = m.stack[:len(m.stack)-1]
	if len(m.stack) == 0 {
		return nil
	}
	fd, err := openSub(m.fd, "..")
	if vanished(err) {
		return errTreeMoved
	}
	if err != nil {
		return err
	}
	unix.Close(m.fd)
	m.fd = fd
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Ino != m.stack[len(m.stack)-1].ino || st.Dev != m.dev {
		return errTreeMoved
	}
	return nil
}
