//go:build linux

package filesystem

import (
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// maxWatchedDirs bounds the folders of all watches together, and so their memory;
// the kernel has its own limit (fs.inotify.max_user_watches).
const maxWatchedDirs = 131_072

// watchedDir is a folder under watch.
type watchedDir struct {
	wd     int32
	inode  inode
	parent *watchedDir // nil: the first folder, or one that is being moved
	name   string      // in parent
	below  map[string]*watchedDir
	cookie uint32 // of the move under way; 0: none

	// listed are names that were reported because they were found, and whose
	// own event may still be in the queue of the kernel.
	listed map[string]struct{}
}

// watchTree knows which folder an event is about. It belongs to one goroutine.
type watchTree struct {
	root   *watchedDir // nil: it is gone
	byWd   map[int32]*watchedDir
	moving map[uint32]*watchedDir // by cookie
	fresh  []*watchedDir          // with listed names
	dirs   *atomic.Int64          // of all trees
	drop   func(wd int32)         // ends a watch
}

// path is the way from the first folder to d, "" for the first one itself. It
// reports false for a folder that is on its way elsewhere.
func (t *watchTree) path(d *watchedDir) (string, bool) {
	n := -1
	if t.root == nil {
		return "", false
	}
	for e := d; e != t.root; e = e.parent {
		if e == nil {
			return "", false
		}
		n += len(e.name) + 1
	}
	if n < 0 {
		return "", true
	}
	b := make([]byte, n)
	for e := d; e != t.root; e = e.parent {
		n -= len(e.name)
		copy(b[n:], e.name)
		if n--; n >= 0 {
			b[n] = '/'
		}
	}
	return string(b), true
}

// place puts the folder at, with watch wd, into parent. One that was known elsewhere is
// moved, with all below it. known reports that; nil that it is parent itself or
// above it, which only happens where a folder is mounted below itself.
func (t *watchTree) place(parent *watchedDir, name string, wd int32, at inode) (d *watchedDir, known bool, err error) {
	if d = t.byWd[wd]; d != nil {
		for e := parent; e != nil; e = e.parent {
			if e == d {
				return nil, true, nil
			}
		}
		t.attach(d, parent, name)
		return d, true, nil
	}
	if t.dirs.Add(1) > maxWatchedDirs {
		t.dirs.Add(-1)
		t.drop(wd)
		return nil, false, errTooManyDirs
	}
	d = &watchedDir{wd: wd, inode: at}
	t.byWd[wd] = d
	if parent == nil {
		t.root = d
		return d, false, nil
	}
	t.attach(d, parent, name)
	return d, false, nil
}

// attach makes d the folder name in parent, instead of whatever was there.
func (t *watchTree) attach(d, parent *watchedDir, name string) {
	if d == parent || d.parent == parent && d.name == name {
		return
	}
	// What is above may have been found below already, by looking ahead of the
	// events that brought it there. They will put it back.
	for e := parent; e != nil; e = e.parent {
		if e.parent == d {
			t.detach(e)
		}
	}
	t.detach(d)
	if old := parent.below[name]; old != nil {
		t.forget(old)
	}
	if parent.below == nil {
		parent.below = map[string]*watchedDir{}
	}
	parent.below[name] = d
	d.parent, d.name = parent, name
}

// detach takes d, with what is below it, out of where it is.
func (t *watchTree) detach(d *watchedDir) {
	if d.parent != nil {
		delete(d.parent.below, d.name)
		d.parent = nil
	}
	if d.cookie != 0 {
		delete(t.moving, d.cookie)
		d.cookie = 0
	}
}

// move detaches d until the other half of its move is read.
func (t *watchTree) move(d *watchedDir, cookie uint32) {
	t.detach(d)
	if cookie != 0 {
		t.moving[cookie] = d
		d.cookie = cookie
	}
}

// forget ends the watch of d and of all below it.
func (t *watchTree) forget(d *watchedDir) {
	t.detach(d)
	for rest := []*watchedDir{d}; len(rest) > 0; {
		e := rest[len(rest)-1]
		rest = rest[:len(rest)-1]
		for _, f := range e.below {
			rest = append(rest, f)
		}
		if t.byWd[e.wd] == e {
			delete(t.byWd, e.wd)
			t.dirs.Add(-1)
			t.drop(e.wd)
		}
	}
	if d == t.root {
		t.root = nil
	}
}

// expect remembers that name in d was reported before its own event.
func (t *watchTree) expect(d *watchedDir, name string) {
	if d.listed == nil {
		d.listed = map[string]struct{}{}
		t.fresh = append(t.fresh, d)
	}
	d.listed[name] = struct{}{}
}

// expected reports whether name was, and forgets it.
func (d *watchedDir) expected(name string) bool {
	_, ok := d.listed[name]
	delete(d.listed, name)
	return ok
}

// settled is for the moment when the queue of the kernel is empty: no event of
// what was reported early can come any more.
func (t *watchTree) settled() {
	for _, d := range t.fresh {
		d.listed = nil
	}
	t.fresh = nil
}

// clear ends the tree. Closing the notifier ends the watches.
func (t *watchTree) clear() {
	t.dirs.Add(-int64(len(t.byWd)))
	t.byWd, t.root, t.moving, t.fresh = nil, nil, nil, nil
}

// errTooManyDirs is the same for our limit and for that of the kernel.
var errTooManyDirs = &missed{"too many directories are watched on this machine"}

// addError explains why the kernel took no watch.
func addError(err error) error {
	if err == unix.ENOSPC {
		return errTooManyDirs
	}
	return err
}
