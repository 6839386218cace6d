//go:build linux

package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/internal/envd"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// needIsolation skips the test where no sandbox can be built. In CI that is a
// failure.
func needIsolation(t testing.TB) {
	t.Helper()
	err := probe(context.Background())
	switch {
	case err == nil:
	case errors.Is(err, errdefs.ErrIsolation) && os.Getenv("CI") == "":
		t.Skip(err)
	default:
		t.Fatal(err)
	}
}

func openProvider(t testing.TB, root string) *Provider {
	t.Helper()
	needIsolation(t)
	p, err := New(providers.Config{StateDir: root, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)), Settings: map[string]string{settingPool: "0"}})
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

// testProvider is a provider with a state directory of its own, of which
// nothing may be left when the test has ended.
func testProvider(t testing.TB) *Provider {
	t.Helper()
	root := testRoot(t)
	t.Cleanup(func() { checkNothingLeft(t, root) })
	return openProvider(t, root)
}

// checkNothingLeft looks for directories, leases and groups.
func checkNothingLeft(t testing.TB, root string) {
	t.Helper()
	for _, d := range []string{"boxes", "ids"} {
		names, err := filepath.Glob(filepath.Join(root, "local", d, "*"))
		if err != nil || len(names) > 0 {
			t.Errorf("left: %q, %v", names, err)
		}
	}
}

