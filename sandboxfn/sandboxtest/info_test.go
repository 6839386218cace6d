package sandboxtest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/sandboxtest"
)

var stumble = declareDecl(sandboxfn.Decl{
	Name: "stumble", Params: []sandboxfn.Param{{Name: "how"}},
	Validate: func(v any) error {
		if v == "invalid" {
			return errors.New("invalid")
		}
		return nil
	},
}, func(ctx context.Context, how string) (float64, error) {
	switch how {
	case "exit":
		os.Exit(1)
	case "panic":
		panic("now")
	case "hang":
		<-ctx.Done()
		time.Sleep(300 * time.Millisecond) // longer than anybody waits for its error
	case "own":
		return 0, io.EOF
	case "nested":
		_, err := callAgain(ctx, "panic")
		return 0, fmt.Errorf("nested: %w", err)
	}
	return 0, nil
})

var callAgain func(context.Context, string) (float64, error)

func init() { callAgain = stumble.Call }

func TestInfoFrom(t *testing.T) {
	ctx := sandboxtest.Process(t)
	dead, stop := context.WithCancel(ctx)
	stop()
	for _, x := range []struct {
		how     string
		ctx     context.Context
		opts    sandboxfn.Options
		is      error
		attempt int
	}{
		{"exit", ctx, sandboxfn.Options{}, sandboxfn.ErrWorkerLost, 1},
		{"exit", ctx, sandboxfn.Options{Idempotent: true, Retries: 1}, sandboxfn.ErrWorkerLost, 2},
		{"panic", ctx, sandboxfn.Options{}, sandboxfn.ErrPanic, 1},
		{"hang", ctx, sandboxfn.Options{Timeout: 50 * time.Millisecond}, sandboxfn.ErrDeadline, 1},
		{"", dead, sandboxfn.Options{}, sandboxfn.ErrCancelled, 0},
		{"invalid", ctx, sandboxfn.Options{}, sandboxfn.ErrValidation, 0},
		{"", ctx, sandboxfn.Options{Workers: sandboxfn.Workers{Min: -1}}, sandboxfn.ErrOption, 0},
	} {
		_, err := stumble.With(x.opts).Call(x.ctx, x.how)
		if !errors.Is(err, x.is) {
			t.Errorf("%q: %v", x.how, err)
		}
		i, ok := sandboxfn.InfoFrom(fmt.Errorf("wrapped: %w", err))
		if !ok || i.Function != self+".stumble" || i.Attempt != x.attempt || (i.Worker != "") != (x.attempt > 0) || (i.CallID != "") != (x.attempt > 0) {
			t.Errorf("%q: %+v, %v", x.how, i, ok)
		}
		var e *sandboxfn.Error
		if !errors.As(err, &e) && !errors.Is(err, sandboxfn.ErrCall) {
			t.Errorf("%q: no code: %v", x.how, err)
		}
	}
	_, err := stumble.Call(ctx, "own")
	if i, ok := sandboxfn.InfoFrom(err); ok || err != io.EOF {
		t.Errorf("an error of the function: %v, %+v", err, i)
	}
	if _, ok := sandboxfn.InfoFrom(nil); ok {
		t.Error("nil has info")
	}
	if _, err = stumble.Call(ctx, "panic"); !strings.Contains(fmt.Sprintf("%+v", err), "info_test.go") {
		t.Errorf("%%+v has no stack: %+v", err)
	}
	// It goes through another function.
	_, err = stumble.Call(ctx, "nested")
	if i, ok := sandboxfn.InfoFrom(err); !ok || i.Function != self+".stumble" || !errors.Is(err, sandboxfn.ErrPanic) {
		t.Errorf("nested: %v, %+v", err, i)
	}
}

var faulty = sandboxfn.DeclareStream[int, int](sandboxfn.Decl{Package: self, Name: "faulty", Schema: "1", Params: []sandboxfn.Param{{Name: "n"}}})

