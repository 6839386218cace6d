package sandboxfn

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/envelope"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/worker"
)

// maxNested is how many calls may be nested in each other.
const maxNested = 16

type depthKey struct{}

// Names of what goes with a call.
const (
	metaNested  = "sandbox-nested"  // Options.Nested of the function that runs
	metaOptions = "sandbox-options" // of a nested call, where they are not those of its declaration
)

func metaValue(meta []string, name string) string {
	for i := 0; i+1 < len(meta); i += 2 {
		if meta[i] == name {
			return meta[i+1]
		}
	}
	return ""
}

// inside makes a call from inside a sandboxed function, as that says. Not inside
// means that it is made as others are, under the context that is returned.
func (h *handle) inside(ctx context.Context, args, result any) (_ context.Context, inside, ours bool, err error) {
	serving := worker.Serving()
	if !serving && !worker.InCall(ctx) {
		return ctx, false, false, nil
	}
	fn := h.fn
	switch Nested(metaValue(worker.Meta(ctx), metaNested)) {
	case NestedRefuse:
		return ctx, true, true, &errdefs.Error{
			Code: "E9016", Op: fn.name,
			Message:    "it was called from inside a sandboxed function that refuses nested calls (nested=refuse)",
			Suggestion: callHere,
		}
	case NestedLocal:
		ours, err = h.callLocal(ctx, args, result)
		return ctx, true, ours, err
	}
	if serving {
		ours, err = h.callNested(ctx, args, result)
		return ctx, true, ours, err
	}
	// The function runs in this process, and so does its caller.
	if h.instance != nil {
		return ctx, true, true, &errdefs.Error{Code: "E9016", Op: fn.name, Message: methodInside, Suggestion: methodHint}
	}
	if fn.args.Live() {
		return ctx, true, true, &errdefs.Error{Code: "E9016", Op: fn.name, Message: liveInside, Suggestion: callHere}
	}
	ctx, err = deeper(ctx, fn.name)
	return ctx, err != nil, true, err
}

const callHere = "call the function itself, or its handle's Local, which run it in the same worker"

// depthOf is how many calls the one of ctx is nested in.
func depthOf(ctx context.Context) int {
	n, _ := ctx.Value(depthKey{}).(int)
	return n
}

// deeper is the context of a call that is nested in one of ctx.
func deeper(ctx context.Context, name string) (context.Context, error) {
	n := depthOf(ctx) + 1
	if n > maxNested {
		return ctx, errdefs.New("E9016", name, fmt.Sprintf("more than %d calls are nested in each other", maxNested))
	}
	return context.WithValue(ctx, depthKey{}, n), nil
}

const (
	methodInside = "it is a method of an object that was called from inside a sandbox"
	methodHint   = "call the method of the struct itself"
	liveInside   = "it was called from inside a sandbox and has parameters that go on during the call"
)

// callLocal runs the function in this worker, through the codec.
func (h *handle) callLocal(ctx context.Context, args, result any) (ours bool, err error) {
	fn, errs := h.fn, knownErrors()
	if h.instance != nil {
		return true, &errdefs.Error{Code: "E9016", Op: fn.name, Message: methodInside, Suggestion: methodHint}
	}
	if fn.args.Live() {
		return true, &errdefs.Error{
			Code: "E9016", Op: fn.name, Message: "it has parameters that go on during the call (nested=local)", Suggestion: callHere,
		}
	}
	limit := int64(h.opts.withDefaults().MaxPayload)
	p, err := envelope.EncodeRequest(envelope.Request{ID: fn.id, MaxPayload: limit}, fn.args, errs, args, limit)
	if err != nil {
		return true, err
	}
	in, err := envelope.OpenRequest(p.Clone(), errs)
	if err != nil {
		return true, err
	}
	out := envelope.NewResponse(errs, limit)
	fn.run(ctx, in, out)
	d, err := envelope.DecodeResponse(out.Finish(envelope.Counters{}), fn.res, errs, nil, result)
	if err != nil {
		return true, err
	}
	return fn.outcome(d)
}

