package sandboxfn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/envelope"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/worker"
)

// What is left of pools, of the results of calls and of objects when they end.

const endsUnit = "example.com/ends"

type (
	endsParams struct{ Name string }
	endsModel  struct{ sum int }
)

var (
	endsBatch   = DeclareBatch[int, int](Decl{Package: endsUnit, Name: "batch", Schema: "e1", Options: Options{Batch: 4, BatchWait: time.Millisecond}, Params: []Param{{Name: "n", Type: "int"}}})
	endsBytes   = Declare[int, io.ReadCloser](Decl{Package: endsUnit, Name: "bytes", Schema: "e2", Params: []Param{{Name: "n", Type: "int"}}})
	endsBlocked = Declare[int, io.ReadCloser](Decl{Package: endsUnit, Name: "blocked", Schema: "e5", Params: []Param{{Name: "n", Type: "int"}}})
	endsClass   = DeclareClass[endsParams](ClassDecl{Package: endsUnit, Name: "model", Schema: "e3"})
	endsAdd     = DeclareMethod[int, int](endsClass, Decl{Package: endsUnit, Name: "model.add", Schema: "e4", Params: []Param{{Name: "n", Type: "int"}}})
)

var endsEndless = DeclareStream[int, int](Decl{Package: endsUnit, Name: "endless", Schema: "e6", Params: []Param{{Name: "n", Type: "int"}}})

func init() {
	BindStream(endsEndless, func(_ context.Context, n int) (iter.Seq2[int, error], error) {
		return func(yield func(int, error) bool) {
			for yield(n, nil) {
			}
		}, nil
	})
	BindBatch(endsBatch, func(_ context.Context, ns []int) ([]int, error) { return ns, nil })
	Bind(endsBytes, func(_ context.Context, n int) (io.ReadCloser, error) {
		if n < 0 {
			return nil, nil
		}
		return io.NopCloser(strings.NewReader(strings.Repeat("x", n))), nil
	})
	Bind(endsBlocked, func(_ context.Context, n int) (io.ReadCloser, error) {
		r, w := io.Pipe()
		go w.Write(make([]byte, n)) // and no more
		return r, nil
	})
	BindClass(endsClass, func(endsParams) *endsModel { return &endsModel{} }, nil, nil)
	BindMethod(endsAdd, func(_ context.Context, m *endsModel, n int) (int, error) { m.sum += n; return m.sum, nil })
	Takeover(endsUnit)
}

// hereContext returns a context under which workers are goroutines.
func hereContext(t *testing.T) (context.Context, *poolSet) {
	mode := &worker.Mode{InProcess: true}
	t.Cleanup(func() { mode.Close(context.Background()) })
	return worker.WithMode(context.Background(), mode), modePools(mode)
}

func (ps *poolSet) count() int {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return len(ps.pools)
}

func TestBatchOfWrongLength(t *testing.T) {
	for _, n := range []int{0, 2} {
		ctx, _ := poolContext(t, &fakeMaker{run: func(_ context.Context, _ *envelope.OpenedRequest, out *envelope.Response) {
			results := make([]Result[int], n)
			out.Returned(endsBatch.h.fn.res, &results, nil)
		}})
		_, err := endsBatch.Call(ctx, 1)
		if CodeOf(err) != "E9007" || !strings.Contains(err.Error(), fmt.Sprintf("%d results for 1 items", n)) {
			t.Errorf("%d results: %v", n, err)
		}
		if info, ok := InfoFrom(err); !ok || info.Function != endsBatch.Name() {
			t.Errorf("%d results: info %+v", n, info)
		}
	}
}

// Results that are readers outlive the call that returned them.
func TestReadersOfManyCalls(t *testing.T) {
	const size = 3 << 20
	ctx, ps := hereContext(t)
	read := func(what string, want int, r io.ReadCloser, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", what, err)
			return
		}
		time.Sleep(5 * time.Millisecond)
		b, err := io.ReadAll(r)
		if len(b) != want || err != nil {
			t.Errorf("%s: %d bytes, %v", what, len(b), err)
		}
		if n, err := r.Read(make([]byte, 1)); n != 0 || err != io.EOF {
			t.Errorf("%s: after the end: %d, %v", what, n, err)
		}
		if err := r.Close(); err != nil {
			t.Errorf("%s: close: %v", what, err)
		}
	}
	r, err := endsBytes.Spawn(ctx, size).Wait(ctx)
	read("Spawn", size, r, err)
	rs, err := Gather(ctx, endsBytes.Spawn(ctx, size), endsBytes.Spawn(ctx, 10))
	if err != nil {
		t.Fatal(err)
	}
	read("Gather", size, rs[0], nil)
	read("Gather", 10, rs[1], nil)
	if rs, err = endsBytes.Collect(ctx, []int{size, -1, size}); err != nil || rs[1] != nil {
		t.Fatal(rs, err)
	}
	read("Collect", size, rs[0], nil)
	read("Collect", size, rs[2], nil)
	for r, err := range endsBytes.Map(ctx, slices.Values([]int{size, size})) {
		read("Map", size, r, err)
	}
	c := endsBytes.Spawn(ctx, size)
	if r, err = c.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	c.Cancel(errors.New("not wanted"))
	time.Sleep(20 * time.Millisecond)
	if _, err := io.ReadAll(r); err == nil || !strings.Contains(err.Error(), "not wanted") {
		t.Errorf("after Cancel: %v", err)
	}
	if r, err = endsBytes.Spawn(ctx, size).Wait(ctx); err != nil {
		t.Fatal(err)
	}
	r.Close() // unread
	waitFor(t, patience, "all workers idle", func() bool {
		ps.mu.Lock()
		defer ps.mu.Unlock()
		for _, p := range ps.pools {
			p.mu.Lock()
			n := len(p.all) - len(p.idle)
			p.mu.Unlock()
			if n > 0 {
				return false
			}
		}
		return true
	})
}

