package sandboxfn

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/agent-sandbox/sandbox-go/internal/envelope"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// returning receives what a function leaves for a path of the caller, beside the
// path, and puts it there when the call has succeeded.
type returning struct {
	path string
	use  pathUse
	temp string // a folder beside the path

	mu   sync.Mutex
	w    *io.PipeWriter // guarded by mu; nil before the first write and after the end
	done chan struct{}  // closed when the archive is received
	what found          // valid after done
	err  error          // valid after done
}

// newReturning checks that the path can be written to, before anything runs.
func newReturning(path string, u pathUse) (*returning, error) {
	abs, err := behindLinks(path)
	if err != nil {
		return nil, err
	}
	if info, err := os.Stat(abs); err == nil && (u.file && info.IsDir() || u.dir && !info.IsDir()) {
		return nil, wrongKind(path, info.IsDir())
	}
	return &returning{path: abs, use: u}, nil
}

// behindLinks is the path that is written to when one writes to path: a link is
// written through, as a plain call does, also when it leads to nothing yet. The
// directory must be there.
func behindLinks(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", fileError(path, err)
	}
	const most = 40 // as Linux
	for range most {
		dir, base := filepath.Split(path)
		real, err := filepath.EvalSymlinks(dir)
		if err != nil {
			return "", fileError(filepath.Clean(dir), err)
		}
		if info, err := os.Stat(real); err != nil {
			return "", fileError(real, err)
		} else if !info.IsDir() {
			return "", errdefs.New("E4003", "file "+real, "it is no directory")
		}
		if base == "" || base == "." || base == ".." {
			return filepath.EvalSymlinks(path)
		}
		target, err := os.Readlink(filepath.Join(real, base))
		switch {
		case err != nil: // nothing, or no link
			return filepath.Join(real, base), nil
		case filepath.IsAbs(target):
			path = target
		default:
			path = real + string(filepath.Separator) + target // ".." in it means what it means behind links
		}
		for len(path) > 1 && os.IsPathSeparator(path[len(path)-1]) {
			path = path[:len(path)-1]
		}
	}
	return "", errdefs.New("E4000", "file "+path, "too many links lead to each other")
}

