//go:build linux

package local

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"net"
	"os"
	"runtime"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/runtime/process"
	"github.com/agent-sandbox/sandbox-go/runtime/server"
	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// serveConfig is what init needs to know to serve. It travels over the socket
// of the construction and is never in a file, argument or environment.
type serveConfig struct {
	ID           string          `json:"id"`
	Token        string          `json:"token"`
	SampleMemory int64           `json:"sample_memory,omitempty"` // bytes; zero: a control group limits memory
	CPUMilli     int64           `json:"cpu_milli,omitempty"`     // limit, thousandths of a processor; zero: none
	Memory       int64           `json:"memory,omitempty"`        // limit, bytes; zero: none
	Groups       []string        `json:"groups,omitempty"`        // kinds of the files of control groups
	Writable     []string        `json:"writable,omitempty"`      // paths beside those of every sandbox
	Freezer      string          `json:"freezer"`                 // as in the report
	Disk         int64           `json:"disk,omitempty"`          // bytes that may be written to disk; zero: to memory, which has a limit of its own
	Layered      bool            `json:"layered,omitempty"`       // what is written lies above layers
	Woken        bool            `json:"woken,omitempty"`         // it had hibernated
	GVisor       *gvisorConfig   `json:"gvisor,omitempty"`        // nil: commands run here
	Inside       bool            `json:"inside,omitempty"`        // this is the guest of such an init
	Template     json.RawMessage `json:"template,omitempty"`      // that was built for it: a model.Template, which takes long to read
	Listeners    []string        `json:"listeners,omitempty"`     // of the network, that init keeps
	Threads      int             `json:"threads,omitempty"`       // that init keeps for itself
	purpose
}

// purpose is the part of the configuration that a sandbox of the pool learns
// when it is given out. Nothing of it shapes the construction.
type purpose struct {
	Env      map[string]string `json:"env,omitempty"`
	User     string            `json:"user"`
	WorkDir  string            `json:"work_dir,omitempty"`
	Detached bool              `json:"detached"`
	Deadline int64             `json:"deadline"`          // CLOCK_BOOTTIME, ns
	Request  json.RawMessage   `json:"request,omitempty"` // of the creation, to start the sandbox once more
}

// Positions in launchSpec.extra: the note of the end, the lease of the block of
// ids, then files of control groups, their kinds in serveConfig.Groups.
const (
	extraNote = iota
	extraLease
	extraGroups
)

// preparePause keeps what few need out of the way of the first command.
const preparePause = 100 * time.Millisecond

// commandOOMScore makes the kernel kill a command before init.
const commandOOMScore = 500