func init() {
	bindings = append(bindings, func() {
		sandboxfn.BindStream(faulty, func(_ context.Context, n int) (iter.Seq2[int, error], error) {
			return func(yield func(int, error) bool) {
				for i := range n {
					if !yield(i, nil) {
						return
					}
				}
				panic("at the end")
			}, nil
		})
	})
}

func TestInfoFromStream(t *testing.T) {
	n, last := 0, error(nil)
	for _, err := range faulty.Stream(sandboxtest.Process(t), 3) {
		n, last = n+1, err
	}
	i, ok := sandboxfn.InfoFrom(last)
	if n != 4 || !errors.Is(last, sandboxfn.ErrPanic) || !ok || i.Function != self+".faulty" || i.Attempt != 1 || i.Worker == "" {
		t.Errorf("%d items, %v, %+v", n, last, i)
	}
}

func TestFakeStream(t *testing.T) {
	ctx := sandboxtest.FakeStream(t.Context(), faulty, func(_ context.Context, n int) (iter.Seq2[int, error], error) {
		if n < 0 {
			return nil, io.EOF
		}
		return sandboxfn.Pairs(slices.Values([]int{n, n})), nil
	})
	var got []int
	for v, err := range faulty.Stream(ctx, 7) {
		if got = append(got, v); err != nil {
			t.Error(err)
		}
	}
	if !slices.Equal(got, []int{7, 7}) {
		t.Errorf("items %v", got)
	}
	for _, err := range faulty.Stream(ctx, -1) {
		if err != io.EOF {
			t.Errorf("got %v", err)
		}
	}
}

// A call is one debug record, under the names of the house.
func TestCallIsLogged(t *testing.T) {
	c := &captured{level: slog.LevelDebug}
	client, err := sandboxfn.NewClient(&sandboxfn.ClientOptions{Logger: slog.New(c), StateDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	// The context has ended, so that no sandbox is made.
	ctx, cancel := context.WithCancel(sandboxfn.WithClient(t.Context(), client))
	f := double.With(sandboxfn.Options{Provider: "none"})
	if _, err := f.Call(ctx, 1); err == nil {
		t.Fatal("no error")
	}
	cancel()
	i := slices.Index(c.got, "call ended")
	if i < 0 {
		t.Fatalf("records %q", c.got)
	}
	a := c.attrs[i]
	if a["level"] != "DEBUG" || a["function"] != self+".double" || a["call_id"] == nil || a["duration"] == nil || a["err"] == nil {
		t.Errorf("record %v", a)
	}
}

// With json, what goes over the connection is another form of the same.
func TestCodecJSON(t *testing.T) {
	for name, mode := range map[string]func(testing.TB) context.Context{"in process": sandboxtest.InProcess, "process": sandboxtest.Process} {
		t.Run(name, func(t *testing.T) {
			ctx := mode(t)
			as := sandboxfn.Options{Codec: sandboxfn.CodecJSON}
			if got, err := double.With(as).Call(ctx, 1<<40); got != 1<<41 || err != nil {
				t.Errorf("double: %d, %v", got, err)
			}
			if _, err := double.With(as).Call(ctx, -1); !errors.Is(err, os.ErrInvalid) || err.Error() != "double -1: invalid argument" {
				t.Errorf("double(-1): %v", err)
			}
			big := bytes.Repeat([]byte{0, 0xff, '"'}, 1<<19)
			if got, err := echoBytes.With(as).Call(ctx, big); !bytes.Equal(got, big) || err != nil {
				t.Errorf("%d bytes became %d, %v", len(big), len(got), err)
			}
			as.MaxPayload = sandboxfn.MiB
			if _, err := echoBytes.With(as).Call(ctx, big[:900_000]); !errors.Is(err, sandboxfn.ErrPayloadTooLarge) || !strings.Contains(err.Error(), "as JSON has 1200002 bytes") {
				t.Errorf("too large as JSON: %v", err)
			}
			if _, err := stumble.With(as).Call(ctx, "panic"); !errors.Is(err, sandboxfn.ErrPanic) {
				t.Errorf("panic: %v", err)
			}
		})
	}
}
