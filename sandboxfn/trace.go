package sandboxfn

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/worker"
)

// A Tracer follows calls: package sandboxotel makes one of OpenTelemetry. It is
// set for the program with [SetTracer], for a client in [ClientOptions], or for
// a function in [Options]; the last of these that is set counts. Without one,
// calls cost nothing more. Its methods are called from many goroutines at once.
//
// The spans are
//
//	sandbox.call    a call, from its arguments to its result
//	sandbox.start   making a sandbox and a worker in it, for the call that waits
//	sandbox.upload  bringing the executable there, within sandbox.start
//	sandbox.run     one attempt: from the sending of the arguments to the answer
//
// with the attributes sandbox.function, sandbox.call_id, sandbox.attempt,
// sandbox.id and sandbox.worker, as far as they are known.
type Tracer interface {
	// Start begins a span below that of ctx, and returns a context that holds it.
	Start(ctx context.Context, name string, attrs ...slog.Attr) (context.Context, Span)

	// Join returns a context below ctx in which what begins belongs to the span
	// that wrote headers: traceparent, tracestate and baggage. It is called in a
	// worker, for the context that a function is given.
	Join(ctx context.Context, headers map[string]string) context.Context
}

// A Span is what [Tracer.Start] has begun.
type Span struct {
	// End ends the span, once; err is what came of it, nil after a success.
	End func(err error, attrs ...slog.Attr)

	// Headers returns what makes the span the parent of what another process
	// begins; nil, or an empty map: it is not followed there. Names are written in
	// lower case.
	Headers func() map[string]string
}

// Names of spans, and of their attributes.
const (
	spanCall   = "sandbox.call"
	spanStart  = "sandbox.start"
	spanUpload = "sandbox.upload"
	spanRun    = "sandbox.run"

	attrFunction = "sandbox.function"
	attrCallID   = "sandbox.call_id"
	attrAttempt  = "sandbox.attempt"
	attrSandbox  = "sandbox.id"
	attrWorker   = "sandbox.worker"
)

var programTracer atomic.Pointer[Tracer]

// SetTracer makes t the tracer of clients and functions that set none, and of
// this program's workers; nil takes it away. A worker is this program too, but
// does not get as far as main: a tracer is known there when an init function of
// the package that has the sandboxed function, or of one that it imports, sets
// it, or when the program calls [Main] and sets it before that.
func SetTracer(t Tracer) {
	if t == nil {
		programTracer.Store(nil)
		worker.SetJoin(nil)
		return
	}
	programTracer.Store(&t)
	worker.SetJoin(t.Join)
}

// tracerOf is the tracer of calls of s, or nil.
func (s *setup) tracerOf() Tracer {
	if s.tracer != nil {
		return s.tracer
	}
	if t := programTracer.Load(); t != nil {
		return *t
	}
	return nil
}

// span begins a span. Its end does nothing when there is no tracer.
func (s *setup) span(ctx context.Context, name string, attrs ...slog.Attr) (context.Context, Span) {
	t := s.tracerOf()
	if t == nil {
		return ctx, Span{}
	}
	return t.Start(ctx, name, attrs...)
}

func (s Span) end(err error, attrs ...slog.Attr) {
	if s.End != nil {
		s.End(err, attrs...)
	}
}

// maxHeaders bounds the headers of a trace, in bytes.
const maxHeaders = 16 << 10

// appendMeta appends the headers of s to what goes with a call.
func (s Span) appendMeta(meta []string) []string {
	if s.Headers == nil {
		return meta
	}
	headers := s.Headers()
	room := maxHeaders
	for _, k := range slices.Sorted(maps.Keys(headers)) {
		v := headers[k]
		if room -= len(k) + len(v); room < 0 || strings.HasPrefix(k, worker.MetaOwn) {
			continue
		}
		meta = append(meta, strings.ToLower(k), v)
	}
	return meta
}
