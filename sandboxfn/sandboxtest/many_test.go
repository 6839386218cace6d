package sandboxtest_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/sandboxtest"
)

var modes = map[string]func(testing.TB) context.Context{"in process": sandboxtest.InProcess, "process": sandboxtest.Process}

// inModes runs a test in every mode.
func inModes(t *testing.T, f func(*testing.T, context.Context)) {
	for name, mode := range modes {
		t.Run(name, func(t *testing.T) { f(t, mode(t)) })
	}
}

// upTo yields the numbers below n, and counts what it yields.
func upTo(n int, pulled *atomic.Int64) iter.Seq[int] {
	return func(yield func(int) bool) {
		for i := range n {
			if pulled != nil {
				pulled.Add(1)
			}
			if !yield(i) {
				return
			}
		}
	}
}

// pick is double, but fails for multiples of 7 and takes its time for the first.
var pick = declare("pick", func(_ context.Context, n int) (int, error) {
	switch {
	case n%7 == 3:
		return n, fmt.Errorf("pick %d: %w", n, errEmpty)
	case n == 0:
		time.Sleep(20 * time.Millisecond)
	}
	return 2 * n, nil
})

func TestMap(t *testing.T) {
	inModes(t, func(t *testing.T, ctx context.Context) {
		const n = 300
		i := 0
		for got, err := range pick.Map(ctx, upTo(n, nil)) {
			if i%7 == 3 {
				if got != i || !errors.Is(err, errEmpty) || err.Error() != fmt.Sprintf("pick %d: empty", i) {
					t.Errorf("%d: got %d, %v", i, got, err)
				}
			} else if got != 2*i || err != nil {
				t.Errorf("%d: got %d, %v", i, got, err)
			}
			i++
		}
		if i != n {
			t.Errorf("%d pairs for %d inputs", i, n)
		}
		seen := map[int]bool{}
		for i, r := range pick.MapUnordered(ctx, upTo(n, nil)) {
			if seen[i] || (r.Err != nil) != (i%7 == 3) || r.Err == nil && r.Value != 2*i {
				t.Errorf("%d: got %+v (before: %t)", i, r, seen[i])
			}
			seen[i] = true
		}
		if len(seen) != n {
			t.Errorf("%d pairs for %d inputs", len(seen), n)
		}
	})
}

func TestMapOfNothing(t *testing.T) {
	ctx := sandboxtest.InProcess(t)
	for got, err := range double.Map(ctx, upTo(0, nil)) {
		t.Errorf("got %v, %v", got, err)
	}
	for i, r := range double.MapUnordered(ctx, slices.Values([]int(nil))) {
		t.Errorf("got %v, %v", i, r)
	}
	if got, err := double.Collect(ctx, nil); len(got) != 0 || err != nil {
		t.Errorf("got %v, %v", got, err)
	}
	if got, err := sandboxfn.Gather[int](ctx); len(got) != 0 || err != nil {
		t.Errorf("got %v, %v", got, err)
	}
	defer func() {
		if recover() == nil {
			t.Error("an input that is nil does not panic")
		}
	}()
	for range double.Map(ctx, nil) {
	}
}

// A sequence of results can be ranged over again.
func TestMapAgain(t *testing.T) {
	seq := double.Map(sandboxtest.InProcess(t), upTo(5, nil))
	for range 2 {
		var all []int
		for v := range seq {
			all = append(all, v)
		}
		if !slices.Equal(all, []int{0, 2, 4, 6, 8}) {
			t.Errorf("got %v", all)
		}
	}
}

// gate is where calls of held wait for their test, which runs in this process.
type gate struct {
	open    map[int]chan struct{} // a call whose number is not there waits for its context
	running atomic.Int64
	mu      sync.Mutex
	causes  []error // of contexts that ended
}

var gates sync.Map // of the tests that run, by name

type at struct {
	Test string
	N    int
}

