package sandboxfn

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/envd"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// CopyTo copies a file or a tree of this machine into the sandbox: afterwards
// remote is what local is, with modes, links and, for trees, times of
// modification. Files below remote that local lacks stay; files that are the
// same in size, mode and time are not sent again. Everything belongs to the
// default user. The whole tree takes a handful of requests where the sandbox has
// a program tar, else one for every hundred files; times are not kept then.
func (sb *Sandbox) CopyTo(ctx context.Context, local, remote string) error {
	f := sb.FS(ctx)
	p, err := f.path("copy", remote)
	if err != nil {
		return err
	}
	info, err := os.Stat(local)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return sb.copyFileTo(f, local, remote, info)
	}
	items, depth, err := scan(local)
	if err != nil {
		return err
	}
	items, err = sb.changed(f, p, items, depth)
	if err != nil {
		return f.fail("copy", remote, err)
	}
	if len(items) == 0 {
		return nil
	}
	open := func(name string) (io.ReadCloser, error) {
		return os.Open(filepath.Join(local, filepath.FromSlash(name)))
	}
	return f.fail("copy", remote, f.sendItems(p, items, open))
}

// opener opens the file of an item by its name.
type opener func(name string) (io.ReadCloser, error)

// sendItems sends items below p, which is there.
func (f *FS) sendItems(p string, items []item, open opener) error {
	err := f.sb.sendTar(f.ctx, p, items, open)
	if errors.Is(err, ErrCommandNotFound) {
		err = f.sendParts(p, items, open)
	}
	return err
}

func (sb *Sandbox) copyFileTo(f *FS, local, remote string, info fs.FileInfo) error {
	if !info.Mode().IsRegular() {
		return &fs.PathError{Op: "copy", Path: local, Err: coded("E4003", "not a regular file or directory", syscall.EINVAL)}
	}
	src, err := os.Open(local)
	if err != nil {
		return err
	}
	defer src.Close()
	t, err := f.target("copy", remote, os.O_CREATE)
	if err != nil {
		return err
	}
	return f.fail("copy", remote, f.put(f.ctx, t, src, -1, info.Mode().Perm()))
}

// item is one entry of a tree to copy. Its name is relative, with slashes.
type item struct {
	name   string
	mode   fs.FileMode
	size   int64
	time   time.Time
	target string // of a link
}

// same reports whether a copy of it would change nothing.
func (i item) same(o item) bool {
	if i.mode.Type() != o.mode.Type() {
		return false
	}
	switch {
	case i.mode.IsDir():
		return i.mode.Perm() == o.mode.Perm()
	case i.mode.IsRegular():
		return i.mode.Perm() == o.mode.Perm() && i.size == o.size && i.time.Unix() == o.time.Unix()
	}
	return false // links are cheap to send, and their text is not in listings
}

// scan reads a tree of this machine. depth is how deep it goes.
func scan(root string) (items []item, depth int, err error) {
	err = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if p == root {
			return nil
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		it := item{name: filepath.ToSlash(rel), mode: info.Mode(), size: info.Size(), time: info.ModTime()}
		depth = max(depth, strings.Count(it.name, "/")+1)
		switch {
		case it.mode.IsDir(), it.mode.IsRegular():
		case it.mode&fs.ModeSymlink != 0:
			if it.target, err = os.Readlink(p); err != nil {
				return err
			}
		default:
			return &fs.PathError{Op: "copy", Path: p, Err: coded("E4003", "neither a file, a directory nor a link", syscall.EINVAL)}
		}
		items = append(items, it)
		return nil
	})
	return items, depth, err
}

// changed makes sure that the destination is there and leaves out what it holds
// already.
func (sb *Sandbox) changed(f *FS, p string, items []item, depth int) ([]item, error) {
	err := sb.envd.MakeDir(f.ctx, p)
	if err == nil {
		// New: nothing can be the same. An empty tree is complete now.
		return items, nil
	}
	if !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	there, err := sb.listTree(f.ctx, p, depth)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(items, func(i item) bool {
		o, ok := there[i.name]
		return ok && i.same(o)
	}), nil
}

// listTree lists what is below p by name relative to it.
func (sb *Sandbox) listTree(ctx context.Context, p string, depth int) (map[string]item, error) {
	root, err := sb.envd.Stat(ctx, p)
	if err != nil {
		return nil, err
	}
	list, err := sb.envd.List(ctx, root.Path, uint32(max(depth, 1)))
	if err != nil {
		return nil, err
	}
	prefix := strings.TrimSuffix(root.Path, "/") + "/"
	out := make(map[string]item, len(list))
	for _, e := range list {
		name, ok := strings.CutPrefix(e.Path, prefix)
		if !ok || !fs.ValidPath(name) {
			return nil, errdefs.New("E3006", "list directory", "the server listed something outside the directory")
		}
		out[name] = item{name: name, mode: e.Mode, size: e.Size, time: e.Modified}
	}
	return out, nil
}

