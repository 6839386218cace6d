package envelope

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"reflect"
	"sync"
	"time"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// Payload is an encoded request or response: a body and what goes around it.
type Payload struct {
	Body     []byte
	Segments [][]byte
}

// Request says which function to run, and how.
type Request struct {
	ID         string        // of the function
	Timeout    time.Duration // from the start of the function; zero: none
	MaxPayload int64         // bytes of the result

	Live Exporter // of the arguments; not sent

	// Shared says that other calls may run in the worker at the same time.
	Shared bool

	JSON bool // encode it, and its response, in the JSON form

	// Meta goes with the call: pairs of name and text, such as the headers of a
	// trace.
	Meta []string
}

// buffers holds bodies that have been sent.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 1<<10); return &b }}

const keepBuffer = 64 << 10

// Release gives the body of p back for other payloads. Neither it nor anything
// that points into it may be used any more.
func (p *Payload) Release() {
	if b := p.Body; cap(b) > 0 && cap(b) <= keepBuffer {
		p.Body = nil
		b = b[:0]
		buffers.Put(&b)
	}
}

func newEncoder(errs *Errors, limit int64) *encoder {
	return &encoder{buf: (*buffers.Get().(*[]byte))[:0], errors: errs, limit: limit}
}

func (e *encoder) payload() Payload { return Payload{Body: e.buf, Segments: e.segments} }

// EncodeRequest encodes r with the arguments that args points to. The payload
// refers to byte slices and strings of the arguments, so they must not change
// until it is sent. Errors: E9002 for a value that can't be encoded, E9003 for
// one above limit, which are bytes.
func EncodeRequest(r Request, c *Codec, errs *Errors, args any, limit int64) (Payload, error) {
	e := newEncoder(errs, limit)
	e.live, e.json = r.Live, r.JSON
	e.buf = appendHead(e.buf, majorArray, 6)
	e.buf = append(e.buf, majorUint<<5|27)
	e.buf = binary.BigEndian.AppendUint64(e.buf, uint64(r.Timeout))
	e.buf = appendText(e.buf, r.ID)
	e.buf = appendInt(e.buf, r.MaxPayload)
	e.buf = append(e.buf, wireFalse)
	if r.Shared {
		e.buf[len(e.buf)-1] = wireTrue
	}
	e.buf = appendHead(e.buf, majorArray, uint64(len(r.Meta)))
	for _, s := range r.Meta {
		e.buf = appendText(e.buf, s)
	}
	e.outside = -int64(len(e.buf)) // the limit is the arguments'
	if err := c.encode(e, reflect.ValueOf(args).Elem()); err != nil {
		return Payload{}, err
	}
	if e.json {
		return e.requestJSON(c)
	}
	return e.payload(), nil
}

// Clone returns a copy of p that shares nothing with it.
func (p Payload) Clone() Payload {
	c := Payload{Body: bytes.Clone(p.Body)}
	for _, s := range p.Segments {
		c.Segments = append(c.Segments, bytes.Clone(s))
	}
	return c
}

// SetTimeout changes the timeout of an encoded request, so that one can be
// encoded before it is known when it will be sent.
func (p *Payload) SetTimeout(d time.Duration) {
	if isJSON(p.Body) {
		putTimeout(p.Body, uint64(max(d, 0)))
		return
	}
	const after = 2 // heads of the array and of the number
	binary.BigEndian.PutUint64(p.Body[after:], uint64(max(d, 0)))
}

// OpenedRequest is a request whose arguments are not decoded yet.
type OpenedRequest struct {
	Request
	d decoder
}

// OpenRequest reads p up to the arguments. A malformed one is E9005.
func OpenRequest(p Payload, errs *Errors) (*OpenedRequest, error) {
	r := &OpenedRequest{d: decoder{reader: reader{b: p.Body}, segments: p.Segments, errors: errs}}
	err := r.open()
	return r, coded(err, "request", "")
}

