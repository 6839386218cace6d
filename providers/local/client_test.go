//go:build linux

package local

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

func init() {
	roles["client"] = clientRole
	roles["loop"] = loopRole
	roles["dial"] = dialRole
}

const (
	envState    = "LOCAL_TEST_STATE"
	envDetached = "LOCAL_TEST_DETACHED"
	envPool     = "LOCAL_TEST_POOL"

	envIsolation = "LOCAL_TEST_ISOLATION"
)

func roleProvider() (*Provider, error) {
	return New(providers.Config{StateDir: os.Getenv(envState), Settings: map[string]string{
		settingPool: cmp.Or(os.Getenv(envPool), "0"), settingIsolation: os.Getenv(envIsolation)}})
}

// clientRole makes a sandbox, starts a daemon in it, prints its id and waits
// for the end of its standard input.
func clientRole() error {
	p, err := roleProvider()
	if err != nil {
		return err
	}
	sb, err := p.Create(context.Background(), providers.CreateRequest{Detached: os.Getenv(envDetached) != ""})
	if err != nil {
		return err
	}
	if _, _, err := shell(context.Background(), sb, "setsid sh -c 'trap \"\" HUP TERM; sleep 1000' >/dev/null 2>&1 & exit 0"); err != nil {
		return err
	}
	fmt.Println(sb.ID)
	bufio.NewReader(os.Stdin).ReadByte()
	return nil // without Close, as a program that just ends
}

// loopRole makes and kills sandboxes until it is killed.
func loopRole() error {
	p, err := roleProvider()
	if err != nil {
		return err
	}
	for i := 0; ; i++ {
		sb, err := p.Create(context.Background(), providers.CreateRequest{
			RequestID: loopRequest(os.Getpid(), i), Detached: i%2 == 1, Lifetime: time.Minute,
		})
		if err != nil {
			return err
		}
		if err := p.Kill(context.Background(), sb.ID); err != nil {
			return err
		}
	}
}

// loopRequest makes the ids of the sandboxes of a loop known.
func loopRequest(pid, i int) string { return fmt.Sprintf("loop %d %d", pid, i) }

// dialRole connects to the socket of a sandbox.
func dialRole() error {
	c, err := net.Dial("unix", os.Getenv(envState))
	if err == nil {
		c.Close()
	}
	return err
}

func role(t *testing.T, name string, env ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(append(os.Environ(), envRole+"="+name), env...)
	cmd.Stderr = t.Output()
	return cmd
}

// startClient starts a client that made a sandbox and returns its id.
func startClient(t *testing.T, env ...string) (cmd *exec.Cmd, id string, end func()) {
	t.Helper()
	needIsolation(t)
	cmd = role(t, "client", env...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		cmd.Wait()
		t.Fatal("client:", err)
	}
	return cmd, strings.TrimSpace(line), func() { in.Close(); cmd.Wait() }
}

// namespaceOf is the pid namespace of a sandbox, as the link of procfs.
func namespaceOf(t *testing.T, root, id string) string {
	t.Helper()
	tr, err := openTree(root)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.close()
	e, err := tr.openEntry(id)
	if err != nil {
		t.Fatal(err)
	}
	defer e.close()
	var s savedState
	if err := e.load(fileState, &s); err != nil {
		t.Fatal(err)
	}
	// Init is not dumpable: its own link is for root only, but the link of a
	// child names the same namespace and a user may read it.
	for _, pid := range append(childrenOf(s.PID), s.PID) {
		if ns, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/ns/pid"); err == nil {
			return ns
		}
	}
	t.Fatal("no process of the sandbox shows its namespace")
	return ""
}

func childrenOf(pid int) []int {
	var out []int
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, l := range lists {
		b, _ := os.ReadFile(l)
		for _, f := range strings.Fields(string(b)) {
			if n, err := strconv.Atoi(f); err == nil {
				out = append(out, n)
			}
		}
	}
	return out
}

// processesIn lists the processes in a pid namespace.
func processesIn(ns string) []string {
	links, _ := filepath.Glob("/proc/[0-9]*/ns/pid")
	var out []string
	for _, l := range links {
		if got, err := os.Readlink(l); err == nil && got == ns {
			out = append(out, l)
		}
	}
	return out
}