// A read that waits ends with the context of the call, and says so; with Close, it
// says that.
func TestReaderWaitsNoLonger(t *testing.T) {
	ctx, _ := hereContext(t)
	cause := errors.New("not wanted")
	for range 100 {
		for name, end := range map[string]func(context.CancelCauseFunc, io.Closer){
			"context": func(cancel context.CancelCauseFunc, _ io.Closer) { cancel(cause) },
			"close":   func(_ context.CancelCauseFunc, r io.Closer) { r.Close() },
		} {
			ctx, cancel := context.WithCancelCause(ctx)
			r, err := endsBlocked.Call(ctx, 1)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(r, make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			got := make(chan error, 1)
			go func() {
				_, err := r.Read(make([]byte, 1))
				got <- err
			}()
			end(cancel, r)
			err = <-got
			if ours := errors.Is(err, context.Canceled) && errors.Is(err, cause) && CodeOf(err) == "E9014"; ours != (name == "context") || err == nil {
				t.Fatalf("%s: %v", name, err)
			}
			r.Close()
			cancel(nil)
		}
	}
}

// A stream whose context ends with a cause says both, whether the function answers in
// time or not.
func TestStreamEndsWithCause(t *testing.T) {
	ctx, _ := hereContext(t)
	cause := errors.New("not wanted")
	for range 50 {
		ctx, cancel := context.WithCancelCause(ctx)
		var last error
		for _, err := range endsEndless.Stream(ctx, 1) {
			cancel(cause)
			last = err
		}
		if !errors.Is(last, context.Canceled) || !errors.Is(last, cause) || CodeOf(last) != "E9014" {
			t.Errorf("got %v", last)
		}
		cancel(nil)
	}
}

func TestOnceRead(t *testing.T) {
	for _, end := range []func(io.Reader) error{
		func(r io.Reader) error { _, err := io.ReadAll(r); return err },
		func(r io.Reader) error { return r.(io.Closer).Close() },
	} {
		n := 0
		r := io.NopCloser(strings.NewReader("text"))
		if !onceRead(&r, func() { n++ }) || n != 0 {
			t.Fatalf("no reader, or %d ends", n)
		}
		if err := end(r); err != nil || n != 1 {
			t.Errorf("%v, %d ends", err, n)
		}
		if err := end(r); err != nil || n != 1 {
			t.Errorf("again: %v, %d ends", err, n)
		}
	}
	var none io.ReadCloser
	if number := 1; onceRead(&none, nil) || onceRead(&number, nil) {
		t.Error("what is no reader is one")
	}
}

func TestPoolsGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &fakeMaker{}
		ctx, ps := poolContext(t, m)
		for i := range 20 {
			mustDouble(t, ctx, poolDouble.With(Options{Env: map[string]string{"N": fmt.Sprint(i)}}))
		}
		f, g := poolDouble.With(Options{Timeout: time.Minute}), poolDouble.With(Options{Timeout: time.Hour})
		for round := range 3 {
			mustDouble(t, ctx, f)
			if round == 1 {
				mustDouble(t, ctx, g) // first seen when the pool of f is f's again
			}
			time.Sleep(time.Hour)
			synctest.Wait()
			if n := ps.count(); n != 0 {
				t.Fatalf("round %d: %d pools are left", round, n)
			}
		}
		// Another handle has made the pool anew.
		h := poolDouble.With(Options{Timeout: 2 * time.Hour})
		mustDouble(t, ctx, h)
		before := m.started.Load()
		mustDouble(t, ctx, f)
		mustDouble(t, ctx, g)
		if n := m.started.Load() - before; n != 0 || ps.count() != 1 {
			t.Errorf("%d more workers, %d pools", n, ps.count())
		}
	})
}

// Calls come while the pool empties after each.
func TestPoolsComeAndGo(t *testing.T) {
	ctx, ps := poolContext(t, &fakeMaker{})
	f := poolDouble.With(Options{Idle: NoIdle, Workers: Workers{Max: 3}})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 30 {
				if n, err := f.With(Options{}).Call(ctx, 4); n != 8 || err != nil {
					t.Errorf("got %d, %v", n, err)
				}
				if n, err := f.Call(ctx, 4); n != 8 || err != nil {
					t.Errorf("got %d, %v", n, err)
				}
			}
		})
	}
	wg.Wait()
	waitFor(t, patience, "no pools", func() bool { return ps.count() == 0 })
}

