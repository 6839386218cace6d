//go:build linux

package local

import (
	"encoding/json"
	"os"
	"runtime"
	"strconv"

	"github.com/agent-sandbox/sandbox-go/internal/nsinit"
)

// In pid 1 of a sandbox this never returns: the server runs here, before the
// initialisers of everything that imports the client, and main never runs. The
// same holds for a process that works on trees of files.
func init() {
	if nsinit.Active() {
		if dir := inherited(fdWork); dir != nil {
			workMain(dir)
		}
		serveMain(takeOver())
	}
}

// Names of the descriptors that init is given; extras are numbered.
const (
	fdListener = "listener"
	fdControl  = "control"
	fdLock     = "lock"
	fdLifeline = "lifeline"
	fdHandover = "handover"
	fdLinks    = "links"
	fdExtra    = "extra"
	fdFiles    = "files" // what the sandbox has written
	fdScratch  = "scratch"
)

// takeOver turns what the construction left into what serveMain needs.
func takeOver() *inside {
	in := &inside{
		config:   nsinit.Config(),
		listener: inherited(fdListener),
		control:  inherited(fdControl),
		lock:     inherited(fdLock),
		lifeline: inherited(fdLifeline),
		files:    inherited(fdFiles),
		scratch:  inherited(fdScratch),
		handover: inherited(fdHandover),
		links:    inherited(fdLinks),
		ready:    nsinit.Ready,
	}
	for i := 0; ; i++ {
		f := inherited(fdExtra + strconv.Itoa(i))
		if f == nil {
			break
		}
		in.extra = append(in.extra, f)
	}
	s := newSpawner()
	s.before(func() error { return restrictSpawner(in.config) })
	s.before(func() error { return setThreadName(spawnComm) }) // by which the guard knows its children
	in.spawn, in.onSpawner = s.spawn, s.before
	in.settle = func() {
		s.start()
		runtime.SetDefaultGOMAXPROCS()
	}
	in.canSwitchUser = os.Geteuid() == 0
	return in
}

// restrictSpawner restricts the thread that starts commands, as the serveConfig
// says. What is malformed is noticed by serve.
func restrictSpawner(config []byte) error {
	var c struct {
		Writable []string         `json:"writable"`
		GVisor   *json.RawMessage `json:"gvisor"`
	}
	_ = json.Unmarshal(config, &c)
	if c.GVisor != nil {
		return nil // it starts runsc, which has to mount
	}
	return restrictThread(c.Writable)
}

func inherited(name string) *os.File {
	fd := nsinit.FD(name)
	if fd < 0 {
		return nil
	}
	return os.NewFile(uintptr(fd), name)
}
