package sandboxfn

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// mountHashes are those of embedded trees, which cannot change.
var mountHashes sync.Map // mountName to string

type mountName struct {
	fs   embed.FS
	name string
}

// hashMounts stands for files in the key of a pool: for their paths, modes and
// content.
func hashMounts(mounts []FileMount) (string, error) {
	if len(mounts) == 0 {
		return "", nil
	}
	all := sha256.New()
	byPath := func(a, b FileMount) int { return strings.Compare(path.Clean(a.Remote), path.Clean(b.Remote)) }
	for _, m := range slices.SortedFunc(slices.Values(mounts), byPath) {
		sum, err := hashMount(m)
		if err != nil {
			return "", err
		}
		hashText(all, path.Clean(m.Remote))
		hashText(all, sum)
	}
	return hex.EncodeToString(all.Sum(nil)), nil
}

func hashMount(m FileMount) (string, error) {
	e, embedded := m.FS.(embed.FS)
	if embedded {
		if sum, ok := mountHashes.Load(mountName{e, m.Name}); ok {
			return sum.(string), nil
		}
	}
	h := sha256.New()
	err := walkMount(m, func(name string, d fs.DirEntry, mode fs.FileMode) error {
		hashText(h, strings.TrimPrefix(name, m.Name)) // the name of the top is not seen inside
		hashText(h, mode.String())
		if d.IsDir() {
			return nil
		}
		f, err := m.FS.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		content := sha256.New()
		if _, err := io.Copy(content, f); err != nil {
			return err
		}
		hashText(h, string(content.Sum(nil)))
		return nil
	})
	if err != nil {
		return "", err
	}
	sum := hex.EncodeToString(h.Sum(nil))
	if embedded {
		mountHashes.Store(mountName{e, m.Name}, sum)
	}
	return sum, nil
}

func hashText(h hash.Hash, text string) {
	binary.Write(h, binary.BigEndian, uint64(len(text)))
	io.WriteString(h, text)
}

// walkMount calls visit for what m mounts, directories before what is in them,
// with the mode inside. What is neither a file nor a directory is an error: it
// would be missing without a word.
func walkMount(m FileMount, visit func(name string, d fs.DirEntry, mode fs.FileMode) error) error {
	return fs.WalkDir(m.FS, m.Name, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		switch {
		case d.IsDir():
			return visit(name, d, fs.ModeDir|0o755)
		case !d.Type().IsRegular():
			return fmt.Errorf("%s is neither a file nor a directory", name)
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if info.Mode()&0o111 != 0 {
			return visit(name, d, 0o755)
		}
		return visit(name, d, 0o644)
	})
}

// places are where the files go, for providers whose sandboxes cannot be written
// everywhere.
func places(mounts []FileMount) ([]providers.Place, error) {
	var ps []providers.Place
	for _, m := range mounts {
		info, err := fs.Stat(m.FS, m.Name)
		if err != nil {
			return nil, err
		}
		ps = append(ps, providers.Place{Path: path.Clean(m.Remote), Dir: info.IsDir()})
	}
	return ps, nil
}

// putMounts puts the files into the sandbox.
func (sb *Sandbox) putMounts(ctx context.Context, mounts []FileMount) error {
	files := sb.FS(ctx)
	for _, m := range mounts {
		if err := files.putMount(m, path.Clean(m.Remote)); err != nil {
			return fmt.Errorf("put %s: %w", m.Remote, err)
		}
	}
	return nil
}

func (f *FS) putMount(m FileMount, to string) error {
	info, err := fs.Stat(m.FS, m.Name)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return f.putMountedFile(m, to)
	}
	tree, err := fs.Sub(m.FS, m.Name)
	if err != nil {
		return err
	}
	var items []item
	err = walkMount(FileMount{FS: tree, Name: "."}, func(name string, d fs.DirEntry, mode fs.FileMode) error {
		info, err := d.Info()
		if err == nil && name != "." {
			items = append(items, item{name: name, mode: mode, size: info.Size(), time: info.ModTime()})
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := f.MkdirAll(to, 0o755); err != nil || len(items) == 0 {
		return err
	}
	return f.sendItems(to, items, func(name string) (io.ReadCloser, error) { return tree.Open(name) })
}

// putMountedFile streams one file. One that is there and empty may be a place
// that the provider has made: it can be filled, but not replaced.
func (f *FS) putMountedFile(m FileMount, to string) error {
	src, err := m.FS.Open(m.Name)
	if err != nil {
		return err
	}
	defer src.Close()
	mode := fs.FileMode(0o644)
	if info, err := src.Stat(); err == nil && info.Mode()&0o111 != 0 {
		mode = 0o755
	}
	flags := os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	info, err := f.Stat(to)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := f.MkdirAll(path.Dir(to), 0o755); err != nil {
			return err
		}
	case err != nil:
		return err
	case info.Mode().IsRegular() && info.Size() == 0:
		flags = os.O_WRONLY | os.O_APPEND
	}
	dst, err := f.OpenFile(to, flags, mode)
	if err != nil {
		return err
	}
	if _, err := io.Copy(dst, src); err != nil {
		return errors.Join(err, dst.Close())
	}
	if err := dst.Close(); err != nil || flags&os.O_APPEND == 0 {
		return err
	}
	return f.Chmod(to, mode)
}

// volumesText is volumes as part of a pool's key.
func volumesText(vs []Volume) string {
	texts := make([]string, len(vs))
	for i, v := range vs {
		texts[i] = fmt.Sprintf("%s %q %v", v.Name, path.Clean(v.Path), v.ReadOnly)
	}
	slices.Sort(texts)
	return strings.Join(texts, "\n")
}

// volumeRequest is volumes as providers take them.
func volumeRequest(vs []Volume) []providers.Volume {
	var out []providers.Volume
	for _, v := range vs {
		out = append(out, providers.Volume{Name: v.Name, Path: path.Clean(v.Path), ReadOnly: v.ReadOnly})
	}
	return out
}

// lacking is the error of a provider that cannot do what is asked for.
func lacking(op, provider, what, hint string) error {
	return &errdefs.Error{Code: "E8004", Op: op, Message: "provider " + provider + " has no " + what, Suggestion: hint}
}
