package sandboxtest_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/sandboxtest"
)

// declareBatch is declare for a function that returns an error for each item.
func declareBatch[In, Out any](name string, o sandboxfn.Options, validate func(any) error, fn func(context.Context, []In) ([]sandboxfn.Result[Out], error)) sandboxfn.Func[In, Out] {
	f := sandboxfn.DeclareBatch[In, Out](sandboxfn.Decl{
		Package: self, Name: name, Schema: "0123456789abcdef", Options: o, Validate: validate,
		Params: []sandboxfn.Param{{Name: "texts", Type: "[]string"}},
	})
	bindings = append(bindings, func() { sandboxfn.BindBatchResults(f, fn) })
	return f
}

// seen holds the batches that sizeUp got in this process.
var seen struct {
	sync.Mutex
	batches [][]string
}

// sizeUp returns the length of each text, with the size of the batch above it.
// Some texts are orders.
var sizeUp = func() sandboxfn.Func[string, int] {
	f := sandboxfn.DeclareBatch[string, int](sandboxfn.Decl{
		Package: self, Name: "sizeUp", Schema: "0123456789abcdef",
		Options: sandboxfn.Options{Batch: 4, BatchWait: 50 * time.Millisecond, Timeout: 20 * time.Second},
		Params:  []sandboxfn.Param{{Name: "texts", Type: "[]string"}},
	})
	bindings = append(bindings, func() {
		sandboxfn.BindBatch(f, func(ctx context.Context, texts []string) ([]int, error) {
			seen.Lock()
			seen.batches = append(seen.batches, slices.Clone(texts))
			seen.Unlock()
			for _, s := range texts {
				switch s {
				case "fail":
					return nil, fmt.Errorf("size up: %w", errEmpty)
				case "short":
					return make([]int, len(texts)-1), nil
				case "die":
					syscall.Kill(os.Getpid(), syscall.SIGKILL)
					select {}
				case "panic":
					panic("boom")
				case "wait":
					<-ctx.Done()
					return nil, fmt.Errorf("waited: %w", context.Cause(ctx))
				case "deadline":
					d, ok := ctx.Deadline()
					return nil, fmt.Errorf("%v %v", time.Until(d).Round(time.Second), ok)
				}
			}
			lengths := make([]int, len(texts))
			for i, s := range texts {
				lengths[i] = 1000*len(texts) + len(s)
			}
			return lengths, nil
		})
	})
	return f
}()

// full is sizeUp with batches that run when n calls have come, however long that
// takes.
func full(n int) sandboxfn.Func[string, int] {
	return sizeUp.With(sandboxfn.Options{Batch: n, BatchWait: time.Minute})
}

type checkedText struct{ Text string }

// parse gives each item an error of its own.
var parse = declareBatch("parse", sandboxfn.Options{Batch: 5, BatchWait: time.Minute, MaxPayload: 64 * sandboxfn.KiB}, func(v any) error {
	if v.(checkedText).Text == "" {
		return errEmpty
	}
	return nil
}, func(_ context.Context, texts []checkedText) ([]sandboxfn.Result[string], error) {
	results := make([]sandboxfn.Result[string], len(texts))
	for i, s := range texts {
		switch s.Text {
		case "none":
			results[i].Err = errEmpty
		case "typed":
			results[i].Err = fmt.Errorf("item: %w", &ParseErr{Line: 7})
		case "big":
			results[i].Value = strings.Repeat("x", 70<<10)
		default:
			results[i].Value = s.Text + fmt.Sprint(len(texts))
		}
	}
	return results, nil
})

// callAll calls f with all texts at once.
func callAll[In, Out any](ctx context.Context, f sandboxfn.Func[In, Out], in ...In) []sandboxfn.Result[Out] {
	results := make([]sandboxfn.Result[Out], len(in))
	var wg sync.WaitGroup
	for i, a := range in {
		wg.Go(func() { results[i].Value, results[i].Err = f.Call(ctx, a) })
	}
	wg.Wait()
	return results
}

