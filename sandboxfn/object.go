package sandboxfn

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/envelope"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/worker"
)

// Object is the caller's side of instances of a class. Generated types embed
// it: its methods call those of the class in a sandbox.
//
// Its instances are a pool: each worker of it makes one from a copy of the
// object's parameters, enters it, and serves methods; a call may land on any of
// them. Objects of one class with equal parameters and options share instances.
// [Pin] gives an object with exactly one. An instance is entered under
// [Options.StartupTimeout]: an error of enter fails the calls that wait, with
// E9015 and the step enter, and errors.Is and errors.As find the user's error
// in it. exit runs within [Options.Grace] when a worker is given up in order:
// when it has been idle, and on Close of the object, of the client and at the
// end of a test. A worker that is killed, is lost, or in which a method
// panicked does not run it.
//
// An Object is safe for concurrent use, and its copies are equal.
type Object struct{ o *object }

// object is what an [Object] is made of.
type object struct {
	class     *class
	opts      Options
	params    any // *P, a copy of the user's
	instance  instance
	prepare   func() error                // checks the parameters and names the instance, once
	enterHere func(context.Context) error // makes an instance in this process
	handles   sync.Map                    // *function → *handle
	closed    atomic.Bool

	// Of a pinned object: where its worker is, and under what name.
	home   func(context.Context) context.Context
	pin    string
	pinned *pool   // guarded by mu
	pinKey poolKey // guarded by mu

	mu    sync.Mutex
	pools map[*pool]bool // that calls have used; guarded by mu

	hereMu sync.Mutex
	store  *sync.Map // holds the instance of Local; nil until it is entered; guarded by hereMu
}

// NewObject returns an object of c with a copy of p. It does no work: the first
// call checks the parameters and starts a sandbox. opts, which may be nil, are
// put over those of the directives. Generated code calls it.
func NewObject[P any](c Class[P], p P, opts *Options) Object {
	o := &object{class: c.c}
	if opts != nil {
		o.opts = Options{}.override(*opts)
	}
	cp := new(P)
	*cp = p
	deepCopy(reflect.ValueOf(cp).Elem(), 0)
	o.params = cp
	o.init(
		sync.OnceValue(func() error { return prepareObject(o, cp) }),
		func(ctx context.Context) error { return enterHere(ctx, c.c, *cp) },
	)
	return Object{o}
}

func (o *object) init(prepare func() error, enterHere func(context.Context) error) {
	o.prepare, o.enterHere = prepare, enterHere
	o.instance = instance{object: o, ready: o.enter, leave: o.exit}
}

// prepareObject checks the parameters and names the instances they make.
func prepareObject[P any](o *object, p *P) error {
	enter := o.class.enter
	if err := enter.ready(); err != nil {
		return err
	}
	if err := fillDefaults(o.class.name, p); err != nil {
		return err
	}
	if validate := o.class.decl.Validate; validate != nil {
		if err := validate(*p); err != nil {
			return invalid(o.class.name, err)
		}
	}
	limit := int64(o.class.decl.Options.override(o.opts).withDefaults().MaxPayload)
	payload, err := envelope.EncodeRequest(envelope.Request{ID: enter.id, MaxPayload: limit}, enter.args, knownErrors(), p, limit)
	if err != nil {
		return err
	}
	defer payload.Release()
	h := sha256.New()
	h.Write(payload.Body)
	for _, s := range payload.Segments {
		fmt.Fprintf(h, "\n%d\n", len(s))
		h.Write(s)
	}
	o.instance.key = o.class.id + " " + hex.EncodeToString(h.Sum(nil))
	return nil
}

// handle returns the handle of a method. The options of the directives, the
// method's over the class's, give way to those of the object.
func (o Object) handle(c *class, fn *function) *handle {
	if o.o == nil {
		return &handle{fn: fn, opts: fn.decl.Options, instance: &instance{}} // calls fail
	}
	if h, ok := o.o.handles.Load(fn); ok {
		return h.(*handle)
	}
	h := &handle{fn: fn, opts: c.decl.Options.override(fn.decl.Options).override(o.o.opts), instance: &o.o.instance}
	kept, _ := o.o.handles.LoadOrStore(fn, h)
	return kept.(*handle)
}

