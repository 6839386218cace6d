package sandboxfn

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/envelope"
	"github.com/agent-sandbox/sandbox-go/internal/frame"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/worker"
)

// The workers of these tests are goroutines that speak the frames of one, so
// that each kind of loss can be had on demand.

const poolUnit = "example.com/pool"

var poolDouble = Declare[int, int](Decl{Package: poolUnit, Name: "double", Schema: "5b1f", Params: []Param{{Name: "n", Type: "int"}}})

func init() {
	Bind(poolDouble, func(_ context.Context, n int) (int, error) { return 2 * n, nil })
	Takeover(poolUnit)
}

// fakeMaker starts such workers.
type fakeMaker struct {
	counters envelope.Counters // of every answer

	onStart func(ctx context.Context, n int) error // fails the n-th start, from 1
	onCall  func(w *fakeWorker, call int) bool     // true: the worker answers its call-th call
	hello   func(*envelope.Hello)
	run     func(context.Context, *envelope.OpenedRequest, *envelope.Response) // nil: double
	endErr  error

	started, living atomic.Int64
}

type fakeWorker struct {
	conn, theirs net.Conn
	n            int
	status       workerExit
	ended        chan struct{}
	once         sync.Once
}

func (m *fakeMaker) start(ctx context.Context, s *setup, stdout, stderr func([]byte)) (*made, error) {
	n := int(m.started.Add(1))
	if m.onStart != nil {
		if err := m.onStart(ctx, n); err != nil {
			return nil, &stepError{"create", err}
		}
	}
	w := &fakeWorker{n: n, ended: make(chan struct{})}
	w.conn, w.theirs = net.Pipe()
	m.living.Add(1)
	h := envelope.Hello{Protocol: envelope.Protocol, Token: "token", Digest: "digest", Unit: s.unit}
	for _, f := range functions.ofUnit(s.unit) {
		h.Functions = append(h.Functions, envelope.FunctionInfo{ID: f.id, Schema: f.decl.Schema})
	}
	if m.hello != nil {
		m.hello(&h)
	}
	go w.serve(m, &h)
	return &made{conn: w.conn, proc: w, token: "token", digest: "digest", end: func(context.Context) error {
		w.die(workerExit{Code: -1, Signal: "killed"})
		m.living.Add(-1)
		return m.endErr
	}}, nil
}

func (w *fakeWorker) serve(m *fakeMaker, h *envelope.Hello) {
	defer w.die(workerExit{})
	r, out := frame.NewReader(w.theirs), frame.NewWriter(w.theirs)
	body, _ := h.Encode()
	if out.Write(&frame.Message{Type: frame.Hello, Body: body}) != nil {
		return
	}
	for call := 1; ; call++ {
		msg, err := r.Next()
		if err != nil || msg.Type == frame.Bye {
			return
		}
		if msg.Type != frame.Call || m.onCall != nil && !m.onCall(w, call) {
			continue
		}
		in, err := envelope.OpenRequest(envelope.Payload{Body: msg.Body}, knownErrors())
		answer := envelope.NewResponse(knownErrors(), in.MaxPayload)
		run := poolDouble.h.fn.run
		if m.run != nil {
			run = m.run
		}
		if err != nil {
			answer.Failed(err)
		} else {
			run(context.Background(), in, answer)
		}
		p := answer.Finish(m.counters)
		if out.Write(&frame.Message{Type: frame.Result, ID: msg.ID, Body: p.Body}) != nil {
			return
		}
	}
}

// die ends the worker once.
func (w *fakeWorker) die(x workerExit) {
	w.once.Do(func() {
		w.status = x
		w.theirs.Close()
		close(w.ended)
	})
}

func (w *fakeWorker) done() <-chan struct{}       { return w.ended }
func (w *fakeWorker) exit() workerExit            { return w.status }
func (w *fakeWorker) delivered() (uint64, uint64) { return 0, 0 }
func (w *fakeWorker) close()                      { w.conn.Close() }
func (w *fakeWorker) waitDelivered(context.Context, uint64, uint64) error {
	return nil
}

