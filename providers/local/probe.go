//go:build linux

package local

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/internal/nsinit"
)

// probeResult is what this machine can do.
type probeResult struct {
	mapping      mapKind
	landlock     int    // ABI; zero: none
	mountSetattr bool   // false: read-only binds take the slow path
	clientTrees  bool   // this process may copy mounts
	base         string // where the new root is mounted before it becomes the root
	lastCap      int
	cpus         int
}

// inspect looks at what this machine can do, once per process. It builds
// nothing: whether a sandbox can be built shows when one is, and then the step
// that is refused is named. Building one more beforehand would take as long
// again.
var inspect = sync.OnceValues(func() (*probeResult, error) {
	if !nsinit.Supported {
		return nil, &IsolationError{Cause: CausePlatform, Step: "start on " + runtime.GOARCH, Remedy: "use amd64 or arm64, or another provider"}
	}
	r := &probeResult{
		mapping: mappingKind(), landlock: landlockABI(), mountSetattr: hasMountSetattr(),
		base: mountBase(), lastCap: lastCap(), cpus: runtime.NumCPU(),
	}
	if f, err := detachedTree("/usr", roFlags); err == nil {
		f.Close()
		r.clientTrees = true
	}
	return r, nil
})

// hasMountSetattr tells whether the kernel knows mount_setattr(2), which came
// with Linux 5.12. The call itself is made without a mount and fails.
func hasMountSetattr() bool {
	return !errors.Is(unix.MountSetattr(-1, "", 0, &unix.MountAttr{}), unix.ENOSYS)
}

// probe really builds a sandbox, one that ends at once. What is in the way is
// an [*IsolationError].
func probe(ctx context.Context) error {
	r, err := inspect()
	if err != nil {
		return err
	}
	return r.try(ctx, nil)
}

// mountBase is a directory that exists everywhere.
func mountBase() string {
	for _, dir := range []string{"/tmp", "/var", "/mnt"} {
		real, err := filepath.EvalSymlinks(dir)
		if err != nil {
			continue
		}
		if fi, err := os.Stat(real); err == nil && fi.IsDir() {
			return real
		}
	}
	return "/usr"
}

// try builds a sandbox on layers that answers and ends.
func (r *probeResult) try(ctx context.Context, layers []stackLayer) error {
	exe, err := runtimeExecutable()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, errStartTimeout)
	defer cancel()
	l := &launcher{
		s:    &launchSpec{mapping: idMapping{kind: r.mapping, block: blockCount}, network: netLoopback, scratchBytes: 1 << 20, layers: layers},
		host: r, exe: exe,
	}
	l.prog.Probe = true
	p, err := l.start(ctx)
	if err != nil {
		return err
	}
	_, err = p.process.Wait()
	return err
}