// begin says where a call of fn goes, or what keeps it from being made. The
// instance of a function is nil and has nothing to say.
func (i *instance) begin(ctx context.Context, fn *function) (context.Context, error) {
	if i == nil {
		return ctx, nil
	}
	if err := i.usable(fn); err != nil {
		return nil, err
	}
	if err := i.object.prepare(); err != nil {
		return nil, err
	}
	if i.object.home != nil {
		ctx = i.object.home(ctx)
	}
	return ctx, nil
}

func (i *instance) usable(fn *function) error {
	switch {
	case i.object == nil:
		return errdefs.New("E9018", fn.name, "the object was not made by its constructor")
	case i.isClosed():
		return closedObject(fn.name)
	}
	return nil
}

func closedObject(name string) error {
	return errdefs.New("E9018", name, "the object has been closed")
}

func (i *instance) isClosed() bool { return i != nil && i.object != nil && i.object.closed.Load() }

// adjust gives a pinned object one worker that stays.
func (i *instance) adjust(o *Options) {
	if i.isPinned() {
		o.Workers, o.Spare, o.Fresh, o.Idle = Workers{Max: 1}, 0, false, forever
	}
}

// forever is more than any program runs.
const forever = 1 << 62

func (i *instance) isPinned() bool { return i != nil && i.object != nil && i.object.pin != "" }

// Close gives up the idle workers of the object, after their exit, and those
// that run calls once these have returned. Later calls of its methods fail with
// E9018. It reports errors of exit and of the end of workers. Closing twice is
// not an error.
//
// The workers that other objects share with this one go as well: their next
// calls start others. Of a pinned object, Close gives up its worker.
func (o Object) Close() error {
	if o.o == nil || o.o.closed.Swap(true) {
		return nil
	}
	return o.o.close()
}

func (o *object) close() error {
	o.mu.Lock()
	pools := map[*pool]bool{}
	for p := range o.pools {
		pools[p.current()] = true
	}
	o.pools = nil
	o.mu.Unlock()
	var errs []error
	for p := range pools {
		if o.pin != "" {
			p.mu.Lock()
			p.only, p.shut = nil, true
			p.mu.Unlock()
		}
		errs = append(errs, p.empty())
	}
	errs = append(errs, o.leaveHere())
	return errors.Join(errs...)
}

// poolOf returns the pool in which calls of the instance run, and notes it. A
// pinned object stays in the one it began with, also when a secret has changed
// in the meantime.
func (i *instance) poolOf(set *poolSet, key poolKey, name string) (*pool, error) {
	if i == nil || i.object == nil {
		return set.of(key), nil
	}
	o := i.object
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.pin != "" && o.pinned != nil {
		if key.secrets = o.pinKey.secrets; key != o.pinKey {
			return nil, errdefs.New("E2011", name, "the object is pinned to a sandbox that other options describe")
		}
		return o.pinned, nil
	}
	p := set.of(key)
	if o.pools == nil {
		o.pools = map[*pool]bool{}
	}
	o.pools[p] = true
	if o.pin != "" {
		o.pinned, o.pinKey = p, key
	}
	return p, nil
}

// enter makes the instance of a new worker.
func (o *object) enter(ctx context.Context, w *poolWorker) error {
	return o.hook(ctx, w, o.class.enter, o.params, w.setup.opts.StartupTimeout)
}

// exit ends the instance of a worker that is given up.
func (o *object) exit(ctx context.Context, w *poolWorker) error {
	if !o.class.exits {
		return nil
	}
	return o.hook(ctx, w, o.class.exit, &None{}, w.setup.opts.Grace)
}

