//go:build linux

package filesystem

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	pb "github.com/agent-sandbox/sandbox-go/internal/pb/filesystem"
	"github.com/agent-sandbox/sandbox-go/runtime/account"
	"github.com/agent-sandbox/sandbox-go/runtime/fault"
)

// unreachableWait is how long the event may take that explains why the watched
// folder is not where it was.
const unreachableWait = time.Second

// maxArriving bounds the uploads that a watch sees between their two names.
const maxArriving = 1024

// maxPending bounds what a watch has to look for again.
const maxPending = 64 << 10

// watcher watches one folder for one user. It has a goroutine, which owns all
// fields but queue; stop ends it.
type watcher struct {
	user      *account.User
	guard     guard
	real      string // where the folder was when the watch began, after links; for guard
	path      string // of the folder, absolute
	dev, ino  uint64 // of the folder
	recursive bool
	uploads   *uploads
	queue     *changes

	kernel      *notifier
	tree        watchTree
	arriving    map[uint32]struct{} // moves that complete an upload
	pending     map[newName]struct{}
	root        int  // the folder, open during one batch; -1: not opened
	unreachable bool // the path does not lead to the folder any more
	limited     bool // reads have a deadline
	stopping    atomic.Bool
	done        chan struct{}
}

// watchOptions says what a watcher reports.
type watchOptions struct {
	recursive bool
	network   bool // also where changes made elsewhere are not seen
}

// newWatcher watches the folder p with the rights of u, which the caller has
// taken. Changes made after it has returned are reported.
func newWatcher(u *account.User, p string, o watchOptions, r *watchers) (*watcher, error) {
	fd, err := r.guard.openPath(unix.AT_FDCWD, p, 0)
	if err == unix.ENOENT {
		return nil, fault.New(connect.CodeNotFound, "E4001", "path %s not found: %v", p, err)
	}
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	real, err := r.guard.readable(fd)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return nil, fault.New(connect.CodeInvalidArgument, "E4003", "path %s is not a directory", p)
	}
	if !o.network {
		if err := refuseNetwork(fd, p); err != nil {
			return nil, err
		}
	}
	dir, err := reopen(fd, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	w := &watcher{
		user: u, guard: r.guard, real: real, path: p, dev: uint64(st.Dev), ino: st.Ino, recursive: o.recursive, uploads: r.uploads,
		queue: newChanges(&r.bytes), root: -1, done: make(chan struct{}),
		arriving: map[uint32]struct{}{}, pending: map[newName]struct{}{},
	}
	if w.kernel, err = newNotifier(); err != nil {
		return nil, instanceError(err)
	}
	w.tree = watchTree{
		byWd: map[int32]*watchedDir{}, moving: map[uint32]*watchedDir{}, dirs: &r.dirs, drop: w.kernel.drop,
	}
	if err := w.begin(dir); err != nil {
		w.release()
		return nil, err
	}
	r.running.Go(w.run)
	return w, nil
}

// begin watches dir and, if asked for, what is below it.
func (w *watcher) begin(dir *os.File) error {
	wd, err := w.kernel.add(dir)
	if err != nil {
		return addError(err)
	}
	d, _, err := w.tree.place(nil, "", wd, inode{w.dev, w.ino})
	if err != nil || !w.recursive {
		return err
	}
	return w.scan(d, dir, 0, false)
}

// instanceError explains why the kernel gave no inotify instance.
func instanceError(err error) error {
	if err == unix.EMFILE || err == unix.ENFILE {
		return fault.New(connect.CodeResourceExhausted, "E4000", "too many watches on this machine: %v", err)
	}
	return err
}

// stop ends the watcher and returns when nothing of it is left. It is idempotent.
func (w *watcher) stop() {
	w.stopping.Store(true)
	w.kernel.wakeAt(time.Unix(1, 0))
	<-w.done
	w.queue.close()
}

// release frees what the watcher holds of the kernel.
func (w *watcher) release() {
	w.tree.clear()
	w.kernel.close()
	close(w.done)
}

// run reads events until the watcher is stopped or fails.
func (w *watcher) run() {
	defer w.release()
	for {
		batch, err := w.kernel.read()
		switch {
		case w.stopping.Load():
			return
		case err == nil:
			err = w.user.Do(func() error { return w.handle(batch) })
		case errors.Is(err, os.ErrDeadlineExceeded) && w.unreachable:
			err = &missed{"the directory cannot be reached by its path any more"}
		case errors.Is(err, os.ErrDeadlineExceeded):
			err = nil // it was found again
		}
		if err != nil {
			w.queue.fail(err)
			return
		}
		if w.kernel.idle() {
			if len(w.pending) > 0 {
				err = w.user.Do(w.retry)
			}
			if err != nil {
				w.queue.fail(err)
				return
			}
			w.tree.settled()
		}
		w.unreachable = w.unreachable && w.tree.root != nil
		w.limitRead()
	}
}

