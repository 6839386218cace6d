//go:build linux

package filesystem

import (
	"context"
	"errors"
	"path"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	pb "github.com/agent-sandbox/sandbox-go/internal/pb/filesystem"
	"github.com/agent-sandbox/sandbox-go/internal/pb/filesystem/filesystemconnect"
	"github.com/agent-sandbox/sandbox-go/runtime/account"
	"github.com/agent-sandbox/sandbox-go/runtime/fault"
	"github.com/agent-sandbox/sandbox-go/runtime/policy"
)

// Options says how a [Service] finds users and paths.
type Options struct {
	Users   *account.Book // required
	WorkDir string        // what an empty path means; empty: the home of the user
	// Room is asked before n bytes more are written; an error refuses them. Nil:
	// the file system decides.
	Room func(n int) error
	// Rules are asked about every path that is opened; nil: all may be.
	Rules *policy.Files
}

// Service implements filesystem.Filesystem. Its methods are safe for concurrent
// use. The user a call acts as comes from its context, see [account.NewContext].
type Service struct {
	opts     Options
	guard    guard
	watchers *watchers
	uploads  *uploads
}

var _ filesystemconnect.FilesystemHandler = (*Service)(nil)

// New returns a service. Its watches have to be ended by Close.
func New(o Options) *Service {
	up, g := newUploads(), guard{o.Rules}
	return &Service{opts: o, guard: g, uploads: up, watchers: newWatchers(up, g)}
}

// Close ends all watches and refuses new ones. It returns when nothing of them is
// left, and is idempotent.
func (s *Service) Close() { s.watchers.close() }

// as resolves p for the user of ctx and runs fn with the rights of that user.
func (s *Service) as(ctx context.Context, doing, p string, fn func(u *account.User, p string) error) error {
	u := account.FromContext(ctx)
	abs, err := u.Path(p, s.opts.WorkDir)
	if err != nil {
		return rpcError(doing, p, pathError(u, err))
	}
	if err := u.Do(func() error { return fn(u, abs) }); err != nil {
		return rpcError(doing, abs, err)
	}
	return nil
}

// entry describes the path p.
func (s *Service) entry(p string) (*pb.EntryInfo, error) {
	dir, name, err := s.guard.openParent(p)
	if err != nil {
		return nil, err
	}
	defer unix.Close(dir)
	return s.guard.entryAt(dir, name, p, s.opts.Users.Names())
}

// Stat describes a path; a link at its end is not followed.
func (s *Service) Stat(ctx context.Context, req *connect.Request[pb.StatRequest]) (*connect.Response[pb.StatResponse], error) {
	resp := &pb.StatResponse{}
	err := s.as(ctx, "error getting file info", req.Msg.GetPath(), func(_ *account.User, p string) (err error) {
		resp.Entry, err = s.entry(p)
		return err
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(resp), nil
}

// MakeDir makes a folder and the parents it lacks, mode 0755, owned by the user.
func (s *Service) MakeDir(ctx context.Context, req *connect.Request[pb.MakeDirRequest]) (*connect.Response[pb.MakeDirResponse], error) {
	resp := &pb.MakeDirResponse{}
	err := s.as(ctx, "error making directory", req.Msg.GetPath(), func(_ *account.User, p string) error {
		fd, err := s.guard.openPath(unix.AT_FDCWD, p, 0)
		if err == nil {
			defer unix.Close(fd)
			if err := s.guard.read(fd); err != nil {
				return err
			}
			return existing(fd, p)
		}
		if err != unix.ENOENT {
			return err
		}
		dir, err := s.guard.makeDirs(p)
		if err == unix.ENOENT {
			// A file system that takes no new folders says so; it is not the
			// path that is missing.
			return fault.New(connect.CodeInternal, "E4000", "failed to create directory: %s: %v", p, err)
		}
		if err != nil {
			return err
		}
		unix.Close(dir)
		resp.Entry, err = s.entry(p)
		return err
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(resp), nil
}

// existing says what is in the way of a new folder.
func existing(fd int, p string) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return fault.New(connect.CodeAlreadyExists, "E4005", "directory already exists: %s", p)
	}
	return fault.New(connect.CodeInvalidArgument, "E4003", "path already exists but it is not a directory: %s", p)
}

// Move renames. It makes the parents of the destination and replaces a file
// there, but never a folder.
func (s *Service) Move(ctx context.Context, req *connect.Request[pb.MoveRequest]) (*connect.Response[pb.MoveResponse], error) {
	resp := &pb.MoveResponse{}
	err := s.as(ctx, "error renaming", req.Msg.GetSource(), func(u *account.User, from string) error {
		to, err := u.Path(req.Msg.GetDestination(), s.opts.WorkDir)
		if err != nil {
			return pathError(u, err)
		}
		if err := s.guard.move(from, to); err != nil {
			return err
		}
		resp.Entry, err = s.entry(to)
		return err
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(resp), nil
}

func (g guard) move(from, to string) error {
	source, sourceName, err := g.openParent(from)
	if err != nil {
		return err
	}
	defer unix.Close(source)
	if err := g.writeIn(source, sourceName); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstatat(source, sourceName, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	dest, err := g.makeDirs(path.Dir(to))
	if err != nil {
		return err
	}
	defer unix.Close(dest)
	if err := g.moveIn(source, sourceName, dest, path.Base(to)); err != nil {
		return err
	}
	// rename(2) replaces an empty folder; envd does not.
	err = unix.Fstatat(dest, path.Base(to), &st, unix.AT_SYMLINK_NOFOLLOW)
	if err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return unix.EEXIST
	}
	return unix.Renameat(source, sourceName, dest, path.Base(to))
}

// Remove removes a path and everything below it. One that is not there is done.
func (s *Service) Remove(ctx context.Context, req *connect.Request[pb.RemoveRequest]) (*connect.Response[pb.RemoveResponse], error) {
	err := s.as(ctx, "error removing file or directory", req.Msg.GetPath(), func(_ *account.User, p string) error {
		if p == "/" {
			return unix.EPERM
		}
		dir, name, err := s.guard.openParent(p)
		if err == nil {
			defer unix.Close(dir)
			err = s.guard.removeAll(ctx, dir, name)
		}
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&pb.RemoveResponse{}), nil
}
