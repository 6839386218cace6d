//go:build linux

package local

import (
	"context"
	"fmt"
	"math"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// Places for what a sandbox writes, as CreateRequest.Scratch names them.
const (
	scratchMemory = "memory" // the default
	scratchDisk   = "disk"
)

// What the report calls them.
const (
	scratchTmpfs = "tmpfs" // in memory, with a limit that the kernel keeps
	scratchSoft  = "soft"  // on disk, with a limit that a scratchWatch keeps
)

// dirScratch is the directory of a sandbox that holds what it writes to disk.
// The directory around it lets only the user outside in.
const dirScratch = "scratch"

// defaultDisk is the limit of what is written to disk, when nothing is asked
// for: it, or a quarter of what is free when that is less.
const defaultDisk = 10 << 30

// onDisk reports whether what is written lies on disk.
func (o *order) onDisk() bool { return o.Scratch == scratchDisk }

// orderLimits chooses the limits of o.
func (p *Provider) orderLimits(ctx context.Context, o *order) (err error) {
	r := o.Resources
	if o.onDisk() {
		r.DiskMiB = 0
	}
	if o.limits, err = chooseLimits(r, machineMemory()); err != nil || !o.onDisk() {
		return err
	}
	t, done, err := p.begin(ctx, "create sandbox")
	if err != nil {
		return err
	}
	defer done()
	var st unix.Statfs_t
	if err := unix.Fstatfs(t.boxes.fd(), &st); err != nil {
		return errdefs.Wrap("E2000", "create sandbox", "look for free space in the state directory", err)
	}
	o.limits.scratch, err = diskSize(o.Resources.DiskMiB, int64(min(st.Bavail, math.MaxInt64/uint64(st.Frsize)))*st.Frsize)
	return err
}

// diskSize is the limit of what is written to a disk with so many bytes free.
func diskSize(askedMiB, free int64) (int64, error) {
	if askedMiB == 0 {
		return max(min(defaultDisk, free/4)>>20<<20, minScratch), nil
	}
	if most := free >> 20; askedMiB < minScratch>>20 || askedMiB > most {
		return 0, badOption(fmt.Sprintf("disk %d MiB is out of range: %d to %d, which is free in the file system of the state directory", askedMiB, minScratch>>20, most),
			"free some space, or name another state directory with SANDBOX_STATE_DIR")
	}
	return askedMiB << 20, nil
}

// shm is the size of /dev/shm, which is memory wherever the rest lies.
func (o *order) shm() int64 {
	if o.onDisk() {
		return min(o.limits.scratch, defaultScratch, o.limits.memory/2) / 4
	}
	return o.limits.scratch / 4
}

// scratchInodes is how many files and directories a scratch can have.
func scratchInodes(bytes int64) int64 { return max(8192, bytes>>14) }

// makeScratch makes the directory on disk, unless files are kept in memory.
// Remains of it are removed with the sandbox.
func (b *builder) makeScratch() error {
	if !b.o.onDisk() {
		return nil
	}
	err := b.e.dir.mkdir(dirScratch)
	if err == nil && b.o.mapping == mapBlock {
		root := blockBase + b.saved.Block*blockSize
		err = unix.Fchownat(b.e.dir.fd(), dirScratch, root, root, unix.AT_SYMLINK_NOFOLLOW)
	}
	if err != nil {
		return errdefs.Wrap("E2000", "create sandbox", "make the directory of its files", err)
	}
	return nil
}

// scratchPath is where the directory lies; empty: there is none.
func (b *builder) scratchPath() string {
	if !b.o.onDisk() {
		return ""
	}
	return filepath.Join(b.t.path, "boxes", b.o.id, dirScratch)
}

// scratchKind is the word of the report.
func (s *launchSpec) scratchKind() string {
	if s.scratchDir == "" {
		return scratchTmpfs
	}
	return scratchSoft
}

// initCaps is the set of capabilities that init keeps. Where it cannot act as
// other users it has none, but for looking into what was written to disk,
// whatever modes commands have given it.
func (s *launchSpec) initCaps() uint64 {
	caps := s.mapping.initCaps()
	if s.scratchDir != "" && !s.mapping.manyUsers() {
		caps |= 1 << unix.CAP_DAC_READ_SEARCH
	}
	return caps
}

// removeScratch removes what a dead sandbox has written to disk. A sandbox
// without such files is no error.
func removeScratch(e *entry) error {
	_, err := treeWork{Op: workRemove, Name: dirScratch}.run(context.Background(), e.dir, nil)
	return removeError(err)
}
