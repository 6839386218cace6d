package sandboxfn

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"sync"
	"syscall"

	"github.com/agent-sandbox/sandbox-go/internal/envd"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// FSFile is an open file of a sandbox, for reading or for writing. Reading and
// writing move bytes as they are asked for; nothing is held as a whole. ReadAt
// may be called concurrently, everything else by one goroutine at a time.
type FSFile struct {
	fs   *FS
	name string
	path string // on the wire

	// reading
	info   *fileInfo
	at     int64
	body   *envd.Body
	bodyAt int64 // where body stands
	list   []fs.DirEntry
	listed bool

	out    *upload // writing
	closed bool
}

var (
	_ fs.ReadDirFile = (*FSFile)(nil)
	_ io.ReaderAt    = (*FSFile)(nil)
	_ io.ReadSeeker  = (*FSFile)(nil)
	_ io.WriteCloser = (*FSFile)(nil)
)

// Create makes a file, or replaces one, with mode 0644. Its content appears as a
// whole when Close returns nil; until then the old file stays.
func (f *FS) Create(name string) (*FSFile, error) {
	return f.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
}

// OpenFile opens a file by the flags of package os:
//
//   - O_RDONLY reads, as Open.
//   - O_WRONLY|O_CREATE|O_TRUNC writes a whole new content, as Create, with
//     mode perm; parents are made. Without O_CREATE the file must exist, with
//     O_EXCL it must not.
//   - O_WRONLY|O_APPEND adds to the end as it is written; with O_CREATE the file
//     is made where it is missing.
//
// Other combinations would need parts of files to be written in place, which
// the protocol cannot: [ErrNotSupported].
func (f *FS) OpenFile(name string, flag int, perm fs.FileMode) (*FSFile, error) {
	const known = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREATE | os.O_EXCL | os.O_SYNC | os.O_TRUNC
	flag &^= os.O_SYNC
	switch {
	case flag == os.O_RDONLY:
		return f.open(name)
	case flag&^known == 0 && flag&(os.O_WRONLY|os.O_RDWR) == os.O_WRONLY && flag&(os.O_APPEND|os.O_TRUNC) == os.O_TRUNC:
		return f.replace(name, flag, perm)
	case flag&^known == 0 && flag&(os.O_WRONLY|os.O_RDWR) == os.O_WRONLY && flag&(os.O_APPEND|os.O_TRUNC|os.O_EXCL) == os.O_APPEND:
		return f.append(name, flag, perm)
	}
	return nil, f.fail("open", name, errdefs.New("E8004", "", "these flags need a part of a file to be written in place; open with O_TRUNC or O_APPEND"))
}

// WriteFile writes a file as a whole: readers see the old content or the new
// one. Its mode is perm, and zero means 0644. Parents are made. A link is
// followed.
func (f *FS) WriteFile(name string, data []byte, perm fs.FileMode) error {
	t, err := f.path("open", name)
	if err == nil && (!f.direct(perm) || strings.HasSuffix(name, "/")) { // a direct upload finds its own way
		t, err = f.target("open", name, os.O_CREATE)
	}
	if err != nil {
		return err
	}
	return f.fail("open", name, f.put(f.ctx, t, bytes.NewReader(data), int64(len(data)), perm))
}

// target resolves where a replacement of name has to go, on the wire.
func (f *FS) target(op, name string, flag int) (string, error) {
	p, err := f.path(op, name)
	if err != nil {
		return "", err
	}
	if strings.HasSuffix(name, "/") {
		return "", f.fail(op, name, coded("E4003", "is a directory", syscall.EISDIR))
	}
	if flag&os.O_EXCL != 0 {
		return p, f.fail(op, name, f.claim(p))
	}
	e, err := f.sb.envd.Stat(f.ctx, p)
	switch {
	case errors.Is(err, fs.ErrNotExist) && flag&os.O_CREATE != 0:
		return p, nil
	case err != nil:
		return "", f.fail(op, name, err)
	case e.Mode&fs.ModeSymlink != 0 && e.Broken:
		return "", f.fail(op, name, coded("E4001", "the link leads nowhere", syscall.ENOENT))
	case e.Mode&fs.ModeSymlink != 0:
		if e, err = f.sb.envd.Stat(f.ctx, e.Target); err != nil {
			return "", f.fail(op, name, err)
		}
		p = e.Path
	}
	switch {
	case e.Mode.IsDir():
		return "", f.fail(op, name, coded("E4003", "is a directory", syscall.EISDIR))
	case !e.Mode.IsRegular():
		return "", f.fail(op, name, coded("E4003", "not a regular file", syscall.EINVAL))
	}
	return p, nil
}

