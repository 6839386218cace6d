//go:build linux

package local

import (
	"context"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/internal/nsinit"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// launchSpec is everything that the construction of one sandbox depends on.
// launch does not keep it, and only rest changes it; the files stay the caller's, who may close
// them as soon as launch has returned.
type launchSpec struct {
	id      string      // for messages
	exe     *executable // of pid 1; nil: runtimeExecutable
	mapping idMapping
	network string   // netNone, netLoopback, netHost or netList
	allow   *netPlan // only with netList

	scratchBytes int64  // of everything that can be written but /dev/shm
	shmBytes     int64  // of /dev/shm; zero: a quarter of scratchBytes
	scratchDir   string // directory of the host that what is written lies in; empty: a tmpfs

	binds   []bind   // artifacts, below /run/sandbox
	volumes []volume // directories of the host that outlive the sandbox
	places  []place

	root   rootTree
	layers []stackLayer // files to start with; the first one lies above the others
	kept   []string     // places that the layers have, absolute

	placesOfRoot bool     // places belong to root, not to user
	build        bool     // it builds a template, see buildCaps
	expose       []string // host paths that are shown read-only at the same place

	gvisor *gvisorSpec // nil: engine native

	cgroup cgroupBirth // nil: no control group
	cradle *cradle     // ready; nil: init gets a network namespace by its clone

	listener *os.File // unix listener of the runtime
	control  *os.File // unix listener of the life-cycle protocol
	lock     *os.File // flocked; init keeps it for life
	lifeline *os.File // nil: detached. End of file: the client is gone
	handover *os.File // nil: config is complete. Else init waits there, when it is ready, for its purpose
	log      *os.File // stdout and stderr of init; nil: /dev/null
	extra    []*os.File
	config   []byte // opaque; comes out of inside.config

	// rest, unless nil, runs while init starts, and fills in listener, control, log,
	// extra, config and the block of mapping: init needs them later than its process.
	rest func() error
	// meanwhile, unless nil, runs while init builds the sandbox.
	meanwhile func(*initProc) error

	cpus       int   // for /sys/devices/system/cpu; zero: all
	nprocLimit int64 // RLIMIT_NPROC; zero: unchanged
	debug      bool  // processes inside may trace each other
	affinity   int   // number of processors init may run on; zero: all
}

// Network modes.
const (
	netNone     = "none"
	netLoopback = "loopback"
	netHost     = "host"
	netList     = "list"
)

// bind is one read-only tree or file of the host inside the sandbox.
type bind struct {
	source string // absolute; its last element must not be a link
	target string // absolute, below /run/sandbox
	exec   bool   // false: noexec

	dir bool // set by launch
}

// cgroupBirth has start clone a new init, with attr, into its control groups.
type cgroupBirth interface {
	born(attr *syscall.SysProcAttr, passing bool, start func() (*os.Process, error)) (*os.Process, error)
}

// constructed is what launch knows about the sandbox it built, in the words of
// the report.
type constructed struct {
	userns   string // "block", "subid" or "single"
	root     string // "host"
	scratch  string // scratchTmpfs or scratchSoft
	seccomp  int    // instructions
	landlock int    // ABI; zero: none
	network  string
	exe      string // "detached", "memfd" or "plain"
	warnings []string
}

// initProc is a running pid 1.
type initProc struct {
	pid       int
	startTime uint64 // field 22 of /proc/PID/stat, to tell a recycled pid
	process   *os.Process
	report    constructed
	listeners []netListener // the caller's, who closes them; only with netList
}

// inside is what the construction hands to serveMain, in pid 1.
type inside struct {
	config []byte

	listener *os.File
	control  *os.File
	lock     *os.File
	lifeline *os.File // nil: detached
	files    *os.File // directory of what the sandbox has written
	scratch  *os.File // directory of everything that is written; nil: a tmpfs
	handover *os.File // nil: the configuration is complete
	links    *os.File // links to the network of this guest come there; nil: none do
	extra    []*os.File

	// spawn starts a program from the one thread that has an empty bounding
	// set and the Landlock domain of commands. It is a process.Spawner.
	spawn func(name string, argv []string, attr *os.ProcAttr) (*os.Process, error)

	// onSpawner has f run on that thread before it starts anything: to move it to the
	// commands' control group, say. Where f fails the sandbox ends.
	onSpawner func(f func() error)

	// settle makes that thread, which otherwise the first start does, and lets the
	// runtime use all processors: until the sandbox answers one is enough, and cheaper.
	settle func()

	canSwitchUser bool // false: only user runs commands

	// ready tells the client that the runtime is listening, with a payload that
	// no client looks at. It may be called once.
	ready func(payload []byte) error
}

// launch builds a sandbox and returns when its init has called ready. On an
// error nothing is left: no process, no mount.
func launch(ctx context.Context, s *launchSpec) (*initProc, error) {
	host, err := inspect()
	if err != nil {
		return nil, err
	}
	return launchWith(ctx, s, host)
}

func launchWith(ctx context.Context, s *launchSpec, host *probeResult) (*initProc, error) {
	exe, err := s.exe, error(nil)
	if exe == nil {
		exe, err = runtimeExecutable()
	}
	if err != nil {
		return nil, err
	}
	if s.binds, err = statBinds(s.binds); err != nil {
		return nil, err
	}
	exposed, err := exposedView(s.expose, stateTree(s.lock), s.root.foreign())
	if err != nil {
		return nil, err
	}
	l := &launcher{s: s, host: host, exe: exe, exposed: exposed}
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, errStartTimeout)
	defer cancel()
	return l.start(ctx)
}

