package sandboxtest_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/sandboxtest"
)

// What a function does with what its caller lends.
type (
	callbackArgs struct {
		N    int
		Each func(ctx context.Context, n int, text string) (string, error)
		Tell func(int)
	}
	sumArgs struct {
		In    iter.Seq[int]
		Pairs iter.Seq2[string, error]
		Stop  int
	}
	copyArgs struct {
		To   io.Writer
		From io.Reader
	}
	floodArgs struct{ N, Size int }
)

func twoParams(names ...string) []sandboxfn.Param {
	var ps []sandboxfn.Param
	for _, n := range names {
		ps = append(ps, sandboxfn.Param{Name: n})
	}
	return ps
}

var callBacks = declareDecl(sandboxfn.Decl{Name: "callBacks", Params: twoParams("n", "each", "tell")},
	func(ctx context.Context, a callbackArgs) ([]string, error) {
		var all []string
		for i := range a.N {
			if a.Tell != nil {
				a.Tell(i)
			}
			if a.Each == nil {
				continue
			}
			s, err := a.Each(ctx, i, fmt.Sprint("item ", i))
			if err != nil {
				return all, fmt.Errorf("each %d: %w", i, err)
			}
			all = append(all, s)
		}
		return all, nil
	})

var sum = declareDecl(sandboxfn.Decl{Name: "sum", Params: twoParams("in", "pairs", "stop")},
	func(ctx context.Context, a sumArgs) ([]string, error) {
		total, n := 0, 0
		if a.In != nil {
			for range 2 { // a sequence may be ranged over again
				for v := range a.In {
					total += v
					if n++; n == a.Stop {
						break
					}
				}
			}
		}
		out := []string{fmt.Sprint(total)}
		if a.Pairs != nil {
			for s, err := range a.Pairs {
				if err != nil {
					return out, err
				}
				out = append(out, s)
			}
		}
		return out, ctx.Err()
	})

var copyAll = declareDecl(sandboxfn.Decl{Name: "copyAll", Params: twoParams("to", "from")},
	func(ctx context.Context, a copyArgs) (int64, error) { return io.Copy(a.To, a.From) })

var readOne = declareDecl(sandboxfn.Decl{Name: "readOne", Params: twoParams("r")},
	func(ctx context.Context, r io.Reader) (string, error) {
		b, err := io.ReadAll(r)
		return string(b), err
	})

var keptCallback func(int) error

var keepCallback = declareDecl(sandboxfn.Decl{Name: "keepCallback", Params: twoParams("f")},
	func(ctx context.Context, f func(int) error) (sandboxfn.None, error) {
		keptCallback = f
		return sandboxfn.None{}, nil
	})

var useKept = declare("useKept", func(ctx context.Context, n int) (string, error) {
	return fmt.Sprint(keptCallback(n)), nil
})

var (
	counted = declareStream("counted", func(ctx context.Context, n int) (iter.Seq2[int, error], error) {
		if n < 0 {
			return nil, errEmpty
		}
		return func(yield func(int, error) bool) {
			for i := range n {
				if !yield(i, nil) {
					return
				}
			}
			switch n {
			case 13:
				yield(0, fmt.Errorf("unlucky: %w", errEmpty))
			case 14:
				panic("fourteen")
			case 15:
				syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {}
			}
		}, nil
	})
	flooded = declareStream("flooded", func(ctx context.Context, a floodArgs) (iter.Seq2[[]byte, error], error) {
		return func(yield func([]byte, error) bool) {
			b := make([]byte, a.Size)
			for range a.N {
				floodSent.Add(1)
				if !yield(b, nil) {
					floodLeft.Store(true)
					return
				}
			}
		}, nil
	})
	floodSent atomic.Int64
	floodLeft atomic.Bool
	flooding  = declare("flooding", func(ctx context.Context, _ int) (string, error) {
		return fmt.Sprint(floodSent.Load(), floodLeft.Load()), nil
	})
	endless = declareStreamWith("endless", sandboxfn.Options{Grace: 300 * time.Millisecond, Workers: sandboxfn.Workers{Max: 1}},
		func(ctx context.Context, n int) (iter.Seq2[int, error], error) {
			return func(yield func(int, error) bool) {
				for i := 0; ; i++ {
					if !yield(i, nil) && n == 0 {
						return
					}
				}
			}, nil
		})
	opened = declareDecl(sandboxfn.Decl{Name: "opened", Params: twoParams("n")},
		func(ctx context.Context, n int) (io.ReadCloser, error) {
			if n < 0 {
				return nil, errEmpty
			}
			var r io.Reader = io.LimitReader(zeros{}, int64(n))
			if n == 7 {
				r = io.MultiReader(r, iotest.ErrReader(errEmpty))
			}
			return io.NopCloser(r), nil
		})
)

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

