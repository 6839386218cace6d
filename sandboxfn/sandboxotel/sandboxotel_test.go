package sandboxotel_test

import (
	"context"
	"errors"
	"iter"
	"maps"
	"slices"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/sandboxotel"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/sandboxtest"
)

const self = "github.com/agent-sandbox/sandbox-go/sandboxfn/sandboxotel_test"

// seen is what a function finds in its context.
type seen struct {
	Trace, Span, State, User string
	Remote                   bool
}

func look(ctx context.Context) seen {
	sc := trace.SpanContextFromContext(ctx)
	return seen{sc.TraceID().String(), sc.SpanID().String(), sc.TraceState().String(), baggage.FromContext(ctx).Member("user").Value(), sc.IsRemote()}
}

var (
	find = sandboxfn.Declare[string, seen](sandboxfn.Decl{Package: self, Name: "find", Params: []sandboxfn.Param{{Name: "how"}}})
	flow = sandboxfn.DeclareStream[int, seen](sandboxfn.Decl{Package: self, Name: "flow", Params: []sandboxfn.Param{{Name: "n"}}})
)

func init() {
	sandboxfn.SetTracer(sandboxotel.New(nil))
	sandboxfn.Bind(find, func(ctx context.Context, how string) (seen, error) {
		switch how {
		case "fail":
			return seen{}, errors.New("failed")
		case "nested":
			return find.Call(ctx, "")
		}
		return look(ctx), nil
	})
	sandboxfn.BindStream(flow, func(ctx context.Context, n int) (iter.Seq2[seen, error], error) {
		return sandboxfn.Pairs(slices.Values(slices.Repeat([]seen{look(ctx)}, n))), nil
	})
	sandboxfn.Takeover(self)
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// traced returns a context of a trace of its own, and what is recorded.
func traced(t *testing.T, ctx context.Context) (context.Context, trace.Span, *tracetest.SpanRecorder) {
	rec := tracetest.NewSpanRecorder()
	p := sdk.NewTracerProvider(sdk.WithSpanProcessor(rec))
	t.Cleanup(func() { p.Shutdown(context.Background()) })
	sandboxfn.SetTracer(sandboxotel.New(&sandboxotel.Options{Provider: p}))
	t.Cleanup(func() { sandboxfn.SetTracer(sandboxotel.New(nil)) })
	m, err := baggage.NewMember("user", "gopher")
	if err != nil {
		t.Fatal(err)
	}
	b, err := baggage.New(m)
	if err != nil {
		t.Fatal(err)
	}
	state, err := trace.ParseTraceState("vendor=x")
	if err != nil {
		t.Fatal(err)
	}
	ctx = baggage.ContextWithBaggage(ctx, b)
	ctx = trace.ContextWithSpanContext(ctx, trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled, TraceState: state,
	}))
	ctx, span := p.Tracer("test").Start(ctx, "outer")
	return ctx, span, rec
}

func TestTraces(t *testing.T) {
	for name, mode := range map[string]func(testing.TB) context.Context{"in process": sandboxtest.InProcess, "process": sandboxtest.Process} {
		t.Run(name, func(t *testing.T) {
			ctx, outer, rec := traced(t, mode(t))
			got, err := find.Call(ctx, "")
			if err != nil {
				t.Fatal(err)
			}
			spans := map[string]sdk.ReadOnlySpan{}
			for _, s := range rec.Ended() {
				spans[s.Name()] = s
			}
			if names := slices.Sorted(maps.Keys(spans)); !slices.Equal(names, []string{"sandbox.call", "sandbox.run", "sandbox.start"}) {
				t.Fatalf("spans %v", names)
			}
			call := spans["sandbox.call"]
			if call.Parent().SpanID() != outer.SpanContext().SpanID() {
				t.Error("sandbox.call is not below the caller's span")
			}
			for _, n := range []string{"sandbox.start", "sandbox.run"} {
				if spans[n].Parent().SpanID() != call.SpanContext().SpanID() {
					t.Errorf("%s is not below sandbox.call", n)
				}
			}
			want := seen{outer.SpanContext().TraceID().String(), call.SpanContext().SpanID().String(), "vendor=x", "gopher", name == "process"}
			if got != want {
				t.Errorf("the function sees %+v, want %+v", got, want)
			}
			if !slices.Contains(call.Attributes(), attribute.String("sandbox.function", self+".find")) {
				t.Errorf("attributes %v", call.Attributes())
			}
			if a := spans["sandbox.run"].Attributes(); !slices.Contains(a, attribute.Int("sandbox.attempt", 1)) {
				t.Errorf("attributes %v", a)
			}
		})
	}
}

func TestTracesOfFailures(t *testing.T) {
	ctx, _, rec := traced(t, sandboxtest.Process(t))
	if _, err := find.Call(ctx, "fail"); err == nil {
		t.Fatal("no error")
	}
	for _, s := range rec.Ended() {
		if want := map[string]codes.Code{"sandbox.call": codes.Error, "sandbox.start": codes.Unset, "sandbox.run": codes.Error}[s.Name()]; s.Status().Code != want {
			t.Errorf("%s: %v", s.Name(), s.Status())
		}
	}
}

// A call that a function makes belongs to the trace, as does a stream.
func TestTracesOfNestedCallsAndStreams(t *testing.T) {
	ctx, outer, rec := traced(t, sandboxtest.Process(t))
	got, err := find.Call(ctx, "nested")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for s, err := range flow.Stream(ctx, 3) {
		if n++; err != nil || s.Trace != got.Trace || s.User != "gopher" {
			t.Errorf("item %+v, %v", s, err)
		}
	}
	if want := outer.SpanContext().TraceID().String(); got.Trace != want || got.User != "gopher" || n != 3 {
		t.Errorf("nested: %+v, want trace %s; %d items", got, want, n)
	}
	calls := 0
	for _, s := range rec.Ended() {
		if s.Name() == "sandbox.call" {
			calls++
		}
	}
	if calls != 3 {
		t.Errorf("%d calls in the trace", calls)
	}
}

// Without a trace nothing is sent, and nothing is found.
func TestNoTrace(t *testing.T) {
	got, err := find.Call(sandboxtest.Process(t), "")
	if err != nil || got.Remote || got.User != "" {
		t.Errorf("%+v, %v", got, err)
	}
}
