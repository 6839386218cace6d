//go:build linux

package layertar

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Limits that hold where Options names none.
const (
	DefaultEntries = 1 << 20
	DefaultBytes   = 32 << 30
)

// maxPath bounds a name in an archive, in bytes; path_resolution(7) has the same
// limit for programs.
const maxPath = 4096

// Names that are instructions (OCI image layer specification, "Whiteouts").
const (
	whiteoutPrefix = ".wh."
	opaqueName     = ".wh..wh.opq"
)

// opaqueAttr marks a directory that hides the one below it, in the form of
// overlayfs that users may mount ("userxattr").
const opaqueAttr = "user.overlay.opaque"

// Options bound and shape what is written. The zero value makes everything
// belong to the caller, with the default limits.
type Options struct {
	// OwnerBase is added to the user and group ids of the archive, of which it
	// has 65536; others become nobody's. Zero: everything belongs to the caller,
	// who need not be root.
	OwnerBase int

	// KeepOwners keeps the ids of the archive without adding anything: the caller
	// is root of a user namespace that maps them.
	KeepOwners bool

	// Snapshot says that Pack made the archive: attributes of users, holes and
	// names that look like instructions are what they were.
	Snapshot bool

	Entries int64 // of the archive; zero: DefaultEntries
	Bytes   int64 // of the archive, and of the files together; zero: DefaultBytes
}

// Stats says what was written.
type Stats struct {
	Entries int64 // files, directories, links and marks of removal
	Bytes   int64 // of files
	Dropped int64 // entries that a sandbox may not have: devices, pipes
}

// LimitError says that an archive holds more than is accepted.
type LimitError struct {
	What  string // "entries", "bytes"
	Limit int64
}

// Error names the limit.
func (e *LimitError) Error() string {
	return fmt.Sprintf("the layer has more than %d %s", e.Limit, e.What)
}

// Unpack writes the archive that r holds into dir, which is empty and which
// nobody else changes meanwhile, and reads r to its end. Entries that take
// something away from lower layers become the marks of overlayfs. After an error
// the content of dir is of no use; see [Remove].
func Unpack(ctx context.Context, dir *os.File, r io.Reader, o Options) (Stats, error) {
	if o.Entries == 0 {
		o.Entries = DefaultEntries
	}
	if o.Bytes == 0 {
		o.Bytes = DefaultBytes
	}
	in := &limitedReader{ctx: ctx, r: r, left: o.Bytes, limit: o.Bytes}
	u := &unpacker{o: o, t: newTree(dir, o.OwnerBase), dirs: map[string]attrs{}, buf: make([]byte, 256<<10)}
	defer u.t.close()
	err := u.run(tar.NewReader(bufio.NewReaderSize(in, 64<<10)))
	if err == nil {
		err = u.finish()
	}
	if err == nil { // whoever checks a digest wants the padding as well
		_, err = io.CopyBuffer(io.Discard, in, u.buf)
	}
	return u.stats, err
}

// limitedReader fails when it has read more than it may, or ctx has ended.
type limitedReader struct {
	ctx         context.Context // of the one operation that it is part of
	r           io.Reader
	left, limit int64
}

// Read reads within the limit.
func (l *limitedReader) Read(p []byte) (int, error) {
	if l.ctx.Err() != nil {
		return 0, context.Cause(l.ctx)
	}
	n, err := l.r.Read(p)
	if l.left -= int64(n); l.left < 0 {
		return n, &LimitError{"bytes", l.limit}
	}
	return n, err
}

type attrs struct {
	mode     uint32
	uid, gid int
	mtime    time.Time
	user     map[string]string // attributes
}

type unpacker struct {
	o     Options
	t     *tree
	dirs  map[string]attrs // set last: what is put into a directory changes it
	stats Stats
	buf   []byte
}

func (u *unpacker) run(r *tar.Reader) error {
	for {
		h, err := r.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the archive: %w", err)
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		if u.stats.Entries+u.stats.Dropped >= u.o.Entries {
			return &LimitError{"entries", u.o.Entries}
		}
		if err := u.entry(h, r); err != nil {
			return fmt.Errorf("entry %q: %w", clip(h.Name), err)
		}
	}
}

func clip(s string) string {
	if len(s) > 200 {
		return s[:200] + "…"
	}
	return s
}

// cleanName is the name of an entry as a path below the layer; empty: the layer
// itself.
func cleanName(name string) (string, error) {
	if len(name) > maxPath {
		return "", errors.New("the name is too long")
	}
	if strings.ContainsRune(name, 0) {
		return "", errors.New("the name holds a NUL")
	}
	return path.Clean("/" + name)[1:], nil
}