func declareStream[A, T any](name string, fn func(context.Context, A) (iter.Seq2[T, error], error)) sandboxfn.StreamFunc[A, T] {
	return declareStreamWith(name, sandboxfn.Options{}, fn)
}

func declareStreamWith[A, T any](name string, o sandboxfn.Options, fn func(context.Context, A) (iter.Seq2[T, error], error)) sandboxfn.StreamFunc[A, T] {
	f := sandboxfn.DeclareStream[A, T](sandboxfn.Decl{Package: self, Schema: "0123456789abcdef", Name: name, Options: o, Params: twoParams("v")})
	bindings = append(bindings, func() { sandboxfn.BindStream(f, fn) })
	return f
}

// everyWay runs f in this process, in worker processes, and in worker processes
// that calls share.
func everyWay(t *testing.T, f func(t *testing.T, ctx context.Context, o sandboxfn.Options)) {
	t.Run("in process", func(t *testing.T) { f(t, sandboxtest.InProcess(t), sandboxfn.Options{}) })
	t.Run("process", func(t *testing.T) { f(t, sandboxtest.Process(t), sandboxfn.Options{}) })
	t.Run("shared", func(t *testing.T) { f(t, sandboxtest.Process(t), sandboxfn.Options{Concurrency: 4}) })
}

func TestCallbacks(t *testing.T) {
	everyWay(t, func(t *testing.T, ctx context.Context, o sandboxfn.Options) {
		f := callBacks.With(o)
		var told []int
		got, err := f.Call(ctx, callbackArgs{N: 100,
			Each: func(_ context.Context, n int, text string) (string, error) { return strings.ToUpper(text), nil },
			Tell: func(n int) { told = append(told, n) },
		})
		if err != nil || len(got) != 100 || got[42] != "ITEM 42" || len(told) != 100 || !slices.IsSorted(told) {
			t.Errorf("got %v, %v; told %v", got, err, told)
		}
		if got, err := f.Call(ctx, callbackArgs{N: 3}); len(got) != 0 || err != nil {
			t.Errorf("without callbacks: %v, %v", got, err)
		}
		_, err = f.Call(ctx, callbackArgs{N: 3, Each: func(context.Context, int, string) (string, error) { return "", errEmpty }})
		if !errors.Is(err, errEmpty) || err.Error() != "each 0: "+errEmpty.Error() {
			t.Errorf("error of a callback: %v", err)
		}
		_, err = f.Call(ctx, callbackArgs{N: 3, Tell: func(int) { panic("in the caller") }})
		var p *sandboxfn.PanicError
		if !errors.As(err, &p) || p.Value != "in the caller" {
			t.Errorf("panic of a callback: %v", err)
		}
		_, err = f.Call(ctx, callbackArgs{N: 3, Tell: func(int) { runtime.Goexit() }})
		if !errors.As(err, &p) || !strings.Contains(p.Value, "Goexit") {
			t.Errorf("Goexit of a callback: %v", err)
		}
	})
}

func TestCallbackCancelled(t *testing.T) {
	everyWay(t, func(t *testing.T, ctx context.Context, o sandboxfn.Options) {
		ctx, cancel := context.WithCancelCause(ctx)
		cause := errors.New("enough")
		var seen error
		_, err := callBacks.With(o).Call(ctx, callbackArgs{N: 3,
			Each: func(ctx context.Context, _ int, _ string) (string, error) {
				cancel(cause)
				<-ctx.Done()
				seen = context.Cause(ctx)
				return "", ctx.Err()
			},
		})
		if !errors.Is(err, context.Canceled) || seen == nil || seen.Error() != cause.Error() {
			t.Errorf("got %v, the callback saw %v", err, seen)
		}
	})
}

