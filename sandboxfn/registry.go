package sandboxfn

import (
	"fmt"
	"reflect"
	"sync"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// function is what the program knows about one sandboxed function, whatever
// options it is called with.
type function struct {
	decl Decl
	id   string
	name string // as errors show it
	argT reflect.Type
	resT reflect.Type

	impl  any    // func(context.Context, A) (R, error); nil until Bind
	unit  string // the takeover that serves it; empty until Takeover
	clash string // another function with the same id
}

func newFunction[A, R any](d Decl) *function {
	f := &function{decl: d, id: d.ID, name: d.displayName(), argT: reflect.TypeFor[A](), resT: reflect.TypeFor[R]()}
	if f.id == "" {
		f.id = d.Package + "." + d.Name
	}
	return f
}

func (f *function) bind(impl any) { f.impl = impl }

func (f *function) unbound() error {
	return errdefs.New("E9008", f.name, fmt.Sprintf("%s is declared but not bound to a function", f.id))
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

// takeover says that unit serves what was bound since the last takeover, and
// returns it. The init functions of a package run one after the other, so these
// are the functions of the unit.
func (r *registry) takeover(unit string) []*function {
	r.mu.Lock()
	defer r.mu.Unlock()
	fs := r.pending
	r.pending = nil
	for _, f := range fs {
		f.unit = unit
	}
	return fs
}
