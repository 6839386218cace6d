//go:build linux

package local

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// TestVolume writes to a volume in one sandbox and looks at it in others, whose
// ids outside are different ones when root makes them.
func TestVolume(t *testing.T) {
	p := testProvider(t)
	with := func(at string, readOnly bool) providers.CreateRequest {
		return providers.CreateRequest{Volumes: []providers.Volume{{Name: "data", Path: at, ReadOnly: readOnly}}}
	}
	first := create(t, p, with("/data", false))
	second := create(t, p, with("/home/user/a/b", false))
	reader := create(t, p, with("/srv/data", true))
	for _, c := range []struct {
		sb           *providers.Sandbox
		script, want string
	}{
		{first, "cd /data; ls -A; stat -c '%u %g %a' .; echo one > f; chmod 600 f; stat -c '%u %g %a' f; mkdir -p d/e; cp /bin/true d/e/t; d/e/t && echo runs", "1000 1000 777\n1000 1000 600\nruns\n"},
		{second, "cd ~/a/b; cat f; stat -c '%u %a' f; echo two >> f; mv d/e g; rmdir d; ls; touch ../mine && echo own", "one\n1000 600\nf\ng\nown\n"},
		{reader, "cd /srv/data; cat f; (echo x > f) || echo no; (echo x > n) || echo no; rm -f f || echo no", "one\ntwo\nno\nno\nno\n"},
		{first, "cat /data/f; rm -r /data/g; grep -c nosuid,nodev /proc/self/mountinfo > /dev/null; grep ' /data ' /proc/self/mountinfo | grep -c 'rw,nosuid,nodev'", "one\ntwo\n1\n"},
		{first, "(mknod /data/null c 1 3) || echo no; dd if=/dev/zero of=/data/big bs=1M count=1 seek=1000 && stat -c %s /data/big; rm /data/big; touch /etc/x || echo closed", "no\n1049624576\nclosed\n"},
	} {
		out, _ := sh(t, c.sb, "exec 2>/dev/null; "+c.script)
		if out != c.want {
			t.Errorf("%s\n got %q\nwant %q", c.script, out, c.want)
		}
	}
	if mappingKind() != mapSingle { // another user of the sandbox
		root := create(t, p, providers.CreateRequest{User: "root", Volumes: with("/data", false).Volumes})
		if out, _ := sh(t, root, "id -u; echo x > /data/root; stat -c %u /data/root /data/f; exec 2>/dev/null; cat /data/f || echo private"); out != "0\n0\n1000\nprivate\n" {
			t.Errorf("root inside: %q", out)
		}
	}
	dir := filepath.Join(p.root, "local", volumesDir)
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(dir, "data", "f"), &st); err != nil {
		t.Fatal(err)
	}
	switch owner := int(st.Uid); {
	case os.Geteuid() != 0 && owner != os.Geteuid(), os.Geteuid() == 0 && owner != volumeIDs+userID:
		t.Errorf("outside, the file belongs to %d", owner)
	}
	if fi, err := os.Stat(dir); err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", fi.Mode(), err)
	}
	for _, sb := range []*providers.Sandbox{first, second, reader} {
		if err := p.Kill(t.Context(), sb.ID); err != nil {
			t.Error(err)
		}
	}
	if b, err := os.ReadFile(filepath.Join(dir, "data", "f")); err != nil || string(b) != "one\ntwo\n" {
		t.Errorf("after the sandboxes: %q, %v", b, err)
	}
	if r, err := p.Report(t.Context(), create(t, p, with("/data", true)).ID); err != nil || strings.Join(r.Volumes, "") != "data at /data, read-only" {
		t.Errorf("report %+v, %v", r, err)
	}
}

