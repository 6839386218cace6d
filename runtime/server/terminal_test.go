//go:build linux

package server

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	pb "github.com/agent-sandbox/sandbox-go/internal/pb/process"
)

// inTerminal is a start in a terminal of this size; zeros leave it to the server.
func inTerminal(cols, rows uint32, cmd string, args ...string) *pb.StartRequest {
	req := &pb.StartRequest{Process: &pb.ProcessConfig{Cmd: cmd, Args: args}, Pty: &pb.PTY{}}
	if cols != 0 || rows != 0 {
		req.Pty.Size = &pb.PTY_Size{Cols: cols, Rows: rows}
	}
	return req
}

// keys types into the terminal of a process.
func (r *rig) keys(ctx context.Context, pid uint32, text string) error {
	_, err := r.process.SendInput(ctx, connect.NewRequest(&pb.SendInputRequest{
		Process: byPid(pid), Input: &pb.ProcessInput{Input: &pb.ProcessInput_Pty{Pty: []byte(text)}},
	}))
	return err
}

func (r *rig) resize(ctx context.Context, pid, cols, rows uint32) error {
	_, err := r.process.Update(ctx, connect.NewRequest(&pb.UpdateRequest{
		Process: byPid(pid), Pty: &pb.PTY{Size: &pb.PTY_Size{Cols: cols, Rows: rows}},
	}))
	return err
}

// step waits until the output holds see, then does what has to be done next.
type step struct {
	see string // regular expression, searched after what the steps before saw
	do  func(pid uint32) error
}

// converse runs req and goes through the steps.
func converse(t *testing.T, r *rig, req *pb.StartRequest, steps ...step) *result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	seen := 0
	res, err := r.runWith(ctx, req, func(pid uint32, out string) {
		for len(steps) > 0 {
			m := regexp.MustCompile(steps[0].see).FindStringIndex(out[seen:])
			if m == nil {
				return
			}
			seen += m[1]
			if err := steps[0].do(pid); err != nil {
				t.Errorf("after %q: %v", steps[0].see, err)
			}
			steps = steps[1:]
		}
	})
	if err != nil {
		t.Fatalf("%v; still waiting for %d steps, output %q", err, len(steps), res.pty)
	}
	if len(steps) > 0 {
		t.Fatalf("ended without %q: %q", steps[0].see, res.pty)
	}
	return res
}

// TestTerminalSize: the first size, a new one with its signal, and those that
// cannot be.
func TestTerminalSize(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	script := "trap 'stty size; resized=1' WINCH; stty size; echo ready; while [ -z $resized ]; do sleep 0.05; done; read line; echo $line; exit 4"
	res := converse(t, r, inTerminal(132, 43, "/bin/bash", "-c", script),
		step{"43 132\r\nready\r\n", func(pid uint32) error {
			for _, size := range [][2]uint32{{0, 0}, {80, 0}, {0, 24}, {1 << 16, 24}} {
				if err := r.resize(t.Context(), pid, size[0], size[1]); codeOf(err) != "invalid_argument E3011" {
					t.Errorf("resize to %v: got %v", size, err)
				}
			}
			return r.resize(t.Context(), pid, 80, 24)
		}},
		step{"24 80\r\n", func(pid uint32) error { return r.keys(t.Context(), pid, "done\n") }},
		step{"done\r\n", func(uint32) error { return nil }},
	)
	if res.end.GetExitCode() != 4 || !res.end.GetExited() || res.stdout+res.stderr != "" {
		t.Errorf("got %+v", res)
	}
	if err := r.resize(t.Context(), res.pid, 80, 24); codeOf(err) != "not_found E3010" {
		t.Errorf("resize after the end: got %v", err)
	}
	if _, err := r.run(t.Context(), inTerminal(70000, 24, "/bin/true")); codeOf(err) != "invalid_argument E3011" {
		t.Errorf("start with a size that is too large: got %v", err)
	}
	for _, c := range []struct {
		cols, rows uint32
		want       string
	}{{0, 0, "24 80\r\n"}, {100, 0, "24 100\r\n"}, {0, 50, "50 80\r\n"}} {
		if res, err := r.run(t.Context(), inTerminal(c.cols, c.rows, "stty", "size")); err != nil || res.pty != c.want {
			t.Errorf("start with %d, %d: got %+v, %v", c.cols, c.rows, res, err)
		}
	}
}

