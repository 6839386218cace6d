package sandboxfn

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"reflect"
	"runtime/debug"
	"sync"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/envelope"
	"github.com/agent-sandbox/sandbox-go/internal/frame"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/worker"
)

// maxUpcalls is how many things a worker may have run here at once for a call.
// Workers keep to half of it.
const maxUpcalls = 2 * worker.MaxUpcalls

// segmentSize is what a segment takes of memory beside its bytes.
const segmentSize = 24

// hostCall is one attempt of a call, as its worker's connection knows it.
type hostCall struct {
	w     *workerConn
	id    uint64
	name  string
	limit int64 // bytes of what the worker sends at once
	lent  *lent

	deadline time.Time // by the call's timeout; zero: it has none
	inner    Nested    // Options.Nested of the function

	caller context.Context // that of the call

	result chan frame.Message // of one; where another goroutine reads
	items  *frame.Inbox       // of a streaming result; nil: there is none

	mu   sync.Mutex
	life context.Context         // guarded by mu; ends with the attempt: the parent of callbacks' contexts; nil before the first
	end  context.CancelCauseFunc // guarded by mu; ends life
	over bool                    // guarded by mu
	ups  map[uint64]*hostUp      // guarded by mu; what runs here for the worker
	held int64                   // guarded by mu; bytes of their arguments
}

// hostUp is something that runs here for a worker.
type hostUp struct {
	cancel context.CancelCauseFunc
	window *frame.Window
}

// open makes an attempt known to the connection, under a new number.
func (w *workerConn) open(ctx context.Context, s *setup, l *lent, stream bool) *hostCall {
	if l == nil {
		l = &lent{}
	}
	h := &hostCall{w: w, name: s.name, limit: int64(s.opts.MaxPayload) + maxHello, lent: l, caller: ctx, inner: s.opts.Nested}
	if s.opts.Timeout > 0 {
		h.deadline = time.Now().Add(s.opts.Timeout + min(answerTime, s.opts.Grace))
	}
	if stream {
		h.items = frame.NewInbox()
	}
	if stream || s.shared() {
		h.result = make(chan frame.Message, 1)
	}
	w.hmu.Lock()
	defer w.hmu.Unlock()
	w.last++
	h.id = w.last
	w.hosts[h.id] = h
	return h
}

// late reports whether the call's timeout has passed.
func (h *hostCall) late() bool { return !h.deadline.IsZero() && time.Now().After(h.deadline) }

// close makes an attempt unknown. What runs here for it has its context ended.
func (h *hostCall) close() {
	h.w.hmu.Lock()
	delete(h.w.hosts, h.id)
	h.w.hmu.Unlock()
	h.w.r.Sweep() // what the worker has begun to send for it
	h.mu.Lock()
	h.over = true
	if h.end != nil {
		h.end(errdefs.New("E9009", h.name, "the call has ended"))
	}
	h.mu.Unlock()
	if h.items != nil {
		h.items.End()
	}
}

func (w *workerConn) host(id uint64) *hostCall {
	w.hmu.Lock()
	defer w.hmu.Unlock()
	return w.hosts[id]
}

// dispatch handles a message that is no result. An error means that the worker
// breaks the rules.
func (w *workerConn) dispatch(m *frame.Message) error {
	switch m.Type {
	case frame.Log:
		w.logRecord(m)
	case frame.Upcall:
		call, kind, object, n, err := envelope.ParseUpcall(m.Body)
		if err != nil {
			return fmt.Errorf("%w: %w", frame.ErrMalformed, err)
		}
		if h := w.host(call); h != nil {
			return h.upcall(m.ID, kind, object, envelope.Payload{Body: m.Body[n:], Segments: m.Segments})
		}
	case frame.Item:
		if h := w.host(m.ID); h != nil && h.items != nil {
			return h.items.Put(*m)
		}
	case frame.Credit:
		if u := w.up(m.ID); u != nil {
			return u.window.Add(m.Body)
		}
	case frame.Cancel:
		if u := w.up(m.ID); u != nil {
			u.cancel(envelope.DecodeCause(m.Body, knownErrors()))
		}
	}
	return nil
}

// up finds what runs here by its number.
func (w *workerConn) up(id uint64) *hostUp {
	w.hmu.Lock()
	hosts := make([]*hostCall, 0, len(w.hosts))
	for _, h := range w.hosts {
		hosts = append(hosts, h)
	}
	w.hmu.Unlock()
	for _, h := range hosts {
		h.mu.Lock()
		u := h.ups[id]
		h.mu.Unlock()
		if u != nil {
			return u
		}
	}
	return nil
}