// TestVolumeAtOnce makes a volume from several sandboxes at the same moment.
func TestVolumeAtOnce(t *testing.T) {
	p := testProvider(t)
	var wg sync.WaitGroup
	for _, name := range []string{"a", "b", "c", "d"} {
		sb := make(chan *providers.Sandbox, 1)
		wg.Go(func() {
			defer close(sb)
			s, err := p.Create(t.Context(), providers.CreateRequest{Volumes: []providers.Volume{{Name: "new", Path: "/data"}}})
			if err != nil {
				t.Error(err)
				return
			}
			sb <- s
		})
		wg.Go(func() {
			if s := <-sb; s != nil {
				sh(t, s, "for i in 1 2 3 4 5 6 7 8 9; do echo "+name+"$i >> /data/log; done")
			}
		})
	}
	wg.Wait()
	b, err := os.ReadFile(filepath.Join(p.root, "local", volumesDir, "new", "log"))
	if err != nil || strings.Count(string(b), "\n") != 36 {
		t.Errorf("%q, %v", b, err)
	}
	all, err := os.ReadDir(filepath.Join(p.root, "local", volumesDir))
	if err != nil || len(all) != 1 {
		t.Errorf("volumes %v, %v", all, err)
	}
}

func TestPlaces(t *testing.T) {
	p := testProvider(t)
	sb := create(t, p, providers.CreateRequest{Places: []providers.Place{
		{Path: "/models", Dir: true}, {Path: "/models/deep/file"}, {Path: "/x"}, {Path: "/etc/app.conf"}, {Path: "/tmp/free"}, {Path: "/home/user/d", Dir: true},
	}})
	out, _ := sh(t, sb, "exec 2>/dev/null; stat -c '%u %a %F %n' /models /x /etc/app.conf; mkdir /models/deep; echo hi > /models/deep/file; echo x > /x; echo c > /etc/app.conf; cat /models/deep/file /x /etc/app.conf; ls /tmp /home/user; (echo x > /y) || echo no; (echo x > /etc/y) || echo no")
	if want := "1000 755 directory /models\n1000 644 regular empty file /x\n1000 644 regular empty file /etc/app.conf\nhi\nx\nc\n/home/user:\n\n/tmp:\nno\nno\n"; out != want {
		t.Errorf("got %q\nwant %q", out, want)
	}
}

func TestPlacesRefused(t *testing.T) {
	volume := func(name, at string) providers.CreateRequest {
		return providers.CreateRequest{Volumes: []providers.Volume{{Name: name, Path: at}}}
	}
	for _, r := range []providers.CreateRequest{
		volume("../x", "/data"), volume("", "/data"), volume(".x", "/data"), volume("a/b", "/data"), volume(strings.Repeat("a", 65), "/data"),
		volume("a", ""), volume("a", "/"), volume("a", "data"), volume("a", "/data/"), volume("a", "/data/../etc"),
		volume("a", "/etc"), volume("a", "/etc/passwd"), volume("a", "/usr"), volume("a", "/usr/x"), volume("a", "/bin"), volume("a", "/proc/x"), volume("a", "/sys"),
		volume("a", "/dev/x"), volume("a", "/run/sandbox/x"), volume("a", "/run"), volume("a", "/tmp"), volume("a", "/home"), volume("a", "/home/user"), volume("a", "/var"),
		{Volumes: []providers.Volume{{Name: "a", Path: "/data"}, {Name: "b", Path: "/data"}}},
		{Volumes: []providers.Volume{{Name: "a", Path: "/data/x"}, {Name: "b", Path: "/data"}}},
		{Volumes: make([]providers.Volume, maxVolumes+1)},
		{Places: []providers.Place{{Path: "/usr/x"}}}, {Places: []providers.Place{{Path: "/etc", Dir: true}}}, {Places: []providers.Place{{Path: "/"}}},
		{Places: []providers.Place{{Path: "/a"}, {Path: "/a/b"}}}, {Places: []providers.Place{{Path: "/etc/hosts"}}},
	} {
		if _, err := checkPlaces(&r, nil); errdefs.CodeOf(err) != "E2011" {
			t.Errorf("%v %v: %v", r.Volumes, r.Places, err)
		}
	}
	r := volume("a", "/opt/tool/x")
	if _, err := checkPlaces(&r, []string{"/opt/tool"}); errdefs.CodeOf(err) != "E2011" {
		t.Errorf("in an exposed tree: %v", err)
	}
	for _, r := range []providers.CreateRequest{{Resources: providers.Resources{GPU: "A10"}}} {
		if err := checkRequest(&r); errdefs.CodeOf(err) != "E8004" {
			t.Errorf("%+v: %v", r, err)
		}
	}
}