func TestBatch(t *testing.T) {
	inModes(t, func(t *testing.T, ctx context.Context) {
		for i, r := range callAll(ctx, full(4), "a", "bb", "ccc", "dddd") {
			if r.Value != 4001+i || r.Err != nil {
				t.Errorf("%d: got %+v", i, r)
			}
		}
		if got, err := sizeUp.Local(ctx, "abc"); got != 1003 || err != nil {
			t.Errorf("local: %d, %v", got, err)
		}
		if _, err := sizeUp.Local(ctx, "short"); sandboxfn.CodeOf(err) != "E9007" {
			t.Errorf("local: %v", err)
		}
		n, apart := 0, 0
		for v, err := range sizeUp.Map(ctx, slices.Values(strings.Fields(strings.Repeat("abc ", 401)))) {
			if v%1000 != 3 || err != nil {
				t.Errorf("%d: got %d, %v", n, v, err)
			}
			if v != 4003 {
				apart++
			}
			n++
		}
		// The last input has nobody to wait for. A result that holds back others may
		// be in a batch that is not full, too, which a slow machine has more of: 41 of
		// them were seen on one that had one busy core.
		if n != 401 || apart > 200 {
			t.Errorf("%d pairs, %d in batches that were not full", n, apart)
		}
		got, err := full(2).Collect(ctx, []string{"a", "bb"})
		if !slices.Equal(got, []int{2001, 2002}) || err != nil {
			t.Errorf("collect: %v, %v", got, err)
		}
	})
}

func TestBatchErrors(t *testing.T) {
	inModes(t, func(t *testing.T, ctx context.Context) {
		for order, want := range map[string]func(error) bool{
			"fail": func(err error) bool { return errors.Is(err, errEmpty) && err.Error() == "size up: empty" },
			"short": func(err error) bool {
				return sandboxfn.CodeOf(err) == "E9007" && strings.Contains(err.Error(), "returned 2 results for 3 items")
			},
			"panic": func(err error) bool {
				p, ok := errors.AsType[*sandboxfn.PanicError](err)
				return ok && p.Value == "boom"
			},
			"die": func(err error) bool {
				l, ok := errors.AsType[*sandboxfn.WorkerLostError](err)
				return ok && l.Started && l.Signal == "killed"
			},
		} {
			if order == "die" && t.Name() == "TestBatchErrors/in_process" {
				continue
			}
			results := callAll(ctx, full(3), "a", order, "c")
			for i, r := range results {
				if r.Value != 0 || !want(r.Err) || r.Err != results[0].Err {
					t.Errorf("%s: %d: got %+v", order, i, r)
				}
			}
		}
	})
}

func TestBatchItemErrors(t *testing.T) {
	inModes(t, func(t *testing.T, ctx context.Context) {
		// Two of these never join the batch of the other five.
		texts := []checkedText{{"a"}, {"none"}, {""}, {"typed"}, {strings.Repeat("x", 65<<10)}, {"big"}, {"b"}}
		begin := time.Now()
		results := callAll(ctx, parse, texts...)
		if took := time.Since(begin); took > 40*time.Second {
			t.Errorf("took %v: the batch was not full", took)
		}
		var parseErr *ParseErr
		for i, ok := range []bool{
			results[0].Value == "a5" && results[0].Err == nil,
			results[1].Err == errEmpty,
			errors.Is(results[2].Err, sandboxfn.ErrValidation) && errors.Is(results[2].Err, errEmpty),
			errors.As(results[3].Err, &parseErr) && parseErr.Line == 7,
			errors.Is(results[4].Err, sandboxfn.ErrPayloadTooLarge) && strings.Contains(results[4].Err.Error(), "texts"),
			errors.Is(results[5].Err, sandboxfn.ErrPayloadTooLarge) && strings.Contains(results[5].Err.Error(), "result"),
			results[6].Value == "b5" && results[6].Err == nil,
		} {
			if !ok {
				t.Errorf("%d: got %.20q, %v", i, results[i].Value, results[i].Err)
			}
		}
		// Arguments that are over the limit together are sent apart.
		long := strings.Repeat("y", 40<<10)
		for i, r := range callAll(ctx, parse.With(sandboxfn.Options{BatchWait: 50 * time.Millisecond}), checkedText{long}, checkedText{long}) {
			if r.Value != long+"1" || r.Err != nil {
				t.Errorf("%d: got %d bytes, %v", i, len(r.Value), r.Err)
			}
		}
	})
}

