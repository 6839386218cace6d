//go:build linux

package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

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

// probed remembers what a probe found out. Who is in turn holds its token, and
// is waited for only as long as one's own context lasts.
var probed = struct {
	turn   chan struct{}
	result *probeResult
	err    error
}{turn: make(chan struct{}, 1)}

// probe really builds a sandbox, one that ends at once, because each step fails
// separately on real systems. It does so once per process; later calls return
// the first answer. What is in the way is an [*IsolationError].
func probe(ctx context.Context) (*probeResult, error) {
	select {
	case probed.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("create sandbox: %w", context.Cause(ctx))
	}
	defer func() { <-probed.turn }()
	if probed.result != nil || probed.err != nil {
		return probed.result, probed.err
	}
	r, err := look(ctx)
	if err != nil && !isIsolation(err) {
		return nil, err // says nothing about the machine
	}
	probed.result, probed.err = r, err
	return r, err
}

func isIsolation(err error) bool {
	_, ok := errors.AsType[*IsolationError](err)
	return ok
}

func look(ctx context.Context) (*probeResult, error) {
	if !nsinit.Supported {
		return nil, &IsolationError{Cause: CausePlatform, Step: "start on " + runtime.GOARCH, Remedy: "use amd64 or arm64, or another provider"}
	}
	r := &probeResult{
		mapping: mappingKind(), landlock: landlockABI(), mountSetattr: true,
		base: mountBase(), lastCap: lastCap(), cpus: runtime.NumCPU(),
	}
	if f, err := detachedTree("/usr", roFlags); err == nil {
		f.Close()
		r.clientTrees = true
	}
	err := r.try(ctx)
	if i, ok := errors.AsType[*IsolationError](err); ok && i.Cause == CauseKernel && errors.Is(i.Err, unix.ENOSYS) && !r.clientTrees {
		// mount_setattr came with Linux 5.12.
		r.mountSetattr = false
		err = r.try(ctx)
	}
	if err != nil {
		return nil, err
	}
	return r, nil
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

// try builds a sandbox that answers and ends.
func (r *probeResult) try(ctx context.Context) error {
	exe, err := runtimeExecutable()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, errStartTimeout)
	defer cancel()
	l := &launcher{
		s:    &launchSpec{mapping: idMapping{kind: r.mapping, block: blockCount}, network: netLoopback, scratchBytes: 1 << 20},
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
