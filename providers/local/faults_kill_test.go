//go:build linux

package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

func init() {
	roles["faults"] = faultsRole
	roles["lifetime"] = lifetimeRole
}

const (
	envOperation = "LOCAL_TEST_OPERATION"
	envSandbox   = "LOCAL_TEST_SANDBOX"
	envGreedy    = "LOCAL_TEST_GREEDY"
)

// operations are what a client does over and over until it is killed, with a
// sandbox that is there. The request id is for one that it makes.
var operations = map[string]func(ctx context.Context, p *Provider, id, request string) error{
	"pause": func(ctx context.Context, p *Provider, id, _ string) error {
		if err := p.Pause(ctx, id); err != nil {
			return err
		}
		_, err := p.Connect(ctx, id, providers.ConnectRequest{})
		return err
	},
	"snapshot": func(ctx context.Context, p *Provider, id, _ string) error {
		s, err := p.Snapshot(ctx, id, providers.SnapshotRequest{})
		if err != nil {
			return err
		}
		return p.DeleteSnapshot(ctx, s.ID)
	},
	"hibernate": func(ctx context.Context, p *Provider, id, _ string) error {
		if err := p.Hibernate(ctx, id); err != nil {
			return err
		}
		_, err := p.Connect(ctx, id, providers.ConnectRequest{})
		return err
	},
	"fork": func(ctx context.Context, p *Provider, id, request string) error {
		s, err := p.Snapshot(ctx, id, providers.SnapshotRequest{})
		if err != nil {
			return err
		}
		child, err := p.Create(ctx, providers.CreateRequest{Snapshot: s.ID, RequestID: request, Detached: true, Lifetime: time.Minute})
		if err != nil {
			return err
		}
		return errors.Join(p.DeleteSnapshot(ctx, s.ID), p.Kill(ctx, child.ID))
	},
	"kill": func(ctx context.Context, p *Provider, _, request string) error {
		sb, err := p.Create(ctx, providers.CreateRequest{RequestID: request, Detached: true, Lifetime: time.Minute})
		if err != nil {
			return err
		}
		return p.Kill(ctx, sb.ID)
	},
}

// faultsRole does one of the operations until it is killed.
func faultsRole() error {
	p, err := roleProvider()
	if err != nil {
		return err
	}
	if os.Getenv(envGreedy) != "" {
		go func() {
			for kept := [][]byte{}; ; time.Sleep(time.Duration(rand.N(int64(10 * time.Millisecond)))) {
				b := make([]byte, 1<<20)
				for i := 0; i < len(b); i += 4096 {
					b[i] = 1
				}
				kept = append(kept, b)
			}
		}()
	}
	for i := 0; ; i++ {
		if err := operations[os.Getenv(envOperation)](context.Background(), p, os.Getenv(envSandbox), loopRequest(os.Getpid(), i)); err != nil {
			return err
		}
	}
}

// victim is a sandbox of another client, and a client that is killed.
type victim struct {
	p   *Provider
	id  string
	ids []string // of what clients have made
}

func newVictim(t *testing.T) *victim {
	t.Helper()
	needOverlay(t)
	p := testProvider(t)
	sb := create(t, p, providers.CreateRequest{Detached: true, Lifetime: time.Hour})
	mustSh(t, sb, "cd /home/user; mkdir d; echo kept > d/f; head -c 300000 /dev/urandom > big; for i in 1 2 3 4 5 6 7 8 9; do echo $i > d/$i; done")
	return &victim{p: p, id: sb.ID}
}

