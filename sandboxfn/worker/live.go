package worker

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"reflect"
	"sync"

	"github.com/agent-sandbox/sandbox-go/internal/envelope"
	"github.com/agent-sandbox/sandbox-go/internal/frame"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// Import implements [envelope.Importer].
func (c *running) Import(t reflect.Type, n uint64) (reflect.Value, error) {
	switch envelope.LiveKindOf(t) {
	case envelope.LiveFunc:
		return c.callback(t, n)
	case envelope.LiveSeq, envelope.LiveSeq2:
		return c.sequence(t, n)
	case envelope.LiveReader:
		return reflect.ValueOf(&borrowedReader{c: c, n: n}), nil
	case envelope.LiveWriter:
		return reflect.ValueOf(&borrowedWriter{c: c, n: n}), nil
	}
	return reflect.Value{}, errdefs.New("E9005", "borrow", fmt.Sprintf("%s is not a live type", t))
}

// callback returns a function of type t that runs the caller's.
func (c *running) callback(t reflect.Type, n uint64) (reflect.Value, error) {
	sh := envelope.ShapeOf(t)
	fail := func(err error) []reflect.Value {
		out := make([]reflect.Value, len(sh.OutTypes))
		for i, t := range sh.OutTypes {
			out[i] = reflect.Zero(t)
		}
		if sh.Err {
			out[len(out)-1] = reflect.ValueOf(&err).Elem()
		} else {
			c.stray(err)
		}
		return out
	}
	return reflect.MakeFunc(t, func(args []reflect.Value) []reflect.Value {
		ctx := context.Background() // a callback without a context has the call's, at the caller
		if sh.Context {
			if given, ok := args[0].Interface().(context.Context); ok {
				ctx = given
			}
			args = args[1:]
		}
		p, err := sh.In.Encode(c.prefix(envelope.UpCall, n), args, c.s.errors, c.limit)
		if err != nil {
			return fail(err)
		}
		u, err := c.start(envelope.UpCall, n, false, p)
		p.Release()
		if err != nil {
			return fail(err)
		}
		r, err := u.wait(ctx)
		var pan *panicked
		if errors.As(err, &pan) {
			panic(Panicked(pan.Panic))
		}
		if err != nil {
			return fail(err)
		}
		out, err := sh.Out.Decode(r.Payload, 1, c.s.errors)
		if err != nil {
			return fail(err)
		}
		return out
	}), nil
}

// sequence returns a sequence of type t whose items come from the caller's. Each
// range over it is one over that.
func (c *running) sequence(t reflect.Type, n uint64) (reflect.Value, error) {
	item := envelope.ItemOf(t)
	pairs := envelope.LiveKindOf(t) == envelope.LiveSeq2
	return reflect.MakeFunc(t, func(args []reflect.Value) []reflect.Value {
		yield := args[0]
		each := func(p envelope.Payload) (bool, error) {
			vs, err := item.Decode(p, 0, c.s.errors)
			if err != nil {
				return false, err
			}
			if pairs {
				vs = append(vs, reflect.Zero(yield.Type().In(1)))
			}
			return yield.Call(vs)[0].Bool(), nil
		}
		err := c.rangeOver(n, each)
		switch {
		case err == nil:
		case pairs:
			yield.Call([]reflect.Value{reflect.Zero(yield.Type().In(0)), reflect.ValueOf(&err).Elem()})
		default:
			c.stray(err) // a stream that is cut never looks like one that has ended
		}
		return nil
	}), nil
}

// rangeOver hands the items of a stream at the caller to each until it returns
// false. The error is that of the stream, or of each.
func (c *running) rangeOver(n uint64, each func(envelope.Payload) (bool, error)) error {
	u, err := c.start(envelope.UpRange, n, true, envelope.Payload{Body: c.prefix(envelope.UpRange, n)})
	if err != nil {
		return err
	}
	done := false
	defer func() {
		if !done { // left early, perhaps by a panic
			c.s.dropUpcall(u.id)
			u.cancel(nil)
		}
	}()
	for {
		m, ok, err := u.next()
		if err != nil {
			done = true
			return err
		}
		if !ok {
			break
		}
		more, err := each(envelope.Payload{Body: m.Body, Segments: m.Segments})
		if err != nil || !more {
			return err
		}
	}
	done = true
	return u.streamEnd()
}

