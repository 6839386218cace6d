//go:build linux

package layertar

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Records of the archives that Pack makes, beside SCHILY.xattr.user.*. Unpack
// heeds them with Options.Snapshot.
const (
	recordLiteral = "SANDBOX.literal" // the name is no instruction, whatever it looks like
	recordSparse  = "SANDBOX.sparse"  // size, then offset and length of each part that follows
	recordAttr    = "SCHILY.xattr."
)

const (
	userAttr    = "user."
	overlayAttr = "user.overlay." // what overlayfs notes for itself

	maxDepth   = 1024     // of directories
	maxAttrs   = 64 << 10 // bytes of one file's attributes
	maxExtents = 4096     // of one file; with more of them holes are filled
	minHole    = 64 << 10 // smaller holes are filled
)

// PackOptions say what a directory is.
type PackOptions struct {
	Upper bool // the upper directory of an overlay: its marks are kept
	Bytes int64
}

// Pack writes the tree of dir, in which nothing changes meanwhile, to w as an
// archive that [Unpack] reads: files with modes, owners, times, attributes of
// users, links and holes. The same tree gives the same archive. Pipes, sockets
// and devices are left out and counted. Its memory does not depend on the size
// of files.
//
// A tree deeper than 1024 directories, or with paths above 4096 bytes, is an
// error. What its owner cannot read, who is not root, is opened up for a moment.
func Pack(w io.Writer, dir *os.File, o PackOptions) (Stats, error) {
	p := &packer{o: o, w: tar.NewWriter(w), links: map[uint64]string{}, buf: make([]byte, 256<<10)}
	err := p.tree(int(dir.Fd()), "", 0)
	if err == nil {
		err = p.w.Close()
	}
	return p.stats, err
}

type packer struct {
	o     PackOptions
	w     *tar.Writer
	links map[uint64]string // first names of files with several, by inode
	stats Stats
	buf   []byte
}

// tree packs what is in the open directory in, called name.
func (p *packer) tree(in int, name string, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("%s: more than %d directories in each other", clip(name), maxDepth)
	}
	names, err := namesOf(in)
	if err != nil {
		return err
	}
	slices.Sort(names)
	for _, base := range names {
		full := base
		if name != "" {
			full = name + "/" + base
		}
		if len(full) > maxPath-len(opaqueName)-1 {
			return fmt.Errorf("%s: the path is too long", clip(full))
		}
		if err := p.entry(in, base, full, depth); err != nil {
			return err
		}
	}
	return nil
}

func (p *packer) entry(in int, base, full string, depth int) error {
	var st unix.Stat_t
	if err := unix.Fstatat(in, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &os.PathError{Op: "stat", Path: full, Err: err}
	}
	h := &tar.Header{
		Format: tar.FormatPAX, Name: full, Mode: int64(st.Mode & 0o1777), Uid: int(st.Uid), Gid: int(st.Gid),
		ModTime: time.Unix(st.Mtim.Unix()), PAXRecords: map[string]string{},
	}
	if strings.HasPrefix(base, whiteoutPrefix) {
		h.PAXRecords[recordLiteral] = "1"
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		h.Typeflag, h.Name = tar.TypeDir, full+"/"
		return p.dir(in, base, full, &st, h, depth)
	case unix.S_IFREG, unix.S_IFLNK:
		if first, ok := p.links[st.Ino]; ok && st.Nlink > 1 {
			h.Typeflag, h.Linkname = tar.TypeLink, first
			return p.header(h)
		}
		if st.Nlink > 1 {
			p.links[st.Ino] = full
		}
		if st.Mode&unix.S_IFMT == unix.S_IFREG {
			return p.file(in, base, &st, h)
		}
		h.Typeflag = tar.TypeSymlink
		var err error
		if h.Linkname, err = readlink(in, base); err != nil {
			return err
		}
		return p.header(h)
	case unix.S_IFCHR:
		if p.o.Upper && isWhiteout(&st) {
			parent := strings.TrimSuffix(full, base)
			return p.header(&tar.Header{Format: tar.FormatPAX, Typeflag: tar.TypeReg, Name: parent + whiteoutPrefix + base})
		}
	}
	p.stats.Dropped++
	return nil
}

func (p *packer) header(h *tar.Header) error {
	p.stats.Entries++
	if err := p.w.WriteHeader(h); err != nil {
		return fmt.Errorf("%s: %w", clip(h.Name), err)
	}
	return nil
}

