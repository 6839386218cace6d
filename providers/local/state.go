//go:build linux

package local

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// tree is the state directory of the provider:
//
//	boxes/<id>/   one living sandbox, or what a dead one left
//	bin/<digest>  executables that are bound into sandboxes
//	ids/<n>.lock  leases of blocks of user ids
//	layers/<name> trees of files that sandboxes start with
//	snapshots/<id> what snapshots consist of
//	templates      what templates were built, and from which layers
//	templates     what templates were built, and from which layers
//	ended         why sandboxes ended, for a while
//
// Every name below it is reached through an open descriptor and never through
// a link, so nobody can move a part of it elsewhere while it is in use.
type tree struct {
	path                  string // of base, for binds and messages
	base, boxes, bin, ids *folder
	layers, snapshots     *folder
	blocks                blocks
	templates             *folder
	log                   *slog.Logger
	removals              *removals // nil: nobody asks what collectors remove
}

// defaultStateRoot is where state lies when nothing else is configured.
func defaultStateRoot() (string, error) {
	if d := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(d) {
		return filepath.Join(d, "sandbox"), nil
	}
	if os.Geteuid() == 0 {
		return "/var/lib/sandbox", nil
	}
	home, err := os.UserHomeDir()
	if err != nil || !filepath.IsAbs(home) {
		return "", &errdefs.Error{Code: "E8007", Op: "open state directory",
			Message: "no home directory to keep state in; set SANDBOX_STATE_DIR", Suggestion: "set SANDBOX_STATE_DIR to an absolute path"}
	}
	return filepath.Join(home, ".local", "state", "sandbox"), nil
}

// openTree opens <root>/local and makes what is missing. It refuses a
// directory that somebody else owns or could change.
func openTree(root string) (*tree, error) {
	path := filepath.Join(root, "local")
	base, err := openPrivate(path)
	if err != nil {
		return nil, err
	}
	t := &tree{path: path, base: base, log: slog.New(slog.DiscardHandler)}
	for _, s := range []struct {
		name string
		to   **folder
	}{{"boxes", &t.boxes}, {"bin", &t.bin}, {"ids", &t.ids}, {layersDir, &t.layers}, {snapshotsDir, &t.snapshots}, {templatesDir, &t.templates}} {
		if *s.to, err = base.ensure(s.name); err != nil {
			t.close()
			return nil, unsafeState(filepath.Join(path, s.name), err)
		}
	}
	return t, nil
}

// removed reports whether somebody has removed the state directory.
func (t *tree) removed() bool {
	st, err := t.boxes.stat()
	return err == nil && st.Nlink == 0
}

func (t *tree) close() {
	for _, d := range []*folder{t.base, t.boxes, t.bin, t.ids, t.layers, t.snapshots, t.templates} {
		d.close()
	}
}

func unsafeState(path string, err error) error {
	return &errdefs.Error{Code: "E8007", Op: "open state directory",
		Message:    path + " cannot be used",
		Suggestion: "use a directory that belongs to you, with mode 0700 and below directories that nobody else can write; SANDBOX_STATE_DIR names another one",
		Err:        err}
}

// stateError gives a code to an error of the state directory that has none: E4004
// when it is full, E2000 otherwise. No error stays none.
func stateError(op, what string, err error) error {
	switch {
	case err == nil || errdefs.CodeOf(err) != "":
		return err
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return &errdefs.Error{Code: "E4004", Op: op, Message: what + ": no space left in the state directory", Err: err,
			Suggestion: "delete what is no longer needed, snapshots say, or name another directory with SANDBOX_STATE_DIR"}
	}
	return &errdefs.Error{Code: "E2000", Op: op, Message: what, Err: err}
}

// openPrivate opens the directory at path with mode 0700, making it and its
// missing parents. Links in the part that exists are resolved once; then each
// component is opened by descriptor, without following a link, and checked:
// whoever could exchange one would own every sandbox.
func openPrivate(path string) (*folder, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, unsafeState(path, err)
	}
	parent, name := filepath.Split(filepath.Clean(path))
	resolved, missing, err := resolveExisting(parent)
	if err != nil {
		return nil, unsafeState(path, err)
	}
	d, err := openFolder("/")
	if err != nil {
		return nil, unsafeState("/", err)
	}
	seen := "/"
	for c := range strings.SplitSeq(strings.Trim(resolved, "/"), "/") {
		if c == "" {
			continue
		}
		seen = filepath.Join(seen, c)
		if d, err = d.into(c, false); err == nil {
			err = checkParent(d)
		}
		if err != nil {
			d.close()
			return nil, unsafeState(seen, err)
		}
	}
	for _, c := range missing {
		seen = filepath.Join(seen, c)
		if d, err = d.into(c, true); err == nil {
			err = checkParent(d)
		}
		if err != nil {
			d.close()
			return nil, unsafeState(seen, err)
		}
	}
	defer d.close()
	own, err := d.ensure(name)
	if err != nil {
		return nil, unsafeState(path, err)
	}
	return own, nil
}