func create(t testing.TB, p *Provider, req providers.CreateRequest) *providers.Sandbox {
	t.Helper()
	sb, err := p.Create(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return sb
}

// sh runs a shell script in a sandbox.
func sh(t testing.TB, sb *providers.Sandbox, script string) (stdout string, end *envd.End) {
	t.Helper()
	out, end, err := shell(t.Context(), sb, script)
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	return out, end
}

func shell(ctx context.Context, sb *providers.Sandbox, script string) (stdout string, end *envd.End, err error) {
	return command(ctx, sb, "/bin/sh", "-c", script)
}

func command(ctx context.Context, sb *providers.Sandbox, path string, args ...string) (stdout string, end *envd.End, err error) {
	return commandAs(ctx, sb, "", path, args...)
}

func commandAs(ctx context.Context, sb *providers.Sandbox, user, path string, args ...string) (stdout string, end *envd.End, err error) {
	c, err := dataClient(sb)
	if err != nil {
		return "", nil, err
	}
	defer c.Close()
	return commandOf(ctx, c, user, path, args...)
}

func dataClient(sb *providers.Sandbox) (*envd.Client, error) {
	return envd.New(&envd.Options{Dial: sb.Data.Dial, Token: sb.Data.Token.Reveal()})
}

func commandOf(ctx context.Context, c *envd.Client, user, path string, args ...string) (stdout string, end *envd.End, err error) {
	return commandWith(ctx, c, &envd.StartOptions{Path: path, Args: args, User: user})
}

func commandWith(ctx context.Context, c *envd.Client, o *envd.StartOptions) (stdout string, end *envd.End, err error) {
	s, err := c.Start(ctx, o)
	if err != nil {
		return "", nil, err
	}
	defer s.Close(nil)
	defer context.AfterFunc(ctx, func() { s.Close(ctx.Err()) })()
	var out strings.Builder
	for {
		ev, err := s.Next()
		if err != nil {
			return out.String(), nil, err
		}
		if ev.End != nil {
			return out.String(), ev.End, nil
		}
		if out.Len() < 1<<20 {
			out.Write(ev.Stdout)
			out.Write(ev.Stderr)
		}
	}
}

func TestLifeCycle(t *testing.T) {
	p := testProvider(t)
	before := time.Now()
	sb := create(t, p, providers.CreateRequest{
		Lifetime: time.Minute, Env: map[string]string{"COLOUR": "green"}, Metadata: map[string]string{"for": "test"},
		Resources: providers.Resources{MemoryMiB: 256, Processes: 50, DiskMiB: 16},
	})
	if sb.State != providers.StateRunning || sb.Provider != Name || sb.Template != "base" || sb.DefaultUser != "user" || !sb.Data.Channels {
		t.Errorf("created: %+v", sb)
	}
	if sb.CreatedAt.Before(before.Add(-time.Second)) || sb.CreatedAt.After(time.Now()) {
		t.Errorf("created at %v", sb.CreatedAt)
	}
	if left := time.Until(sb.ExpiresAt); left < 50*time.Second || left > time.Minute+time.Second {
		t.Errorf("expires in %v", left)
	}
	out, end := sh(t, sb, `echo "$COLOUR $SANDBOX_ID"; id -un; exit 3`)
	if want := "green " + sb.ID + "\nuser\n"; out != want || end.ExitCode != 3 {
		t.Errorf("got %q and status %d; want %q", out, end.ExitCode, want)
	}

	got, err := p.Get(t.Context(), sb.ID)
	if err != nil {
		t.Fatal(err)
	}
	if got.Data.Token.Reveal() != sb.Data.Token.Reveal() || !got.CreatedAt.Equal(sb.CreatedAt) || got.Resources != sb.Resources || got.Metadata["for"] != "test" {
		t.Errorf("get: %+v, create: %+v", got, sb)
	}
	page, err := p.List(t.Context(), providers.ListRequest{})
	if err != nil || len(page.Sandboxes) != 1 || page.Sandboxes[0].ID != sb.ID || page.Next != "" {
		t.Errorf("list: %+v, %v", page, err)
	}

	moved, err := p.SetLifetime(t.Context(), sb.ID, time.Hour)
	if err != nil || time.Until(moved.ExpiresAt) < 59*time.Minute {
		t.Errorf("set lifetime: %+v, %v", moved, err)
	}
	// Connecting never shortens.
	other := openProvider(t, p.root)
	con, err := other.Connect(t.Context(), sb.ID, providers.ConnectRequest{Lifetime: time.Minute})
	if err != nil || time.Until(con.ExpiresAt) < 59*time.Minute {
		t.Fatalf("connect: %+v, %v", con, err)
	}
	if out, _ := sh(t, con, "echo hello"); out != "hello\n" {
		t.Errorf("connected: %q", out)
	}

	if err := other.Kill(t.Context(), sb.ID); err != nil {
		t.Fatal(err)
	}
	checkNothingLeft(t, p.root)
	for range 2 {
		if err := p.Kill(t.Context(), sb.ID); !errors.Is(err, errdefs.ErrNotFound) {
			t.Errorf("second kill: %v", err)
		}
	}
	for name, f := range map[string]func() error{
		"get":          func() error { _, err := p.Get(t.Context(), sb.ID); return err },
		"connect":      func() error { _, err := p.Connect(t.Context(), sb.ID, providers.ConnectRequest{}); return err },
		"set lifetime": func() error { _, err := p.SetLifetime(t.Context(), sb.ID, time.Minute); return err },
		"report":       func() error { _, err := p.Report(t.Context(), sb.ID); return err },
		"dial":         func() error { _, err := sb.Data.Dial(t.Context()); return err },
	} {
		if err := f(); !errors.Is(err, errdefs.ErrKilled) || !strings.Contains(err.Error(), sb.ID) {
			t.Errorf("%s after the kill: %v", name, err)
		}
	}
}

func TestReport(t *testing.T) {
	p := testProvider(t)
	sb := create(t, p, providers.CreateRequest{Network: &providers.NetworkPolicy{Mode: "none"}})
	r, err := openProvider(t, p.root).Report(t.Context(), sb.ID)
	if err != nil {
		t.Fatal(err)
	}
	if r.Engine != "native" || r.Root != "host" || r.Network != "none" || r.Seccomp == 0 || r.Scratch != "tmpfs" || r.Executable == "" {
		t.Errorf("%+v", r)
	}
	host := p.groups()
	for _, l := range []string{limitMemory, limitPids} {
		degraded := slices.ContainsFunc(r.Degraded, func(d providers.Degradation) bool { return d.What == l && d.Why != "" && d.Remedy != "" })
		if grouped := host.mechanism(l) != ""; degraded == grouped {
			t.Errorf("%s: mechanism %q, degraded %v", l, r.Limits[l], degraded)
		}
	}
	if os.Geteuid() == 0 && r.UserNS != "block" || os.Geteuid() != 0 && r.UserNS == "block" {
		t.Errorf("userns is %s", r.UserNS)
	}
}

func TestCreateRefuses(t *testing.T) {
	p := testProvider(t)
	long := strings.Repeat("x", maxEnvBytes)
	for _, c := range []struct {
		name string
		req  providers.CreateRequest
		code errdefs.Code
		says string
	}{
		{"template", providers.CreateRequest{Template: "python"}, "E2001", `"python"`},
		{"negative lifetime", providers.CreateRequest{Lifetime: -1}, "E2011", "1s"},
		{"tiny lifetime", providers.CreateRequest{Lifetime: 1}, "E2011", "minimum 1s"},
		{"all", providers.CreateRequest{Network: &providers.NetworkPolicy{Mode: "all"}}, "E8004", "host"},
		{"detached list", providers.CreateRequest{Detached: true, Network: &providers.NetworkPolicy{Mode: "list", Allow: []string{"a.example"}}}, "E8004", "detached"},
		{"list of nothing", providers.CreateRequest{Network: &providers.NetworkPolicy{Mode: "list"}}, "E2011", "empty"},
		{"rule that is none", providers.CreateRequest{Network: &providers.NetworkPolicy{Allow: []string{"a.example", "http://b.example"}}}, "E2011", `"http://b.example"`},
		{"rule for every port", providers.CreateRequest{Network: &providers.NetworkPolicy{Mode: "list", Allow: []string{"a.example:*"}}}, "E8004", "a.example:*"},
		{"unknown network", providers.CreateRequest{Network: &providers.NetworkPolicy{Mode: "bridge"}}, "E2011", `"bridge"`},
		{"list with none", providers.CreateRequest{Network: &providers.NetworkPolicy{Mode: "none", Allow: []string{"a"}}}, "E2011", "none"},
		{"negative cpu", providers.CreateRequest{Resources: providers.Resources{CPUMilli: -1}}, "E2011", "CPU -0.001 is out of range"},
		{"too much cpu", providers.CreateRequest{Resources: providers.Resources{CPUMilli: math.MaxInt64}}, "E2011", "out of range: 0.01 to"},
		{"little memory", providers.CreateRequest{Resources: providers.Resources{MemoryMiB: 1}}, "E2011", "64 to"},
		{"too much memory", providers.CreateRequest{Resources: providers.Resources{MemoryMiB: math.MaxInt64}}, "E2011", "memory"},
		{"too much disk", providers.CreateRequest{Resources: providers.Resources{DiskMiB: math.MaxInt64}}, "E2011", "half of the memory"},
		{"disk above memory", providers.CreateRequest{Resources: providers.Resources{DiskMiB: 100, MemoryMiB: 100}}, "E2011", "1 to 50"},
		{"negative processes", providers.CreateRequest{Resources: providers.Resources{Processes: -5}}, "E2011", "processes"},
		{"image", providers.CreateRequest{Image: "alpine:3"}, "E8004", imagesImport},
		{"image and directory", providers.CreateRequest{Root: providers.RootView{Dir: "/srv", Expose: []string{"x"}}}, "E2011", "exposed"},
		{"user", providers.CreateRequest{User: "../root"}, "E2011", "user"},
		{"workdir", providers.CreateRequest{WorkDir: "src"}, "E2011", `"src"`},
		{"environment name", providers.CreateRequest{Env: map[string]string{"A=B": ""}}, "E2011", `"A=B"`},
		{"environment size", providers.CreateRequest{Env: map[string]string{"A": long}}, "E2011", "bytes"},
		{"metadata", providers.CreateRequest{Metadata: map[string]string{"": "x"}}, "E2011", "metadata"},
		{"unknown protection", providers.CreateRequest{Require: []string{"magic"}}, "E2012", `"magic"`},
		{"protection given up", providers.CreateRequest{Require: []string{"network"}, Network: &providers.NetworkPolicy{Mode: "host"}}, "E2012", "network"},
		{"artifact", providers.CreateRequest{Artifacts: []providers.Artifact{{Digest: "x", Path: "/bin/sh"}}}, "E2011", "digest"},
		{"relative artifact", providers.CreateRequest{Artifacts: []providers.Artifact{{Digest: "x", Path: "sh"}}}, "E2011", "absolute"},
		{"request id", providers.CreateRequest{RequestID: strings.Repeat("r", 1000)}, "E2011", "1000"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := p.Create(t.Context(), c.req)
			if errdefs.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.says) || len(err.Error()) > 1000 {
				t.Errorf("got %v; want %s and %q", err, c.code, c.says)
			}
			checkNothingLeft(t, p.root)
		})
	}
}

