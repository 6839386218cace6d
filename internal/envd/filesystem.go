package envd

import (
	"context"
	"io/fs"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/agent-sandbox/sandbox-go/internal/pb/filesystem"
)

// Entry describes a file. It describes the entry itself: a link is a link.
type Entry struct {
	Name     string
	Path     string // absolute
	Size     int64
	Mode     fs.FileMode
	Modified time.Time // zero: unknown
	Owner    string    // name, or decimal id when it has none
	Group    string
	Target   string // of a link, fully resolved; of a broken one its own path
	Broken   bool   // a link whose target is not there
}

// Stat describes path without following a link in its last element.
func (c *Client) Stat(ctx context.Context, path string) (*Entry, error) {
	const op = "stat"
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	res, err := c.files.Stat(ctx, connect.NewRequest(&filesystem.StatRequest{Path: path}))
	if err != nil {
		return nil, wrap(ctx, op, onFile, err)
	}
	if res.Msg.GetEntry() == nil {
		return nil, protocolError(op, "the server's answer holds no entry")
	}
	return entry(res.Msg.GetEntry()), nil
}

// List lists what is below path, depth levels deep and at least one, in walk
// order: sorted, a directory before what it holds. Links are not followed.
func (c *Client) List(ctx context.Context, path string, depth uint32) ([]*Entry, error) {
	const op = "list directory"
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	res, err := c.files.ListDir(ctx, connect.NewRequest(&filesystem.ListDirRequest{Path: path, Depth: depth}))
	if err != nil {
		return nil, wrap(ctx, op, onFile, err)
	}
	out := make([]*Entry, 0, len(res.Msg.GetEntries()))
	for _, e := range res.Msg.GetEntries() {
		out = append(out, entry(e))
	}
	return out, nil
}

// MakeDir makes a directory and its parents. One that exists is E4005.
func (c *Client) MakeDir(ctx context.Context, path string) error {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	_, err := c.files.MakeDir(ctx, connect.NewRequest(&filesystem.MakeDirRequest{Path: path}))
	return wrap(ctx, "make directory", onFile, err)
}

// Move renames source. Parents of destination are made; a file there is
// replaced as a whole.
func (c *Client) Move(ctx context.Context, source, destination string) error {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	_, err := c.files.Move(ctx, connect.NewRequest(&filesystem.MoveRequest{Source: source, Destination: destination}))
	return wrap(ctx, "rename", onFile, err)
}

// Remove removes path and everything below it. One that is not there is done.
func (c *Client) Remove(ctx context.Context, path string) error {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	_, err := c.files.Remove(ctx, connect.NewRequest(&filesystem.RemoveRequest{Path: path}))
	return wrap(ctx, "remove", onFile, err)
}

func entry(e *filesystem.EntryInfo) *Entry {
	out := &Entry{
		Name: e.GetName(), Path: e.GetPath(), Size: e.GetSize(),
		Owner: e.GetOwner(), Group: e.GetGroup(), Target: e.GetSymlinkTarget(),
	}
	if t := e.GetModifiedTime(); t.IsValid() {
		out.Modified = t.AsTime()
	}
	mode, ok := parseMode(e.GetPermissions())
	if !ok {
		mode = fs.FileMode(e.GetMode()) & fs.ModePerm
		if e.GetType() == filesystem.FileType_FILE_TYPE_DIRECTORY {
			mode |= fs.ModeDir
		}
	}
	if e.SymlinkTarget != nil || e.GetType() == filesystem.FileType_FILE_TYPE_SYMLINK {
		mode = mode&^fs.ModeType | fs.ModeSymlink
		out.Broken = e.GetType() == filesystem.FileType_FILE_TYPE_UNSPECIFIED
	}
	out.Mode = mode
	return out
}

// parseMode reads what fs.FileMode.String writes: letters for the kind and the
// special bits, or a dash, then nine of rwx.
func parseMode(s string) (fs.FileMode, bool) {
	const letters = "dalTLDpSugct?"
	if len(s) < 10 || len(s) > 9+len(letters) {
		return 0, false
	}
	kind, perm := s[:len(s)-9], s[len(s)-9:]
	var mode fs.FileMode
	if kind != "-" {
		for _, c := range []byte(kind) {
			i := strings.IndexByte(letters, c)
			if i < 0 {
				return 0, false
			}
			mode |= 1 << (31 - i)
		}
	}
	for i, c := range []byte(perm) {
		switch c {
		case "rwxrwxrwx"[i]:
			mode |= 1 << (8 - i)
		case '-':
		default:
			return 0, false
		}
	}
	return mode, true
}
