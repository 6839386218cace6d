package sandboxfn

import (
	"context"
	"io"
	"path"
	"strings"
	"sync/atomic"
	"unicode"
	"unicode/utf8"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/worker"
)

// Generated1 is the version of the code that sandboxgen writes. Generated files
// name it, so that a tool and a library that differ do not compile.
const Generated1 = 1

// None is the argument type of functions without parameters, and the result
// type of functions without results.
type None struct{}

// Param describes one parameter of a function.
type Param struct {
	Name string // as the user wrote it; shown in errors
	Type string // as the user spelled it

	// In and Out mark a string or []string as paths on the caller: what they name
	// is copied into the call's folder before the function runs, or back from it
	// afterwards.
	In, Out bool
}

// Decl describes a function. Generated code fills it from the source.
type Decl struct {
	Package  string          // import path of the function's package
	Name     string          // of the user's function
	ID       string          // on the wire; empty: Package + "." + Name
	Schema   string          // 64 hex digits over the types that travel
	Params   []Param         // in order; two or more make A a struct with a field for each
	Options  Options         // what the directives set
	Validate func(any) error // checks an argument of type A; nil: nothing to check
}

// Func is the handle of a sandboxed function: A holds its arguments, R its
// results. It is a small value, made once by [Declare]; copies are equal. Its
// methods are safe for concurrent use. Calls of the zero value fail with E9008.
type Func[A, R any] struct{ h *handle }

// handle is a function with the options it is called with.
type handle struct {
	fn       *function
	opts     Options
	instance *instance             // of a class; nil for functions
	changed  bool                  // opts are not those of the declaration
	last     atomic.Pointer[setup] // of the last call
}

// Declare makes the handle of a function. Generated code calls it to initialise
// a package variable. It does no work and refers to nothing but d, so a
// function may use its own handle.
func Declare[A, R any](d Decl) Func[A, R] {
	return Func[A, R]{&handle{fn: newFunction[A, R](d), opts: d.Options}}
}

// Bind tells the program which function f stands for. Generated code calls it
// from init, before [Takeover]. Binding a second function to an id makes every
// call of either fail with E9008.
func Bind[A, R any](f Func[A, R], fn func(context.Context, A) (R, error)) {
	bindAny(f.h.fn, fn)
	functions.add(f.h.fn)
}

func bindAny[A, R any](f *function, fn func(context.Context, A) (R, error)) {
	if reader, ok := any(fn).(func(context.Context, A) (io.ReadCloser, error)); ok {
		bindReader(f, reader)
		f.impl = fn
		return
	}
	bindTo(f, fn)
}

// Call runs the function in a sandbox and waits for its result. ctx bounds the
// call with everything it waits for; its remaining time is also the deadline of
// the function's own context. When ctx ends, Call returns soon and the function
// has [Options.Grace] to return before its worker is killed.
//
// An error of the function comes back as it was: the same text, and errors.Is
// and errors.As answer as after a plain call. Other errors are ours and have a
// code: [*PanicError], [*WorkerLostError], E9001 for arguments that break a
// rule, E9013 and E9014 for a deadline and a cancellation, which also wrap
// [context.DeadlineExceeded] and [context.Canceled] and the context's cause.
//
// A call runs at most once, unless the function is marked idempotent.
func (f Func[A, R]) Call(ctx context.Context, args A) (R, error) {
	if f.h == nil {
		var zero R
		return zero, errNoHandle()
	}
	if worker.FakeOf(ctx, f.h.fn.id) != nil {
		return call[A, R](ctx, f.h, &args)
	}
	if b, ok := f.h.fn.batch.(*batcher[A, R]); ok {
		return b.call(ctx, f.h, &args)
	}
	if f.h.fn.bytes {
		r, err := openReader(ctx, f.h, &args)
		result, _ := any(&r).(*R)
		return *result, err
	}
	return call[A, R](ctx, f.h, &args)
}

// Local runs the function here, in this process: no sandbox, no copies, no
// validation, no deadline but ctx's.
func (f Func[A, R]) Local(ctx context.Context, args A) (R, error) {
	if f.h == nil {
		var zero R
		return zero, errNoHandle()
	}
	fn, ok := f.h.fn.impl.(func(context.Context, A) (R, error))
	if !ok {
		var zero R
		return zero, f.h.fn.unbound()
	}
	ctx, err := f.h.instance.local(ctx, f.h.fn)
	if err != nil {
		var zero R
		return zero, err
	}
	return fn(ctx, args)
}

// With returns a handle whose calls use the options that are set in o in place
// of those of f. Env is merged, the rest replaced. f does not change.
func (f Func[A, R]) With(o Options) Func[A, R] {
	return Func[A, R]{f.h.with(o)}
}

func (h *handle) with(o Options) *handle {
	if h == nil {
		return nil
	}
	return &handle{fn: h.fn, opts: h.opts.override(o), instance: h.instance, changed: true}
}

// Name is the id of the function: import path and name, unless its directive
// sets another. The zero value has none.
func (f Func[A, R]) Name() string {
	if f.h == nil {
		return ""
	}
	return f.h.fn.id
}

// errNoHandle is the error of calls of a zero handle.
func errNoHandle() error { return errdefs.New("E9008", "call", "the handle was not made by Declare") }

// name is how errors name the function of h, which may be nil.
func (h *handle) name() string {
	if h == nil {
		return "call"
	}
	return h.fn.name
}

// displayName is how errors name the function, "media.Describe", or the method,
// "media.Model.Predict".
func (d Decl) displayName() string {
	name := path.Base(d.Package)
	for part := range strings.SplitSeq(d.Name, ".") {
		r, n := utf8.DecodeRuneInString(part)
		name += "." + string(unicode.ToUpper(r)) + part[n:]
	}
	return name
}
