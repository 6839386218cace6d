package sandboxtest_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/sandboxtest"
)

// What the generator makes of
//
//	//sandbox:class env=TUNE=2.5 grace=2s
//	type counter struct {
//		Name string `validate:"required"`
//		Step int    `sandbox:"default=7"`
//		…
//	}
type counter struct {
	Name  string
	Step  int           `sandbox:"default=7"`
	Wait  time.Duration `sandbox:"default=1s"`
	Langs []string      `sandbox:"default='go,c'"`
	Tune  float64       `sandbox:"env=TUNE"`
	Odd   int           `sandbox:"env=ODD"`
	Key   []byte        `sandbox:"secret=COUNTER_KEY"`
	Notes string        // a file that says what happened
	Fail  string
	Parts *parts

	n       int
	meeting atomic.Int32
}

type parts struct{ List []int }

type CounterParams struct {
	Name  string
	Step  int           `sandbox:"default=7"`
	Wait  time.Duration `sandbox:"default=1s"`
	Langs []string      `sandbox:"default='go,c'"`
	Notes string
	Fail  string
	Parts *parts
}

var counterClass = sandboxfn.DeclareClass[CounterParams](sandboxfn.ClassDecl{
	Package: self, Name: "counter", Schema: "0123",
	Options: sandboxfn.Options{Env: map[string]string{"TUNE": "2.5", "COUNTER_KEY": "s3cret"}, Grace: 2 * time.Second, Workers: sandboxfn.Workers{Max: 2}},
	Validate: func(p any) error {
		if c := p.(CounterParams); c.Name == "" || c.Step == 0 {
			return errors.New("Name and Step are required")
		}
		return nil
	},
})

type Counter struct{ sandboxfn.Object }

func NewCounter(p CounterParams, opts *sandboxfn.Options) *Counter {
	return &Counter{sandboxfn.NewObject(counterClass, p, opts)}
}

var (
	counterAdd   = sandboxfn.DeclareMethod[int, int](counterClass, sandboxfn.Decl{Package: self, Name: "counter.add", Schema: "1"})
	counterShow  = sandboxfn.DeclareMethod[sandboxfn.None, string](counterClass, sandboxfn.Decl{Package: self, Name: "counter.show", Schema: "2"})
	counterObey  = sandboxfn.DeclareMethod[string, int](counterClass, sandboxfn.Decl{Package: self, Name: "counter.obey", Schema: "3", Options: sandboxfn.Options{Timeout: 20 * time.Second}})
	unboundClass = sandboxfn.DeclareClass[CounterParams](sandboxfn.ClassDecl{Package: self, Name: "unbound"})
)

func (c *Counter) Add(ctx context.Context, n int) (int, error) { return c.AddFunc().Call(ctx, n) }
func (c *Counter) AddFunc() sandboxfn.Func[int, int]           { return counterAdd.Of(c.Object) }
func (c *Counter) Show(ctx context.Context) (string, error) {
	return counterShow.Of(c.Object).Call(ctx, sandboxfn.None{})
}
func (c *Counter) ObeyFunc() sandboxfn.Func[string, int] { return counterObey.Of(c.Object) }
func (c *Counter) Obey(ctx context.Context, what string) (int, error) {
	return c.ObeyFunc().Call(ctx, what)
}

func init() {
	bindings = append(bindings, func() {
		sandboxfn.BindClass(counterClass, func(p CounterParams) *counter {
			return &counter{Name: p.Name, Step: p.Step, Wait: p.Wait, Langs: p.Langs, Notes: p.Notes, Fail: p.Fail, Parts: p.Parts}
		}, func(ctx context.Context, c *counter) error { return c.load(ctx) }, func(ctx context.Context, c *counter) error { return c.unload(ctx) })
		sandboxfn.BindMethod(counterAdd, func(ctx context.Context, c *counter, n int) (int, error) { return c.add(ctx, n) })
		sandboxfn.BindMethod(counterShow, func(_ context.Context, c *counter, _ sandboxfn.None) (string, error) { return c.show(), nil })
		sandboxfn.BindMethod(counterObey, func(ctx context.Context, c *counter, what string) (int, error) { return c.obey(ctx, what) })
	})
}

func (c *counter) note(text string) {
	if f, err := os.OpenFile(c.Notes, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600); err == nil {
		fmt.Fprintf(f, "%s %d\n", text, os.Getpid())
		f.Close()
	}
}

