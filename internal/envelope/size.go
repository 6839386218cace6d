package envelope

import "reflect"

// Measure encodes what v points to and reports how many bytes that takes. What
// can't be sent is E9002, what is above limit E9003.
func (c *Codec) Measure(errs *Errors, v any, limit int64) (int64, error) {
	e := newEncoder(errs, limit)
	err := c.encode(e, reflect.ValueOf(v).Elem())
	n := e.size()
	p := Payload{Body: e.buf}
	p.Release()
	return n, err
}

// Fits reports whether a result can be sent: E9002 or E9003 when not. The
// response is to be built after it.
func (r *Response) Fits(c *Codec, result any) error {
	r.begin(Returned)
	return c.encode(r.e, reflect.ValueOf(result).Elem())
}