// claim makes an empty file that must not exist yet. Only open(2) can decide
// that, so a shell of the sandbox does it.
func (f *FS) claim(p string) error {
	return f.tool("/bin/sh", "-c", `mkdir -p -- "$(dirname -- "$1")" && set -C && : > "$1"`, "sh", operand(p))
}

// put replaces the file p, so that nobody sees a part of it.
func (f *FS) put(ctx context.Context, p string, r io.Reader, size int64, perm fs.FileMode) error {
	if perm == 0 {
		perm = 0o644
	}
	if f.direct(perm) {
		if _, err := f.sb.envd.WriteFile(ctx, p, r, size, nil); err != nil {
			return err
		}
		return f.applyMode(p, perm)
	}
	part := partName(p)
	err := f.putPart(ctx, part, r, size, perm)
	if err == nil {
		err = f.sb.envd.Move(ctx, part, p)
	}
	if err != nil {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), killRequest)
		defer cancel()
		f.sb.envd.Remove(clean, part)
	}
	return err
}

// direct reports whether a plain upload is all it takes: our own runtime
// replaces files as a whole, with this mode.
func (f *FS) direct(perm fs.FileMode) bool { return f.sb.channels && (perm == 0 || perm == 0o644) }

// putPart writes a new file. A mode that keeps others out is set before there
// is anything to read.
func (f *FS) putPart(ctx context.Context, part string, r io.Reader, size int64, perm fs.FileMode) error {
	private := perm&0o644 != 0o644
	if private {
		if _, err := f.sb.envd.WriteFile(ctx, part, nil, 0, nil); err != nil {
			return err
		}
		if err := f.applyMode(part, perm|0o200); err != nil {
			return err
		}
	}
	if _, err := f.sb.envd.WriteFile(ctx, part, r, size, nil); err != nil {
		return err
	}
	return f.applyMode(part, perm)
}

// applyMode gives a new file its mode, where the server chose another.
func (f *FS) applyMode(p string, perm fs.FileMode) error {
	e, err := f.sb.envd.Stat(f.ctx, p)
	if err != nil {
		return err
	}
	if e.Mode&fs.ModeSymlink != 0 && e.Target != "" {
		if e, err = f.sb.envd.Stat(f.ctx, e.Target); err != nil {
			return err
		}
	}
	if unixMode(e.Mode) == unixMode(perm) {
		return nil
	}
	return f.tool("chmod", octal(perm), "--", operand(p))
}

// partName is a name beside p that nothing else has, within the 255 bytes that
// file systems allow.
func partName(p string) string {
	dir, base := path.Split(p)
	if len(base) > 200 {
		base = strings.ToValidUTF8(base[:200], "")
	}
	return dir + "." + base + "." + randomID()[:12] + ".part"
}

// Name is the name the file was opened with.
func (f *FSFile) Name() string { return f.name }

// Stat describes the file as it was when it was opened for reading.
func (f *FSFile) Stat() (fs.FileInfo, error) {
	if f.closed {
		return nil, f.used("stat")
	}
	if f.out != nil {
		return f.fs.Stat(f.name)
	}
	return f.info, nil
}

// Read reads what follows.
func (f *FSFile) Read(p []byte) (int, error) {
	if err := f.readable("read"); err != nil {
		return 0, err
	}
	if len(p) == 0 {
		return 0, nil
	}
	if f.body == nil || f.bodyAt != f.at {
		f.drop()
		body, err := f.fs.sb.envd.ReadFile(f.fs.ctx, f.path, f.at, -1)
		if err != nil {
			return 0, f.fs.fail("read", f.name, err)
		}
		f.body, f.bodyAt = body, f.at
	}
	n, err := f.body.Read(p)
	f.at += int64(n)
	f.bodyAt += int64(n)
	if err != nil && err != io.EOF {
		f.drop()
		err = f.fs.fail("read", f.name, err)
	}
	return n, err
}