// TestTerminalEnd: all output arrives, then the exit code; that the device is
// closed then is no error.
func TestTerminalEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	var want strings.Builder
	for i := range 20000 {
		fmt.Fprintf(&want, "%d\r\n", i+1)
	}
	for range 3 {
		res, err := r.run(t.Context(), inTerminal(0, 0, "/bin/sh", "-c", "seq 20000; exit 7"))
		if err != nil {
			t.Fatal(err)
		}
		if res.pty != want.String() || res.end.GetExitCode() != 7 || res.end.GetStatus() != "exit status 7" {
			t.Errorf("got %d bytes, want %d; end %v", len(res.pty), want.Len(), res.end)
		}
	}
}

// TestTerminalEnviron: what is there without options, and that each can be set.
func TestTerminalEnviron(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *Options) { o.Env = map[string]string{"FROM": "sandbox"} })
	print := []string{"-c", "echo $TERM $LANG $LC_ALL $FROM; stty -a | grep -o ' iutf8'; tty >/dev/null && test -t 0 -a -t 1 -a -t 2 && echo tty"}
	for _, c := range []struct {
		env  map[string]string
		want string
	}{
		{nil, "xterm-256color C.UTF-8 C.UTF-8 sandbox"},
		{map[string]string{"TERM": "dumb"}, "dumb C.UTF-8 C.UTF-8 sandbox"},
		{map[string]string{"LANG": "de_DE.UTF-8"}, "xterm-256color de_DE.UTF-8 sandbox"},
		{map[string]string{"LC_ALL": "POSIX", "FROM": "request"}, "xterm-256color C.UTF-8 POSIX request"},
	} {
		req := inTerminal(0, 0, "/bin/sh", print...)
		req.Process.Envs = c.env
		res, err := r.run(t.Context(), req)
		if want := c.want + "\r\n iutf8\r\ntty\r\n"; err != nil || res.pty != want {
			t.Errorf("%v: got %q, %v; want %q", c.env, res.pty, err, want)
		}
	}
}

// TestTerminalKeys: Ctrl-C, Ctrl-Z and Ctrl-D mean the foreground job.
func TestTerminalKeys(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("no bash")
	}
	r := newRig(t, nil)
	keys := func(text string) func(uint32) error {
		return func(pid uint32) error { return r.keys(t.Context(), pid, text) }
	}
	// Jobs say themselves that they have the terminal, and that they have it back:
	// the shell prints before it gives it to them.
	job := `sh -c 'echo started; exec sleep 100'` + "\n"
	stopped := `bash -c 'trap "echo continued" CONT; echo started; while :; do read -t 1; done'` + "\n"
	req := inTerminal(200, 24, "/bin/bash", "--norc", "--noprofile", "-i")
	req.Process.Envs = map[string]string{"PS1": "P$ ", "HISTFILE": ""}
	res := converse(t, r, req,
		step{`P\$ `, keys(job)},
		step{`[\r\n]started`, keys("\x03")},
		step{`P\$ `, keys("echo status $?\n")},
		step{`[\r\n]status 130`, keys(stopped)},
		step{`[\r\n]started`, keys("\x1a")},
		step{`Stopped`, keys("echo status $?; fg\n")},
		step{`[\r\n]status 148\r\n(.*\n)*continued`, keys("\x03")},
		step{`P\$ `, keys("echo status $?; jobs; (exit 5)\n")},
		step{`[\r\n]status 130`, func(uint32) error { return nil }},
		step{`P\$ `, keys("\x04")},
	)
	if res.end.GetExitCode() != 5 || !res.end.GetExited() || strings.Contains(res.pty, "no job control") {
		t.Errorf("got %v, output %q", res.end, res.pty)
	}
}

