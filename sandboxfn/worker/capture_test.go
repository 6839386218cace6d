package worker_test

import (
	"bytes"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/worker"
)

// An orphan that goes on printing does not keep what it prints to from ending,
// and everything that the worker printed before its end is there.
func TestCaptureEnds(t *testing.T) {
	c, err := worker.NewCapture()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	nothing, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer nothing.Close()
	p, err := os.StartProcess("/bin/sh", []string{"sh", "-c", "yes & yes >&2 & sleep 0.2; echo last; exit 3"}, &os.ProcAttr{
		Files: []*os.File{nothing, c.Stdout, c.Stderr},
		Sys:   &syscall.SysProcAttr{Setpgid: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Kill(-p.Pid, syscall.SIGKILL)
	c.CloseGiven()
	var pumps sync.WaitGroup
	said, ends := false, [2]int{}
	pumps.Go(func() {
		c.Take(0, func(b []byte) {
			time.Sleep(2 * time.Millisecond) // the pipe is full again when it is looked at
			said = said || bytes.Contains(b, []byte("last\n"))
			ends[0] += len(b)
		})
	})
	pumps.Go(func() {
		c.Take(1, func(b []byte) {
			time.Sleep(2 * time.Millisecond)
			ends[1] += len(b)
		})
	})
	if st, err := p.Wait(); err != nil || st.ExitCode() != 3 {
		t.Errorf("%v, %v", st, err)
	}
	c.Ended()
	done := make(chan struct{})
	go func() { pumps.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("it is taken on and on")
	}
	if !said || ends[0] == 0 || ends[1] == 0 {
		t.Errorf("the last words: %v; bytes: %v", said, ends)
	}
}
