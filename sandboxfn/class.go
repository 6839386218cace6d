package sandboxfn

import (
	"context"
	"iter"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// ClassDecl describes a class. Generated code fills it from the source.
type ClassDecl struct {
	Package  string          // import path of the class's package
	Name     string          // of the user's type
	ID       string          // on the wire; empty: Package + "." + Name
	Schema   string          // 64 hex digits over the parameters
	Options  Options         // what the directives set
	Validate func(any) error // checks parameters of type P; nil: nothing to check
}

// Class is a type of the user's whose instances live in sandboxes: P holds the
// parameters of an instance. Copies are equal. [DeclareClass] makes it.
type Class[P any] struct{ c *class }

// class is what the program knows about a class. Entering and leaving an
// instance are functions of it like others: their ids are those of the class
// and "#enter" or "#exit".
type class struct {
	decl        ClassDecl
	id          string
	name        string // as errors show it
	enter, exit *function
	exits       bool // it has something to do at the end
}

// DeclareClass makes a class. Generated code calls it to initialise a package
// variable. It does no work and refers to nothing but d.
func DeclareClass[P any](d ClassDecl) Class[P] {
	c := &class{decl: d, id: d.ID}
	if c.id == "" {
		c.id = d.Package + "." + d.Name
	}
	hook := Decl{Package: d.Package, Name: d.Name, Schema: d.Schema, Options: d.Options}
	hook.ID = c.id + "#exit"
	c.exit = newFunction[None, None](hook)
	hook.ID, hook.Validate = c.id+"#enter", d.Validate
	c.enter = newFunction[P, None](hook)
	c.name = c.enter.name
	return Class[P]{c}
}

// BindClass tells the program which type c stands for. construct makes an
// instance from its parameters; enter, which may be nil, runs once in each
// instance before its first method, and exit, which may be nil, when the worker
// that holds it is given up in order. Generated code calls it from init, before
// [Takeover].
func BindClass[P, M any](c Class[P], construct func(P) *M, enter, exit func(context.Context, *M) error) {
	cl := c.c
	bindTo(cl.enter, func(ctx context.Context, p P) (None, error) {
		store := storeOf(ctx)
		if _, ok := store.Load(cl); ok {
			return None{}, errdefs.New("E9008", cl.name, "this worker holds an instance already")
		}
		m := construct(p)
		if err := fillTags(ctx, cl.name, m); err != nil {
			return None{}, err
		}
		if enter != nil {
			if err := enter(ctx, m); err != nil {
				return None{}, err
			}
		}
		store.Store(cl, m)
		return None{}, nil
	})
	bindTo(cl.exit, func(ctx context.Context, _ None) (None, error) {
		m, ok := storeOf(ctx).LoadAndDelete(cl)
		if !ok || exit == nil {
			return None{}, nil
		}
		return None{}, exit(ctx, m.(*M))
	})
	cl.exits = exit != nil
	functions.add(cl.enter)
	functions.add(cl.exit)
}

// Method is the declaration of a method of a class: A holds its arguments, R
// its results. [DeclareMethod] makes it; [Method.Of] gives the handle for an
// object.
type Method[A, R any] struct {
	c  *class
	fn *function
}

// DeclareMethod declares a method of c. Generated code calls it to initialise a
// package variable; d.Name is "model.predict".
func DeclareMethod[A, R, P any](c Class[P], d Decl) Method[A, R] {
	return Method[A, R]{c.c, newFunction[A, R](d)}
}

// BindMethod tells the program which method m stands for. Generated code calls
// it from init, before [Takeover].
func BindMethod[A, R, M any](m Method[A, R], fn func(context.Context, *M, A) (R, error)) {
	bindAny(m.fn, onInstance(m.c, m.fn, fn))
	functions.add(m.fn)
}

// onInstance makes a method a function that finds the instance by itself.
func onInstance[M, A, R any](c *class, fn *function, method func(context.Context, *M, A) (R, error)) func(context.Context, A) (R, error) {
	return func(ctx context.Context, args A) (R, error) {
		m, err := instanceOf[M](ctx, c, fn)
		if err != nil {
			var zero R
			return zero, err
		}
		return method(ctx, m, args)
	}
}

// instanceOf returns the instance of the worker that runs the call of ctx.
func instanceOf[M any](ctx context.Context, c *class, fn *function) (*M, error) {
	if store := storeOf(ctx); store != nil {
		if m, ok := store.Load(c); ok {
			return m.(*M), nil
		}
	}
	return nil, errdefs.New("E9008", fn.name, "the worker holds no instance of "+c.id)
}

// Of returns the handle that calls the method on o: on any instance of o's
// pool, or on the one instance of a pinned o.
func (m Method[A, R]) Of(o Object) Func[A, R] {
	return Func[A, R]{o.handle(m.c, m.fn)}
}

// DeclareBatchMethod declares a method that runs several calls as one, as
// [DeclareBatch]. Calls of one object run together.
func DeclareBatchMethod[In, Out, P any](c Class[P], d Decl) Method[In, Out] {
	return Method[In, Out]{c.c, DeclareBatch[In, Out](d).h.fn}
}

// BindBatchMethod tells the program which method m, of [DeclareBatchMethod],
// stands for, as [BindBatch].
func BindBatchMethod[In, Out, M any](m Method[In, Out], fn func(context.Context, *M, []In) ([]Out, error)) {
	BindBatch(Func[In, Out]{&handle{fn: m.fn}}, onInstance(m.c, m.fn, fn))
}

// BindBatchMethodResults is [BindBatchMethod] for a method that returns an error
// for each item.
func BindBatchMethodResults[In, Out, M any](m Method[In, Out], fn func(context.Context, *M, []In) ([]Result[Out], error)) {
	BindBatchResults(Func[In, Out]{&handle{fn: m.fn}}, onInstance(m.c, m.fn, fn))
}

// StreamMethod is the declaration of a method whose result is a stream of T.
type StreamMethod[A, T any] struct {
	c  *class
	fn *function
}

// DeclareStreamMethod declares a method of c that returns a sequence. Generated
// code calls it to initialise a package variable.
func DeclareStreamMethod[A, T, P any](c Class[P], d Decl) StreamMethod[A, T] {
	return StreamMethod[A, T]{c.c, newFunction[A, None](d)}
}

// BindStreamMethod tells the program which method m stands for, as [BindStream].
func BindStreamMethod[A, T, M any](m StreamMethod[A, T], fn func(context.Context, *M, A) (iter.Seq2[T, error], error)) {
	BindStream(StreamFunc[A, T]{&handle{fn: m.fn}}, onInstance(m.c, m.fn, fn))
}

// Of returns the handle that calls the method on o, as [Method.Of].
func (m StreamMethod[A, T]) Of(o Object) StreamFunc[A, T] {
	return StreamFunc[A, T]{o.handle(m.c, m.fn)}
}