// hook calls one of the class's hooks in a worker that runs nothing else.
func (o *object) hook(ctx context.Context, w *poolWorker, fn *function, args any, timeout time.Duration) error {
	s := &setup{
		fn: fn, name: fn.name, unit: w.setup.unit, opts: w.setup.opts,
		set: w.setup.set, pool: w.pool, stdout: w.setup.stdout, stderr: w.setup.stderr,
	}
	s.opts.Timeout = timeout
	l := &lent{}
	p, err := s.encode(ctx, l, args)
	if err != nil {
		return err
	}
	defer p.Release()
	p.SetTimeout(remaining(ctx, timeout))
	h, answer, v, err := w.attempt(ctx, s, p, l)
	if v == gaveUp {
		h.close() // the worker is ended
	}
	if err == nil {
		var d envelope.Decoded
		d, err = envelope.DecodeResponse(answer, fn.res, knownErrors(), l, &None{})
		if late := h.deliver(ctx, d.Counters); late != nil {
			err = late
		}
		if err == nil {
			_, err = fn.outcome(d)
		}
	}
	if bad := l.end(err); err == nil {
		err = bad
	}
	return err
}

// empty gives up the workers of the pool: the idle ones now, the others when
// their calls have returned. It waits for the end of the idle ones and reports
// what went wrong.
func (p *pool) empty() error {
	var errs []error
	for _, w := range p.clear() {
		<-w.over
		errs = append(errs, w.endErr)
	}
	return errors.Join(errs...)
}

// local returns a context in which methods find the object's instance in this
// process, which the first call makes: of the parameters as they are, without
// validation. For functions it returns ctx.
func (i *instance) local(ctx context.Context, fn *function) (context.Context, error) {
	if i == nil {
		return ctx, nil
	}
	if err := i.usable(fn); err != nil {
		return nil, err
	}
	o := i.object
	o.hereMu.Lock()
	defer o.hereMu.Unlock()
	if o.store == nil {
		store := &sync.Map{}
		if err := o.enterHere(withHere(ctx, store)); err != nil {
			return nil, err
		}
		o.store = store
	}
	return withHere(ctx, o.store), nil
}

// heldHere is the place of an instance in this process, which counts for calls
// that run where outer is the worker's: a call from one of its methods to
// another worker in this process has a context that comes from it.
type heldHere struct{ store, outer *sync.Map }

type hereKey struct{}

func withHere(ctx context.Context, store *sync.Map) context.Context {
	return context.WithValue(ctx, hereKey{}, heldHere{store, worker.Store(ctx)})
}

// storeOf is where the instance for the call of ctx is.
func storeOf(ctx context.Context) *sync.Map {
	store := worker.Store(ctx)
	if h, ok := ctx.Value(hereKey{}).(heldHere); ok && h.outer == store {
		return h.store
	}
	return store
}

func enterHere[P any](ctx context.Context, c *class, p P) error {
	enter, ok := c.enter.impl.(func(context.Context, P) (None, error))
	if !ok {
		return c.enter.unbound()
	}
	_, err := enter(ctx, p)
	return err
}

// leaveHere ends the instance in this process.
func (o *object) leaveHere() error {
	o.hereMu.Lock()
	defer o.hereMu.Unlock()
	exit, ok := o.class.exit.impl.(func(context.Context, None) (None, error))
	if o.store == nil || !ok {
		return nil
	}
	grace := o.class.decl.Options.override(o.opts).withDefaults().Grace
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	_, err := exit(withHere(ctx, o.store), None{})
	o.store = nil
	return err
}

// pins counts the pinned objects of the program, to tell them apart.
var pins atomic.Uint64

