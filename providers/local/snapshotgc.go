//go:build linux

package local

import (
	"context"
	"errors"
	"io/fs"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/providers"
)

// collectSnapshots removes what killed processes left of snapshots: those that
// had no name yet, and those whose removal had begun.
func (t *tree) collectSnapshots(ctx context.Context) error {
	all, err := t.snapshots.allNames()
	if err != nil || len(all) == 0 {
		return err
	}
	lock, err := t.lockLayers(ctx) // with which they are written and removed
	if err != nil {
		return err
	}
	defer lock.Close()
	var errs []error
	for _, n := range all {
		if strings.HasPrefix(n, newPrefix) || isSnapshotID(n) && t.bare(n) {
			err := t.removeSnapshot(n)
			if err == nil {
				t.removals.note(providers.RemovedSnapshot, strings.TrimPrefix(n, newPrefix))
			}
			if !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// bare reports whether a snapshot has lost its meta.json.
func (t *tree) bare(id string) bool {
	d, err := t.snapshots.sub(id)
	if err != nil {
		return false
	}
	defer d.close()
	var st unix.Stat_t
	return unix.Fstatat(d.fd(), fileMeta, &st, unix.AT_SYMLINK_NOFOLLOW) == unix.ENOENT
}