// poolContext returns a context under which calls use workers of m.
func poolContext(t *testing.T, m *fakeMaker) (context.Context, *poolSet) {
	ps := newPools(m, slog.New(slog.DiscardHandler))
	mode := &worker.Mode{}
	mode.Keep(func() (any, func(context.Context) error) { return ps, ps.close })
	t.Cleanup(func() {
		mode.Close(context.Background())
		if n := m.living.Load(); n != 0 {
			t.Errorf("%d workers are left", n)
		}
	})
	return worker.WithMode(context.Background(), mode), ps
}

func mustDouble(t *testing.T, ctx context.Context, f Func[int, int]) {
	t.Helper()
	if got, err := f.Call(ctx, 21); got != 42 || err != nil {
		t.Fatalf("double(21) = %d, %v", got, err)
	}
}

func TestLostWorker(t *testing.T) {
	for _, c := range []struct {
		name string
		exit workerExit
		want string
		oom  bool
	}{
		{"memory limit", workerExit{Code: -1, Signal: "killed", OOM: true}, "worker was killed at the memory limit", true},
		{"exit", workerExit{Code: 3}, "worker exited with status 3", false},
		{"signal", workerExit{Code: -1, Signal: "segmentation fault"}, "worker was ended by signal segmentation fault", false},
		{"nothing known", workerExit{Code: -1, Err: io.ErrUnexpectedEOF}, "connection to the worker was lost", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := &fakeMaker{onCall: func(w *fakeWorker, _ int) bool {
				if w.n == 1 {
					w.die(c.exit)
				}
				return true
			}}
			ctx, _ := poolContext(t, m)
			_, err := poolDouble.Call(ctx, 1)
			l, ok := errors.AsType[*WorkerLostError](err)
			if !ok || !l.Started || l.OOM != c.oom || l.ExitCode != c.exit.Code || l.Signal != c.exit.Signal {
				t.Fatalf("got %#v", err)
			}
			if !errors.Is(err, ErrWorkerLost) || errors.Is(err, ErrMemoryLimit) != c.oom || CodeOf(err) != "E9006" {
				t.Errorf("codes of %v", err)
			}
			want := "E9006 pool.Double: " + c.want + "; the function had been started, its outcome is unknown"
			if !strings.HasPrefix(err.Error(), want) {
				t.Errorf("text %q, want %q", err, want)
			}
			mustDouble(t, ctx, poolDouble)
		})
	}
}

// A call whose worker is gone before the call is written goes to another one.
func TestCallThatDidNotStartMoves(t *testing.T) {
	for _, c := range []struct{ gone, starts int }{{1, 2}, {3, 4}, {9, 4}} {
		m := &fakeMaker{}
		ctx, ps := poolContext(t, m)
		ps.maker = &closingMaker{m, c.gone}
		got, err := poolDouble.Call(ctx, 4)
		if c.gone < 4 && (got != 8 || err != nil) {
			t.Errorf("%d lost workers: %d, %v", c.gone, got, err)
		}
		if l, ok := errors.AsType[*WorkerLostError](err); c.gone >= 4 && (!ok || l.Started) {
			t.Errorf("%d lost workers: %v", c.gone, err)
		}
		if n := int(m.started.Load()); n != c.starts {
			t.Errorf("%d lost workers: %d starts, want %d", c.gone, n, c.starts)
		}
	}
}

// closingMaker makes workers that take no call: the first gone of them.
type closingMaker struct {
	*fakeMaker
	gone int
}

func (m *closingMaker) start(ctx context.Context, s *setup, stdout, stderr func([]byte)) (*made, error) {
	x, err := m.fakeMaker.start(ctx, s, stdout, stderr)
	if err == nil && x.proc.(*fakeWorker).n <= m.gone {
		x.conn = deafConn{x.conn}
	}
	return x, err
}

// deafConn refuses what is written to it.
type deafConn struct{ net.Conn }