// upcall runs something in a goroutine of its own, and answers. It does not
// wait: the goroutine that reads must go on. What runs has a context that ends
// with the call.
func (h *hostCall) upcall(id uint64, kind envelope.Upcall, object uint64, p envelope.Payload) error {
	size := int64(len(p.Body))
	for _, s := range p.Segments {
		size += int64(len(s)) + segmentSize // also one without bytes takes memory
	}
	h.mu.Lock()
	if h.over { // its worker has sent the result already
		h.mu.Unlock()
		return nil
	}
	if len(h.ups) >= maxUpcalls || h.ups[id] != nil {
		h.mu.Unlock()
		return fmt.Errorf("%w: more than %d callbacks at once", frame.ErrMalformed, maxUpcalls)
	}
	if h.life == nil {
		// Calls that callbacks make are nested in this one: it holds a worker.
		inner := context.WithValue(context.WithoutCancel(h.caller), depthKey{}, depthOf(h.caller)+1)
		h.life, h.end = context.WithCancelCause(inner)
	}
	ctx, cancel := context.WithCancelCause(h.life)
	u := &hostUp{cancel: cancel, window: frame.NewWindow()}
	if h.ups == nil {
		h.ups = map[uint64]*hostUp{}
	}
	full := h.held+size > h.limit && h.held > 0
	h.ups[id] = u
	if full {
		p, size = envelope.Payload{}, 0 // it is not kept
	}
	h.held += size
	h.mu.Unlock()
	// The call's own end reaches callbacks, too.
	stop := context.AfterFunc(h.caller, func() { cancel(context.Cause(h.caller)) })
	go func() {
		var answer envelope.Payload
		defer func() { // also when a callback calls runtime.Goexit
			stop()
			cancel(nil)
			defer func() { // only now, or a worker that takes no answers could have any number made
				h.mu.Lock()
				delete(h.ups, id)
				h.held -= size
				h.mu.Unlock()
			}()
			// A failure shows where the connection is read.
			_ = h.w.w.Write(&frame.Message{Type: frame.Upresult, ID: id, Body: answer.Body, Segments: answer.Segments})
		}()
		if full {
			answer = failedUpcall(errdefs.New("E9003", h.name, "the arguments of the callbacks that run at once are over the limit (max_payload)"))
			return
		}
		h.serve(ctx, id, u, kind, object, p, &answer)
	}()
	return nil
}

func failedUpcall(err error) envelope.Payload {
	return envelope.Payload{Body: envelope.EncodeError([]byte{byte(envelope.Failed)}, err, knownErrors())}
}

// serve does what an upcall asks for and says what came of it in answer, also
// when it does not return.
func (h *hostCall) serve(ctx context.Context, id uint64, u *hostUp, kind envelope.Upcall, object uint64, p envelope.Payload, answer *envelope.Payload) {
	returned := false
	defer func() {
		if returned {
			return
		}
		v := envelope.Panic{Value: "runtime.Goexit was called", Stack: string(debug.Stack())}
		if r := recover(); r != nil {
			v.Value = panicText(r)
		}
		*answer = envelope.Payload{Body: envelope.EncodePanic([]byte{byte(envelope.Panicked)}, v)}
	}()
	a, err := h.do(ctx, id, u, kind, object, p)
	if err != nil {
		a = failedUpcall(err)
	}
	*answer = a
	returned = true
}

