//go:build linux

package filesystem

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"slices"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/runtime/account"
	"github.com/agent-sandbox/sandbox-go/runtime/fault"
	"github.com/agent-sandbox/sandbox-go/runtime/policy"
)

// This file is for code of the runtime itself, such as the HTTP API. Paths are
// resolved, and policies asked, as for calls over the filesystem protocol; the
// user is the one of the context, and errors are those of the protocol.

// Details describe a path. A link is described by itself.
type Details struct {
	Name   string
	Path   string // absolute; as text, see below
	Mode   fs.FileMode
	Size   int64
	Target string // of a link, as it is written
	Owner  string
	Group  string

	Modified, Accessed, Changed time.Time
	Created                     time.Time // zero where the file system does not know
}

// detailsAt describes name in the open folder dir. Names that are not UTF-8 are
// made so.
func (g guard) detailsAt(dir int, name, p string, names *account.Names) (*Details, error) {
	if err := g.readIn(dir, name); err != nil {
		return nil, err
	}
	var st unix.Statx_t
	if err := unix.Statx(dir, name, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &st); err != nil {
		return nil, err
	}
	at := func(t unix.StatxTimestamp) time.Time { return time.Unix(t.Sec, int64(t.Nsec)).UTC() }
	d := &Details{
		Name: text(path.Base(p)), Path: text(p), Mode: goMode(uint32(st.Mode)), Size: int64(st.Size),
		Owner: text(names.User(st.Uid)), Group: text(names.Group(st.Gid)),
		Modified: at(st.Mtime), Accessed: at(st.Atime), Changed: at(st.Ctime),
	}
	if st.Mask&unix.STATX_BTIME != 0 && st.Btime.Sec != 0 {
		d.Created = at(st.Btime)
	}
	if d.Mode&fs.ModeSymlink != 0 {
		buf := make([]byte, unix.PathMax)
		if n, err := unix.Readlinkat(dir, name, buf); err == nil {
			d.Target = text(string(buf[:n]))
		}
	}
	return d, nil
}

// Describe describes a path; a link at its end is not followed.
func (s *Service) Describe(ctx context.Context, p string) (d *Details, err error) {
	err = s.as(ctx, "error getting file info", p, func(_ *account.User, p string) error {
		dir, name, err := s.guard.openParent(p)
		if err != nil {
			return err
		}
		defer unix.Close(dir)
		d, err = s.guard.detailsAt(dir, name, p, s.opts.Users.Names())
		return err
	})
	return d, err
}

// Delete removes a path and everything below it. A path that is not there is
// E4001. What is, or holds, one of the folders keep is refused, by whichever
// way it is named.
func (s *Service) Delete(ctx context.Context, p string, keep ...string) error {
	return s.as(ctx, "error removing file or directory", p, func(_ *account.User, p string) error {
		if err := refuseRoot(p); err != nil {
			return err
		}
		dir, name, err := s.guard.openParent(p)
		if err != nil {
			return err
		}
		defer unix.Close(dir)
		if err := s.guard.writeIn(dir, name); err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
		for _, k := range keep {
			if holds(&st, k) {
				return fault.New(connect.CodePermissionDenied, "E4002", "'%s' is, or holds, a folder that the sandbox needs", p)
			}
		}
		return s.guard.removeAll(ctx, dir, name)
	})
}

// refuseRoot is about a clean path.
func refuseRoot(p string) error {
	if p == "/" {
		return fault.New(connect.CodePermissionDenied, "E4002", "the root cannot be removed")
	}
	return nil
}

// holds reports whether the folder p is, or lies below, what st describes.
func holds(st *unix.Stat_t, p string) bool {
	fd, err := guard{}.openPath(unix.AT_FDCWD, p, unix.O_DIRECTORY)
	if err != nil {
		return false
	}
	defer func() { unix.Close(fd) }()
	for range unix.PathMax {
		var here, above unix.Stat_t
		if unix.Fstat(fd, &here) != nil {
			return false
		}
		if here.Dev == st.Dev && here.Ino == st.Ino {
			return true
		}
		up, err := guard{}.openPath(fd, "..", unix.O_DIRECTORY)
		if err != nil {
			return false
		}
		unix.Close(fd)
		fd = up
		if unix.Fstat(fd, &above) != nil || above.Dev == here.Dev && above.Ino == here.Ino {
			return false
		}
	}
	return false
}

// Send answers a GET with the file that its query names, whole or in ranges.
func (s *Service) Send(w http.ResponseWriter, r *http.Request) {
	s.download(w, r, account.FromContext(r.Context()))
}

// Open opens a regular file for reading.
func (s *Service) Open(ctx context.Context, p string) (f *os.File, size int64, err error) {
	err = s.as(ctx, "error opening file", p, func(_ *account.User, p string) error {
		file, st, err := s.guard.openRegular(p)
		f, size = file, st.Size
		return err
	})
	return f, size, err
}