// resolveExisting resolves the links of the longest part of path that exists
// and returns the rest as names to be made.
func resolveExisting(path string) (resolved string, missing []string, err error) {
	path = filepath.Clean(path)
	for {
		resolved, err = filepath.EvalSymlinks(path)
		if err == nil || !errors.Is(err, fs.ErrNotExist) {
			return resolved, missing, err
		}
		if _, lerr := os.Lstat(path); lerr == nil {
			return "", nil, fmt.Errorf("%s is a link that leads nowhere", path)
		}
		missing = append([]string{filepath.Base(path)}, missing...)
		path = filepath.Dir(path)
	}
}

// checkParent accepts a directory in which nobody but root and we can
// exchange an entry. Writable by a group is accepted for our own group, which
// many distributions give every user; a sticky directory is accepted because
// its entries can only be moved by their owner, and the next one is checked.
func checkParent(d *folder) error {
	st, err := d.stat()
	if err != nil {
		return err
	}
	mode := st.Mode &^ unix.S_IFMT
	switch {
	case st.Uid != 0 && int(st.Uid) != os.Geteuid() && !unmappedRoot(st.Uid):
		return fmt.Errorf("belongs to user %d", st.Uid)
	case mode&unix.S_ISVTX != 0:
		return nil
	case mode&0o002 != 0:
		return fmt.Errorf("everybody can write it (mode %04o)", mode)
	case mode&0o020 != 0 && st.Gid != 0 && int(st.Gid) != os.Getegid():
		return fmt.Errorf("group %d can write it (mode %04o)", st.Gid, mode)
	}
	return nil
}

// unmappedRoot reports whether uid is how a user namespace shows the owner of
// the system's directories, root, when it does not map it.
func unmappedRoot(uid uint32) bool { return uid == 65534 && !allUsersMapped() }

var allUsersMapped = sync.OnceValue(func() bool {
	b, err := os.ReadFile("/proc/self/uid_map")
	f := strings.Fields(string(b))
	return err == nil && len(f) == 3 && f[1] == "0" && f[2] == "4294967295"
})

// folder is an open directory. Names given to its methods are single
// components; links are never followed.
type folder struct{ f *os.File }

func openFolder(path string) (*folder, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return &folder{os.NewFile(uintptr(fd), path)}, nil
}

func (d *folder) close() {
	if d != nil {
		d.f.Close()
	}
}

func (d *folder) fd() int { return int(d.f.Fd()) }

// into replaces d by its entry name, which it makes when asked to; d is closed.
func (d *folder) into(name string, make bool) (*folder, error) {
	defer d.close()
	if make {
		if err := d.mkdir(name); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
	}
	fd, err := unix.Openat(d.fd(), name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, linkError(err)
	}
	return &folder{os.NewFile(uintptr(fd), name)}, nil
}