func (deafConn) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestStartFails(t *testing.T) {
	m := &fakeMaker{onStart: func(_ context.Context, n int) error {
		if n == 1 {
			return errdefs.New("E2010", "create sandbox", "no user namespaces")
		}
		return nil
	}}
	ctx, _ := poolContext(t, m)
	_, err := poolDouble.Call(ctx, 1)
	if CodeOf(err) != "E9015" || !errors.Is(err, ErrIsolation) || !strings.Contains(err.Error(), "pool.Double: step create: E2010 create sandbox: no user namespaces") {
		t.Errorf("got %v", err)
	}
	mustDouble(t, ctx, poolDouble)
}

func TestHelloIsChecked(t *testing.T) {
	for name, c := range map[string]struct {
		hello func(*envelope.Hello)
		want  string
	}{
		"schema":   {func(h *envelope.Hello) { h.Functions[0].Schema = "9c02" }, "example.com/pool.double: schema 5b1f in this program, 9c02 in the worker (executable digest): the worker was built from other source"},
		"digest":   {func(h *envelope.Hello) { h.Digest = "other" }, "executable digest is this program, other the worker"},
		"token":    {func(h *envelope.Hello) { h.Token = "x" }, "not the one that was started"},
		"unit":     {func(h *envelope.Hello) { h.Unit = "x" }, `taken over "x", not "example.com/pool"`},
		"protocol": {func(h *envelope.Hello) { h.Protocol = 9 }, "protocol 1 in this program, 9 in the worker"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, _ := poolContext(t, &fakeMaker{hello: c.hello})
			_, err := poolDouble.Call(ctx, 1)
			if CodeOf(err) != "E9004" || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want E9004 … %s", err, c.want)
			}
		})
	}
}

func TestStartupTimeout(t *testing.T) {
	m := &fakeMaker{onStart: func(ctx context.Context, n int) error {
		<-ctx.Done()
		return context.Cause(ctx)
	}}
	ctx, _ := poolContext(t, m)
	_, err := poolDouble.With(Options{StartupTimeout: 20 * time.Millisecond}).Call(ctx, 1)
	if CodeOf(err) != "E9015" || !strings.Contains(err.Error(), "no worker within 20ms (startup_timeout)") {
		t.Errorf("got %v", err)
	}
}

// A call that is cancelled while its worker starts leaves nothing, and ends the
// start when nobody else waits for it.
func TestCancelDuringStart(t *testing.T) {
	begun := make(chan struct{})
	var cause atomic.Value
	m := &fakeMaker{onStart: func(ctx context.Context, n int) error {
		if n == 1 {
			close(begun)
			<-ctx.Done()
			cause.Store(ctx.Err())
			return ctx.Err()
		}
		return nil
	}}
	ctx, _ := poolContext(t, m)
	cctx, cancel := context.WithCancel(ctx)
	go func() {
		<-begun
		cancel()
	}()
	_, err := poolDouble.Call(cctx, 1)
	if CodeOf(err) != "E9014" || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	mustDouble(t, ctx, poolDouble)
	if n := m.started.Load(); n != 2 {
		t.Errorf("%d starts, want 2", n)
	}
}

func TestPoolKeepsAndGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &fakeMaker{}
		ctx, _ := poolContext(t, m)
		f := poolDouble.With(Options{Workers: Workers{Min: 1, Max: 3}, Idle: time.Minute})
		var wg sync.WaitGroup
		m.onCall = func(*fakeWorker, int) bool {
			time.Sleep(time.Second)
			return true
		}
		begin := time.Now()
		for range 6 {
			wg.Go(func() { mustDouble(t, ctx, f) })
		}
		wg.Wait()
		if took := time.Since(begin); took != 2*time.Second {
			t.Errorf("six calls of a second on three workers took %v", took)
		}
		synctest.Wait()
		if n := m.living.Load(); n != 3 {
			t.Errorf("%d workers, want 3", n)
		}
		time.Sleep(59 * time.Second)
		synctest.Wait()
		if n := m.living.Load(); n != 3 {
			t.Errorf("%d workers before their time is over, want 3", n)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if n := m.living.Load(); n != 1 {
			t.Errorf("%d workers after it, want the minimum of 1", n)
		}
		mustDouble(t, ctx, f)
		if n := m.started.Load(); n != 3 {
			t.Errorf("%d starts, want 3: the one that is left is used", n)
		}
		mustDouble(t, ctx, f.With(Options{Env: map[string]string{"A": "b"}}))
		if n := m.started.Load(); n != 4 {
			t.Errorf("%d starts, want 4: another environment needs another worker", n)
		}
	})
}

