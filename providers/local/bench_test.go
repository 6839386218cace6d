//go:build linux

package local

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/providers"
)

func init() { roles["measure"] = measureRole }

const (
	envEcho   = "LOCAL_TEST_ECHO"
	envAlone  = "LOCAL_TEST_ALONE"
	envRounds = "LOCAL_TEST_ROUNDS"
)

// echoSource is a server that answers one line: the least that a sandbox with a
// runtime does, without the sandbox.
const echoSource = `package main

import (
	"bufio"
	"io"
	"net"
	"os"
)

func main() {
	l, err := net.FileListener(os.NewFile(0, ""))
	if err != nil {
		panic(err)
	}
	c, err := l.Accept()
	if err != nil {
		panic(err)
	}
	line, _ := bufio.NewReader(c).ReadString('\n')
	io.WriteString(c, line)
}
`

// runtimeSource is the runtime of a sandbox without the sandbox.
const runtimeSource = `package main

import (
	"net"
	"os"

	"github.com/agent-sandbox/sandbox-go/runtime/server"
)

func main() {
	l, err := net.FileListener(os.NewFile(0, ""))
	if err != nil {
		panic(err)
	}
	s, err := server.New(&server.Options{AllowNoToken: true})
	if err != nil {
		panic(err)
	}
	if err := s.Serve(l); err != nil {
		panic(err)
	}
}
`

// Cases of a round; each is a time.
const (
	casePlain      = "plain"          // fork, exec and wait of /bin/true
	casePlainTurn  = "plain in turns" // the same, its outputs kept, in turns with the next one and nothing else
	caseCommand    = "command"        // /bin/true in a sandbox that runs, for a client that has run one before
	casePlainEcho  = "plain echo"     // start of the echo server to its answer
	caseBwrap      = "bwrap"          // /bin/true below bwrap
	caseBwrapEcho  = "bwrap echo"     // the echo server below bwrap, to its answer
	caseAlone      = "runtime"        // start of the runtime without a sandbox, to its answer
	caseBwrapAlone = "bwrap runtime"  // the same below bwrap
	caseCreate     = "create"         // a sandbox, to the first answer of its runtime
	caseCreateTrue = "create+run"     // a sandbox, /bin/true in it, until its end is known
	caseCreateEnd  = "create+run+end" // the same, until nothing is left: create+run and destroy in one
	caseDestroy    = "destroy"        // until nothing is left
	casePool       = "from the pool"  // a sandbox that waits, to the first answer of its runtime
	caseRunc       = "runc"           // /bin/true in a container of runc, and of crun
	caseCrun       = "crun"
)

