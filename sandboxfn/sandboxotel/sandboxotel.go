// Package sandboxotel makes spans of OpenTelemetry of sandboxed calls:
//
//	func init() { sandboxfn.SetTracer(sandboxotel.New(nil)) }
//
// in a package that has sandboxed functions, or in one that it imports, follows
// calls into their workers: the context of a function then belongs to the trace
// of its caller, with its baggage. Spans that a function makes itself are
// exported from inside the sandbox, if its network and an exporter set up there
// allow it; those of package sandboxfn are made and exported by the caller.
package sandboxotel

import (
	"context"
	"log/slog"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
)

// scope is the name of the instrumentation.
const scope = "github.com/agent-sandbox/sandbox-go/sandboxfn"

// Options are the settings of [New].
type Options struct {
	// Provider makes the spans. Nil: the global one, also when that is set later.
	Provider trace.TracerProvider

	// Propagator writes and reads the headers that go with a call. Nil: the
	// formats of W3C, traceparent, tracestate and baggage.
	Propagator propagation.TextMapPropagator
}

// New makes a tracer. A nil o means all defaults. It is safe for concurrent use.
func New(o *Options) sandboxfn.Tracer {
	var c Options
	if o != nil {
		c = *o
	}
	if c.Provider == nil {
		c.Provider = otel.GetTracerProvider()
	}
	if c.Propagator == nil {
		c.Propagator = propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})
	}
	return &tracer{c.Provider.Tracer(scope), c.Propagator}
}

type tracer struct {
	t trace.Tracer
	p propagation.TextMapPropagator
}

var _ sandboxfn.Tracer = (*tracer)(nil)

func (t *tracer) Start(ctx context.Context, name string, attrs ...slog.Attr) (context.Context, sandboxfn.Span) {
	ctx, span := t.t.Start(ctx, name, trace.WithAttributes(attributes(attrs)...))
	return ctx, sandboxfn.Span{
		End: func(err error, attrs ...slog.Attr) {
			span.SetAttributes(attributes(attrs)...)
			if err != nil {
				span.RecordError(err)
				span.SetStatus(codes.Error, err.Error())
			}
			span.End()
		},
		Headers: func() map[string]string {
			h := propagation.MapCarrier{}
			t.p.Inject(ctx, h)
			return h
		},
	}
}

func (t *tracer) Join(ctx context.Context, headers map[string]string) context.Context {
	return t.p.Extract(ctx, propagation.MapCarrier(headers))
}

func attributes(attrs []slog.Attr) []attribute.KeyValue {
	kvs := make([]attribute.KeyValue, len(attrs))
	for i, a := range attrs {
		switch v := a.Value.Resolve(); v.Kind() {
		case slog.KindBool:
			kvs[i] = attribute.Bool(a.Key, v.Bool())
		case slog.KindInt64:
			kvs[i] = attribute.Int64(a.Key, v.Int64())
		case slog.KindFloat64:
			kvs[i] = attribute.Float64(a.Key, v.Float64())
		default:
			kvs[i] = attribute.String(a.Key, v.String())
		}
	}
	return kvs
}
