//go:build linux

package server

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	pb "github.com/agent-sandbox/sandbox-go/internal/pb/process"
	"github.com/agent-sandbox/sandbox-go/runtime/fault"
	"github.com/agent-sandbox/sandbox-go/runtime/process"
)

func codeOf(err error) string {
	var e *connect.Error
	if errors.As(err, &e) {
		return e.Code().String() + " " + e.Meta().Get(fault.Header)
	}
	return fmt.Sprint(err)
}

// eventually waits until cond holds.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(3 * time.Minute); !cond(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("after three minutes still not: %s", what)
		}
	}
}

func TestEndFollowsTheProcess(t *testing.T) {
	r := newRig(t, nil)
	mark := filepath.Join(t.TempDir(), "lives")
	script, release := held(t, "for i in 1 2 3 4 5; do sleep 0.2; echo line || exit; done; touch "+mark)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// The child prints after the end; a closed pipe would kill it.
	res, err := r.run(ctx, sh(script+" & echo started"))
	if err != nil {
		t.Fatal(err)
	}
	if res.stdout != "started\n" || res.end.GetExitCode() != 0 {
		t.Errorf("got %q, %v", res.stdout, res.end)
	}
	release()
	eventually(t, "the child has printed all its lines", func() bool {
		_, err := os.Stat(mark)
		return err == nil
	})
}

func TestDeadlineEndsTheTree(t *testing.T) {
	r := newRig(t, nil)
	late := filepath.Join(t.TempDir(), "late")
	for limit := 500 * time.Millisecond; ; limit *= 4 {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		res, err := r.run(ctx, sh(fmt.Sprintf("trap '' TERM; echo begun; (trap '' TERM; sleep %g; touch %s) & sleep 600", (limit+500*time.Millisecond).Seconds(), late)))
		if res != nil && res.stdout == "begun\n" && connect.CodeOf(err) == connect.CodeDeadlineExceeded {
			break
		}
		if connect.CodeOf(err) != connect.CodeDeadlineExceeded || limit > 20*time.Second {
			t.Fatalf("got %+v, %v", res, err)
		}
	}
	time.Sleep(1200 * time.Millisecond)
	if _, err := os.Stat(late); err == nil {
		t.Error("the tree went on after its deadline")
	}
	eventually(t, "nothing is listed", func() bool { return len(r.list(t)) == 0 })
}