func TestPoolsOfPinnedGo(t *testing.T) {
	ctx, ps := hereContext(t)
	for i := range 10 {
		o, err := NewObject(endsClass, endsParams{fmt.Sprint(i)}, nil).pin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := endsAdd.Of(Object{o}).Call(ctx, 3); n != 3 || err != nil {
			t.Fatal(n, err)
		}
		if err := (Object{o}).Close(); err != nil {
			t.Error(err)
		}
		p := o.pinned
		p.mu.Lock()
		if p.only != nil || p.sweeper != nil {
			t.Error("the pool of a closed object holds its worker, or a timer")
		}
		p.mu.Unlock()
		s := endsAdd.Of(Object{o}).h.last.Load()
		if _, err := p.get(ctx, s); CodeOf(err) != "E9018" {
			t.Errorf("call that had begun: %v", err)
		}
	}
	waitFor(t, patience, "no pools", func() bool { return ps.count() == 0 })
	o, err := NewObject(endsClass, endsParams{"lost"}, nil).pin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	o.pinned.only.proc.close()
	waitFor(t, patience, "no pools", func() bool { return ps.count() == 0 })
	for range 2 { // its state is not made anew
		if _, err := endsAdd.Of(Object{o}).Call(ctx, 1); CodeOf(err) != "E9006" {
			t.Errorf("lost: %v", err)
		}
	}
}

// A call that has got a worker may direct its output while that is ended.
func TestOutputOfEndedWorker(t *testing.T) {
	ctx, ps := poolContext(t, &fakeMaker{})
	mustDouble(t, ctx, poolDouble)
	s := poolDouble.h.last.Load()
	w, err := s.pool.get(ctx, s)
	if err != nil {
		t.Fatal(err)
	}
	w.discard()
	for ended := false; !ended; {
		select {
		case <-w.over:
			ended = true
		default:
		}
		w.outputTo(s, w.out, w.err)
	}
	w.outputTo(s, w.out, w.err)
	w.release(s)
	ps.targets.mu.Lock()
	defer ps.targets.mu.Unlock()
	if n := len(ps.targets.m); n != 0 {
		t.Errorf("%d targets are left", n)
	}
}

// A nested call of a pinned object waits for its one worker.
func TestNestedCallOfBusyPinned(t *testing.T) {
	ctx, _ := hereContext(t)
	o, err := NewObject(endsClass, endsParams{"x"}, nil).pin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	add := endsAdd.Of(Object{o})
	if _, err := add.Call(ctx, 1); err != nil {
		t.Fatal(err)
	}
	s := add.h.last.Load()
	w, err := s.pool.get(ctx, s)
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() {
		again, err := s.pool.get(context.WithValue(ctx, depthKey{}, 1), s)
		if err == nil {
			again.release(s)
			if again != w {
				err = errors.New("got another worker")
			}
		}
		got <- err
	}()
	select {
	case err := <-got:
		t.Fatalf("it did not wait: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	w.release(s)
	if err := <-got; err != nil {
		t.Error(err)
	}
}

// A call that had begun when its object was closed leaves no worker behind.
func TestCloseWhileCallBegins(t *testing.T) {
	ctx, ps := hereContext(t)
	o := NewObject(endsClass, endsParams{"x"}, &Options{Workers: Workers{Min: 2, Max: 3}, Spare: 1})
	add := endsAdd.Of(o)
	if err := o.o.prepare(); err != nil {
		t.Fatal(err)
	}
	s, err := add.h.setup(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := o.Close(); err != nil {
		t.Fatal(err)
	}
	w, err := s.pool.get(ctx, s)
	if err != nil {
		t.Fatal(err)
	}
	w.release(s)
	waitFor(t, patience, "no workers", func() bool { return ps.count() == 0 })
}

func TestZeroHandles(t *testing.T) {
	ctx, _ := hereContext(t)
	var f Func[int, int]
	check := func(what string, err error) {
		t.Helper()
		if CodeOf(err) != "E9008" || !strings.Contains(err.Error(), "not made by") {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err := f.Call(ctx, 1)
	check("Call", err)
	_, err = f.Local(ctx, 1)
	check("Local", err)
	_, err = f.With(Options{Retries: 1}).Call(ctx, 1)
	check("With", err)
	_, err = f.Spawn(ctx, 1).Wait(ctx)
	check("Spawn", err)
	_, err = f.Collect(ctx, []int{1, 2})
	check("Collect", err)
	for _, err := range f.Map(ctx, slices.Values([]int{1, 2})) {
		check("Map", err)
	}
	for _, r := range f.MapUnordered(ctx, slices.Values([]int{1, 2})) {
		check("MapUnordered", r.Err)
	}
	if f.Name() != "" {
		t.Errorf("it is called %q", f.Name())
	}
	for _, c := range []*Call[int]{nil, {}} {
		_, err = Gather(ctx, c)
		check("Gather", err)
	}
}
