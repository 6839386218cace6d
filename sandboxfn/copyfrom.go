package sandboxfn

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/envd"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// CopyFrom copies a file or a tree of the sandbox to this machine, as CopyTo the
// other way round. Nothing is ever written outside local, whatever the sandbox
// sends: names and links that lead out of it are refused, devices, sockets and
// the set-user-ID bits are not copied.
func (sb *Sandbox) CopyFrom(ctx context.Context, remote, local string) error {
	f := sb.FS(ctx)
	info, p, err := f.stat("copy", remote)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return sb.copyFileFrom(f, remote, local, info)
	}
	if err := os.MkdirAll(local, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(local)
	if err != nil {
		return err
	}
	defer root.Close()
	there, err := sb.listTree(ctx, p, maxDepth)
	if err != nil {
		return f.fail("copy", remote, err)
	}
	return f.fail("copy", remote, sb.receive(f, info.e.Path, root, there))
}

// maxDepth bounds how deep trees are copied from a sandbox.
const maxDepth = 255

func (sb *Sandbox) copyFileFrom(f *FS, remote, local string, info fs.FileInfo) error {
	src, err := f.open(remote)
	if err != nil {
		return err
	}
	defer src.Close()
	dir, base := filepath.Split(local)
	tmp, err := os.CreateTemp(filepath.Clean(dir+"."), "."+base+".*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = io.Copy(tmp, src)
	err = errors.Join(err, tmp.Chmod(info.Mode().Perm()), tmp.Close())
	if err != nil {
		return err
	}
	return os.Rename(tmp.Name(), local)
}

// receive fetches what differs. Directories are made from the listing alone.
func (sb *Sandbox) receive(f *FS, p string, root *os.Root, there map[string]item) error {
	var dirs, files []item
	for _, it := range there {
		switch {
		case it.mode.IsDir():
			dirs = append(dirs, it)
		case it.mode.IsRegular() || it.mode&fs.ModeSymlink != 0:
			if have, err := root.Lstat(it.name); err == nil && it.same(localItem(it.name, have)) {
				continue
			}
			files = append(files, it)
		}
	}
	byName := func(a, b item) int { return strings.Compare(a.name, b.name) }
	slices.SortFunc(dirs, byName)
	slices.SortFunc(files, byName)
	for _, d := range dirs {
		if err := root.MkdirAll(d.name, 0o755); err != nil {
			return err
		}
	}
	var err error
	if len(files) > 0 {
		if err = sb.receiveTar(f.ctx, p, root, files, len(files) == len(there)-len(dirs)); errors.Is(err, ErrCommandNotFound) {
			err = f.receiveEach(p, root, files)
		}
	}
	for _, d := range slices.Backward(dirs) { // last, as a mode may forbid to write
		if cerr := root.Chmod(d.name, d.mode.Perm()); err == nil {
			err = cerr
		}
	}
	return err
}

func localItem(name string, i fs.FileInfo) item {
	return item{name: name, mode: i.Mode(), size: i.Size(), time: i.ModTime()}
}

// argumentBudget is safely below what execve(2) takes.
const argumentBudget = 512 << 10

// receiveTar lets the sandbox's tar pack files.
func (sb *Sandbox) receiveTar(ctx context.Context, p string, root *os.Root, files []item, all bool) error {
	args := []string{"-c", "-f", "-", "-C", p, "--"}
	budget := argumentBudget
	for _, it := range files {
		budget -= len(it.name) + 16
	}
	if all || budget < 0 {
		args = append(args, ".")
	} else {
		for _, it := range files {
			args = append(args, "./"+it.name)
		}
	}
	cmd := sb.Command(ctx, "tar", args...)
	cmd.Env = []string{"LC_ALL=C"}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	got := extract(out, root, allowance(files))
	if got != nil {
		cmd.Process.Kill()
	}
	out.Close()
	err = cmd.Wait()
	if got != nil {
		return got
	}
	if e, ok := errors.AsType[*ExitError](err); ok && e.Signal == "" {
		return envd.FileError("tar", strings.TrimSpace(string(e.Stderr)))
	}
	return err
}

// allowance is how many bytes a copy of files may take here: what the listing
// said, with room for files that grow. It keeps a sandbox from filling the disk
// with something that was never asked for.
func allowance(files []item) int64 {
	n := int64(64 << 20)
	for _, it := range files {
		if n += 2 * it.size; n < 0 {
			return math.MaxInt64
		}
	}
	return n
}

// extract unpacks an archive that a sandbox wrote below root, up to budget
// bytes of content.
func extract(r io.Reader, root *os.Root, budget int64) error {
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if err == io.EOF {
			_, err = io.Copy(io.Discard, r) // the padding: so that tar ends in peace
			return err
		}
		if err != nil {
			return fmt.Errorf("read archive: %w", err)
		}
		name := strings.TrimSuffix(strings.TrimPrefix(h.Name, "./"), "/")
		if name == "" || name == "." {
			continue
		}
		if !fs.ValidPath(name) {
			return escape(h.Name)
		}
		// A header may promise exabytes of zeros that are not in the archive.
		if budget -= h.Size; budget < 0 {
			return errdefs.New("E4004", "copy", "the sandbox sends far more than it listed; stopped at "+quoted(name))
		}
		if err := extractOne(tr, h, name, root); err != nil {
			return err
		}
	}
}

