//go:build linux

package local

import (
	"context"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// poolProvider has a pool of size, of which nothing may be left when the test
// has ended.
func poolProvider(t testing.TB, size int) *Provider {
	t.Helper()
	needIsolation(t)
	root := testRoot(t)
	t.Cleanup(func() { checkNothingLeft(t, root) })
	p, err := New(providers.Config{StateDir: root, Logger: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
		Settings: map[string]string{settingPool: strconv.Itoa(size)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error("close:", err)
		}
	})
	return p
}

// spares returns the ids of what waits, when n do.
func (p *Provider) spares(t testing.TB, n int) []string {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		p.pool.mu.Lock()
		var ids []string
		for _, s := range p.pool.ready {
			ids = append(ids, s.b.e.id)
		}
		settled := len(ids) == n && p.pool.filling == nil
		p.pool.mu.Unlock()
		if settled {
			return ids
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d sandboxes wait, want %d", len(ids), n)
		}
	}
}

// A creation like the one before gets the sandbox that waits, with a purpose of
// its own, whatever the one before asked for.
func TestPool(t *testing.T) {
	p := poolProvider(t, 1)
	first := create(t, p, providers.CreateRequest{Env: map[string]string{"SECRET": "of the first"}, WorkDir: "/tmp"})
	want := p.spares(t, 1)[0]

	if _, err := p.Get(t.Context(), want); errdefs.CodeOf(err) != "E2020" {
		t.Errorf("what waits can be found: %v", err)
	}
	if err := p.Kill(t.Context(), want); errdefs.CodeOf(err) != "E2020" {
		t.Errorf("what waits can be killed: %v", err)
	}
	page, err := p.List(t.Context(), providers.ListRequest{})
	if err != nil || len(page.Sandboxes) != 1 || page.Sandboxes[0].ID != first.ID {
		t.Errorf("list: %+v, %v", page, err)
	}

	before := time.Now()
	sb := create(t, p, providers.CreateRequest{
		RequestID: "a-new-one", NewID: true, Env: map[string]string{"FRUIT": "pear"}, Lifetime: time.Hour,
		Metadata: map[string]string{"k": "v"},
	})
	if sb.ID != want {
		t.Errorf("sandbox %s was built, while %s waited", sb.ID, want)
	}
	if sb.CreatedAt.Before(before) || sb.ExpiresAt.Before(before.Add(59*time.Minute)) || sb.Metadata["k"] != "v" {
		t.Errorf("got %+v", sb)
	}
	out, _ := sh(t, sb, `echo "$FRUIT,$SECRET,$SANDBOX_ID,$PWD,$(id -un)"`)
	if out != "pear,,"+sb.ID+",/home/user,user\n" {
		t.Errorf("inside: %q", out)
	}
	got, err := p.Get(t.Context(), sb.ID)
	if err != nil || !maps.Equal(got.Metadata, sb.Metadata) || !got.CreatedAt.Equal(sb.CreatedAt) {
		t.Errorf("described as %+v, %v", got, err)
	}
	r, err := p.Report(t.Context(), sb.ID)
	if err != nil || r.Engine != "native" || r.Limits["memory"] == "" {
		t.Errorf("report %+v, %v", r, err)
	}
	if next := p.spares(t, 1)[0]; next == want {
		t.Error("the same sandbox waits again")
	}
}

// What shapes the construction has to be the same.
func TestPoolKeys(t *testing.T) {
	p := poolProvider(t, 2)
	base := providers.CreateRequest{}
	for _, tt := range []struct {
		name string
		req  providers.CreateRequest
		same bool
	}{
		{"environment", providers.CreateRequest{Env: map[string]string{"A": "b"}}, true},
		{"metadata", providers.CreateRequest{Metadata: map[string]string{"A": "b"}}, true},
		{"lifetime", providers.CreateRequest{Lifetime: time.Hour}, true},
		{"detached", providers.CreateRequest{Detached: true}, true},
		{"directory", providers.CreateRequest{WorkDir: "/tmp"}, true},
		{"new id", providers.CreateRequest{RequestID: "x", NewID: true}, true},
		{"template by name", providers.CreateRequest{Template: "base"}, true},
		{"user by name", providers.CreateRequest{User: "user"}, true},
		{"user", providers.CreateRequest{User: "root"}, false},
		{"network", providers.CreateRequest{Network: &providers.NetworkPolicy{Mode: netNone}}, false},
		{"memory", providers.CreateRequest{Resources: providers.Resources{MemoryMiB: 128}}, false},
		{"volume", providers.CreateRequest{Volumes: []providers.Volume{{Name: "v", Path: "/v"}}}, false},
		{"place", providers.CreateRequest{Places: []providers.Place{{Path: "/data", Dir: true}}}, false},
		{"artifact", providers.CreateRequest{Artifacts: []providers.Artifact{{Digest: strings.Repeat("a", 64)}}}, false},
	} {
		a, b := base, tt.req
		if err := checkRequest(&a); err != nil {
			t.Fatal(err)
		}
		tt.req.Artifacts = nil // there is no such file
		if err := checkRequest(&tt.req); err != nil {
			t.Fatal(err)
		}
		b.Template, b.User = tt.req.Template, tt.req.User
		if same := p.pool.key(&a) == p.pool.key(&b); same != tt.same || p.pool.key(&b) == "" {
			t.Errorf("%s: same %v, want %v", tt.name, same, tt.same)
		}
	}
	for name, req := range map[string]providers.CreateRequest{
		"request id": {RequestID: "x"},
		"image":      {Image: "x", NewID: true},
		"snapshot":   {Snapshot: "x"},
		"directory":  {Root: providers.RootView{Dir: "/x"}},
		"list":       {Network: &providers.NetworkPolicy{Mode: "list"}},
	} {
		if p.pool.key(&req) != "" {
			t.Errorf("%s is served from the pool", name)
		}
	}
}

