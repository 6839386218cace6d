//go:build linux

package filesystem

import (
	"fmt"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/runtime/account"
)

// target is where an upload goes: a name in an open folder, not a link.
type target struct {
	dir  int
	name string
	old  *unix.Stat_t // nil when nothing is there
}

func (t *target) close() { unix.Close(t.dir) }

// maxLinks is how many links in a row are followed, as the kernel does, path_resolution(7).
const maxLinks = 40

// findTarget finds what writing to p would write, making missing folders. Links
// at the end are followed by hand, since where a dangling one leads has to be made.
func (g guard) findTarget(p string) (*target, error) {
	dir, err := g.makeDirs(path.Dir(p))
	if err != nil {
		return nil, fmt.Errorf("error ensuring directories: %w", err)
	}
	t := &target{dir: dir, name: path.Base(p)}
	for range maxLinks {
		var st unix.Stat_t
		switch err := unix.Fstatat(t.dir, t.name, &st, unix.AT_SYMLINK_NOFOLLOW); {
		case err == unix.ENOENT:
			return g.allowed(t)
		case err != nil:
			t.close()
			return nil, err
		case st.Mode&unix.S_IFMT != unix.S_IFLNK:
			t.old = &st
			return g.allowed(t)
		}
		if err := t.follow(g); err != nil {
			t.close()
			return nil, err
		}
	}
	t.close()
	return nil, unix.ELOOP
}

// allowed is t, unless it must not be written.
func (g guard) allowed(t *target) (*target, error) {
	if err := g.writeIn(t.dir, t.name); err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

// follow replaces the link that t names by where it leads.
func (t *target) follow(g guard) error {
	if !g.rules.FollowLinks() {
		return g.rules.Link()
	}
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(t.dir, t.name, buf)
	if err != nil {
		return err
	}
	to := string(buf[:n])
	if to == "" || to[len(to)-1] == '/' || path.Base(to) == ".." || path.Base(to) == "." {
		return unix.EISDIR
	}
	dir, err := g.openPath(t.dir, path.Dir(to), unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	unix.Close(t.dir)
	t.dir, t.name = dir, path.Base(to)
	return nil
}

// store makes p a file that fill writes, with the rights of u: to a new file beside it that
// takes its name once it is complete, so that readers and other writers see one
// whole content or another. A file that was there keeps its mode. Where the user
// may write the file but not the folder, the content is collected elsewhere and
// then written over the old one. Until fill returns nothing has changed.
//
// fill is told which file is written over; nil: none, it is replaced.
func (s *Service) store(u *account.User, p string, meta map[string]string, fill func(f *os.File, over *fileID) error) error {
	var t *target
	var d *draft
	err := u.Do(func() (err error) {
		if t, err = s.guard.findTarget(p); err != nil {
			return err
		}
		if t.old != nil {
			if err := t.checkOld(p); err != nil {
				return err
			}
		}
		d, err = t.draft(s.guard, s.uploads)
		return err
	})
	if t != nil {
		defer t.close()
	}
	if err != nil {
		return fmt.Errorf("error opening file: open %s: %w", p, err)
	}
	defer d.close(s.uploads)
	err = fill(d.f, d.overID())
	if err == nil {
		err = u.Do(func() error {
			// Its folder can have been moved since the beginning.
			if err := s.guard.writeIn(t.dir, t.name); err != nil {
				return err
			}
			return t.commit(d, meta)
		})
	}
	if err != nil {
		if d.name != "" {
			_ = u.Do(func() error { return unix.Unlinkat(t.dir, d.name, 0) })
		}
		return fmt.Errorf("error writing file: %s: %w", p, err)
	}
	return nil
}

// checkOld refuses what cannot be written as a file.
func (t *target) checkOld(p string) error {
	switch err := checkRegular(t.old); err {
	case nil:
	case unix.EISDIR:
		return badRequest{fmt.Errorf("path is a directory: %s", p)}
	default:
		return err
	}
	// A rename asks only for the folder, but a file that the user may not write
	// must stay as it is.
	return unix.Faccessat2(t.dir, t.name, unix.W_OK, unix.AT_EACCESS|unix.AT_SYMLINK_NOFOLLOW)
}

// draft makes the file in which the content is collected.
func (t *target) draft(g guard, up *uploads) (*draft, error) {
	name := up.begin()
	fd, err := unix.Openat(t.dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err == nil {
		return &draft{f: os.NewFile(uintptr(fd), name), name: name}, nil
	}
	up.end(name)
	if t.old == nil || err != unix.EACCES {
		return nil, err
	}
	return t.draftOver(g, up)
}

// commit gives the complete file its mode, metadata and name.
func (t *target) commit(d *draft, meta map[string]string) error {
	if d.over != nil {
		return d.writeOver(meta)
	}
	if err := writeMetadata(int(d.f.Fd()), meta); err != nil {
		return err
	}
	mode := uint32(0o666 &^ 0o022)
	if t.old != nil {
		mode = t.old.Mode & 0o777
	}
	if err := unix.Fchmod(int(d.f.Fd()), mode); err != nil {
		return err
	}
	return unix.Renameat(t.dir, d.name, t.dir, t.name)
}
