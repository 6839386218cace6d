//go:build linux

package local

import (
	"context"
	"os"
	"time"
)

// launchSpec is everything that the construction of one sandbox depends on.
// launch does not keep or change it; the files stay the caller's, who may close
// them as soon as launch has returned.
type launchSpec struct {
	id       string
	hostname string // empty: "sandbox"
	mapping  idMapping
	network  string // netNone, netLoopback or netHost

	scratchBytes  int64 // of /home/user, /tmp and /var/tmp together
	scratchInodes int64 // zero: one per 16 KiB, at least 8192
	shmBytes      int64 // zero: a quarter of scratchBytes

	binds  []bind   // artifacts, below /run/sandbox
	expose []string // host paths that are shown read-only at the same place

	cgroup cgroupJoin // nil: no control group

	listener *os.File // unix listener of the runtime
	control  *os.File // unix listener of the life-cycle protocol
	lock     *os.File // flocked; init keeps it for life
	lifeline *os.File // nil: detached. End of file: the client is gone
	log      *os.File // stdout and stderr of init; nil: /dev/null
	extra    []*os.File
	config   []byte // opaque; comes out of inside.config

	cpus       int   // for /sys/devices/system/cpu; zero: all
	nprocLimit int64 // RLIMIT_NPROC; zero: unchanged
	fsizeLimit int64 // RLIMIT_FSIZE, bytes; zero: unchanged
	affinity   int   // number of processors init may run on; zero: all

	startTimeout time.Duration // from clone to ready; zero: 20 s
}

// Network modes.
const (
	netNone     = "none"
	netLoopback = "loopback"
	netHost     = "host"
)

// bind is one read-only tree or file of the host inside the sandbox.
type bind struct {
	source string // absolute; its last element must not be a link
	target string // absolute, below /run/sandbox
	exec   bool   // false: noexec
}

// cgroupJoin moves a new init into its control groups. It is called between
// clone and release, when nothing of the sandbox has run yet.
type cgroupJoin interface {
	join(pid int) error
}

// constructed is what launch knows about the sandbox it built, in the words of
// the report.
type constructed struct {
	userns         string // "block", "subid" or "single"
	root           string // "host"
	scratch        string // "tmpfs"
	seccomp        int    // instructions
	landlock       int    // ABI; zero: none
	landlockScopes bool   // signals and abstract sockets are scoped
	network        string
	exe            string // "detached", "memfd" or "plain"
	mounts         string // "mount_setattr" or "remount"
	warnings       []string
}

// initProc is a running pid 1.
type initProc struct {
	pid       int
	startTime uint64 // field 22 of /proc/PID/stat, to tell a recycled pid
	process   *os.Process
	report    constructed
	ready     []byte // what init said when it became ready
}

// inside is what the construction hands to serveMain, in pid 1.
type inside struct {
	config []byte

	listener *os.File
	control  *os.File
	lock     *os.File
	lifeline *os.File // nil: detached
	extra    []*os.File

	// spawn starts a program from the one thread that has an empty bounding
	// set and the Landlock domain of commands. It is a process.Spawner.
	spawn func(name string, argv []string, attr *os.ProcAttr) (*os.Process, error)

	canSwitchUser bool // false: only user runs commands
	landlock      int

	// ready tells the client that the runtime is listening; payload comes out
	// of initProc.ready. It may be called once.
	ready func(payload []byte) error
}

// launch builds a sandbox and returns when its init has called ready. On an
// error nothing is left: no process, no mount.
func launch(ctx context.Context, s *launchSpec) (*initProc, error) {
	return nil, &IsolationError{}
}

// probeResult is what this machine can do. It is measured once per process.
type probeResult struct {
	mapping        mapKind
	landlock       int  // ABI; zero: none
	mountSetattr   bool // false: read-only binds take the slow path
	seccompInsns   int
	exe            string
	blocksPerRange int
}

// probe really clones a child and builds what every sandbox needs. It runs
// once per process; later calls return the first answer.
func probe(ctx context.Context) (*probeResult, error) { return &probeResult{}, nil }
