//go:build linux

package local

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// TestHibernateHolds ends the context of a hibernation in the moment after which
// nobody can give up any more: the sandbox is asleep then, with its files.
func TestHibernateHolds(t *testing.T) {
	p := snapshotProvider(t)
	a := create(t, p, providers.CreateRequest{})
	mustSh(t, a, "echo 1 > /home/user/f")
	e, err := p.tree.openEntry(a.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer e.close()
	var conf savedConfig
	if err := e.load(fileConfig, &conf); err != nil {
		t.Fatal(err)
	}
	for _, late := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		c, err := p.tree.takeFiles(ctx, e, opHibernate, &conf)
		if err != nil {
			t.Fatal(err)
		}
		defer c.close()
		if !late {
			cancel()
			if err := c.hold(); err == nil {
				t.Error("a hibernation goes on after it was given up")
			}
			c.close()
			mustSh(t, a, "cat /home/user/f")
			continue
		}
		if err := c.hold(); err != nil {
			t.Fatal(err)
		}
		cancel()
		if err := c.commit(); err != nil {
			t.Errorf("commit: %v", err)
		}
	}
	// There was no file to start from.
	if _, err := p.Get(t.Context(), a.ID); errdefs.CodeOf(err) == "" {
		t.Errorf("sandbox goes on: %v", err)
	}
}

// TestWakeUndone closes a provider at the end of a wake: the sandbox sleeps on.
func TestWakeUndone(t *testing.T) {
	for _, detached := range []bool{false, true} {
		p := snapshotProvider(t)
		a := create(t, p, providers.CreateRequest{Detached: detached})
		mustSh(t, a, "echo 1 > /home/user/f")
		if err := p.Hibernate(t.Context(), a.ID); err != nil {
			t.Fatal(err)
		}
		closed := func(v bool) {
			p.mu.Lock()
			p.closed = v
			p.mu.Unlock()
		}
		e, err := p.tree.openEntry(a.ID)
		if err != nil {
			t.Fatal(err)
		}
		defer e.close()
		lock, err := e.dir.tryLock(fileLock)
		if err != nil {
			t.Fatal(err)
		}
		o, err := p.wakeOrder(t.Context(), p.tree, e, 0)
		if err != nil {
			t.Fatal(err)
		}
		closed(true)
		_, err = p.build(t.Context(), p.tree, e, lock, nil, o)
		closed(false)
		if errdefs.CodeOf(err) != "E8000" {
			t.Errorf("wake: %v", err)
		}
		sb, err := p.Connect(t.Context(), a.ID, providers.ConnectRequest{})
		if err != nil {
			t.Fatal("connect:", err)
		}
		if out := mustSh(t, sb, "cat /home/user/f"); out != "1\n" {
			t.Errorf("%q", out)
		}
		if err := p.Kill(t.Context(), a.ID); err != nil {
			t.Error(err)
		}
	}
}

// TestWakeFromImage makes a sandbox of an image sleep again and again, and what
// was made from its snapshot.
func TestWakeFromImage(t *testing.T) {
	dir := rootDirOf(t)
	copyPrograms(t, dir, smallPrograms...)
	put(t, dir, map[string]string{"etc/passwd": "root:x:0:0:r:/root:/bin/sh\nweb:x:33:33:w:/nowhere:/bin/sh\n", "etc/group": "web:x:33:\n"})
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := errors.Join(w.AddFS(os.DirFS(dir)), w.Close()); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(b.Bytes())
	layer := hex.EncodeToString(sum[:])
	before := findImage
	findImage = func(context.Context, string) (*FoundImage, error) {
		return &FoundImage{Digest: "sha256:" + layer, Load: func(context.Context) (*Image, error) {
			return &Image{Config: ImageConfig{User: "web"}, Layers: []ImageLayer{{Digest: layer, Open: func(context.Context) (io.ReadCloser, error) {
				return io.NopCloser(bytes.NewReader(b.Bytes())), nil
			}}}}, nil
		}}, nil
	}
	t.Cleanup(func() { findImage = before })

	p := snapshotProvider(t)
	twice := func(sb *providers.Sandbox) {
		t.Helper()
		for range 2 {
			if err := p.Hibernate(t.Context(), sb.ID); err != nil {
				t.Fatal("hibernate:", err)
			}
			woken, err := p.Connect(t.Context(), sb.ID, providers.ConnectRequest{})
			if err != nil {
				t.Fatal("wake:", err)
			}
			if woken.Template != "reg.test/i" {
				t.Errorf("template %q", woken.Template)
			}
		}
	}
	a := create(t, p, providers.CreateRequest{Image: "reg.test/i"})
	if a.DefaultUser == "web" { // not with one user only
		// Its home is not there.
		if out := mustSh(t, a, "pwd"); out != "/\n" {
			t.Errorf("commands start in %q", out)
		}
	}
	mustSh(t, a, "echo x > /tmp/f")
	twice(a)
	s := snapshot(t, p, a.ID)
	f := create(t, p, providers.CreateRequest{Snapshot: s.ID, User: a.DefaultUser})
	twice(f)
	for _, req := range []providers.CreateRequest{
		{Snapshot: s.ID, Image: "reg.test/i"},
		{Snapshot: s.ID, Root: providers.RootView{Dir: dir}},
	} {
		if _, err := p.Create(t.Context(), req); errdefs.CodeOf(err) != "E2011" {
			t.Errorf("%+v: %v", req, err)
		}
	}
	if _, err := p.Create(t.Context(), providers.CreateRequest{Snapshot: s.ID, User: "nobody-here"}); errdefs.CodeOf(err) != "E3008" {
		t.Errorf("user of nobody: %v", err)
	}
}