// next returns the next item of a stream; false at its end.
func (u *upcall) next() (frame.Message, bool, error) {
	m, credit, ok := u.items.Next(u.c.gone)
	if !ok {
		return m, false, nil
	}
	if len(credit) > 0 {
		if err := u.c.send(&frame.Message{Type: frame.Credit, ID: u.id, Body: credit}); err != nil {
			return m, false, err
		}
	}
	return m, true, nil
}

// streamEnd is how a stream has ended whose items are all consumed.
func (u *upcall) streamEnd() error {
	r, err := u.wait(context.Background())
	var pan *panicked
	if errors.As(err, &pan) {
		panic(Panicked(pan.Panic))
	}
	if err != nil {
		return err
	}
	return u.c.decodeError(r.Body[1:])
}

// borrowedReader reads from a reader of the caller.
type borrowedReader struct {
	c *running
	n uint64

	mu   sync.Mutex
	u    *upcall // guarded by mu; nil before the first read
	rest []byte  // guarded by mu
	err  error   // guarded by mu
}

// Read implements [io.Reader].
func (r *borrowedReader) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(p) == 0 {
		return 0, nil
	}
	for len(r.rest) == 0 {
		if r.err != nil {
			return 0, r.err
		}
		if r.u == nil {
			r.u, r.err = r.c.start(envelope.UpRange, r.n, true, envelope.Payload{Body: r.c.prefix(envelope.UpRange, r.n)})
			continue
		}
		m, ok, err := r.u.next()
		switch {
		case err != nil:
			r.err = err
		case ok && len(m.Segments) == 1:
			r.rest = m.Segments[0]
		case ok:
			r.rest = m.Body
		default:
			r.err = r.end()
		}
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

func (r *borrowedReader) end() error {
	if err := r.u.streamEnd(); err != nil {
		return err
	}
	return io.EOF
}

// borrowedWriter writes to a writer of the caller: each write waits for what
// that makes of it.
type borrowedWriter struct {
	c *running
	n uint64
}

// Write implements [io.Writer].
func (w *borrowedWriter) Write(b []byte) (int, error) {
	total := 0
	for {
		piece := b[:min(len(b), frame.MaxPiece)]
		n, err := w.write(piece)
		total += n
		if b = b[len(piece):]; err != nil || len(b) == 0 {
			return total, err
		}
	}
}

func (w *borrowedWriter) write(b []byte) (int, error) {
	p := envelope.Payload{Body: w.c.prefix(envelope.UpWrite, w.n), Segments: [][]byte{b}}
	u, err := w.c.start(envelope.UpWrite, w.n, false, p)
	if err != nil {
		return 0, err
	}
	r, err := u.wait(context.Background())
	var pan *panicked
	if errors.As(err, &pan) {
		panic(Panicked(pan.Panic))
	}
	if err != nil {
		return 0, err
	}
	n, k := binary.Uvarint(r.Body[1:])
	if k <= 0 || n > uint64(len(b)) {
		return 0, errdefs.New("E9005", "write", "malformed answer")
	}
	return int(n), w.c.decodeError(r.Body[1+k:])
}

// Export implements [envelope.Exporter] for results: the bytes of a reader go to
// the caller now.
func (c *running) Export(v any) (uint64, error) {
	r, ok := v.(envelope.LentReader)
	if !ok {
		return 0, errdefs.New("E9002", "lend", fmt.Sprintf("%T can't be part of a result", v))
	}
	u, err := c.start(envelope.UpSpool, 0, false, envelope.Payload{Body: c.prefix(envelope.UpSpool, 0)})
	if err != nil {
		return 0, err
	}
	a, err := u.wait(c.ctx)
	if err != nil {
		return 0, err
	}
	n, k := binary.Uvarint(a.Body[1:])
	if k <= 0 {
		return 0, errdefs.New("E9005", "lend", "malformed answer")
	}
	_, err = io.CopyBuffer(struct{ io.Writer }{&borrowedWriter{c: c, n: n}}, struct{ io.Reader }{r.R}, make([]byte, 256<<10))
	return n, err
}
