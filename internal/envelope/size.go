package envelope

import "reflect"

// Size is how many bytes p has.
func (p Payload) Size() int64 {
	n := int64(len(p.Body))
	for _, s := range p.Segments {
		n += int64(len(s))
	}
	return n
}

// Fits reports what keeps the value that v points to from being sent as a
// result, or as part of one: E9002 or E9003. The response is to be built after
// it.
func (r *Response) Fits(c *Codec, v any) error {
	r.begin(Returned)
	return c.encode(r.e, reflect.ValueOf(v).Elem())
}