// startTimeout bounds the time from clone to ready.
const startTimeout = 20 * time.Second

var errStartTimeout = errdefs.New("E2009", "create sandbox", "its init did not become ready in time")

// statBinds looks at the sources of binds and returns a copy that knows which
// are directories.
func statBinds(binds []bind) ([]bind, error) {
	out := make([]bind, len(binds))
	for i, b := range binds {
		if !strings.HasPrefix(b.target, artifactRoot+"/") || path.Clean(b.target) != b.target {
			return nil, errdefs.New("E2011", "create sandbox", "bind target "+b.target+" is not below "+artifactRoot)
		}
		fi, err := os.Lstat(b.source)
		if err != nil {
			return nil, errdefs.Wrap("E2011", "create sandbox", "bind source", err)
		}
		if !fi.IsDir() && !fi.Mode().IsRegular() {
			return nil, errdefs.New("E2011", "create sandbox", "bind source "+b.source+" is neither a directory nor a file")
		}
		b.dir = fi.IsDir()
		out[i] = b
	}
	return out, nil
}

// A launcher makes one launch.
type launcher struct {
	s    *launchSpec
	host *probeResult
	exe  *executable

	exposed []viewEntry

	files []*os.File // of the child, by descriptor; nil: /dev/null
	prog  nsinit.Program
	trees []*os.File          // sent with the program, and after them:
	late  []*os.File          // not the launcher's to close
	ids   map[owners]*os.File // user namespaces; made when one is needed
}

// Descriptors of the child that are always the same.
const (
	childControl = 3
	childExe     = 4
)

// give decides what the child starts with.
func (l *launcher) give(control *os.File) {
	s := l.s
	l.files = []*os.File{nil, nil, nil, childControl: control, childExe: l.exe.file}
	l.name(fdLock, s.lock)
	l.name(fdLifeline, s.lifeline)
	l.name(fdHandover, s.handover)
}

// name passes f, unless nil, under a name.
func (l *launcher) name(name string, f *os.File) {
	if f == nil {
		return
	}
	l.prog.Files = append(l.prog.Files, nsinit.File{Name: name, FD: len(l.files)})
	l.files = append(l.files, f)
}

// compile writes the program, when all that it depends on is there.
func (l *launcher) compile() error {
	s := l.s
	if s.rest != nil {
		if err := s.rest(); err != nil {
			return err
		}
	}
	p, err := plan(s, l.host, l.exposed, l.tree)
	if err != nil {
		return err
	}
	l.prog.Calls = p.calls
	l.prog.Files = append(l.prog.Files, p.opened...)
	l.send(fdListener, s.listener)
	l.send(fdControl, s.control)
	for i, f := range s.extra {
		l.send(fdExtra+strconv.Itoa(i), f)
	}
	l.logTo(s.log)
	l.prog.Config = s.config
	return nil
}

// logTo makes f, unless nil, where init writes messages from its first call on.
func (l *launcher) logTo(f *os.File) {
	if f == nil {
		return
	}
	p := newProgram()
	fd := nsinit.Sent(len(l.trees) + len(l.late))
	l.late = append(l.late, f)
	for to := 1; to <= 2; to++ {
		p.add("open the log", unix.SYS_DUP3, fd, nsinit.Int(to), nsinit.Int(0))
	}
	p.close(fd)
	l.prog.Calls = append(p.calls, l.prog.Calls...)
}

// send passes f, unless nil, under a name together with the program. All trees are
// known by now.
func (l *launcher) send(name string, f *os.File) {
	if f == nil {
		return
	}
	l.prog.Files = append(l.prog.Files, nsinit.File{Name: name, FD: nsinit.SentFile(len(l.trees) + len(l.late))})
	l.late = append(l.late, f)
}

// tree copies a tree of the host, when this process may. Init itself could not
// reach a tree below a directory that only root can enter.
func (l *launcher) tree(source string, attr uint64, whose owners) (int, bool, error) {
	var f *os.File
	var err error
	switch {
	case whose != ownersHost:
		if f, err = l.ownedTree(source, attr, whose); err != nil {
			return 0, false, err
		}
	case !l.host.clientTrees:
		return 0, false, nil
	default:
		if f, err = detachedTree(source, attr); err != nil {
			return 0, false, errdefs.Wrap("E2000", "create sandbox", "copy the mount of "+source, err)
		}
	}
	l.trees = append(l.trees, f)
	return len(l.trees) - 1, true, nil
}

func (l *launcher) closeTrees() {
	for _, f := range l.trees {
		f.Close()
	}
	for _, f := range l.ids {
		f.Close()
	}
}

func (l *launcher) report() constructed {
	return constructed{
		userns: string(l.s.mapping.kind), root: l.s.root.String(), scratch: l.s.scratchKind(),
		seccomp: seccompInstructions(l.s.debug), landlock: l.host.landlock,
		network: l.s.network, exe: l.exe.how, warnings: socketWarnings(l.exposed),
	}
}