func (r *OpenedRequest) open() (err error) {
	if r.JSON = isJSON(r.d.b); r.JSON {
		r.d.json = true
		if r.d.b, err = openJSON(r.d.b, requestMembers); err != nil {
			return err
		}
	}
	if err = r.d.array(6); err != nil {
		return err
	}
	timeout, err := r.d.int()
	if err != nil {
		return err
	}
	r.Timeout = time.Duration(timeout)
	if r.ID, err = r.d.text(); err != nil {
		return err
	}
	if r.MaxPayload, err = r.d.int(); err != nil {
		return err
	}
	if err := decBool(&r.d, reflect.ValueOf(&r.Shared).Elem()); err != nil {
		return err
	}
	n, err := r.d.expect(majorArray, "a list of texts")
	if err != nil {
		return err
	}
	if n > uint64(r.d.left()) {
		return malformed("list of %d texts in %d bytes", n, r.d.left())
	}
	for range n {
		s, err := r.d.text()
		if err != nil {
			return err
		}
		r.Meta = append(r.Meta, s)
	}
	return nil
}

// Borrow makes i the worker's end of the call.
func (r *OpenedRequest) Borrow(i Importer) { r.d.live = i }

// Args decodes the arguments into what args points to. It is called once.
// Errors: E9005 with the path of what is malformed.
func (r *OpenedRequest) Args(c *Codec, args any) error {
	if err := c.decode(&r.d, reflect.ValueOf(args).Elem()); err != nil {
		return err
	}
	return coded(r.d.end(), c.op, "")
}

// Outcome says how a call has ended.
type Outcome uint8

// The outcomes.
const (
	Returned Outcome = 0 // the function returned: a result, and perhaps an error
	Failed   Outcome = 1 // the call failed before the function ran, or after it: an error of ours
	Panicked Outcome = 2 // the function panicked
)

// Panic is a panic of the user's function.
type Panic struct{ Value, Stack string }

// Counters are how many bytes have been written to standard output and standard
// error since the worker started.
type Counters struct{ Stdout, Stderr uint64 }

// A Response is built in one go: one of Returned, Failed and Panicked, then
// Finish.
type Response struct {
	e  *encoder
	op string // of the function whose result it holds
}

// JSON makes it a response in the JSON form. It is called before the rest.
func (r *Response) JSON() { r.e.json = true }

// NewResponse returns an empty response of at most limit bytes.
func NewResponse(errs *Errors, limit int64) *Response {
	return &Response{e: newEncoder(errs, limit)}
}

// Lend makes x what files and the like in the result are lent to.
func (r *Response) Lend(x Exporter) { r.e.live = x }

func (r *Response) begin(o Outcome) {
	r.e.buf, r.e.segments, r.e.outside, r.e.over, r.e.depth = r.e.buf[:0], nil, 0, false, 0
	r.e.buf = appendHead(r.e.buf, majorArray, 5)
	r.e.buf = appendHead(r.e.buf, majorUint, uint64(o))
	r.e.outside = -int64(len(r.e.buf))
}

// Returned says that the function returned the result that result points to,
// and err. A result that can't be encoded, or is too large, makes the call fail
// with E9002 or E9003, unless the function returned an error, which then comes
// alone.
func (r *Response) Returned(c *Codec, result any, err error) {
	r.op = c.op
	r.begin(Returned)
	bad := c.encode(r.e, reflect.ValueOf(result).Elem())
	if bad != nil && err == nil {
		r.Failed(bad)
		return
	}
	if bad != nil {
		r.begin(Returned)
		r.e.buf = append(r.e.buf, wireNull)
	}
	if bad := r.e.error(err); bad != nil || r.e.over {
		r.begin(Returned)
		r.e.buf = append(r.e.buf, wireNull)
		r.plainError(err, 1<<16)
	}
}