// Where a limit cannot be enforced, requiring it is refused; where it can, it
// is granted.
func TestRequire(t *testing.T) {
	p := testProvider(t)
	sb, err := p.Create(t.Context(), providers.CreateRequest{Require: []string{limitMemory, limitPids}})
	if p.groups().mechanism(limitMemory) == "" {
		if !errors.Is(err, errdefs.ErrRequire) {
			t.Errorf("granted: %v", err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(t.Context(), sb.ID); err != nil {
		t.Error(err)
	}
}

func TestMalformedIDs(t *testing.T) {
	p := testProvider(t)
	for _, id := range []string{"", "..", "../../etc", strings.Repeat("a", 19) + "/", "i4k9q-someone-elses"} {
		for name, f := range map[string]func() error{
			"get":  func() error { _, err := p.Get(t.Context(), id); return err },
			"kill": func() error { return p.Kill(t.Context(), id) },
			"set lifetime": func() error {
				_, err := p.SetLifetime(t.Context(), id, time.Minute)
				return err
			},
		} {
			if err := f(); !errors.Is(err, errdefs.ErrNotFound) {
				t.Errorf("%s %q: %v", name, id, err)
			}
		}
	}
}

func TestLifetimeRefuses(t *testing.T) {
	p := testProvider(t)
	sb := create(t, p, providers.CreateRequest{})
	for _, d := range []time.Duration{0, -1, 1, time.Second - 1} {
		if _, err := p.SetLifetime(t.Context(), sb.ID, d); !errors.Is(err, errdefs.ErrOption) {
			t.Errorf("set %v: %v", d, err)
		}
		if _, err := p.Connect(t.Context(), sb.ID, providers.ConnectRequest{Lifetime: d}); d != 0 && !errors.Is(err, errdefs.ErrOption) {
			t.Errorf("connect with %v: %v", d, err)
		}
	}
	if _, err := p.SetLifetime(t.Context(), sb.ID, math.MaxInt64); err != nil {
		t.Errorf("the longest lifetime: %v", err)
	}
	if _, err := p.SetLifetime(t.Context(), sb.ID, time.Second); err != nil {
		t.Error(err)
	}
	time.Sleep(1200 * time.Millisecond)
	if _, err := p.Get(t.Context(), sb.ID); !errors.Is(err, errdefs.ErrExpired) {
		t.Errorf("after a shortened life: %v", err)
	}
}

// A sandbox ends with its lifetime although a command runs, and nobody looks.
func TestExpires(t *testing.T) {
	p := testProvider(t)
	sb := create(t, p, providers.CreateRequest{Lifetime: time.Second})
	_, _, err := shell(t.Context(), sb, "trap '' TERM HUP INT; while :; do :; done")
	if err == nil {
		t.Error("the command ended in order")
	}
	if late := time.Since(sb.ExpiresAt); late < 0 || late > 20*time.Second {
		t.Errorf("ended %v after the end", late)
	}
	if _, err := p.Get(t.Context(), sb.ID); !errors.Is(err, errdefs.ErrExpired) {
		t.Errorf("get: %v", err)
	}
	for start := time.Now(); ; time.Sleep(5 * time.Millisecond) { // our own watcher removes it
		if names, _ := p.tree.boxes.allNames(); len(names) == 0 {
			break
		} else if time.Since(start) > 20*time.Second {
			t.Fatalf("left: %q", names)
		}
	}
}

// Real sandboxes are extended within milliseconds of their end.
func TestExtendAtTheLastMoment(t *testing.T) {
	p := testProvider(t)
	n := 20
	if testing.Short() {
		n = 4
	}
	var wg sync.WaitGroup
	for i := range n {
		sb := create(t, p, providers.CreateRequest{Lifetime: time.Second + time.Duration(n-i)*50*time.Millisecond})
		wg.Go(func() {
			time.Sleep(time.Until(sb.ExpiresAt) - time.Duration(i%10)*time.Millisecond)
			got, err := p.Connect(t.Context(), sb.ID, providers.ConnectRequest{Lifetime: 2 * time.Second})
			switch {
			case err == nil:
				time.Sleep(time.Until(got.ExpiresAt) - 300*time.Millisecond)
				if _, err := p.Get(t.Context(), sb.ID); err != nil {
					t.Errorf("extended, and gone before the new end: %v", err)
				}
				time.Sleep(time.Until(got.ExpiresAt) + 500*time.Millisecond)
			case !errors.Is(err, errdefs.ErrExpired):
				t.Errorf("extending: %v", err)
			}
			if _, err := p.Get(t.Context(), sb.ID); !errors.Is(err, errdefs.ErrExpired) {
				t.Errorf("after the end: %v", err)
			}
		})
	}
	wg.Wait()
}

func TestListPages(t *testing.T) {
	p := testProvider(t)
	n := 30
	if testing.Short() {
		n = 5
	}
	var want []string
	for i := range n {
		sb := create(t, p, providers.CreateRequest{Metadata: map[string]string{"odd": fmt.Sprint(i%2 == 1), "all": "yes"}})
		want = append(want, sb.ID)
	}
	slices.Reverse(want)
	var got []string
	req := providers.ListRequest{Limit: 4, Metadata: map[string]string{"all": "yes"}}
	for pages := 0; ; pages++ {
		page, err := p.List(t.Context(), req)
		if err != nil || pages > n {
			t.Fatal(pages, err)
		}
		for _, sb := range page.Sandboxes {
			got = append(got, sb.ID)
		}
		if page.Next == "" {
			break
		}
		req.Token = page.Next
	}
	if !slices.Equal(got, want) {
		t.Errorf("pages hold %d sandboxes:\n%q, want\n%q", len(got), got, want)
	}
	page, err := p.List(t.Context(), providers.ListRequest{Metadata: map[string]string{"odd": "true"}})
	if err != nil || len(page.Sandboxes) != n/2 {
		t.Errorf("filter: %d, %v", len(page.Sandboxes), err)
	}
	page, err = p.List(t.Context(), providers.ListRequest{States: []providers.State{providers.StatePaused}})
	if err != nil || len(page.Sandboxes) != 0 {
		t.Errorf("paused: %d, %v", len(page.Sandboxes), err)
	}
	for _, bad := range []providers.ListRequest{{Limit: -1}, {Limit: 5000}, {Token: "x"}, {Token: "!"}, {Token: "MTIuLi4v"}} {
		if _, err := p.List(t.Context(), bad); !errors.Is(err, errdefs.ErrOption) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

func TestRequestIdentity(t *testing.T) {
	p := testProvider(t)
	req := providers.CreateRequest{RequestID: "order 1", Metadata: map[string]string{"a": "1", "b": "2"}}
	var mu sync.Mutex
	ids := map[string]int{}
	var wg sync.WaitGroup
	for range 4 {
		other := openProvider(t, p.root)
		wg.Go(func() {
			sb, err := other.Create(t.Context(), req)
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			ids[sb.ID]++
		})
	}
	wg.Wait()
	if len(ids) != 1 {
		t.Errorf("one request made %v", ids)
	}
	changed := req
	changed.Metadata = map[string]string{"a": "2"}
	if _, err := p.Create(t.Context(), changed); !errors.Is(err, errdefs.ErrOption) {
		t.Errorf("other parameters: %v", err)
	}
	for id := range ids {
		if err := p.Kill(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
	if _, err := p.Create(t.Context(), req); !errors.Is(err, errdefs.ErrKilled) {
		t.Errorf("repeated after the end: %v", err)
	}
	if _, err := p.Create(t.Context(), changed); !errors.Is(err, errdefs.ErrOption) {
		t.Errorf("other parameters after the end: %v", err)
	}
}

// Init is killed or stopped from outside.
func TestInitFails(t *testing.T) {
	p := testProvider(t)
	sb := create(t, p, providers.CreateRequest{})
	p.mu.Lock()
	pid := p.live[sb.ID].proc.pid
	p.mu.Unlock()
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	// Each of its threads stops when it next leaves the kernel.
	var got *providers.Sandbox
	var err error
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		if got, err = p.Get(t.Context(), sb.ID); err != nil || got.State == providers.StateUnknown {
			break
		}
	}
	if err != nil || got.State != providers.StateUnknown {
		t.Errorf("stopped: %+v, %v", got, err)
	}
	if _, err := p.Connect(t.Context(), sb.ID, providers.ConnectRequest{}); !errors.Is(err, errdefs.ErrNotReady) {
		t.Errorf("connect to a stopped one: %v", err)
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		_, err = p.Get(t.Context(), sb.ID)
		if err != nil || time.Now().After(deadline) {
			break
		}
	}
	if !errors.Is(err, errdefs.ErrCrashed) {
		t.Errorf("killed from outside: %v", err)
	}
}

func TestClose(t *testing.T) {
	p := testProvider(t)
	attached := create(t, p, providers.CreateRequest{})
	detached := create(t, p, providers.CreateRequest{Detached: true})
	for range 2 {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := p.Create(t.Context(), providers.CreateRequest{}); !errors.Is(err, errdefs.ErrBackend) {
		t.Errorf("create after close: %v", err)
	}
	if _, err := p.Get(t.Context(), detached.ID); !errors.Is(err, errdefs.ErrBackend) {
		t.Errorf("get after close: %v", err)
	}
	q := openProvider(t, p.root)
	if _, err := q.Get(t.Context(), attached.ID); !errors.Is(err, errdefs.ErrKilled) || !strings.Contains(err.Error(), "program") {
		t.Errorf("attached: %v", err)
	}
	again, err := q.Connect(t.Context(), detached.ID, providers.ConnectRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if out, _ := sh(t, again, "echo there"); out != "there\n" {
		t.Errorf("detached: %q", out)
	}
	if err := q.Kill(t.Context(), detached.ID); err != nil {
		t.Error(err)
	}
	reapStrays()
}

func TestSettings(t *testing.T) {
	for _, c := range []providers.Config{
		{StateDir: "relative"},
		{Settings: map[string]string{"cgruop_parent": "/x"}},
		{Settings: map[string]string{"expose": "opt"}},
		{Settings: map[string]string{"cgroup_parent": "x"}},
	} {
		if _, err := New(c); !errors.Is(err, errdefs.ErrSettings) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if _, err := providers.Open(Name, providers.Config{StateDir: "/nonexistent/x"}); err != nil {
		t.Errorf("opening does something: %v", err)
	}
}

func TestCapabilities(t *testing.T) {
	p, err := New(providers.Config{StateDir: testRoot(t), Settings: map[string]string{settingPool: "0"}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	c, err := p.Capabilities(t.Context())
	if err != nil || !c.Set[providers.CapSnapshot] || c.Set[providers.CapGPU] || !c.Set[providers.CapPause] || !c.Set[providers.CapPorts] || !c.Set[providers.CapMetrics] || !c.Set[providers.CapDetached] || c.Lifetime.Default != 5*time.Minute || c.Lifetime.Max != 0 {
		t.Errorf("%+v, %v", c, err)
	}
}

// Whoever is not the owner of the sandbox is dropped by init, too.
func TestPeerListener(t *testing.T) {
	tr := testTree(t)
	e, lock, err := tr.newEntry(sandboxID(""))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	defer e.close()
	f, err := e.listen(fileRuntime)
	if err != nil {
		t.Fatal(err)
	}
	l, err := ownedListener(f, uint32(os.Geteuid())+1)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if c, err := l.Accept(); err == nil {
			c.Close()
			t.Error("a stranger was accepted")
		}
	})
	c, err := e.dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the stranger's connection stays: %v", err)
	}
	c.Close()
	l.Close()
	wg.Wait()
	if _, err := net.Dial("unix", e.dir.address(fileRuntime)); err == nil {
		t.Error("still listening")
	}
}