// batchBubble runs f with fake time, and returns the batches that ran.
func batchBubble(t *testing.T, f func(t *testing.T, ctx context.Context)) [][]string {
	t.Helper()
	seen.batches = nil
	synctest.Test(t, func(t *testing.T) { f(t, sandboxtest.InProcess(t)) })
	return seen.batches
}

var halve = declareBatch("halve", sandboxfn.Options{Batch: 3, BatchWait: time.Second, Codec: sandboxfn.CodecJSON}, nil,
	func(_ context.Context, in []float64) ([]sandboxfn.Result[float64], error) {
		results := make([]sandboxfn.Result[float64], len(in))
		for i, x := range in {
			if results[i].Value = x / 2; x == 3 {
				results[i].Value = math.NaN()
			}
		}
		return results, nil
	})

// A number that JSON has no form for fails alone, on either side.
func TestBatchAsJSON(t *testing.T) {
	results := callAll(sandboxtest.InProcess(t), halve, 1, math.Inf(1), 3, 5)
	for i, want := range []float64{0.5, 0, 0, 2.5} {
		r := results[i]
		if r.Value != want || (r.Err != nil) != (want == 0) || r.Err != nil && sandboxfn.CodeOf(r.Err) != "E9002" {
			t.Errorf("%d: got %+v", i, r)
		}
	}
}

func TestBatchWaits(t *testing.T) {
	got := batchBubble(t, func(t *testing.T, ctx context.Context) {
		begin := time.Now()
		var wg sync.WaitGroup
		for i, at := range []time.Duration{0, 30, 49, 51, 52, 53, 54, 200} {
			wg.Go(func() {
				time.Sleep(at * time.Millisecond)
				v, err := sizeUp.Call(ctx, fmt.Sprint(i))
				took := time.Since(begin).Round(time.Millisecond)
				want := map[bool]time.Duration{true: 50, false: 54}[i < 3] * time.Millisecond
				if i == 7 {
					want = 250 * time.Millisecond
				}
				if v%1000 != 1 || err != nil || took != want {
					t.Errorf("%d: got %d, %v after %v, want %v", i, v, err, took, want)
				}
			})
		}
		wg.Wait()
	})
	if want := [][]string{{"0", "1", "2"}, {"3", "4", "5", "6"}, {"7"}}; !slices.EqualFunc(got, want, slices.Equal) {
		t.Errorf("batches %v, want %v", got, want)
	}
}

// Calls of other handles and under other clients are not of the same batch.
func TestBatchesApart(t *testing.T) {
	got := batchBubble(t, func(t *testing.T, ctx context.Context) {
		other := sizeUp.With(sandboxfn.Options{Timeout: time.Second})
		var wg sync.WaitGroup
		for _, call := range []func(){
			func() { sizeUp.Call(ctx, "x") },
			func() { sizeUp.Call(ctx, "x") },
			func() { other.Call(ctx, "x") },
			func() { sizeUp.Call(sandboxtest.InProcess(t), "x") },
		} {
			wg.Go(call)
		}
		wg.Wait()
	})
	if len(got) != 3 {
		t.Errorf("batches %v", got)
	}
}