func (u *unpacker) entry(h *tar.Header, r io.Reader) error {
	name, err := cleanName(h.Name)
	if err != nil {
		return err
	}
	if name == "" {
		return nil // the top is ours
	}
	parent, base := path.Split(name)
	in, err := u.t.dir(parent)
	if err != nil {
		return err
	}
	if hidden, ok := strings.CutPrefix(base, whiteoutPrefix); ok && !(u.o.Snapshot && h.PAXRecords[recordLiteral] != "") {
		u.stats.Entries++
		if base == opaqueName {
			return setOpaque(in)
		}
		return u.whiteout(in, hidden)
	}
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeDir, tar.TypeSymlink, tar.TypeLink:
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		u.stats.Dropped++
		return nil
	default:
		return fmt.Errorf("entries of type %q are unknown", h.Typeflag)
	}
	u.stats.Entries++
	a := u.attrs(h)
	if h.Typeflag == tar.TypeDir {
		if err := u.t.mkdir(in, base); err != nil {
			return err
		}
		u.dirs[u.t.real(base)] = a
		return nil
	}
	if h.Typeflag == tar.TypeLink {
		return u.link(h.Linkname, parent, base)
	}
	if _, err := u.t.clear(in, base); err != nil {
		return err
	}
	if h.Typeflag == tar.TypeSymlink {
		return u.symlink(in, base, h.Linkname, a)
	}
	if u.o.Snapshot && h.PAXRecords[recordSparse] != "" {
		size, parts, err := decodeSparse(h.PAXRecords[recordSparse], h.Size)
		if err != nil {
			return err
		}
		return u.file(in, base, h.Size, r, a, size, parts)
	}
	return u.file(in, base, h.Size, r, a, h.Size, nil)
}

// attrs cuts the attributes of an entry down to what is kept.
func (u *unpacker) attrs(h *tar.Header) attrs {
	a := attrs{mode: uint32(h.Mode) & 0o777, uid: u.owner(h.Uid), gid: u.owner(h.Gid), mtime: h.ModTime}
	if h.Typeflag == tar.TypeDir {
		a.mode |= uint32(h.Mode) & 0o1000 // sticky
	}
	if a.mtime.Before(time.Unix(0, 0)) || a.mtime.Year() > 2200 { // beyond what file systems keep
		a.mtime = time.Unix(0, 0)
	}
	if u.o.Snapshot {
		for k, v := range h.PAXRecords {
			key, ok := strings.CutPrefix(k, recordAttr)
			if !ok || !strings.HasPrefix(key, userAttr) || strings.HasPrefix(key, overlayAttr) {
				continue
			}
			if a.user == nil {
				a.user = map[string]string{}
			}
			a.user[key] = v
		}
	}
	return a
}

// setUser gives a file the attributes of users.
func (a attrs) setUser(fd int) error {
	for k, v := range a.user {
		if err := unix.Fsetxattr(fd, k, []byte(v), 0); err != nil {
			return fmt.Errorf("set attribute %q: %w", clip(k), err)
		}
	}
	return nil
}

// nobody is the id of those that have none.
const nobody = 65534

func (u *unpacker) owner(id int) int {
	switch {
	case u.o.OwnerBase == 0 && !u.o.KeepOwners:
		return -1
	case id < 0 || id > nobody:
		id = nobody
	}
	return u.o.OwnerBase + id
}

// whiteout hides name of the layers below, unless this one has it.
func (u *unpacker) whiteout(in int, name string) error {
	if name == "" || name == "." || name == ".." {
		return errors.New("it hides nothing")
	}
	var st unix.Stat_t
	switch err := unix.Fstatat(in, name, &st, unix.AT_SYMLINK_NOFOLLOW); {
	case err == unix.ENOENT:
		return mknod(in, name)
	case err != nil:
		return &os.PathError{Op: "stat", Path: name, Err: err}
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return nil
	}
	// What it has of the directory stays, and what is below is hidden.
	fd, err := openDir(in, name)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return setOpaque(fd)
}

// mknod makes the mark of a removed name. Users may make this one device.
func mknod(in int, name string) error {
	if err := unix.Mknodat(in, name, unix.S_IFCHR, 0); err != nil {
		return &os.PathError{Op: "mark as removed", Path: name, Err: err}
	}
	return nil
}

func isWhiteout(st *unix.Stat_t) bool {
	return st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0
}

func setOpaque(fd int) error {
	if err := unix.Fsetxattr(fd, opaqueAttr, []byte("y"), 0); err != nil {
		return fmt.Errorf("mark a directory as opaque: %w", err)
	}
	return nil
}