// limitRead bounds the next read where an event is due.
func (w *watcher) limitRead() {
	if w.unreachable == w.limited {
		return
	}
	until := time.Time{}
	if w.unreachable {
		until = time.Now().Add(unreachableWait)
	}
	w.limited = w.unreachable
	w.kernel.wakeAt(until)
	if w.stopping.Load() { // stop has set its own in the meantime
		w.kernel.wakeAt(time.Unix(1, 0))
	}
}

// handle reports what a batch of events means.
func (w *watcher) handle(batch []notice) error {
	defer w.closeRoot()
	for _, e := range batch {
		if err := w.one(e); err != nil {
			return err
		}
	}
	return nil
}

// newName is a folder that was not found under its name.
type newName struct {
	in   *watchedDir
	name string
}

// retry looks again for folders that could not be found: the events that were
// read since then have said where the folders above them are.
func (w *watcher) retry() error {
	defer w.closeRoot()
	for e := range w.pending {
		if w.tree.byWd[e.in.wd] != e.in {
			delete(w.pending, e) // it left
			continue
		}
		found, err := w.look(e.in, e.name)
		if err != nil {
			return err
		}
		// With events to come there will be another time.
		if found || w.kernel.idle() {
			delete(w.pending, e)
		}
	}
	return nil
}

func (w *watcher) closeRoot() {
	if w.root >= 0 {
		unix.Close(w.root)
		w.root = -1
	}
}

func (w *watcher) one(e notice) error {
	if e.mask&unix.IN_Q_OVERFLOW != 0 {
		return &missed{"there were more than the kernel keeps"}
	}
	d := w.tree.byWd[e.wd]
	if d == nil {
		return nil // of a watch that has ended
	}
	if e.name == "" {
		return w.self(d, e.mask)
	}
	isDir := e.mask&unix.IN_ISDIR != 0
	switch {
	case e.mask&unix.IN_CREATE != 0:
		return w.created(d, e.name, isDir)
	case e.mask&unix.IN_MOVED_TO != 0:
		return w.movedTo(d, e, isDir)
	case e.mask&unix.IN_DELETE != 0:
		return w.left(d, e.name, pb.EventType_EVENT_TYPE_REMOVE, w.tree.forget)
	case e.mask&unix.IN_MOVED_FROM != 0:
		return w.movedFrom(d, e)
	case e.mask&unix.IN_MODIFY != 0:
		return w.report(d, e.name, pb.EventType_EVENT_TYPE_WRITE)
	case e.mask&unix.IN_ATTRIB != 0:
		err := w.report(d, e.name, pb.EventType_EVENT_TYPE_CHMOD)
		if err == nil && isDir && w.recursive && d.below[e.name] == nil {
			return w.discover(d, e.name) // it may have become readable
		}
		return err
	}
	return nil
}

// self is about a watched folder itself. Of all but the first one the folder
// above says the same.
func (w *watcher) self(d *watchedDir, mask uint32) error {
	first := d == w.tree.root
	switch {
	case mask&(unix.IN_DELETE_SELF|unix.IN_UNMOUNT) != 0 && first:
		w.tree.forget(d)
		return w.queue.put(change{".", pb.EventType_EVENT_TYPE_REMOVE})
	case mask&(unix.IN_IGNORED|unix.IN_UNMOUNT) != 0:
		w.tree.forget(d) // the kernel has ended the watch
	case mask&unix.IN_MOVE_SELF != 0 && first:
		// What happens from now on happens elsewhere.
		w.tree.forget(d)
		return w.queue.put(change{".", pb.EventType_EVENT_TYPE_RENAME})
	case mask&unix.IN_MOVE_SELF != 0 && d.cookie != 0:
		w.tree.forget(d) // it was not moved to a place under watch
	case mask&unix.IN_ATTRIB != 0 && first:
		return w.queue.put(change{".", pb.EventType_EVENT_TYPE_CHMOD})
	}
	return nil
}

// created reports a new name.
func (w *watcher) created(d *watchedDir, name string, isDir bool) error {
	if d.expected(name) {
		return nil
	}
	if err := w.report(d, name, pb.EventType_EVENT_TYPE_CREATE); err != nil || !isDir || !w.recursive {
		return err
	}
	return w.discover(d, name)
}

// movedTo reports a name that something has got. A folder under watch stays so.
func (w *watcher) movedTo(d *watchedDir, e notice, isDir bool) error {
	if _, ok := w.arriving[e.cookie]; ok {
		delete(w.arriving, e.cookie)
		return w.uploaded(d, e.name)
	}
	if err := w.report(d, e.name, pb.EventType_EVENT_TYPE_CREATE); err != nil || !isDir || !w.recursive {
		return err
	}
	if sub := w.tree.moving[e.cookie]; sub != nil {
		// Most likely. What has lost its name can have been taken for the one that
		// got it afterwards, by looking ahead of the events: so look.
		w.tree.attach(sub, d, e.name)
	}
	return w.discover(d, e.name)
}