// Receive stores content as the file p, see the store of uploads: nobody sees a
// part of it. It returns the path and the length.
func (s *Service) Receive(ctx context.Context, p string, content io.Reader) (abs string, n int64, err error) {
	u := account.FromContext(ctx)
	abs, err = u.Path(p, s.opts.WorkDir)
	if err != nil {
		return "", 0, rpcError("error resolving path", p, pathError(u, err))
	}
	counted := &countReader{r: s.within()(content)}
	err = s.store(u, abs, nil, func(f *os.File, _ *fileID) error { return copyBody(f, counted) })
	if bad := (badRequest{}); errors.As(err, &bad) {
		return "", 0, fault.New(connect.CodeInvalidArgument, "E4003", "%s", bad.Error())
	}
	if errors.Is(err, unix.ENOENT) {
		// Missing folders are made, so it is the file system that refuses.
		return "", 0, fault.New(connect.CodeInternal, "E4000", "%s", err)
	}
	if err != nil {
		return "", 0, rpcError("error writing", abs, err)
	}
	return text(abs), counted.n, nil
}

type countReader struct {
	r io.Reader
	n int64
}

func (c *countReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

// Found is what a walk has come by. It is valid until the function returns that
// was called with it.
type Found struct {
	Path    string // relative to where the walk began; "." when that is no folder
	Details *Details

	guard guard
	dir   int
	name  string
}

// Open opens a regular file for reading, never through a link.
func (f *Found) Open() (*os.File, error) {
	fd, err := f.guard.openPath(f.dir, f.name, unix.O_NOFOLLOW)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if err := f.guard.read(fd); err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if err := checkReadable(fd, &st); err != nil {
		return nil, err
	}
	return reopen(fd, unix.O_RDONLY)
}

// Check tries whether a file can be read or a folder be listed, which a walk
// would only pass by.
func (f *Found) Check() error {
	open := f.Open
	switch {
	case f.Details.Mode.IsDir():
		open = func() (*os.File, error) { return openChild(f.dir, f.name) }
	case !f.Details.Mode.IsRegular():
		return nil
	}
	in, err := open()
	if err != nil {
		return err
	}
	return in.Close()
}

// MaxEntries is the most entries of one answer: what the policy says, at most
// def.
func (s *Service) MaxEntries(def int) int { return s.guard.rules.MaxEntries(def) }

// CheckEntries refuses an answer of n entries as the policy does.
func (s *Service) CheckEntries(n int) error { return policy.Connect(s.guard.rules.Entries(n)) }

// Walk calls fn for all that is below a folder, down to a depth of which 1 is the
// folder alone: each level sorted by name, a folder before its content. Links are
// not followed but where p itself leads over them; what must not be read is left
// out. For a path that is no folder fn is called once. [fs.SkipAll] ends the walk
// without an error, any other error with it. fn runs with the rights of the user
// and must not panic.
func (s *Service) Walk(ctx context.Context, p string, depth int, fn func(*Found) error) error {
	return s.as(ctx, "error reading directory", p, func(_ *account.User, p string) error {
		w := &walk{ctx: ctx, guard: s.guard, names: s.opts.Users.Names(), fn: fn}
		fd, err := s.guard.openPath(unix.AT_FDCWD, p, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := s.guard.read(fd); err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			var root *os.File
			if root, err = reopen(fd, unix.O_RDONLY|unix.O_DIRECTORY); err == nil {
				err = w.folder(root, p, "", min(depth, maxDepth))
			}
		} else {
			err = w.single(p)
		}
		if errors.Is(err, fs.SkipAll) {
			err = nil
		}
		return err
	})
}

// walk is one walk under way.
type walk struct {
	ctx   context.Context // it is one operation
	guard guard
	names *account.Names
	fn    func(*Found) error
}

func (w *walk) single(p string) error {
	dir, name, err := w.guard.openParent(p)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	d, err := w.guard.detailsAt(dir, name, p, w.names)
	if err != nil {
		return err
	}
	return w.fn(&Found{Path: ".", Details: d, guard: w.guard, dir: dir, name: name})
}

// folder goes through dir, which it closes; p is its path and rel the one below
// the beginning.
func (w *walk) folder(dir *os.File, p, rel string, depth int) error {
	defer dir.Close()
	names, err := dir.Readdirnames(maxEntries + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if len(names) > maxEntries {
		return fault.New(connect.CodeResourceExhausted, "E4000", "more than %d entries in a directory", maxEntries)
	}
	slices.Sort(names)
	fd := int(dir.Fd())
	for _, name := range names {
		if w.ctx.Err() != nil {
			return fmt.Errorf("the walk was given up: %w", w.ctx.Err())
		}
		below := path.Join(rel, name)
		d, err := w.guard.detailsAt(fd, name, path.Join(p, name), w.names)
		if _, hidden := errors.AsType[*policy.Refusal](err); hidden || err == unix.ENOENT {
			continue // not to be read, or removed in the meantime
		}
		if err != nil {
			return err
		}
		if err := w.fn(&Found{Path: text(below), Details: d, guard: w.guard, dir: fd, name: name}); err != nil {
			return err
		}
		if depth <= 1 || !d.Mode.IsDir() {
			continue
		}
		sub, err := openChild(fd, name)
		if err == unix.ENOENT || err == unix.ENOTDIR || err == unix.ELOOP || err == unix.EACCES {
			continue // replaced in the meantime, or not for this user
		}
		if err != nil {
			return err
		}
		if err := w.folder(sub, path.Join(p, name), below, depth-1); err != nil {
			return err
		}
	}
	return nil
}