// ReadAt reads from an offset, with one request for just that part.
func (f *FSFile) ReadAt(p []byte, off int64) (int, error) {
	if err := f.readable("read"); err != nil {
		return 0, err
	}
	if off < 0 {
		return 0, f.fs.fail("read", f.name, coded("E4006", "negative offset", syscall.EINVAL))
	}
	if len(p) == 0 {
		return 0, nil
	}
	body, err := f.fs.sb.envd.ReadFile(f.fs.ctx, f.path, off, int64(len(p)))
	if err != nil {
		return 0, f.fs.fail("read", f.name, err)
	}
	defer body.Close()
	n, err := io.ReadFull(body, p)
	switch err {
	case nil, io.EOF:
		return n, err
	case io.ErrUnexpectedEOF:
		return n, io.EOF
	}
	return n, f.fs.fail("read", f.name, err)
}

// Seek moves where Read goes on. The end is where it was when the file was
// opened.
func (f *FSFile) Seek(offset int64, whence int) (int64, error) {
	if err := f.readable("seek"); err != nil {
		return 0, err
	}
	switch whence {
	case io.SeekStart:
	case io.SeekCurrent:
		offset += f.at
	case io.SeekEnd:
		offset += f.info.Size()
	default:
		return 0, f.fs.fail("seek", f.name, coded("E4006", "unknown whence", syscall.EINVAL))
	}
	if offset < 0 {
		return 0, f.fs.fail("seek", f.name, coded("E4006", "negative position", syscall.EINVAL))
	}
	f.at = offset
	return offset, nil
}

// ReadDir lists a directory that was opened, as fs.ReadDirFile says.
func (f *FSFile) ReadDir(n int) ([]fs.DirEntry, error) {
	if f.closed {
		return nil, f.used("readdir")
	}
	if f.out != nil || !f.info.IsDir() {
		return nil, f.fs.fail("readdir", f.name, coded("E4003", "not a directory", syscall.ENOTDIR))
	}
	if !f.listed {
		list, err := f.fs.readDir(f.name, f.path)
		if err != nil {
			return nil, err
		}
		f.list, f.listed = list, true
	}
	if n <= 0 {
		rest := f.list
		f.list = nil
		return rest, nil
	}
	if len(f.list) == 0 {
		return nil, io.EOF
	}
	k := min(n, len(f.list))
	part := f.list[:k:k]
	f.list = f.list[k:]
	return part, nil
}

// Write adds to a file that was opened for writing. It returns when the bytes
// are on their way; whether they arrived says Close.
func (f *FSFile) Write(p []byte) (int, error) {
	if f.closed {
		return 0, f.used("write")
	}
	if f.out == nil {
		return 0, f.fs.fail("write", f.name, coded("E4002", "the file is open for reading", syscall.EBADF))
	}
	n, err := f.out.write(p)
	return n, f.fs.fail("write", f.name, err)
}

// Close ends the use of the file. After writing, its error says whether the
// content is there: it must be checked. A second Close is fs.ErrClosed.
func (f *FSFile) Close() error {
	if f.closed {
		return f.used("close")
	}
	f.closed = true
	f.drop()
	if f.out != nil {
		return f.fs.fail("close", f.name, f.out.close())
	}
	return nil
}

func (f *FSFile) readable(op string) error {
	switch {
	case f.closed:
		return f.used(op)
	case f.out != nil:
		return f.fs.fail(op, f.name, coded("E4002", "the file is open for writing", syscall.EBADF))
	case f.info.IsDir() && op == "read":
		return f.fs.fail(op, f.name, coded("E4003", "is a directory", syscall.EISDIR))
	}
	return nil
}