// serveMain is the rest of the life of init: it serves until the sandbox ends
// and never returns. The construction is complete; what runs here has no more
// rights than the sandbox gives.
func serveMain(in *inside) {
	log := slog.New(slog.NewTextHandler(&boundedLog{f: os.Stderr, limit: 1 << 20}, nil))
	if err := serveInside(in, log); err != nil {
		log.Error("init ends", "err", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func serveInside(in *inside, log *slog.Logger) error {
	var conf serveConfig
	if err := json.Unmarshal(in.config, &conf); err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	switch {
	case conf.Inside:
		return serveGuest(in, conf, log)
	case conf.GVisor != nil && conf.GVisor.Probe:
		return probeGuest(in, conf)
	case conf.GVisor != nil:
		return superviseGuest(in, conf, log)
	}
	groups, err := fileGroups(in, conf)
	if err != nil {
		return err
	}
	frost, err := newFreezer(conf.Freezer, groups)
	if err != nil {
		return err
	}
	pause := &pauser{freezer: frost}
	watch := newScratchWatch(in.scratch, conf.Disk, pause, log)
	opts, err := runtimeOptions(in, conf, pause, groupSpawner(in, groups), groups, watch, log)
	if err != nil {
		return err
	}
	owner, err := ownerOf(in.lock)
	if err != nil {
		return err
	}
	control, err := ownedListener(in.control, owner)
	if err != nil {
		return fmt.Errorf("control socket: %w", err)
	}
	l, err := ownedListener(in.listener, owner)
	if err != nil {
		return fmt.Errorf("runtime socket: %w", err)
	}
	// What does not need the purpose is made before it is there, see awaitPurpose.
	life, err := newLife(unknownEnd, in.extra[extraNote], func(why string) {
		log.Info("sandbox ends", "why", why)
		frost.end()
		os.Exit(0) // the kernel kills everything else in the pid namespace
	})
	if err != nil {
		return fmt.Errorf("start the clock: %w", err)
	}
	if err := guardInit(in, life); err != nil {
		return fmt.Errorf("start the guard: %w", err)
	}
	var srv *server.Server
	if in.handover != nil {
		srv, err = in.awaitPurpose(&conf, opts)
	} else {
		srv, err = server.New(opts)
	}
	if err != nil {
		return err
	}
	if err := life.begin(conf.Deadline); err != nil {
		return fmt.Errorf("start the clock: %w", err)
	}
	if !conf.Detached { // its end means nothing once the client has let go
		if err := life.guard.follow(in.lifeline); err != nil {
			return fmt.Errorf("start the guard: %w", err)
		}
	}
	life.woken = conf.Woken
	go life.run()
	go life.follow(in.lifeline, conf.Detached)

	go watch.run()
	go serveControl(control, &controller{
		token: conf.Token, life: life, pause: pause, usage: &usageMeter{watch: watch}, log: log,
		files: in.files, layered: conf.Layered, request: conf.Request, listeners: conf.Listeners,
	})

	if in.handover == nil {
		if err := in.ready(nil); err != nil {
			return err
		}
		go func() { // beside the first answer
			in.settle()
			keepThreads(conf.Threads)
			srv.Prepare(preparePause)
		}()
	}
	err = srv.Serve(l)
	// A file that is collected is closed: the lock and the lease, which say that
	// this sandbox lives, have to be held until the end.
	runtime.KeepAlive(in)
	return err
}

// fileGroups sorts the files of control groups that init was given by their kind.
func fileGroups(in *inside, conf serveConfig) (map[string][]*os.File, error) {
	if want := extraGroups + len(conf.Groups); len(in.extra) != want {
		return nil, fmt.Errorf("%d descriptors were passed, want %d", len(in.extra), want)
	}
	groups := map[string][]*os.File{}
	for i, kind := range conf.Groups {
		groups[kind] = append(groups[kind], in.extra[extraGroups+i])
	}
	return groups, nil
}

// runtimeOptions is how the runtime runs as pid 1.
func runtimeOptions(in *inside, conf serveConfig, pause *pauser, spawn process.Spawner, groups map[string][]*os.File, watch *scratchWatch, log *slog.Logger) (*server.Options, error) {
	var template *model.Template
	if conf.Template != nil {
		if err := json.Unmarshal(conf.Template, &template); err != nil {
			return nil, fmt.Errorf("read the template: %w", err)
		}
	}
	return &server.Options{
		Token:           conf.Token,
		Env:             sandboxEnv(conf),
		DefaultUser:     conf.User,
		DefaultWorkDir:  conf.WorkDir,
		Spawner:         pause.spawner(spawn),
		Paused:          pause.refuses,
		Pid1:            true,
		CanSwitchUser:   in.canSwitchUser,
		OOMKills:        memoryKills(groups, conf, log),
		SpaceKills:      watch.counter(),
		Room:            watch.asker(),
		CommandOOMScore: commandOOMScore,
		Usage:           insideMetrics(conf, &usageMeter{watch: watch}),
		Template:        template,
		Logger:          log,
	}, nil
}

// sandboxEnv adds the variables that mark the inside of a sandbox.
func sandboxEnv(conf serveConfig) map[string]string {
	env := maps.Clone(conf.Env)
	if env == nil {
		env = map[string]string{}
	}
	env["SANDBOX_ID"] = conf.ID
	env["E2B_SANDBOX"] = "true"
	env["E2B_SANDBOX_ID"] = conf.ID
	return env
}

// ownerOf is the user of the client as seen from here. It may not be mapped;
// then it is the same number for all such users, and the mode of the
// directory alone tells them apart.
func ownerOf(f *os.File) (uint32, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return 0, fmt.Errorf("owner of the sandbox: %w", err)
	}
	return st.Uid, nil
}

// ownedListener turns the file of a unix listener into one that accepts only
// connections of owner.
func ownedListener(f *os.File, owner uint32) (net.Listener, error) {
	l, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	f.Close()
	u, ok := l.(*net.UnixListener)
	if !ok {
		l.Close()
		return nil, fmt.Errorf("a %T was passed", l)
	}
	u.SetUnlinkOnClose(false) // the path is one of the host
	return &peerListener{u, owner}, nil
}

type peerListener struct {
	*net.UnixListener
	owner uint32
}

// Accept drops connections of other users.
func (l *peerListener) Accept() (net.Conn, error) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		if uid, err := peerUser(c); err == nil && uid == l.owner {
			return c, nil
		}
		c.Close()
	}
}

