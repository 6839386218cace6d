//go:build linux

package local

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/envd"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// A program of the name runsc that runs its guest on the kernel there is.
func init() {
	if os.Args[0] == "runsc" {
		_ = syscall.Exec("/proc/self/fd/6", []string{"sandbox-init"}, []string{"SANDBOX_NSINIT=3"})
		os.Exit(1)
	}
}

// triedRunsc has the programs that have run a guest.
var triedRunsc sync.Map

// needGVisor skips a test where there is no runsc, which in CI is a failure.
func needGVisor(t testing.TB) {
	t.Helper()
	needIsolation(t)
	path, err := findRunsc()
	if _, tried := triedRunsc.Load(path); err == nil && !tried {
		err = tryGVisor(t.Context(), path)
	}
	switch {
	case err == nil:
		triedRunsc.Store(path, true)
	case errors.Is(err, errdefs.ErrNotSupported) && os.Getenv("CI") == "":
		t.Skip(err)
	default:
		t.Fatal(err)
	}
}

func gvisorSandbox(t *testing.T, p *Provider, req providers.CreateRequest) *providers.Sandbox {
	t.Helper()
	req.Isolation = isolationGVisor
	return create(t, p, req)
}

func envdOf(t *testing.T, sb *providers.Sandbox) *envd.Client {
	t.Helper()
	c, err := envd.New(&envd.Options{Dial: sb.Data.Dial, Token: sb.Data.Token.Reveal()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// What a native sandbox has, one in gVisor has: users, files, terminals, ports,
// measurements. Its kernel is another one.
func TestGVisor(t *testing.T) {
	needGVisor(t)
	p := testProvider(t)
	a := ownArtifact(t)
	sb := gvisorSandbox(t, p, providers.CreateRequest{
		Env: map[string]string{"GREETING": "hello"}, Artifacts: []providers.Artifact{a},
		Places: []providers.Place{{Path: "/data", Dir: true}},
	})
	ctx := t.Context()
	out, end := sh(t, sb, "uname -r; id -u; hostname; echo $GREETING $SANDBOX_ID; cat /sys/devices/system/cpu/online; touch /data/x && ls /data; ls /usr/bin >/dev/null && touch /usr/x 2>&1")
	lines := strings.Split(out, "\n")
	if end.ExitCode == 0 || len(lines) < 7 || !strings.Contains(lines[0], "gvisor") || lines[1] != "1000" || lines[2] != hostName ||
		lines[3] != "hello "+sb.ID || lines[5] != "x" || !strings.Contains(lines[6], "cannot touch") {
		t.Errorf("%+v\n%s", end, out)
	}

	c := envdOf(t, sb)
	t.Run("users", func(t *testing.T) {
		for user, want := range map[string]string{"root": "0\n", "user": "1000\n"} {
			s, err := c.Start(ctx, &envd.StartOptions{Path: "/usr/bin/id", Args: []string{"-u"}, User: user})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close(nil)
			if ev, err := s.Next(); err != nil || string(ev.Stdout) != want {
				t.Errorf("%s: %q, %v", user, ev.Stdout, err)
			}
		}
	})
	t.Run("files", func(t *testing.T) {
		data := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
		if _, err := c.WriteFile(ctx, "/home/user/f", bytes.NewReader(data), int64(len(data)), nil); err != nil {
			t.Fatal(err)
		}
		if out, _ := sh(t, sb, "stat -c '%u %s' /home/user/f"); out != "1000 1048576\n" {
			t.Errorf("%q", out)
		}
		b, err := c.ReadFile(ctx, "/home/user/f", 0, -1)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		if got, err := io.ReadAll(b); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d bytes, %v", len(got), err)
		}
		// With the rights of the user, not of the runtime.
		if _, err := c.WriteFile(ctx, "/root/f", strings.NewReader("x"), 1, nil); err == nil {
			t.Error("the user writes a file of root")
		}
	})
	t.Run("terminal", func(t *testing.T) {
		s, err := c.Start(ctx, &envd.StartOptions{Path: "/bin/sh", Args: []string{"-c", "tty; stty size"}, Terminal: &envd.Size{Cols: 91, Rows: 37}})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close(nil)
		var said strings.Builder
		for {
			ev, err := s.Next()
			if err != nil {
				t.Fatal(err)
			}
			if ev.End != nil {
				break
			}
			said.Write(ev.Terminal)
		}
		if got := said.String(); !strings.Contains(got, "/dev/pts/") || !strings.Contains(got, "37 91") {
			t.Errorf("%q", got)
		}
	})
	t.Run("ports", func(t *testing.T) {
		background(t, sb, "exec env LOCAL_TEST_ROLE=echo "+sb.Artifacts[a.Digest])
		e, err := p.Port(ctx, sb.ID, 7777)
		if err != nil {
			t.Fatal(err)
		}
		var conn net.Conn
		eventually(t, "the port is open", func() bool {
			conn, err = e.Dial(ctx)
			return err == nil
		})
		defer conn.Close()
		if _, err := conn.Write([]byte("ping")); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 4)
		if _, err := io.ReadFull(conn, got); err != nil || string(got) != "ping" {
			t.Errorf("%q, %v", got, err)
		}
	})
	t.Run("usage", func(t *testing.T) {
		u, err := p.Usage(ctx, sb.ID)
		if err != nil || u.MemoryUsed < 1<<20 || u.DiskTotal != 512<<20 || u.DiskUsed < 1<<20 {
			t.Errorf("%+v, %v", u, err)
		}
	})
	t.Run("report", func(t *testing.T) {
		r, err := p.Report(ctx, sb.ID)
		if err != nil || r.Engine != engineGVisor || r.Platform != gvisorPlatform || r.Seccomp == 0 || r.Limits["pids"] != engineGVisor || r.Freezer != bySignals {
			t.Errorf("%+v, %v", r, err)
		}
		caps, err := p.Capabilities(ctx)
		if err != nil || !caps.Set[providers.CapGVisor] {
			t.Errorf("%+v, %v", caps, err)
		}
	})
	t.Run("snapshot", func(t *testing.T) {
		if _, err := p.Snapshot(ctx, sb.ID, providers.SnapshotRequest{}); errdefs.CodeOf(err) != "E8004" {
			t.Error("snapshot:", err)
		}
		if err := p.Hibernate(ctx, sb.ID); errdefs.CodeOf(err) != "E8004" {
			t.Error("hibernate:", err)
		}
	})
	pids := hostPids(t, p, sb.ID)
	if len(pids) < 3 {
		t.Errorf("processes on the host: %v", pids)
	}
	if err := p.Kill(ctx, sb.ID); err != nil {
		t.Fatal(err)
	}
	checkEnded(t, pids)
}

func init() {
	roles["echo"] = func() error {
		l, err := net.Listen("tcp", "127.0.0.1:7777")
		if err != nil {
			return err
		}
		c, err := l.Accept()
		if err != nil {
			return err
		}
		_, err = io.Copy(c, c)
		return err
	}
}

// A pause in gVisor is kept by the runtime in there.
func TestGVisorPause(t *testing.T) {
	needGVisor(t)
	p := testProvider(t)
	sb := gvisorSandbox(t, p, providers.CreateRequest{})
	background(t, sb, "i=0; while :; do i=$((i+1)); echo $i > /tmp/n; done")
	number := func() string {
		out, _ := sh(t, sb, "cat /tmp/n")
		return out
	}
	eventually(t, "the loop runs", func() bool { return number() != "" })
	pauseSandbox(t, p, sb.ID)
	if err := p.Pause(t.Context(), sb.ID); errdefs.CodeOf(err) != "E2024" {
		t.Errorf("a second pause: %v", err)
	}
	if _, _, err := shell(t.Context(), sb, "true"); errdefs.CodeOf(err) != "E2024" {
		t.Errorf("a command while paused: %v", err)
	}
	if got, err := p.Get(t.Context(), sb.ID); err != nil || got.State != providers.StatePaused {
		t.Errorf("%+v, %v", got, err)
	}
	sb = resumeSandbox(t, p, sb.ID)
	before := number()
	eventually(t, "the loop goes on", func() bool { return number() != before })
	pauseSandbox(t, p, sb.ID)
	pids := hostPids(t, p, sb.ID)
	if err := p.Kill(t.Context(), sb.ID); err != nil {
		t.Fatal(err)
	}
	checkEnded(t, pids)
}

// Whatever ends a sandbox in gVisor ends all of it.
func TestGVisorEnds(t *testing.T) {
	needGVisor(t)
	t.Run("lifetime", func(t *testing.T) {
		p := testProvider(t)
		sb := gvisorSandbox(t, p, providers.CreateRequest{})
		pids := hostPids(t, p, sb.ID)
		if _, err := p.SetLifetime(t.Context(), sb.ID, minLifetime); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it expires", func() bool {
			_, err := p.Get(t.Context(), sb.ID)
			return errdefs.CodeOf(err) == "E2021"
		})
		checkEnded(t, pids)
	})
	t.Run("runsc", func(t *testing.T) {
		p := testProvider(t)
		sb := gvisorSandbox(t, p, providers.CreateRequest{})
		pids := hostPids(t, p, sb.ID)
		for _, pid := range pids {
			if b, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline")); bytes.Contains(b, []byte("boot\x00")) {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		eventually(t, "its end is known", func() bool {
			_, err := p.Get(t.Context(), sb.ID)
			return errdefs.CodeOf(err) == "E2023"
		})
		checkEnded(t, pids)
	})
	t.Run("client", func(t *testing.T) {
		root := testRoot(t)
		cmd, id, _ := startClient(t, envState+"="+root, envIsolation+"="+isolationGVisor)
		p := openProvider(t, root)
		if _, err := p.Get(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		pids := hostPids(t, p, id)
		if len(pids) < 3 {
			t.Errorf("processes on the host: %v", pids)
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		eventually(t, "it ends with its client", func() bool {
			_, err := p.Get(t.Context(), id)
			return errdefs.CodeOf(err) == "E2022"
		})
		checkEnded(t, pids)
	})
	t.Run("detached", func(t *testing.T) {
		root := testRoot(t)
		_, id, end := startClient(t, envState+"="+root, envIsolation+"="+isolationGVisor, envDetached+"=1")
		end()
		p := openProvider(t, root)
		sb, err := p.Connect(t.Context(), id, providers.ConnectRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if out, _ := sh(t, sb, "uname -r"); !strings.Contains(out, "gvisor") {
			t.Errorf("%q", out)
		}
		pids := hostPids(t, p, id)
		if err := p.Kill(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		checkEnded(t, pids)
		checkNothingLeft(t, root)
	})
	t.Run("creation cancelled", func(t *testing.T) {
		p := testProvider(t)
		if err := p.GC(t.Context()); err != nil { // opens the state directory
			t.Fatal(err)
		}
		before := count(t)
		for _, after := range []time.Duration{0, 5 * time.Millisecond, 50 * time.Millisecond, 150 * time.Millisecond, 300 * time.Millisecond} {
			ctx, cancel := context.WithTimeout(t.Context(), after)
			sb, err := p.Create(ctx, providers.CreateRequest{Isolation: isolationGVisor})
			cancel()
			if err == nil {
				if err := p.Kill(t.Context(), sb.ID); err != nil {
					t.Error(err)
				}
			}
		}
		checkReturned(t, before)
	})
}

// A volume is shared with native sandboxes, and keeps its owners.
func TestGVisorVolumes(t *testing.T) {
	needGVisor(t)
	p := testProvider(t)
	volumes := []providers.Volume{{Name: "rw", Path: "/home/user/rw"}, {Name: "ro", Path: "/ro", ReadOnly: true}}
	if mappingKind() == mapSingle {
		if _, err := p.Create(t.Context(), providers.CreateRequest{Isolation: isolationGVisor, Volumes: volumes}); errdefs.CodeOf(err) != "E8004" {
			t.Error(err)
		}
		return
	}
	sb := gvisorSandbox(t, p, providers.CreateRequest{Volumes: volumes})
	out, _ := sh(t, sb, "umask 022; echo kept > rw/f; mkdir rw/d; touch /ro/f 2>&1; ls -ld rw/f rw/d | cut -c1-10")
	if !strings.Contains(out, "Read-only file system") || !strings.Contains(out, "drwxr-xr-x\n-rw-r--r--") {
		t.Errorf("%q", out)
	}
	other := create(t, p, providers.CreateRequest{Volumes: volumes})
	if out, _ := sh(t, other, "cat rw/f; stat -c %U rw/f rw/d"); out != "kept\nuser\nuser\n" {
		t.Errorf("%q", out)
	}
}

// gVisor that was asked for is never replaced by something else.
func TestGVisorRefuses(t *testing.T) {
	needIsolation(t)
	ctx := t.Context()
	ask := func(p *Provider, req providers.CreateRequest) error {
		req.Isolation = isolationGVisor
		sb, err := p.Create(ctx, req)
		if err == nil {
			_ = p.Kill(ctx, sb.ID)
		}
		return err
	}
	p := testProvider(t)
	t.Run("not installed", func(t *testing.T) {
		t.Setenv(envRunsc, "")
		tools := t.TempDir() // what sandboxes of users need
		for _, name := range []string{"newuidmap", "newgidmap"} {
			if path, err := exec.LookPath(name); err == nil {
				if err := os.Symlink(path, filepath.Join(tools, name)); err != nil {
					t.Fatal(err)
				}
			}
		}
		t.Setenv("PATH", tools)
		err := ask(p, providers.CreateRequest{})
		var e *errdefs.Error
		if !errors.As(err, &e) || e.Code != "E8004" || !strings.Contains(e.Suggestion, "go install gvisor.dev/gvisor/runsc@") || !strings.Contains(e.Suggestion, envRunsc) {
			t.Errorf("%v", err)
		}
		caps, err := p.Capabilities(ctx)
		if err != nil || caps.Set[providers.CapGVisor] {
			t.Error("the capability is there", err)
		}
		strong, err := New(providers.Config{StateDir: p.root, Settings: map[string]string{settingIsolation: isolationAutoStrong}})
		if err != nil {
			t.Fatal(err)
		}
		defer strong.Close()
		sb := create(t, strong, providers.CreateRequest{})
		r, err := strong.Report(ctx, sb.ID)
		if err != nil || r.Engine != engineNative || !slices.ContainsFunc(r.Degraded, func(d providers.Degradation) bool { return d.What == "isolation" }) {
			t.Errorf("%+v, %v", r, err)
		}
		if _, err := strong.Create(ctx, providers.CreateRequest{Require: []string{"isolation"}}); errdefs.CodeOf(err) != "E2012" {
			t.Errorf("required isolation: %v", err)
		}
	})
	t.Run("no program", func(t *testing.T) {
		for _, path := range []string{"runsc", "/nowhere/runsc", "/usr"} {
			t.Setenv(envRunsc, path)
			if err := ask(p, providers.CreateRequest{}); errdefs.CodeOf(err) != "E8007" {
				t.Errorf("%s: %v", path, err)
			}
		}
	})
	t.Run("broken", func(t *testing.T) {
		t.Setenv(envRunsc, "/usr/bin/env")
		err := ask(p, providers.CreateRequest{})
		var e *IsolationError
		if !errors.As(err, &e) || e.Cause != CauseGVisor || errdefs.CodeOf(err) != "E2010" || !strings.Contains(err.Error(), "unrecognized option") {
			t.Errorf("%v", err)
		}
	})
	t.Run("another kernel", func(t *testing.T) {
		own, err := filepath.EvalSymlinks("/proc/self/exe")
		if err != nil {
			t.Fatal(err)
		}
		t.Setenv(envRunsc, own)
		err = ask(p, providers.CreateRequest{})
		var e *IsolationError
		if !errors.As(err, &e) || e.Cause != CauseGVisor || !strings.Contains(e.Step, stepProveGVisor) {
			t.Errorf("%v", err)
		}
	})
	t.Run("what it cannot do", func(t *testing.T) {
		for name, req := range map[string]providers.CreateRequest{
			"host":  {Network: &providers.NetworkPolicy{Mode: netHost}},
			"debug": {Debug: true},
			"rates": {Resources: providers.Resources{DiskRead: 1 << 20}},
		} {
			if err := ask(p, req); errdefs.CodeOf(err) != "E8004" {
				t.Errorf("%s: %v", name, err)
			}
		}
		if err := ask(p, providers.CreateRequest{Resources: providers.Resources{MemoryMiB: 100}}); errdefs.CodeOf(err) != "E2011" {
			t.Errorf("little memory: %v", err)
		}
	})
}

// TestGVisorAttacks is TestAttacks in a guest of gVisor.
func TestGVisorAttacks(t *testing.T) {
	needGVisor(t)
	h := plantHost(t)
	before := digestOf(t)
	p := testProvider(t)
	a := ownArtifact(t)
	sandbox := func(network string, allow ...string) *target {
		sb := gvisorSandbox(t, p, providers.CreateRequest{
			Network:   &providers.NetworkPolicy{Mode: network, Allow: allow},
			Artifacts: []providers.Artifact{a}, Resources: providers.Resources{DiskMiB: 128, MemoryMiB: 512},
		})
		return &target{t: t, p: p, sb: sb, program: sb.Artifacts[a.Digest], network: network, guest: true}
	}
	if out := sandbox(netLoopback).run(t, "root", "network", h.listener); out != "" {
		t.Error(out)
	}
	// With a list its pid 1 has most that could be taken from it.
	g := sandbox(netList, "permitted.test")
	sb := g.sb
	h.token = sb.Data.Token.Reveal()
	for _, user := range []string{"user", "root"} {
		t.Run(user, func(t *testing.T) { h.attackAll(t, g, user) })
	}
	h.unharmed(t)
	if after := digestOf(t); after != before {
		t.Error("the program is another one now")
	}
}
