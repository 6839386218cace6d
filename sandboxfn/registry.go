package sandboxfn

import (
	"context"
	"fmt"
	"reflect"
	"sync"

	"github.com/agent-sandbox/sandbox-go/internal/envelope"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/worker"
)

// function is what the program knows about one sandboxed function, whatever
// options it is called with.
type function struct {
	decl Decl
	id   string
	name string // as errors show it
	args *envelope.Codec
	res  *envelope.Codec

	newArgs   func() any // pointer to zero arguments
	newResult func() any // pointer to a zero result
	clear     func(any)  // makes what a pointer to a result points to zero

	impl   any  // func(context.Context, A) (R, error); nil until Bind
	bytes  bool // the result is an io.ReadCloser
	stream bool // the result is a sequence
	batch  any  // *batcher[A, R], which gathers calls; nil: each runs alone
	run    func(ctx context.Context, in *envelope.OpenedRequest, out *envelope.Response)
	unit   string // the takeover that serves it; empty until Takeover
	clash  string // another function with the same id
}

func newFunction[A, R any](d Decl) *function {
	f := &function{decl: d, id: d.ID, name: d.displayName()}
	if f.id == "" {
		f.id = d.Package + "." + d.Name
	}
	params := make([]envelope.Param, len(d.Params))
	for i, p := range d.Params {
		params[i] = envelope.Param{Name: p.Name, As: pathOfParam(p, paramType(reflect.TypeFor[A](), len(d.Params), i))}
	}
	f.args = envelope.Args(reflect.TypeFor[A](), f.name, params)
	f.res = envelope.Result(reflect.TypeFor[R](), f.name)
	f.newArgs = func() any { return new(A) }
	f.newResult = func() any { return new(R) }
	f.clear = func(p any) {
		var zero R
		*p.(*R) = zero
	}
	return f
}

// paramType is the type of parameter i of n, which are of type t together.
func paramType(t reflect.Type, n, i int) reflect.Type {
	if n < 2 {
		return t
	}
	if t.Kind() != reflect.Struct || i >= t.NumField() {
		return nil // the codec says what is wrong with it
	}
	return t.Field(i).Type
}

// bindTo makes fn the function. run is the worker's half of a call.
func bindTo[A, R any](f *function, fn func(context.Context, A) (R, error)) {
	f.impl = fn
	f.run = func(ctx context.Context, in *envelope.OpenedRequest, out *envelope.Response) {
		var args A
		if err := in.Args(f.args, &args); err != nil {
			out.Failed(err)
			return
		}
		if err := fillTags(ctx, f.name, &args); err != nil {
			out.Failed(err)
			return
		}
		if f.decl.Validate != nil {
			if err := f.decl.Validate(args); err != nil {
				out.Failed(invalid(f.name, err))
				return
			}
		}
		result, err := fn(ctx, args)
		if err == nil {
			if bad := worker.Finish(ctx); bad != nil {
				out.Failed(bad)
				return
			}
		}
		out.Returned(f.res, &result, err)
	}
}

// guest is the function as a worker serves it.
func (f *function) guest() worker.Function {
	return worker.Function{ID: f.id, Schema: f.decl.Schema, Run: f.run}
}

// ready reports what keeps the function from being called.
func (f *function) ready() error {
	switch {
	case f.clash != "":
		return errdefs.New("E9008", f.name, fmt.Sprintf("id %s also names %s; give one of them another with id=", f.id, f.clash))
	case f.impl == nil:
		return f.unbound()
	case f.unit == "":
		return errdefs.New("E9008", f.name, f.id+" is bound, but its package never calls sandboxfn.Takeover")
	}
	if err := f.args.Check(); err != nil {
		return err
	}
	return f.res.Check()
}

func (f *function) unbound() error {
	return errdefs.New("E9008", f.name, f.id+" is declared but not bound to a function")
}

// functions are the functions of this program.
var functions registry

type registry struct {
	mu      sync.Mutex
	byID    map[string]*function // guarded by mu
	pending []*function          // guarded by mu; bound since the last takeover
}

func (r *registry) add(f *function) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byID == nil {
		r.byID = map[string]*function{}
	}
	if other := r.byID[f.id]; other != nil {
		other.clash, f.clash = f.name, other.name
	}
	r.byID[f.id] = f
	r.pending = append(r.pending, f)
}

// find returns the function with an id, or nil.
func (r *registry) find(id string) *function {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.byID[id]
}

// takeover says that unit serves what was bound since the last takeover. The
// init functions of a package run one after the other, so these are the
// functions of the unit.
func (r *registry) takeover(unit string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range r.pending {
		f.unit = unit
	}
	r.pending = nil
}

// ofUnit lists the functions that a worker of unit serves.
func (r *registry) ofUnit(unit string) []*function {
	r.mu.Lock()
	defer r.mu.Unlock()
	var fs []*function
	for _, f := range r.byID {
		if f.unit == unit || unit == everything {
			fs = append(fs, f)
		}
	}
	return fs
}
