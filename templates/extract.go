package templates

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// Bounds of an archive. They are variables for tests only.
var (
	maxArchive = int64(256 << 20) // bytes of all files, and of the archive as it comes
	maxMember  = int64(64 << 20)  // bytes of one file
	maxMembers = 20_000
)

// errHostile marks what is wrong with an archive, other than that it ends early.
var errHostile = errors.New("archive refused")

func hostile(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errHostile, fmt.Sprintf(format, args...))
}

// counted fails after so many bytes, instead of ending as io.LimitReader does.
type counted struct {
	r    io.Reader
	left int64
}

func (c *counted) Read(p []byte) (int, error) {
	if c.left <= 0 {
		return 0, hostile("it is larger than %d bytes", maxArchive)
	}
	n, err := c.r.Read(p[:min(int64(len(p)), c.left)])
	c.left -= int64(n)
	return n, err
}

// extract writes the regular files of an archive below root: tar, plain or packed
// with gzip or zstd. Links are left out and returned; devices, names that lead
// outside, names that are there twice and what is too large are errors.
func extract(root *os.Root, r io.Reader) (links []string, err error) {
	in := bufio.NewReader(&counted{r, maxArchive})
	head, err := in.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	var plain io.Reader = in
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, err
		}
		defer z.Close()
		plain = z
	case bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(in, zstd.WithDecoderMaxMemory(64<<20), zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, err
		}
		defer z.Close()
		plain = z
	}
	// Headers count too: an archive of empty files is not free.
	return extractTar(root, &counted{plain, maxArchive + 2048*int64(maxMembers)})
}

func extractTar(root *os.Root, r io.Reader) (links []string, err error) {
	tr := tar.NewReader(r)
	seen := map[string]bool{}
	var total int64
	for members := 0; ; {
		h, err := tr.Next()
		switch {
		case errors.Is(err, io.EOF):
			return links, nil
		case err != nil:
			return nil, err
		case h.Typeflag == tar.TypeXGlobalHeader:
			continue
		}
		if members++; members > maxMembers {
			return nil, hostile("it has more than %d members", maxMembers)
		}
		name, err := memberName(h.Name)
		if err != nil {
			return nil, err
		}
		switch h.Typeflag {
		case tar.TypeDir:
			continue // made for the files in it
		case tar.TypeSymlink, tar.TypeLink:
			links = append(links, name)
			continue
		case tar.TypeReg:
		default:
			return nil, hostile("member %q is neither a file nor a folder", name)
		}
		switch total += h.Size; {
		case name == ".":
			return nil, hostile("a file has no name")
		case seen[name]:
			return nil, hostile("member %q is there twice", name)
		case h.Size > maxMember:
			return nil, hostile("member %q is larger than %d bytes", name, maxMember)
		case total > maxArchive:
			return nil, hostile("its files are larger than %d bytes", maxArchive)
		}
		seen[name] = true
		if err := writeMember(root, name, h.FileInfo().Mode()&0o100 != 0, io.LimitReader(tr, h.Size)); err != nil {
			return nil, err
		}
	}
}

// memberName cleans the name of a member, and refuses those that lead outside.
func memberName(s string) (string, error) {
	name := path.Clean(strings.TrimSuffix(s, "/"))
	switch {
	case s == "", path.IsAbs(s), !fs.ValidPath(name), strings.ContainsAny(s, "\x00\\"):
		return "", hostile("the name of member %q leads outside, or is malformed", s)
	case len(s) > 4096 || strings.Count(name, "/") > 64:
		return "", hostile("the name of a member is too long")
	}
	return name, nil
}

// writeMember writes one file, with the two modes that a tree knows.
func writeMember(root *os.Root, name string, executable bool, r io.Reader) error {
	if dir := path.Dir(name); dir != "." {
		if err := root.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("%w: %w", errHostile, err) // a file where a folder should be
		}
	}
	mode := fs.FileMode(0o644)
	if executable {
		mode = 0o755
	}
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return fmt.Errorf("%w: %w", errHostile, err)
	}
	_, err = io.Copy(f, r)
	if err == nil {
		err = f.Chmod(mode) // whatever the umask is
	}
	return errors.Join(err, f.Close())
}