var held = declareWith("held", sandboxfn.Options{Workers: sandboxfn.Workers{Max: 3}}, func(ctx context.Context, a at) (int, error) {
	v, _ := gates.Load(a.Test)
	g := v.(*gate)
	g.running.Add(1)
	defer g.running.Add(-1)
	select {
	case <-g.open[a.N]:
		return a.N, nil
	case <-ctx.Done():
		g.mu.Lock()
		defer g.mu.Unlock()
		g.causes = append(g.causes, context.Cause(ctx))
		return 0, ctx.Err()
	}
})

// bubble runs f with fake time and a gate through which the numbers of open may
// go. It fails when a goroutine is left.
func bubble(t *testing.T, open []int, f func(t *testing.T, ctx context.Context, g *gate, in func(int) at)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		g := &gate{open: map[int]chan struct{}{}}
		for _, n := range open {
			g.open[n] = make(chan struct{})
			close(g.open[n])
		}
		gates.Store(t.Name(), g)
		defer gates.Delete(t.Name())
		f(t, sandboxtest.InProcess(t), g, func(n int) at { return at{t.Name(), n} })
		if n := g.running.Load(); n != 0 {
			t.Errorf("%d calls are running", n)
		}
	})
}

// ats makes arguments of the numbers below n.
func ats(n int, in func(int) at, pulled *atomic.Int64) iter.Seq[at] {
	return func(yield func(at) bool) {
		for i := range upTo(n, pulled) {
			if !yield(in(i)) {
				return
			}
		}
	}
}

func TestMapPullsWhatIsTaken(t *testing.T) {
	for name, c := range map[string]struct {
		o    sandboxfn.Options
		want int64
	}{
		"default":     {sandboxfn.Options{}, 6},
		"concurrency": {sandboxfn.Options{Concurrency: 4}, 15},
		"in flight":   {sandboxfn.Options{InFlight: 2}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, []int{0, 1, 2, 3, 4}, func(t *testing.T, ctx context.Context, g *gate, in func(int) at) {
				f := held.With(c.o)
				var pulled atomic.Int64
				taken := int64(0)
				for range f.Map(ctx, ats(1000, in, &pulled)) {
					taken++
					synctest.Wait()
					if got := pulled.Load(); got != taken+c.want {
						t.Errorf("with %d results taken, %d inputs are pulled, want %d more", taken, got, c.want)
					}
					if taken == 5 {
						break
					}
				}
			})
		})
	}
}

// A slow call holds back the results of later ones, unless order does not
// matter.
func TestMapOrder(t *testing.T) {
	bubble(t, []int{1, 2}, func(t *testing.T, ctx context.Context, g *gate, in func(int) at) {
		slow := make(chan struct{})
		g.open[0] = slow
		time.AfterFunc(time.Second, func() { close(slow) })
		begin := time.Now()
		var order []int
		for n, err := range held.Map(ctx, ats(3, in, nil)) {
			if order = append(order, n); err != nil || time.Since(begin) < time.Second {
				t.Errorf("got %d, %v after %v", n, err, time.Since(begin))
			}
		}
		if !slices.Equal(order, []int{0, 1, 2}) {
			t.Errorf("got %v", order)
		}
		g.open[0] = make(chan struct{})
		time.AfterFunc(time.Second, func() { close(g.open[0]) })
		order = nil
		for n, r := range held.MapUnordered(ctx, ats(3, in, nil)) {
			if order = append(order, n); r.Value != n || r.Err != nil {
				t.Errorf("got %d, %+v", n, r)
			}
		}
		if len(order) != 3 || order[2] != 0 {
			t.Errorf("got %v", order)
		}
	})
}

