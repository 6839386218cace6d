package sandboxtest_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/sandboxtest"
)

// loud is 10 MB of lines that are not all the same.
func loud(who string) []byte {
	b := make([]byte, 0, 10_001_000)
	for i := 0; len(b) < 10_000_000; i++ {
		b = append(strconv.AppendInt(append(b, who...), int64(i), 10), xs[:i%900]...)
		b = append(b, '\n')
	}
	return b
}

var xs = strings.Repeat("x", 900)

const envNoisy = "SANDBOXTEST_NOISY_INIT"

func init() {
	if os.Getenv(envNoisy) != "" {
		os.Stdout.Write(loud("init"))
		os.Stderr.WriteString("init is loud\n\x00\xff")
	}
	if os.Getenv(envChild) != "" {
		os.Stdout.Write(loud("child"))
		os.Exit(0)
	}
}

const envChild = "SANDBOXTEST_NOISY_CHILD"

var shout = declare("shout", func(_ context.Context, how string) (int, error) {
	switch how {
	case "function":
		return os.Stdout.Write(loud("function"))
	case "child":
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), envChild+"=1")
		cmd.Stdout = os.Stdout
		return 0, cmd.Run()
	case "one line":
		os.Stdout.Write(bytes.Repeat([]byte("y"), 1<<20))
		os.Stderr.WriteString("no end")
	case "for ever":
		line := bytes.Repeat([]byte("spam spam spam\n"), 4000)
		go func() {
			for {
				os.Stdout.Write(line)
			}
		}()
		time.Sleep(100 * time.Millisecond)
	case "lines":
		os.Stdout.WriteString(strings.Repeat("0123456789abcdef\n", 100_000))
	case "partial":
		fmt.Print("partial")
		time.Sleep(2 * time.Second)
	case "print":
		fmt.Println("hello")
		fmt.Fprintln(os.Stderr, "hello, errors")
	}
	return 1, nil
})

// buffer is a writer for the output of workers, which write it one at a time.
type buffer struct{ bytes.Buffer }

func capture(o sandboxfn.Options) (*buffer, *buffer, sandboxfn.Options) {
	var out, err buffer
	o.Stdout, o.Stderr = &out, &err
	return &out, &err, o
}

// notes are the lines that say that lines were dropped.
func notes(b *buffer) string {
	var s strings.Builder
	for line := range strings.Lines(b.String()) {
		if strings.Contains(line, "dropped") {
			s.WriteString("\n" + line)
		}
	}
	return s.String()
}

func TestLoudOutput(t *testing.T) {
	ctx := sandboxtest.Process(t)
	for how, want := range map[string][]byte{
		"function": loud("function"),
		"child":    loud("child"),
		"one line": bytes.Repeat([]byte("y"), 1<<20),
	} {
		t.Run(how, func(t *testing.T) {
			out, _, o := capture(sandboxfn.Options{})
			if _, err := shout.With(o).Call(ctx, how); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(out.Bytes(), want) {
				t.Errorf("got %d bytes, want %d, or they differ%s", out.Len(), len(want), notes(out))
			}
		})
	}
}

func TestLoudInit(t *testing.T) {
	ctx := sandboxtest.Process(t)
	out, stderr, o := capture(sandboxfn.Options{Env: map[string]string{envNoisy: "1"}})
	f := shout.With(o)
	for range 3 {
		if n, err := f.Call(ctx, "nothing"); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	if want := loud("init"); !bytes.Equal(out.Bytes(), want) {
		t.Errorf("got %d bytes, want %d once, or they differ%s", out.Len(), len(want), notes(out))
	}
	if got, want := stderr.String(), "init is loud\n\x00\xff"; got != want {
		t.Errorf("standard error %q, want %q", got, want)
	}
}

// What is printed is with the caller when the call returns, every time.
func TestOutputIsCompleteAtReturn(t *testing.T) {
	ctx := sandboxtest.Process(t)
	out, stderr, o := capture(sandboxfn.Options{})
	f := shout.With(o)
	for i := range 300 {
		out.Reset()
		stderr.Reset()
		if _, err := f.Call(ctx, "print"); err != nil {
			t.Fatal(err)
		}
		if out.String() != "hello\n" || stderr.String() != "hello, errors\n" {
			t.Fatalf("call %d: %q, %q", i, out, stderr)
		}
	}
}

func TestOutputOfConcurrentCalls(t *testing.T) {
	ctx := sandboxtest.Process(t)
	out, _, o := capture(sandboxfn.Options{})
	f := shout.With(o)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 25 {
				f.Call(ctx, "print")
			}
		})
	}
	wg.Wait()
	if got, want := out.String(), strings.Repeat("hello\n", 100); got != want {
		t.Errorf("got %q", got)
	}
}

// stuck is a writer that takes nothing until it is let go.
type stuck struct {
	once  sync.Once
	begun chan struct{}
	let   chan struct{}

	mu  sync.Mutex
	buf bytes.Buffer // guarded by mu
}