func TestCallbackAfterItsCall(t *testing.T) {
	ctx := sandboxtest.Process(t)
	o := sandboxfn.Options{Workers: sandboxfn.Workers{Max: 1}}
	if _, err := keepCallback.With(o).Call(ctx, func(int) error { t.Error("called"); return nil }); err != nil {
		t.Fatal(err)
	}
	got, err := useKept.With(o).Call(ctx, 1)
	if err != nil || !strings.Contains(got, "E9009") {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestSequences(t *testing.T) {
	everyWay(t, func(t *testing.T, ctx context.Context, o sandboxfn.Options) {
		f := sum.With(o)
		var ranged atomic.Int64
		numbers := func(yield func(int) bool) {
			for i := range 1000 {
				ranged.Add(1)
				if !yield(i) {
					return
				}
			}
		}
		words := func(yield func(string, error) bool) {
			_ = yield("a", nil) && yield("b", nil)
		}
		got, err := f.Call(ctx, sumArgs{In: numbers, Pairs: words})
		if want := []string{"999000", "a", "b"}; err != nil || !slices.Equal(got, want) {
			t.Errorf("got %v, %v", got, err)
		}
		ranged.Store(0)
		if _, err := f.Call(ctx, sumArgs{In: numbers, Stop: 10}); err != nil {
			t.Error(err)
		}
		if n := ranged.Load(); n >= 1100 {
			t.Errorf("%d numbers were taken of two ranges, the first of which ended after 10", n)
		}
		_, err = f.Call(ctx, sumArgs{Pairs: func(yield func(string, error) bool) { _ = yield("a", nil) && yield("", errEmpty) }})
		if err != errEmpty {
			t.Errorf("error of a sequence: %v", err)
		}
		_, err = f.Call(ctx, sumArgs{In: func(func(int) bool) { panic("no numbers") }})
		var p *sandboxfn.PanicError
		if !errors.As(err, &p) || p.Value != "no numbers" {
			t.Errorf("panic of a sequence: %v", err)
		}
	})
}

func TestReadersAndWriters(t *testing.T) {
	data := make([]byte, 3<<20+17)
	rand.Read(data)
	everyWay(t, func(t *testing.T, ctx context.Context, o sandboxfn.Options) {
		var to bytes.Buffer
		n, err := copyAll.With(o).Call(ctx, copyArgs{&to, bytes.NewReader(data)})
		if err != nil || n != int64(len(data)) || !bytes.Equal(to.Bytes(), data) {
			t.Errorf("copied %d, %v", n, err)
		}
		if got, err := readOne.With(o).Call(ctx, strings.NewReader("short")); got != "short" || err != nil {
			t.Errorf("got %q, %v", got, err)
		}
		if _, err := readOne.With(o).Call(ctx, iotest.ErrReader(errEmpty)); err != errEmpty {
			t.Errorf("error of a reader: %v", err)
		}
		_, err = copyAll.With(o).Call(ctx, copyArgs{failingWriter{}, bytes.NewReader(data)})
		if err != errEmpty {
			t.Errorf("error of a writer: %v", err)
		}
		// Nobody reads from what is lent for writing.
		_, err = copyAll.With(o).Call(ctx, copyArgs{})
		if err == nil {
			t.Error("nil writer and reader: no error")
		}
	})
}

type failingWriter struct{}

func (failingWriter) Write(b []byte) (int, error) { return len(b) / 2, errEmpty }

func TestStream(t *testing.T) {
	everyWay(t, func(t *testing.T, ctx context.Context, o sandboxfn.Options) {
		f := counted.With(o)
		for _, n := range []int{0, 1, 1000} {
			i := 0
			for v, err := range f.Stream(ctx, n) {
				if err != nil || v != i {
					t.Fatalf("item %d is %d, %v", i, v, err)
				}
				i++
			}
			if i != n {
				t.Errorf("%d items, want %d", i, n)
			}
		}
		last := func(n int) (items int, err error) {
			for _, e := range f.Stream(ctx, n) {
				if err != nil {
					t.Error("something after an error")
				}
				if err = e; e == nil {
					items++
				}
			}
			return items, err
		}
		if n, err := last(-1); n != 0 || err != errEmpty {
			t.Errorf("error before the first item: %d, %v", n, err)
		}
		if n, err := last(13); n != 13 || !errors.Is(err, errEmpty) || err.Error() != "unlucky: "+errEmpty.Error() {
			t.Errorf("error after 13 items: %d, %v", n, err)
		}
		var p *sandboxfn.PanicError
		if n, err := last(14); n != 14 || !errors.As(err, &p) || p.Value != "fourteen" {
			t.Errorf("panic after 14 items: %d, %v", n, err)
		}
	})
}

// A stream that is cut is an error, never an end.
func TestStreamCut(t *testing.T) {
	ctx := sandboxtest.Process(t)
	for _, o := range []sandboxfn.Options{{}, {Concurrency: 3}, {Idempotent: true, Retries: 2}} {
		n := 0
		var last error
		for _, err := range counted.With(o).Stream(ctx, 15) {
			if last = err; err == nil {
				n++
			}
		}
		if !errors.Is(last, sandboxfn.ErrWorkerLost) || n > 15 {
			t.Errorf("%d items, then %v", n, last)
		}
	}
}

func TestStreamHoldsItsProducer(t *testing.T) {
	ctx := sandboxtest.Process(t)
	o := sandboxfn.Options{Concurrency: 2, Workers: sandboxfn.Workers{Max: 1}}
	for _, c := range []struct {
		size int
		most string
	}{{10, "17"}, {300 << 10, "5"}} {
		for range flooded.With(o).Stream(ctx, floodArgs{1000, c.size}) {
			got := ""
			for range 20 { // it has had time to go on
				time.Sleep(5 * time.Millisecond)
				got, _ = flooding.With(o).Call(ctx, 0)
			}
			var sent int
			fmt.Sscan(got, &sent)
			var most int
			fmt.Sscan(c.most, &most)
			if sent < 1 || sent > most+1 {
				t.Errorf("%d items of %d bytes were sent, want at most %d", sent, c.size, most)
			}
			break
		}
		for begin := time.Now(); ; { // leaving the loop has ended the function
			got, err := flooding.With(o).Call(ctx, 0)
			if strings.HasSuffix(got, "true") {
				break
			}
			if err != nil || time.Since(begin) > patience {
				t.Fatalf("got %q, %v", got, err)
			}
			time.Sleep(5 * time.Millisecond)
		}
		resetFlood.With(o).Call(ctx, 0)
	}
}

var resetFlood = declare("resetFlood", func(ctx context.Context, _ int) (int, error) {
	floodSent.Store(0)
	floodLeft.Store(false)
	return 0, nil
})

func TestStreamLeft(t *testing.T) {
	everyWay(t, func(t *testing.T, ctx context.Context, o sandboxfn.Options) {
		f := endless.With(o)
		for round := range 3 {
			n := 0
			for v, err := range f.Stream(ctx, 0) {
				if err != nil || v != n {
					t.Fatalf("round %d: item %d is %d, %v", round, n, v, err)
				}
				if n++; n == 100 {
					break
				}
			}
		}
	})
	// A function that goes on is ended with its worker.
	ctx := sandboxtest.Process(t)
	for range endless.Stream(ctx, 1) {
		break
	}
	begin := time.Now()
	for _, err := range endless.Stream(ctx, 0) { // there is one worker at a time
		if err != nil {
			t.Error(err)
		}
		break
	}
	if took := time.Since(begin); took > patience {
		t.Errorf("the next call waited %v", took)
	}
	// The end of the context is an error, also while the loop is busy.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var last error
	for _, err := range endless.Stream(ctx, 0) {
		cancel()
		last = err
	}
	if !errors.Is(last, context.Canceled) {
		t.Errorf("got %v", last)
	}
}

func TestReadCloser(t *testing.T) {
	everyWay(t, func(t *testing.T, ctx context.Context, o sandboxfn.Options) {
		f := opened.With(o)
		for _, n := range []int{0, 1, 5 << 20} {
			r, err := f.Call(ctx, n)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.Copy(io.Discard, r)
			if got != int64(n) || err != nil {
				t.Errorf("read %d, %v, want %d", got, err, n)
			}
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		}
		if r, err := f.Call(ctx, -1); r != nil || err != errEmpty {
			t.Errorf("got %v, %v", r, err)
		}
		r, err := f.Call(ctx, 7)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(r); len(got) != 7 || err != errEmpty {
			t.Errorf("read %d, %v", len(got), err)
		}
		r.Close()
		// Close in the middle, while another goroutine reads.
		r, err = f.Call(ctx, 1<<40)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() { io.Copy(io.Discard, r) })
		time.Sleep(10 * time.Millisecond)
		r.Close()
		wg.Wait()
		if _, err := r.Read(make([]byte, 1)); err == nil {
			t.Error("read after Close: no error")
		}
	})
}

// Calls from inside a sandbox.
type hopArgs struct{ Depth, To int }

var hop = sandboxfn.Declare[hopArgs, []int](sandboxfn.Decl{Package: self, Name: "hop", Schema: "0123456789abcdef", Params: twoParams("depth", "to")})

func init() {
	bindings = append(bindings, func() {
		sandboxfn.Bind(hop, func(ctx context.Context, a hopArgs) ([]int, error) {
			pid := os.Getpid()
			if a.Depth == a.To {
				return []int{pid}, nil
			}
			rest, err := hop.Call(ctx, hopArgs{a.Depth + 1, a.To})
			return append([]int{pid}, rest...), err
		})
	})
}

func TestNested(t *testing.T) {
	ctx := sandboxtest.Process(t)
	got, err := hop.Call(ctx, hopArgs{0, 3})
	if err != nil || len(got) != 4 {
		t.Fatalf("got %v, %v", got, err)
	}
	if slices.Sort(got); len(slices.Compact(got)) != 4 {
		t.Errorf("nested calls ran in %v", got)
	}
	got, err = hop.With(sandboxfn.Options{Nested: sandboxfn.NestedLocal}).Call(ctx, hopArgs{0, 3})
	if slices.Sort(got); err != nil || len(slices.Compact(got)) != 1 {
		t.Errorf("nested=local ran in %v, %v", got, err)
	}
	_, err = hop.With(sandboxfn.Options{Nested: sandboxfn.NestedRefuse}).Call(ctx, hopArgs{0, 1})
	if !errCode(err, "E9016") {
		t.Errorf("nested=refuse: %v", err)
	}
	for _, ctx := range []context.Context{sandboxtest.InProcess(t), ctx} {
		_, err = hop.With(sandboxfn.Options{Workers: sandboxfn.Workers{Max: 30}}).Call(ctx, hopArgs{0, 20})
		if !errCode(err, "E9016") || !strings.Contains(err.Error(), "16") {
			t.Errorf("too deep: %v", err)
		}
	}
}

func errCode(err error, code errdefs.Code) bool { return errdefs.CodeOf(err) == code }

// More callbacks at once than are let through, each with a goroutine.
var manyBacks = declareDecl(sandboxfn.Decl{Name: "manyBacks", Params: twoParams("n", "each", "tell")},
	func(ctx context.Context, a callbackArgs) (int, error) {
		var wg sync.WaitGroup
		var failed atomic.Int64
		for i := range a.N {
			wg.Go(func() {
				if _, err := a.Each(ctx, i, ""); err != nil {
					failed.Add(1)
				}
			})
		}
		wg.Wait()
		return int(failed.Load()), nil
	})

// However many a function makes at once, one runs at a time: what it changes
// needs no lock.
func TestManyCallbacksAtOnce(t *testing.T) {
	ctx := sandboxtest.Process(t)
	seen := map[int]bool{}
	failed, err := manyBacks.Call(ctx, callbackArgs{N: 3000, Each: func(_ context.Context, n int, _ string) (string, error) {
		seen[n] = true
		return "", nil
	}})
	if failed != 0 || err != nil || len(seen) != 3000 {
		t.Errorf("%d failed, %v; %d were seen", failed, err, len(seen))
	}
}

// Sequences may be ranged over while they are ranged over.
var pairsOf = declareDecl(sandboxfn.Decl{Name: "pairsOf", Params: twoParams("in")},
	func(ctx context.Context, in iter.Seq[int]) (int, error) {
		n := 0
		for a := range in {
			for b := range in {
				if a < b {
					n++
				}
			}
		}
		return n, nil
	})

func TestRangeInRange(t *testing.T) {
	everyWay(t, func(t *testing.T, ctx context.Context, o sandboxfn.Options) {
		if n, err := pairsOf.With(o).Call(ctx, slices.Values([]int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10})); n != 45 || err != nil {
			t.Errorf("got %d, %v", n, err)
		}
	})
}

