//go:build linux

package local

import (
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// testLife is a clock whose end goes to a channel.
func testLife(t *testing.T, d time.Duration) (*life, chan string, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "end")
	note, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	ends := make(chan string, 2)
	l, err := newLife(bootAfter(d), note, func(why string) { ends <- why })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.timer.Close(); note.Close() })
	go l.run()
	return l, ends, path
}

func TestLifeExpires(t *testing.T) {
	start := time.Now()
	l, ends, note := testLife(t, 50*time.Millisecond)
	if why := <-ends; why != endExpired || time.Since(start) < 50*time.Millisecond {
		t.Errorf("%s after %v", why, time.Since(start))
	}
	if _, err := l.move(time.Hour, false); !errors.Is(err, errEnded) {
		t.Errorf("moved after the end: %v", err)
	}
	if _, err := l.end(); !errors.Is(err, errEnded) {
		t.Errorf("end after the end: %v", err)
	}
	l.finish(endKilled)
	if b, _ := os.ReadFile(note); string(b) != endExpired+"\n" {
		t.Errorf("note is %q", b)
	}
}

func TestLifeMoves(t *testing.T) {
	l, ends, _ := testLife(t, time.Hour)
	far, err := l.end()
	if err != nil {
		t.Fatal(err)
	}
	if d, err := l.move(time.Minute, true); err != nil || d != far {
		t.Errorf("extending by less moved the end: %d, %v", d, err)
	}
	if d, err := l.move(2*time.Hour, true); err != nil || d <= far {
		t.Errorf("extending: %d, %v", d, err)
	}
	if _, err := l.move(1<<63-1, false); err != nil {
		t.Errorf("the longest lifetime: %v", err)
	}
	if _, err := l.move(20*time.Millisecond, false); err != nil {
		t.Error(err)
	}
	select {
	case why := <-ends:
		if why != endExpired {
			t.Error(why)
		}
	case <-time.After(10 * time.Second):
		t.Error("a shortened life does not end")
	}
}

// Extensions come within milliseconds of the end: each either is refused and
// the sandbox ends, or is granted and it lives to the new end. None lives for
// ever, and none ends although it was extended.
func TestLifeExtendedAtTheLastMoment(t *testing.T) {
	const extension = 300 * time.Millisecond
	var wg sync.WaitGroup
	for range 200 {
		wg.Go(func() {
			first := 50 * time.Millisecond
			l, ends, _ := testLife(t, first)
			time.Sleep(first - 5*time.Millisecond + rand.N(10*time.Millisecond))
			asked := time.Now()
			_, err := l.move(extension, true)
			select {
			case <-ends:
				if lived := time.Since(asked); err == nil && lived < extension {
					t.Errorf("granted, and ended after %v", lived)
				}
			case <-time.After(20 * time.Second):
				t.Errorf("lives for ever; the answer was %v", err)
			}
		})
	}
	wg.Wait()
}

func TestLifeline(t *testing.T) {
	for _, c := range []struct {
		name, sent string
		detached   bool
		ends       bool
	}{
		{"attached, client gone", "", false, true},
		{"attached, nonsense before the end", "dx", false, true},
		{"detached, client gone before it released", "", true, true},
		{"detached and released", "d", true, false},
	} {
		l, ends, _ := testLife(t, time.Hour)
		l.follow(strings.NewReader(c.sent), c.detached)
		select {
		case why := <-ends:
			if !c.ends || why != endClient {
				t.Errorf("%s: ended (%s)", c.name, why)
			}
		default:
			if c.ends {
				t.Errorf("%s: lives", c.name)
			}
		}
	}
}

