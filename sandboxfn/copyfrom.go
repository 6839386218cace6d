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
//
// A file replaces a file as a whole, and through a link the one that the link leads
// to, or would lead to. A device or a pipe at local takes the bytes; opening a pipe
// waits for its reader. For what cannot take a file, such as a directory or a
// socket, the error is E4003.
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
	dst := newDestination(root)
	for _, d := range dirs {
		if err := dst.dir(d.name); err != nil {
			return err
		}
	}
	var err error
	if len(files) > 0 {
		if err = sb.receiveTar(f.ctx, p, dst, files, there); errors.Is(err, ErrCommandNotFound) {
			err = f.receiveEach(p, dst, files)
		}
		if err == nil {
			err = dst.placeLinks()
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

// receiveTar lets the sandbox's tar pack files, which are some of there.
func (sb *Sandbox) receiveTar(ctx context.Context, p string, dst *destination, files []item, there map[string]item) error {
	args := []string{"-c", "-f", "-", "-C", p, "--"}
	budget := argumentBudget
	for _, it := range files {
		budget -= len(it.name) + 16
	}
	others := 0
	var size int64
	for _, it := range there {
		size = max(size, size+it.size) // stays where it would overflow
		if !it.mode.IsRegular() && it.mode&fs.ModeSymlink == 0 {
			others++
		}
	}
	if len(files)+others == len(there) || budget < 0 {
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
	got := extract(out, dst, func(name string) bool { _, ok := there[name]; return ok }, allowance(size)+int64(len(there))*entryCost)
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

// entryCost is what an entry of an archive counts for beside its content.
const entryCost = 4 << 10

// allowance is how many bytes a copy of files of that size may take here: what
// was said of them, with room for files that grow. It keeps a sandbox from
// filling the disk with something that was never asked for.
func allowance(size int64) int64 {
	const room = 64 << 20
	if size > (math.MaxInt64-room)/4 {
		return math.MaxInt64 / 2
	}
	return room + 2*max(size, 0)
}

// tooMuch is the error of what exceeds its allowance.
func tooMuch(name string) error {
	return errdefs.New("E4000", "copy", "the sandbox sends far more than it listed; stopped at "+quoted(name))
}

// bounded is r that fails after n bytes.
func bounded(r io.Reader, name string, n int64) io.Reader {
	return &boundedReader{r: r, name: name, left: n}
}

type boundedReader struct {
	r    io.Reader
	name string
	left int64
}

func (b *boundedReader) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, tooMuch(b.name)
	}
	return n, err
}

// extract unpacks an archive that a sandbox wrote, up to budget bytes. What was
// not listed is passed over: it came later, or was never there. Links wait for
// placeLinks.
func extract(r io.Reader, dst *destination, listed func(string) bool, budget int64) error {
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
		if budget -= entryCost; budget < h.Size {
			return tooMuch(name)
		}
		budget -= h.Size
		if !listed(name) {
			continue
		}
		if err := dst.add(tr, h, name); err != nil {
			return err
		}
	}
}

// destination is a directory of this machine that a tree is copied to. Links are
// made last, so that nothing of the copy goes through one.
type destination struct {
	root *os.Root

	mu    sync.Mutex
	dirs  map[string]bool // guarded by mu; made, and reached through no link
	links []link          // guarded by mu
}

// link is a link to be made; a hard one leads to a name of the destination.
type link struct {
	name, target string
	hard         bool
}

func newDestination(root *os.Root) *destination {
	return &destination{root: root, dirs: map[string]bool{".": true}}
}

func (d *destination) add(r io.Reader, h *tar.Header, name string) error {
	switch h.Typeflag {
	case tar.TypeDir:
		return d.dir(name)
	case tar.TypeReg:
		return d.file(r, h.Size, fs.FileMode(h.Mode).Perm(), h.ModTime, name)
	case tar.TypeSymlink:
		return d.link(link{name: name, target: h.Linkname})
	case tar.TypeLink:
		return d.link(link{name: name, target: strings.TrimPrefix(h.Linkname, "./"), hard: true})
	}
	return nil // devices and sockets are not copied
}

// dir makes a directory and its parents. A link in its place, of an earlier copy
// or the user's, gives way: what is below a link is somewhere else.
func (d *destination) dir(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.dirLocked(name)
}

func (d *destination) dirLocked(name string) error {
	if d.dirs[name] {
		return nil
	}
	if err := d.dirLocked(path.Dir(name)); err != nil {
		return err
	}
	if i, err := d.root.Lstat(name); err == nil && i.Mode()&fs.ModeSymlink != 0 {
		if err := d.root.Remove(name); err != nil {
			return err
		}
	}
	if err := d.root.MkdirAll(name, 0o755); err != nil {
		return err
	}
	d.dirs[name] = true
	return nil
}

// clear makes room for an entry that is no directory.
func (d *destination) clear(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.dirLocked(path.Dir(name)); err != nil {
		return err
	}
	delete(d.dirs, name)
	if err := d.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// file writes a file, never through a link.
func (d *destination) file(r io.Reader, size int64, perm fs.FileMode, mtime time.Time, name string) error {
	if err := d.clear(name); err != nil {
		return err
	}
	w, err := d.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
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
	return d.root.Chtimes(name, mtime, mtime)
}

// link takes note of a link that stays inside.
func (d *destination) link(l link) error {
	if l.hard && !fs.ValidPath(l.target) || !l.hard && leadsOut(l.name, l.target) {
		return escape(l.name + " -> " + l.target)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.links = append(d.links, l)
	return nil
}

// leadsOut reports whether a link of that name may lead out of the tree that it
// is in. The way up must come first: after a name it may start anywhere, for the
// name may be a link itself. When all links go up no further than they are deep
// and then only down, no sequence of them leaves the tree.
func leadsOut(name, target string) bool {
	if path.IsAbs(target) {
		return true
	}
	depth, down := strings.Count(name, "/"), false
	for part := range strings.SplitSeq(target, "/") {
		switch {
		case part == "" || part == ".":
		case part != "..":
			down = true
		case down || depth == 0:
			return true
		default:
			depth--
		}
	}
	return false
}

// placeLinks makes the links. Their parents are directories: dir sees to it, and
// leadsOut relies on it.
func (d *destination) placeLinks() error {
	slices.SortStableFunc(d.links, func(a, b link) int { // a hard link may be to a symbolic one
		switch {
		case a.hard == b.hard:
			return 0
		case a.hard:
			return 1
		}
		return -1
	})
	for _, l := range d.links {
		if err := d.placeLink(l); err != nil {
			return err
		}
	}
	return nil
}

func (d *destination) placeLink(l link) error {
	if l.hard {
		if target, err := d.root.Readlink(l.target); err == nil {
			// The same text at another depth may lead out.
			if leadsOut(l.name, target) {
				return escape(l.name + " -> " + target)
			}
			l = link{name: l.name, target: target}
		}
	}
	if l.hard && l.name == l.target {
		return escape(l.name)
	}
	if err := d.clear(l.name); err != nil {
		return err
	}
	if l.hard {
		return d.root.Link(l.target, l.name)
	}
	return d.root.Symlink(l.target, l.name)
}

func escape(name string) error {
	return errdefs.New("E4006", "copy", quoted(name)+" leads out of the destination")
}

// receiveEach fetches files one by one, a few at a time.
func (f *FS) receiveEach(p string, dst *destination, files []item) error {
	const parallel = 8
	work := make(chan item)
	failed := make([]error, parallel)
	ctx, cancel := context.WithCancel(f.ctx)
	defer cancel()
	var wg sync.WaitGroup
	for i := range parallel {
		wg.Go(func() {
			for it := range work {
				if failed[i] = f.receiveOne(ctx, p, dst, it); failed[i] != nil {
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

func (f *FS) receiveOne(ctx context.Context, p string, dst *destination, it item) error {
	from := strings.TrimSuffix(p, "/") + "/" + it.name
	if it.mode&fs.ModeSymlink != 0 {
		target, err := f.Readlink(from)
		if err != nil {
			return err
		}
		return dst.link(link{name: it.name, target: target})
	}
	if it.size == 0 {
		return dst.file(bytes.NewReader(nil), 0, it.mode.Perm(), it.time, it.name)
	}
	body, err := f.sb.envd.ReadFile(ctx, from, 0, -1)
	if err != nil {
		return err
	}
	defer body.Close()
	return dst.file(bounded(body, it.name, allowance(it.size)), body.Size, it.mode.Perm(), it.time, it.name)
}