// The timeout of a call is its own: what follows in the same worker does not end
// with it.
func TestTimeoutIsOfOneCall(t *testing.T) {
	t.Parallel() // it waits
	ctx := sandboxtest.Process(t)
	o := sandboxfn.Options{Workers: sandboxfn.Workers{Max: 1}}
	short := o
	short.Timeout = 2 * time.Second
	if _, err := sum.With(short).Call(ctx, sumArgs{}); err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, err := range counted.With(o).Stream(ctx, 1000) {
		if err != nil {
			t.Fatal(err)
		}
		if n++; n == 1 {
			time.Sleep(2500 * time.Millisecond)
		}
	}
	if n != 1000 {
		t.Errorf("%d items", n)
	}
}

// A stream whose context ends is an error, whatever has arrived by then.
func TestStreamContextEnds(t *testing.T) {
	ctx := sandboxtest.InProcess(t)
	for range 50 {
		ctx, cancel := context.WithCancel(ctx)
		n := 0
		var last error
		for _, err := range counted.Stream(ctx, 10) {
			if n++; n == 1 {
				cancel()
			}
			last = err
		}
		if last == nil && n != 10 {
			t.Fatalf("%d items of 10 and no error", n)
		}
		cancel()
	}
}

// What a call from inside may choose, and what not.
var nestedWith = declare("nestedWith", func(ctx context.Context, what string) (string, error) {
	o := map[string]sandboxfn.Options{
		"timeout": {Timeout: time.Minute, Retries: sandboxfn.NoRetries},
		"network": {Network: "host"}, "secrets": {Secrets: map[string]string{"A": "PATH"}}, "env": {Env: map[string]string{"A": "b"}},
		"workers": {Workers: sandboxfn.Workers{Min: 50, Max: 50}}, "user": {User: "root"}, "memory": {Memory: sandboxfn.TiB},
	}[what]
	return whereFn.With(o).Call(ctx, 0)
})