// The shortest idle time of a pool's functions counts for what it was said of.
func TestIdleOfTwoFunctions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &fakeMaker{onCall: func(*fakeWorker, int) bool {
			time.Sleep(time.Second)
			return true
		}}
		ctx, _ := poolContext(t, m)
		long, short := poolDouble.With(Options{Idle: time.Hour}), poolDouble.With(Options{Idle: time.Minute})
		var wg sync.WaitGroup
		wg.Go(func() { mustDouble(t, ctx, long) })
		wg.Go(func() {
			time.Sleep(time.Millisecond)
			mustDouble(t, ctx, short)
		})
		wg.Wait()
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if n := m.living.Load(); n != 1 {
			t.Errorf("%d workers after two minutes, want the one that may be idle for an hour", n)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := m.living.Load(); n != 0 {
			t.Errorf("%d workers after the hour", n)
		}
	})
}

// Idle workers that die together cost the next call none of its moves.
func TestIdleWorkersDieTogether(t *testing.T) {
	ctx, _ := poolContext(t, &fakeMaker{})
	mustDouble(t, ctx, poolDouble)
	s := poolDouble.h.last.Load()
	p := s.pool
	live, err := p.get(ctx, s)
	if err != nil {
		t.Fatal(err)
	}
	live.release(s)
	ended := make(chan struct{})
	close(ended)
	p.mu.Lock()
	for range 2 * maxMoves { // nobody has noticed yet
		p.idle = append(p.idle, &poolWorker{workerConn: &workerConn{proc: &fakeWorker{ended: ended}}, pool: p})
	}
	p.mu.Unlock()
	w, err := p.get(ctx, s)
	if w != live || err != nil {
		t.Fatalf("got another worker than the one that lives, %v", err)
	}
	w.release(s)
}

func TestIdleZero(t *testing.T) {
	m := &fakeMaker{}
	ctx, _ := poolContext(t, m)
	f := poolDouble.With(Options{Idle: NoIdle})
	mustDouble(t, ctx, f)
	mustDouble(t, ctx, f)
	if n := m.started.Load(); n != 2 {
		t.Errorf("%d starts, want one for each call", n)
	}
}

func TestCloseReportsWhatIsLeft(t *testing.T) {
	m := &fakeMaker{endErr: errors.New("sandbox x is stuck")}
	ctx, ps := poolContext(t, m)
	mustDouble(t, ctx, poolDouble)
	if err := ps.close(context.Background()); err == nil || !strings.Contains(err.Error(), "sandbox x is stuck") {
		t.Errorf("close: %v", err)
	}
	if _, err := poolDouble.Call(ctx, 1); CodeOf(err) != "E2000" {
		t.Errorf("call after close: %v", err)
	}
}

// A call on a closed client fails, also when no call before has made its pool.
func TestFirstCallAfterClose(t *testing.T) {
	ctx, ps := poolContext(t, &fakeMaker{})
	old := ps.of(poolKey{unit: "made before"})
	if err := ps.close(context.Background()); err != nil {
		t.Fatal(err)
	}
	old.closed = false // as between the close of the set and that of its pools
	s := &setup{name: "f", opts: Options{}.withDefaults(), set: ps}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if _, err := poolDouble.Call(ctx, 1); CodeOf(err) != "E2000" {
		t.Errorf("call: %v", err)
	}
	if _, err := old.get(ctx, s); CodeOf(err) != "E2000" {
		t.Errorf("pool that is about to be closed: %v", err)
	}
}

