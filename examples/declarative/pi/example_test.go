package main

import (
	"bytes"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/agent-sandbox/sandbox-go/internal/sbtest"
)

func TestMain(m *testing.M) { os.Exit(sbtest.Main(m)) }

// writer takes what callbacks write at once.
type writer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (w *writer) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.Buffer.Write(b)
}

func TestPi(t *testing.T) {
	sbtest.NeedSandbox(t)
	var stdout bytes.Buffer
	var stderr writer
	if code := run(t.Context(), []string{"-calls", "6", "-darts", "1500000"}, &stdout, &stderr); code != 0 {
		t.Fatalf("exit %d: %s", code, stderr.String())
	}
	if !strings.HasPrefix(stdout.String(), "π ≈ 3.14") {
		t.Errorf("got %q", stdout.String())
	}
	// Two steps for each call, and the last fills the bar.
	if got := stderr.String(); strings.Count(got, "\r") != 12 || !strings.Contains(got, strings.Repeat("#", 40)+"] 100%") {
		t.Errorf("the bar: %q", got)
	}
}

func TestWrongUse(t *testing.T) {
	for _, args := range [][]string{{"-calls", "0"}, {"-darts", "many"}, {"extra"}} {
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), args, &stdout, &stderr); code != 2 || stderr.Len() == 0 || stdout.Len() > 0 {
			t.Errorf("%q: exit %d, %q", args, code, stderr.String())
		}
	}
}