// check looks at what is there after a client has died.
func (v *victim) check(t *testing.T) {
	t.Helper()
	page, err := v.p.ListSnapshots(t.Context(), providers.SnapshotListRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range page.Snapshots {
		saved, err := v.p.tree.snapshot(s.ID)
		if err != nil {
			t.Fatal("a half snapshot is listed:", err)
		}
		if len(saved.Layers) == 0 {
			t.Errorf("snapshot %s has no layers", s.ID)
		}
		for _, l := range saved.Layers {
			if b, err := os.ReadFile(filepath.Join(v.p.tree.layerPath(l), "home%2Fuser", "d", "9")); err != nil || string(b) != "9\n" {
				t.Errorf("a half snapshot is listed: %q, %v", b, err)
			}
		}
		if err := v.p.DeleteSnapshot(t.Context(), s.ID); err != nil {
			t.Error("delete:", err)
		}
	}
	// Whoever woke the sandbox, its control groups have its name, by which they are removed.
	if conf, err := v.p.tree.config(v.id); err != nil || len(ownCgroups(v.id, conf.Cgroups)) != len(conf.Cgroups) {
		t.Errorf("control groups %q, %v", conf.Cgroups, err)
	}
	// The sandbox is what it was. One that is being woken by a client that has
	// died falls asleep again first.
	// And what the client has asked for before it died may come to pass later: also
	// while a command runs, whose stream is cut then.
	var out string
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		sb, cerr := v.p.Connect(t.Context(), v.id, providers.ConnectRequest{})
		if err = cerr; err == nil {
			out, _, err = shell(t.Context(), sb, "cat /home/user/d/f")
		}
		code := errdefs.CodeOf(cerr)
		if err == nil || cerr != nil && code != "E2024" && code != "E2009" || time.Now().After(end) {
			break
		}
	}
	if err != nil || out != "kept\n" {
		t.Fatalf("the sandbox is lost: %q, %v", out, err)
	}
}

// end removes everything and looks for what should not be there then.
func (v *victim) end(t *testing.T) {
	t.Helper()
	states := []providers.State{providers.StateRunning, providers.StatePaused, providers.StateUnknown, providers.StateStarting, providers.StateStopped}
	page, err := v.p.List(t.Context(), providers.ListRequest{States: states, Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	for _, sb := range page.Sandboxes {
		if err := v.p.Kill(t.Context(), sb.ID); err != nil && !errors.Is(err, errdefs.ErrNotFound) {
			t.Error(err)
		}
	}
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if err := v.p.collect(t.Context()); err != nil {
			t.Fatal(err)
		}
		boxes, err := v.p.tree.boxes.allNames()
		if err == nil && len(boxes) == 0 && len(layerNames(t, v.p)) == 0 {
			break
		}
	}
	checkNothingLeft(t, v.p.root)
	checkNoGroups(t, v.p.groups(), append(v.ids, v.id))
	for name, d := range map[string]*folder{"layers": v.p.tree.layers, "snapshots": v.p.tree.snapshots} {
		names, err := d.allNames()
		for _, n := range names {
			if n != layersLock {
				t.Errorf("left in %s: %s", name, n)
			}
		}
		if err != nil {
			t.Error(err)
		}
	}
	if lock, err := v.p.tree.layers.tryLock(layersLock); err != nil {
		t.Error("a lock is held:", err)
	} else {
		lock.Close()
	}
	checkNoHolders(t, v.p.root)
}

// checkNoHolders looks for processes of others that have something open below dir:
// an init has, and nobody else should.
func checkNoHolders(t *testing.T, dir string) {
	t.Helper()
	links, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, l := range links {
		to, err := os.Readlink(l)
		if err == nil && strings.HasPrefix(to, dir+"/") && !strings.HasPrefix(l, fmt.Sprintf("/proc/%d/", os.Getpid())) {
			t.Errorf("%s is %s", l, to)
		}
	}
}

// TestClientKilledDuring kills clients at random moments of what they do.
func TestClientKilledDuring(t *testing.T) {
	for name := range operations {
		t.Run(name, func(t *testing.T) {
			v := newVictim(t)
			for range scaled(5, 30, 100) {
				cmd := role(t, "faults", envState+"="+v.p.root, envOperation+"="+name, envSandbox+"="+v.id)
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				time.Sleep(rand.N(120 * time.Millisecond))
				cmd.Process.Kill()
				v.died(t, cmd)
			}
			v.end(t)
		})
	}
}

// died waits for the end of a client and checks what it leaves.
func (v *victim) died(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != unix.SIGKILL {
		t.Errorf("the client ended before it was killed: %v", err)
	}
	for i := range 20 {
		v.ids = append(v.ids, sandboxID(loopRequest(cmd.Process.Pid, i)))
	}
	v.check(t)
}

// TestClientOutOfMemory lets the kernel kill clients that need more memory than
// there is, wherever they are. None of them wakes the sandbox of others: that would
// bring it into their control group, where the kernel may choose it.
func TestClientOutOfMemory(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can be sure to have a control group of its own")
	}
	v := newVictim(t)
	dir := memoryGroup(t, v.p, 48<<20)
	for i := range scaled(2, 10, 50) {
		cmd := exec.Command("/bin/sh", "-c", `echo $$ > "$0" && exec "$1"`, filepath.Join(dir, "cgroup.procs"), "/proc/self/exe")
		cmd.Args[4], _ = os.Executable()
		cmd.Env = append(os.Environ(), envRole+"=faults", envState+"="+v.p.root, envSandbox+"="+v.id, envGreedy+"=1",
			envOperation+"="+[]string{"fork", "snapshot", "pause", "kill"}[i%4])
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		late := time.AfterFunc(20*time.Second, func() {
			t.Error("the client is not short of memory")
			cmd.Process.Kill()
		})
		v.died(t, cmd)
		late.Stop()
	}
	v.end(t)
}

