//go:build linux

package local

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// copyPrograms makes dir a small tree of programs of this machine, with the
// libraries that they need.
func copyPrograms(t testing.TB, dir string, names ...string) {
	t.Helper()
	need := map[string]string{} // where it will be: what it is here
	for _, name := range names {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Skip(err)
		}
		need["/bin/"+name] = path
		out, err := exec.Command("ldd", path).Output()
		if err != nil {
			continue // static
		}
		for _, f := range strings.Fields(string(out)) {
			if strings.HasPrefix(f, "/") {
				need[f] = f
			}
		}
	}
	for to, from := range need {
		to = filepath.Join(dir, to)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		in, err := os.Open(from)
		if err != nil {
			t.Fatal(err)
		}
		out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(out, in); err != nil {
			t.Fatal(err)
		}
		in.Close()
		if err := out.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

var smallPrograms = []string{"sh", "cat", "ls", "id", "touch", "mkdir", "rm", "mv", "dd", "chmod", "stat", "readlink"}

// rootDirOf is a directory in which everybody can look, for a tree.
func rootDirOf(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(testRoot(t), "tree")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func put(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if to, ok := strings.CutPrefix(text, "-> "); ok {
			err = os.Symlink(to, name)
		} else {
			err = os.WriteFile(name, []byte(text), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestRootDir(t *testing.T) {
	needOverlay(t)
	dir := rootDirOf(t)
	copyPrograms(t, dir, smallPrograms...)
	put(t, dir, map[string]string{
		"etc/passwd":      "root:x:0:0:r:/root:/bin/sh\nweb:x:33:33:w:/srv:/bin/sh\nuser:x:7:7::/x:/bin/x\nbad line\nbig:x:70000:1::/:/bin/sh\n",
		"etc/group":       "root:x:0:\nweb:x:33:user\n",
		"etc/own":         "own",
		"data/file":       "data",
		"tmp/hidden":      "hidden",
		"etc/resolv.conf": "nameserver 192.0.2.1\n",
	})
	p := testProvider(t)
	sb := create(t, p, providers.CreateRequest{Root: providers.RootView{Dir: dir}, Volumes: []providers.Volume{{Name: "v", Path: "/data/volume"}}})
	for _, c := range []struct{ script, want string }{
		{"cat /etc/own /data/file", "owndata"},
		{"id -un", "user\n"},
		{"ls /tmp /home/user; ls -d /usr/share 2>/dev/null", "/home/user:\n\n/tmp:\n"},
		{"for d in / /etc /data /bin; do touch $d/x 2>/dev/null && echo $d; done", ""},
		{"cat /etc/resolv.conf", "# this sandbox has no network\n"},
		{"touch /tmp/a /home/user/b /data/volume/c && ls /tmp /home/user /data/volume", "/data/volume:\nc\n\n/home/user:\nb\n\n/tmp:\na\n"},
		{"cat /etc/passwd", "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/sh\nweb:x:33:33:w:/srv:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"},
		{"cat /etc/group", "root:x:0:\nuser:x:1000:\nweb:x:33:user\ntty:x:5:\nnogroup:x:65534:\n"},
		{"readlink /etc/mtab", "/proc/self/mounts\n"},
	} {
		if got, _ := sh(t, sb, c.script); got != c.want {
			t.Errorf("%s: got %q, want %q", c.script, got, c.want)
		}
	}
	r, err := p.Report(t.Context(), sb.ID)
	if err != nil || r.Root != "dir "+dir {
		t.Errorf("report: %+v, %v", r, err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "proc")); err == nil {
		t.Error("the directory was written")
	}
	if err := p.Kill(t.Context(), sb.ID); err != nil {
		t.Fatal(err)
	}
}

// What the links of a tree say must not lead the construction out of it.
func TestRootDirWithHostileLinks(t *testing.T) {
	needOverlay(t)
	dir := rootDirOf(t)
	outside := filepath.Join(filepath.Dir(dir), "outside")
	if err := os.MkdirAll(outside, 0o777); err != nil {
		t.Fatal(err)
	}
	copyPrograms(t, dir, smallPrograms...)
	links := map[string]string{}
	for _, name := range []string{"etc", "proc", "dev", "sys", "tmp", "home", "root", "run", "var", "data"} {
		links[name] = "-> " + outside
	}
	put(t, dir, links)
	p := testProvider(t)
	sb := create(t, p, providers.CreateRequest{User: rootInside(t), Root: providers.RootView{Dir: dir, Writable: true},
		Volumes: []providers.Volume{{Name: "v", Path: "/data/volume"}}, Places: []providers.Place{{Path: "/var/place", Dir: true}}})
	out, _ := sh(t, sb, "touch /etc/x /data/volume/x /var/place/x /tmp/x; ls -d /etc/x /data/volume/x /var/place/x /tmp/x; readlink /etc /proc /dev /tmp /data")
	if want := "/data/volume/x\n/etc/x\n/tmp/x\n/var/place/x\n"; out != want {
		t.Errorf("got %q, want %q", out, want)
	}
	left, err := os.ReadDir(outside)
	if err != nil || len(left) > 0 {
		t.Errorf("outside of the tree there is %v, %v", left, err)
	}
	if err := p.Kill(t.Context(), sb.ID); err != nil {
		t.Fatal(err)
	}
}

func TestRootDirRefused(t *testing.T) {
	p := testProvider(t)
	home, _ := os.UserHomeDir()
	dir := rootDirOf(t)
	put(t, dir, map[string]string{"file": "x", "link": "-> /proc", "up": "-> /"})
	state := p.root
	if err := os.MkdirAll(filepath.Join(state, "local"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"/", "/proc", "/sys", "/dev", "/run", home, "/home", state, state + "/local", dir + "/link", dir + "/up", dir + "/file", dir + "/none", "relative", "/tmp/../proc/self"} {
		_, err := p.Create(t.Context(), providers.CreateRequest{Root: providers.RootView{Dir: d}})
		if errdefs.CodeOf(err) != "E2011" {
			t.Errorf("%s: %v", d, err)
		}
	}
}

func TestWritableRoot(t *testing.T) {
	needOverlay(t)
	dir := rootDirOf(t)
	copyPrograms(t, dir, smallPrograms...)
	put(t, dir, map[string]string{"data/file": "old", "data/gone": "gone"})
	p := testProvider(t)
	req := providers.CreateRequest{User: rootInside(t), Root: providers.RootView{Dir: dir, Writable: true}, Resources: providers.Resources{DiskMiB: 16}}
	sb := create(t, p, req)
	got, _ := sh(t, sb, `echo new > /data/file; rm /data/gone; mkdir /made; echo x > /made/f; mv /bin/touch /bin/t; echo y > /top
cat /data/file /made/f /top; ls /data; ls /bin/t; ls /bin/touch 2>/dev/null; (echo z > /proc/sys/kernel/hostname; echo z > /dev/x) 2>/dev/null`)
	if want := "new\nx\ny\nfile\n/bin/t\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, _ := sh(t, sb, "dd if=/dev/zero of=/data/big bs=1M count=64 2>&1; rm /data/big"); !strings.Contains(got, "No space left") {
		t.Errorf("a full scratch says %q", got)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "data/file")); err != nil || string(b) != "old" {
		t.Errorf("the directory holds %q, %v", b, err)
	}
	if r, err := p.Report(t.Context(), sb.ID); err != nil || r.Root != "dir "+dir+", writable" {
		t.Errorf("report: %+v, %v", r, err)
	}
	if err := p.Kill(t.Context(), sb.ID); err != nil {
		t.Fatal(err)
	}
}

// rootInside is the user that may write all of a tree made by this process.
func rootInside(t testing.TB) string {
	t.Helper()
	if inspectMapping(t) == mapBlock {
		return "root"
	}
	return defaultUser
}

func inspectMapping(t testing.TB) mapKind {
	t.Helper()
	can, err := inspect()
	if err != nil {
		t.Fatal(err)
	}
	return can.mapping
}

func TestWritableHost(t *testing.T) {
	needOverlay(t)
	p := testProvider(t)
	req := providers.CreateRequest{Root: providers.RootView{Writable: true}, User: "root"}
	if inspectMapping(t) != mapBlock {
		req.User = ""
		if _, err := p.Create(t.Context(), req); errdefs.CodeOf(err) != "E8004" {
			t.Errorf("got %v, want E8004", err)
		}
		return
	}
	sb := create(t, p, req)
	marker := fmt.Sprintf("sandbox-marker-%d", os.Getpid())
	got, _ := sh(t, sb, fmt.Sprintf("m=%s; for d in / /usr/bin/ /usr/local/ /etc/ /bin/ /opt/; do mkdir -p $d; echo x > $d$m && cat $d$m; done; rm /usr/bin/env && ls /usr/bin/env 2>&1 | grep -c 'No such'", marker))
	if want := strings.Repeat("x\n", 6) + "1\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, d := range []string{"/", "/usr/bin", "/usr/local", "/etc", "/bin", "/opt"} {
		if _, err := os.Lstat(filepath.Join(d, marker)); err == nil {
			t.Errorf("the marker is in %s of this machine", d)
		}
	}
	if _, err := os.Lstat("/usr/bin/env"); err != nil {
		t.Error(err)
	}
	if r, err := p.Report(t.Context(), sb.ID); err != nil || r.Root != "host, writable" {
		t.Errorf("report: %+v, %v", r, err)
	}
	if err := p.Kill(t.Context(), sb.ID); err != nil {
		t.Fatal(err)
	}
}

func TestExposeRequest(t *testing.T) {
	needIsolation(t)
	dir := filepath.Join(testRoot(t), "shown")
	put(t, dir, map[string]string{"file": "shown"})
	p := testProvider(t)
	sb := create(t, p, providers.CreateRequest{Root: providers.RootView{Expose: []string{dir}}})
	if got, _ := sh(t, sb, "cat "+dir+"/file; touch "+dir+"/x 2>/dev/null || echo refused"); got != "shownrefused\n" {
		t.Errorf("got %q", got)
	}
	if err := p.Kill(t.Context(), sb.ID); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"/", "/proc", "relative", "/etc", p.root, dir + "/none"} {
		if _, err := p.Create(t.Context(), providers.CreateRequest{Root: providers.RootView{Expose: []string{bad}}}); errdefs.CodeOf(err) != "E2011" {
			t.Errorf("%s: %v", bad, err)
		}
	}
}
