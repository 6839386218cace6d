//go:build linux

package filesystem

import (
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/agent-sandbox/sandbox-go/internal/pb/filesystem"
	"github.com/agent-sandbox/sandbox-go/runtime/account"
)

// entryAt describes name in the open folder dir; p is its path in the answer.
// A link is described by itself, but type and mode are those of its target.
func (g guard) entryAt(dir int, name, p string, names *account.Names) (*pb.EntryInfo, error) {
	if err := g.readIn(dir, name); err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return nil, err
	}
	mode := goMode(st.Mode)
	e := &pb.EntryInfo{
		Name:         text(path.Base(p)),
		Type:         typeOf(st.Mode),
		Path:         text(p),
		Size:         st.Size,
		Mode:         uint32(mode.Perm()),
		Permissions:  mode.String(),
		Owner:        text(names.User(st.Uid)),
		Group:        text(names.Group(st.Gid)),
		ModifiedTime: timestamppb.New(time.Unix(st.Mtim.Unix())),
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		g.describeTarget(e, dir, name)
	case unix.S_IFREG:
		e.Metadata = readMetadata(fdPath(dir) + "/" + name)
	}
	return e, nil
}

// describeTarget adds what the link name leads to. One that leads nowhere, in a
// circle or where the user may not look has no type and is its own target.
func (g guard) describeTarget(e *pb.EntryInfo, dir int, name string) {
	e.Type, e.Mode, e.SymlinkTarget = pb.FileType_FILE_TYPE_UNSPECIFIED, 0, proto.String(e.Path)
	fd, err := g.openPath(dir, name, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if g.read(fd) != nil || unix.Fstat(fd, &st) != nil {
		return
	}
	target, err := os.Readlink(fdPath(fd))
	if err != nil || !strings.HasPrefix(target, "/") {
		return
	}
	e.Type, e.Mode, e.SymlinkTarget = typeOf(st.Mode), uint32(goMode(st.Mode).Perm()), proto.String(text(target))
}

// text is s as the wire can carry it: a name that is not UTF-8 must not break the
// answer about all the others.
func text(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

func typeOf(mode uint32) pb.FileType {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return pb.FileType_FILE_TYPE_FILE
	case unix.S_IFDIR:
		return pb.FileType_FILE_TYPE_DIRECTORY
	case unix.S_IFLNK:
		return pb.FileType_FILE_TYPE_SYMLINK
	}
	return pb.FileType_FILE_TYPE_UNSPECIFIED
}

// goMode is the mode of stat(2) as package fs writes it.
func goMode(mode uint32) fs.FileMode {
	m := fs.FileMode(mode & 0o777)
	switch mode & unix.S_IFMT {
	case unix.S_IFBLK:
		m |= fs.ModeDevice
	case unix.S_IFCHR:
		m |= fs.ModeDevice | fs.ModeCharDevice
	case unix.S_IFDIR:
		m |= fs.ModeDir
	case unix.S_IFIFO:
		m |= fs.ModeNamedPipe
	case unix.S_IFLNK:
		m |= fs.ModeSymlink
	case unix.S_IFSOCK:
		m |= fs.ModeSocket
	}
	if mode&unix.S_ISGID != 0 {
		m |= fs.ModeSetgid
	}
	if mode&unix.S_ISUID != 0 {
		m |= fs.ModeSetuid
	}
	if mode&unix.S_ISVTX != 0 {
		m |= fs.ModeSticky
	}
	return m
}
