package sandboxfn

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// copyFileFrom copies one file. What is at local stays what it is: only a file is
// replaced, also when links lead to it.
func (sb *Sandbox) copyFileFrom(f *FS, remote, local string, info fs.FileInfo) error {
	into, err := takesBytes(local)
	if err != nil {
		return err
	}
	src, err := f.open(remote)
	if err != nil {
		return err
	}
	defer src.Close()
	from := bounded(src, remote, allowance(info.Size()))
	if into != nil {
		return writeInto(f.ctx, local, into.Mode(), from)
	}
	to, err := behindLinks(local)
	if err != nil {
		return err
	}
	// The name of the file may be as long as names can be: it is no part of this one.
	tmp, err := os.CreateTemp(filepath.Dir(to), ".copy-*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = io.Copy(tmp, from)
	err = errors.Join(err, tmp.Chmod(info.Mode().Perm()), tmp.Close())
	if err != nil {
		return err
	}
	return os.Rename(tmp.Name(), to)
}

// takesBytes returns what is at local when it is written into, as devices and pipes
// are. That is nil for a file and for nothing, and an error for what takes no file.
func takesBytes(local string) (fs.FileInfo, error) {
	info, err := os.Stat(local)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, fileError(local, err)
	case info.Mode()&(fs.ModeDevice|fs.ModeNamedPipe) != 0, info.Mode().IsRegular() && ofProcess(local):
		return info, nil
	case info.Mode().IsRegular():
		return nil, nil
	case info.IsDir():
		return nil, errdefs.New("E4003", "copy", quoted(local)+" is a directory, which a file does not replace")
	}
	return nil, errdefs.New("E4003", "copy", quoted(local)+" is neither a file nor a device or pipe")
}

// ofProcess reports whether links lead to a file through the list of what a process
// has open, as /dev/stdout does. Whoever opened it would not see another file under
// its name.
func ofProcess(path string) bool {
	path, err := filepath.Abs(path)
	if err != nil {
		return false
	}
	const most = 40 // as Linux
	for range most {
		dir, base := filepath.Split(path)
		if dir, err = filepath.EvalSymlinks(dir); err != nil || base == "" {
			return false
		}
		if strings.HasPrefix(dir, "/proc/") {
			return true
		}
		target, err := os.Readlink(filepath.Join(dir, base))
		if err != nil {
			return false
		}
		if path = target; !filepath.IsAbs(path) {
			path = dir + string(filepath.Separator) + target // ".." in it means what it means behind links
		}
	}
	return false
}

// writeInto writes to what is there. Cancelling ctx ends the wait for the reader of
// a pipe.
func writeInto(ctx context.Context, local string, mode fs.FileMode, src io.Reader) error {
	w, err := openInto(ctx, local, mode)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = w.SetWriteDeadline(time.Unix(1, 0)) }) // of pipes; a device does not wait
	_, err = io.Copy(w, src)
	stop()
	switch err = errors.Join(err, w.Close()); {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return fileError(local, err)
}

// readerWait is how often a pipe without a reader is looked at again.
const readerWait = 20 * time.Millisecond

func openInto(ctx context.Context, local string, mode fs.FileMode) (*os.File, error) {
	flags := os.O_WRONLY
	switch {
	case mode.IsRegular():
		flags |= os.O_TRUNC
	case mode&fs.ModeNamedPipe != 0:
		flags |= syscall.O_NONBLOCK // else nothing ends the wait
	}
	for {
		w, err := os.OpenFile(local, flags, 0)
		if err == nil {
			return w, nil
		}
		if mode&fs.ModeNamedPipe == 0 || !errors.Is(err, syscall.ENXIO) {
			return nil, fileError(local, err)
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(readerWait):
		}
	}
}
