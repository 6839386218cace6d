//go:build linux

package layertar

import (
	"context"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Merge makes in out, which is empty, the tree that an overlay of layers shows,
// the uppermost first. Files are not copied: they become names of the same files,
// so that all must lie on one file system and never be written again.
func Merge(ctx context.Context, out *os.File, layers []*os.File) error {
	m := &merger{ctx: ctx}
	fds := make([]int, len(layers))
	for i, l := range layers {
		fds[i] = int(l.Fd())
	}
	if err := m.tree(int(out.Fd()), fds, 0); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fds[0], &st); err != nil {
		return err
	}
	return m.attrs(int(out.Fd()), fds[0], &st)
}

type merger struct {
	ctx context.Context // of the one operation that it is part of
}

func (m *merger) tree(out int, layers []int, depth int) error {
	if depth > maxDepth {
		return unix.ENAMETOOLONG
	}
	if m.ctx.Err() != nil {
		return context.Cause(m.ctx)
	}
	done := map[string]bool{}
	for i, fd := range layers {
		names, err := namesOf(fd)
		if err != nil {
			return err
		}
		for _, name := range names {
			if done[name] {
				continue
			}
			done[name] = true
			if err := m.entry(out, layers[i:], name, depth); err != nil {
				return err
			}
		}
	}
	return nil
}

// entry makes one entry, which the first of layers has.
func (m *merger) entry(out int, layers []int, name string, depth int) error {
	var st unix.Stat_t
	if err := unix.Fstatat(layers[0], name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &os.PathError{Op: "stat", Path: name, Err: err}
	}
	switch {
	case isWhiteout(&st):
		return nil
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		if err := unix.Linkat(layers[0], name, out, name, 0); err != nil {
			return &os.LinkError{Op: "link", Old: name, New: name, Err: err}
		}
		return nil
	}
	first := st
	var dirs []int
	defer func() {
		for _, fd := range dirs {
			unix.Close(fd)
		}
	}()
	for _, in := range layers {
		err := unix.Fstatat(in, name, &st, unix.AT_SYMLINK_NOFOLLOW)
		if err == unix.ENOENT {
			continue
		}
		if err != nil {
			return &os.PathError{Op: "stat", Path: name, Err: err}
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			break
		}
		fd, restore, err := openUp(in, name, &st, unix.O_RDONLY|unix.O_DIRECTORY)
		if err != nil {
			return err
		}
		defer restore()
		dirs = append(dirs, fd)
		if isOpaque(fd) {
			break
		}
	}
	if err := unix.Mkdirat(out, name, 0o700); err != nil {
		return &os.PathError{Op: "mkdir", Path: name, Err: err}
	}
	to, err := openDir(out, name)
	if err != nil {
		return err
	}
	defer unix.Close(to)
	if err := m.tree(to, dirs, depth+1); err != nil {
		return err
	}
	return m.attrs(to, dirs[0], &first)
}

func isOpaque(fd int) bool {
	var v [1]byte
	n, err := unix.Fgetxattr(fd, opaqueAttr, v[:])
	return err == nil && string(v[:n]) == "y"
}

// attrs gives a directory what another one has, which was st.
func (m *merger) attrs(to, from int, st *unix.Stat_t) error {
	list := make([]byte, maxAttrs)
	if n, err := unix.Flistxattr(from, list); err == nil && n > 0 {
		value := make([]byte, maxAttrs)
		for key := range strings.SplitSeq(strings.TrimSuffix(string(list[:n]), "\x00"), "\x00") {
			if !strings.HasPrefix(key, userAttr) || strings.HasPrefix(key, overlayAttr) {
				continue
			}
			n, err := unix.Fgetxattr(from, key, value)
			if err == nil {
				err = unix.Fsetxattr(to, key, value[:n], 0)
			}
			if err != nil {
				return err
			}
		}
	}
	var own unix.Stat_t
	if err := unix.Fstat(to, &own); err != nil {
		return err
	}
	if own.Uid != st.Uid || own.Gid != st.Gid {
		if err := unix.Fchown(to, int(st.Uid), int(st.Gid)); err != nil {
			return err
		}
	}
	if err := unix.Fchmod(to, st.Mode&0o1777); err != nil {
		return err
	}
	ts := unix.NsecToTimespec(time.Unix(st.Mtim.Unix()).UnixNano())
	return unix.UtimesNanoAt(to, ".", []unix.Timespec{ts, ts}, 0)
}
