package envd

import (
	"context"
	"errors"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/agent-sandbox/sandbox-go/internal/pb/filesystem"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// WatchOptions say what a [Watch] reports. The zero value is the directory alone.
type WatchOptions struct {
	Recursive bool // also what is below, and directories made later
	Entries   bool // describe what was made or changed
	Network   bool // also on file systems where changes made elsewhere are not seen
}

// A ChangeKind says what happened to a name.
type ChangeKind int

// The values of ChangeKind are those of the wire.
const (
	Created ChangeKind = iota + 1
	Written
	Removed
	Renamed // what has the new name is Created
	ChangedMode
)

// Change is one event of a watch.
type Change struct {
	Name  string // relative to the watched directory; "." is that directory
	Kind  ChangeKind
	Entry *Entry // nil unless asked for, and when there is none any more
}

// Watch is the stream of changes in a directory. Next is for one goroutine;
// Close may be called by any.
type Watch struct {
	op        string
	ctx       context.Context // of this one stream; ended by Close
	cancel    context.CancelCauseFunc
	stop      func() bool // lets go of the caller's context
	in        *connect.ServerStreamForClient[filesystem.WatchDirResponse]
	keepAlive time.Duration
	alarm     *time.Timer // cancels ctx when the stream falls silent
	err       error       // why it ended
}

// Watch watches the directory path and returns once the watch is set: changes
// made after that are reported. It ends with ctx.
func (c *Client) Watch(ctx context.Context, path string, o WatchOptions) (*Watch, error) {
	const op = "watch directory"
	if ctx.Err() != nil {
		return nil, ContextError(ctx, op)
	}
	// A deadline of ctx stays here: the server would end the stream in order.
	sctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	w := &Watch{op: op, ctx: sctx, cancel: cancel, keepAlive: c.keepAlive}
	w.stop = context.AfterFunc(ctx, func() { cancel(ContextError(ctx, op)) })
	w.alarm = time.AfterFunc(time.Hour, func() { cancel(errSilent) })
	w.alarm.Stop()
	if err := w.open(c, path, o); err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

// open sends the request and takes the first event.
func (w *Watch) open(c *Client, path string, o WatchOptions) error {
	if c.timeout > 0 {
		t := time.AfterFunc(c.timeout, func() { w.cancel(&requestTimeout{after: c.timeout}) })
		defer t.Stop()
	}
	req := connect.NewRequest(&filesystem.WatchDirRequest{
		Path: path, Recursive: o.Recursive, IncludeEntry: o.Entries, AllowNetworkMounts: o.Network,
	})
	c.streamHeaders(req.Header(), "")
	in, err := c.files.WatchDir(w.ctx, req)
	if err != nil {
		return w.wrap(err)
	}
	w.in = in
	if !in.Receive() {
		return w.wrap(in.Err())
	}
	if in.Msg().GetStart() == nil {
		return protocolError(w.op, "the server did not say first that it watches")
	}
	return nil
}

// Next waits for the next change. A watch never ends in order: the end of the
// stream is E5003, changes that the server could not tell are E4007. Every call
// after an error returns it again.
func (w *Watch) Next() (Change, error) {
	for w.err == nil {
		ev, err := w.receive()
		if err != nil {
			w.err = err
			break
		}
		switch e := ev.GetEvent().(type) {
		case *filesystem.WatchDirResponse_Filesystem:
			return change(e.Filesystem), nil
		case *filesystem.WatchDirResponse_Start:
			w.err = protocolError(w.op, "the server said twice that it watches")
		}
		// Signs of life, and kinds of events that a later protocol may add.
	}
	return Change{}, w.err
}

// receive waits for one message, for as long as the stream shows life.
func (w *Watch) receive() (*filesystem.WatchDirResponse, error) {
	if w.keepAlive > 0 {
		w.alarm.Reset(3 * w.keepAlive)
		defer w.alarm.Stop()
	}
	if w.in.Receive() {
		return w.in.Msg(), nil
	}
	return nil, w.wrap(w.in.Err())
}

// Close ends the watch and frees its connection. It is idempotent.
func (w *Watch) Close() {
	w.stop()
	w.alarm.Stop()
	w.cancel(errdefs.New("E5004", w.op, "the watch was closed"))
	if w.in != nil {
		w.in.Close()
	}
}

// wrap turns the end of the stream into an errdefs error.
func (w *Watch) wrap(err error) error {
	if err == nil {
		return errdefs.New("E5003", w.op, "the server ended the watch")
	}
	err = wrap(w.ctx, w.op, onFile, err)
	if e, ok := errors.AsType[*errdefs.Error](err); ok && e.Code.Class() == "E4000" && strings.Contains(strings.ToLower(e.Message), "overflow") {
		// Servers that are not ours say it in their own words.
		return errdefs.New("E4007", w.op, e.Message)
	}
	return err
}

func change(e *filesystem.FilesystemEvent) Change {
	c := Change{Name: e.GetName(), Kind: ChangeKind(e.GetType())}
	if e.Entry != nil {
		c.Entry = entry(e.GetEntry())
	}
	return c
}
