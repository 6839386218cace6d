//go:build linux

package local

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/internal/nsinit"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// TestOrdinaryUse does what programs do all day: all the fences must let it pass.
func TestOrdinaryUse(t *testing.T) {
	sb := create(t, testProvider(t), providers.CreateRequest{})
	for _, c := range []struct{ script, want string }{
		{"id -un; pwd; hostname", "user\n/home/user\nsandbox\n"},
		{"cd /tmp; echo a > f; mv f g; ln g h; ln -s h i; cat i; mkdir -p d/e; mv g d/e/; rm -r d h i; ls", "a\n"},
		{"cd /home/user; mkfifo p; (echo through > p &); cat p; rm p", "through\n"},
		{"mv /tmp/none /home/user 2>/dev/null; echo b > /tmp/b; mv /tmp/b /home/user/b; cat /home/user/b; rm /home/user/b", "b\n"},
		{"cd /tmp; cp /bin/echo e; ./e works; truncate -s 10M big; stat -c %s big; rm e big", "works\n10485760\n"},
		{"echo x > /dev/shm/x; cat /dev/shm/x; (echo y > /run/y) 2>/dev/null || echo no; rm /dev/shm/x", "x\n" + map[bool]string{true: "no\n", false: ""}[mappingKind() != mapSingle]},
		{"echo x > /dev/null && head -c 4 /dev/zero | wc -c; echo d | cat /dev/stdin; readlink /dev/fd", "4\nd\n/proc/self/fd\n"},
		{"ls -d /root 2>/dev/null; test -r /etc/passwd && grep -c : /etc/passwd", map[bool]string{true: "/root\n", false: ""}[mappingKind() != mapSingle] + "3\n"},
		{"cat /sys/devices/system/cpu/online | grep -c 0; cat /proc/sys/kernel/ostype", "1\nLinux\n"},
		{"ulimit -c; umask; sleep 0.1; cat /proc/self/oom_score_adj; test -e /etc/resolv.conf && echo resolv", "0\n0022\n500\nresolv\n"},
		{"sh -c 'kill -9 $$'; echo $?; sleep 5 & kill $!; wait $!; echo $?", "137\n143\n"},
		{"cat /proc/self/cgroup | cut -d: -f3 | sort -u | grep -v '^/' ; echo done", "done\n"},
	} {
		out, _ := sh(t, sb, "exec 2>&1; "+c.script)
		if out := strings.NewReplacer("Killed\n", "", "Terminated\n", "").Replace(out); out != c.want {
			t.Errorf("%s\n got %q\nwant %q", c.script, out, c.want)
		}
	}
}

func TestHostNetwork(t *testing.T) {
	sb := create(t, testProvider(t), providers.CreateRequest{Network: &providers.NetworkPolicy{Mode: netHost}})
	ours, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	if out, _ := sh(t, sb, "readlink /proc/self/ns/net"); strings.TrimSpace(out) != ours {
		t.Errorf("network namespace %q, want %q", out, ours)
	}
}

// TestPlanOrder checks what the order of the construction depends on.
func TestPlanOrder(t *testing.T) {
	host := &probeResult{mountSetattr: true, base: "/tmp", lastCap: 40, cpus: 2}
	none := func(string, uint64, owners) (int, bool, error) { return 0, false, nil }
	for _, kind := range []mapKind{mapBlock, mapSubid, mapSingle} {
		s := &launchSpec{mapping: idMapping{kind: kind}, network: netLoopback, scratchBytes: 64 << 20}
		p, err := plan(s, host, nil, none)
		if err != nil {
			t.Fatal(err)
		}
		calls := p.calls
		at := func(name string) int {
			i := slices.IndexFunc(calls, func(c nsinit.Call) bool { return c.Name == name })
			if i < 0 {
				t.Fatalf("%s: no step %q", kind, name)
			}
			return i
		}
		ordered := []string{
			"make mounts private", "open /usr", "mount the new root", "show /tmp", stepProc,
			"write /proc/sys/user/max_user_namespaces", "make /proc/sys read-only", stepLoopback, "make / read-only",
			"leave the old root", "check the working directory", "close inherited descriptors", "set no_new_privs",
			"empty the bounding set", "set capabilities", "become undumpable", stepSeccomp,
		}
		for i := 1; i < len(ordered); i++ {
			if at(ordered[i-1]) >= at(ordered[i]) {
				t.Errorf("%s: %q comes after %q", kind, ordered[i-1], ordered[i])
			}
		}
		if i := at(stepSeccomp); i != len(calls)-1 {
			t.Errorf("%s: %q follows the filter", kind, calls[i+1].Name)
		}
		for i, c := range calls {
			if i > at("check the working directory") && (c.Nr == unix.SYS_SETRESUID || c.Nr == unix.SYS_CAPSET) && !c.All {
				t.Errorf("%s: %q is made in one thread only", kind, c.Name)
			}
			if len(c.Ignore) > 0 && !slices.Contains([]uint16{unix.SYS_MKDIRAT, unix.SYS_KEYCTL}, c.Nr) {
				t.Errorf("%s: %q may fail", kind, c.Name)
			}
		}
	}
}