// BenchmarkSandbox compares with a plain start and with bwrap, in one run and
// interleaved, because only ratios carry over from one machine to the next.
// Metrics are ratios of medians, and of the best rounds, which say more on a busy
// machine; "own" has this test program as pid 1, "small"
// the command sandboxinit.
func BenchmarkSandbox(b *testing.B) {
	needIsolation(b)
	dir := b.TempDir()
	echo := filepath.Join(dir, "echo")
	alone := filepath.Join(dir, "alone")
	small := filepath.Join(dir, "sandboxinit")
	for program, source := range map[string]string{echo: echoSource, alone: runtimeSource} {
		if err := os.WriteFile(program+".go", []byte(source), 0o600); err != nil {
			b.Fatal(err)
		}
		goBuild(b, program, program+".go")
	}
	goBuild(b, small, "github.com/agent-sandbox/sandbox-go/runtime/cmd/sandboxinit")
	if err := os.Chmod(dir, 0o755); err != nil {
		b.Fatal(err)
	}
	for _, v := range []struct{ name, runtime string }{{"own", ""}, {"small", small}} {
		var m map[string]measured
		b.Run(v.name, func(b *testing.B) {
			if m == nil {
				m = measure(b, dir, "SANDBOX_RUNTIME_BINARY="+v.runtime, envEcho+"="+echo, envAlone+"="+alone)
			}
			for b.Loop() {
			}
			b.ReportMetric(0, "ns/op")
			ratio := func(name, num, den string) {
				if m[den].Best > 0 {
					b.ReportMetric(float64(m[num].Median)/float64(m[den].Median), name)
					b.ReportMetric(float64(m[num].Best)/float64(m[den].Best), name+"(best)")
				}
			}
			ratio("run/bwrap", caseCreateTrue, caseBwrap)
			ratio("run+end/bwrap", caseCreateEnd, caseBwrap)
			ratio("run/plain", caseCreateTrue, casePlain)
			ratio("create/bwrap-echo", caseCreate, caseBwrapEcho)
			ratio("create/plain-echo", caseCreate, casePlainEcho)
			ratio("create/bwrap-runtime", caseCreate, caseBwrapAlone)
			ratio("runtime/bwrap-echo", caseAlone, caseBwrapEcho)
			ratio("destroy/bwrap", caseDestroy, caseBwrap)
			ratio("command/plain", caseCommand, casePlainTurn)
			ratio("pool/plain-echo", casePool, casePlainEcho)
			ratio("runc/bwrap", caseRunc, caseBwrap)
			ratio("crun/bwrap", caseCrun, caseBwrap)
			for _, c := range []string{casePlain, casePlainEcho, caseAlone, caseBwrap, caseBwrapEcho, caseBwrapAlone, caseCreate, caseCreateTrue, caseCreateEnd, casePlainTurn, caseCommand, caseDestroy, casePool, caseRunc, caseCrun} {
				if m[c].Best == 0 {
					b.Logf("%-15s not measured: it is not installed, or does not run here", c)
					continue
				}
				b.Logf("%-15s median %8.2f ms, best %8.2f ms", c, m[c].Median.Seconds()*1000, m[c].Best.Seconds()*1000)
			}
		})
	}
}

// goBuild builds pkg and installs it as out.
func goBuild(b *testing.B, out, pkg string) {
	b.Helper()
	linked := out + ".linked"
	cmd := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-ldflags=-s -w", "-o", linked, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if msg, err := cmd.CombinedOutput(); err != nil {
		b.Skipf("build %s: %v: %s", pkg, err, msg)
	}
	install(b, linked, out)
}

// install copies a program, as package managers and InstallRuntime do. What a linker
// has written itself lies in memory page by page, which makes starts and ends of its
// processes slower than those of a program that was installed, such as bwrap.
func install(b *testing.B, from, to string) {
	b.Helper()
	program, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, program, 0o755)
	}
	if err != nil {
		b.Fatal(err)
	}
}

// measure runs the rounds in a process of their own, for which the runtime
// binary can be chosen.
func measure(b *testing.B, dir string, env ...string) map[string]measured {
	b.Helper()
	rounds := "31"
	if testing.Short() {
		rounds = "5"
	}
	own := filepath.Join(dir, "own")
	install(b, "/proc/self/exe", own)
	cmd := exec.Command(own)
	cmd.Env = append(append(os.Environ(), envRole+"=measure", envState+"="+dir, envRounds+"="+rounds), env...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		b.Fatal(err)
	}
	var m map[string]measured
	if err := json.Unmarshal(out, &m); err != nil {
		b.Fatal(err)
	}
	return m
}

// measured is what is kept of the times of one case.
type measured struct{ Median, Best time.Duration }

