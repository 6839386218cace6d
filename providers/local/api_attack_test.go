//go:build linux

package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/internal/envd"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// Attacks on the API: what it is asked for is hostile, or what it finds inside.

// Working directories that are not what they seem are errors.
func TestWorkingDirectories(t *testing.T) {
	g := newTarget(t, netLoopback)
	c := g.client(t)
	sh(t, g.sb, "cd /tmp; mkdir gone; ln -s /proc/self/fd/3 link; ln -s /proc/1/root root; ln -s loop loop; mkfifo fifo; rmdir gone")
	for _, user := range users() {
		for _, dir := range []string{
			"/proc/self/fd/3", "/proc/1/fd/7", "/proc/1/cwd", "/proc/1/root", "/proc/self/cwd", "/proc/self/root/etc", "/proc/thread-self/root",
			"/tmp/gone", "/tmp/link", "/tmp/root", "/tmp/loop", "/tmp/fifo", "/dev/null", "/etc/passwd", "/tmp/" + strings.Repeat("n", 256), "/" + strings.Repeat("n/", 3000),
		} {
			s, err := c.Start(t.Context(), &envd.StartOptions{Path: "/bin/pwd", Dir: dir, User: user})
			if errdefs.CodeOf(err) != "E3012" {
				t.Errorf("%.60s as %s: %v", dir, user, err)
			}
			if err == nil {
				s.Close(nil)
			}
		}
	}
}

// Every file call gets every strange path: each is answered soon, by an error
// with a code or with what the sandbox may see, and init serves on.
func TestHostilePaths(t *testing.T) {
	for _, user := range users() {
		t.Run(user, func(t *testing.T) {
			p := testProvider(t)
			sb := create(t, p, providers.CreateRequest{User: user})
			g := &target{t: t, p: p, sb: sb}
			sh(t, sb, `mkdir -p /tmp/h; cd /tmp/h; mkfifo fifo; ln -s fifo lfifo; ln -s /proc/1/fd/3 fd; ln -s /proc/self/exe exe; ln -s /dev/zero zero; ln -s loop loop; ln -s /proc/1/root/etc/shadow shadow
				truncate -s 16M huge; mknod sock p 2>/dev/null; ln -s /proc/1/environ environ; ln -s /proc/1/mem mem; ln -s /dev/ptmx ptmx; : > 'strange
name'`)
			for _, path := range []string{
				"fifo", "lfifo", "fd", "fd/x", "exe", "zero", "loop", "loop/x", "shadow", "environ", "mem", "ptmx", "strange\nname", "huge/x",
				"/proc/self/fd/0", "/proc/1/fd/5", "/proc/1/exe", "/proc/1/root/usr", "/proc/self/mem", "/proc/self/maps", "/proc/1/task/1/mem", "/proc/kcore",
				"/proc/kmsg", "/proc/sysrq-trigger", "/dev/zero", "/dev/full", "/dev/tty", "/dev/ptmx", "/dev/pts/0", "/dev/stdin", "/dev/fd/3", "/run/sandbox/x",
				strings.Repeat("n", 256), strings.Repeat("d/", 2500), "\xff\xfe", "a\x00b", "~root", "~nobody/x", "//..//../etc/shadow", "",
			} {
				full := path
				if !strings.HasPrefix(path, "/") && path != "" && path[0] != '~' {
					full = "/tmp/h/" + path
				}
				g.everyCall(t, full, p.root)
			}
			g.alive(t)
		})
	}
}

// everyCall makes every file call with path.
func (g *target) everyCall(t *testing.T, path, secret string) {
	t.Helper()
	c := g.client(t)
	for name, call := range fileCalls {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		start := time.Now()
		got, err := call(ctx, c, path)
		if err != nil && errdefs.CodeOf(err) == "" {
			t.Errorf("%s %.60q: an error without a code: %v", name, path, err)
		}
		if ctx.Err() != nil || time.Since(start) > 50*time.Second {
			t.Errorf("%s %.60q hangs: %v", name, path, err)
		}
		if bytes.Contains(got, []byte(secret)) || bytes.Contains(got, []byte(g.sb.Data.Token.Reveal())) {
			t.Errorf("%s %.60q shows what is secret", name, path)
		}
		cancel()
	}
}