// A creation of another kind does not get what waits, and decides what waits
// from then on.
func TestPoolFollows(t *testing.T) {
	p := poolProvider(t, 1)
	create(t, p, providers.CreateRequest{})
	old := p.spares(t, 1)[0]
	none := providers.CreateRequest{Network: &providers.NetworkPolicy{Mode: netNone}}
	if sb := create(t, p, none); sb.ID == old {
		t.Fatal("a sandbox with another network was given out")
	}
	for deadline := time.Now().Add(20 * time.Second); p.spares(t, 1)[0] == old; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the old kind waits still")
		}
	}
	next := p.spares(t, 1)[0]
	sb := create(t, p, none)
	if sb.ID != next {
		t.Error("a sandbox was built, while one waited")
	}
	r, err := p.Report(t.Context(), sb.ID)
	if err != nil || r.Network != netNone {
		t.Errorf("report %+v, %v", r, err)
	}
}

// An init that died while it waited is noticed: the creation gets a new one.
func TestPoolDead(t *testing.T) {
	p := poolProvider(t, 1)
	create(t, p, providers.CreateRequest{})
	dead := p.spares(t, 1)[0]
	p.pool.mu.Lock()
	init := p.pool.ready[0].b.proc.process
	p.pool.mu.Unlock()
	if err := init.Kill(); err != nil {
		t.Fatal(err)
	}
	sb := create(t, p, providers.CreateRequest{})
	if sb.ID == dead {
		t.Fatal("a dead sandbox was given out")
	}
	if out, _ := sh(t, sb, "echo ok"); out != "ok\n" {
		t.Errorf("got %q", out)
	}
}