// measureRole prints what was measured of all cases as JSON.
func measureRole() error {
	ctx := context.Background()
	p, err := roleProvider()
	if err != nil {
		return err
	}
	defer p.Close()
	running, err := p.Create(ctx, providers.CreateRequest{})
	if err != nil {
		return err
	}
	var rounds int
	if _, err := fmt.Sscan(os.Getenv(envRounds), &rounds); err != nil {
		return err
	}
	echo, alone := os.Getenv(envEcho), os.Getenv(envAlone)
	why := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})) // nothing waits
	pooled, err := New(providers.Config{StateDir: os.Getenv(envState), Logger: why})
	if err != nil {
		return err
	}
	defer pooled.Close()
	if err := pooled.warmUp(ctx); err != nil {
		return err
	}
	client, err := dataClient(running)
	if err != nil {
		return err
	}
	defer client.Close()
	var inner, ahead, ran *providers.Sandbox
	plain := func() error { return exec.Command("/bin/true").Run() }
	captured := func() error { // like a command, of which both outputs are kept
		var stdout, stderr strings.Builder
		cmd := exec.Command("/bin/true")
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		return cmd.Run()
	}
	cases := []benchCase{
		{casePlain, plain},
		{casePlainEcho, func() error { return firstAnswer(exec.Command(echo), "hello\n") }},
		{caseAlone, func() error { return firstAnswer(exec.Command(alone), healthRequest) }},
		{caseCreate, func() (err error) { inner, err = p.Create(ctx, providers.CreateRequest{}); return err }},
		{caseDestroy, func() error { return p.Kill(ctx, inner.ID) }},
		{caseCreateTrue, func() (err error) {
			if ran, err = p.Create(ctx, providers.CreateRequest{}); err == nil {
				_, _, err = command(ctx, ran, "/bin/true")
			}
			return err
		}},
		{casePool, func() (err error) { ahead, err = pooled.Create(ctx, providers.CreateRequest{}); return err }},
	}
	for _, name := range []string{caseRunc, caseCrun} {
		run, remove, err := containerCase(name)
		if err != nil {
			fmt.Fprintf(os.Stderr, "%s is left out: %v\n", name, err)
			continue
		}
		defer remove()
		cases = append(cases, benchCase{name, run})
	}
	if bwrap, err := exec.LookPath("bwrap"); err == nil {
		below := func(args ...string) *exec.Cmd {
			all := strings.Fields("--unshare-all --die-with-parent --ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/lib /lib --symlink usr/lib64 /lib64 --proc /proc --dev /dev --tmpfs /tmp")
			return exec.Command(bwrap, append(all, args...)...)
		}
		cases = append(cases, benchCase{caseBwrap, func() error { return below("/bin/true").Run() }},
			benchCase{caseBwrapEcho, func() error {
				return firstAnswer(below("--ro-bind", echo, "/tmp/echo", "/tmp/echo"), "hello\n")
			}},
			benchCase{caseBwrapAlone, func() error {
				return firstAnswer(below("--ro-bind", alone, "/tmp/alone", "/tmp/alone"), healthRequest)
			}})
	}
	times := map[string][]time.Duration{}
	for i := range rounds + 1 {
		for _, c := range cases {
			start := time.Now()
			if err := c.run(); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			if i > 0 { // the first round is to warm up
				times[c.name] = append(times[c.name], time.Since(start))
			}
			if ran != nil {
				if err := p.Kill(ctx, ran.ID); err != nil {
					return err
				}
				ran = nil
				if i > 0 {
					times[caseCreateEnd] = append(times[caseCreateEnd], time.Since(start))
				}
			}
			if ahead != nil { // neither its end nor the next one is in the way of another case
				if err := pooled.Kill(ctx, ahead.ID); err != nil {
					return err
				}
				ahead = nil
				if err := pooled.awaitSpare(); err != nil {
					return err
				}
			}
		}
	}
	// By themselves: the kernel takes namespaces and control groups down after their
	// last process has ended, at the cost of whatever comes next.
	turns := []benchCase{
		{casePlainTurn, captured},
		{caseCommand, func() error { _, _, err := commandOf(ctx, client, "", "/bin/true"); return err }},
	}
	time.Sleep(100 * time.Millisecond)
	for i := range 10 * rounds {
		for _, c := range turns {
			start := time.Now()
			if err := c.run(); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			if i > rounds {
				times[c.name] = append(times[c.name], time.Since(start))
			}
		}
	}
	out := map[string]measured{}
	for name, t := range times {
		slices.Sort(t)
		out[name] = measured{t[len(t)/2], t[0]}
	}
	return json.NewEncoder(os.Stdout).Encode(out)
}

type benchCase struct {
	name string
	run  func() error
}

// warmUp makes a sandbox wait.
func (p *Provider) warmUp(ctx context.Context) error {
	sb, err := p.Create(ctx, providers.CreateRequest{})
	if err != nil {
		return err
	}
	if err := p.Kill(ctx, sb.ID); err != nil {
		return err
	}
	return p.awaitSpare()
}

func (p *Provider) awaitSpare() error {
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		p.pool.mu.Lock()
		n := len(p.pool.ready)
		p.pool.mu.Unlock()
		if n > 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return errors.New("no sandbox waits in the pool")
		}
	}
}