func (f *FSFile) used(op string) error {
	return &fs.PathError{Op: op, Path: f.name, Err: fs.ErrClosed}
}

func (f *FSFile) drop() {
	if f.body != nil {
		f.body.Close()
		f.body = nil
	}
}

// upload is content on its way: what is written to the pipe is read by a
// request, or a process, in a goroutine that close waits for.
type upload struct {
	ctx  context.Context
	w    *io.PipeWriter
	done chan struct{}
	err  error // valid after done

	once sync.Once
}

// startUpload runs send with what will be written. The end of ctx reaches it
// also while it waits for the writer.
func startUpload(ctx context.Context, send func(io.Reader) error) *upload {
	pr, pw := io.Pipe()
	u := &upload{ctx: ctx, w: pw, done: make(chan struct{})}
	stop := context.AfterFunc(ctx, func() { pr.CloseWithError(contextError(ctx, "write file")) })
	go func() {
		defer close(u.done)
		defer stop()
		u.err = send(pr)
		if u.err != nil && ctx.Err() != nil {
			u.err = contextError(ctx, "write file") // what broke because of it says less
		}
		// A writer that is not finished must not wait for ever.
		if u.err != nil {
			pr.CloseWithError(u.err)
		} else {
			pr.Close()
		}
	}()
	return u
}

func (u *upload) write(p []byte) (int, error) { return u.w.Write(p) }

func (u *upload) close() error {
	u.once.Do(func() {
		var err error // nil: the end of what was written
		if u.ctx.Err() != nil {
			err = contextError(u.ctx, "write file")
		}
		u.w.CloseWithError(err)
	})
	<-u.done
	return u.err
}

// replace opens a file whose content is replaced at Close.
func (f *FS) replace(name string, flag int, perm fs.FileMode) (*FSFile, error) {
	p, err := f.target("open", name, flag)
	if err != nil {
		return nil, err
	}
	out := startUpload(f.ctx, func(r io.Reader) error { return f.put(f.ctx, p, r, -1, perm) })
	return &FSFile{fs: f, name: name, path: p, out: out}, nil
}

// append opens a file to whose end a process of the sandbox writes.
func (f *FS) append(name string, flag int, perm fs.FileMode) (*FSFile, error) {
	_, p, err := f.stat("open", name)
	switch {
	case errors.Is(err, fs.ErrNotExist) && flag&os.O_CREATE != 0:
		if err := f.WriteFile(name, nil, perm); err != nil {
			return nil, err
		}
		p, _ = f.path("open", name)
	case err != nil:
		return nil, err
	}
	// The shell opens the file before it says so: from then on nothing but the
	// writing itself can fail.
	cmd := f.sb.Command(f.ctx, "/bin/sh", "-c", `exec >> "$1" && echo ok >&2 && exec cat`, "sh", operand(p))
	cmd.Dir, cmd.Env = "~", []string{"LC_ALL=C"}
	ready, _ := cmd.StderrPipe()
	in, _ := cmd.StdinPipe()
	if err := cmd.Start(); err != nil {
		return nil, f.fail("open", name, err)
	}
	first := make([]byte, 4<<10)
	n, _ := io.ReadAtLeast(ready, first, 3)
	if msg := string(first[:n]); !strings.HasPrefix(msg, "ok\n") {
		in.Close()
		rest, _ := io.ReadAll(io.LimitReader(ready, 4<<10))
		err := cmd.Wait()
		if _, ok := errors.AsType[*ExitError](err); ok || err == nil {
			err = envd.FileError("open", strings.TrimSpace(msg+string(rest)))
		}
		return nil, f.fail("open", name, err)
	}
	out := startUpload(f.ctx, func(r io.Reader) error {
		_, err := io.Copy(in, r)
		in.Close()
		msg, _ := io.ReadAll(io.LimitReader(ready, 4<<10))
		werr := cmd.Wait()
		if e, ok := errors.AsType[*ExitError](werr); ok && e.Signal == "" {
			return envd.FileError("append", strings.TrimSpace(string(msg)))
		}
		return errors.Join(werr, err)
	})
	return &FSFile{fs: f, name: name, path: p, out: out}, nil
}