// An init that does not react is not waited for longer than a creation lasts,
// and a creation that is cancelled leaves nothing of it.
func TestPoolCancelled(t *testing.T) {
	p := poolProvider(t, 1)
	create(t, p, providers.CreateRequest{})
	id := p.spares(t, 1)[0]
	p.pool.mu.Lock()
	init := p.pool.ready[0].b.proc.process
	p.pool.mu.Unlock()
	if err := exec.Command("kill", "-STOP", strconv.Itoa(init.Pid)).Run(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if sb, err := p.Create(ctx, providers.CreateRequest{}); err == nil {
		t.Fatalf("got %+v", sb)
	}
	if _, err := os.Stat(filepath.Join(p.root, "local", "boxes", id)); err == nil {
		t.Error("the sandbox is left")
	}
}

// Nothing waits longer than the limit, and then nothing is left of it.
func TestPoolIdle(t *testing.T) {
	p := poolProvider(t, 2)
	if err := p.GC(t.Context()); err != nil { // opens the state directory
		t.Fatal(err)
	}
	before := count(t)
	p.pool.idle = 8 * time.Second // two are built in less
	sb := create(t, p, providers.CreateRequest{})
	p.spares(t, 2)
	p.spares(t, 0)
	if err := p.Kill(t.Context(), sb.ID); err != nil {
		t.Fatal(err)
	}
	checkReturned(t, before)
	checkNothingLeft(t, p.root)
	p.pool.mu.Lock()
	defer p.pool.mu.Unlock()
	if p.pool.kick != nil || p.pool.wish != nil {
		t.Error("the keeper has not ended")
	}
}

// A collection takes what waits with it.
func TestPoolCollected(t *testing.T) {
	p := poolProvider(t, 1)
	sb := create(t, p, providers.CreateRequest{})
	p.spares(t, 1)
	if err := p.GC(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.spares(t, 0)
	entries, err := os.ReadDir(filepath.Join(p.root, "local", "boxes"))
	if err != nil || len(entries) != 1 || entries[0].Name() != sb.ID {
		t.Errorf("left: %v, %v", entries, err)
	}
}

// A file or a mount that is new makes what was built before unfit.
func TestPoolView(t *testing.T) {
	p := poolProvider(t, 1)
	vol := providers.CreateRequest{Volumes: []providers.Volume{{Name: "data", Path: "/data"}}}
	create(t, p, vol)
	stale := p.spares(t, 1)[0]
	dir := filepath.Join(p.root, "local", volumesDir, "data")
	if err := os.Rename(dir, dir+"-old"); err != nil {
		t.Fatal(err)
	}
	sb := create(t, p, vol)
	if sb.ID == stale {
		t.Fatal("the sandbox shows a directory that was replaced")
	}
	if out, _ := sh(t, sb, "touch /data/x && echo ok"); out != "ok\n" {
		t.Errorf("got %q", out)
	}
	if _, err := os.Stat(filepath.Join(dir, "x")); err != nil {
		t.Error(err)
	}
}

// Many creations at once never get the same sandbox, with one or several
// waiting.
func TestPoolAtOnce(t *testing.T) {
	p := poolProvider(t, 4)
	create(t, p, providers.CreateRequest{})
	p.spares(t, 4)
	var mu sync.Mutex
	seen := map[string]bool{}
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Go(func() {
			me := strconv.Itoa(i)
			sb, err := p.Create(t.Context(), providers.CreateRequest{Env: map[string]string{"ME": me}, Detached: i%4 == 0})
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			if seen[sb.ID] {
				t.Errorf("sandbox %s was given out twice", sb.ID)
			}
			seen[sb.ID] = true
			mu.Unlock()
			if out, _, err := shell(t.Context(), sb, `echo "$ME"`); out != me+"\n" || err != nil {
				t.Errorf("got %q, %v", out, err)
			}
			if err := p.Kill(t.Context(), sb.ID); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// Close during a construction ends it.
func TestPoolClose(t *testing.T) {
	for _, wait := range []time.Duration{0, time.Millisecond, 3 * time.Millisecond, 10 * time.Millisecond} {
		p := poolProvider(t, 3)
		create(t, p, providers.CreateRequest{})
		time.Sleep(wait)
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		checkNothingLeft(t, p.root)
	}
}

// A sandbox of the pool lives on when it was made detached, and its lifetime
// counts from when it was given out.
func TestPoolDetached(t *testing.T) {
	p := poolProvider(t, 1)
	create(t, p, providers.CreateRequest{})
	want := p.spares(t, 1)[0]
	const lifetime = 3 * time.Second
	asked := time.Now()
	sb := create(t, p, providers.CreateRequest{Detached: true, Lifetime: lifetime})
	if sb.ID != want {
		t.Fatal("not from the pool")
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	q := openProvider(t, p.root)
	if _, err := q.Get(t.Context(), sb.ID); err != nil && time.Since(asked) < lifetime {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if _, err := q.Get(t.Context(), sb.ID); errdefs.CodeOf(err) == "E2021" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("it does not end")
		}
	}
}

// What waits ends with its client, whatever ends that.
func TestPoolClientKilled(t *testing.T) {
	needIsolation(t)
	root := testRoot(t)
	cmd, _, _ := startClient(t, envState+"="+root, envPool+"=1")
	var ids []string
	for deadline := time.Now().Add(20 * time.Second); len(ids) < 2; time.Sleep(5 * time.Millisecond) {
		names, _ := filepath.Glob(filepath.Join(root, "local", "boxes", "*", "spare.json"))
		ids, _ = filepath.Glob(filepath.Join(root, "local", "boxes", "*", "rt.sock"))
		if len(names) == 0 {
			ids = nil
		}
		if time.Now().After(deadline) {
			t.Fatal("nothing waits")
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	q := openProvider(t, root)
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if err := q.GC(t.Context()); err != nil {
			t.Fatal(err)
		}
		left, _ := filepath.Glob(filepath.Join(root, "local", "boxes", "*"))
		if len(left) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("left: %v", left)
		}
	}
	checkNothingLeft(t, root)
	for i := range ids {
		ids[i] = filepath.Base(filepath.Dir(ids[i]))
	}
	checkNoGroups(t, q.groups(), ids)
}

// Settings that make no sense are refused.
func TestPoolSetting(t *testing.T) {
	for _, v := range []string{"", "-1", "x", "65", "1.5"} {
		if _, err := New(providers.Config{StateDir: "/x", Settings: map[string]string{settingPool: v}}); errdefs.CodeOf(err) != "E8007" {
			t.Errorf("%q: %v", v, err)
		}
	}
}
