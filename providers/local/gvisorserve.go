//go:build linux

package local

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/internal/nsinit"
	"github.com/agent-sandbox/sandbox-go/runtime/process"
)

// gvisorConfig is what the init of a sandbox of engine gvisor needs to start its
// guest.
type gvisorConfig struct {
	Program  []byte       `json:"program"` // of pid 1 of the guest, as it is sent
	Mounts   []guestMount `json:"mounts,omitempty"`
	FileSize int64        `json:"file_size,omitempty"` // limit of one file, bytes; zero: none
	Probe    bool         `json:"probe,omitempty"`     // end when the guest is complete
	Links    bool         `json:"links,omitempty"`     // it takes links to its network
}

// guestOf returns what init starts the guest of s with, in which the runtime
// serves with conf.
func (s *launchSpec) guestOf(conf serveConfig) (*gvisorConfig, error) {
	conf.Inside, conf.Freezer, conf.Groups = true, bySignals, guestGroupKinds
	if conf.Memory > 0 {
		// The guest's kernel holds the memory of all its processes, so this
		// machine's could only end all of them. The one that takes too much has to
		// be found inside.
		conf.SampleMemory = conf.Memory - gvisorMemory
	}
	if s.allow != nil {
		conf.Listeners = nil
		for _, l := range s.allow.guestListeners() {
			conf.Listeners = append(conf.Listeners, l.name)
		}
	}
	prog := planGuest(s)
	prog.Probe = s.gvisor.probe
	var err error
	if prog.Config, err = json.Marshal(conf); err != nil {
		return nil, err
	}
	g := &gvisorConfig{Program: prog.Encode(), Mounts: s.guestMountNames(), Probe: s.gvisor.probe, Links: s.allow != nil}
	if !s.writesVolumes() {
		g.FileSize = s.scratchBytes + 1<<20 // as planner.limits
	}
	return g, nil
}

// superviseGuest is serveInside for engine gvisor: the runtime serves in the
// guest, and what must hold whatever goes on in there is done here: the lock, the
// end of the lifetime, the lifeline, and who may connect.
func superviseGuest(in *inside, conf serveConfig, log *slog.Logger) error {
	groups, err := fileGroups(in, conf)
	if err != nil {
		return err
	}
	life, err := newLife(conf.Deadline, in.extra[extraNote], func(why string) {
		log.Info("sandbox ends", "why", why)
		os.Exit(0) // the kernel kills everything else in the pid namespace
	})
	if err != nil {
		return fmt.Errorf("start the clock: %w", err)
	}
	go life.run()
	go life.follow(in.lifeline, conf.Detached)

	g, err := startGuest(conf.GVisor, groupSpawner(in, groups))
	if err != nil {
		return errors.Join(err, refuseGuest(in, err))
	}
	owner, err := ownerOf(in.lock)
	if err != nil {
		return err
	}
	control, err := ownedListener(in.control, owner)
	if err != nil {
		return fmt.Errorf("control socket: %w", err)
	}
	link := &guestLink{requests: g.requests, token: conf.Token}
	go serveControl(control, &controller{token: conf.Token, life: life, pause: link, usage: link, links: g.links, log: log})
	l, err := ownedListener(in.listener, owner)
	if err != nil {
		return fmt.Errorf("runtime socket: %w", err)
	}
	go forward(l, g.listener)
	if err := in.ready(answerOf(guestAnswer{})); err != nil {
		return err
	}
	in.settle()
	err = g.wait()
	if conf.SampleMemory == 0 { // a control group limits memory
		if kills := memoryKills(groups, conf, log); kills != nil && kills() > 0 {
			life.finish(endMemory)
		}
	}
	// As in serveInside.
	runtime.KeepAlive(in)
	return err
}

// probeGuest is superviseGuest for a guest that only shows that it can be.
func probeGuest(in *inside, conf serveConfig) error {
	time.AfterFunc(startTimeout, func() { os.Exit(1) }) // the client may be gone
	_, err := startGuest(conf.GVisor, in.spawn)
	if err != nil {
		return errors.Join(err, refuseGuest(in, err))
	}
	return in.ready(answerOf(guestAnswer{}))
}