// callNested has the caller make a call that this worker makes.
func (h *handle) callNested(ctx context.Context, args, result any) (ours bool, err error) {
	fn := h.fn
	refuse := func(why, hint string) (bool, error) {
		return true, &errdefs.Error{Code: "E9016", Op: fn.name, Message: why, Suggestion: hint}
	}
	switch {
	case h.instance != nil:
		return refuse(methodInside, methodHint)
	case fn.args.Live():
		return refuse(liveInside, callHere)
	}
	o := h.opts.withDefaults()
	r := envelope.Request{ID: fn.id, MaxPayload: int64(o.MaxPayload)}
	if h.changed {
		inner, ok := nestedOptionsOf(h.opts, fn.decl.Options)
		if !ok {
			return refuse("it was called from inside a sandbox with options that say where functions run", "change only how the call goes: Timeout, Grace, Idempotent, Retries, Backoff, MaxPayload, Codec")
		}
		text, err := json.Marshal(inner)
		if err != nil {
			return true, errdefs.Wrap("E9002", fn.name, "options", err)
		}
		r.Meta = []string{metaOptions, string(text)}
	}
	p, err := envelope.EncodeRequest(r, fn.args, knownErrors(), args, r.MaxPayload)
	if err != nil {
		return true, err
	}
	answer, err := worker.Nested(ctx, fn.name, p)
	if err != nil {
		return true, err
	}
	d, err := envelope.DecodeResponse(answer, fn.res, knownErrors(), nil, result)
	if err != nil {
		return true, err
	}
	return fn.outcome(d)
}

// nestedOptions are the options that a call from inside a sandbox may choose:
// how it goes, never what it can reach.
type nestedOptions struct {
	Timeout, Grace time.Duration
	Idempotent     bool
	Retries        int
	Backoff        Backoff
	MaxPayload     Bytes // at most the declaration's
	Codec          Codec
}

// nestedOptionsOf takes what is in o; false when something else in it is not as
// declared.
func nestedOptionsOf(o, declared Options) (nestedOptions, bool) {
	n := nestedOptions{o.Timeout, o.Grace, o.Idempotent, o.Retries, o.Backoff, o.MaxPayload, o.Codec}
	return n, reflect.DeepEqual(n.over(declared), o)
}

// over returns declared with what n says.
func (n nestedOptions) over(declared Options) Options {
	limit := declared.withDefaults().MaxPayload
	declared.Timeout, declared.Grace, declared.Idempotent, declared.Retries, declared.Backoff, declared.Codec = n.Timeout, n.Grace, n.Idempotent, n.Retries, n.Backoff, n.Codec
	if n.MaxPayload > 0 && n.MaxPayload < limit {
		declared.MaxPayload = n.MaxPayload
	}
	return declared
}

// nested makes a call that a function has asked for from inside its sandbox.
func (h *hostCall) nested(ctx context.Context, p envelope.Payload) (envelope.Payload, error) {
	in, err := envelope.OpenRequest(p, knownErrors())
	if err != nil {
		return envelope.Payload{}, err
	}
	if h.inner != "" && h.inner != NestedCaller {
		return envelope.Payload{}, errdefs.New("E9016", h.name, "the function makes no calls from inside its sandbox (nested="+string(h.inner)+")")
	}
	fn := functions.find(in.ID)
	if fn == nil {
		return envelope.Payload{}, errdefs.New("E9008", h.name, in.ID+" is not a function of this program")
	}
	if fn.bytes || fn.stream || fn.args.Live() || strings.ContainsAny(fn.decl.Name, ".#") || strings.Contains(fn.id, "#") {
		return envelope.Payload{}, errdefs.New("E9016", fn.name, "it can't be called from inside a sandbox")
	}
	if ctx, err = deeper(ctx, fn.name); err != nil {
		return envelope.Payload{}, err
	}
	handle := &handle{fn: fn, opts: fn.decl.Options}
	if text := metaValue(in.Meta, metaOptions); text != "" {
		var o nestedOptions
		if err := json.Unmarshal([]byte(text), &o); err != nil {
			return envelope.Payload{}, errdefs.Wrap("E9005", fn.name, "options", err)
		}
		handle.opts = o.over(fn.decl.Options)
	}
	args, result := fn.newArgs(), fn.newResult()
	if err := in.Args(fn.args, args); err != nil {
		return envelope.Payload{}, err
	}
	out := envelope.NewResponse(knownErrors(), max(in.MaxPayload, 0))
	switch ours, err := handle.callChecked(ctx, args, result); {
	case ours:
		if p, ok := err.(*PanicError); ok {
			out.Panicked(envelope.Panic{Value: p.Value, Stack: p.Stack})
		} else {
			out.Failed(err)
		}
	default:
		out.Returned(fn.res, result, err)
	}
	answer := out.Finish(envelope.Counters{})
	answer.Body = append([]byte{byte(envelope.Returned)}, answer.Body...)
	return answer, nil
}
