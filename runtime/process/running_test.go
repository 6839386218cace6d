//go:build linux

package process

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	pb "github.com/agent-sandbox/sandbox-go/internal/pb/process"
	"github.com/agent-sandbox/sandbox-go/runtime/account"
)

func testUser(t *testing.T) context.Context {
	t.Helper()
	u, err := account.NewBook("", false).Lookup("")
	if err != nil {
		t.Fatal(err)
	}
	return account.NewContext(t.Context(), u)
}

// read reads to the end.
func (r *Running) read(t *testing.T) (stdout, stderr, pty string, end *pb.ProcessEvent_EndEvent) {
	t.Helper()
	for {
		e, err := r.Next(t.Context())
		if err == io.EOF {
			return stdout, stderr, pty, end
		}
		if err != nil {
			t.Fatal(err)
		}
		stdout += string(e.GetData().GetStdout())
		stderr += string(e.GetData().GetStderr())
		pty += string(e.GetData().GetPty())
		if e.GetEnd() != nil {
			end = e.GetEnd()
		}
	}
}

func shell(script string) *pb.StartRequest {
	return &pb.StartRequest{Process: &pb.ProcessConfig{Cmd: "/bin/sh", Args: []string{"-c", script}}}
}

func TestRunning(t *testing.T) {
	s := New(Options{})
	defer s.Shutdown(t.Context())
	ctx := testUser(t)
	extra, other, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer extra.Close()
	r, err := s.Begin(ctx, shell("read x; echo got $x; echo bad >&2; echo side >&3; exit 4"), other)
	other.Close()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := r.Write(ctx, []byte("line\n")); err != nil {
		t.Fatal(err)
	}
	late, err := s.Follow("connect", &pb.ProcessSelector{Selector: &pb.ProcessSelector_Pid{Pid: uint32(r.Pid())}})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []*Running{r, late} {
		stdout, stderr, _, end := r.read(t)
		if stdout != "got line\n" || stderr != "bad\n" || end.GetExitCode() != 4 || r.End().GetExitCode() != 4 {
			t.Errorf("got %q, %q, %v", stdout, stderr, end)
		}
	}
	if side, err := io.ReadAll(extra); string(side) != "side\n" || err != nil {
		t.Errorf("descriptor 3: %q, %v", side, err)
	}
}

func TestRunningTerminalAndKill(t *testing.T) {
	s := New(Options{})
	defer s.Shutdown(t.Context())
	ctx := testUser(t)
	req := shell("stty size; sleep 100 & wait")
	req.Pty = &pb.PTY{Size: &pb.PTY_Size{Cols: 33, Rows: 7}}
	r, err := s.Begin(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	e, err := r.Next(t.Context())
	if err != nil || !strings.Contains(string(e.GetData().GetPty()), "7 33") {
		t.Fatalf("got %v, %v", e, err)
	}
	if err := r.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, _, _, end := r.read(t); end.GetStatus() != "signal: killed" {
		t.Errorf("got %v", end)
	}
	if err := r.Kill(t.Context()); err != nil {
		t.Errorf("again: %v", err)
	}
}

func TestBeginRefuses(t *testing.T) {
	s := New(Options{})
	defer s.Shutdown(t.Context())
	ctx := testUser(t)
	var coded *connect.Error
	if _, err := s.Begin(ctx, &pb.StartRequest{Process: &pb.ProcessConfig{Cmd: "no-such-program"}}); !errors.As(err, &coded) || coded.Code() != connect.CodeNotFound {
		t.Errorf("got %v", err)
	}
	over, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := s.Begin(over, shell("true")); err == nil {
		t.Error("started for a request that is over")
	}
}

// TestKillWith: what outruns its context is killed, whether or not somebody reads,
// and its end does not pass for one of its own.
func TestKillWith(t *testing.T) {
	s := New(Options{})
	defer s.Shutdown(t.Context())
	for name, c := range map[string]struct {
		script string
		killed bool
	}{
		"endless output": {"exec yes", true},
		"silence":        {"exec sleep 600", true},
		"in time":        {"echo done", false},
		// The last of it is still in the pipe, which holds a page at least, pipe(7);
		// what came before fills the ring, and one byte keeps its reader waiting.
		"much output": {"head -c 1048576 /dev/zero; sleep 0.1; echo; sleep 0.1; head -c 4000 /dev/zero", false},
	} {
		r, err := s.Begin(testUser(t), shell(c.script))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		follow, stop := r.KillWith(ctx)
		if !c.killed {
			for !r.Exited() {
				time.Sleep(time.Millisecond)
			}
		}
		cancel()
		if c.killed {
			for !r.p.collected() { // nobody has read anything
				time.Sleep(time.Millisecond)
			}
		}
		for {
			e, err := r.Next(follow)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if e.GetEnd() != nil {
				break
			}
		}
		for range 2 {
			if killed, err := stop(); killed != c.killed || err != nil {
				t.Errorf("%s: killed %v, %v", name, killed, err)
			}
		}
		r.Close()
	}
}

// TestEndOfServiceAfterEndOfProcess: the end of a process is told also where that of
// the service is seen first.
func TestEndOfServiceAfterEndOfProcess(t *testing.T) {
	s := New(Options{})
	defer s.Shutdown(t.Context())
	p := &proc{out: newOutput(0), ended: make(chan struct{})}
	r := &Running{svc: s, p: p, sub: p.out.subscribe()}
	got := make(chan error, 2)
	go func() {
		_, err := r.Next(t.Context())
		got <- err
	}()
	go func() {
		got <- s.follow(t.Context(), p, p.out.subscribe(), time.Hour, func(*pb.ProcessEvent) error { return nil })
	}()
	time.Sleep(20 * time.Millisecond) // it waits, as a rule
	p.out.mu.Lock()
	s.cancel()
	time.Sleep(20 * time.Millisecond) // and looks for more, as a rule
	p.out.end = &pb.ProcessEvent_EndEvent{}
	close(p.ended)
	p.out.mu.Unlock()
	for range 2 {
		if err := <-got; err != nil {
			t.Error(err)
		}
	}
}

// TestEndIsListedFirst: who has been told of an end finds it in the lists.
func TestEndIsListedFirst(t *testing.T) {
	s := New(Options{})
	defer s.Shutdown(t.Context())
	r, err := s.Begin(testUser(t), shell("read x"))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	s.table.mu.Lock()
	if err := r.CloseInput(t.Context()); err != nil {
		t.Error(err)
	}
	select {
	case <-r.Done():
		t.Error("it has ended, and no list says so")
	case <-time.After(200 * time.Millisecond):
	}
	s.table.mu.Unlock()
	<-r.Done()
	if i, err := s.Process(r.Pid()); err != nil || i.End == nil {
		t.Errorf("got %+v, %v", i, err)
	}
}