func TestExposed(t *testing.T) {
	dir := t.TempDir()
	state := filepath.Join(dir, "state")
	ok := filepath.Join(dir, "ok")
	link := filepath.Join(dir, "link")
	if err := errors.Join(os.MkdirAll(state+"/boxes/x", 0o700), os.Mkdir(ok, 0o755), os.Symlink("/proc", link)); err != nil {
		t.Fatal(err)
	}
	home, _ := os.UserHomeDir()
	for _, p := range []string{"/", "/proc", "/sys", "/dev", "/run", "/var/run", "/boot", "/proc/self", "/run/../run", "/var", "/home", "/tmp", "/etc", home, "/root", state, state + "/boxes", dir, link, "relative", dir + "/none"} {
		if _, err := exposedView([]string{p}, state, false); errdefs.CodeOf(err) != "E2011" {
			t.Errorf("%s: %v", p, err)
		}
	}
	view, err := exposedView([]string{ok, "/usr/share"}, state, false)
	if err != nil || len(view) != 1 || view[0].source != ok || "/"+view[0].target != ok || !view[0].dir {
		t.Errorf("%+v, %v", view, err)
	}
}

// TestExposeInside shows a tree that only its owner can reach.
func TestExposeInside(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "private", "tool")
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(dir+"/file", []byte("exposed"), 0o644), os.Chmod(filepath.Dir(dir), 0o700)); err != nil {
		t.Fatal(err)
	}
	l, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(l)
	if err := unix.Bind(l, &unix.SockaddrUnix{Name: dir + "/s"}); err != nil {
		t.Skip(err) // the path is too long here
	}
	needIsolation(t)
	p, err := New(providers.Config{StateDir: testRoot(t), Settings: map[string]string{"expose": dir, settingPool: "0"}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	sb := create(t, p, providers.CreateRequest{})
	if out, _ := sh(t, sb, "exec 2>/dev/null; cat "+dir+"/file; (echo x > "+dir+"/file) || echo refused"); !strings.HasPrefix(out, "exposed") || !strings.HasSuffix(out, "refused\n") {
		t.Errorf("%q", out)
	}
	r, err := p.Report(t.Context(), sb.ID)
	if err != nil || !slices.ContainsFunc(r.Degraded, func(d providers.Degradation) bool { return strings.Contains(d.Why, dir+"/s") }) {
		t.Errorf("no word of the socket: %+v, %v", r.Degraded, err)
	}
}

func TestRootView(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"usr/bin", "usr/lib", "sbin", "etc/ssl/certs", "etc/secret", "usr/share/zoneinfo"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"etc/shadow", "etc/services", "etc/environment", "usr/lib/os-release"} {
		if err := os.WriteFile(filepath.Join(root, f), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink("usr/bin", root+"/bin"), os.Symlink("/usr/lib", root+"/etc/localtime"), os.Symlink("none", root+"/etc/mime.types")); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range append(systemView(root), etcView(root)...) {
		got = append(got, strings.ReplaceAll(e.target+"="+e.source+e.link, root, "ROOT"))
	}
	want := []string{
		"usr=ROOT/usr", "bin=usr/bin", "sbin=ROOT/sbin",
		"etc/ssl/certs=ROOT/etc/ssl/certs", "etc/services=ROOT/etc/services", "etc/localtime=/usr/lib", "etc/os-release=../usr/lib/os-release",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestSubidLine(t *testing.T) {
	for _, c := range []struct {
		line string
		want idRange
		ok   bool
	}{
		{"me:100000:65536", idRange{100000, 65535}, true},
		{"1000:200000:5000", idRange{200000, 5000}, true},
		{"you:100000:65536", idRange{}, false},
		{"me:0:65536", idRange{}, false},
		{"me:1:x", idRange{}, false},
		{"me:1", idRange{}, false},
		{"", idRange{}, false},
	} {
		if got, ok := subidLine(c.line, "me", "1000"); got != c.want || ok != c.ok {
			t.Errorf("%q: %v %v", c.line, got, ok)
		}
	}
}

func FuzzSubidLine(f *testing.F) {
	f.Add("me:100000:65536")
	f.Fuzz(func(t *testing.T, line string) {
		if r, ok := subidLine(line, "me", "1000"); ok && (r.start <= 0 || r.count <= 0 || r.count >= blockSize) {
			t.Errorf("%q: %v", line, r)
		}
	})
}

func TestExecutable(t *testing.T) {
	t.Run("named", func(t *testing.T) {
		text := filepath.Join(t.TempDir(), "text")
		if err := os.WriteFile(text, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{"relative", "/none", text, t.TempDir()} {
			t.Setenv(envRuntime, path)
			if _, err := runtimeExecutable(); errdefs.CodeOf(err) != "E8007" || !strings.Contains(err.Error(), path) {
				t.Errorf("%s: %v", path, err)
			}
		}
		exe := copyOfTest(t)
		t.Setenv(envRuntime, exe)
		sb := create(t, testProvider(t), providers.CreateRequest{})
		if out, _ := sh(t, sb, "echo hello"); out != "hello\n" {
			t.Errorf("%q", out)
		}
	})
	t.Run("sealed", func(t *testing.T) {
		e, err := openExecutable("/proc/self/exe", false)
		if err != nil {
			t.Fatal(err)
		}
		defer e.file.Close()
		if e.how != exeMemfd {
			t.Skip("no memfd here: " + e.how)
		}
		if _, err := e.file.WriteAt([]byte("x"), 0); err == nil {
			t.Error("the copy can be written")
		}
		if err := e.file.Truncate(1); err == nil {
			t.Error("the copy can be cut")
		}
	})
}

func TestChooseCPUs(t *testing.T) {
	for _, n := range []int{1, 2, 100} {
		set := 0
		for _, b := range chooseCPUs(n) {
			for ; b != 0; b &= b - 1 {
				set++
			}
		}
		if set < 1 || set > n {
			t.Errorf("%d processors chosen, want up to %d", set, n)
		}
	}
}