func refuseGuest(in *inside, err error) error {
	a := guestAnswer{Error: clipTail(err.Error(), 2<<10)}
	var s *stepError
	if errors.As(err, &s) {
		a.Step = s.step
	}
	return in.ready(answerOf(a))
}

func answerOf(a guestAnswer) []byte {
	b, _ := json.Marshal(a) // two strings
	return b
}

func clipTail(s string, n int) string {
	if len(s) > n {
		return "…" + s[len(s)-n:]
	}
	return s
}

// stepError says which call of the guest's construction failed.
type stepError struct {
	step  string
	errno syscall.Errno
}

func (e *stepError) Error() string { return e.step + ": " + e.errno.Error() }
func (e *stepError) Unwrap() error { return e.errno }

// A guest is what runsc runs.
type guest struct {
	runsc    *os.Process
	said     *tail         // the last words of runsc and of pid 1 of the guest
	copied   chan struct{} // closed when both have closed their output
	listener *net.UnixConn // takes connections to the runtime
	requests *net.UnixConn // takes connections of the life-cycle protocol
	links    *net.UnixConn // takes links to the network; nil: there is no list
}

// startGuest starts runsc and returns when pid 1 of the guest is complete.
func startGuest(conf *gvisorConfig, spawn process.Spawner) (_ *guest, err error) {
	if err := writeBundle(gvisorDir+"/bundle", conf); err != nil {
		return nil, err
	}
	g := &guest{said: &tail{w: &boundedLog{f: os.Stderr, limit: 1 << 20}}, copied: make(chan struct{})}
	var files filePile
	defer files.close()
	var control *net.UnixConn
	ends := []**net.UnixConn{&control, &g.listener, &g.requests}
	if conf.Links {
		ends = append(ends, &g.links)
	}
	for _, to := range ends {
		ours, theirs, err := controlPair()
		if err != nil {
			return nil, err
		}
		files = append(files, theirs)
		*to = ours
	}
	defer control.Close()
	exe, err := os.Open("/proc/self/exe")
	if err != nil {
		return nil, fmt.Errorf("open the executable of pid 1: %w", err)
	}
	files = append(files, exe)
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	g.runsc, err = spawn(gvisorRunsc, runscArgs(len(ends)), &os.ProcAttr{
		Dir: "/", Env: []string{"PATH=/", "HOME=" + gvisorDir},
		Files: append([]*os.File{null, w, w}, files...), // from 3 up: see runscArgs
	})
	w.Close()
	if err != nil {
		r.Close()
		return nil, fmt.Errorf("start runsc: %w", err)
	}
	files.close()
	go func() {
		defer close(g.copied)
		defer r.Close()
		_, _ = io.Copy(g.said, r)
	}()
	if err := g.construct(control, conf.Program); err != nil {
		return nil, err
	}
	return g, nil
}

// filePile is closed once.
type filePile []*os.File

func (p *filePile) close() {
	for _, f := range *p {
		f.Close()
	}
	*p = nil
}

// guestID is the name of the guest with runsc, which has no other.
const guestID = "guest"

// runscArgs are the arguments of runsc, which finds the ends of so many sockets
// from 3 up and then the executable of pid 1.
func runscArgs(sockets int) []string {
	args := []string{
		"runsc", "--root=" + gvisorDir + "/root", "--platform=" + gvisorPlatform,
		"--network=none", "--overlay2=none", "--ignore-cgroups", "--in-sandbox-cgroup=v2", "--host-settings=ignore", "--host-uds=none",
		"run", "--bundle=" + gvisorDir + "/bundle",
	}
	fd := 3
	for ; fd < 3+sockets; fd++ {
		args = append(args, fmt.Sprintf("--pass-fd=%d:%d", fd, fd))
	}
	return append(args, fmt.Sprintf("--exec-fd=%d", fd), guestID)
}

