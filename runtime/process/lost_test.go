//go:build linux

package process

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	pb "github.com/agent-sandbox/sandbox-go/internal/pb/process"
	"github.com/agent-sandbox/sandbox-go/runtime/account"
)

func startForTest(t *testing.T, s *Service, cmd string, args ...string) (*proc, *subscription) {
	t.Helper()
	u, err := account.NewBook("", false).Lookup("")
	if err != nil {
		t.Fatal(err)
	}
	l := &launch{svc: s, user: u, config: &pb.ProcessConfig{Cmd: cmd, Args: args}}
	defer l.close()
	if err := l.prepare(); err != nil {
		t.Fatal(err)
	}
	p, sub, err := l.start(nil)
	if err != nil {
		t.Fatal(err)
	}
	return p, sub
}

// TestLostStatusIsNoSuccess: when somebody else waits for our child, its status
// is gone, and must not be taken for 0.
func TestLostStatusIsNoSuccess(t *testing.T) {
	s := New(Options{})
	defer s.Shutdown(t.Context())
	s.opts.Spawner = func(name string, argv []string, attr *os.ProcAttr) (*os.Process, error) {
		p, err := os.StartProcess(name, argv, attr)
		if err == nil {
			_, err = p.Wait()
		}
		return p, err
	}
	p, sub := startForTest(t, s, "true")
	defer sub.close()
	<-p.ended
	_, end := collect(sub)
	if end.GetExited() || end.GetExitCode() != -1 || end.GetError() == "" {
		t.Errorf("got %v", end)
	}
	if err := p.signalGroup(9); !errors.Is(err, errGone) {
		t.Errorf("signal to a number that is not ours: %v", err)
	}
}

// TestFreshProgramIsNotBusy writes programs and starts them at once while
// others fork.
func TestFreshProgramIsNotBusy(t *testing.T) {
	self, err := exec.LookPath("true")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	s := New(Options{})
	defer s.Shutdown(t.Context())
	dir := t.TempDir()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_ = exec.Command("true").Run()
			}
		}
	})
	for i := range 100 {
		path := filepath.Join(dir, "p")
		if err := os.WriteFile(path+".new", program, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
		p, sub := startForTest(t, s, path)
		<-p.ended
		if _, end := collect(sub); !end.GetExited() || end.GetExitCode() != 0 {
			t.Errorf("start %d: %v", i, end)
		}
		sub.close()
	}
	close(stop)
	wg.Wait()
}

func TestPastIsBounded(t *testing.T) {
	tab := newTable()
	defer tab.close()
	for i := range maxEnded + 10 {
		p := &proc{pid: i + 1, out: newOutput(0), done: make(chan struct{})}
		if i >= maxEnded {
			p.out.write(stdout, make([]byte, 1))
		}
		close(p.done)
		tab.add(p)
		tab.ended(p, &pb.ProcessEvent_EndEvent{})
	}
	if len(tab.past) != maxEnded || tab.past[0].pid != 11 {
		t.Errorf("%d are kept, the oldest is %d", len(tab.past), tab.past[0].pid)
	}
	byPid := func(n uint32) *pb.ProcessSelector {
		return &pb.ProcessSelector{Selector: &pb.ProcessSelector_Pid{Pid: n}}
	}
	if _, err := tab.find(byPid(10), true); err == nil {
		t.Error("found one that was dropped")
	}
	if _, err := tab.find(byPid(11), true); err != nil {
		t.Error(err)
	}
	if _, err := tab.find(byPid(11), false); err == nil {
		t.Error("found an ended one among the living")
	}
	// Their outputs share one allowance; the youngest keep theirs.
	big := 0
	for i := range 2 * maxEndedBytes / RingSize {
		p := &proc{pid: 100_000 + i, out: newOutput(0), done: make(chan struct{})}
		p.out.write(stdout, make([]byte, RingSize))
		close(p.done)
		tab.ended(p, &pb.ProcessEvent_EndEvent{})
	}
	for _, p := range tab.past {
		big += p.out.kept()
	}
	if last := tab.past[len(tab.past)-1]; big > maxEndedBytes || last.out.kept() != RingSize {
		t.Errorf("%d MiB are kept, %d bytes of the youngest", big>>20, last.out.kept())
	}
	// An end that is old enough is forgotten.
	tab.mu.Lock()
	for i := range tab.past {
		tab.past[i].at = time.Now().Add(-KeepEnded)
	}
	tab.trimLocked()
	tab.mu.Unlock()
	if len(tab.past) != 0 {
		t.Errorf("%d are kept for longer than promised", len(tab.past))
	}
}
