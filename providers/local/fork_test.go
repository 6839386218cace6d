//go:build linux

package local

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/internal/layertar"
	"github.com/agent-sandbox/sandbox-go/providers"
)

// treeBytes is what the files below dir take, each counted once, as far as this
// user may look.
func treeBytes(t testing.TB, dir string) int64 {
	t.Helper()
	var n int64
	seen := map[uint64]bool{}
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil && unix.Lstat(path, &st) == nil && !seen[st.Ino] {
			seen[st.Ino] = true
			n += st.Blocks * 512
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestManyForks makes many sandboxes of one with a large file: the file is there
// once, and each sandbox writes to a place of its own.
func TestManyForks(t *testing.T) {
	const forks, size = 20, 64 << 20
	p := snapshotProvider(t)
	a := create(t, p, providers.CreateRequest{})
	mustSh(t, a, "head -c "+strconv.Itoa(size)+" /dev/urandom > /home/user/big; echo start > /home/user/small")
	sum := mustSh(t, a, "sha256sum < /home/user/big")
	s := snapshot(t, p, a.ID)
	var boxes [forks]*providers.Sandbox
	var wg sync.WaitGroup
	for i := range boxes {
		wg.Go(func() {
			var err error
			if boxes[i], err = p.Create(t.Context(), providers.CreateRequest{Snapshot: s.ID}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	if n := treeBytes(t, filepath.Join(p.tree.path, layersDir)); n < size || n > size+size/4 {
		t.Errorf("layers of %d sandboxes take %d bytes, and the file has %d", forks, n, size)
	}
	uppers := map[string]bool{}
	for i, sb := range boxes {
		n := strconv.Itoa(i)
		mustSh(t, sb, "cd /home/user; echo "+n+" >> small; printf "+n+" | dd of=big conv=notrunc 2>/dev/null; echo x > only-"+n)
		uppers[mustSh(t, sb, "stat -c %d /run /home/user")] = true
	}
	if len(uppers) != forks {
		t.Errorf("%d sandboxes write to %d file systems", forks, len(uppers))
	}
	for i, sb := range boxes {
		n := strconv.Itoa(i)
		if out := mustSh(t, sb, "cd /home/user; cat small; head -c "+strconv.Itoa(len(n))+" big; echo; ls"); out != "start\n"+n+"\n"+n+"\nbig\nonly-"+n+"\nsmall\n" {
			t.Errorf("sandbox %d: %q", i, out)
		}
	}
	b := create(t, p, providers.CreateRequest{Snapshot: s.ID})
	if out := mustSh(t, b, "cat /home/user/small; ls /home/user; sha256sum < /home/user/big"); out != "start\nbig\nsmall\n"+sum {
		t.Errorf("a later one: %q", out)
	}
	if out := mustSh(t, a, "cat /home/user/small; sha256sum < /home/user/big"); out != "start\n"+sum {
		t.Errorf("the parent: %q", out)
	}
}

// TestSnapshotOfHostileTree keeps files that were made to harm whoever copies,
// shows or removes them.
func TestSnapshotOfHostileTree(t *testing.T) {
	p := snapshotProvider(t)
	outside := t.TempDir()
	canary := filepath.Join(outside, "canary")
	if err := os.WriteFile(canary, []byte("alive"), 0o666); err != nil {
		t.Fatal(err)
	}
	a := create(t, p, providers.CreateRequest{})
	mustSh(t, a, `cd /home/user
ln -s `+canary+` file; ln -s `+outside+` dir; ln -s / root; ln -s ../../../../../.. up; ln -s loop loop; ln -s /proc/self/root/etc/shadow shadow
mkdir -p .wh..wh.opq d/.wh.x; touch .wh.file 'a
b' "$(printf '\033[2J')" -- -rf; mkfifo pipe; cp /bin/true suid; chmod 6777 suid; mkdir -m 0 shut; truncate -s 400M huge
cd d; for i in $(seq 200); do mkdir xxxxxxxxxxxxxx && cd xxxxxxxxxxxxxx || break; done; touch bottom
cd /home/user; i=0; while [ $i -lt 50 ]; do ln file hard$i; i=$((i+1)); done; setfattr -n user.overlay.opaque -v y d 2>/dev/null; setfattr -n user.overlay.redirect -v /etc d 2>/dev/null; true`)
	s := snapshot(t, p, a.ID)
	b := create(t, p, providers.CreateRequest{Snapshot: s.ID})
	out := mustSh(t, b, `cd /home/user; readlink file dir; stat -c %a suid; ls -d .wh.file .wh..wh.opq d/.wh.x; [ -e pipe ] && echo pipe; stat -c '%s %b' huge; find d -name bottom | wc -l; echo dead > file; echo dead > dir/canary; ls -d hard* | wc -l`+" 2>/dev/null; true")
	if want := canary + "\n" + outside + "\n777\n"; !strings.HasPrefix(out, want) || !strings.Contains(out, ".wh..wh.opq\n.wh.file\nd/.wh.x\n419430400 0\n1\n") || !strings.HasSuffix(out, "\n50\n") {
		t.Errorf("%q", out)
	}
	mustSh(t, b, "chmod 700 /home/user/shut; rm -rf /home/user/d /home/user/.wh..wh.opq")
	s2 := snapshot(t, p, b.ID)
	create(t, p, providers.CreateRequest{Snapshot: s2.ID})
	for _, id := range []string{s.ID, s2.ID} {
		if err := p.DeleteSnapshot(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
	for _, sb := range []string{a.ID, b.ID} {
		if err := p.Kill(t.Context(), sb); err != nil {
			t.Error(err)
		}
	}
	if text, err := os.ReadFile(canary); err != nil || string(text) != "alive" {
		t.Errorf("outside: %q, %v", text, err)
	}
}

// TestHibernateKeepsNetwork wakes a sandbox with a list of rules.
func TestHibernateKeepsNetwork(t *testing.T) {
	needOverlay(t)
	w := newNetWorld(t, nil, nil)
	sb := w.sandbox(t, "good.test:PORT")
	look := func(sb *providers.Sandbox) (out string) {
		t.Helper()
		for _, host := range []string{"good.test:" + strconv.Itoa(w.port), "other.test:" + strconv.Itoa(w.port), "good.test:" + strconv.Itoa(portOf(t, w.secret))} {
			out += play(t, sb, defaultUser, "fetch", "http://"+host+"/") + "\n"
		}
		return out
	}
	if out := look(sb); !strings.HasPrefix(out, "200 "+goodText+"\n403 ") || strings.Contains(out, secretText) {
		t.Fatalf("before: %q", out)
	}
	before := look(sb)
	for range 2 {
		if err := w.p.Hibernate(t.Context(), sb.ID); err != nil {
			t.Fatal(err)
		}
		var err error
		if sb, err = w.p.Connect(t.Context(), sb.ID, providers.ConnectRequest{}); err != nil {
			t.Fatal("wake:", err)
		}
		if out := look(sb); out != before {
			t.Errorf("woken: %q, before: %q", out, before)
		}
	}
}

// BenchmarkFork compares a sandbox that starts with files with one that starts
// without, and the time that files take to be kept with the time that an archive
// of the same directory takes. Only ratios carry over to other machines.
func BenchmarkFork(b *testing.B) {
	needOverlay(b)
	const size = 64 << 20
	p := testProvider(b)
	ctx := context.Background()
	a := create(b, p, providers.CreateRequest{})
	if _, _, err := shell(ctx, a, "head -c "+strconv.Itoa(size)+" /dev/urandom > /home/user/big"); err != nil {
		b.Fatal(err)
	}
	s, err := p.Snapshot(ctx, a.ID, providers.SnapshotRequest{})
	if err != nil {
		b.Fatal(err)
	}
	plain, out := b.TempDir(), b.TempDir()
	if _, err := fillFile(plain, size); err != nil {
		b.Fatal(err)
	}
	var create, fork, keep, pack time.Duration
	took := func(f func() error) time.Duration {
		start := time.Now()
		if err := f(); err != nil {
			b.Fatal(err)
		}
		return time.Since(start)
	}
	start := func(req providers.CreateRequest) time.Duration {
		var sb *providers.Sandbox
		d := took(func() (err error) { sb, err = p.Create(ctx, req); return err })
		if err := p.Kill(ctx, sb.ID); err != nil {
			b.Fatal(err)
		}
		return d
	}
	rounds := 0
	for b.Loop() {
		rounds++
		create += start(providers.CreateRequest{})
		fork += start(providers.CreateRequest{Snapshot: s.ID})
		var again *providers.Snapshot
		keep += took(func() (err error) { again, err = p.Snapshot(ctx, a.ID, providers.SnapshotRequest{}); return err })
		if err := p.DeleteSnapshot(ctx, again.ID); err != nil {
			b.Fatal(err)
		}
		pack += took(func() error { return packTo(plain, filepath.Join(out, "tar")) })
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(fork)/float64(create), "fork/create")
	b.ReportMetric(float64(keep)/float64(pack), "snapshot/tar")
	b.Logf("a creation %v, a fork %v; files kept with %.0f MB/s, an archive written with %.0f MB/s", create/time.Duration(rounds), fork/time.Duration(rounds),
		float64(rounds)*size/1e6/keep.Seconds(), float64(rounds)*size/1e6/pack.Seconds())
	if err := p.DeleteSnapshot(ctx, s.ID); err != nil {
		b.Error(err)
	}
}

// fillFile fills a file with what does not compress or repeat.
func fillFile(dir string, size int) (string, error) {
	name := filepath.Join(dir, "big")
	block := make([]byte, 1<<20)
	f, err := os.Create(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	for range size >> 20 {
		for i := range block {
			block[i] = byte(i*7 + i>>8)
		}
		if _, err := f.Write(block); err != nil {
			return "", err
		}
	}
	return name, nil
}

// packTo writes an archive of dir that survives a power failure, as layers do.
func packTo(dir, to string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	f, err := os.Create(to)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := layertar.Pack(f, d, layertar.PackOptions{}); err != nil {
		return err
	}
	return f.Sync()
}