// construct sends pid 1 of the guest its program and waits for its word.
func (g *guest) construct(control *net.UnixConn, program []byte) error {
	if err := control.SetDeadline(time.Now().Add(startTimeout)); err != nil {
		return err
	}
	_, err := control.Write(program)
	var r nsinit.Reply
	if err == nil {
		r, _, err = readReply(control)
	}
	if err != nil {
		_ = g.runsc.Kill()
		what := "runsc does not answer"
		if st, werr := g.runsc.Wait(); werr == nil {
			what = "runsc ended (" + st.String() + ")"
		}
		select {
		case <-g.copied:
		case <-time.After(time.Second): // somebody else holds its output
		}
		if said := g.said.String(); said != "" {
			what += ", after saying: " + said
		}
		return fmt.Errorf("%s: %w", what, err)
	}
	if r.Step != "" {
		return &stepError{r.Step, r.Errno}
	}
	return nil
}

// wait waits for the end of the guest, which is always an error.
func (g *guest) wait() error {
	st, err := g.runsc.Wait()
	if err == nil {
		err = fmt.Errorf("the guest ended: %v", st)
	}
	return err
}

// tail copies and remembers the last 1 KiB.
type tail struct {
	w io.Writer

	mu   sync.Mutex
	last []byte
}

// Write remembers p also when it cannot be copied.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	t.last = append(t.last, p...)
	if n := len(t.last) - 1<<10; n > 0 {
		t.last = append(t.last[:0], t.last[n:]...)
	}
	t.mu.Unlock()
	_, _ = t.w.Write(p)
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.last))
}

// forward hands connections that l accepts to the other end of to.
func forward(l net.Listener, to *net.UnixConn) {
	for {
		c, err := l.Accept()
		if err != nil {
			if pauseUnlessClosed(err) {
				continue
			}
			return
		}
		_ = handOver(c.(*net.UnixConn), to) // the guest is ending: the caller sees the connection closed
		c.Close()
	}
}

func handOver(c *net.UnixConn, to *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	cerr := raw.Control(func(fd uintptr) {
		_, _, err = to.WriteMsgUnix([]byte{0}, unix.UnixRights(int(fd)), nil)
	})
	return errors.Join(cerr, err)
}

// guestLink carries out in the guest what its init is asked for.
type guestLink struct {
	requests *net.UnixConn
	token    string
	frozen   atomic.Bool
}

func (g *guestLink) paused() bool { return g.frozen.Load() }

func (g *guestLink) pause() (changed bool, err error) {
	a, err := g.ask(controlRequest{Op: opPause})
	if err != nil {
		return false, err
	}
	g.frozen.Store(true)
	return a.Error == "", nil
}

func (g *guestLink) resume() error {
	if _, err := g.ask(controlRequest{Op: opResume}); err != nil {
		return err
	}
	g.frozen.Store(false)
	return nil
}

// during is for keeping the files, which canKeep refuses: they are not here.
func (g *guestLink) during(func() error) error {
	return errors.New("the files of a guest cannot be reached")
}

// take is nil when the guest does not answer.
func (g *guestLink) take() *insideUsage {
	a, err := g.ask(controlRequest{Op: opUsage})
	if err != nil {
		return nil
	}
	return a.Usage
}

// ask sends one request to the guest. refusedPause is no error.
func (g *guestLink) ask(req controlRequest) (a controlAnswer, err error) {
	req.Token = g.token
	ours, theirs, err := controlPair()
	if err != nil {
		return a, err
	}
	defer ours.Close()
	_, _, err = g.requests.WriteMsgUnix([]byte{0}, unix.UnixRights(int(theirs.Fd())), nil)
	theirs.Close()
	if err == nil {
		err = ours.SetDeadline(time.Now().Add(pauseLimit + answerLimit))
	}
	if err != nil {
		return a, err
	}
	line, err := json.Marshal(req)
	if err != nil {
		return a, err
	}
	if _, err := ours.Write(append(line, '\n')); err != nil {
		return a, err
	}
	reply, err := bufio.NewReader(io.LimitReader(ours, controlLine)).ReadBytes('\n')
	if err != nil {
		return a, fmt.Errorf("the guest does not answer: %w", err)
	}
	if err := json.Unmarshal(bytes.TrimSpace(reply), &a); err != nil {
		return a, fmt.Errorf("answer of the guest: %w", err)
	}
	if a.Error != "" && a.Error != refusedPause {
		return a, fmt.Errorf("the guest refuses: %s %s", a.Error, clip(a.Detail))
	}
	return a, nil
}