// fileCalls are the calls of the file API; each returns what it was shown.
var fileCalls = map[string]func(ctx context.Context, c *envd.Client, path string) ([]byte, error){
	"stat": func(ctx context.Context, c *envd.Client, path string) ([]byte, error) {
		_, err := c.Stat(ctx, path)
		return nil, err
	},
	"list": func(ctx context.Context, c *envd.Client, path string) ([]byte, error) {
		_, err := c.List(ctx, path, 2)
		return nil, err
	},
	"read": func(ctx context.Context, c *envd.Client, path string) ([]byte, error) {
		b, err := c.ReadFile(ctx, path, 0, 1<<20)
		if err != nil {
			return nil, err
		}
		defer b.Close()
		return io.ReadAll(io.LimitReader(b, 1<<20))
	},
	"write": func(ctx context.Context, c *envd.Client, path string) ([]byte, error) {
		_, err := c.WriteFile(ctx, path, strings.NewReader(apiMarker), int64(len(apiMarker)), nil)
		return nil, err
	},
	"compose": func(ctx context.Context, c *envd.Client, path string) ([]byte, error) {
		return nil, c.Compose(ctx, []string{path}, path+"-composed")
	},
	"make directory": func(ctx context.Context, c *envd.Client, path string) ([]byte, error) {
		return nil, c.MakeDir(ctx, path)
	},
	"rename": func(ctx context.Context, c *envd.Client, path string) ([]byte, error) {
		if err := c.Move(ctx, path, path+"-moved"); err != nil {
			return nil, err
		}
		return nil, c.Move(ctx, path+"-moved", path)
	},
	"watch": func(ctx context.Context, c *envd.Client, path string) ([]byte, error) {
		w, err := c.Watch(ctx, path, envd.WatchOptions{})
		if err == nil {
			w.Close()
		}
		return nil, err
	},
}

const apiMarker = "marker of the API"

// While hostile code exchanges a directory and a link, every file call works on
// the directory or fails: nothing that the caller may not see is read, and
// nothing is written where it may not.
func TestExchange(t *testing.T) {
	for _, network := range attackNetworks {
		t.Run(network, func(t *testing.T) {
			t.Parallel()
			g := newTarget(t, network)
			secret := "secret" + randomText(16)
			links := []string{"/proc/1/root", "/proc/1/cwd", "/proc/1/fd", "/proc/self/root/usr", "/run/sandbox/bin", g.p.root}
			if mappingKind() != mapSingle {
				_, err := command2(t, g, "root", "mkdir -p /root/secret/sub && echo "+secret+" > /root/secret/file && chmod 700 /root/secret && chmod 600 /root/secret/file")
				if err != nil {
					t.Fatal(err)
				}
				links = append(links, "/root/secret")
			}
			s, err := g.client(t).Start(t.Context(), &envd.StartOptions{Path: g.program, Env: g.attackEnv("exchange", links...), User: "user"})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close(nil)
			waitReady(t, s)
			g.callsMeanwhile(t, scaled(500, 3000, 20000), secret)
			if mappingKind() != mapSingle {
				out, err := command2(t, g, "root", "ls -A /root/secret /root/secret/sub; cat /root/secret/file")
				if err != nil || out != "/root/secret:\nfile\nsub\n\n/root/secret/sub:\n"+secret+"\n" {
					t.Errorf("the secret directory holds %q, %v", out, err)
				}
			}
			g.alive(t)
		})
	}
}

// command2 runs a script as a user.
func command2(t *testing.T, g *target, user, script string) (string, error) {
	t.Helper()
	s, err := g.client(t).Start(t.Context(), &envd.StartOptions{Path: "/bin/sh", Args: []string{"-c", script}, User: user})
	if err != nil {
		return "", err
	}
	defer s.Close(nil)
	out := ""
	for {
		ev, err := s.Next()
		if err != nil {
			return out, err
		}
		if ev.End != nil {
			if ev.End.ExitCode != 0 {
				return out, fmt.Errorf("%+v", ev.End)
			}
			return out, nil
		}
		out += string(ev.Stdout) + string(ev.Stderr)
	}
}