func TestControl(t *testing.T) {
	tr := testTree(t)
	e, lock, err := tr.newEntry(sandboxID(""))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	defer e.close()
	if err := e.dir.write(fileToken, []byte("secret")); err != nil {
		t.Fatal(err)
	}
	f, err := e.listen(fileControl)
	if err != nil {
		t.Fatal(err)
	}
	l, ends, _ := testLife(t, time.Hour)
	owner, err := ownerOf(lock)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := ownedListener(f, owner)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); serveControl(ln, testController(l)) }()
	defer func() { ln.Close(); <-done }()

	before, err := e.control(t.Context(), controlRequest{Op: opInfo})
	if err != nil {
		t.Fatal(err)
	}
	after, err := e.control(t.Context(), controlRequest{Op: opExtend, Lifetime: 2 * time.Hour})
	if err != nil || after.Deadline <= before.Deadline {
		t.Errorf("extend: %+v, %v", after, err)
	}
	if a, err := e.control(t.Context(), controlRequest{Op: opLifetime, Lifetime: time.Minute}); err != nil || a.Deadline >= before.Deadline {
		t.Errorf("shorten: %+v, %v", a, err)
	}
	for _, r := range []controlRequest{{Op: "nonsense"}, {Op: opLifetime}, {Op: opLifetime, Lifetime: -1}} {
		if _, err := e.control(t.Context(), r); err == nil {
			t.Errorf("%+v was accepted", r)
		}
	}
	for _, raw := range []string{"\n", "{}\n", "[1]\n", `{"token":"wrong","op":"kill"}` + "\n", strings.Repeat("x", controlLine+1) + "\n"} {
		c, err := net.Dial("unix", e.dir.address(fileControl))
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(c, raw)
		b, _ := io.ReadAll(io.LimitReader(c, 1<<20))
		c.Close()
		if strings.Contains(string(b), `"error":""`) || len(b) > controlLine {
			t.Errorf("%.40q is answered with %.200q", raw, b)
		}
	}
	if _, err := e.control(t.Context(), controlRequest{Op: opKill}); err != nil {
		t.Error(err)
	}
	if why := <-ends; why != endKilled {
		t.Error(why)
	}
	if _, err := e.control(t.Context(), controlRequest{Op: opInfo}); !errors.Is(err, errEnded) {
		t.Errorf("after the end: %v", err)
	}
}

func FuzzAnswerControl(f *testing.F) {
	f.Add([]byte(`{"token":"secret","op":"lifetime","lifetime":5000000000}`))
	f.Add([]byte(`{"token":"secret","op":"info"}`))
	f.Add([]byte(`{"token":"x","op":"kill"}`))
	f.Add([]byte(`{"token":"secret","op":"pause"}`))
	f.Add([]byte(`{"token":"secret","op":"resume","lifetime":5000000000}`))
	f.Add([]byte(`{"token":"secret","op":"usage"}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		l, err := newLife(bootAfter(time.Hour), nil, func(string) {})
		if err != nil {
			t.Fatal(err)
		}
		defer l.timer.Close()
		a, end := testController(l).answer(line)
		if !strings.Contains(string(line), "secret") && !strings.Contains(string(line), `\`) && (a.Error == "" || end) {
			t.Errorf("accepted without the token: %q", line)
		}
	})
}

// testController has a freezer that does nothing: the processes it would find
// are those of the machine.
func testController(l *life) *controller {
	return &controller{
		token: "secret", life: l, pause: &pauser{freezer: idleFreezer{}}, usage: &usageMeter{}, log: slog.New(slog.DiscardHandler),
	}
}

type idleFreezer struct{}

func (idleFreezer) begin() error           { return nil }
func (idleFreezer) stop(int) error         { return nil }
func (idleFreezer) settle(time.Time) error { return nil }
func (idleFreezer) thaw() error            { return nil }
func (idleFreezer) end()                   {}

func TestBoundedLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	l := &boundedLog{f: f, limit: 1000}
	for range 1000 {
		if _, err := l.Write([]byte("0123456789\n")); err != nil {
			t.Fatal(err)
		}
	}
	if fi, _ := f.Stat(); fi.Size() == 0 || fi.Size() > 1000 {
		t.Errorf("log has %d bytes", fi.Size())
	}
}