// sub opens the directory name in d.
func (d *folder) sub(name string) (*folder, error) {
	fd, err := retryEINTR(func() (int, error) {
		return unix.Openat(d.fd(), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, linkError(err)
	}
	return &folder{os.NewFile(uintptr(fd), name)}, nil
}

// ensure opens the directory name in d, made with mode 0700 when it is not
// there, and refuses one that is not ours alone.
func (d *folder) ensure(name string) (*folder, error) {
	if err := d.mkdir(name); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	sub, err := d.sub(name)
	if err != nil {
		return nil, err
	}
	st, err := sub.stat()
	if err == nil {
		switch mode := st.Mode &^ unix.S_IFMT; {
		case int(st.Uid) != os.Geteuid():
			err = fmt.Errorf("belongs to user %d, not to us (%d)", st.Uid, os.Geteuid())
		case mode&0o077 != 0:
			err = fmt.Errorf("is open to others (mode %04o, want 0700)", mode)
		}
	}
	if err != nil {
		sub.close()
		return nil, err
	}
	return sub, nil
}

func linkError(err error) error {
	if err == unix.ELOOP || err == unix.ENOTDIR {
		return fmt.Errorf("is a link or not a directory: %w", err)
	}
	return err
}

func (d *folder) stat() (*unix.Stat_t, error) {
	var st unix.Stat_t
	err := unix.Fstat(d.fd(), &st)
	return &st, err
}

func (d *folder) mkdir(name string) error { return unix.Mkdirat(d.fd(), name, 0o700) }

// open opens the regular file name.
func (d *folder) open(name string, flags int, mode uint32) (*os.File, error) {
	fd, err := retryEINTR(func() (int, error) {
		return unix.Openat(d.fd(), name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, mode)
	})
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		unix.Close(fd)
		return nil, &fs.PathError{Op: "open", Path: name, Err: errors.Join(err, errors.New("not a regular file"))}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// read returns the content of a small file; more than limit bytes are an error.
func (d *folder) read(name string, limit int64) ([]byte, error) {
	f, err := d.open(name, unix.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("%s is larger than %d bytes", name, limit)
	}
	return b, err
}

// write replaces the file name as a whole: readers see the old or the new
// content. It does not survive a power failure, and need not: no sandbox does.
func (d *folder) write(name string, content []byte) error {
	r, err := d.reserve(name)
	if err == nil {
		err = r.fill(content)
	}
	if err == nil {
		err = r.place()
	}
	return err
}

// reserve begins to write the file name. What is left when place is never called
// is a file with another name.
func (d *folder) reserve(name string) (*reserved, error) {
	tmp := "." + name + "." + strconv.Itoa(os.Getpid()) + "." + randomText(8)
	f, err := d.open(tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	return &reserved{d, f, tmp, name}, nil
}

// reserved is a file that is to replace another one: fill comes first, then place.
type reserved struct {
	d         *folder
	f         *os.File
	tmp, name string
}

func (r *reserved) fill(content []byte) error {
	_, err := r.f.Write(content)
	if cerr := r.f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		r.d.remove(r.tmp)
	}
	return err
}

func (r *reserved) place() error {
	err := unix.Renameat(r.d.fd(), r.tmp, r.d.fd(), r.name)
	if err != nil {
		r.d.remove(r.tmp)
	}
	return err
}

// close gives up a file that was not filled. It is removed with its directory.
func (r *reserved) close() {
	if r != nil {
		r.f.Close()
	}
}

func (d *folder) remove(name string) error { return unix.Unlinkat(d.fd(), name, 0) }

// names lists the entries of d that do not start with a dot.
func (d *folder) names() ([]string, error) {
	all, err := d.allNames()
	n := all[:0]
	for _, name := range all {
		if !strings.HasPrefix(name, ".") {
			n = append(n, name)
		}
	}
	return n, err
}

func (d *folder) allNames() ([]string, error) {
	// A descriptor of its own: the position of a directory is shared state.
	fd, err := unix.Openat(d.fd(), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), d.f.Name())
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if errors.Is(err, fs.ErrNotExist) { // it was removed: nothing is in it
		return nil, nil
	}
	return names, err
}

// clear removes everything in d but the entries keep.
func (d *folder) clear(keep ...string) error {
	names, err := d.allNames()
	if err != nil {
		return err
	}
	var errs []error
	for _, n := range names {
		if slices.Contains(keep, n) {
			continue
		}
		err := d.remove(n)
		if err == unix.EISDIR || err == unix.EPERM {
			var s *folder
			if s, err = d.sub(n); err == nil {
				err = s.clear()
				s.close()
			}
			if err == nil {
				err = unix.Unlinkat(d.fd(), n, unix.AT_REMOVEDIR)
			}
		}
		if err != nil && err != unix.ENOENT {
			errs = append(errs, fmt.Errorf("remove %s: %w", n, err))
		}
	}
	return errors.Join(errs...)
}

// address is a path to name that is short enough for the address of a unix
// socket, however long the path of d is. It holds while d is open.
func (d *folder) address(name string) string {
	return "/proc/self/fd/" + strconv.Itoa(d.fd()) + "/" + name
}

func retryEINTR[T any](f func() (T, error)) (T, error) {
	for {
		v, err := f()
		if err != unix.EINTR {
			return v, err
		}
	}
}