// The client of an attached sandbox is killed: within two seconds, three times
// that on a busy machine, no process of the sandbox is left, daemons included,
// and the next client finds nothing.
func TestClientKilled(t *testing.T) {
	root := testRoot(t)
	cmd, id, end := startClient(t, envState+"="+root)
	ns := namespaceOf(t, root, id)
	if own, _ := os.Readlink("/proc/self/ns/pid"); ns == own || len(processesIn(ns)) == 0 {
		t.Fatalf("sandbox is in %s", ns)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	end()
	killed := time.Now()
	for len(processesIn(ns)) > 0 {
		if time.Since(killed) > 20*time.Second {
			t.Fatalf("alive after %v: %q", time.Since(killed), processesIn(ns))
		}
		time.Sleep(5 * time.Millisecond)
	}
	p := openProvider(t, root)
	_, err := p.Get(t.Context(), id)
	if !errors.Is(err, errdefs.ErrKilled) || !strings.Contains(err.Error(), "program that created it") {
		t.Errorf("get: %v", err)
	}
	checkNothingLeft(t, root)
}

// A client ends without closing anything; its detached sandbox lives on.
func TestDetached(t *testing.T) {
	root := testRoot(t)
	_, id, end := startClient(t, envState+"="+root, envDetached+"=1")
	end()
	p := openProvider(t, root)
	if err := p.GC(t.Context()); err != nil {
		t.Error(err)
	}
	sb, err := p.Connect(t.Context(), id, providers.ConnectRequest{})
	if err != nil {
		t.Fatal(err)
	}
	out, _ := sh(t, sb, "i=0; until n=$(cat /proc/[0-9]*/comm | grep -c sleep); [ $n = 1 ] || [ $((i+=1)) = 100 ]; do sleep 0.2; done; echo $n")
	if out != "1\n" {
		t.Errorf("the daemon of the first client is gone: %q", out)
	}
	if err := p.Kill(t.Context(), id); err != nil {
		t.Error(err)
	}
	checkNothingLeft(t, root)
}

// The managing process is killed and started again, one sandbox having died
// meanwhile.
func TestRestart(t *testing.T) {
	root := testRoot(t)
	var ids []string
	for range 3 {
		cmd, id, end := startClient(t, envState+"="+root, envDetached+"=1")
		cmd.Process.Kill()
		end()
		ids = append(ids, id)
	}
	tr, err := openTree(root)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.close()
	e, err := tr.openEntry(ids[1])
	if err != nil {
		t.Fatal(err)
	}
	var s savedState
	if err := e.load(fileState, &s); err != nil {
		t.Fatal(err)
	}
	e.close()
	if err := syscall.Kill(s.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	checkEnded(t, []int{s.PID})
	p := openProvider(t, root)
	page, err := p.List(t.Context(), providers.ListRequest{})
	if err != nil || len(page.Sandboxes) != 2 {
		t.Fatalf("list: %+v, %v", page, err)
	}
	for _, sb := range page.Sandboxes {
		if sb.ID == ids[1] {
			t.Error("the dead one is listed")
		}
		if left := time.Until(sb.ExpiresAt); left < 4*time.Minute || left > 5*time.Minute {
			t.Errorf("ends in %v", left)
		}
		if out, _ := sh(t, sb, "echo ok"); out != "ok\n" {
			t.Errorf("not usable: %q", out)
		}
		if err := p.Kill(t.Context(), sb.ID); err != nil {
			t.Error(err)
		}
	}
	if _, err := p.Get(t.Context(), ids[1]); !errors.Is(err, errdefs.ErrCrashed) {
		t.Errorf("the dead one: %v", err)
	}
	checkNothingLeft(t, root)
}

// full reports whether long tests run in full: with SANDBOX_TEST_FULL set.
func full() bool { return os.Getenv("SANDBOX_TEST_FULL") != "" }

func scaled(short, normal, all int) int {
	switch {
	case full():
		return all
	case testing.Short():
		return short
	}
	return normal
}

// A client that makes and kills sandboxes is killed at random moments. After
// the next client has opened the state directory nothing is left.
func TestClientKilledAtRandomMoments(t *testing.T) {
	needIsolation(t)
	root := testRoot(t)
	var ids []string
	for range scaled(5, 25, 100) {
		cmd := role(t, "loop", envState+"="+root)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(rand.N(150 * time.Millisecond))
		cmd.Process.Kill()
		cmd.Wait()
		for i := range 50 {
			ids = append(ids, sandboxID(loopRequest(cmd.Process.Pid, i)))
		}
	}
	p := openProvider(t, root)
	page, err := p.List(t.Context(), providers.ListRequest{States: []providers.State{providers.StateRunning, providers.StateUnknown, providers.StateStarting}})
	if err != nil {
		t.Fatal(err)
	}
	for _, sb := range page.Sandboxes { // detached ones were complete: they are to live on
		if err := p.Kill(t.Context(), sb.ID); err != nil {
			t.Error(err)
		}
	}
	// An init that notices the death of its client between the collecting and
	// the list is in neither: what it leaves is for the next collector.
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if err := p.collect(t.Context()); err != nil {
			t.Fatal(err)
		}
		if names, err := p.tree.boxes.names(); err == nil && len(names) == 0 {
			break
		}
	}
	checkNothingLeft(t, root)
	checkNoGroups(t, p.groups(), ids)
}

// checkNoGroups looks for control groups of sandboxes.
func checkNoGroups(t *testing.T, h *cgroupHost, ids []string) {
	t.Helper()
	for _, at := range h.at {
		for _, id := range ids {
			if _, err := os.Stat(filepath.Join(at.parent, cgroupFolder, id)); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("left: group %s below %s, %v", id, at.parent, err)
			}
		}
	}
}