// do does what an upcall asks for and returns the answer.
func (h *hostCall) do(ctx context.Context, id uint64, u *hostUp, kind envelope.Upcall, object uint64, p envelope.Payload) (envelope.Payload, error) {
	switch kind {
	case envelope.UpNested:
		return h.nested(ctx, p)
	case envelope.UpSpool:
		return h.spool()
	}
	o, err := h.lent.object(object)
	if err != nil {
		return envelope.Payload{}, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return h.use(ctx, id, u, kind, o, p)
}

func panicText(v any) string {
	if err, ok := v.(error); ok {
		return err.Error()
	}
	return fmt.Sprint(v)
}

// use does with a lent object what it is for, and holds its mutex while the
// user's code runs.
func (h *hostCall) use(ctx context.Context, id uint64, u *hostUp, kind envelope.Upcall, o *lentObject, p envelope.Payload) (envelope.Payload, error) {
	switch x := o.v.(type) {
	case *spool:
		if kind == envelope.UpWrite {
			return written(x, p)
		}
	case envelope.LentWriter:
		if kind == envelope.UpWrite {
			return written(x.W, p)
		}
	case envelope.LentReader:
		if kind == envelope.UpRange {
			if c, ok := x.R.(*lentContent); ok {
				return h.sendContent(ctx, id, u, o, c)
			}
			return h.sendBytes(ctx, id, u, o, x.R)
		}
	default:
		v := reflect.ValueOf(o.v)
		switch live := envelope.LiveKindOf(v.Type()); {
		case kind == envelope.UpCall && live == envelope.LiveFunc:
			return callBack(ctx, v, p, h.limit)
		case kind == envelope.UpRange && (live == envelope.LiveSeq || live == envelope.LiveSeq2):
			return h.sendItems(ctx, id, u, o, v, live == envelope.LiveSeq2)
		}
	}
	return envelope.Payload{}, errdefs.New("E9005", "call back", fmt.Sprintf("%T is not for that", o.v))
}

// callBack runs a callback.
func callBack(ctx context.Context, f reflect.Value, p envelope.Payload, limit int64) (envelope.Payload, error) {
	sh := envelope.ShapeOf(f.Type())
	args, err := sh.In.Decode(p, 0, knownErrors())
	if err != nil {
		return envelope.Payload{}, err
	}
	if sh.Context {
		args = append([]reflect.Value{reflect.ValueOf(&ctx).Elem()}, args...)
	}
	var out []reflect.Value
	if sh.Variadic {
		out = f.CallSlice(args)
	} else {
		out = f.Call(args)
	}
	return sh.Out.Encode([]byte{byte(envelope.Returned)}, out, knownErrors(), limit)
}

// written writes the bytes of an upcall and answers with what came of it.
func written(w io.Writer, p envelope.Payload) (envelope.Payload, error) {
	b := p.Body
	if len(p.Segments) > 0 {
		b = p.Segments[0]
	}
	n, err := w.Write(b)
	n = min(max(n, 0), len(b))
	body := binary.AppendUvarint([]byte{byte(envelope.Returned)}, uint64(n))
	return envelope.Payload{Body: envelope.EncodeError(body, err, knownErrors())}, nil
}

func (h *hostCall) spool() (envelope.Payload, error) {
	n, err := h.lent.newSpool()
	if err != nil {
		return envelope.Payload{}, err
	}
	return envelope.Payload{Body: binary.AppendUvarint([]byte{byte(envelope.Returned)}, n)}, nil
}

// errLeft says that the worker wants no more of a stream.
var errLeft = errors.New("nobody reads on")

// sendItems sends the items of a sequence, as far as the worker grants it.
func (h *hostCall) sendItems(ctx context.Context, id uint64, u *hostUp, o *lentObject, seq reflect.Value, pairs bool) (envelope.Payload, error) {
	item := envelope.ItemOf(seq.Type())
	var failed error
	send := func(v reflect.Value) bool {
		p, err := item.Encode(nil, []reflect.Value{v}, knownErrors(), h.limit)
		if err == nil {
			err = h.sendItem(ctx, id, u, o, p)
			p.Release()
		}
		failed = err
		return err == nil
	}
	if pairs {
		for v, e := range seq.Seq2() {
			if e := e.Interface(); e != nil {
				failed = e.(error)
				break
			}
			if !send(v) {
				break
			}
		}
	} else {
		for v := range seq.Seq() {
			if !send(v) {
				break
			}
		}
	}
	return streamAnswer(failed), nil
}

// sendBytes sends what a reader has.
func (h *hostCall) sendBytes(ctx context.Context, id uint64, u *hostUp, o *lentObject, r io.Reader) (envelope.Payload, error) {
	err := eachChunk(r, func(p envelope.Payload) error { return h.sendItem(ctx, id, u, o, p) })
	return streamAnswer(err), nil
}

// eachChunk hands what r has to send, which does not keep it, and returns the
// first error but the end.
func eachChunk(r io.Reader, send func(envelope.Payload) error) error {
	buf := make([]byte, 128<<10)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			p := envelope.Payload{Body: buf[:n]}
			if n >= envelope.SegmentMin {
				p = envelope.Payload{Segments: [][]byte{buf[:n]}}
			}
			if err := send(p); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// sendItem sends an item once there is credit. Others may use the object
// meanwhile: a function may range over a sequence while it ranges over it.
func (h *hostCall) sendItem(ctx context.Context, id uint64, u *hostUp, o *lentObject, p envelope.Payload) error {
	o.mu.Unlock()
	defer o.mu.Lock()
	m := frame.Message{Type: frame.Item, ID: id, Body: p.Body, Segments: p.Segments}
	if !u.window.Take(m.Size(), ctx.Done()) {
		return errLeft
	}
	return h.w.w.Write(&m)
}

// streamAnswer says how a stream has ended.
func streamAnswer(err error) envelope.Payload {
	if err == errLeft {
		err = nil // nobody looks at it
	}
	return envelope.Payload{Body: envelope.EncodeError([]byte{byte(envelope.Returned)}, err, knownErrors())}
}

func init() {
	worker.Panicked = func(p envelope.Panic) error {
		return &PanicError{Func: "callback", Value: p.Value, Stack: p.Stack}
	}
	worker.PanicText = func(err error) (string, bool) {
		if p, ok := err.(*PanicError); ok {
			return p.Value, true
		}
		return "", false
	}
}
