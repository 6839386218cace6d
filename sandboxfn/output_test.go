package sandboxfn

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/envelope"
)

// held is a writer that takes nothing until it is let go.
type held chan struct{}

func (h held) Write(b []byte) (int, error) {
	<-h
	return len(b), nil
}

// Only a writer that can block, and has something, is found slow: after
// slowWriter, by all that wait for it together, once.
func TestSlowWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := make(held)
		s := newSink("standard output")
		s.direct(&target{w: w})
		begin := time.Now()
		s.take(bytes.Repeat([]byte("0123456\n"), 2*maxBuffered/8))
		if took := time.Since(begin); took < slowWriter || took > slowWriter+slowTick {
			t.Errorf("a writer that is stuck held the worker up for %v", took)
		}
		begin = time.Now()
		s.flush(t.Context())
		s.take(make([]byte, maxBuffered))
		s.flush(t.Context())
		if took := time.Since(begin); took > 3*moment*slowTick {
			t.Errorf("it did so again, for %v", took)
		}
		close(w)
		s.flush(t.Context())
		if !s.idle() {
			t.Error("what was kept is not written")
		}
		s.close()
	})
	synctest.Test(t, func(t *testing.T) {
		s := newSink("standard output")
		defer s.close()
		s.direct(&target{w: &bytes.Buffer{}})
		s.mu.Lock()
		defer s.mu.Unlock()
		for begin := time.Now(); time.Since(begin) < time.Hour; { // the machine has no time for the goroutine that writes
			if !s.waitLocked() {
				t.Fatalf("given up after %v", time.Since(begin))
			}
		}
	})
	for _, c := range []struct {
		w    io.Writer
		want bool
	}{
		{&bytes.Buffer{}, false}, {&strings.Builder{}, false}, {io.Discard, false},
		{os.Stdout, true}, {lineLogger{log: slog.Default()}, true}, {make(held), true},
	} {
		if got := (&target{w: c.w}).mayBlock(); got != c.want {
			t.Errorf("%T may block: %v", c.w, got)
		}
	}
}

// A call whose output has not come has not succeeded, and its worker is not used
// again.
func TestOutputThatDoesNotCome(t *testing.T) {
	m := &fakeMaker{counters: envelope.Counters{Stdout: 3, Stderr: 4}}
	ctx, _ := poolContext(t, m)
	n, err := poolDouble.Call(ctx, 1)
	if CodeOf(err) != "E9006" || !strings.Contains(err.Error(), "7 bytes of its output have not come") {
		t.Errorf("got %d, %v", n, err)
	}
	m.counters = envelope.Counters{}
	mustDouble(t, ctx, poolDouble)
	if n := m.started.Load(); n != 2 {
		t.Errorf("%d workers were started", n)
	}
}

// Records wait for a handler that is slow up to a limit; the rest is counted.
func TestSinkRecords(t *testing.T) {
	s := newSink("standard error")
	block, begun := make(chan struct{}), make(chan struct{}, 1)
	var got []int
	missed := 0
	const all, size = 20_000, 100
	for i := range all {
		s.record(size, func() {
			if i == 0 {
				begun <- struct{}{}
				<-block
			}
			got = append(got, i)
		}, func(n int) { missed += n })
		if i == 0 {
			<-begun
		}
	}
	close(block)
	s.flush(context.Background())
	if !s.idle() {
		t.Error("not idle after a flush")
	}
	s.record(size, func() { got = append(got, all) }, func(n int) { missed += n })
	s.flush(context.Background())
	s.missRecords(3, func(n int) { missed += n })
	s.close()
	missed -= 3
	if want := maxBuffered/(size+recordOverhead) + 1; len(got) != want || missed != all-want+1 {
		t.Errorf("%d records, %d missed; want %d, %d", len(got), missed, want, all-want+1)
	}
	for i := range got[:len(got)-1] {
		if got[i] != i {
			t.Fatalf("record %d at place %d", got[i], i)
		}
	}
	if got[len(got)-1] != all {
		t.Errorf("the last record is %d", got[len(got)-1])
	}
}