// containerCase prepares a container that shows /usr and runs /bin/true.
func containerCase(tool string) (run func() error, remove func(), err error) {
	path, err := exec.LookPath(tool)
	if err != nil {
		return nil, nil, err
	}
	bundle, err := os.MkdirTemp("", "bundle")
	if err != nil {
		return nil, nil, err
	}
	remove = func() { os.RemoveAll(bundle) }
	defer func() {
		if err != nil {
			remove()
		}
	}()
	args := []string{"spec", "--bundle", bundle}
	if os.Geteuid() != 0 {
		args = append(args, "--rootless")
	}
	spec := exec.Command(path, args...)
	spec.Dir = bundle
	if out, err := spec.CombinedOutput(); err != nil {
		return nil, nil, fmt.Errorf("%w: %s", err, out)
	}
	file := filepath.Join(bundle, "config.json")
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, nil, err
	}
	var conf map[string]any
	if err := json.Unmarshal(b, &conf); err != nil {
		return nil, nil, err
	}
	process, _ := conf["process"].(map[string]any)
	mounts, _ := conf["mounts"].([]any)
	process["terminal"], process["args"] = false, []string{"/bin/true"}
	conf["mounts"] = append(mounts, map[string]any{
		"destination": "/usr", "type": "bind", "source": "/usr", "options": []string{"rbind", "ro"},
	})
	if b, err = json.Marshal(conf); err == nil {
		err = os.WriteFile(file, b, 0o600)
	}
	root := filepath.Join(bundle, "rootfs")
	err = errors.Join(err, os.MkdirAll(filepath.Join(root, "usr"), 0o755))
	for _, name := range []string{"bin", "lib", "lib64"} {
		err = errors.Join(err, os.Symlink("usr/"+name, filepath.Join(root, name)))
	}
	if err != nil {
		return nil, nil, err
	}
	run = func() error {
		cmd := exec.Command(path, "run", "--bundle", bundle, "bench-"+randomText(12))
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	return run, remove, run()
}

// firstAnswer starts a server on a listener that is its standard input, sends request
// and waits for the first line of the answer. The end is not waited for: the next round does.
func firstAnswer(cmd *exec.Cmd, request string) error {
	l, err := net.Listen("unix", "@"+randomText(20))
	if err != nil {
		return err
	}
	defer l.Close()
	f, err := l.(*net.UnixListener).File()
	if err != nil {
		return err
	}
	defer f.Close()
	cmd.Stdin = f
	c, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := io.WriteString(c, request); err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	_, err = bufio.NewReader(c).ReadString('\n')
	cmd.Process.Kill() // the runtime goes on
	go cmd.Wait()
	return err
}

// BenchmarkBeside compares what a sandbox gets done beside others that do their
// worst with what it gets done alone: "alone/beside" is how often as many calls
// it makes alone. Where processor time is limited, 2 is the most.
func BenchmarkBeside(b *testing.B) {
	needIsolation(b)
	p, err := New(providers.Config{StateDir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	good := create(b, p, providers.CreateRequest{})
	calls := func() (n int) {
		for start := time.Now(); time.Since(start) < 3*time.Second; n++ {
			if out, _, err := shell(ctx, good, "echo x"); out != "x\n" || err != nil {
				b.Fatalf("%q, %v", out, err)
			}
		}
		return n
	}
	alone := calls()
	// Together they may use half of the machine.
	const n = 64
	share := max(int64(runtime.NumCPU())*1000/2/n, minCPUMilli)
	var wg sync.WaitGroup
	ids := []string{good.ID}
	for i, g := range newAbusers(b, p, n, share) {
		ids = append(ids, g.sb.ID)
		wg.Go(func() { g.abuse(ctx, abuses[i%len(abuses)]) })
	}
	time.Sleep(time.Second)
	beside := calls()
	killAll(b, p, ids)
	cancel()
	wg.Wait()
	for b.Loop() {
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(alone)/float64(max(beside, 1)), "alone/beside")
	if p.groups().mechanism(limitCPU) == "" {
		b.Log("processor time is not limited here: ", p.groups().why[limitCPU])
	}
}