func (g *target) callsMeanwhile(t *testing.T, n int, secret string) {
	var wg sync.WaitGroup
	var made, worked atomic.Int64
	for range 4 {
		wg.Go(func() {
			c := g.client(t)
			for made.Load() < int64(n) {
				for name, call := range fileCalls {
					path := "/tmp/x/dir/file"
					switch name {
					case "list", "watch":
						path = "/tmp/x/dir"
					case "make directory":
						path = fmt.Sprintf("/tmp/x/dir/sub/%d", made.Load()%50)
					}
					ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
					got, err := call(ctx, c, path)
					cancel()
					made.Add(1)
					if err == nil {
						worked.Add(1)
					} else if errdefs.CodeOf(err) == "" || ctx.Err() == context.DeadlineExceeded {
						t.Errorf("%s: %v", name, err)
						return
					}
					if bytes.Contains(got, []byte(secret)) {
						t.Errorf("%s has read the secret", name)
					}
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d calls, %d of them worked", made.Load(), worked.Load())
	if worked.Load() == 0 {
		t.Error("no call worked")
	}
}

// In a terminal of one's own nothing can be typed for somebody else.
func TestTerminalAttack(t *testing.T) {
	g := newTarget(t, netLoopback)
	env := g.attackEnv("terminals")
	env["LOCAL_TEST_TERMINAL"] = "1"
	s, err := g.client(t).Start(t.Context(), &envd.StartOptions{Path: g.program, Env: env, Terminal: &envd.Size{Cols: 80, Rows: 24}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(nil)
	out := ""
	for {
		ev, err := s.Next()
		if err != nil {
			t.Fatal(err)
		}
		if ev.End != nil {
			if ev.End.ExitCode != 0 || out != "" {
				t.Errorf("%q %+v", out, ev.End)
			}
			return
		}
		out += string(ev.Terminal)
	}
}

func init() { roles["private host"] = privateHostRole }

// privateHostRole is a client on a host of its own: mounts that only root can
// make, and what lies where other programs have their sockets and secrets.
func privateHostRole() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	for _, dir := range []string{"/usr/local", "/run", "/srv", "/mnt"} {
		if err := unix.Mount("host", dir, "tmpfs", 0, "mode=0777"); err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
	}
	for _, dir := range []string{"/usr/local/bin", "/usr/local/lib", "/run/secrets/kubernetes.io/serviceaccount", "/run/user/0", "/run/dbus", "/run/containerd"} {
		if err := os.MkdirAll(dir, 0o777); err != nil {
			return err
		}
	}
	if err := errors.Join(os.WriteFile("/run/secrets/kubernetes.io/serviceaccount/token", []byte("canary"), 0o644),
		os.WriteFile("/usr/local/bin/tool", []byte("#!/bin/sh\n"), 0o777), os.WriteFile("/srv/data", []byte("canary"), 0o644)); err != nil {
		return err
	}
	for _, s := range []string{"/run/docker.sock", "/run/dbus/system_bus_socket", "/run/containerd/containerd.sock", "/run/user/0/bus"} {
		l, err := net.Listen("unix", s)
		if err != nil {
			return err
		}
		defer l.Close()
	}
	return attackPrivateHost()
}

func attackPrivateHost() error {
	p, err := roleProvider()
	if err != nil {
		return err
	}
	defer p.Close()
	a, err := selfArtifact()
	if err != nil {
		return err
	}
	sb, err := p.Create(context.Background(), providers.CreateRequest{Artifacts: []providers.Artifact{a}})
	if err != nil {
		return err
	}
	g := &target{p: p, sb: sb, program: sb.Artifacts[a.Digest], network: netLoopback}
	c, err := envd.New(&envd.Options{Dial: sb.Data.Dial, Token: sb.Data.Token.Reveal()})
	if err != nil {
		return err
	}
	defer c.Close()
	for _, user := range users() {
		for attack, arg := range map[string]string{"markers": "/usr/local/lib", "canaries": "/srv/data", "sockets": "/run/docker.sock", "mounts": ""} {
			s, err := c.Start(context.Background(), &envd.StartOptions{Path: g.program, Env: g.attackEnv(attack, arg), User: user})
			if err != nil {
				return err
			}
			for {
				ev, err := s.Next()
				if err != nil {
					return err
				}
				if ev.End != nil {
					break
				}
				os.Stdout.Write(ev.Stdout)
			}
			s.Close(nil)
		}
	}
	for _, dir := range []string{"/usr/local", "/usr/local/bin", "/usr/local/lib", "/run", "/srv"} {
		if _, err := os.Lstat(filepath.Join(dir, "sandbox-marker")); err == nil {
			fmt.Println("BREACH: a marker in", dir)
		}
	}
	return nil
}

// The host's own mounts below what is shown, its sockets and its secrets, in
// mount namespaces of the test.
func TestPrivateHost(t *testing.T) {
	needIsolation(t)
	if os.Geteuid() != 0 {
		t.Skip("only root can make the mounts of this test")
	}
	cmd := role(t, "private host", envState+"="+testRoot(t))
	out, err := cmd.Output()
	if err != nil || strings.Contains(string(out), "BREACH") {
		t.Errorf("%v: %s", err, out)
	}
	if b, _ := exec.Command("findmnt", "-n", "-o", "FSTYPE", "/srv").Output(); strings.TrimSpace(string(b)) == "tmpfs" {
		t.Error("a mount of the test is left")
	}
}
