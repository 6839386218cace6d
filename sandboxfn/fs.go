package sandboxfn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/agent-sandbox/sandbox-go/internal/envd"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// FS is the file system of a sandbox with the shapes of io/fs and os: the
// functions of package fs (ReadFile, ReadDir, Stat, Glob, WalkDir) work on it.
// It is safe for concurrent use.
//
// Paths are absolute, or relative to the home of the sandbox's default user;
// "~" and "~/…" mean that home, and "." and ".." are resolved by text, before
// links are looked at. Names that are not valid UTF-8 cannot be carried.
//
// Errors are [*fs.PathError]s around an [*Error] of code E4xxx, and match what
// package os would return: fs.ErrNotExist, fs.ErrPermission, fs.ErrExist,
// syscall.EISDIR and so on. A sandbox that is gone is never a file that is
// missing.
//
// Chmod, Chtimes, Symlink, Readlink, removal of directories and appending use
// the sandbox's own programs (chmod, touch, ln, readlink, rmdir, sh); where
// they are missing, these methods fail with [ErrCommandNotFound] in their error.
type FS struct {
	sb  *Sandbox
	ctx context.Context // io/fs gives no context to its methods
}

var (
	_ fs.ReadFileFS = (*FS)(nil)
	_ fs.ReadDirFS  = (*FS)(nil)
	_ fs.StatFS     = (*FS)(nil)
	_ fs.ReadLinkFS = (*FS)(nil)
)

// FS returns the sandbox's file system. ctx bounds every operation on it and on
// the files opened through it.
func (sb *Sandbox) FS(ctx context.Context) *FS { return &FS{sb: sb, ctx: ctx} }

// Open opens a file or directory for reading. The file is a [*FSFile]; its content
// is fetched as it is read.
func (f *FS) Open(name string) (fs.File, error) {
	file, err := f.open(name)
	if err != nil {
		return nil, err
	}
	return file, nil
}

func (f *FS) open(name string) (*FSFile, error) {
	info, p, err := f.stat("open", name)
	if err != nil {
		return nil, err
	}
	return &FSFile{fs: f, name: name, path: p, info: info}, nil
}

// ReadFile reads a whole file.
func (f *FS) ReadFile(name string) ([]byte, error) {
	p, err := f.path("open", name)
	if err != nil {
		return nil, err
	}
	body, err := f.sb.envd.ReadFile(f.ctx, p, 0, -1)
	if err != nil {
		return nil, f.fail("open", name, err)
	}
	defer body.Close()
	// A size that a server promises decides no allocation beyond a first guess.
	limit := allowance(0)
	data := make([]byte, 0, min(max(body.Size, 512), 1<<20)+1)
	for {
		if len(data) == cap(data) {
			data = append(data, 0)[:len(data)]
		}
		n, err := body.Read(data[len(data):cap(data)])
		data = data[:len(data)+n]
		if err == io.EOF {
			return data, nil
		}
		if err == nil && body.Size < 0 && int64(len(data)) > limit {
			// Bounded by what the file says of itself, asked for only where it matters.
			e, serr := f.sb.envd.Stat(f.ctx, p)
			if serr == nil && e.Target != "" {
				e, serr = f.sb.envd.Stat(f.ctx, e.Target)
			}
			if err = serr; err == nil {
				if limit = allowance(e.Size); int64(len(data)) > limit {
					err = tooMuch(name)
				}
			}
		}
		if err != nil {
			return data, f.fail("read", name, err)
		}
	}
}

// ReadDir lists a directory, sorted by name. A link among the entries is a
// link; what it points to is not looked at.
func (f *FS) ReadDir(name string) ([]fs.DirEntry, error) {
	p, err := f.path("open", name)
	if err != nil {
		return nil, err
	}
	return f.readDir(name, p)
}