func (r *rig) list(t *testing.T) []*pb.ProcessInfo {
	t.Helper()
	resp, err := r.process.List(t.Context(), connect.NewRequest(&pb.ListRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	return resp.Msg.GetProcesses()
}

func (r *rig) send(ctx context.Context, pid uint32, b []byte) error {
	_, err := r.process.SendInput(ctx, connect.NewRequest(&pb.SendInputRequest{
		Process: byPid(pid), Input: &pb.ProcessInput{Input: &pb.ProcessInput_Stdin{Stdin: b}},
	}))
	return err
}

func (r *rig) closeStdin(ctx context.Context, pid uint32) error {
	_, err := r.process.CloseStdin(ctx, connect.NewRequest(&pb.CloseStdinRequest{Process: byPid(pid)}))
	return err
}

// begin starts a command and returns its pid; the result comes when it ends.
func (r *rig) begin(t *testing.T, msg *pb.StartRequest, headers ...string) (uint32, <-chan *result) {
	t.Helper()
	pid := make(chan uint32, 1)
	done := make(chan *result, 1)
	var once sync.Once
	go func() {
		res, err := r.runWith(context.WithoutCancel(t.Context()), msg, func(p uint32, _ string) { once.Do(func() { pid <- p }) }, headers...)
		if err != nil {
			t.Errorf("stream: %v", err)
			once.Do(func() { pid <- 0 })
		}
		done <- res
	}()
	return <-pid, done
}

func TestInput(t *testing.T) {
	r := newRig(t, nil)
	ctx := t.Context()

	pid, done := r.begin(t, &pb.StartRequest{Process: &pb.ProcessConfig{Cmd: "sort"}})
	for _, line := range []string{"pear\n", "apple\n"} {
		if err := r.send(ctx, pid, []byte(line)); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.closeStdin(ctx, pid); err != nil {
		t.Fatal(err)
	}
	if res := <-done; res.stdout != "apple\npear\n" {
		t.Errorf("sort: got %q", res.stdout)
	}

	big := make([]byte, 10<<20)
	for i := range big {
		big[i] = byte(i * 7)
	}
	pid, done = r.begin(t, &pb.StartRequest{Process: &pb.ProcessConfig{Cmd: "cat"}})
	if err := r.send(ctx, pid, big); err != nil {
		t.Fatal(err)
	}
	if err := r.closeStdin(ctx, pid); err != nil {
		t.Fatal(err)
	}
	if res := <-done; res.stdout != string(big) {
		t.Errorf("cat: got %d bytes, or others", len(res.stdout))
	}

	pid, done = r.begin(t, sh("exec <&-; echo closed; sleep 60"))
	eventually(t, "the input is refused", func() bool { return r.send(ctx, pid, []byte("x")) != nil })
	if got := codeOf(r.send(ctx, pid, []byte("x"))); got != "internal E3013" {
		t.Errorf("process closed its input: got %s", got)
	}
	if err := r.closeStdin(ctx, pid); err != nil {
		t.Fatal(err)
	}
	if got := codeOf(r.send(ctx, pid, []byte("x"))); got != "internal E3013" {
		t.Errorf("input after its end: got %s", got)
	}
	if err := r.signal(ctx, pid, pb.Signal_SIGNAL_SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-done
	if got := codeOf(r.send(ctx, pid, []byte("x"))); got != "not_found E3010" {
		t.Errorf("input after the end of the process: got %s", got)
	}

	// A process that never reads holds one request, not the server.
	pid, done = r.begin(t, sh("sleep 60"))
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	if err := r.send(short, pid, make([]byte, 1<<20)); connect.CodeOf(err) != connect.CodeDeadlineExceeded {
		t.Errorf("full pipe: got %v", err)
	}
	if err := r.signal(ctx, pid, pb.Signal_SIGNAL_SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-done
}

func TestPrograms(t *testing.T) {
	r := newRig(t, nil)
	dir := r.opts.DefaultWorkDir
	for name, content := range map[string]string{"plain": "#!/bin/sh\necho ran\n", "badline": "#!/no/such/interpreter\n", "binary": "\x7fELF garbage", "script": "#!/bin/sh\necho \"$0 ran\"\n"} {
		mode := os.FileMode(0o755)
		if name == "plain" {
			mode = 0o644
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), mode); err != nil {
			t.Fatal(err)
		}
	}
	if os.Geteuid() != 0 {
		if err := os.Mkdir(filepath.Join(dir, "closed"), 0); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name, cmd, path string
		code            int32
		out, text       string
	}{
		{"by name", "true", "", 0, "", ""},
		{"relative", "./script", "", 0, "./script ran\n", ""},
		{"in the request's PATH", "script", dir, 0, dir + "/script ran\n", ""},
		{"in a relative PATH", "script", "/no:.", 0, "./script ran\n", ""},
		{"missing by name", "no-such-program", "", 127, "", "'no-such-program': No such file or directory\n"},
		{"missing by path", "/no/such", "", 127, "", "'/no/such': No such file or directory\n"},
		{"empty", "", "", 127, "", "'': No such file or directory\n"},
		{"not executable", "./plain", "", 126, "", "'./plain': Permission denied\n"},
		{"not executable by name", "plain", dir, 126, "", "'plain': Permission denied\n"},
		{"a folder", "/etc", "", 126, "", "'/etc': Permission denied\n"},
		{"bad interpreter", "./badline", "", 126, "", "'./badline': bad interpreter: No such file or directory\n"},
		{"garbage", "./binary", "", 126, "", "'./binary': Exec format error\n"},
		{"below a file", "./plain/x", "", 127, "", "'./plain/x': Not a directory\n"},
		{"name too long", strings.Repeat("x", 300), "", 127, "", "'" + strings.Repeat("x", 300) + "': No such file or directory\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			msg := &pb.StartRequest{Process: &pb.ProcessConfig{Cmd: c.cmd}}
			if c.path != "" {
				msg.Process.Envs = map[string]string{"PATH": c.path}
			}
			res, err := r.run(t.Context(), msg)
			if err != nil {
				t.Fatal(err)
			}
			if res.end.GetExitCode() != c.code || res.stdout != c.out || res.stderr != c.text {
				t.Errorf("got %d, %q, %q, want %d, %q, %q", res.end.GetExitCode(), res.stdout, res.stderr, c.code, c.out, c.text)
			}
			if code := res.trailer.Get(fault.Header); (code == "E3007") != (c.code != 0) {
				t.Errorf("trailer says %q", code)
			}
		})
	}
}

func TestRefusedStarts(t *testing.T) {
	r := newRig(t, nil)
	file := filepath.Join(r.opts.DefaultWorkDir, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	config := func(c *pb.ProcessConfig) *pb.StartRequest { return &pb.StartRequest{Process: c} }
	cwd := func(dir string) *pb.StartRequest {
		return config(&pb.ProcessConfig{Cmd: "touch", Args: []string{file + ".ran"}, Cwd: &dir})
	}
	for _, c := range []struct {
		name string
		msg  *pb.StartRequest
		want string
	}{
		{"NUL in cmd", config(&pb.ProcessConfig{Cmd: "true\x00"}), "invalid_argument E3011"},
		{"NUL in argument", config(&pb.ProcessConfig{Cmd: "sh", Args: []string{"-c", "touch x\x00y"}}), "invalid_argument E3011"},
		{"NUL in variable", config(&pb.ProcessConfig{Cmd: "true", Envs: map[string]string{"A": "\x00"}}), "invalid_argument E3011"},
		{"= in name", config(&pb.ProcessConfig{Cmd: "true", Envs: map[string]string{"A=B": "c"}}), "invalid_argument E3011"},
		{"argument too long", config(&pb.ProcessConfig{Cmd: "true", Args: []string{strings.Repeat("x", 1<<20)}}), "invalid_argument E3011"},
		{"missing folder", cwd("/no/such"), "invalid_argument E3012"},
		{"a file", cwd(file), "invalid_argument E3012"},
		{"home of others", cwd("~root"), "invalid_argument E3012"},
		{"our own descriptors", cwd("/proc/self/fd/0"), "invalid_argument E3012"},
		{"our own folder", cwd("/proc/self/cwd"), "invalid_argument E3012"},
		{"folder of the first process", cwd("/proc/1/cwd"), "invalid_argument E3012"},
		{"NUL in folder", cwd("/tmp\x00"), "invalid_argument E3012"},
	} {
		t.Run(c.name, func(t *testing.T) {
			res, err := r.run(t.Context(), c.msg)
			if got := codeOf(err); got != c.want {
				t.Errorf("got %s, want %s (%+v)", got, c.want, res)
			}
			if res != nil && res.pid != 0 {
				t.Error("something was started")
			}
		})
	}
	if _, err := os.Stat(file + ".ran"); err == nil {
		t.Error("a command ran in some other folder")
	}
}

func TestEnvironmentAndFolder(t *testing.T) {
	t.Setenv("SECRET_OF_THE_SERVER", "1")
	r := newRig(t, func(o *Options) {
		o.Env = map[string]string{"K": "sandbox", "L": "sandbox"}
		o.DefaultWorkDir = ""
	})
	res, err := r.run(t.Context(), &pb.StartRequest{Process: &pb.ProcessConfig{
		Cmd: "env", Envs: map[string]string{"L": "request"}, Cwd: proto.String("/usr/../usr/bin"),
	}})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for line := range strings.Lines(res.stdout) {
		k, v, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		got[k] = v
	}
	for k, want := range map[string]string{"K": "sandbox", "L": "request", "PATH": process.DefaultPath, "PWD": "/usr/bin"} {
		if got[k] != want {
			t.Errorf("%s is %q, want %q", k, got[k], want)
		}
		delete(got, k)
	}
	for _, k := range []string{"HOME", "USER", "LOGNAME"} {
		if got[k] == "" {
			t.Errorf("%s is missing", k)
		}
		delete(got, k)
	}
	if len(got) > 0 {
		t.Errorf("more variables than asked for: %v", got)
	}
	home, err := os.UserHomeDir()
	if err != nil {
		t.Fatal(err)
	}
	for cwd, want := range map[string]string{"~": home, "": home, "/": "/", "..": filepath.Dir(home)} {
		res, err := r.run(t.Context(), &pb.StartRequest{Process: &pb.ProcessConfig{Cmd: "/bin/pwd", Args: []string{"-P"}, Cwd: &cwd}})
		if err != nil || strings.TrimSpace(res.stdout) != want {
			t.Errorf("cwd %q: got %+v, %v, want %q", cwd, res, err, want)
		}
	}
}

func TestReconnect(t *testing.T) {
	r := newRig(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	seen := make(chan uint32, 1)
	lost := make(chan error, 1)
	go func() {
		_, err := r.runWith(ctx, sh("echo 1; sleep 0.3; echo 2; sleep 0.3; echo 3; exit 7"), func(pid uint32, out string) {
			if out == "1\n" {
				seen <- pid
			}
		})
		lost <- err
	}()
	pid := <-seen
	cancel()
	<-lost
	for range 2 { // while it runs, and after its end
		res, err := r.connect(t.Context(), pid)
		if err != nil || res.stdout != "1\n2\n3\n" || res.end.GetExitCode() != 7 {
			t.Errorf("got %+v, %v", res, err)
		}
	}
	if got := codeOf(r.signal(t.Context(), pid, pb.Signal_SIGNAL_SIGTERM)); got != "not_found E3010" {
		t.Errorf("signal after the end: got %s", got)
	}
}

func TestDroppedOutputIsCounted(t *testing.T) {
	r := newRig(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	mark := filepath.Join(t.TempDir(), "printed")
	started, lost := make(chan uint32, 1), make(chan struct{})
	go func() {
		defer close(lost)
		// Printing begins when nobody listens any more.
		r.runWith(ctx, sh("read x; head -c 3000000 /dev/zero; echo end; touch "+mark+"; sleep 60"), func(pid uint32, _ string) { started <- pid })
	}()
	pid := <-started
	cancel()
	<-lost
	time.Sleep(50 * time.Millisecond) // until the server has noticed
	if err := r.send(t.Context(), pid, []byte("\n")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all is printed", func() bool { _, err := os.Stat(mark); return err == nil })
	// The end of a process does not touch what it has printed.
	if err := r.signal(t.Context(), pid, pb.Signal_SIGNAL_SIGKILL); err != nil {
		t.Fatal(err)
	}
	res, err := r.connect(t.Context(), pid)
	if err != nil {
		t.Fatal(err)
	}
	want := "stdout=" + strconv.Itoa(3000000+4-process.RingSize) + ", stderr=0"
	if got := res.header.Get(process.DroppedHeader); got != want || len(res.stdout) != process.RingSize {
		t.Errorf("got %q with %d bytes, want %q", got, len(res.stdout), want)
	}
}

func TestBurstArrivesWhole(t *testing.T) {
	r := newRig(t, nil)
	const size = 64 << 20
	stream, err := r.process.Start(t.Context(), connect.NewRequest(sh("head -c "+strconv.Itoa(size)+" /dev/urandom | tee /proc/self/fd/2 | sha256sum >&2; exit 0")))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	// Everything goes to stderr: the bytes, then the sum of them.
	sum := sha256.New()
	total := 0
	var tail []byte
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	var peak uint64
	for stream.Receive() {
		d := stream.Msg().GetEvent().GetData().GetStderr()
		total += len(d)
		for _, b := range [][]byte{d} {
			if over := total - size; over > 0 {
				cut := min(over, len(b))
				tail = append(tail, b[len(b)-cut:]...)
				b = b[:len(b)-cut]
			}
			sum.Write(b)
		}
		if total%(8<<20) < chunk {
			var now runtime.MemStats
			runtime.ReadMemStats(&now)
			peak = max(peak, now.HeapAlloc)
		}
	}
	if err := stream.Err(); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprintf("%x  -\n", sum.Sum(nil)); got != string(tail) {
		t.Errorf("got %d bytes with sum %.8s, the command says %.8s", total, got, tail)
	}
	if grown := int64(peak) - int64(before.HeapAlloc); grown > 32<<20 {
		t.Errorf("memory grew by %d MiB", grown>>20)
	}
}

const chunk = 32 << 10

func TestSlowReaderHoldsTheProcessBack(t *testing.T) {
	r := newRig(t, nil)
	mark := filepath.Join(t.TempDir(), "printed")
	stream, err := r.process.Start(t.Context(), connect.NewRequest(sh("head -c 50000000 /dev/zero; touch "+mark)))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if !stream.Receive() {
		t.Fatal(stream.Err())
	}
	time.Sleep(500 * time.Millisecond)
	if _, err := os.Stat(mark); err == nil {
		t.Error("the process printed 50 MB that nobody read")
	}
	total := 0
	for stream.Receive() {
		total += len(stream.Msg().GetEvent().GetData().GetStdout())
	}
	if total != 50000000 || stream.Err() != nil {
		t.Errorf("got %d bytes, %v", total, stream.Err())
	}
}

func TestKeepalive(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	began := time.Now()
	res, err := r.run(t.Context(), sh("sleep 3.5; echo done"), "Keepalive-Ping-Interval", "1")
	if err != nil || res.keepalives < 2 || res.keepalives > int(time.Since(began)/time.Second) || res.stdout != "done\n" {
		t.Errorf("got %+v, %v", res, err)
	}
}

func TestKillOnFirstEvent(t *testing.T) {
	r := newRig(t, nil)
	for range 100 {
		pid, done := r.begin(t, &pb.StartRequest{Process: &pb.ProcessConfig{Cmd: "sleep", Args: []string{"4212"}}})
		if err := r.signal(t.Context(), pid, pb.Signal_SIGNAL_SIGKILL); err != nil {
			t.Fatal(err)
		}
		if res := <-done; res == nil || res.end.GetStatus() != "signal: killed" {
			t.Fatalf("got %+v", res)
		}
	}
}

func TestCancelledStartsLeaveNothing(t *testing.T) {
	r := newRig(t, nil)
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			time.AfterFunc(time.Duration(i%50)*100*time.Microsecond, cancel)
			if _, err := r.run(ctx, &pb.StartRequest{Process: &pb.ProcessConfig{Cmd: "sleep", Args: []string{"4213"}}}, process.DisconnectHeader, "kill"); err == nil {
				t.Error("a cancelled start succeeded")
			}
		})
	}
	wg.Wait()
	eventually(t, "no process is left", func() bool { return len(r.list(t)) == 0 })
}

func TestManyAtOnce(t *testing.T) {
	const many = 400
	r := newRig(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var started atomic.Int32
	for range many {
		wg.Go(func() {
			r.runWith(ctx, sh("exec sleep 600"), func(uint32, string) { started.Add(1) }, process.DisconnectHeader, "kill")
		})
	}
	began := time.Now()
	eventually(t, "all are started", func() bool { return started.Load() == many })
	t.Logf("%d commands after %v", many, time.Since(began))
	began = time.Now()
	if res, err := r.run(t.Context(), sh("echo short")); err != nil || res.stdout != "short\n" {
		t.Errorf("got %+v, %v", res, err)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("one more took %v", took)
	}
	cancel()
	wg.Wait()
	eventually(t, "all are gone", func() bool { return len(r.list(t)) == 0 })
}

func TestNothingLeaks(t *testing.T) {
	r := newRig(t, nil)
	use := func(n int) {
		for i := range n {
			switch i % 4 {
			case 0:
				r.run(t.Context(), &pb.StartRequest{Process: &pb.ProcessConfig{Cmd: "/no/such"}})
			case 1:
				r.run(t.Context(), &pb.StartRequest{Process: &pb.ProcessConfig{Cmd: "true", Cwd: proto.String("/no/such")}})
			case 2:
				r.run(t.Context(), sh("echo x"))
			case 3:
				ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
				r.run(ctx, sh("sleep 5"))
				cancel()
			}
		}
		eventually(t, "all commands are gone", func() bool { return len(r.list(t)) == 0 })
	}
	counts := func() (fds, goroutines int) {
		d, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(d), runtime.NumGoroutine()
	}
	use(40)
	fds, goroutines := counts()
	use(400)
	eventually(t, "descriptors and goroutines are where they were", func() bool {
		f, g := counts()
		return f <= fds+5 && g <= goroutines+5
	})
}

func TestSignals(t *testing.T) {
	r := newRig(t, nil)
	// TERM reaches the group: the shell and what it waits for.
	pid, done := r.begin(t, sh("sleep 4214; true"))
	eventually(t, "the child runs", func() bool { return countProcesses(t, "sleep\x004214") == 1 })
	if err := r.signal(t.Context(), pid, pb.Signal_SIGNAL_SIGTERM); err != nil {
		t.Fatal(err)
	}
	if res := <-done; res.end.GetStatus() != "signal: terminated" || res.end.GetExitCode() != -1 {
		t.Errorf("got %v", res.end)
	}
	eventually(t, "the child is gone", func() bool { return countProcesses(t, "sleep\x004214") == 0 })

	// One process only, when asked for.
	pid, done = r.begin(t, sh("sleep 4215 & wait"))
	eventually(t, "the child runs", func() bool { return countProcesses(t, "sleep\x004215") == 1 })
	req := connect.NewRequest(&pb.SendSignalRequest{Process: byPid(pid), Signal: pb.Signal_SIGNAL_SIGKILL})
	req.Header().Set(process.ScopeHeader, "process")
	if _, err := r.process.SendSignal(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	<-done
	if countProcesses(t, "sleep\x004215") != 1 {
		t.Error("a signal for one process reached its child")
	}
}

// countProcesses counts the living whose command line begins so.
func countProcesses(t *testing.T, prefix string) int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, f := range files {
		if data, err := os.ReadFile(f); err == nil && strings.HasPrefix(string(data), prefix) {
			n++
		}
	}
	return n
}

func TestShutdownEndsDaemonsToo(t *testing.T) {
	s, err := New(&Options{Token: testToken})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	r := serveRig(t, s, filepath.Join(dir, "s"))
	// The command is over, its daemon has left session, descriptors and parent.
	if _, err := r.run(t.Context(), sh("(setsid env -i sleep 4216 </dev/null >/dev/null 2>&1 &)")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the daemon runs", func() bool { return countProcesses(t, "sleep\x004216") == 1 })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := s.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	if n := countProcesses(t, "sleep\x004216"); n != 0 {
		t.Errorf("%d daemons are left", n)
	}
	if _, err := r.run(t.Context(), sh("true")); err == nil {
		t.Error("a start after the shutdown succeeded")
	}
}

func TestIgnoredSignalsAreNotHandedOn(t *testing.T) {
	signal.Ignore(syscall.SIGUSR1, syscall.SIGUSR2)
	defer signal.Reset(syscall.SIGUSR1, syscall.SIGUSR2)
	r := newRig(t, nil)
	res, err := r.run(t.Context(), sh("grep -E '^Sig(Ign|Blk)' /proc/self/status"))
	if err != nil {
		t.Fatal(err)
	}
	// Signals 32 and 33 belong to the C library; Go does not touch them.
	var blocked, ignored uint64
	if _, err := fmt.Sscanf(res.stdout, "SigBlk: %x\nSigIgn: %x\n", &blocked, &ignored); err != nil || blocked != 0 || ignored&^(3<<31) != 0 {
		t.Errorf("got %q, %v", res.stdout, err)
	}
}

func TestCommandsInheritNoDescriptors(t *testing.T) {
	open, err := os.Open("/etc/passwd") // and whatever else this process has
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	r := newRig(t, nil)
	res, err := r.run(t.Context(), sh("echo /proc/self/fd/*"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range strings.Fields(res.stdout) {
		got = append(got, filepath.Base(f))
	}
	// The shell opens the folder to list it, and may keep a copy of nothing else.
	if len(got) < 3 || len(got) > 4 || !slices.Equal(got[:3], []string{"0", "1", "2"}) {
		t.Errorf("a command has the descriptors %v", got)
	}
}

func TestSpawnerStartsEverything(t *testing.T) {
	var mu sync.Mutex
	var names []string
	r := newRig(t, func(o *Options) {
		o.Spawner = func(name string, argv []string, attr *os.ProcAttr) (*os.Process, error) {
			mu.Lock()
			defer mu.Unlock()
			names = append(names, name)
			if !attr.Sys.Setsid || len(attr.Files) != 3 || attr.Dir == "" {
				t.Errorf("%s: attributes %+v", name, attr)
			}
			return os.StartProcess(name, append(argv, "by the spawner"), attr)
		}
	})
	res, err := r.run(t.Context(), &pb.StartRequest{Process: &pb.ProcessConfig{Cmd: "echo"}})
	if err != nil || res.stdout != "by the spawner\n" {
		t.Errorf("got %+v, %v", res, err)
	}
	if len(names) != 1 || filepath.Base(names[0]) != "echo" || !filepath.IsAbs(names[0]) {
		t.Errorf("started %v", names)
	}
}

func TestMemoryLimit(t *testing.T) {
	var kills atomic.Uint64
	r := newRig(t, func(o *Options) {
		o.OOMKills = kills.Load
		o.CommandOOMScore = 500
	})
	for script, want := range map[string]string{
		"kill -KILL $$":                  "signal: killed (memory limit)",
		"sh -c 'kill -KILL $$'; exit $?": "exit status 137 (memory limit)",
		"exit 1":                         "exit status 1",
	} {
		pid, done := r.begin(t, sh("read x; "+script))
		kills.Add(1)
		if err := r.send(t.Context(), pid, []byte("\n")); err != nil {
			t.Fatal(err)
		}
		res := <-done
		if res.end.GetError() != want {
			t.Errorf("%s: got %q, want %q", script, res.end.GetError(), want)
		}
		if got := res.trailer.Get(fault.Header); (got == "E3009") != strings.Contains(want, "limit") {
			t.Errorf("%s: trailer says %q", script, got)
		}
	}
	res, err := r.run(t.Context(), sh("kill -KILL $$"))
	if err != nil || res.end.GetError() != "signal: killed" {
		t.Errorf("without a kill at the limit: got %+v, %v", res, err)
	}
	// The score is set right after the start; the program may be faster.
	res, err = r.run(t.Context(), sh("sleep 0.1; cat /proc/self/oom_score_adj"))
	if err != nil || res.stdout != "500\n" {
		t.Errorf("score: got %+v, %v", res, err)
	}
}

func TestSpaceKills(t *testing.T) {
	var kills, oom atomic.Uint64
	r := newRig(t, func(o *Options) { o.SpaceKills, o.OOMKills = kills.Load, oom.Load })
	for script, want := range map[string]string{
		"kill -KILL $$": "signal: killed (no space left)",
		"exit 1":        "exit status 1",
	} {
		pid, done := r.begin(t, sh("read x; "+script))
		kills.Add(1)
		if err := r.send(t.Context(), pid, []byte("\n")); err != nil {
			t.Fatal(err)
		}
		res := <-done
		if res.end.GetError() != want {
			t.Errorf("%s: got %q, want %q", script, res.end.GetError(), want)
		}
		if got := res.trailer.Get(fault.Header); (got == "E4004") != strings.Contains(want, "space") {
			t.Errorf("%s: trailer says %q", script, got)
		}
	}
}

func TestOtherUsers(t *testing.T) {
	if os.Geteuid() != 0 {
		r := newRig(t, nil)
		_, err := r.run(t.Context(), sh("id"), "Authorization", "Basic cm9vdDo=")
		if got := codeOf(err); got != "unauthenticated E3008" {
			t.Errorf("root for others: got %s", got)
		}
		return
	}
	r := newRig(t, func(o *Options) { o.CanSwitchUser = true; o.DefaultWorkDir = "/" })
	res, err := r.run(t.Context(), sh("id -un; id -u; id -G; echo $HOME $USER $LOGNAME; touch /tmp/of-nobody.$$; stat -c %U /tmp/of-nobody.$$; rm /tmp/of-nobody.$$"),
		"Authorization", "Basic bm9ib2R5Og==")
	if err != nil {
		t.Fatal(err)
	}
	if f := strings.Fields(res.stdout); len(f) < 7 || f[0] != "nobody" || f[1] != "65534" || f[2] != "65534" || f[len(f)-1] != "nobody" || f[4] != "nobody" {
		t.Errorf("got %q, %q", res.stdout, res.stderr)
	}
	_, err = r.run(t.Context(), sh("id"), "Authorization", "Basic bm9zdWNoOg==")
	if got := codeOf(err); got != "unauthenticated E3008" {
		t.Errorf("unknown user: got %s", got)
	}
}