// sendTar sends items as one archive to the sandbox's tar.
func (sb *Sandbox) sendTar(ctx context.Context, p string, items []item, open opener) error {
	root, err := sb.envd.Stat(ctx, p)
	if err != nil {
		return err
	}
	cmd := sb.Command(ctx, "tar", "-x", "-p", "-o", "-f", "-", "-C", root.Path)
	cmd.Env = []string{"LC_ALL=C"}
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	buf := bufio.NewWriterSize(in, inputChunk)
	sent := writeTar(buf, items, open)
	if sent == nil {
		sent = buf.Flush()
	}
	if sent != nil {
		cmd.Process.Kill()
	}
	in.Close()
	err = cmd.Wait()
	if e, ok := errors.AsType[*localFailure](sent); ok {
		return e.err
	}
	if e, ok := errors.AsType[*ExitError](err); ok && e.Signal == "" {
		return envd.FileError("tar", strings.TrimSpace(string(e.Stderr)))
	}
	return errors.Join(err, sent)
}

// localFailure marks what went wrong with files of this machine.
type localFailure struct{ err error }

func (e *localFailure) Error() string { return e.err.Error() }

func writeTar(w io.Writer, items []item, open opener) error {
	tw := tar.NewWriter(w)
	for _, it := range items {
		h := &tar.Header{
			Name: it.name, Mode: int64(it.mode.Perm()), Size: 0, ModTime: it.time.Truncate(time.Second),
			Typeflag: tar.TypeReg, Linkname: it.target,
		}
		switch {
		case it.mode.IsDir():
			h.Typeflag, h.Name = tar.TypeDir, it.name+"/"
		case it.mode&fs.ModeSymlink != 0:
			h.Typeflag = tar.TypeSymlink
		default:
			h.Size = it.size
		}
		if err := tw.WriteHeader(h); err != nil {
			return err
		}
		if it.mode.IsRegular() {
			if err := addFile(tw, it, open); err != nil {
				return err
			}
		}
	}
	return tw.Close()
}

func addFile(w io.Writer, it item, open opener) error {
	src, err := open(it.name)
	if err != nil {
		return &localFailure{err}
	}
	defer src.Close()
	n, err := io.Copy(w, io.LimitReader(src, it.size))
	if err == nil && n < it.size {
		return &localFailure{fmt.Errorf("%s became shorter while it was copied", it.name)}
	}
	return err
}

// partBatch is how many files one request carries where there is no tar.
const partBatch = 100

// sendParts sends items without the help of tar.
func (f *FS) sendParts(p string, items []item, open opener) error {
	var files []envd.Part
	modes := map[string][]string{}
	for _, it := range items {
		to := strings.TrimSuffix(p, "/") + "/" + it.name // path.Join would make "~" of "./~"
		switch {
		case it.mode.IsDir():
			if err := f.sb.envd.MakeDir(f.ctx, to); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
			modes[octal(it.mode)] = append(modes[octal(it.mode)], operand(to))
		case it.mode&fs.ModeSymlink != 0:
			f.sb.envd.Remove(f.ctx, to)
			if err := f.tool("ln", "-s", "-T", "--", it.target, operand(to)); err != nil {
				return err
			}
		default:
			files = append(files, envd.Part{Path: to, Open: func() (io.ReadCloser, error) { return open(it.name) }})
			modes[octal(it.mode)] = append(modes[octal(it.mode)], operand(to))
		}
	}
	odd := func(p envd.Part) bool { return strings.ContainsAny(p.Path, "\r\n") } // no head of a part can hold these
	for _, p := range files {
		if odd(p) {
			if err := f.sendOdd(p); err != nil {
				return err
			}
		}
	}
	for batch := range slices.Chunk(slices.DeleteFunc(files, odd), partBatch) {
		if err := f.sendBatch(batch); err != nil {
			return err
		}
	}
	for mode, names := range modes {
		for batch := range slices.Chunk(names, 500) {
			if err := f.tool("chmod", append([]string{mode, "--"}, batch...)...); err != nil {
				return err
			}
		}
	}
	return nil
}

func (f *FS) sendOdd(p envd.Part) error {
	src, err := p.Open()
	if err != nil {
		return err
	}
	defer src.Close()
	_, err = f.sb.envd.WriteFile(f.ctx, p.Path, src, -1, nil)
	return err
}

// sendBatch writes files in one request. Those that are there and may not be
// written give way, as tar would have it.
func (f *FS) sendBatch(batch []envd.Part) error {
	err := f.sb.envd.WriteFiles(f.ctx, batch)
	if !errors.Is(err, fs.ErrPermission) || errdefs.CodeOf(err) == "E8020" { // a policy allows no other way
		return err
	}
	for _, p := range batch {
		if err := f.sb.envd.Remove(f.ctx, p.Path); err != nil {
			return err
		}
	}
	return f.sb.envd.WriteFiles(f.ctx, batch)
}
