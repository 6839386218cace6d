//go:build linux

package filesystem

import (
	"context"
	"errors"
	"os"
	"slices"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	pb "github.com/agent-sandbox/sandbox-go/internal/pb/filesystem"
	"github.com/agent-sandbox/sandbox-go/runtime/account"
	"github.com/agent-sandbox/sandbox-go/runtime/fault"
	"github.com/agent-sandbox/sandbox-go/runtime/policy"
)

// Limits of one listing, so that a request cannot make the server grow without
// bound.
const (
	maxEntries = 250_000
	maxDepth   = 256 // levels; each holds a descriptor while the walk is below it
)

// ListDir lists a folder down to a depth, each level sorted by name, a folder
// before its content. Links below the folder are not followed.
func (s *Service) ListDir(ctx context.Context, req *connect.Request[pb.ListDirRequest]) (*connect.Response[pb.ListDirResponse], error) {
	l := &lister{ctx: ctx, guard: s.guard, limit: s.guard.rules.MaxEntries(maxEntries), resp: &pb.ListDirResponse{}}
	err := s.as(ctx, "error listing directory", req.Msg.GetPath(), func(_ *account.User, p string) error {
		fd, err := s.guard.openPath(unix.AT_FDCWD, p, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := s.guard.read(fd); err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			return fault.New(connect.CodeInvalidArgument, "E4003", "path is not a directory: %s", p)
		}
		root, err := reopen(fd, unix.O_RDONLY|unix.O_DIRECTORY)
		if err != nil {
			return err
		}
		l.names = s.opts.Users.Names()
		return l.list(root, p, max(1, int(min(req.Msg.GetDepth(), 1<<30))), 0)
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(l.resp), nil
}

// lister is one listing under way.
type lister struct {
	ctx   context.Context // it is one operation
	guard guard
	limit int
	resp  *pb.ListDirResponse
	names *account.Names
}

// list adds what is in dir, which it closes, and goes depth levels down.
func (l *lister) list(dir *os.File, p string, depth, level int) error {
	defer dir.Close()
	names, err := dir.Readdirnames(l.limit + 1 - len(l.resp.Entries))
	if all := len(l.resp.Entries) + len(names); all > l.limit && l.limit < maxEntries {
		return l.guard.rules.Entries(all)
	}
	if err != nil && len(names) > 0 || len(l.resp.Entries)+len(names) > maxEntries || level > maxDepth {
		return fault.New(connect.CodeResourceExhausted, "E4000",
			"more than %d entries or %d levels below the directory", maxEntries, maxDepth)
	}
	slices.Sort(names)
	fd := int(dir.Fd())
	prefix := p + "/"
	if p == "/" {
		prefix = p
	}
	for _, name := range names {
		if err := l.ctx.Err(); err != nil {
			return err
		}
		e, err := l.guard.entryAt(fd, name, prefix+name, l.names)
		if _, hidden := errors.AsType[*policy.Refusal](err); hidden || err == unix.ENOENT {
			continue // not to be read, or removed in the meantime
		}
		if err != nil {
			return err
		}
		l.resp.Entries = append(l.resp.Entries, e)
		if depth == 1 || e.Permissions[0] != 'd' {
			continue
		}
		sub, err := openChild(fd, name)
		if err == unix.ENOENT || err == unix.ENOTDIR || err == unix.ELOOP {
			continue // replaced in the meantime
		}
		if err != nil {
			return err
		}
		if err := l.list(sub, prefix+name, depth-1, level+1); err != nil {
			return err
		}
	}
	return nil
}

// openChild opens the folder name in dir for reading, never through a link.
func openChild(dir int, name string) (*os.File, error) {
	for {
		fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, err
		}
		// The name is what [os.File.ReadDir] asks about entries whose kind is unknown.
		return os.NewFile(uintptr(fd), fdPath(fd)), nil
	}
}