// Creation is cancelled at random points: the error says so, and nothing is left.
func TestCreateCancelled(t *testing.T) {
	p := testProvider(t)
	create(t, p, providers.CreateRequest{}) // what is made once is made
	start := time.Now()
	create(t, p, providers.CreateRequest{})
	longest := 2 * time.Since(start)
	before := count(t)
	done, cancelled := 0, 0
	for range scaled(10, 60, 200) {
		ctx, cancel := context.WithTimeout(t.Context(), rand.N(longest))
		start := time.Now()
		sb, err := p.Create(ctx, providers.CreateRequest{})
		cancel()
		switch {
		case err == nil:
			done++
			if err := p.Kill(t.Context(), sb.ID); err != nil {
				t.Error(err)
			}
		case errors.Is(err, context.DeadlineExceeded):
			cancelled++
		default:
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		if names, _ := p.tree.boxes.allNames(); len(names) != 2 {
			t.Fatalf("left after %v: %q (%v)", time.Since(start), names, err)
		}
	}
	t.Logf("%d done, %d cancelled", done, cancelled)
	checkReturned(t, before)
}

// Another user of the machine reaches neither the directory nor the socket.
func TestOtherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can become another user")
	}
	p := testProvider(t)
	sb := create(t, p, providers.CreateRequest{})
	exe := copyOfTest(t)
	for _, f := range []string{fileRuntime, fileControl} {
		path := filepath.Join(p.root, "local", "boxes", sb.ID, f)
		cmd := exec.Command(exe)
		cmd.Env = []string{envRole + "=dial", envState + "=" + path}
		cmd.Dir = "/"
		if len(path) > 100 {
			t.Skip("the path is too long for a plain connection")
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("root: %v %s", err, out)
		}
		cmd = exec.Command(exe)
		cmd.Env = []string{envRole + "=dial", envState + "=" + path}
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 54321, Gid: 54321}}
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "permission denied") {
			t.Errorf("another user: %v %s", err, out)
		}
	}
}

// copyOfTest is this program at a place that every user can reach.
func copyOfTest(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "local-test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	b, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	exe := filepath.Join(dir, "test")
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(exe, b, 0o755)); err != nil {
		t.Fatal(err)
	}
	return exe
}