func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := Backoff{First: time.Second, Max: 5 * time.Second, Factor: 2}
		for attempt, most := range map[int]time.Duration{1: time.Second, 2: 2 * time.Second, 3: 4 * time.Second, 4: 5 * time.Second, 10: 5 * time.Second} {
			var longest time.Duration
			for range 200 {
				begin := time.Now()
				if !wait(t.Context(), b, attempt) {
					t.Fatal("context ended")
				}
				longest = max(longest, time.Since(begin))
			}
			if longest > most || longest < most*8/10 {
				t.Errorf("attempt %d: the longest of 200 waits is %v, want nearly %v", attempt, longest, most)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if wait(ctx, b, 1) {
			t.Error("waited although the context has ended")
		}
	})
}

func TestOptionsMerge(t *testing.T) {
	a := Options{Template: "t", Timeout: time.Second, Env: map[string]string{"A": "1", "B": "1"}, Retries: 3, Idempotent: true}
	b := a.override(Options{Timeout: NoTimeout, Env: map[string]string{"B": "2"}, Retries: NoRetries}).withDefaults()
	if b.Template != "t" || b.Timeout != 0 || b.Retries != 0 || b.Env["A"] != "1" || b.Env["B"] != "2" || a.Env["B"] != "1" {
		t.Errorf("got %+v", b)
	}
	d := Options{}.withDefaults()
	if d.Timeout != 5*time.Minute || d.Grace != time.Second || d.Retries != 0 || d.Workers.Max != 16 || d.MaxPayload != 512*MiB {
		t.Errorf("defaults %+v", d)
	}
	if got := (Options{Idempotent: true}).withDefaults().Retries; got != 2 {
		t.Errorf("%d retries with Idempotent, want 2", got)
	}
}

func TestBytesString(t *testing.T) {
	for b, want := range map[Bytes]string{0: "0B", 1: "1B", KiB: "1KiB", 1536: "1536B", 512 * MiB: "512MiB", 3 * GiB: "3GiB"} {
		if got := b.String(); got != want {
			t.Errorf("%d is %q, want %q", int64(b), got, want)
		}
	}
}

func TestDuplicateID(t *testing.T) {
	a := Declare[int, int](Decl{Package: "example.com/a", Name: "f", ID: "same"})
	b := Declare[int, int](Decl{Package: "example.com/b", Name: "g", ID: "same"})
	one := func(context.Context, int) (int, error) { return 1, nil }
	Bind(a, one)
	Bind(b, one)
	functions.takeover("example.com/dup")
	for _, f := range []Func[int, int]{a, b} {
		if _, err := f.Call(t.Context(), 1); CodeOf(err) != "E9008" || !strings.Contains(err.Error(), "id same also names") {
			t.Errorf("got %v", err)
		}
		if n, err := f.Local(t.Context(), 1); n != 1 || err != nil {
			t.Errorf("local: %d, %v", n, err)
		}
	}
	unbound := Declare[int, int](Decl{Package: "example.com/c", Name: "h"})
	if _, err := unbound.Call(t.Context(), 1); CodeOf(err) != "E9008" {
		t.Errorf("unbound: %v", err)
	}
	if _, err := unbound.Local(t.Context(), 1); CodeOf(err) != "E9008" {
		t.Errorf("unbound, local: %v", err)
	}
}

func TestSinkKeepsTheTail(t *testing.T) {
	s := newSink("x")
	defer s.close()
	s.direct(&target{w: io.Discard})
	all := bytes.Repeat([]byte("0123456789"), 3000)
	for b := range bytes.SplitAfterSeq(all, []byte("7")) {
		s.take(b)
	}
	if got, want := s.last(), string(all[len(all)-maxTail:]); got != want {
		t.Errorf("tail of %d bytes differs", len(got))
	}
}