// TestForkPlaceOfAnotherKind puts a file where the snapshot has a directory.
func TestForkPlaceOfAnotherKind(t *testing.T) {
	p := snapshotProvider(t)
	a := create(t, p, providers.CreateRequest{Places: []providers.Place{{Path: "/place", Dir: true}}})
	s := snapshot(t, p, a.ID)
	if _, err := p.Create(t.Context(), providers.CreateRequest{Snapshot: s.ID, Places: []providers.Place{{Path: "/place"}}}); errdefs.CodeOf(err) != "E2011" {
		t.Errorf("create: %v", err)
	}
	if _, err := p.Create(t.Context(), providers.CreateRequest{Snapshot: s.ID, User: "web"}); errdefs.CodeOf(err) != "E3008" {
		t.Errorf("user: %v", err)
	}
}

// TestWakeLifetime gives one life more time: later ones have that of the creation.
func TestWakeLifetime(t *testing.T) {
	p := snapshotProvider(t)
	a := create(t, p, providers.CreateRequest{Lifetime: time.Hour})
	for _, c := range []struct{ ask, want time.Duration }{{5 * time.Hour, 5 * time.Hour}, {0, time.Hour}} {
		if err := p.Hibernate(t.Context(), a.ID); err != nil {
			t.Fatal(err)
		}
		sb, err := p.Connect(t.Context(), a.ID, providers.ConnectRequest{Lifetime: c.ask})
		if err != nil {
			t.Fatal(err)
		}
		if left := time.Until(sb.ExpiresAt); left > c.want || left < c.want-10*time.Minute {
			t.Errorf("asked for %v: it has %v", c.ask, left)
		}
	}
}

// TestCancelledCreate gives a creation too little time, in many ways.
func TestCancelledCreate(t *testing.T) {
	p := testProvider(t)
	for d := time.Duration(0); d < 40*time.Millisecond; d += 2 * time.Millisecond {
		ctx, cancel := context.WithTimeout(t.Context(), d)
		sb, err := p.Create(ctx, providers.CreateRequest{})
		cancel()
		if err == nil {
			if err := p.Kill(t.Context(), sb.ID); err != nil {
				t.Error(err)
			}
		} else if errdefs.CodeOf(err) != "E5002" {
			t.Errorf("after %v: %v", d, err)
		}
	}
	late, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	if err := orCancelled(late, "test", &IsolationError{Err: os.ErrDeadlineExceeded}); errdefs.CodeOf(err) != "E5002" {
		t.Errorf("a refusal of the last moment: %v", err)
	}
	if err := orCancelled(t.Context(), "test", os.ErrDeadlineExceeded); err != os.ErrDeadlineExceeded {
		t.Errorf("somebody else's deadline: %v", err)
	}
}

