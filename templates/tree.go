package templates

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
)

// treeDigest is the digest of the files of a folder: their names, whether they can
// be executed, and what is in them. Times, owners and empty folders do not count.
// Anything but files and folders is an error.
func treeDigest(fsys fs.FS) (digest string, size int64, err error) {
	var lines []string
	err = fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if !d.Type().IsRegular() {
			return fmt.Errorf("%s is neither a file nor a folder", name)
		}
		if len(lines) >= maxMembers {
			return fmt.Errorf("more than %d files", maxMembers)
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		f, err := fsys.Open(name)
		if err != nil {
			return err
		}
		h := sha256.New()
		n, err := io.Copy(h, f)
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
		kind := "file"
		if info.Mode()&0o100 != 0 {
			kind = "exec"
		}
		size += n
		lines = append(lines, fmt.Sprintf("%s %d %x %q\n", kind, n, h.Sum(nil), name))
		return nil
	})
	if err != nil {
		return "", 0, err
	}
	slices.SortFunc(lines, func(a, b string) int { return strings.Compare(a[strings.Index(a, `"`):], b[strings.Index(b, `"`):]) })
	sum := sha256.Sum256([]byte(strings.Join(lines, "")))
	return hex.EncodeToString(sum[:]), size, nil
}