// Pin returns an object like m, with the same class, parameters and options,
// that is bound to exactly one worker of its own: every call sees what the
// calls before have left in the instance. The worker is started, and entered,
// before Pin returns; ctx bounds that, and says where the worker is: its client
// is also that of later calls, whatever their context says.
//
// As many calls as [Options.Concurrency] says run at once, the others wait. The
// worker is kept until Close of the returned object. When it is lost, every
// call says so, with E9006: the state is never made anew.
func Pin[T ~struct{ Object }](ctx context.Context, m *T) (*T, error) {
	if m == nil {
		return nil, errdefs.New("E9018", "pin", "the object is nil")
	}
	o, err := struct{ Object }(*m).pin(ctx)
	if err != nil {
		return nil, err
	}
	t := T(struct{ Object }{Object{o}})
	return &t, nil
}

func (o Object) pin(ctx context.Context) (*object, error) {
	if o.o == nil {
		return nil, (&instance{}).usable(&function{name: "pin"})
	}
	old := o.o
	ctx, err := old.instance.begin(ctx, old.class.enter)
	if err != nil {
		return nil, err
	}
	p := &object{class: old.class, opts: old.opts, params: old.params}
	p.init(old.prepare, old.enterHere)
	p.pin = fmt.Sprintf("pin %d", pins.Add(1))
	p.instance.key = old.instance.key + " " + p.pin
	if p.home, err = home(ctx); err != nil {
		return nil, err
	}
	h := Object{p}.handle(p.class, p.class.enter)
	s, err := h.setup(ctx)
	if err != nil {
		return nil, err
	}
	w, err := s.pool.get(ctx, s)
	if err != nil {
		return nil, err
	}
	w.release(s)
	return p, nil
}

// home puts later calls where those under ctx go.
func home(ctx context.Context) (func(context.Context) context.Context, error) {
	mode, err := modeOf(ctx)
	if err != nil {
		return nil, err
	}
	if mode != nil {
		return func(ctx context.Context) context.Context { return worker.WithMode(ctx, mode) }, nil
	}
	c, err := clientFrom(ctx)
	return func(ctx context.Context) context.Context { return WithClient(worker.WithMode(ctx, nil), c) }, err
}

// isLost is the error of calls of a pinned object whose worker is gone.
func (w *poolWorker) isLost(name string) error {
	e := &WorkerLostError{Func: name, ExitCode: -1, Err: errPinned}
	select {
	case <-w.proc.done():
		x := w.proc.exit()
		e.ExitCode, e.Signal, e.OOM = x.Code, x.Signal, x.OOM
	default:
	}
	return e
}

var errPinned = errors.New("the object was pinned to it, and its state is gone with it")

// deepCopy makes v independent of what it was copied from, as far as data that
// travels goes. It gives up at values that contain themselves, which are refused
// when they are sent.
func deepCopy(v reflect.Value, depth int) bool {
	const most = 1000
	if depth > most {
		return false
	}
	if !v.CanSet() {
		return true
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return true
		}
		c := reflect.New(v.Type().Elem())
		c.Elem().Set(v.Elem())
		v.Set(c.Convert(v.Type()))
		return deepCopy(v.Elem(), depth+1)
	case reflect.Slice:
		if v.IsNil() {
			return true
		}
		c := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
		reflect.Copy(c, v)
		v.Set(c)
		fallthrough
	case reflect.Array:
		if k := v.Type().Elem().Kind(); k <= reflect.Complex128 || k == reflect.String {
			return true
		}
		for i := range v.Len() {
			if !deepCopy(v.Index(i), depth+1) {
				return false
			}
		}
	case reflect.Map:
		if v.IsNil() {
			return true
		}
		c := reflect.MakeMapWithSize(v.Type(), v.Len())
		for i := v.MapRange(); i.Next(); {
			x := reflect.New(v.Type().Elem()).Elem()
			x.Set(i.Value())
			if !deepCopy(x, depth+1) {
				return false
			}
			c.SetMapIndex(i.Key(), x)
		}
		v.Set(c)
	case reflect.Struct:
		for i := range v.NumField() {
			if !deepCopy(v.Field(i), depth+1) {
				return false
			}
		}
	}
	return true
}