// TestTerminalMayBeClosedMeanwhile: nobody has the terminal open for a while,
// then it prints again.
func TestTerminalMayBeClosedMeanwhile(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	res, err := r.run(t.Context(), inTerminal(0, 0, "/bin/sh", "-c", "echo one; exec </dev/null >/dev/null 2>&1; sleep 0.3; echo two >/dev/tty"))
	if err != nil || res.pty != "one\r\ntwo\r\n" || res.end.GetExitCode() != 0 {
		t.Errorf("got %+v, %v", res, err)
	}
}

// TestTerminalHeldByOthers: the end follows the process, not those it left the
// terminal to; they go on.
func TestTerminalHeldByOthers(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	mark := t.TempDir() + "/lives"
	script, release := held(t, "for i in 1 2 3; do sleep 0.2; echo line || exit; done; touch "+mark)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	res, err := r.run(ctx, inTerminal(0, 0, "/bin/sh", "-c", "trap '' HUP; "+script+" & echo started"))
	if err != nil || res.pty != "started\r\n" {
		t.Errorf("got %+v, %v", res, err)
	}
	release()
	eventually(t, "the child has printed to its end", func() bool {
		_, err := os.Stat(mark)
		return err == nil
	})
}

// TestTerminalRefusals: input of the wrong kind, and ends that a terminal has not.
func TestTerminalRefusals(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	ctx := t.Context()
	stdin := &pb.ProcessInput{Input: &pb.ProcessInput_Stdin{Stdin: []byte("x")}}
	res := converse(t, r, inTerminal(0, 0, "/bin/sh", "-c", "echo ready; cat"), step{"ready", func(pid uint32) error {
		_, err := r.process.SendInput(ctx, connect.NewRequest(&pb.SendInputRequest{Process: byPid(pid), Input: stdin}))
		if codeOf(err) != "internal E3011" {
			t.Errorf("stdin to a terminal: %v", err)
		}
		_, err = r.process.CloseStdin(ctx, connect.NewRequest(&pb.CloseStdinRequest{Process: byPid(pid)}))
		if codeOf(err) != "unknown E3011" {
			t.Errorf("CloseStdin of a terminal: %v", err)
		}
		for _, p := range []*pb.PTY{nil, {}} {
			if _, err := r.process.Update(ctx, connect.NewRequest(&pb.UpdateRequest{Process: byPid(pid), Pty: p})); err != nil {
				t.Errorf("Update without a size: %v", err)
			}
		}
		return r.keys(ctx, pid, "\x04")
	}})
	if res.end.GetExitCode() != 0 {
		t.Errorf("got %v", res.end)
	}
	if err := r.keys(ctx, res.pid, "x"); codeOf(err) != "not_found E3010" {
		t.Errorf("input after the end: %v", err)
	}
	converse(t, r, sh("echo ready; read line"), step{"ready", func(pid uint32) error {
		if err := r.keys(ctx, pid, "x"); codeOf(err) != "internal E3011" {
			t.Errorf("keys to a pipe: %v", err)
		}
		if err := r.resize(ctx, pid, 80, 24); codeOf(err) != "internal E3011" {
			t.Errorf("resize of a pipe: %v", err)
		}
		_, err := r.process.CloseStdin(ctx, connect.NewRequest(&pb.CloseStdinRequest{Process: byPid(pid)}))
		return err
	}})
	res, err := r.run(ctx, inTerminal(0, 0, "/no/such/program"))
	if err != nil || res.end.GetExitCode() != 127 || !strings.Contains(res.pty, "/no/such/program") || res.trailer.Get("Sandbox-Error-Code") != "E3007" {
		t.Errorf("missing program: got %+v, %v", res, err)
	}
	if _, err := r.run(ctx, inTerminal(0, 0, "/bin/true"), "Sandbox-Channel", testChannel); codeOf(err) != "invalid_argument E3011" {
		t.Errorf("terminal with a channel: got %v", err)
	}
}