// uploaded reports a complete upload, as what it is for a client: a file that
// was made, got its owner and mode, and was written.
func (w *watcher) uploaded(d *watchedDir, name string) error {
	for _, kind := range []pb.EventType{
		pb.EventType_EVENT_TYPE_CREATE, pb.EventType_EVENT_TYPE_CHMOD, pb.EventType_EVENT_TYPE_WRITE,
	} {
		if err := w.report(d, name, kind); err != nil {
			return err
		}
	}
	return nil
}

// movedFrom reports a name that something has lost.
func (w *watcher) movedFrom(d *watchedDir, e notice) error {
	if w.uploads.known(e.name) {
		// The other half follows at once. Who takes an upload elsewhere under its
		// temporary name leaves an entry here, so there is a bound.
		if len(w.arriving) >= maxArriving {
			clear(w.arriving)
		}
		w.arriving[e.cookie] = struct{}{}
		return nil
	}
	return w.left(d, e.name, pb.EventType_EVENT_TYPE_RENAME, func(sub *watchedDir) { w.tree.move(sub, e.cookie) })
}

// left reports that a name is no more.
func (w *watcher) left(d *watchedDir, name string, kind pb.EventType, then func(*watchedDir)) error {
	d.expected(name)
	if sub := d.below[name]; sub != nil {
		then(sub)
	}
	return w.report(d, name, kind)
}

// report queues a change of name in d. The files of uploads under way are not
// there for clients.
func (w *watcher) report(d *watchedDir, name string, kind pb.EventType) error {
	if w.uploads.known(name) {
		return nil
	}
	in, ok := w.tree.path(d)
	if !ok {
		return nil // what happens in a folder that left is no business of this watch
	}
	if in != "" {
		name = in + "/" + name
	}
	if w.guard.rules != nil && w.guard.rules.Read(path.Join(w.real, name)) != nil {
		return nil
	}
	return w.queue.put(change{name, kind})
}

// discover watches the folder name in d, which is new here, and reports what is
// in it already.
func (w *watcher) discover(d *watchedDir, name string) error {
	found, err := w.look(d, name)
	if err != nil || found {
		return err
	}
	if len(w.pending) >= maxPending {
		return &missed{"too many directories are moved at a time"}
	}
	w.pending[newName{d, name}] = struct{}{}
	return nil
}

// look is discover; it reports whether d was where it should be.
func (w *watcher) look(d *watchedDir, name string) (found bool, err error) {
	dir, err := w.open(d)
	if dir == nil {
		return false, err
	}
	defer dir.Close()
	return true, w.descend(d, int(dir.Fd()), name, 0, true)
}

// descend watches the folder name in the open folder dir and what is below it.
func (w *watcher) descend(parent *watchedDir, dir int, name string, level int, report bool) error {
	if level > maxDepth {
		return &missed{"directories are too deep"}
	}
	f, err := openChild(dir, name)
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	wd, err := w.kernel.add(f)
	if gone(err) {
		return nil
	}
	if err != nil {
		return addError(err)
	}
	at, err := inodeOf(f)
	if err != nil {
		return err
	}
	was := parent.below[name]
	d, known, err := w.tree.place(parent, name, wd, at)
	if err != nil || d == nil || known && (!report || level == 0 && d == was) {
		return err
	}
	// A folder that was known is listed again: it can be new for the client.
	return w.scan(d, f, level, report)
}

// scan goes through the open folder f of d, watches the folders in it and, if
// asked, reports everything as new.
func (w *watcher) scan(d *watchedDir, f *os.File, level int, report bool) error {
	for {
		// Names of 256 entries at a time, whatever the size of the folder.
		list, err := f.ReadDir(256)
		for _, e := range list {
			if report {
				if err := w.found(d, int(f.Fd()), e); err != nil {
					return err
				}
			}
			if e.IsDir() {
				if err := w.descend(d, int(f.Fd()), e.Name(), level+1, report); err != nil {
					return err
				}
			}
		}
		switch {
		case err == io.EOF, errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		}
	}
}

// found reports what was in a folder before its watch was set, or came before
// it was listed: that it is there, and that something was written.
func (w *watcher) found(d *watchedDir, dir int, e os.DirEntry) error {
	if err := w.report(d, e.Name(), pb.EventType_EVENT_TYPE_CREATE); err != nil {
		return err
	}
	w.tree.expect(d, e.Name())
	if !e.Type().IsRegular() {
		return nil
	}
	var st unix.Stat_t
	if unix.Fstatat(dir, e.Name(), &st, unix.AT_SYMLINK_NOFOLLOW) != nil || st.Size == 0 {
		return nil
	}
	return w.report(d, e.Name(), pb.EventType_EVENT_TYPE_WRITE)
}
