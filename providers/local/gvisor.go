//go:build linux

package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/internal/nsinit"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// Engines, as the report names them. In engine gvisor what runs inside talks to
// gVisor's kernel, a program, in the place of this machine's: a native sandbox
// without commands is built around runsc, and the runtime is pid 1 of the guest
// that runsc runs. So everything that ends, limits and hides a native sandbox
// does the same for runsc, and who breaks out of gVisor is still in a sandbox.
const (
	engineNative = "native"
	engineGVisor = "gvisor"
)

// Isolations that a request and the setting of that name can ask for.
const (
	isolationContainer  = "container"
	isolationGVisor     = "gvisor"
	isolationAutoStrong = "auto-strong" // gvisor where it is proven, else container; a setting only
)

// envRunsc names the program runsc where PATH does not lead to it.
const envRunsc = "SANDBOX_RUNSC"

// gvisorModule is what go install makes runsc from. It is a commit of the
// branch that the go command can build.
const gvisorModule = "gvisor.dev/gvisor/runsc@v0.0.0-20260905035102-160fafc42237"

// gvisorPlatform is how runsc takes over system calls: with seccomp(2) and
// shared memory, which needs no device and no rights.
const gvisorPlatform = "systrap"

// gvisorMemory is what runsc itself takes: the kernel of the guest, the process
// that waits for it, and the one that opens files.
const gvisorMemory = 128 << 20

// gvisorTasks bounds the processes and threads of runsc for a guest that may have
// n. The guest's own limit is enforced by its kernel; this one protects the host
// from that kernel.
func gvisorTasks(n int64) int64 { return 4*n + 512 }

// findRunsc returns the path of runsc. Without one it is E8004.
func findRunsc() (string, error) {
	path := os.Getenv(envRunsc)
	if path != "" && !filepath.IsAbs(path) {
		return "", badRunsc(path, errors.New("the path is not absolute"))
	}
	if path == "" {
		var err error
		if path, err = exec.LookPath("runsc"); err != nil {
			return "", &errdefs.Error{Code: "E8004", Op: "create sandbox",
				Message:    "isolation gvisor needs the program runsc, which is not installed",
				Suggestion: "CGO_ENABLED=0 go install " + gvisorModule + ", and put it in PATH or its path in " + envRunsc}
		}
	}
	real, err := filepath.Abs(path)
	if err == nil {
		real, err = filepath.EvalSymlinks(real)
	}
	if err != nil {
		return "", badRunsc(path, err)
	}
	fi, err := os.Stat(real)
	if err == nil && !fi.Mode().IsRegular() {
		err = errors.New("not a regular file")
	}
	if err == nil {
		err = unix.Access(real, unix.X_OK)
	}
	if err != nil {
		return "", badRunsc(path, err)
	}
	return real, nil
}

func badRunsc(path string, err error) error {
	return &errdefs.Error{Code: "E8007", Op: "create sandbox", Message: path + " is no runsc that can be started",
		Suggestion: "let " + envRunsc + " name it, or install it in PATH", Err: err}
}

// proofs says which runsc was tried in this process, by what it is: nil, or what
// is wrong with it.
var proofs struct {
	sync.Mutex
	known map[gvisorProof]error
}

// gvisorProof is what a proof is about: with another program, another kernel or
// another user it has to be made again.
type gvisorProof struct {
	Path   string `json:"path"`
	Inode  uint64 `json:"inode"`
	Size   int64  `json:"size"`
	Time   int64  `json:"time"` // of the last change of the file, ns
	Kernel string `json:"kernel"`
	User   int    `json:"user"`
}

func aboutRunsc(path string) (gvisorProof, error) {
	var st unix.Stat_t
	var u unix.Utsname
	if err := unix.Stat(path, &st); err != nil {
		return gvisorProof{}, badRunsc(path, err)
	}
	if err := unix.Uname(&u); err != nil {
		return gvisorProof{}, err
	}
	return gvisorProof{Path: path, Inode: st.Ino, Size: st.Size, Time: st.Ctim.Nano(),
		Kernel: unix.ByteSliceToString(u.Release[:]) + " " + unix.ByteSliceToString(u.Version[:]), User: os.Geteuid()}, nil
}