// addOutput refuses a path in another one to which the call writes: each is put
// into its place as a whole.
func (l *lent) addOutput(path string) error {
	within := func(in, out string) error {
		return errdefs.New("E4003", "file "+in, "it is written by the call, and so is "+out+", in which it is")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if in := l.above[path]; in != "" {
		return within(in, path)
	}
	if l.above == nil {
		l.above, l.outs = map[string]string{}, map[string]bool{}
	}
	l.outs[path] = true
	for p := path; p != filepath.Dir(p); {
		p = filepath.Dir(p)
		if l.outs[p] {
			return within(path, p)
		}
		l.above[p] = path
	}
	return nil
}

func wrongKind(path string, isDir bool) error {
	if isDir {
		return errdefs.New("E4003", "file "+path, "it is a directory")
	}
	return errdefs.New("E4003", "file "+path, "it is a file")
}

// Write implements [io.Writer]: the worker writes an archive.
func (r *returning) Write(p []byte) (int, error) {
	r.mu.Lock()
	w := r.w
	if r.done == nil {
		temp, err := os.MkdirTemp(filepath.Dir(r.path), ".sandbox-")
		if err != nil {
			r.mu.Unlock()
			return 0, fileError(r.path, err)
		}
		var pr *io.PipeReader
		pr, w = io.Pipe()
		r.temp, r.w, r.done = temp, w, make(chan struct{})
		go func() {
			defer close(r.done)
			r.what, r.err = unarchive(pr, filepath.Join(temp, "new"))
			if r.err != nil {
				r.err = noSpace(fileError(r.path, r.err))
				pr.CloseWithError(r.err)
			}
		}()
	}
	r.mu.Unlock()
	if w == nil {
		return 0, io.ErrClosedPipe
	}
	return w.Write(p)
}

// end takes what was received, when the call has not failed, or removes it.
func (r *returning) end(failed error) error {
	r.mu.Lock()
	w, done := r.w, r.done
	r.w = nil
	if done == nil {
		r.done = make(chan struct{}) // no writes any more
	}
	r.mu.Unlock()
	if done == nil {
		if failed == nil {
			return errdefs.New("E9005", "file "+r.path, "the worker has not said what came of it")
		}
		return nil
	}
	defer removeTree(r.temp)
	w.CloseWithError(failed) // nil: the end of the archive
	<-done
	switch {
	case failed != nil:
		return nil
	case r.err != nil:
		return r.err
	case r.what == foundNothing:
		return nil // as a plain call leaves what is there
	case r.use.file && r.what == foundDir || r.use.dir && r.what == foundFile:
		return wrongKind(r.path+", as the function left it,", r.what == foundDir)
	}
	from := filepath.Join(r.temp, "new")
	if !r.use.in {
		r.err = keepMode(from, r.path)
	}
	if r.err == nil {
		r.err = replace(from, r.path, filepath.Join(r.temp, "old"))
	}
	return noSpace(r.err)
}

// keepMode gives what replaces a file or a directory its permission bits, as a
// plain call that writes to it leaves them.
func keepMode(from, to string) error {
	info, err := os.Stat(to)
	if err != nil {
		return nil // there is nothing, or else the rename tells
	}
	if now, err := os.Stat(from); err != nil || now.IsDir() != info.IsDir() {
		return nil
	}
	if err := os.Chmod(from, info.Mode().Perm()); err != nil {
		return fileError(to, err)
	}
	return nil
}

// movable lets a directory be renamed into another one, which changes its "..".
// The function that is returned gives it its permission bits back, under the
// name that it has then.
func movable(path string) (restore func(now string) error, err error) {
	info, err := os.Lstat(path)
	if err != nil || !info.IsDir() || info.Mode()&0o300 == 0o300 {
		return func(string) error { return nil }, err
	}
	restore = func(now string) error { return os.Chmod(now, info.Mode().Perm()) }
	return restore, os.Chmod(path, info.Mode().Perm()|0o700)
}

// replace puts what is at from to the path to. What is there goes to old, when a
// rename can't replace it: then there is a moment in which to names nothing.
func replace(from, to, old string) error {
	restore, err := movable(from)
	if err != nil {
		return fileError(to, err)
	}
	if err := exchange(from, to, old); err != nil {
		return err
	}
	if err := restore(to); err != nil {
		return fileError(to, err)
	}
	return nil
}

func exchange(from, to, old string) error {
	err := os.Rename(from, to)
	if err == nil {
		return nil
	}
	info, bad := os.Lstat(to)
	if bad != nil {
		return fileError(to, err)
	}
	if now, bad := os.Lstat(from); bad == nil && now.IsDir() != info.IsDir() {
		return wrongKind(to, info.IsDir())
	}
	restore, err := movable(to)
	if err != nil {
		return fileError(to, err)
	}
	if err := os.Rename(to, old); err != nil {
		return errors.Join(fileError(to, err), restore(to))
	}
	if err := os.Rename(from, to); err != nil {
		return errors.Join(fileError(to, err), os.Rename(old, to), restore(to))
	}
	return nil
}

// noSpace gives a full disk its code.
func noSpace(err error) error {
	if errors.Is(err, syscall.ENOSPC) && errdefs.CodeOf(err) != "E4004" {
		return errdefs.Wrap("E4004", "receive files", "", err)
	}
	return err
}

// digest reads content for its size and hash.
func digest(open func() (io.ReadCloser, error)) (size int64, sum [sha256.Size]byte, err error) {
	f, err := open()
	if err != nil {
		return 0, sum, err
	}
	defer f.Close()
	h := sha256.New()
	size, err = io.Copy(h, f)
	h.Sum(sum[:0])
	return size, sum, err
}

// lentContent is content that the worker may read, each time from the start: a
// call that is made again sends it again.
type lentContent struct {
	open func() (io.ReadCloser, error)
}

// Read is there because what is lent is a reader. It is opened to be read.
func (c *lentContent) Read([]byte) (int, error) { return 0, fs.ErrInvalid }

// sendContent sends content from its start.
func (h *hostCall) sendContent(ctx context.Context, id uint64, u *hostUp, o *lentObject, c *lentContent) (envelope.Payload, error) {
	r, err := c.open()
	if err != nil {
		return streamAnswer(err), nil
	}
	defer r.Close()
	return h.sendBytes(ctx, id, u, o, r)
}

// blocks writes in large pieces: each write to the caller waits for its answer.
type blocks struct {
	w   io.Writer
	buf []byte
}

func (b *blocks) Write(p []byte) (int, error) {
	const size = 512 << 10
	b.buf = append(b.buf, p...)
	if len(b.buf) >= size {
		return len(p), b.flush()
	}
	return len(p), nil
}

func (b *blocks) flush() error {
	if len(b.buf) == 0 {
		return nil
	}
	_, err := b.w.Write(b.buf)
	b.buf = b.buf[:0]
	return err
}
