package sandboxfn

import (
	"context"
	"io/fs"
	"iter"
	"path"

	"github.com/agent-sandbox/sandbox-go/internal/envd"
)

// Op is what happened to a name in a watched directory.
type Op int

// The values of Op. Servers may report one change as several, a new file as
// create, chmod and write.
const (
	OpCreate Op = iota + 1 // it is there, made or moved here
	OpWrite                // its content changed
	OpRemove
	OpRename // it has another name, or left; inside the watch OpCreate with the new name follows
	OpChmod  // its mode, owner or times changed
)

// String returns "create", "write" and so on; "unknown" for what a later protocol
// may add.
func (o Op) String() string {
	if o < OpCreate || o > OpChmod {
		return "unknown"
	}
	return [...]string{"create", "write", "remove", "rename", "chmod"}[o-OpCreate]
}

// Event is one change in a watched directory.
type Event struct {
	// Name is relative to the watched directory and uses slashes; "." is the
	// directory itself. After OpRemove or OpRename of "." nothing else comes.
	Name string
	Op   Op
	// Entry describes the file at about the time of the event. It is nil unless
	// IncludeEntry was set, and when the file is gone.
	Entry fs.FileInfo
}

// WatchOptions say what a watch reports. Nil means changes of the entries of one
// directory.
type WatchOptions struct {
	// Recursive also reports what happens below, in directories made or moved
	// there later, too: what they hold by then is reported as created.
	Recursive bool
	// IncludeEntry describes what was created or changed.
	IncludeEntry bool
	// NetworkMounts allows directories on network file systems, where changes made
	// by other machines are not seen. Without it they are refused.
	NetworkMounts bool
	// Started, if not nil, is called once when the watch is set, before the first
	// event: changes made after that are reported.
	Started func()
}

// Watch reports changes in a directory of the sandbox for as long as the loop
// over it runs:
//
//	for ev, err := range sb.Watch(ctx, "src", &sandboxfn.WatchOptions{Recursive: true}) {
//		if err != nil {
//			return err
//		}
//		fmt.Println(ev.Op, ev.Name)
//	}
//
// The watch begins with the loop and ends when the loop is left. It has no end of
// its own: when it stops the loop gets an error as its last value. That is
// [ErrMissed] when changes were lost because there were too many, after all that
// came before them; [ErrConnectionLost] when the connection broke or fell silent;
// E5004 or [ErrTimeout] when ctx ended; and what [FS] would say of a directory
// that is not there or may not be read. Paths mean what they mean for [FS]. Each
// range over the result is a watch of its own.
func (sb *Sandbox) Watch(ctx context.Context, dir string, o *WatchOptions) iter.Seq2[Event, error] {
	var opts WatchOptions
	if o != nil {
		opts = *o
	}
	return func(yield func(Event, error) bool) {
		if err := sb.watch(ctx, dir, &opts, yield); err != nil {
			yield(Event{}, err)
		}
	}
}

// watch yields changes until yield has had enough, which is nil, or the watch
// ends.
func (sb *Sandbox) watch(ctx context.Context, dir string, o *WatchOptions, yield func(Event, error) bool) error {
	f := sb.FS(ctx)
	p, err := f.path("watch", dir)
	if err != nil {
		return err
	}
	// Closing the handle ends the watch. It does not wait for it: the loop may be
	// what closes it.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(sb.life, func() { cancel(context.Cause(sb.life)) })()
	w, err := sb.envd.Watch(ctx, p, envd.WatchOptions{Recursive: o.Recursive, Entries: o.IncludeEntry, Network: o.NetworkMounts})
	if err != nil {
		return f.fail("watch", dir, err)
	}
	defer w.Close()
	if o.Started != nil {
		o.Started()
	}
	for {
		c, err := w.Next()
		if err != nil {
			return f.fail("watch", dir, err)
		}
		if !yield(event(c), nil) {
			return nil
		}
	}
}

// event is c in the words of this package.
func event(c envd.Change) Event {
	ev := Event{Name: c.Name, Op: Op(c.Kind)}
	if c.Entry != nil {
		ev.Entry = &fileInfo{name: path.Base(c.Name), e: c.Entry}
	}
	return ev
}