// memoryGroup is a control group whose processes have so little memory.
func memoryGroup(t *testing.T, p *Provider, limit int64) string {
	t.Helper()
	for _, at := range p.groups().at {
		dir := filepath.Join(at.parent, "test-"+randomText(12))
		if os.Mkdir(dir, 0o755) != nil {
			continue
		}
		for _, file := range []string{"memory.max", "memory.limit_in_bytes"} {
			if os.WriteFile(filepath.Join(dir, file), []byte(strconv.FormatInt(limit, 10)), 0) == nil {
				t.Cleanup(func() {
					// Clients in it have made groups of sandboxes below it.
					if err := removeCgroups([]string{filepath.Join(dir, cgroupFolder), dir}); err != nil {
						t.Error(err)
					}
				})
				return dir
			}
		}
		unix.Rmdir(dir)
	}
	t.Skip("no control group can limit memory here")
	return ""
}

// TestClockOfTheDay lets the clock of the day jump between creations: whatever it
// says, lists are whole, what lives is not collected, and ends come in time.
func TestClockOfTheDay(t *testing.T) {
	p := testProvider(t)
	start := time.Now()
	jumps := []time.Duration{0, -20 * 365 * 24 * time.Hour, 100 * 365 * 24 * time.Hour, -time.Hour, time.Hour}
	made := map[string]bool{}
	jumped := func(by time.Duration) string {
		t.Helper()
		sb := create(t, p, providers.CreateRequest{Lifetime: 20 * time.Minute})
		e, err := p.tree.openEntry(sb.ID)
		if err != nil {
			t.Fatal(err)
		}
		defer e.close()
		var c savedConfig
		if err := e.load(fileConfig, &c); err != nil {
			t.Fatal(err)
		}
		c.CreatedAt = start.Add(by)
		if err := e.save(fileConfig, c); err != nil {
			t.Fatal(err)
		}
		return sb.ID
	}
	for _, by := range append(jumps, jumps[1]) { // two at the same time
		made[jumped(by)] = true
	}
	seen := map[string]bool{}
	for token, n := "", 0; ; n++ {
		page, err := p.List(t.Context(), providers.ListRequest{Limit: 1, Token: token})
		if err != nil || n > 20 {
			t.Fatal(n, err)
		}
		for _, sb := range page.Sandboxes {
			if seen[sb.ID] {
				t.Errorf("%s is listed twice", sb.ID)
			}
			if left := time.Until(sb.ExpiresAt); left < 10*time.Minute || left > 20*time.Minute {
				t.Errorf("created at %v, it ends in %v", sb.CreatedAt, left)
			}
			seen[sb.ID] = true
		}
		if n == 1 { // while pages are read the clock jumps ahead and back
			jumped(101 * 365 * 24 * time.Hour)
		}
		if token = page.Next; token == "" {
			break
		}
	}
	for id := range made {
		if !seen[id] {
			t.Errorf("%s is not listed", id)
		}
	}
	if err := p.GC(t.Context()); err != nil {
		t.Error(err)
	}
	for id := range made {
		if _, err := p.Get(t.Context(), id); err != nil {
			t.Error("collected:", err)
		}
	}
	for by, want := range map[time.Duration]error{-2 * endedAge: errdefs.ErrNotFound, 365 * 24 * time.Hour: errdefs.ErrExpired} {
		id := sandboxID("")
		if err := p.tree.recordEnd(endRecord{ID: id, Why: endExpired, At: start.Add(by)}); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Get(t.Context(), id); !errors.Is(err, want) {
			t.Errorf("ended %v from now: %v", by, err)
		}
	}
}