func (f *FS) readDir(name, p string) ([]fs.DirEntry, error) {
	list, err := f.sb.envd.List(f.ctx, p, 1)
	if err != nil {
		return nil, f.fail("open", name, err)
	}
	out := make([]fs.DirEntry, 0, len(list))
	for _, e := range list {
		if e.Name == "" || strings.Contains(e.Name, "/") || e.Name == "." || e.Name == ".." {
			return nil, f.fail("open", name, errdefs.New("E3006", "list directory", "the server sent an entry whose name is none"))
		}
		out = append(out, fs.FileInfoToDirEntry(&fileInfo{name: e.Name, e: e}))
	}
	slices.SortFunc(out, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return out, nil
}

// Stat describes a file; of a link, what it leads to.
func (f *FS) Stat(name string) (fs.FileInfo, error) {
	info, _, err := f.stat("stat", name)
	if err != nil {
		return nil, err
	}
	return info, nil
}

// stat follows links. It also returns the path on the wire.
func (f *FS) stat(op, name string) (*fileInfo, string, error) {
	p, err := f.path(op, name)
	if err != nil {
		return nil, "", err
	}
	e, err := f.sb.envd.Stat(f.ctx, p)
	if err == nil && e.Mode&fs.ModeSymlink != 0 {
		if e.Broken || e.Target == "" {
			err = envd.FileError(op, "no such file or directory (the target of a link)")
		} else {
			e, err = f.sb.envd.Stat(f.ctx, e.Target)
		}
	}
	if err != nil {
		return nil, "", f.fail(op, name, err)
	}
	return &fileInfo{name: path.Base(name), e: e}, p, nil
}

// Lstat describes a file without following a link.
func (f *FS) Lstat(name string) (fs.FileInfo, error) {
	e, err := f.lstat("lstat", name)
	if err != nil {
		return nil, err
	}
	return &fileInfo{name: path.Base(name), e: e}, nil
}

func (f *FS) lstat(op, name string) (*envd.Entry, error) {
	p, err := f.path(op, name)
	if err != nil {
		return nil, err
	}
	e, err := f.sb.envd.Stat(f.ctx, p)
	if err != nil {
		return nil, f.fail(op, name, err)
	}
	return e, nil
}

// Exists reports whether there is something called name, a broken link
// included. Any failure but "not there" is an error.
func (f *FS) Exists(name string) (bool, error) {
	_, err := f.lstat("stat", name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// MkdirAll makes a directory with its parents; one that exists is left as it is.
// New parents have mode 0755 and belong to the default user, as the directory
// itself, whose mode is perm. Zero means 0755.
func (f *FS) MkdirAll(name string, perm fs.FileMode) error {
	p, err := f.path("mkdir", name)
	if err != nil {
		return err
	}
	if err := f.sb.envd.MakeDir(f.ctx, p); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return nil
		}
		return f.fail("mkdir", name, err)
	}
	if perm != 0 && perm != 0o755 && perm != fs.ModeDir|0o755 {
		return f.Chmod(name, perm)
	}
	return nil
}

// Remove removes a file, a link or an empty directory.
func (f *FS) Remove(name string) error {
	e, err := f.lstat("remove", name)
	if err != nil {
		return err
	}
	p, _ := f.path("remove", name)
	if e.Mode.IsDir() {
		return f.fail("remove", name, f.tool("rmdir", "--", operand(p)))
	}
	return f.fail("remove", name, f.sb.envd.Remove(f.ctx, p))
}

// RemoveAll removes name and everything below it. One that is not there is done.
func (f *FS) RemoveAll(name string) error {
	p, err := f.path("removeall", name)
	if err != nil {
		return err
	}
	if b := path.Base(p); b == "." || b == "/" || b == ".." || b == "~" {
		return f.fail("removeall", name, coded("E4006", "it names no entry of a directory", syscall.EINVAL))
	}
	return f.fail("removeall", name, f.sb.envd.Remove(f.ctx, p))
}

// Rename moves a file or directory. A file that exists at newname is replaced
// as a whole; parents of newname are made.
func (f *FS) Rename(oldname, newname string) error {
	from, err := f.path("rename", oldname)
	if err != nil {
		return err
	}
	to, err := f.path("rename", newname)
	if err != nil {
		return err
	}
	return f.fail("rename", oldname, f.sb.envd.Move(f.ctx, from, to))
}

// Chmod sets the mode of a file; of a link, of what it leads to.
func (f *FS) Chmod(name string, mode fs.FileMode) error {
	p, err := f.path("chmod", name)
	if err != nil {
		return err
	}
	return f.fail("chmod", name, f.tool("chmod", octal(mode), "--", operand(p)))
}

// Chtimes sets the times of last access and modification; a zero time leaves
// the one there is.
func (f *FS) Chtimes(name string, atime, mtime time.Time) error {
	p, err := f.path("chtimes", name)
	if err != nil {
		return err
	}
	if _, _, err := f.stat("chtimes", name); err != nil { // touch -c is silent
		return err
	}
	for _, t := range []struct {
		flag string
		at   time.Time
	}{{"-a", atime}, {"-m", mtime}} {
		if t.at.IsZero() {
			continue
		}
		stamp := fmt.Sprintf("@%d.%09d", t.at.Unix(), t.at.Nanosecond())
		if err := f.tool("touch", "-c", t.flag, "-d", stamp, "--", operand(p)); err != nil {
			return f.fail("chtimes", name, err)
		}
	}
	return nil
}

// Symlink makes newname a link to oldname, which is stored as it is.
func (f *FS) Symlink(oldname, newname string) error {
	p, err := f.path("symlink", newname)
	if err != nil {
		return err
	}
	if oldname == "" || strings.Contains(oldname, "\x00") || !utf8.ValidString(oldname) {
		return f.fail("symlink", newname, coded("E4006", "the target is empty, holds a NUL byte or is not valid UTF-8", syscall.EINVAL))
	}
	return f.fail("symlink", newname, f.tool("ln", "-s", "-T", "--", oldname, operand(p)))
}

// Readlink returns what a link holds, as it was stored.
func (f *FS) Readlink(name string) (string, error) {
	e, err := f.lstat("readlink", name)
	if err != nil {
		return "", err
	}
	if e.Mode&fs.ModeSymlink == 0 {
		return "", f.fail("readlink", name, coded("E4003", "not a link", syscall.EINVAL))
	}
	p, _ := f.path("readlink", name)
	out, err := f.toolOutput("readlink", "-n", "--", operand(p))
	if err != nil {
		return "", f.fail("readlink", name, err)
	}
	return string(out), nil
}

// ReadLink is [FS.Readlink] under the name io/fs has for it.
func (f *FS) ReadLink(name string) (string, error) { return f.Readlink(name) }

// tool runs a program of the sandbox on a file; its message becomes the error.
func (f *FS) tool(name string, arg ...string) error {
	_, err := f.toolOutput(name, arg...)
	return err
}

func (f *FS) toolOutput(name string, arg ...string) ([]byte, error) {
	out, err := f.sb.toolOutput(f.ctx, name, arg...)
	if e, ok := errors.AsType[*ExitError](err); ok && e.Signal == "" {
		msg := strings.TrimSpace(string(e.Stderr))
		if msg == "" {
			msg = name + " failed with " + fmt.Sprint(e.ExitCode)
		}
		return nil, envd.FileError(name, msg)
	}
	return out, err
}

// path checks a name and makes it what goes over the wire.
func (f *FS) path(op, name string) (string, error) {
	switch {
	case name == "":
		return "", f.fail(op, `""`, coded("E4006", "the path is empty", syscall.ENOENT))
	case strings.Contains(name, "\x00"):
		return "", f.fail(op, name, coded("E4006", "the path holds a NUL byte", syscall.EINVAL))
	case !utf8.ValidString(name):
		return "", f.fail(op, name, coded("E4006", "the path is not valid UTF-8", syscall.EINVAL))
	case name[0] == '~' && name != "~" && name[1] != '/':
		return "", f.fail(op, name, coded("E4006", "homes of other users are not looked up; write ./~… for a file of that name", syscall.EINVAL))
	}
	if err := f.sb.usable(); err != nil {
		return "", err
	}
	if rest, ok := strings.CutPrefix(name, "~/"); ok { // apart, as "~/.." is no way to the directory that holds "~"
		if rest = path.Clean(rest); rest == "." || rest[0] == '/' {
			return path.Join("~", rest), nil
		}
		return "~/" + rest, nil
	}
	p := path.Clean(name)
	if p[0] == '~' && name[0] != '~' {
		p = "./" + p // a file called "~", not the home
	}
	return p, nil
}

// operand is a path on the wire as tools have to be given it. They run in the
// home and take "~" for a name like any other.
func operand(p string) string {
	if p == "~" {
		return "."
	}
	if rest, ok := strings.CutPrefix(p, "~/"); ok {
		return "./" + rest
	}
	return p
}

// fail makes the error of an operation on a file; nil stays nil.
func (f *FS) fail(op, name string, err error) error {
	if err == nil {
		return nil
	}
	if errdefs.CodeOf(err).Class() != "E4000" {
		if err = f.sb.explain(f.ctx, err); isGone(err) {
			return err
		}
	}
	return &fs.PathError{Op: op, Path: name, Err: err}
}

func coded(code ErrorCode, message string, errno syscall.Errno) error {
	return errdefs.Wrap(code, "", message, errno)
}

// unixMode is the number chmod takes.
func unixMode(m fs.FileMode) uint32 {
	bits := uint32(m.Perm())
	for _, b := range []struct {
		go_  fs.FileMode
		unix uint32
	}{{fs.ModeSetuid, 0o4000}, {fs.ModeSetgid, 0o2000}, {fs.ModeSticky, 0o1000}} {
		if m&b.go_ != 0 {
			bits |= b.unix
		}
	}
	return bits
}

func octal(m fs.FileMode) string { return fmt.Sprintf("%04o", unixMode(m)) }

// FileStat is what [fs.FileInfo.Sys] of this package's files returns.
type FileStat struct {
	Path         string // absolute
	Owner, Group string // names, or decimal ids
	Target       string // where a link leads to in the end; empty: not a link
}

// fileInfo implements fs.FileInfo.
type fileInfo struct {
	name string
	e    *envd.Entry
}

func (i *fileInfo) Name() string       { return i.name }
func (i *fileInfo) Size() int64        { return i.e.Size }
func (i *fileInfo) Mode() fs.FileMode  { return i.e.Mode }
func (i *fileInfo) ModTime() time.Time { return i.e.Modified }
func (i *fileInfo) IsDir() bool        { return i.e.Mode.IsDir() }
func (i *fileInfo) Sys() any {
	return &FileStat{Path: i.e.Path, Owner: i.e.Owner, Group: i.e.Group, Target: i.e.Target}
}