func (s *stuck) Write(b []byte) (int, error) {
	s.once.Do(func() { close(s.begun) })
	<-s.let
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(b)
}

func (s *stuck) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}

func TestSlowReaderDoesNotBlockTheFunction(t *testing.T) {
	ctx := sandboxtest.Process(t)
	w := &stuck{begun: make(chan struct{}), let: make(chan struct{})}
	f := shout.With(sandboxfn.Options{Stdout: w, Workers: sandboxfn.Workers{Max: 1}})
	begin := time.Now()
	if n, err := f.Call(ctx, "function"); n < 10_000_000 || err != nil {
		t.Fatal(n, err)
	}
	if took := time.Since(begin); took > time.Minute {
		t.Errorf("the call took %v", took)
	}
	<-w.begun
	close(w.let)
	got := ""
	for range 100 { // the first lines may come before the reader has made room
		if _, err := f.Call(ctx, "print"); err != nil {
			t.Fatal(err)
		}
		if got = w.String(); strings.HasSuffix(got, "hello\n") {
			break
		}
	}
	if !strings.HasPrefix(got, "function0\nfunction1x\n") || !strings.Contains(got, "lines of standard output dropped: the reader is too slow]\n") || !strings.HasSuffix(got, "hello\n") {
		t.Errorf("got %d bytes: %.60q … %q", len(got), got, got[max(0, len(got)-200):])
	}
	if len(got) > 3<<20 {
		t.Errorf("%d bytes were kept for a stuck reader", len(got))
	}
}

// What a writer that stalls for a while has not taken yet is not lost, nor is
// the call over before it has: however long the worker waited for that.
func TestReaderThatStalls(t *testing.T) {
	t.Parallel()
	ctx := sandboxtest.Process(t)
	w := &stuck{begun: make(chan struct{}), let: make(chan struct{})}
	go func() {
		<-w.begun
		time.Sleep(3 * time.Second)
		close(w.let)
	}()
	if _, err := shout.With(sandboxfn.Options{Stdout: w}).Call(ctx, "lines"); err != nil {
		t.Fatal(err)
	}
	if got, want := w.String(), strings.Repeat("0123456789abcdef\n", 100_000); got != want {
		t.Errorf("%d bytes when the call returned, want %d: … %q", len(got), len(want), got[max(0, len(got)-200):])
	}
}

func TestLogModes(t *testing.T) {
	ctx := sandboxtest.Process(t)
	out, stderr, o := capture(sandboxfn.Options{Log: sandboxfn.LogDiscard})
	if _, err := shout.With(o).Call(ctx, "print"); err != nil || out.Len()+stderr.Len() > 0 {
		t.Errorf("discard: %q, %q, %v", out, stderr, err)
	}
	var log buffer
	old := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})))
	defer slog.SetDefault(old)
	if _, err := shout.With(sandboxfn.Options{Log: sandboxfn.LogSlog}).Call(ctx, "print"); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"level=INFO msg=hello function=" + self + ".shout stream=stdout\n",
		"level=INFO msg=\"hello, errors\" function=" + self + ".shout stream=stderr\n",
	} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("records %q do not hold %q", log.String(), want)
		}
	}
}

// sluggish makes progress, a little at a time.
type sluggish struct{}

func (sluggish) Write(b []byte) (int, error) {
	time.Sleep(20 * time.Millisecond)
	return len(b), nil
}

// A call does not wait for the end of output that has none.
func TestOutputWithoutEnd(t *testing.T) {
	ctx := sandboxtest.Process(t)
	f := shout.With(sandboxfn.Options{Stdout: sluggish{}, Timeout: 90 * time.Second})
	done := make(chan error, 1)
	go func() {
		_, err := f.Call(ctx, "for ever")
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(60 * time.Second):
		t.Fatal("the call does not return")
	}
}

// What a call has printed goes to its own writer, also when it was given up in
// the middle of a line and another call has the worker.
func TestOutputOfCallGivenUp(t *testing.T) {
	t.Parallel() // it waits
	ctx := sandboxtest.Process(t)
	a, _, oa := capture(sandboxfn.Options{Grace: patience, Workers: sandboxfn.Workers{Max: 1}})
	b, _, ob := capture(sandboxfn.Options{Workers: sandboxfn.Workers{Max: 1}})
	fb := shout.With(ob)
	if _, err := fb.Call(ctx, "nothing"); err != nil { // the start of a worker is not what is measured
		t.Fatal(err)
	}
	actx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if _, err := shout.With(oa).Call(actx, "partial"); sandboxfn.CodeOf(err) != "E9013" {
		t.Errorf("got %v", err)
	}
	if got := a.String(); got != "partial" {
		t.Errorf("when the call returned: %q", got)
	}
	if _, err := fb.Call(ctx, "print"); err != nil {
		t.Fatal(err)
	}
	if a.String() != "partial" || b.String() != "hello\n" {
		t.Errorf("got %q and %q", a, b)
	}
}