// TestClockAgesStore collects as if the clock had jumped: a sandbox goes on with
// what was collected, and the next one brings it again.
func TestClockAgesStore(t *testing.T) {
	p := testProvider(t)
	a := testArtifact(t, "#!/bin/sh\necho runs\n")
	for _, by := range []time.Duration{30 * 24 * time.Hour, -30 * 24 * time.Hour} {
		sb := create(t, p, providers.CreateRequest{Artifacts: []providers.Artifact{a}})
		if err := errors.Join(p.store.collect(time.Now().Add(by), nil), p.collectImages(time.Now().Add(by))); err != nil {
			t.Error(err)
		}
		if p.store.has(a.Digest) != (by < 0) {
			t.Errorf("after a jump by %v: in the store is %v", by, by > 0)
		}
		if out := mustSh(t, sb, artifactDir+"/"+a.Digest); out != "runs\n" {
			t.Errorf("after a jump by %v: %q", by, out)
		}
	}
}

// lifetimeRole makes a sandbox and waits for its end.
func lifetimeRole() error {
	p, err := roleProvider()
	if err != nil {
		return err
	}
	defer p.Close()
	ctx := context.Background()
	const lifetime = 1500 * time.Millisecond
	asked := time.Now()
	sb, err := p.Create(ctx, providers.CreateRequest{Lifetime: lifetime})
	if err != nil {
		return err
	}
	made := time.Now()
	const slack = 100 * time.Millisecond // what two clocks may differ by
	if sb.ExpiresAt.Before(asked.Add(lifetime-slack)) || sb.ExpiresAt.After(made.Add(lifetime+slack)) {
		return fmt.Errorf("made in %v, it ends %v after it was asked for", made.Sub(asked), sb.ExpiresAt.Sub(asked))
	}
	other, err := p.Create(ctx, providers.CreateRequest{Lifetime: time.Minute})
	if err != nil {
		return err
	}
	for {
		_, err := p.Get(ctx, sb.ID)
		lived := time.Since(asked)
		switch {
		case err == nil && time.Since(made) < lifetime+20*time.Second:
			time.Sleep(20 * time.Millisecond)
			continue
		case errors.Is(err, errdefs.ErrExpired) && lived > lifetime-slack:
		default:
			return fmt.Errorf("after %v: %w", lived, cmp.Or(err, errors.New("it lives")))
		}
		return p.Kill(ctx, other.ID)
	}
}

// TestClocksOfTimeNamespace uses clocks that count from elsewhere.
func TestClocksOfTimeNamespace(t *testing.T) {
	needIsolation(t)
	if os.Geteuid() != 0 {
		t.Skip("only root makes a time namespace without a user namespace")
	}
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		t.Skip("no unshare:", err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ahead := []string{"--time", "--fork", "--boottime", "864000000", "--monotonic", "8640000"}
	if out, err := exec.Command(unshare, append(ahead, "/bin/true")...).CombinedOutput(); err != nil {
		t.Skipf("no time namespaces: %s %v", out, err)
	}
	root := testRoot(t)
	cmd := exec.Command(unshare, append(ahead, exe)...)
	cmd.Env = append(os.Environ(), envRole+"=lifetime", envState+"="+root)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s%v", out, err)
	}
	checkNothingLeft(t, root)
}