func extractOne(r io.Reader, h *tar.Header, name string, root *os.Root) error {
	switch h.Typeflag {
	case tar.TypeDir:
		return root.MkdirAll(name, 0o755)
	case tar.TypeReg:
		return placeFile(r, h.Size, fs.FileMode(h.Mode).Perm(), h.ModTime, name, root)
	case tar.TypeSymlink:
		return placeLink(h.Linkname, name, root)
	case tar.TypeLink:
		old := strings.TrimPrefix(h.Linkname, "./")
		if !fs.ValidPath(old) {
			return escape(h.Linkname)
		}
		root.Remove(name)
		return root.Link(old, name)
	}
	return nil // devices and sockets are not copied
}

// placeFile writes a file below root, never through a link.
func placeFile(r io.Reader, size int64, perm fs.FileMode, mtime time.Time, name string, root *os.Root) error {
	if dir := path.Dir(name); dir != "." {
		if err := root.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	w, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	n, err := io.Copy(w, r)
	if err == nil && size >= 0 && n != size {
		err = io.ErrUnexpectedEOF
	}
	if err = errors.Join(err, w.Chmod(perm), w.Close()); err != nil {
		return err
	}
	return root.Chtimes(name, mtime, mtime)
}

// placeLink makes a link whose text stays below root.
func placeLink(target, name string, root *os.Root) error {
	if path.IsAbs(target) || !fs.ValidPath(path.Join(path.Dir(name), target)) {
		return escape(name + " -> " + target)
	}
	if dir := path.Dir(name); dir != "." {
		if err := root.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return root.Symlink(target, name)
}

func escape(name string) error {
	return errdefs.New("E4006", "copy", quoted(name)+" leads out of the destination")
}

// receiveEach fetches files one by one, a few at a time.
func (f *FS) receiveEach(p string, root *os.Root, files []item) error {
	const parallel = 8
	work := make(chan item)
	failed := make([]error, parallel)
	ctx, cancel := context.WithCancel(f.ctx)
	defer cancel()
	var wg sync.WaitGroup
	for i := range parallel {
		wg.Go(func() {
			for it := range work {
				if failed[i] = f.receiveOne(ctx, p, root, it); failed[i] != nil {
					cancel()
					return
				}
			}
		})
	}
feed:
	for _, it := range files {
		select {
		case work <- it:
		case <-ctx.Done():
			break feed
		}
	}
	close(work)
	wg.Wait()
	return errors.Join(errors.Join(failed...), f.ctx.Err())
}

func (f *FS) receiveOne(ctx context.Context, p string, root *os.Root, it item) error {
	from := strings.TrimSuffix(p, "/") + "/" + it.name
	if it.mode&fs.ModeSymlink != 0 {
		target, err := f.Readlink(from)
		if err != nil {
			return err
		}
		return placeLink(target, it.name, root)
	}
	if it.size == 0 {
		return placeFile(bytes.NewReader(nil), 0, it.mode.Perm(), it.time, it.name, root)
	}
	body, err := f.sb.envd.ReadFile(ctx, from, 0, -1)
	if err != nil {
		return err
	}
	defer body.Close()
	return placeFile(body, body.Size, it.mode.Perm(), it.time, it.name, root)
}