// However a loop is left, what is running is cancelled, and over.
func TestMapLeft(t *testing.T) {
	for name, leave := range map[string]func(){
		"break":  nil,
		"panic":  func() { panic("enough") },
		"goexit": runtime.Goexit,
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, []int{0}, func(t *testing.T, ctx context.Context, g *gate, in func(int) at) {
				begin := time.Now()
				done := make(chan any)
				go func() {
					returned := false
					defer func() {
						if v := recover(); v != nil {
							done <- v
						} else if !returned {
							done <- "goexit"
						} else {
							done <- "break"
						}
					}()
					for range held.With(sandboxfn.Options{InFlight: 3}).Map(ctx, ats(100, in, nil)) { // one worker for each
						synctest.Wait()
						if leave != nil {
							leave()
						}
						break
					}
					if n := g.running.Load(); n != 0 {
						t.Errorf("%d calls are running", n)
					}
					returned = true
				}()
				if got := <-done; got != name && got != "enough" {
					t.Errorf("ended with %v", got)
				}
				if took := time.Since(begin); took > 0 {
					t.Errorf("took %v", took)
				}
				g.mu.Lock()
				defer g.mu.Unlock()
				if len(g.causes) != 3 || // the others wait for a worker
					!strings.Contains(g.causes[0].Error(), "loop over the results was left") {
					t.Errorf("causes are %v", g.causes)
				}
			})
		})
	}
}

func TestMapInputPanics(t *testing.T) {
	for name, end := range map[string]func(){
		"panic":  func() { panic("out of inputs") },
		"goexit": runtime.Goexit,
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, []int{0, 1, 2}, func(t *testing.T, ctx context.Context, _ *gate, in func(int) at) {
				var got []int
				done := make(chan any)
				go func() {
					var v any = "not even that"
					defer func() { done <- v }()
					defer func() {
						if v = recover(); v == nil {
							v = "goexit"
						}
					}()
					for n, err := range held.Map(ctx, func(yield func(at) bool) {
						for a := range ats(3, in, nil) {
							if !yield(a) {
								return
							}
						}
						end()
					}) {
						if got = append(got, n); err != nil {
							t.Error(err)
						}
					}
					t.Error("the loop has ended without it")
				}()
				if v := <-done; v != "out of inputs" && v != name {
					t.Errorf("ended with %v", v)
				}
				if !slices.Equal(got, []int{0, 1, 2}) {
					t.Errorf("results before it: %v", got)
				}
			})
		})
	}
}

// An input that panics when its loop is left does so on the goroutine of the
// loop.
func TestMapInputPanicsAtTheEnd(t *testing.T) {
	bubble(t, []int{0}, func(t *testing.T, ctx context.Context, _ *gate, in func(int) at) {
		defer func() {
			if v := recover(); v != "late" {
				t.Errorf("got %v", v)
			}
		}()
		for range held.With(sandboxfn.Options{InFlight: 3}).Map(ctx, func(yield func(at) bool) {
			defer func() { panic("late") }()
			for i := range 100 {
				if !yield(in(i)) {
					return
				}
			}
		}) {
			break
		}
		t.Error("no panic")
	})
}

// An input that blocks keeps no loop from ending.
func TestMapInputBlocks(t *testing.T) {
	for _, how := range []string{"break", "cancelled", "cancelled before"} {
		t.Run(how, func(t *testing.T) {
			bubble(t, []int{0}, func(t *testing.T, ctx context.Context, g *gate, in func(int) at) {
				ctx, cancel := context.WithCancelCause(ctx)
				defer cancel(nil)
				cause := errors.New("no time")
				if how == "cancelled before" {
					cancel(cause)
				} else if how == "cancelled" {
					time.AfterFunc(time.Second, func() { cancel(cause) })
				}
				more := make(chan int)
				ended := make(chan struct{})
				begin := time.Now()
				var errs []error
				for _, err := range held.Map(ctx, func(yield func(at) bool) {
					defer close(ended)
					if how != "cancelled before" && !yield(in(0)) {
						return
					}
					for n := range more {
						if !yield(in(n)) {
							return
						}
					}
				}) {
					errs = append(errs, err)
					if how == "break" {
						break
					}
				}
				if took := time.Since(begin); took > 1100*time.Millisecond {
					t.Errorf("took %v", took)
				}
				switch {
				case how != "cancelled before" && (len(errs) == 0 || errs[0] != nil):
					t.Errorf("got %v", errs)
				case how == "break":
				case !errors.Is(errs[len(errs)-1], cause) || !errors.Is(errs[len(errs)-1], sandboxfn.ErrCancelled):
					t.Errorf("got %v", errs)
				}
				select {
				case <-ended:
					t.Error("the input does not block")
				default:
				}
				more <- 1 // it ends when it comes back
				<-ended
			})
		})
	}
}

