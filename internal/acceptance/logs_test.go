package acceptance

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/agent-sandbox/sandbox-go/internal/sbtest"
	"github.com/agent-sandbox/sandbox-go/sandboxfn"
)

const self = "github.com/agent-sandbox/sandbox-go/internal/acceptance_test"

var tell = sandboxfn.Declare[string, []float64](sandboxfn.Decl{Package: self, Name: "tell", Params: []sandboxfn.Param{{Name: "what"}}})

func init() {
	sandboxfn.Bind(tell, func(ctx context.Context, what string) ([]float64, error) {
		slog.With("n", 1).WarnContext(ctx, what, slog.Group("g", "b", true))
		if what == "bad" {
			panic(what)
		}
		return []float64{0.1}, nil
	})
	sandboxfn.Takeover(self)
}

// spans is a tracer that notes what begins, and as part of what.
type spans struct {
	mu  sync.Mutex
	got []string
}

type spanKey struct{}

func (s *spans) Start(ctx context.Context, name string, _ ...slog.Attr) (context.Context, sandboxfn.Span) {
	parent, _ := ctx.Value(spanKey{}).(string)
	return context.WithValue(ctx, spanKey{}, name), sandboxfn.Span{End: func(error, ...slog.Attr) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.got = append(s.got, parent+"/"+name)
	}}
}

func (s *spans) Join(ctx context.Context, _ map[string]string) context.Context { return ctx }

// TestObserved looks at everything there is to see of a call in a sandbox.
func TestObserved(t *testing.T) {
	sbtest.NeedSandbox(t)
	var logs safeBuffer
	traced := &spans{}
	c, err := sandboxfn.NewClient(&sandboxfn.ClientOptions{
		Logger: slog.New(slog.NewJSONHandler(&logs, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Tracer: traced,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx := sandboxfn.WithClient(t.Context(), c)
	got, err := tell.With(sandboxfn.Options{Codec: sandboxfn.CodecJSON}).Call(ctx, "hello")
	if err != nil || !slices.Equal(got, []float64{0.1}) {
		t.Fatalf("%v, %v", got, err)
	}
	find := func(msg string) map[string]any {
		t.Helper()
		var found map[string]any
		for line := range strings.Lines(logs.String()) {
			m := map[string]any{}
			if err := json.Unmarshal([]byte(line), &m); err != nil {
				t.Fatal(err)
			}
			if m["msg"] == msg {
				found = m
			}
		}
		if found == nil {
			t.Fatalf("no record %q:\n%s", msg, logs.String())
		}
		return found
	}
	hello, ended := find("hello"), find("call ended")
	if hello["level"] != "WARN" || hello["n"] != 1.0 || hello["g"].(map[string]any)["b"] != true || hello["function"] != self+".tell" {
		t.Errorf("record %v", hello)
	}
	for _, key := range []string{"call_id", "sandbox_id"} {
		if hello[key] == nil || hello[key] == "" || hello[key] != ended[key] {
			t.Errorf("%s: %v in the function's record, %v in ours", key, hello[key], ended[key])
		}
	}
	traced.mu.Lock()
	spans := slices.Sorted(slices.Values(traced.got))
	traced.mu.Unlock()
	want := []string{"/sandbox.call", "sandbox.call/sandbox.run", "sandbox.call/sandbox.start", "sandbox.start/sandbox.upload"}
	if !slices.Equal(spans, want) {
		t.Errorf("spans %v, want %v", spans, want)
	}
	_, err = tell.Call(ctx, "bad")
	i, ok := sandboxfn.InfoFrom(err)
	if !ok || !errors.Is(err, sandboxfn.ErrPanic) || i.SandboxID != hello["sandbox_id"] || i.Attempt != 1 || i.CallID == hello["call_id"] || i.Worker == "" {
		t.Errorf("%v: %+v", err, i)
	}
}
