//go:build linux

package local

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/providers"
)

// Space below which sandboxes may soon fail: executables, snapshots and volumes
// are kept on disk.
const (
	lowSpace = 1 << 30
	lowFiles = 10_000
)

// state looks at the state directory without making or changing anything.
func (d *diagnosis) state() {
	path := filepath.Join(d.p.root, "local")
	at := path
	for {
		if _, err := os.Lstat(at); err == nil || at == "/" {
			break
		}
		at = filepath.Dir(at)
	}
	d.space(at)
	if at != path {
		if err := unix.Access(at, unix.W_OK|unix.X_OK); err != nil {
			d.failed("state", unsafeState(path, fmt.Errorf("cannot be made: %w", err)))
			return
		}
		d.ok("state", path+" is not there yet and will be made")
		return
	}
	t, err := openTree(d.p.root)
	if err != nil {
		d.failed("state", err)
		return
	}
	defer t.close()
	d.ok("state", path+" belongs to us alone")
	dead, err := t.countDead()
	switch {
	case err != nil:
		d.info("leftovers", err.Error(), "")
	case dead > 0:
		d.info("leftovers", fmt.Sprintf("%d sandboxes that died with their client are not removed yet", dead), "the next creation removes them")
	default:
		d.ok("leftovers", "none")
	}
}

func (d *diagnosis) space(at string) {
	var st unix.Statfs_t
	if err := unix.Statfs(at, &st); err != nil {
		d.info("disk", at+": "+err.Error(), "")
		return
	}
	free := int64(st.Bavail) * st.Bsize
	detail := fmt.Sprintf("%d MiB free at %s", free>>20, at)
	switch {
	case free < lowSpace:
		d.add(providers.FindingInfo, "disk", detail, "make room, or name another place with SANDBOX_STATE_DIR")
	case st.Files > 0 && st.Ffree < lowFiles:
		d.add(providers.FindingInfo, "disk", fmt.Sprintf("%s, and room for %d more files", detail, st.Ffree), "remove files, or name another place with SANDBOX_STATE_DIR")
	default:
		d.ok("disk", detail)
	}
}

// countDead counts what collect would remove.
func (t *tree) countDead() (dead int, err error) {
	names, err := t.boxes.names()
	if err != nil {
		return 0, err
	}
	for _, id := range names {
		if checkID("diagnose", id) != nil {
			continue
		}
		e, err := t.openEntry(id)
		if err != nil {
			continue // it is being removed
		}
		if lock, err := e.dir.tryLock(fileLock); err == nil {
			lock.Close()
			dead++
		}
		e.close()
	}
	return dead, nil
}