func (p *packer) dir(in int, base, full string, st *unix.Stat_t, h *tar.Header, depth int) error {
	fd, restore, err := openUp(in, base, st, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer restore()
	defer unix.Close(fd)
	opaque, err := attributes(fd, h)
	if err != nil {
		return err
	}
	if err := p.header(h); err != nil {
		return err
	}
	if opaque && p.o.Upper {
		if err := p.header(&tar.Header{Format: tar.FormatPAX, Typeflag: tar.TypeReg, Name: full + "/" + opaqueName}); err != nil {
			return err
		}
	}
	return p.tree(fd, full, depth+1)
}

func (p *packer) file(in int, base string, st *unix.Stat_t, h *tar.Header) error {
	fd, restore, err := openUp(in, base, st, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer restore()
	f := os.NewFile(uintptr(fd), base)
	defer f.Close()
	if _, err := attributes(fd, h); err != nil {
		return err
	}
	parts := extents(f, st.Size)
	h.Typeflag = tar.TypeReg
	for _, x := range parts {
		h.Size += x.length
	}
	if h.Size != st.Size {
		h.PAXRecords[recordSparse] = encodeSparse(st.Size, parts)
	}
	if p.stats.Bytes += h.Size; p.o.Bytes > 0 && p.stats.Bytes > p.o.Bytes {
		return &LimitError{"bytes", p.o.Bytes}
	}
	if err := p.header(h); err != nil {
		return err
	}
	for _, x := range parts {
		if err := p.copy(io.NewSectionReader(f, x.offset, x.length), x.length); err != nil {
			return fmt.Errorf("%s: %w", clip(h.Name), err)
		}
	}
	return nil
}

// copy writes n bytes. What the file does not have any more is zeros: the
// runtime itself may be writing to it.
func (p *packer) copy(r io.Reader, n int64) error {
	got, err := io.CopyBuffer(struct{ io.Writer }{p.w}, struct{ io.Reader }{r}, p.buf)
	if err != nil {
		return err
	}
	clear(p.buf)
	for got < n {
		m, err := p.w.Write(p.buf[:min(n-got, int64(len(p.buf)))])
		if err != nil {
			return err
		}
		got += int64(m)
	}
	return nil
}

// openUp opens an entry, and lets its owner do so for the moment when its mode
// keeps even that one out. restore gives the mode back.
func openUp(in int, base string, st *unix.Stat_t, flags int) (fd int, restore func(), err error) {
	const always = unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC | unix.O_NOCTTY
	restore = func() {}
	fd, err = unix.Openat(in, base, flags|always, 0)
	if err == unix.EACCES {
		if err = unix.Fchmodat(in, base, st.Mode&0o7777|0o700, 0); err == nil {
			restore = func() { _ = unix.Fchmodat(in, base, st.Mode&0o7777, 0) }
			fd, err = unix.Openat(in, base, flags|always, 0)
		}
	}
	var now unix.Stat_t
	if err == nil {
		if err = unix.Fstat(fd, &now); err == nil && (now.Ino != st.Ino || now.Dev != st.Dev) {
			err = errors.New("it was replaced")
		}
		if err != nil {
			unix.Close(fd)
		}
	}
	if err != nil {
		restore()
		return -1, func() {}, &os.PathError{Op: "open", Path: clip(base), Err: err}
	}
	return fd, restore, nil
}

// attributes adds those of users to h and reports the mark of a directory that
// hides what is below it.
func attributes(fd int, h *tar.Header) (opaque bool, err error) {
	list := make([]byte, maxAttrs)
	n, err := unix.Flistxattr(fd, list)
	if err == unix.ENOTSUP || n == 0 && err == nil {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("attributes of %s: %w", clip(h.Name), err)
	}
	value, total := make([]byte, maxAttrs), 0
	for _, key := range strings.Split(strings.TrimSuffix(string(list[:n]), "\x00"), "\x00") {
		if !strings.HasPrefix(key, userAttr) || strings.ContainsRune(key, '=') {
			continue
		}
		n, err := unix.Fgetxattr(fd, key, value)
		if err != nil {
			return false, fmt.Errorf("attribute %q of %s: %w", key, clip(h.Name), err)
		}
		if key == opaqueAttr {
			opaque = string(value[:n]) == "y"
		}
		if strings.HasPrefix(key, overlayAttr) {
			continue
		}
		if total += len(key) + n; total > maxAttrs {
			return false, fmt.Errorf("%s: more than %d bytes of attributes", clip(h.Name), maxAttrs)
		}
		h.PAXRecords[recordAttr+key] = string(value[:n])
	}
	return opaque, nil
}

// extent is a part of a file that is not a hole.
type extent struct{ offset, length int64 }

// extents are the parts of a file that have to be kept.
func extents(f *os.File, size int64) []extent {
	whole := []extent{{0, size}}
	var out []extent
	for at := int64(0); at < size; {
		data, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if err == unix.ENXIO {
			break // nothing but a hole
		}
		if err != nil {
			return whole
		}
		hole, err := unix.Seek(int(f.Fd()), data, unix.SEEK_HOLE)
		if err != nil || hole <= data {
			return whole
		}
		hole = min(hole, size)
		if last := len(out) - 1; last >= 0 && data-out[last].offset-out[last].length < minHole {
			out[last].length = hole - out[last].offset
		} else {
			out = append(out, extent{data, hole - data})
		}
		at = hole
	}
	if len(out) > maxExtents {
		return []extent{{out[0].offset, out[len(out)-1].offset + out[len(out)-1].length - out[0].offset}}
	}
	return out
}

func encodeSparse(size int64, parts []extent) string {
	b := strconv.AppendInt(nil, size, 10)
	for _, x := range parts {
		b = strconv.AppendInt(append(b, ' '), x.offset, 10)
		b = strconv.AppendInt(append(b, ' '), x.length, 10)
	}
	return string(b)
}

// decodeSparse reads what encodeSparse writes; the parts have total bytes.
func decodeSparse(s string, total int64) (size int64, parts []extent, err error) {
	bad := errors.New("the list of its parts is malformed")
	f := strings.Fields(s)
	if len(f)%2 == 0 || len(f) > 2*maxExtents+1 {
		return 0, nil, bad
	}
	n := make([]int64, len(f))
	for i, v := range f {
		if n[i], err = strconv.ParseInt(v, 10, 64); err != nil || n[i] < 0 {
			return 0, nil, bad
		}
	}
	end := int64(0)
	for i := 1; i < len(n); i += 2 {
		if n[i] < end || n[i+1] > n[0]-n[i] || n[i] > n[0] {
			return 0, nil, bad
		}
		end = n[i] + n[i+1]
		total -= n[i+1]
		parts = append(parts, extent{n[i], n[i+1]})
	}
	if total != 0 {
		return 0, nil, bad
	}
	return n[0], parts, nil
}