// A caller that leaves takes nobody with it; the last to leave ends the batch.
func TestBatchLeft(t *testing.T) {
	leave := func(before bool) [][]string {
		return batchBubble(t, func(t *testing.T, ctx context.Context) {
			first, cancel := context.WithCancel(ctx)
			second, cancelSecond := context.WithCancelCause(ctx)
			third, cancelThird := context.WithCancel(ctx)
			defer cancelSecond(nil)
			defer cancelThird()
			a, b := sizeUp.Spawn(first, "wait"), sizeUp.Spawn(second, "b")
			c := sizeUp.Spawn(third, "c")
			synctest.Wait()
			if !before {
				time.Sleep(60 * time.Millisecond)
			}
			cancel()
			begin := time.Now()
			if _, err := a.Wait(ctx); !errors.Is(err, sandboxfn.ErrCancelled) || time.Since(begin) != 0 {
				t.Errorf("got %v after %v", err, time.Since(begin))
			}
			if before {
				if v, err := b.Wait(ctx); v != 2001 || err != nil {
					t.Errorf("got %d, %v", v, err)
				}
				return
			}
			cancelThird()
			if _, err := c.Wait(ctx); !errors.Is(err, sandboxfn.ErrCancelled) {
				t.Errorf("got %v", err)
			}
			if _, done, _ := b.Poll(); done {
				t.Error("the batch has ended with others")
			}
			cause := errors.New("enough")
			cancelSecond(cause)
			if _, err := b.Wait(ctx); !errors.Is(err, cause) {
				t.Errorf("got %v", err)
			}
			synctest.Wait() // the function sees it, or the bubble is not empty at the end
		})
	}
	if got := leave(true); len(got) != 1 || slices.Contains(got[0], "wait") || len(got[0]) != 2 {
		t.Errorf("one has left before the batch began: %v", got)
	}
	if got := leave(false); len(got) != 1 || len(got[0]) != 3 {
		t.Errorf("one has left when the batch ran: %v", got)
	}
	if got := batchBubble(t, func(t *testing.T, ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
		defer cancel()
		for _, r := range callAll(ctx, sizeUp, "a", "b") {
			if !errors.Is(r.Err, sandboxfn.ErrDeadline) {
				t.Errorf("got %v", r.Err)
			}
		}
		time.Sleep(time.Second)
	}); len(got) != 0 {
		t.Errorf("ran without anybody: %v", got)
	}
}

func TestBatchDeadline(t *testing.T) {
	inModes(t, func(t *testing.T, ctx context.Context) {
		two := full(2).With(sandboxfn.Options{Timeout: 200 * time.Second})
		for i, c := range []struct{ first, second, want time.Duration }{{50, 100, 100}, {50, 0, 200}} { // in seconds
			var calls []*sandboxfn.Call[int]
			for _, after := range []time.Duration{c.first, c.second} {
				ctx, cancel := ctx, context.CancelFunc(func() {})
				if after > 0 {
					ctx, cancel = context.WithTimeout(ctx, after*time.Second)
				}
				defer cancel()
				calls = append(calls, two.Spawn(ctx, "deadline"))
			}
			for _, call := range calls {
				_, err := call.Wait(ctx)
				left, _ := strings.CutSuffix(fmt.Sprint(err), " true")
				if d, perr := time.ParseDuration(left); perr != nil || d <= (c.want-50)*time.Second || d > c.want*time.Second {
					t.Errorf("%d: got %v, want nearly %d s", i, err, c.want)
				}
			}
		}
	})
}

// A batch function that is not bound says so, as others do.
func TestBatchUnbound(t *testing.T) {
	f := sandboxfn.DeclareBatch[int, int](sandboxfn.Decl{Package: self, Name: "nowhere", Options: sandboxfn.Options{Batch: 2}})
	for _, call := range []func(context.Context, int) (int, error){f.Call, f.Local} {
		if _, err := call(sandboxtest.InProcess(t), 1); sandboxfn.CodeOf(err) != "E9008" {
			t.Errorf("got %v", err)
		}
	}
}