// TestSleepKeepsArtifacts lets seven days pass for an executable of a sandbox
// that hibernates.
func TestSleepKeepsArtifacts(t *testing.T) {
	p := snapshotProvider(t)
	content := []byte("#!/bin/sh\necho hi\n")
	sum := sha256.Sum256(content)
	digest, src := hex.EncodeToString(sum[:]), filepath.Join(t.TempDir(), "prog")
	if err := os.WriteFile(src, content, 0o755); err != nil {
		t.Fatal(err)
	}
	a := create(t, p, providers.CreateRequest{Artifacts: []providers.Artifact{{Digest: digest, Path: src}}})
	if err := os.Remove(src); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-storeKeep - time.Hour)
	collect := func() {
		t.Helper()
		if err := errors.Join(os.Chtimes(filepath.Join(p.store.path, digest), old, old), p.GC(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	collect()
	if err := p.Hibernate(t.Context(), a.ID); err != nil {
		t.Fatal(err)
	}
	collect()
	if _, err := p.Connect(t.Context(), a.ID, providers.ConnectRequest{}); err != nil {
		t.Fatal("wake:", err)
	}
	if err := p.Kill(t.Context(), a.ID); err != nil {
		t.Fatal(err)
	}
	collect()
	if p.store.has(digest) {
		t.Error("nobody has it any more")
	}
}

// TestDamagedSnapshot makes one snapshot unreadable: the others are not touched
// by that, and no layer is removed.
func TestDamagedSnapshot(t *testing.T) {
	p := snapshotProvider(t)
	a := create(t, p, providers.CreateRequest{})
	mustSh(t, a, "echo 1 > /home/user/f")
	bad := snapshot(t, p, a.ID)
	mustSh(t, a, "echo 2 > /home/user/f")
	good := snapshot(t, p, a.ID)
	d, err := p.tree.snapshots.sub(bad.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	left := newPrefix + snapshotPrefix + randomText(idLength)
	if err := errors.Join(d.write(fileMeta, []byte("{")), p.tree.snapshots.mkdir(left), p.tree.snapshots.mkdir(snapshotPrefix+randomText(idLength))); err != nil {
		t.Fatal(err)
	}
	page, err := p.ListSnapshots(t.Context(), providers.SnapshotListRequest{})
	if err != nil || len(page.Snapshots) != 1 || page.Snapshots[0].ID != good.ID {
		t.Errorf("list: %+v, %v", page, err)
	}
	if err := p.DeleteSnapshot(t.Context(), good.ID); err != nil {
		t.Error("delete:", err)
	}
	if err := p.GC(t.Context()); err != nil {
		t.Error("gc:", err)
	}
	if names := layerNames(t, p); len(names) != 2 {
		t.Errorf("layers %q", names)
	}
	if names, err := p.tree.snapshots.allNames(); err != nil || len(names) != 1 {
		t.Errorf("snapshots %q, %v", names, err)
	}
	if err := p.DeleteSnapshot(t.Context(), bad.ID); err != nil {
		t.Error("delete:", err)
	}
	if names := layerNames(t, p); len(names) != 0 {
		t.Errorf("layers %q", names)
	}
}

// TestSleepSquashed makes a sandbox sleep so often that its layers become one: the
// others are gone then.
func TestSleepSquashed(t *testing.T) {
	p := snapshotProvider(t)
	a := create(t, p, providers.CreateRequest{})
	for i := range maxLayers + 1 {
		mustSh(t, a, "date +%N > /home/user/f"+strconv.Itoa(i))
		if err := p.Hibernate(t.Context(), a.ID); err != nil {
			t.Fatal(err)
		}
		if i == maxLayers {
			break
		}
		var err error
		if a, err = p.Connect(t.Context(), a.ID, providers.ConnectRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	if names := layerNames(t, p); len(names) != 1 {
		t.Errorf("%d layers", len(names))
	}
	sb, err := p.Connect(t.Context(), a.ID, providers.ConnectRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if out := mustSh(t, sb, "ls /home/user | grep -c ^f"); out != strconv.Itoa(maxLayers+1)+"\n" {
		t.Errorf("files: %q", out)
	}
}

// TestNameOfOddRequests asks checkHTTP about first lines that servers may read in
// another way than it.
func TestNameOfOddRequests(t *testing.T) {
	for _, c := range []struct {
		text    string
		refused bool
	}{
		{"GET /\xff HTTP/1.1\r\nHost: evil.test\r\n\r\n", true},
		{"GET /\xff HTTP/1.1\r\nHost: good.test\r\n\r\n", false},
		{"GET\t/ HTTP/1.1\r\nHost: evil.test\r\n\r\n", true},
		{"GET\xa0/\xa0HTTP/1.1\r\nHost: evil.test\r\n\r\n", true},
		{"GET /\x01 HTTP/1.1\r\nHost: good.test\r\n\r\n", true},
		{"GET / HTTP/1.1\xff\r\nHost: evil.test\r\n\r\n", true},
		{"GET / HTTP/1.1\r\nX: a\rHost: evil.test\r\n\r\n", true},
		{"GET / HTTP/1.1\r\nHost: evil.test", true},
		{"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", true},
		{"0033git-upload-pack /p.git\x00host=good.test\x00", false},
		{"*1\r\n$4\r\nPING\r\n", false},
		{"EHLO good.test\r\n", false},
		{"SSH-2.0-x y\r\n", false},
		{"\x00\x01\x02", false},
		{"a\x00b", false},
	} {
		err := checkName(&recorder{r: strings.NewReader(c.text)}, "good.test")
		if r, ok := errors.AsType[*refusal](err); ok != c.refused || err != nil && !ok {
			t.Errorf("%q: %v %v", c.text, r, err)
		}
	}
}