// fileGVisor, in the state directory, holds the last proof that succeeded: it
// takes half a second, which programs that end soon would spend again and again.
const fileGVisor = "gvisor.json"

// proveGVisor proves that the runsc at path can run a guest here, by running one
// unless that was done before. A cancelled proof is none.
func (p *Provider) proveGVisor(ctx context.Context, path string) error {
	return proveOnce(ctx, path, func(about gvisorProof) error { return p.proveNoted(ctx, about) })
}

// proveOnce is prove, unless that was done for the same in this process.
func proveOnce(ctx context.Context, path string, prove func(gvisorProof) error) error {
	about, err := aboutRunsc(path)
	if err != nil {
		return err
	}
	proofs.Lock()
	defer proofs.Unlock()
	if err, ok := proofs.known[about]; ok {
		return err
	}
	err = prove(about)
	if ctx.Err() != nil {
		return cancelled(ctx, "look for gVisor")
	}
	if proofs.known == nil {
		proofs.known = map[gvisorProof]error{}
	}
	proofs.known[about] = err
	return err
}

// proveNoted notes a proof in the state directory, and takes one from there.
func (p *Provider) proveNoted(ctx context.Context, about gvisorProof) error {
	t, done, err := p.begin(ctx, "look for gVisor")
	if err != nil {
		return err
	}
	defer done()
	var last gvisorProof
	if b, rerr := t.base.read(fileGVisor, 64<<10); rerr != nil || json.Unmarshal(b, &last) != nil || last != about {
		err = tryGVisor(ctx, about.Path)
		if b, merr := json.Marshal(about); merr == nil && err == nil {
			_ = t.base.write(fileGVisor, b) // else it is made again
		}
	}
	return err
}

// hasGVisor reports whether there is a runsc that was proven.
func (p *Provider) hasGVisor(ctx context.Context) bool {
	path, err := findRunsc()
	return err == nil && p.proveGVisor(ctx, path) == nil
}

// gvisorSpec is what a launch needs for a guest.
type gvisorSpec struct {
	runsc     string // path on the host
	processes int64  // limit of those of commands
	probe     bool   // end when the guest is complete
}

// tryGVisor builds a guest that answers and ends.
func tryGVisor(ctx context.Context, path string) error {
	host, err := inspect()
	if err != nil {
		return err
	}
	s := &launchSpec{
		mapping: idMapping{kind: host.mapping, block: blockCount, asRoot: true}, network: netLoopback, scratchBytes: 1 << 20,
		gvisor: &gvisorSpec{runsc: path, probe: true},
	}
	var conf serveConfig
	if conf.GVisor, err = s.guestOf(conf); err != nil {
		return err
	}
	if s.config, err = json.Marshal(conf); err != nil {
		return err
	}
	p, err := launchWith(ctx, s, host)
	if err != nil {
		return err
	}
	_, err = p.process.Wait()
	return err
}

// chooseEngine decides what stands between the sandbox of o and this machine.
// gVisor that was asked for is never replaced: what is in its way is E8004,
// when it is not installed or cannot do what else was asked for, or E2010, which
// the creation finds: each guest proves that it is one.
func (p *Provider) chooseEngine(ctx context.Context, o *order) error {
	asked := o.Isolation
	if asked == "" {
		asked = p.isolation
	}
	o.engine = engineNative
	switch asked {
	case "", isolationContainer:
		return nil
	case isolationGVisor, isolationAutoStrong:
	default:
		return &errdefs.Error{Code: "E8004", Op: "create sandbox",
			Message: fmt.Sprintf("provider local has no isolation %q; it has %s and %s", clip(asked), isolationContainer, isolationGVisor)}
	}
	err := checkGuest(o)
	if err == nil {
		o.runsc, err = findRunsc()
	}
	if err == nil && asked == isolationAutoStrong {
		err = p.proveGVisor(ctx, o.runsc)
	}
	switch {
	case err == nil:
		o.engine = engineGVisor
	case ctx.Err() != nil || asked == isolationGVisor:
		return err
	default:
		o.degraded = append(o.degraded, providers.Degradation{What: "isolation", Why: "no gVisor: " + err.Error(),
			Remedy: "CGO_ENABLED=0 go install " + gvisorModule})
	}
	return nil
}