func peerUser(c *net.UnixConn) (uint32, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var cerr error
	if err := raw.Control(func(fd uintptr) {
		cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return 0, err
	}
	if cerr != nil {
		return 0, cerr
	}
	return cred.Uid, nil
}

// groupSpawner makes commands start in, or move to, their control groups.
func groupSpawner(in *inside, groups map[string][]*os.File) process.Spawner {
	in.onSpawner(func() error {
		for _, f := range groups[groupTask] {
			if err := writePid(f, 0); err != nil {
				return fmt.Errorf("move it into its control group: %w", err)
			}
		}
		return nil
	})
	work, rest := groups[groupWork], groups[groupInit]
	if len(work) == 0 {
		return func(name string, argv []string, attr *os.ProcAttr) (*os.Process, error) {
			return in.spawn(name, argv, attr) // what it is now: the guard may have come later
		}
	}
	return func(name string, argv []string, attr *os.ProcAttr) (*os.Process, error) {
		p, err := in.spawn(name, argv, attr)
		if err != nil {
			return nil, err
		}
		for i, f := range work {
			if err := sweep(f, rest[i], p.Pid); err != nil {
				_ = p.Kill()
				return nil, errors.Join(fmt.Errorf("move a command into its control group: %w", err), wait(p))
			}
		}
		return p, nil
	}
}

func wait(p *os.Process) error {
	_, err := p.Wait()
	return err
}

// sweep moves the process and all others that are still in the group of init.
func sweep(work, rest *os.File, pid int) error {
	if err := writePid(work, pid); err != nil && err != unix.ESRCH {
		return err
	}
	b := make([]byte, 64<<10)
	for range 8 { // more passes only while something forks faster than we move
		n, err := rest.ReadAt(b, 0)
		if err != nil && err != io.EOF {
			return err
		}
		left := 0
		for line := range bytes.Lines(b[:n]) {
			pid, err := strconv.Atoi(string(bytes.TrimSpace(line)))
			if err != nil || pid <= 1 { // 0: not of this pid namespace
				continue
			}
			left++
			if err := writePid(work, pid); err != nil && err != unix.ESRCH {
				return err
			}
		}
		if left == 0 {
			break
		}
	}
	return nil
}

// writePid writes a process or thread to a file of a control group; zero means
// the calling one.
func writePid(f *os.File, pid int) error {
	_, err := retryEINTR(func() (int, error) {
		return unix.Write(int(f.Fd()), strconv.AppendInt(nil, int64(pid), 10))
	})
	return err
}

// memoryKills is the count of processes killed at the memory limit, however
// the limit is enforced.
func memoryKills(groups map[string][]*os.File, conf serveConfig, log *slog.Logger) func() uint64 {
	if conf.SampleMemory > 0 {
		s := &sampler{limit: conf.SampleMemory, onDisk: conf.Disk > 0, log: log}
		go s.run()
		return s.kills.Load
	}
	if len(groups[groupKills]) == 0 {
		return nil
	}
	f := groups[groupKills][0]
	var last atomic.Uint64
	return func() uint64 {
		b := make([]byte, 4<<10)
		n, err := f.ReadAt(b, 0)
		if err == nil || err == io.EOF {
			if v := fieldOf(b[:n], "oom_kill"); v != math.MaxInt64 {
				last.Store(uint64(v))
			}
		}
		return last.Load()
	}
}

// boundedLog empties its file when it is full: what init says last matters.
type boundedLog struct {
	f     *os.File // opened for appending
	limit int64
	n     atomic.Int64
}

// Write appends p to the file.
func (l *boundedLog) Write(p []byte) (int, error) {
	if l.n.Add(int64(len(p))) > l.limit {
		l.n.Store(int64(len(p)))
		_ = l.f.Truncate(0) // not a file: nothing fills up
	}
	return l.f.Write(p)
}