func (c *counter) load(ctx context.Context) error {
	c.note("enter")
	switch c.Fail {
	case "enter":
		return fmt.Errorf("load %s: %w", c.Name, errEmpty)
	case "panic":
		panic("no memory")
	case "stuck":
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

func (c *counter) unload(context.Context) error {
	c.note("exit")
	if c.Fail == "exit" {
		return fmt.Errorf("unload: %w", errEmpty)
	}
	return nil
}

func (c *counter) add(_ context.Context, n int) (int, error) {
	for range n { // calls within an instance are plain calls
		c.n += c.Step
	}
	return c.n, nil
}

func (c *counter) show() string {
	return fmt.Sprint(c.Name, " ", c.Step, " ", c.Wait, " ", c.Langs, " ", c.Tune, " ", c.Odd, " ", string(c.Key), " ", c.Parts != nil && len(c.Parts.List) > 0 && c.Parts.List[0] == 1)
}

func (c *counter) obey(ctx context.Context, what string) (int, error) {
	switch what {
	case "panic":
		panic("boom")
	case "kill":
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
	case "sleep":
		n := c.n
		time.Sleep(20 * time.Millisecond)
		c.n = n + 1
	case "meet":
		c.meeting.Add(-1)
		for c.meeting.Load() > -4 {
			select {
			case <-ctx.Done():
				return 0, ctx.Err()
			case <-time.After(time.Millisecond):
			}
		}
	case "error":
		return 0, fmt.Errorf("obey: %w", errEmpty)
	}
	return os.Getpid(), nil
}

// linesOf are the first words of the lines of a file.
func linesOf(t *testing.T, path string) []string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	var words []string
	for line := range strings.Lines(string(b)) {
		word, _, _ := strings.Cut(line, " ")
		words = append(words, word)
	}
	return words
}

func TestClassFieldsAndTags(t *testing.T) {
	for name, mode := range bothModes {
		t.Run(name, func(t *testing.T) {
			list := []int{1}
			p := CounterParams{Name: "a", Parts: &parts{list}}
			c := NewCounter(p, nil)
			list[0], p.Parts.List = 2, nil // the object has a copy
			ctx := mode(t)
			for range 2 { // also from kept handles
				if got, err := c.Show(ctx); got != "a 7 1s [go c] 2.5 0 s3cret true" || err != nil {
					t.Errorf("got %q, %v", got, err)
				}
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
			// Options of the object are put over those of the class.
			c = NewCounter(CounterParams{Name: "a", Step: 1}, &sandboxfn.Options{Env: map[string]string{"TUNE": "1", "ODD": "3"}})
			if got, err := c.Show(ctx); got != "a 1 1s [go c] 1 3 s3cret false" || err != nil {
				t.Errorf("got %q, %v", got, err)
			}
			c = NewCounter(CounterParams{Name: "a"}, &sandboxfn.Options{Env: map[string]string{"ODD": "many"}})
			if _, err := c.Show(ctx); !errors.Is(err, sandboxfn.ErrValidation) || !strings.Contains(err.Error(), "Odd: the value of variable ODD is no int") || strings.Contains(err.Error(), "many") {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestClassStateAndPool(t *testing.T) {
	for name, mode := range bothModes {
		t.Run(name, func(t *testing.T) { testClassStateAndPool(t, mode(t)) })
	}
}

func testClassStateAndPool(t *testing.T, ctx context.Context) {
	path := filepath.Join(t.TempDir(), "notes")
	c := NewCounter(CounterParams{Name: "a", Notes: path}, nil)
	if len(linesOf(t, path)) != 0 {
		t.Error("the constructor has started something")
	}
	for i := 1; i <= 3; i++ { // one after the other, so one worker has them all
		if got, err := c.Add(ctx, 1); got != 7*i || err != nil {
			t.Fatalf("add: %d, %v", got, err)
		}
	}
	same := NewCounter(CounterParams{Name: "a", Notes: path}, nil)
	if got, err := same.Add(ctx, 0); got != 21 || err != nil {
		t.Errorf("an equal object has another instance: %d, %v", got, err)
	}
	other := NewCounter(CounterParams{Name: "b", Notes: path}, nil)
	if got, err := other.Add(ctx, 1); got != 7 || err != nil {
		t.Errorf("an object with other parameters: %d, %v", got, err)
	}
	if got, err := c.AddFunc().With(sandboxfn.Options{Timeout: time.Minute}).Call(ctx, 1); got != 28 || err != nil {
		t.Errorf("with a timeout: %d, %v", got, err)
	}
	if _, err := c.Obey(ctx, "error"); !errors.Is(err, errEmpty) || err.Error() != "obey: "+errEmpty.Error() {
		t.Errorf("error of a method: %v", err)
	}
	if got := linesOf(t, path); !slices.Equal(got, []string{"enter", "enter"}) {
		t.Errorf("before Close: %q", got)
	}
	for range 2 {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	if got := linesOf(t, path); !slices.Equal(got, []string{"enter", "enter", "exit"}) {
		t.Errorf("after Close: %q", got)
	}
	var e *sandboxfn.Error
	if _, err := c.Add(ctx, 1); !errors.As(err, &e) || e.Code != "E9018" {
		t.Errorf("call after Close: %v", err)
	}
	if got, err := same.Add(ctx, 1); got != 7 || err != nil {
		t.Errorf("an equal object after that: %d, %v", got, err)
	}
}

// A worker that is given up in order runs exit: here because it is idle, and at
// the end of the test.
func TestClassExit(t *testing.T) {
	for name, mode := range bothModes {
		t.Run(name, func(t *testing.T) { testClassExit(t, mode) })
	}
}

func testClassExit(t *testing.T, mode func(testing.TB) context.Context) {
	path := filepath.Join(t.TempDir(), "notes")
	t.Run("call", func(t *testing.T) {
		ctx := mode(t)
		c := NewCounter(CounterParams{Name: "a", Notes: path}, nil)
		if _, err := c.Add(ctx, 1); err != nil {
			t.Fatal(err)
		}
		c = NewCounter(CounterParams{Name: "idle", Notes: path}, &sandboxfn.Options{Idle: sandboxfn.NoIdle})
		if _, err := c.Add(ctx, 1); err != nil {
			t.Fatal(err)
		}
		c = NewCounter(CounterParams{Name: "panic", Notes: path}, nil)
		if _, err := c.Obey(ctx, "panic"); !errors.Is(err, sandboxfn.ErrPanic) {
			t.Fatal(err)
		}
	})
	if got := linesOf(t, path); len(got) != 5 || got[0] != "enter" || strings.Count(strings.Join(got, " "), "exit") != 2 {
		t.Errorf("%q", got)
	}
	c := NewCounter(CounterParams{Name: "a", Fail: "exit"}, nil)
	if _, err := c.Add(mode(t), 1); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); !errors.Is(err, errEmpty) {
		t.Errorf("Close: %v", err)
	}
}

func TestClassEnterFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notes")
	for fail, check := range map[string]func(error) bool{
		"enter": func(err error) bool { return errors.Is(err, errEmpty) },
		"panic": func(err error) bool {
			p, ok := errors.AsType[*sandboxfn.PanicError](err)
			return ok && p.Value == "no memory" && strings.Contains(p.Stack, "load")
		},
		"stuck": func(err error) bool {
			return errors.Is(err, context.DeadlineExceeded) && strings.Contains(err.Error(), "startup_timeout")
		},
	} {
		t.Run(fail, func(t *testing.T) {
			ctx, o := sandboxtest.Process(t), sandboxfn.Options{}
			if fail == "stuck" {
				ctx, o.StartupTimeout = sandboxtest.InProcess(t), 100*time.Millisecond
			}
			c := NewCounter(CounterParams{Name: fail, Fail: fail, Notes: path}, &o)
			var wg sync.WaitGroup
			for range 3 { // one more than there may be workers
				wg.Go(func() {
					_, err := c.Add(ctx, 1)
					if !errors.Is(err, sandboxfn.ErrWorkerStart) || !strings.Contains(err.Error(), "step enter") || !check(err) {
						t.Errorf("got %v", err)
					}
				})
			}
			wg.Wait()
		})
	}
	if n := len(linesOf(t, path)); n > 6 {
		t.Errorf("enter ran %d times", n)
	}
	if slices.Contains(linesOf(t, path), "exit") {
		t.Error("an instance that was never entered was left")
	}
}

func TestClassArguments(t *testing.T) {
	ctx := sandboxtest.Process(t)
	var e *sandboxfn.Error
	if _, err := NewCounter(CounterParams{}, nil).Add(ctx, 1); !errors.Is(err, sandboxfn.ErrValidation) {
		t.Errorf("invalid parameters: %v", err)
	}
	if _, err := (&Counter{}).Add(ctx, 1); !errors.As(err, &e) || e.Code != "E9018" {
		t.Errorf("no constructor: %v", err)
	}
	if err := (&Counter{}).Close(); err != nil {
		t.Errorf("no constructor: %v", err)
	}
	if _, err := (&Counter{sandboxfn.NewObject(unboundClass, CounterParams{Name: "a"}, nil)}).Add(ctx, 1); !errors.Is(err, sandboxfn.ErrUnknownFunction) {
		t.Errorf("unbound class: %v", err)
	}
	if _, err := sandboxfn.Pin(ctx, &Counter{}); !errors.As(err, &e) || e.Code != "E9018" {
		t.Errorf("pin: %v", err)
	}
	if _, err := sandboxfn.Pin[Counter](ctx, nil); !errors.As(err, &e) || e.Code != "E9018" {
		t.Errorf("pin: %v", err)
	}
	_, err := sandboxfn.Pin(ctx, NewCounter(CounterParams{Name: "a", Fail: "enter"}, nil))
	if !errors.Is(err, errEmpty) || !errors.Is(err, sandboxfn.ErrWorkerStart) {
		t.Errorf("pin: %v", err)
	}
}

func TestClassLocal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notes")
	c := NewCounter(CounterParams{Name: "a", Step: 2, Notes: path}, nil)
	for i := 1; i <= 2; i++ {
		if got, err := c.AddFunc().Local(t.Context(), 1); got != 2*i || err != nil {
			t.Errorf("got %d, %v", got, err)
		}
	}
	if pid, err := c.ObeyFunc().Local(t.Context(), ""); pid != os.Getpid() || err != nil {
		t.Errorf("ran in %d, %v", pid, err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if got := linesOf(t, path); !slices.Equal(got, []string{"enter", "exit"}) {
		t.Errorf("%q", got)
	}
	if _, err := c.AddFunc().Local(t.Context(), 1); err == nil {
		t.Error("a closed object was called")
	}
}

func TestPin(t *testing.T) {
	for name, mode := range bothModes {
		t.Run(name, func(t *testing.T) { testPin(t, mode(t)) })
	}
}

func testPin(t *testing.T, ctx context.Context) {
	path := filepath.Join(t.TempDir(), "notes")
	c := NewCounter(CounterParams{Name: "a", Notes: path}, nil)
	if got, err := c.Add(ctx, 1); got != 7 || err != nil {
		t.Fatalf("%d, %v", got, err)
	}
	p, err := sandboxfn.Pin(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if got := linesOf(t, path); !slices.Equal(got, []string{"enter", "enter", "exit"}) {
		t.Errorf("%q", got)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if _, err := p.Obey(ctx, "sleep"); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got, err := p.Add(ctx, 0); got != 4 || err != nil {
		t.Errorf("calls of a pinned object met: %d, %v", got, err)
	}
	if got, err := p.AddFunc().With(sandboxfn.Options{Timeout: time.Minute}).Call(ctx, 0); got != 4 || err != nil {
		t.Errorf("with a timeout: %d, %v", got, err)
	}
	if _, err := p.AddFunc().With(sandboxfn.Options{Env: map[string]string{"ODD": "1"}}).Call(ctx, 1); !errors.Is(err, sandboxfn.ErrOption) {
		t.Errorf("with another environment: %v", err)
	}
	// It is where it was pinned, whatever the context says.
	if got, err := p.Add(t.Context(), 1); got != 11 || err != nil {
		t.Errorf("%d, %v", got, err)
	}
	for range 2 {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	if got := linesOf(t, path); len(got) != 4 || got[3] != "exit" {
		t.Errorf("%q", got)
	}
	var e *sandboxfn.Error
	if _, err := p.Add(ctx, 1); !errors.As(err, &e) || e.Code != "E9018" {
		t.Errorf("after Close: %v", err)
	}
}

// A pinned object has as many calls at once as its worker takes.
func TestPinConcurrency(t *testing.T) {
	for name, mode := range bothModes {
		t.Run(name, func(t *testing.T) {
			ctx := mode(t)
			p, err := sandboxfn.Pin(ctx, NewCounter(CounterParams{Name: "a"}, &sandboxfn.Options{Concurrency: 4}))
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			var pids [4]int
			var wg sync.WaitGroup
			for i := range pids {
				wg.Go(func() {
					pid, err := p.Obey(ctx, "meet")
					if err != nil {
						t.Error(err)
					}
					pids[i] = pid
				})
			}
			wg.Wait()
			if pids[0] != pids[3] {
				t.Errorf("processes %v", pids)
			}
		})
	}
}

// The state of a pinned object is never made anew.
func TestPinLost(t *testing.T) {
	for what, check := range map[string]error{"kill": sandboxfn.ErrWorkerLost, "panic": sandboxfn.ErrPanic} {
		t.Run(what, func(t *testing.T) {
			ctx, path := sandboxtest.Process(t), filepath.Join(t.TempDir(), "notes")
			p, err := sandboxfn.Pin(ctx, NewCounter(CounterParams{Name: "a", Notes: path}, nil))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := p.Obey(ctx, what); !errors.Is(err, check) {
				t.Errorf("got %v", err)
			}
			for range 2 {
				_, err := p.Add(ctx, 1)
				lost, ok := errors.AsType[*sandboxfn.WorkerLostError](err)
				if !ok || lost.Started || !strings.Contains(err.Error(), "pinned") {
					t.Errorf("after that: %v", err)
				}
			}
			if err := p.Close(); err != nil {
				t.Error(err)
			}
			if got := linesOf(t, path); !slices.Equal(got, []string{"enter"}) {
				t.Errorf("%q", got)
			}
		})
	}
}