// TestTerminalConnect: a later watcher gets what is buffered, as terminal output.
func TestTerminalConnect(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	res, err := r.run(t.Context(), inTerminal(0, 0, "/bin/sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x"))
	if err != nil {
		t.Fatal(err)
	}
	again, err := r.connect(t.Context(), res.pid)
	if err != nil {
		t.Fatal(err)
	}
	if len(again.pty) != 1<<20 || again.end == nil {
		t.Errorf("got %d bytes, end %v", len(again.pty), again.end)
	}
	if got, want := again.header.Get("Sandbox-Output-Dropped"), fmt.Sprintf("pty=%d", len(res.pty)-1<<20); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestTerminalSlowReader: a reader that stops holds the program back, and it
// does not hinder anybody's keys.
func TestTerminalSlowReader(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	count := t.TempDir() + "/count"
	script := "i=0; trap 'echo $i >" + count + "; exit 9' INT; line=$(head -c 999 /dev/zero | tr '\\0' x); while :; do echo $line; i=$((i+1)); echo $i >" + count + "; done"
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stream, err := r.process.Start(ctx, connect.NewRequest(inTerminal(0, 0, "/bin/bash", "-c", script)))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if !stream.Receive() {
		t.Fatal(stream.Err())
	}
	pid := stream.Msg().GetEvent().GetStart().GetPid()
	lines := func() string {
		b, _ := os.ReadFile(count)
		return string(b)
	}
	last, same := "", 0
	eventually(t, "the program is held back", func() bool {
		time.Sleep(20 * time.Millisecond)
		now := lines()
		if now == last && now != "" {
			same++
		} else {
			same = 0
		}
		last = now
		return same > 25
	})
	var n int
	fmt.Sscan(last, &n)
	// The buffer, and what lies in the sockets between.
	if n < 1000 || n > 20000 {
		t.Errorf("held back after %d lines of 1001 bytes", n)
	}
	if err := r.keys(ctx, pid, "\x03"); err != nil {
		t.Fatal(err)
	}
	for stream.Receive() {
		if end := stream.Msg().GetEvent().GetEnd(); end != nil && end.GetExitCode() != 9 {
			t.Errorf("got %v", end)
		}
	}
	if err := stream.Err(); err != nil {
		t.Error(err)
	}
}

// TestTerminalsLeaveNothing starts terminals that run, that do not start and
// that nobody watches to the end.
func TestTerminalsLeaveNothing(t *testing.T) {
	r := newRig(t, nil)
	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	round := func() {
		if _, err := r.run(t.Context(), inTerminal(0, 0, "/bin/true")); err != nil {
			t.Fatal(err)
		}
		r.run(t.Context(), inTerminal(0, 0, "/no/such/program"))
		r.run(t.Context(), inTerminal(0, 70000, "/bin/true"))
		r.run(t.Context(), &pb.StartRequest{Process: &pb.ProcessConfig{Cmd: "/dev/null"}, Pty: &pb.PTY{}})
		ctx, cancel := context.WithCancel(t.Context())
		r.runWith(ctx, inTerminal(0, 0, "/bin/sleep", "100"), func(uint32, string) { cancel() }, "Sandbox-On-Disconnect", "kill")
		cancel()
	}
	idle := func() bool {
		list, err := r.process.List(t.Context(), connect.NewRequest(&pb.ListRequest{}))
		return err == nil && len(list.Msg.Processes) == 0
	}
	round()
	eventually(t, "all processes have ended", idle)
	before := count()
	for range 30 {
		round()
	}
	eventually(t, "all processes have ended", idle)
	eventually(t, "all descriptors are closed", func() bool { return count() <= before+3 })
}