var whereFn = declare("whereFn", func(ctx context.Context, _ int) (string, error) { return "called", nil })

func TestNestedOptions(t *testing.T) {
	ctx := sandboxtest.Process(t)
	if got, err := nestedWith.Call(ctx, "timeout"); got != "called" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	for _, what := range []string{"network", "secrets", "env", "workers", "user", "memory"} {
		if got, err := nestedWith.Call(ctx, what); !errCode(err, "E9016") {
			t.Errorf("%s: got %q, %v", what, got, err)
		}
	}
}

var nilErrors = declareStream("nilErrors", func(ctx context.Context, n int) (iter.Seq2[error, error], error) {
	return func(yield func(error, error) bool) { _ = yield(nil, nil) && yield(errEmpty, nil) }, nil
})

func TestStreamOfErrors(t *testing.T) {
	var got []error
	for v, err := range nilErrors.Stream(sandboxtest.InProcess(t), 0) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, v)
	}
	if len(got) != 2 || got[0] != nil || got[1] != errEmpty {
		t.Errorf("got %v", got)
	}
}

// A nested call that loses its worker tells the function that made it.
var nestedLoss = declare("nestedLoss", func(ctx context.Context, _ int) (string, error) {
	_, err := obey.Call(ctx, order{What: "exit"})
	return fmt.Sprint(errors.Is(err, sandboxfn.ErrWorkerLost), err), nil
})

func TestNestedLoss(t *testing.T) {
	got, err := nestedLoss.Call(sandboxtest.Process(t), 0)
	if err != nil || !strings.HasPrefix(got, "true") {
		t.Errorf("got %q, %v", got, err)
	}
}