// link makes one more name for a file of this layer.
func (u *unpacker) link(target, parent, base string) error {
	target, err := cleanName(target)
	if err != nil {
		return err
	}
	dir, file := path.Split(target)
	if file == "" {
		return errors.New("it is a link to the layer itself")
	}
	from, err := u.t.existing(dir)
	if err != nil {
		return fmt.Errorf("link to %q: %w", clip(target), err)
	}
	defer unix.Close(from)
	var st, old unix.Stat_t
	if err := unix.Fstatat(from, file, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("link to %q, which this layer does not have: %w", clip(target), err)
	}
	if t := st.Mode & unix.S_IFMT; t != unix.S_IFREG && t != unix.S_IFLNK {
		return fmt.Errorf("link to %q, which is no file", clip(target))
	}
	in, err := u.t.dir(parent)
	if err != nil {
		return err
	}
	if unix.Fstatat(in, base, &old, unix.AT_SYMLINK_NOFOLLOW) == nil && old.Ino == st.Ino && old.Dev == st.Dev {
		return nil // to itself
	}
	emptied, err := u.t.clear(in, base)
	if err != nil {
		return err
	}
	if emptied { // the target may have been in there
		if err := unix.Fstatat(from, file, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return fmt.Errorf("link to %q, which it replaces: %w", clip(target), err)
		}
	}
	if err := unix.Linkat(from, file, in, base, 0); err != nil {
		return &os.LinkError{Op: "link", Old: target, New: base, Err: err}
	}
	return nil
}

func (u *unpacker) symlink(in int, base, target string, a attrs) error {
	if target == "" || len(target) >= maxPath || strings.ContainsRune(target, 0) {
		return errors.New("the link leads to no possible path")
	}
	if err := unix.Symlinkat(target, in, base); err != nil {
		return &os.LinkError{Op: "symlink", Old: clip(target), New: base, Err: err}
	}
	defer u.t.forget() // a link is where a directory may have been
	if a.uid >= 0 {
		if err := unix.Fchownat(in, base, a.uid, a.gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return &os.PathError{Op: "chown", Path: base, Err: err}
		}
	}
	return setTime(in, base, a.mtime)
}

// file writes a file of size bytes, of which full are after each other in r; with
// parts it has full bytes, and size of them are in r.
func (u *unpacker) file(in int, base string, size int64, r io.Reader, a attrs, full int64, parts []extent) error {
	if size < 0 || size > u.o.Bytes-u.stats.Bytes {
		return &LimitError{"bytes", u.o.Bytes}
	}
	fd, err := unix.Openat(in, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return &os.PathError{Op: "create", Path: base, Err: err}
	}
	f := os.NewFile(uintptr(fd), base)
	defer f.Close()
	var n int64
	if full != size {
		n, err = u.parts(f, r, full, parts)
	} else {
		n, err = io.CopyBuffer(struct{ io.Writer }{f}, io.LimitReader(r, size), u.buf)
	}
	u.stats.Bytes += n
	switch {
	case err != nil:
		return err
	case n != size:
		return io.ErrUnexpectedEOF
	}
	if err := a.setUser(fd); err != nil {
		return err
	}
	if a.uid >= 0 {
		if err := f.Chown(a.uid, a.gid); err != nil {
			return err
		}
	}
	if err := unix.Fchmod(fd, a.mode); err != nil { // after chown, which clears bits
		return &os.PathError{Op: "chmod", Path: base, Err: err}
	}
	return setTime(in, base, a.mtime)
}

// parts writes a file with holes.
func (u *unpacker) parts(f *os.File, r io.Reader, full int64, parts []extent) (n int64, err error) {
	if err := f.Truncate(full); err != nil {
		return 0, err
	}
	for _, x := range parts {
		m, err := io.CopyBuffer(struct{ io.Writer }{io.NewOffsetWriter(f, x.offset)}, io.LimitReader(r, x.length), u.buf)
		n += m
		if err != nil || m != x.length {
			return n, err
		}
	}
	return n, nil
}

func setTime(in int, base string, at time.Time) error {
	ts := unix.NsecToTimespec(at.UnixNano())
	if err := unix.UtimesNanoAt(in, base, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &os.PathError{Op: "set the time of", Path: base, Err: err}
	}
	return nil
}

// finish gives directories their attributes, deepest first because the others
// may not let anybody in.
func (u *unpacker) finish() error {
	u.t.forget()
	if base := u.o.OwnerBase; base != 0 {
		if err := unix.Fchown(u.t.top, base, base); err != nil {
			return err
		}
	}
	for _, name := range deepestFirst(u.dirs) {
		if err := u.finishDir(name, u.dirs[name]); err != nil {
			return fmt.Errorf("entry %q: %w", clip(name), err)
		}
	}
	return nil
}

func (u *unpacker) finishDir(name string, a attrs) error {
	fd, err := u.t.plain(name)
	if err != nil {
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
			return nil // a later entry took its place
		}
		return err
	}
	defer unix.Close(fd)
	if err := a.setUser(fd); err != nil {
		return err
	}
	if a.uid >= 0 {
		if err := unix.Fchown(fd, a.uid, a.gid); err != nil {
			return err
		}
	}
	ts := unix.NsecToTimespec(a.mtime.UnixNano())
	if err := unix.UtimesNanoAt(fd, ".", []unix.Timespec{ts, ts}, 0); err != nil {
		return err
	}
	return unix.Fchmod(fd, a.mode)
}
