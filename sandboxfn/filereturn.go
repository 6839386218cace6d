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
	// A link is written through, as a plain call does.
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fileError(path, err)
	}
	dir := filepath.Dir(abs)
	if info, err := os.Stat(dir); err != nil {
		return nil, fileError(dir, err)
	} else if !info.IsDir() {
		return nil, errdefs.New("E4003", "file "+dir, "it is no directory")
	}
	if info, err := os.Stat(abs); err == nil && (u.file && info.IsDir() || u.dir && !info.IsDir()) {
		return nil, wrongKind(path, info.IsDir())
	}
	return &returning{path: abs, use: u}, nil
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
	return noSpace(replace(filepath.Join(r.temp, "new"), r.path, filepath.Join(r.temp, "old")))
}

// replace puts what is at from to the path to. What is there goes to old, when a
// rename can't replace it: then there is a moment in which to names nothing.
func replace(from, to, old string) error {
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
	if err := os.Rename(to, old); err != nil {
		return fileError(to, err)
	}
	if err := os.Rename(from, to); err != nil {
		return errors.Join(fileError(to, err), os.Rename(old, to))
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
func (h *hostCall) sendContent(ctx context.Context, id uint64, u *hostUp, c *lentContent) (envelope.Payload, error) {
	r, err := c.open()
	if err != nil {
		return streamAnswer(err), nil
	}
	defer r.Close()
	return h.sendBytes(ctx, id, u, r)
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
