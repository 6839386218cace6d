//go:build linux

package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// Layers are trees of files that sandboxes start with. Each is a directory of
// layers/ that is complete when it gets its name and never changes after. Files
// belong to the ids inside: for root above volumeIDs, for a user with sub-ids as
// each of its sandboxes has them, so that they need not be mapped to be shown.
//
// Nothing counts the users of a layer: who uses one says so in its own file, and
// sweepLayers removes what nobody names. The lock of the directory makes the two
// exclude each other; it is held while names are written and compared, never
// while files are copied or removed.
const (
	layersDir    = "layers"
	snapshotsDir = "snapshots"

	layersLock = ".lock"
	newPrefix  = ".new-" // what is being written, or removed, by whoever has locked it
)

// lockLayers waits for the right to change what uses which layers.
func (t *tree) lockLayers(ctx context.Context) (*os.File, error) {
	for {
		f, err := t.layers.tryLock(layersLock)
		if err == nil || !errors.Is(err, errBusy) {
			return f, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("another process holds the store of files: %w", context.Cause(ctx))
		case <-time.After(time.Millisecond):
		}
	}
}

// layerPath is where a layer lies.
func (t *tree) layerPath(name string) string { return filepath.Join(t.path, layersDir, name) }

func (t *tree) hasLayer(name string) bool {
	var st unix.Stat_t
	return isDigest(name) && unix.Fstatat(t.layers.fd(), name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR
}

// layer is one that is being written. It belongs to who began it, until publish
// or discard; when that process dies it is removed by the next one.
type layer struct {
	t    *tree
	name string // meanwhile
	dir  *folder
}

// beginLayer makes an empty layer.
func (t *tree) beginLayer(ctx context.Context) (*layer, error) {
	lock, err := t.lockLayers(ctx)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	l := &layer{t: t, name: newPrefix + randomText(12)}
	if err := t.layers.mkdir(l.name); err != nil {
		return nil, err
	}
	if l.dir, err = t.layers.sub(l.name); err == nil {
		err = unix.Flock(l.dir.fd(), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err == nil {
		err = unix.Fchmod(l.dir.fd(), 0o755)
	}
	if err != nil {
		l.discard()
		return nil, err
	}
	return l, nil
}

// publish gives the layer its name. When there is one of that name already, which
// has the same content, that one stays. Whoever calls holds the lock of the
// layers until something names it, and calls discard afterwards in any case.
func (l *layer) publish(name string) error {
	if l.t.hasLayer(name) {
		return nil
	}
	if err := unix.Renameat2(l.t.layers.fd(), l.name, l.t.layers.fd(), name, unix.RENAME_NOREPLACE); err != nil {
		return fmt.Errorf("name a layer: %w", err)
	}
	l.name = ""
	return unix.Fsync(l.t.layers.fd())
}

// unpublish takes the name away again, unless somebody uses it. The lock of the
// layers has been held since publish.
func (l *layer) unpublish(name string) {
	if l.name != "" {
		return // another one has the name
	}
	if used, sure, err := l.t.usedLayers(); err != nil || !sure || used[name] {
		return
	}
	tmp := newPrefix + randomText(12)
	if unix.Renameat(l.t.layers.fd(), name, l.t.layers.fd(), tmp) == nil { // otherwise the next sweep does
		l.name = tmp
	}
}

// sync makes the content survive a power failure.
func (l *layer) sync() error { return unix.Syncfs(l.dir.fd()) }

// discard removes the layer, unless it was published.
func (l *layer) discard() {
	if l.name != "" {
		_ = l.t.removeTree(l.name) // otherwise the next sweep does
	}
	l.dir.close()
}

// removeTree removes a directory of layers/.
func (t *tree) removeTree(name string) error {
	// Not to be given up half-way, as whoever calls is about to forget the name.
	_, err := treeWork{Op: workRemove, Name: name}.run(context.Background(), t.layers, nil)
	return removeError(err)
}

// usedLayers are the layers that something names. They are not all when there is
// something that cannot be read.
func (t *tree) usedLayers() (used map[string]bool, all bool, err error) {
	used, all = map[string]bool{}, true
	add := func(names []string) {
		for _, n := range names {
			used[n] = true
		}
	}
	unread := func(kind, id string, err error) {
		all = false
		t.log.Warn("layers are kept: it is not known which ones are needed", kind, id, "err", err)
	}
	boxes, err := t.boxes.names()
	if err != nil {
		return nil, false, err
	}
	for _, id := range boxes {
		e, err := t.openEntry(id)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			unread("sandbox_id", id, err)
			continue
		}
		var c savedConfig
		var s savedSleep
		err = errors.Join(loadIfThere(e, fileConfig, &c), loadIfThere(e, fileSleep, &s))
		e.close()
		if err != nil {
			unread("sandbox_id", id, err)
		}
		add(c.Layers)
		add(s.Layers)
	}
	snapshots, err := t.snapshots.names()
	if err != nil {
		return nil, false, err
	}
	for _, id := range snapshots {
		s, err := t.snapshot(id)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			unread("snapshot_id", id, err)
			continue
		}
		add(s.Layers)
	}
	err = t.eachTemplate(func(name string, s *savedTemplate, err error) {
		if err != nil {
			unread("template", name, err)
			return
		}
		for _, f := range s.Steps {
			add(f.Layers)
		}
	})
	return used, all, err
}

func loadIfThere(e *entry, name string, v any) error {
	if err := e.load(name, v); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// sweepLayers removes layers that nothing names, and what killed processes left.
func (t *tree) sweepLayers(ctx context.Context) error {
	doomed, err := t.doomLayers(ctx)
	errs := []error{err}
	for _, l := range doomed {
		errs = append(errs, l.t.removeTree(l.name))
		l.dir.close()
	}
	return errors.Join(errs...)
}

// doomLayers takes away the names of what nobody needs. The caller removes it.
func (t *tree) doomLayers(ctx context.Context) (doomed []*layer, err error) {
	all, err := t.layers.allNames()
	snapshots, serr := t.snapshots.allNames()
	built, terr := t.templates.allNames()
	if err := errors.Join(err, serr, terr); err != nil || len(all)+len(snapshots)+len(built) == 0 {
		return nil, err // mostly: not even a lock to make
	}
	lock, err := t.lockLayers(ctx)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	if err := errors.Join(t.sweepSnapshots(), t.sweepBuilds()); err != nil {
		return nil, err
	}
	used, sure, err := t.usedLayers()
	if err != nil {
		return nil, fmt.Errorf("find out which layers are used: %w", err)
	}
	names, err := t.layers.allNames()
	if err != nil {
		return nil, err
	}
	for _, n := range names {
		if !strings.HasPrefix(n, newPrefix) && (!sure || !isDigest(n) || used[n]) {
			continue
		}
		dir, err := t.layers.sub(n)
		if err != nil {
			return doomed, err
		}
		l := &layer{t, n, dir}
		if unix.Flock(dir.fd(), unix.LOCK_EX|unix.LOCK_NB) != nil {
			dir.close() // it is being written, or removed
			continue
		}
		if isDigest(n) {
			l.name = newPrefix + randomText(12)
			if err := unix.Renameat(t.layers.fd(), n, t.layers.fd(), l.name); err != nil {
				dir.close()
				return doomed, err
			}
		}
		doomed = append(doomed, l)
		t.removals.note(providers.RemovedLayer, strings.TrimPrefix(n, newPrefix))
	}
	return doomed, nil
}

// sweepSnapshots removes snapshots that were being written, or removed, when their
// process was killed. Whoever does either holds the lock of the layers, as we do.
func (t *tree) sweepSnapshots() error {
	names, err := t.snapshots.allNames()
	if err != nil {
		return err
	}
	for _, n := range names {
		if !strings.HasPrefix(n, newPrefix) {
			if !isSnapshotID(n) {
				continue
			}
			if _, err := t.snapshot(n); !errors.Is(err, fs.ErrNotExist) {
				continue
			}
		}
		if err := t.removeSnapshot(n); err != nil {
			return fmt.Errorf("remove half of a snapshot: %w", err)
		}
		t.removals.note(providers.RemovedSnapshot, strings.TrimPrefix(n, newPrefix))
	}
	return nil
}

// holdLayers saves the configuration of a sandbox that uses layers: from then on
// they stay while the sandbox is there.
func (b *builder) holdLayers(ctx context.Context) error {
	if len(b.saved.Layers) == 0 {
		return b.saveConfig()
	}
	lock, err := b.t.lockLayers(ctx)
	if err != nil {
		return err
	}
	defer lock.Close()
	for _, name := range b.saved.Layers {
		if !b.t.hasLayer(name) {
			return &errdefs.Error{Code: "E2020", Op: "create sandbox", Message: "files of snapshot " + b.o.Snapshot + " are not there any more",
				Suggestion: "was it deleted at this moment?"}
		}
	}
	return b.saveConfig()
}

// stackOf is how the planner is told of layers of the store.
func (t *tree) stackOf(names []string) []stackLayer {
	var out []stackLayer
	for _, n := range names {
		out = append(out, stackLayer{t.layerPath(n), ownersStored})
	}
	return out
}
