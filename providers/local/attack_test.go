//go:build linux

package local

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/internal/envd"
	"github.com/agent-sandbox/sandbox-go/internal/nsinit"
	"github.com/agent-sandbox/sandbox-go/internal/raceenv"
	"github.com/agent-sandbox/sandbox-go/providers"
)

// ownArtifact is the test program as an artifact.
func ownArtifact(t testing.TB) providers.Artifact {
	t.Helper()
	a, err := selfArtifact()
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func selfArtifact() (providers.Artifact, error) {
	f, err := os.Open("/proc/self/exe")
	if err != nil {
		return providers.Artifact{}, err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return providers.Artifact{}, err
	}
	path, err := os.Executable()
	return providers.Artifact{Digest: hex.EncodeToString(h.Sum(nil)), Path: path}, err
}

// A target is a sandbox that attacks run in.
type target struct {
	t       *testing.T
	p       *Provider
	sb      *providers.Sandbox
	program string
	network string

	function bool // attacks get what the process of functions has: a channel
	guest    bool // of gVisor
}

func newTarget(t *testing.T, network string) *target {
	t.Helper()
	p := testProvider(t)
	a := ownArtifact(t)
	policy := &providers.NetworkPolicy{Mode: network}
	if network == netList {
		policy.Allow = []string{"permitted.test"}
	}
	sb := create(t, p, providers.CreateRequest{
		Network: policy, Artifacts: []providers.Artifact{a},
		Resources: providers.Resources{DiskMiB: 32, MemoryMiB: 512},
	})
	return &target{t: t, p: p, sb: sb, program: sb.Artifacts[a.Digest], network: network}
}

// run runs an attack and returns what it printed.
func (g *target) run(t *testing.T, user, attack string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := envd.New(&envd.Options{Dial: g.sb.Data.Dial, Token: g.sb.Data.Token.Reveal()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	o := &envd.StartOptions{Path: g.program, Env: g.attackEnv(attack, args...), User: user}
	if g.function {
		o.Channel = envd.NewChannelID()
		ch, err := c.OpenChannel(ctx, o.Channel)
		if err != nil {
			t.Fatal(err)
		}
		defer ch.Close()
		o.Env["LOCAL_TEST_FUNCTION"] = "1"
	}
	out, end := outputOf(ctx, t, c, o, math.MaxInt)
	if end.ExitCode != 0 && !strings.Contains(out, "BREACH") {
		t.Errorf("the attack itself failed: %+v %s", end, out)
	}
	return out
}

// outputOf runs a program to its end and returns what it printed, of which about
// limit bytes are kept.
func outputOf(ctx context.Context, t testing.TB, c *envd.Client, o *envd.StartOptions, limit int) (string, *envd.End) {
	t.Helper()
	s, err := c.Start(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(nil)
	defer context.AfterFunc(ctx, func() { s.Close(ctx.Err()) })()
	var out strings.Builder
	for {
		ev, err := s.Next()
		if err != nil {
			t.Fatalf("after %q: %v", out.String(), err)
		}
		if ev.End != nil {
			return out.String(), ev.End
		}
		if out.Len() < limit {
			out.Write(ev.Stdout)
			out.Write(ev.Stderr)
		}
	}
}

// attackEnv makes the test program an attacker.
func (g *target) attackEnv(attack string, args ...string) map[string]string {
	env := map[string]string{envRole: "attack", envAttack: attack, envArgs: strings.Join(args, "\n"), "LOCAL_TEST_NETWORK": g.network}
	if mappingKind() == mapSingle {
		env["LOCAL_TEST_SINGLE"] = "1"
	}
	if g.guest {
		env[envGuest] = "1"
	}
	if o, ok := raceenv.Lookup(); ok {
		env[raceenv.Name] = o
	}
	return env
}

// users are those that commands can run as here.
func users() []string {
	if mappingKind() == mapSingle {
		return []string{"user"}
	}
	return []string{"user", "root"}
}

// attackNetworks are the modes that keep a network of their own.
var attackNetworks = []string{netNone, netLoopback, netList}

// TestAttacks runs what hostile code would try, as each user, in each mode
// that keeps a network of its own, as a command and as the process of functions.
func TestAttacks(t *testing.T) {
	needIsolation(t)
	h := plantHost(t)
	before := digestOf(t)
	for _, network := range attackNetworks {
		t.Run(network, func(t *testing.T) {
			g := newTarget(t, network)
			h.token = g.sb.Data.Token.Reveal()
			h.checkInit(t, initOf(t, g))
			for _, user := range users() {
				for _, g.function = range []bool{false, true} {
					name := user
					if g.function {
						name += " function"
					}
					t.Run(name, func(t *testing.T) { h.attackAll(t, g, user) })
				}
			}
		})
	}
	h.unharmed(t)
	if after := digestOf(t); after != before {
		t.Error("the program is another one now")
	}
}

// digestOf is that of the program that is pid 1.
func digestOf(t *testing.T) string {
	t.Helper()
	a, err := selfArtifact()
	if err != nil {
		t.Fatal(err)
	}
	return a.Digest
}

// attackAll runs every attack that ends by itself and leaves the sandbox as it was.
func (h *plantedHost) attackAll(t *testing.T, g *target, user string) {
	for _, c := range []struct {
		attack string
		args   []string
	}{
		{"privileges", nil},
		{"canaries", h.canaries},
		{"environment", []string{h.secret, h.token}},
		{"magic links", nil},
		{"descriptors", []string{h.name}},
		{"executables", []string{g.program}},
		{"markers", []string{filepath.Dir(g.program)}},
		{"mounts", nil},
		{"namespaces", nil},
		{"cgroups", nil},
		{"settings", nil},
		{"devices", nil},
		{"handles", nil},
		{"processes", []string{strconv.Itoa(os.Getpid()), strconv.Itoa(os.Getppid())}},
		{"keyrings", []string{h.name}},
		{"ipc", []string{strconv.Itoa(h.shmKey), h.queue, h.name}},
		{"sockets", h.sockets},
		{"network", []string{h.listener}},
		{"calls", nil},
		{"entries", nil},
		{"families", nil},
		{"terminals", nil},
		{"set-uid", nil},
		{"machine", []string{h.hostname}},
		{"limits of init", nil},
	} {
		t.Run(c.attack, func(t *testing.T) {
			if out := g.run(t, user, c.attack, c.args...); out != "" {
				t.Error(out)
			}
		})
	}
}

// TestSignals lets hostile code send init every signal there is, and then asks
// init for something.
func TestSignals(t *testing.T) {
	for _, user := range users() {
		t.Run(user, func(t *testing.T) {
			g := newTarget(t, netLoopback)
			g.signals(t, user)
		})
	}
}

func (g *target) signals(t *testing.T, user string) {
	for range 2 {
		if out := g.run(t, user, "signals"); out != "" {
			t.Error(out)
		}
		if out, _ := sh(t, g.sb, "trap 'echo caught' TERM; kill -TERM $$; trap - TERM; sh -c 'kill -TERM $$'; echo $?"); strings.ReplaceAll(out, "Terminated\n", "") != "caught\n143\n" {
			t.Errorf("commands do not get their own signals: %q", out)
		}
	}
}

// TestDiskFull fills everything that can be written.
func TestDiskFull(t *testing.T) {
	g := newTarget(t, netLoopback)
	if out := g.run(t, "user", "disk"); out != "" {
		t.Error(out)
	}
}

// A host is what the attackers look for outside.
type plantedHost struct {
	name     string // part of the names of everything below
	secret   string
	token    string
	hostname string
	canaries []string
	sockets  []string
	listener string
	shmKey   int
	queue    string
	files    []*os.File
}

func plantHost(t *testing.T) *plantedHost {
	t.Helper()
	h := &plantedHost{name: "canary" + randomText(12), secret: "secret" + randomText(16)}
	t.Setenv("LOCAL_TEST_SECRET_OF_CLIENT", h.secret)
	h.hostname, _ = os.Hostname()

	dirs := []string{t.TempDir(), "/dev/shm", "/tmp"}
	if home, err := os.UserHomeDir(); err == nil {
		dirs = append(dirs, home)
	}
	if wd, err := os.Getwd(); err == nil {
		h.canaries = append(h.canaries, wd)
	}
	for _, dir := range dirs {
		path := filepath.Join(dir, h.name)
		if err := os.WriteFile(path, []byte(h.secret), 0o644); err != nil {
			continue // not every home can be written
		}
		t.Cleanup(func() { os.Remove(path) })
		h.canaries = append(h.canaries, path)
		// Without close-on-exec, as careless clients do.
		fd, err := unix.Open(path, unix.O_RDONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		h.files = append(h.files, os.NewFile(uintptr(fd), path))
	}
	fd, err := unix.Open(dirs[0], unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	h.files = append(h.files, os.NewFile(uintptr(fd), dirs[0]))
	t.Cleanup(func() {
		for _, f := range h.files {
			f.Close()
		}
	})
	h.listen(t, dirs[0])
	h.ipc(t)
	h.key(t)
	return h
}

func (h *plantedHost) listen(t *testing.T, dir string) {
	for _, name := range []string{"@" + h.name, filepath.Join(dir, "s")} {
		l, err := net.Listen("unix", name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		h.sockets = append(h.sockets, name)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	h.listener = l.Addr().String()
}

func (h *plantedHost) ipc(t *testing.T) {
	h.shmKey = os.Getpid()
	id, _, e := unix.Syscall(unix.SYS_SHMGET, uintptr(h.shmKey), 4096, unix.IPC_CREAT|0o600)
	if e != 0 {
		t.Fatal("shmget:", e)
	}
	t.Cleanup(func() { unix.Syscall(unix.SYS_SHMCTL, id, unix.IPC_RMID, 0) })
	h.queue = h.name
	name, _ := unix.BytePtrFromString(h.queue)
	fd, _, e := unix.Syscall6(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(name)), unix.O_CREAT|unix.O_RDWR, 0o600, 0, 0, 0)
	if e != 0 {
		t.Log("mq_open:", e) // not every kernel has them
		return
	}
	unix.Close(int(fd))
	t.Cleanup(func() { unix.Syscall(unix.SYS_MQ_UNLINK, uintptr(unsafe.Pointer(name)), 0, 0) })
}

// key leaves a key where the processes of the user find it.
func (h *plantedHost) key(t *testing.T) {
	id, err := unix.AddKey("user", h.name, []byte(h.secret), unix.KEY_SPEC_USER_SESSION_KEYRING)
	if err != nil {
		t.Log("add_key:", err) // not every kernel has keys, and not every user may have more
		return
	}
	t.Cleanup(func() { _, _ = unix.KeyctlInt(unix.KEYCTL_UNLINK, id, unix.KEY_SPEC_USER_SESSION_KEYRING, 0, 0) })
}

// initOf is the pid of a sandbox's init on the host.
func initOf(t *testing.T, g *target) int {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(g.p.root, "local", "boxes", g.sb.ID, "state.json"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	b, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), `"pid":`)
	var pid int
	if _, err := fmt.Sscan(strings.NewReplacer(",", " ", "}", " ").Replace(rest), &pid); err != nil {
		t.Fatal(err)
	}
	return pid
}

// checkInit looks at pid 1 from outside: every thread has what it should have,
// and nothing of the client's.
func (h *plantedHost) checkInit(t *testing.T, pid int) {
	t.Helper()
	proc := fmt.Sprintf("/proc/%d/", pid)
	want := map[string]string{
		"CapInh": "0000000000000000", "CapBnd": "0000000000000000", "CapAmb": "0000000000000000",
		"CapPrm":  fmt.Sprintf("%016x", idMapping{kind: mappingKind()}.initCaps()),
		"CapEff":  fmt.Sprintf("%016x", idMapping{kind: mappingKind()}.initCaps()),
		"Seccomp": "2", "NoNewPrivs": "1",
	}
	threads, err := os.ReadDir(proc + "task")
	if err != nil || len(threads) < 2 {
		t.Fatal(len(threads), err)
	}
	for _, th := range threads {
		b, err := os.ReadFile(proc + "task/" + th.Name() + "/status")
		if err != nil {
			t.Error(err)
		}
		for line := range strings.Lines(string(b)) {
			k, v, _ := strings.Cut(line, ":")
			v = strings.TrimSpace(v)
			if w, ok := want[k]; ok && w != v {
				t.Errorf("thread %s: %s is %s, want %s", th.Name(), k, v, w)
			}
			if f := strings.Fields(v); (k == "Uid" || k == "Gid") && mappingKind() == mapBlock {
				for _, id := range f {
					if n, _ := strconv.Atoi(id); n < blockBase {
						t.Errorf("thread %s: %s %s", th.Name(), k, v)
					}
				}
			}
			if k == "Groups" && mappingKind() == mapBlock && v != "" {
				t.Errorf("thread %s keeps the groups %s", th.Name(), v)
			}
		}
	}
	if b, err := os.ReadFile(proc + "cmdline"); err != nil || string(b) != "sandbox-init\x00" {
		t.Errorf("arguments of init: %q, %v", b, err)
	}
	if os.Geteuid() != 0 {
		return // not dumpable: the rest is hidden from its own user, too
	}
	b, _ := os.ReadFile(proc + "environ")
	for kv := range strings.SplitSeq(strings.TrimRight(string(b), "\x00"), "\x00") {
		if name, _, _ := strings.Cut(kv, "="); name != nsinit.EnvSocket && name != "GOMAXPROCS" && name != raceenv.Name {
			t.Errorf("environment of init: %q", kv)
		}
	}
	fds, err := os.ReadDir(proc + "fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if target, _ := os.Readlink(proc + "fd/" + fd.Name()); strings.Contains(target, h.name) || target == filepath.Dir(h.canaries[1]) {
			t.Errorf("init holds %s", target)
		}
	}
}

// unharmed checks that nothing of what the attackers tried shows outside.
func (h *plantedHost) unharmed(t *testing.T) {
	t.Helper()
	for _, dir := range []string{"/", "/etc", "/usr", "/usr/bin", "/usr/local", "/usr/local/bin", "/tmp", "/home", "/var", "/run"} {
		if _, err := os.Lstat(filepath.Join(dir, "sandbox-marker")); err == nil {
			t.Errorf("%s/sandbox-marker is there", dir)
		}
	}
	if now, _ := os.Hostname(); now != h.hostname {
		t.Errorf("the host is called %s now", now)
	}
	for _, path := range h.canaries[1:] {
		if b, err := os.ReadFile(path); err != nil || string(b) != h.secret {
			t.Errorf("%s: %q, %v", path, b, err)
		}
	}
}
