//go:build linux

package filesystem

import (
	"io"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/runtime/policy"
)

// guard opens paths as far as the policy lets it. What it asks about is never the
// path of a request but that of what was opened, as the kernel tells it: neither
// links nor whoever renames at the same time lead around it. Without rules it
// only opens.
type guard struct{ rules *policy.Files }

// openPath opens p for its identity only, without reading or waiting. That it may
// be read or written is still to be asked.
func (g guard) openPath(dir int, p string, flags uint64) (int, error) {
	how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC | flags, Resolve: unix.RESOLVE_NO_MAGICLINKS}
	if !g.rules.FollowLinks() {
		how.Resolve |= unix.RESOLVE_NO_SYMLINKS
	}
	for {
		fd, err := unix.Openat2(dir, p, how)
		// EAGAIN: a rename was under way, openat2(2).
		if err == unix.EINTR || err == unix.EAGAIN {
			continue
		}
		if err != nil && g.rules != nil {
			err = g.explain(p, err)
		}
		return fd, err
	}
}

// explain is the failure to open p. What a client may not read it does not learn
// from another error either.
func (g guard) explain(p string, err error) error {
	if path.IsAbs(p) {
		if refused := g.rules.Read(path.Clean(p)); refused != nil {
			return refused
		}
	}
	if err == unix.ELOOP && !g.rules.FollowLinks() {
		return g.rules.Link()
	}
	return err
}

// pathOf is where an open file is now.
func pathOf(fd int) (string, error) { return os.Readlink(fdPath(fd)) }

// read refuses what fd stands for if it must not be read.
func (g guard) read(fd int) error {
	_, err := g.readable(fd)
	return err
}

// readable is read; it returns where fd is, "" without rules.
func (g guard) readable(fd int) (string, error) {
	if g.rules == nil {
		return "", nil
	}
	p, err := pathOf(fd)
	if err != nil {
		return "", err
	}
	return p, g.rules.Read(p)
}

// readIn refuses the name in the open folder dir, itself and not what it may lead
// to.
func (g guard) readIn(dir int, name string) error {
	if g.rules == nil {
		return nil
	}
	p, err := pathOf(dir)
	if err != nil {
		return err
	}
	return g.rules.Read(path.Join(p, name))
}

// writeIn refuses to make, change or remove the name in the open folder dir.
func (g guard) writeIn(dir int, name string) error {
	if g.rules == nil {
		return nil
	}
	p, err := pathOf(dir)
	if err != nil {
		return err
	}
	return g.rules.Write(path.Join(p, name))
}

// moveIn refuses to bring a name from one open folder to another.
func (g guard) moveIn(from int, fromName string, to int, toName string) error {
	if g.rules == nil {
		return nil
	}
	a, err := pathOf(from)
	if err != nil {
		return err
	}
	b, err := pathOf(to)
	if err != nil {
		return err
	}
	return g.rules.Move(path.Join(a, fromName), path.Join(b, toName))
}

// sized refuses the content of one file where it becomes too long.
func (g guard) sized() func(io.Reader) io.Reader {
	if g.rules.MaxBytes() == 0 {
		return func(r io.Reader) io.Reader { return r }
	}
	written := int64(0)
	return func(r io.Reader) io.Reader {
		return &roomReader{r, func(n int) error {
			written += int64(n)
			return g.rules.Size(written)
		}}
	}
}