// checkGuest refuses what a guest of gVisor cannot have.
func checkGuest(o *order) error {
	for _, absent := range []struct {
		asked bool
		what  string
	}{
		{o.network == netHost, "the network of this machine"},
		{o.Snapshot != "", "snapshots"},
		{o.Image != "" || o.Root.Dir != "" || o.Root.Writable, "a choice of file trees"},
		{o.Scratch == "disk", "files on disk"},
		{o.Debug, "debuggers"},
		{o.Resources.DiskRead != 0 || o.Resources.DiskWrite != 0, "limits of disk rates"},
		{len(o.Volumes) > 0 && mappingKind() == mapSingle, "volumes of a user without newuidmap and sub-ids"},
	} {
		if absent.asked {
			return &errdefs.Error{Code: "E8004", Op: "create sandbox", Message: "isolation gvisor has not " + absent.what,
				Suggestion: "leave it out, or use isolation " + isolationContainer}
		}
	}
	if o.limits.memory < 2*gvisorMemory {
		return badOption(fmt.Sprintf("memory %d MiB is too little for isolation gvisor, whose kernel takes up to %d MiB of it", o.limits.memory>>20, gvisorMemory>>20),
			fmt.Sprintf("ask for %d MiB or more", 2*gvisorMemory>>20))
	}
	return nil
}

// gvisorDegradations is what degradations says for a guest.
func gvisorDegradations(all []providers.Degradation, allow *netPlan) []providers.Degradation {
	all = slices.DeleteFunc(all, func(d providers.Degradation) bool {
		switch d.What {
		case "landlock", limitFreezer, limitPids, "users": // the kernel of the guest decides about these
			return true
		}
		return false
	})
	if _, v6 := allow.routes(); slices.ContainsFunc(v6, func(r netip.Prefix) bool { return !r.IsSingleIP() }) {
		all = append(all, providers.Degradation{What: "network", Why: "in gVisor a range of IPv6 is reached through the proxy only", Remedy: "name single addresses, or use isolation " + isolationContainer})
	}
	return append(all,
		providers.Degradation{What: "landlock", Why: "gVisor has no Landlock; its kernel and its mounts decide what can be reached", Remedy: "use isolation " + isolationContainer},
		providers.Degradation{What: limitFreezer, Why: "in gVisor a pause stops each process with a signal, which debuggers see, and a program can have a timer wake it", Remedy: "use isolation " + isolationContainer},
	)
}

// guestAnswer is the payload of the ready of an init that has a guest.
type guestAnswer struct {
	Error string `json:"error,omitempty"` // why there is none
	Step  string `json:"step,omitempty"`  // of the guest's construction, that failed
}

// checkGuestAnswer reads the word of an init about its guest.
func (l *launcher) checkGuestAnswer(r nsinit.Reply) error {
	var a guestAnswer
	if err := json.Unmarshal(r.Ready, &a); err != nil {
		return &errdefs.Error{Code: "E2009", Op: "create sandbox", Message: "its init does not say whether its guest runs", Err: err}
	}
	if a.Error == "" {
		return nil
	}
	step := "start runsc"
	if a.Step != "" {
		step = a.Step + " in gVisor"
	}
	return &IsolationError{Cause: CauseGVisor, Step: step, Err: errors.New(a.Error),
		Remedy: "look at what runsc says, try another build of it (CGO_ENABLED=0 go install " + gvisorModule + "), or use isolation " + isolationContainer}
}