// When the context ends, what was pulled gets its pair, and no more is pulled.
func TestMapContextEnds(t *testing.T) {
	bubble(t, []int{0, 1}, func(t *testing.T, ctx context.Context, _ *gate, in func(int) at) {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		var pulled atomic.Int64
		n := int64(0)
		for got, err := range held.With(sandboxfn.Options{InFlight: 3}).Map(ctx, ats(1000, in, &pulled)) { // one worker for each
			switch {
			case n < 2 && (int64(got) != n || err != nil):
				t.Errorf("%d: got %d, %v", n, got, err)
			case n >= 2 && !errors.Is(err, context.DeadlineExceeded):
				t.Errorf("%d: got %v", n, err)
			}
			n++
		}
		// Of those that end with the context, each may have let one more in at
		// that moment.
		if n < 5 || n > 8 || pulled.Load() != n {
			t.Errorf("%d pairs for %d inputs that were pulled", n, pulled.Load())
		}
	})
}

// A panic in the caller's own part of a call, such as a check, comes to the loop.
type touchy struct{ N int }

var checkedTouchy = declareDecl(sandboxfn.Decl{
	Name: "checkedTouchy", Params: []sandboxfn.Param{{Name: "v"}},
	Validate: func(v any) error {
		if v.(touchy).N == 3 {
			panic("can't look at 3")
		}
		return nil
	},
}, func(_ context.Context, v touchy) (int, error) { return v.N, nil })

func TestManyWithPanickingCheck(t *testing.T) {
	ctx := sandboxtest.InProcess(t)
	in := []touchy{{1}, {2}, {3}, {4}}
	for name, run := range map[string]func(){
		"map": func() {
			for range checkedTouchy.Map(ctx, slices.Values(in)) {
			}
		},
		"collect": func() { checkedTouchy.Collect(ctx, in) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if v := recover(); v != "can't look at 3" {
					t.Errorf("got %v", v)
				}
			}()
			run()
		})
	}
}

// Leaving the loop stops functions in worker processes, those that ignore their
// context as well.
func TestMapLeftInProcesses(t *testing.T) {
	ctx := sandboxtest.Process(t)
	dir := t.TempDir()
	first := make(chan struct{})
	orders := func(yield func(order) bool) {
		yield(order{What: "pid"})
		<-first
		for i := range 100 {
			what := "wait"
			if i == 0 {
				what = "sleep"
			}
			if !yield(order{What: what, Path: filepath.Join(dir, fmt.Sprint(i)), For: 4 * time.Second}) {
				return
			}
		}
	}
	f := obey.With(sandboxfn.Options{Workers: sandboxfn.Workers{Max: 2}, Grace: 50 * time.Millisecond})
	if _, err := f.Collect(ctx, []order{{What: "pid"}, {What: "pid"}}); err != nil { // starts take their time
		t.Fatal(err)
	}
	begin := time.Now()
	for pid, err := range f.Map(ctx, orders) {
		if pid == "" || err != nil {
			t.Errorf("got %q, %v", pid, err)
		}
		close(first)
		time.Sleep(50 * time.Millisecond) // for the next to have been started
		break
	}
	if took := time.Since(begin); took > 3500*time.Millisecond {
		t.Errorf("the loop took %v", took)
	}
	if pid, err := f.Call(ctx, order{What: "pid"}); err != nil {
		t.Errorf("the next call: %q, %v", pid, err)
	}
	time.Sleep(time.Until(begin.Add(5 * time.Second)))
	for _, path := range slices.Sorted(maps.Keys(filesOf(t, dir))) {
		// One that its grace was too short for may have been killed before it wrote.
		if text := filesOf(t, dir)[path]; text != "" && !strings.HasPrefix(text, "cause ") {
			t.Errorf("%s: %s", path, text)
		}
	}
}

func filesOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Error(err)
	}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Error(err)
		}
		all[e.Name()] = string(b)
	}
	return all
}

func TestCollect(t *testing.T) {
	inModes(t, func(t *testing.T, ctx context.Context) {
		in := slices.Collect(upTo(200, nil))
		got, err := double.Collect(ctx, in)
		if err != nil || len(got) != len(in) {
			t.Fatal(len(got), err)
		}
		for i, v := range got {
			if v != 2*i {
				t.Errorf("%d: got %d", i, v)
			}
		}
		in[17] = -1
		if got, err := double.Collect(ctx, in); got != nil || !errors.Is(err, os.ErrInvalid) || err.Error() != "double -1: invalid argument" {
			t.Errorf("got %v, %v", got, err)
		}
	})
	bubble(t, []int{0, 1}, func(t *testing.T, ctx context.Context, g *gate, in func(int) at) {
		begin := time.Now()
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		got, err := held.Collect(ctx, []at{in(0), in(1), in(2), in(3)})
		if got != nil || !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != time.Second {
			t.Errorf("got %v, %v after %v", got, err, time.Since(begin))
		}
	})
}

func TestCollectCancelsTheRest(t *testing.T) {
	bubble(t, nil, func(t *testing.T, ctx context.Context, g *gate, in func(int) at) {
		bad := at{Test: "nobody", N: 1}
		gates.Store("nobody", &gate{open: map[int]chan struct{}{}})
		defer gates.Delete("nobody")
		failing := held.With(sandboxfn.Options{Timeout: time.Second})
		begin := time.Now()
		_, err := failing.Collect(ctx, []at{in(0), in(1), bad, in(3)})
		if !errors.Is(err, sandboxfn.ErrTimeout) && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		if took := time.Since(begin); took > 1200*time.Millisecond {
			t.Errorf("took %v", took)
		}
	})
}

type noted struct {
	Path string
	N    int
}

// note writes its number to a file, and returns its worker's process.
var note = declare("note", func(_ context.Context, a noted) (int, error) {
	f, err := os.OpenFile(a.Path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	_, err = fmt.Fprintln(f, a.N)
	return os.Getpid(), err
})

// However often workers are killed, a function runs once at most, and one whose
// result came has run; an idempotent one runs until it has a result.
func TestMapRunsOnce(t *testing.T) {
	const inputs = 2000
	for name, o := range map[string]sandboxfn.Options{
		"once":       {},
		"idempotent": {Idempotent: true, Retries: 10, Backoff: sandboxfn.Backoff{First: time.Millisecond, Max: time.Millisecond, Factor: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			o.Workers = sandboxfn.Workers{Max: 4}
			path := filepath.Join(t.TempDir(), "notes")
			args := func(yield func(noted) bool) {
				for i := range upTo(inputs, nil) {
					if !yield(noted{path, i}) {
						return
					}
				}
			}
			lost := map[int]bool{}
			n, kills := 0, 0
			for pid, err := range note.With(o).Map(sandboxtest.Process(t), args) {
				switch {
				case errors.Is(err, sandboxfn.ErrWorkerLost) && !o.Idempotent:
					lost[n] = true
				case err != nil:
					t.Errorf("%d: %v", n, err)
				case n%200 == 100 && syscall.Kill(pid, syscall.SIGKILL) == nil:
					kills++
				}
				n++
			}
			if n != inputs || kills == 0 {
				t.Errorf("%d pairs for %d inputs, %d kills", n, inputs, kills)
			}
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			ran := map[int]int{}
			for f := range strings.FieldsSeq(string(b)) {
				i, _ := strconv.Atoi(f)
				ran[i]++
			}
			for i := range inputs {
				if k := ran[i]; k > 1 && !o.Idempotent || k == 0 && !lost[i] {
					t.Errorf("%d ran %d times (lost: %t)", i, k, lost[i])
				}
			}
			t.Logf("%d of %d calls were lost by %d kills", len(lost), inputs, kills)
		})
	}
}
