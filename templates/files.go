package templates

import (
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// dirFS is a folder of this machine that nothing in it leads out of, and that holds
// no descriptor.
type dirFS string

// Open implements [fs.FS].
func (d dirFS) Open(name string) (fs.File, error) {
	root, err := os.OpenRoot(string(d))
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return root.FS().Open(name)
}

// layeredFS is the files of a chain of templates.
type layeredFS []Layer

// split finds the layer and the name in it. The last result is false for the
// folders above the layers.
func (l layeredFS) split(name string) (fs.FS, string, bool) {
	rest, ok := strings.CutPrefix(name, baseFolder+"/")
	if !ok || len(l) == 1 {
		return l[0].files, name, name != baseFolder || len(l) == 1
	}
	number, inner, ok := strings.Cut(rest, "/")
	if !ok {
		inner = "."
	}
	if n, err := strconv.Atoi(number); err == nil && 0 < n && n < len(l) && strconv.Itoa(n) == number {
		return l[n].files, inner, true
	}
	return l[0].files, name, true
}

// Open implements [fs.FS].
func (l layeredFS) Open(name string) (fs.File, error) {
	fsys, inner, ok := l.split(name)
	if !ok || !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return fsys.Open(inner)
}

// Stat implements [fs.StatFS].
func (l layeredFS) Stat(name string) (fs.FileInfo, error) {
	fsys, inner, ok := l.split(name)
	if !ok {
		return folderInfo(baseFolder), nil
	}
	return fs.Stat(fsys, inner)
}

// ReadDir implements [fs.ReadDirFS].
func (l layeredFS) ReadDir(name string) ([]fs.DirEntry, error) {
	fsys, inner, ok := l.split(name)
	if !ok {
		var out []fs.DirEntry
		for i := 1; i < len(l); i++ {
			out = append(out, fs.FileInfoToDirEntry(folderInfo(strconv.Itoa(i))))
		}
		return out, nil
	}
	out, err := fs.ReadDir(fsys, inner)
	if err == nil && name == "." && len(l) > 1 {
		out = slices.DeleteFunc(out, func(e fs.DirEntry) bool { return e.Name() == baseFolder })
		out = append(out, fs.FileInfoToDirEntry(folderInfo(baseFolder)))
		slices.SortFunc(out, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	}
	return out, err
}

// folderInfo is a folder that is on no disk.
type folderInfo string

func (f folderInfo) Name() string     { return string(f) }
func (folderInfo) Size() int64        { return 0 }
func (folderInfo) Mode() fs.FileMode  { return fs.ModeDir | 0o755 }
func (folderInfo) ModTime() time.Time { return time.Time{} }
func (folderInfo) IsDir() bool        { return true }
func (folderInfo) Sys() any           { return nil }