// plainError is for errors that can't be encoded as they are.
func (r *Response) plainError(err error, most int) {
	text := textOf(err)
	r.e.node(nodeOther, 5)
	r.e.buf = appendText(r.e.buf, typeName(reflect.TypeOf(err)))
	r.e.runText(text[:min(len(text), most)])
	r.e.buf = appendHead(r.e.buf, majorArray, 0)
	r.e.buf = appendHead(r.e.buf, majorArray, 0)
}

// Failed says that the call failed with err.
func (r *Response) Failed(err error) {
	r.begin(Failed)
	r.e.buf = append(r.e.buf, wireNull)
	if bad := r.e.error(err); bad != nil || r.e.over {
		r.begin(Failed)
		r.e.buf = append(r.e.buf, wireNull)
		r.plainError(err, 1<<16)
	}
}

// Panicked says that the function panicked.
func (r *Response) Panicked(p Panic) {
	r.begin(Panicked)
	r.e.runText(p.Value)
	r.e.runText(p.Stack)
}

// Finish adds the counters and returns the payload.
func (r *Response) Finish(c Counters) Payload {
	r.e.buf = appendHead(r.e.buf, majorUint, c.Stdout)
	r.e.buf = appendHead(r.e.buf, majorUint, c.Stderr)
	if r.e.json {
		return r.finishJSON(c)
	}
	return r.e.payload()
}

// Decoded is a response.
type Decoded struct {
	Outcome  Outcome
	Err      error // of the function, or of the call
	Panic    Panic
	Counters Counters
}

// DecodeResponse decodes p, and a result into what result points to; live is
// the caller's end of what the result borrows, or nil. A malformed one is E9005.
func DecodeResponse(p Payload, c *Codec, errs *Errors, live Importer, result any) (Decoded, error) {
	d := &decoder{reader: reader{b: p.Body}, segments: p.Segments, errors: errs, live: live}
	var r Decoded
	err := r.decode(d, c, result)
	if _, ours := err.(*errdefs.Error); ours {
		return r, err
	}
	return r, coded(err, c.op, "response")
}

func (r *Decoded) decode(d *decoder, c *Codec, result any) (err error) {
	if isJSON(d.b) {
		d.json = true
		if d.b, err = openJSON(d.b, resultMembers, panicMembers); err != nil {
			return err
		}
	}
	if err := d.array(5); err != nil {
		return err
	}
	o, err := d.uint()
	if err != nil {
		return err
	}
	switch r.Outcome = Outcome(min(o, math.MaxUint8)); r.Outcome {
	case Returned:
		if !d.nullBeforeError(c) {
			if err := c.decode(d, reflect.ValueOf(result).Elem()); err != nil {
				return err
			}
		}
	case Failed:
		if !d.null() {
			return malformed("expected null")
		}
	case Panicked:
		if r.Panic.Value, err = d.runText(); err != nil {
			return err
		}
		r.Panic.Stack, err = d.runText()
	default:
		return malformed("unknown outcome %d", o)
	}
	if err != nil {
		return err
	}
	if r.Outcome != Panicked {
		if r.Err, err = d.error(); err != nil {
			return err
		}
		if r.Outcome == Failed && r.Err == nil {
			return malformed("failed without an error")
		}
	}
	if r.Counters.Stdout, err = d.uint(); err != nil {
		return err
	}
	if r.Counters.Stderr, err = d.uint(); err != nil {
		return err
	}
	return d.end()
}

// nullBeforeError reads a null in place of a result that could not be sent. A
// type of which null is a value reads its own.
func (d *decoder) nullBeforeError(c *Codec) bool {
	return c.Check() == nil && !c.plan.null && d.null()
}

// String names the outcome.
func (o Outcome) String() string {
	switch o {
	case Returned:
		return "returned"
	case Failed:
		return "failed"
	case Panicked:
		return "panicked"
	}
	return fmt.Sprintf("Outcome(%d)", uint8(o))
}
