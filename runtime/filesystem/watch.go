//go:build linux

package filesystem

import (
	"context"
	"errors"
	"net/http"
	"path"
	"strconv"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	pb "github.com/agent-sandbox/sandbox-go/internal/pb/filesystem"
	"github.com/agent-sandbox/sandbox-go/runtime/account"
	"github.com/agent-sandbox/sandbox-go/runtime/fault"
)

const (
	keepaliveHeader  = "Keepalive-Ping-Interval" // in seconds
	defaultKeepalive = 90 * time.Second

	// watchBatch is how many changes are looked at together.
	watchBatch = 256
)

// watchRequest is what the two ways to ask for a watch have in common.
type watchRequest interface {
	GetPath() string
	GetRecursive() bool
	GetIncludeEntry() bool
	GetAllowNetworkMounts() bool
}

func (s *Service) watch(ctx context.Context, req watchRequest) (w *watcher, err error) {
	err = s.as(ctx, "error watching", req.GetPath(), func(u *account.User, p string) error {
		w, err = s.watchers.start(u, p, watchOptions{recursive: req.GetRecursive(), network: req.GetAllowNetworkMounts()})
		return err
	})
	return w, err
}

// WatchDir reports changes in a folder until the client leaves. Changes that
// cannot be told, because there were too many, end it with resource_exhausted.
func (s *Service) WatchDir(ctx context.Context, req *connect.Request[pb.WatchDirRequest], stream *connect.ServerStream[pb.WatchDirResponse]) error {
	w, err := s.watch(ctx, req.Msg)
	if err != nil {
		return err
	}
	defer s.watchers.end(w)
	started := &pb.WatchDirResponse{Event: &pb.WatchDirResponse_Start{Start: &pb.WatchDirResponse_StartEvent{}}}
	if err := stream.Send(started); err != nil {
		return err
	}
	silence := keepalive(req.Header())
	timer := time.NewTimer(silence)
	defer timer.Stop()
	for {
		select {
		case <-w.queue.wake:
			list, err := w.queue.take(watchBatch)
			if err != nil {
				return rpcError("watching", w.path, err)
			}
			if err := s.sendChanges(w, list, req.Msg.GetIncludeEntry(), stream); err != nil {
				return err
			}
		case <-timer.C:
			if err := stream.Send(&pb.WatchDirResponse{Event: &pb.WatchDirResponse_Keepalive{Keepalive: &pb.WatchDirResponse_KeepAlive{}}}); err != nil {
				return err
			}
		case <-ctx.Done():
			return watchEnded(ctx)
		}
		timer.Reset(silence)
	}
}

func (s *Service) sendChanges(w *watcher, list []change, entries bool, stream *connect.ServerStream[pb.WatchDirResponse]) error {
	events, err := s.events(w, list, entries)
	if err != nil {
		return err
	}
	for _, e := range events {
		if err := stream.Send(&pb.WatchDirResponse{Event: &pb.WatchDirResponse_Filesystem{Filesystem: e}}); err != nil {
			return err
		}
	}
	return nil
}

// watchEnded says how ctx ended, as the wire does.
func watchEnded(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fault.New(connect.CodeDeadlineExceeded, "E5002", "%w", ctx.Err())
	}
	return fault.New(connect.CodeCanceled, "", "%w", ctx.Err())
}

// keepalive is the silence after which the client wants a sign of life.
func keepalive(h http.Header) time.Duration {
	n, err := strconv.Atoi(h.Get(keepaliveHeader))
	if err != nil || n <= 0 || n > 24*3600 {
		return defaultKeepalive
	}
	return time.Duration(n) * time.Second
}

// CreateWatcher begins a watch that GetWatcherEvents asks. One that nobody asks
// for an hour ends.
func (s *Service) CreateWatcher(ctx context.Context, req *connect.Request[pb.CreateWatcherRequest]) (*connect.Response[pb.CreateWatcherResponse], error) {
	w, err := s.watch(ctx, req.Msg)
	if err != nil {
		return nil, err
	}
	id, err := s.watchers.poll(w, req.Msg.GetIncludeEntry())
	if err != nil {
		s.watchers.end(w)
		return nil, err
	}
	return connect.NewResponse(&pb.CreateWatcherResponse{WatcherId: id}), nil
}

// GetWatcherEvents takes the changes since the last call. When some are missing
// the call after the last complete ones, and every one after that, is
// resource_exhausted.
func (s *Service) GetWatcherEvents(_ context.Context, req *connect.Request[pb.GetWatcherEventsRequest]) (*connect.Response[pb.GetWatcherEventsResponse], error) {
	w, err := s.watchers.find(req.Msg.GetWatcherId())
	if err != nil {
		return nil, err
	}
	list, err := w.queue.take(maxChanges)
	if err != nil {
		return nil, rpcError("watching", w.path, err)
	}
	events, err := s.events(w.watcher, list, w.entries)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&pb.GetWatcherEventsResponse{Events: events}), nil
}

// RemoveWatcher ends a watch made by CreateWatcher.
func (s *Service) RemoveWatcher(_ context.Context, req *connect.Request[pb.RemoveWatcherRequest]) (*connect.Response[pb.RemoveWatcherResponse], error) {
	if err := s.watchers.remove(req.Msg.GetWatcherId()); err != nil {
		return nil, err
	}
	return connect.NewResponse(&pb.RemoveWatcherResponse{}), nil
}

// events is how the wire says list. With entries, what was made or changed is
// described as it is now, if it is still there.
func (s *Service) events(w *watcher, list []change, entries bool) ([]*pb.FilesystemEvent, error) {
	out := make([]*pb.FilesystemEvent, len(list))
	for i, c := range list {
		out[i] = &pb.FilesystemEvent{Name: text(c.name), Type: c.kind}
	}
	if !entries || len(list) == 0 {
		return out, nil
	}
	err := w.user.Do(func() error {
		root, err := s.guard.openFolder(w.path, w.dev, w.ino)
		if err != nil || root < 0 {
			return err
		}
		defer unix.Close(root)
		names := s.opts.Users.Names()
		for i, c := range list {
			switch c.kind {
			case pb.EventType_EVENT_TYPE_CREATE, pb.EventType_EVENT_TYPE_WRITE, pb.EventType_EVENT_TYPE_CHMOD:
				out[i].Entry = s.guard.entryBelow(root, c.name, w.path, names)
			}
		}
		return nil
	})
	if err != nil {
		return nil, rpcError("watching", w.path, err)
	}
	return out, nil
}

// entryBelow describes the path rel below the open folder root, which is at p. It
// returns nil for one that is not there, or that the user may not see.
func (g guard) entryBelow(root int, rel, p string, names *account.Names) *pb.EntryInfo {
	dir, err := resolveBelow(root, path.Dir(rel), unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return nil
	}
	defer unix.Close(dir)
	e, err := g.entryAt(dir, path.Base(rel), path.Join(p, rel), names)
	if err != nil {
		return nil
	}
	return e
}
