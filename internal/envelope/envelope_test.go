package envelope

import (
	"errors"
	"io"
	"io/fs"
	"math"
	"net"
	"net/url"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/fxamacker/cbor/v2"
	"github.com/google/go-cmp/cmp"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

type inner struct {
	A int
	B []string `json:"b,omitempty"`
}

type outer struct {
	Name  string
	In    inner
	Ptr   *inner
	List  []inner
	Map   map[string]inner
	Raw   []byte
	When  time.Time
	Err   error
	Float float32
}

func sample() outer {
	return outer{
		Name: "n", In: inner{1, []string{}}, Ptr: &inner{2, nil}, List: []inner{{3, []string{"x"}}},
		Map: map[string]inner{"k": {4, nil}}, Raw: []byte{1}, When: time.Unix(1, 2).UTC(), Err: io.EOF, Float: 0.1,
	}
}

func testErrors() *Errors {
	set := NewErrors(func(typ, text string, is, children []error) error { return errors.New(text) })
	set.AddSentinel("io.EOF", &io.EOF)
	set.AddType(reflect.TypeFor[*fs.PathError]())
	return set
}

func encodeValue(t testing.TB, v any) Payload {
	t.Helper()
	e := newEncoder(testErrors(), math.MaxInt64)
	c := Args(reflect.TypeOf(v).Elem(), "test", []Param{{Name: "v"}})
	if err := c.encode(e, reflect.ValueOf(v).Elem()); err != nil {
		t.Fatal(err)
	}
	return e.payload()
}

func decodeValue(p Payload, v any) error {
	d := &decoder{reader: reader{b: p.Body}, segments: p.Segments, errors: testErrors()}
	c := Args(reflect.TypeOf(v).Elem(), "test", []Param{{Name: "v"}})
	if err := c.decode(d, reflect.ValueOf(v).Elem()); err != nil {
		return err
	}
	return coded(d.end(), "test", "")
}

// Another implementation of CBOR must read what we write.
func TestIsCBOR(t *testing.T) {
	v := sample()
	p := encodeValue(t, &v)
	if err := strict.Wellformed(p.Body); err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := cbor.Unmarshal(p.Body, &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"Name": "n",
		"In":   map[any]any{"A": uint64(1), "b": []any{}},
		"Ptr":  map[any]any{"A": uint64(2), "b": nil},
		"List": []any{map[any]any{"A": uint64(3), "b": []any{"x"}}},
		"Map":  map[any]any{"k": map[any]any{"A": uint64(4), "b": nil}},
		"Raw":  []byte{1},
		"When": []any{uint64(1), uint64(2), uint64(0), "", uint64(0)},
		"Err":  []any{uint64(nodeSentinel), "io.EOF"}, "Float": float64(float32(0.1)),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error("(-want +got):\n" + diff)
	}
}

// Integers are encoded as fxamacker/cbor does, which takes the shortest form.
func TestIntegersAreShortest(t *testing.T) {
	for _, i := range []int64{0, 1, 23, 24, 255, 256, 65535, 65536, math.MaxUint32, math.MaxUint32 + 1, math.MaxInt64, -1, -24, -25, -256, -257, math.MinInt64} {
		want, err := cbor.Marshal(i)
		if err != nil {
			t.Fatal(err)
		}
		if got := appendInt(nil, i); !reflect.DeepEqual(got, want) {
			t.Errorf("%d is %x, want %x", i, got, want)
		}
	}
}

func TestMalformed(t *testing.T) {
	item := func(v any) []byte {
		b, err := cbor.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	type m = map[string]any
	ok := func() m { return m{"A": 1, "b": nil} }
	for _, c := range []struct {
		name string
		body []byte
		into any
		want string
	}{
		{"unknown field", item(m{"A": 1, "zz": nil}), new(inner), `v: unknown field "zz"`},
		{"too many fields", item(m{"A": 1, "b": nil, "c": 1}), new(inner), "v: envelope.inner has 2 fields, found 3"},
		{"missing field", item(m{"A": 1}), new(inner), "v: envelope.inner has 2 fields, found 1"},
		{"duplicate field", append([]byte{0xa2}, append(append(item("A"), 1), append(item("A"), 1)...)...), new(inner), "v.A: duplicate field"},
		{"duplicate key", append([]byte{0xa2}, append(append(item("A"), 1), append(item("A"), 1)...)...), new(map[string]int), `v["A"]: duplicate key`},
		{"wrong kind", item(m{"A": "x", "b": nil}), new(inner), "v.A: expected an integer, found text"},
		{"in a list", item([]any{ok(), m{"A": 1, "b": []any{"x", 5}}}), new([]inner), "v[1].B[1]: expected text, found an integer"},
		{"in a map", item(m{"k": m{"A": true, "b": nil}}), new(map[string]inner), `v["k"].A: expected an integer, found a bool`},
		{"overflow", item(300), new(uint8), "v: 300 overflows uint8"},
		{"negative", item(-1), new(uint), "v: expected an unsigned integer, found an integer"},
		{"too big for int64", item(uint64(math.MaxUint64)), new(int64), "v: integer overflows int64"},
		{"float width", item(1.5), new(float32), "v: expected a float of 32 bits, found a float"},
		{"length beyond the end", []byte{0x9b, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff}, new([]int), "v: length 4294967295 is beyond the end"},
		{"indefinite", []byte{0x9f, 0x01, 0xff}, new([]int), "v: indefinite or reserved length"},
		{"too early", []byte{0x82, 0x01}, new([2]int), "v[1]: ends too early"},
		{"array length", item([]int{1}), new([2]int), "v: expected 2 elements, found 1"},
		{"bytes of an array", item([]byte{1}), new([2]byte), "v: expected 2 bytes, found 1"},
		{"segment that is not there", []byte{0xd9, 0x53, 0x47, 0x00}, new([]byte), "v: segment 0 is out of order or not there"},
		{"bytes too many", []byte{1, 1}, new(int), "1 bytes too many"},
		{"time", item([]any{1, 2_000_000_000, 0, "", 0}), new(time.Time), "v: not a time"},
		{"error kind", item([]any{9, "x"}), new(error), "v: error node 9 with 2 elements"},
		{"error variable", item([]any{0, "x"}), new(error), `v: error variable "x" is not known here`},
		{"error type", item([]any{1, "x", nil}), new(error), `v: error type "x" is not known here`},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := decodeValue(Payload{Body: c.body}, c.into)
			if errdefs.CodeOf(err) != "E9005" || !strings.HasSuffix(err.Error(), "test: "+c.want) {
				t.Errorf("got  %v\nwant E9005 … %s", err, c.want)
			}
		})
	}
	deep := make([]byte, 0, 3000)
	for range 1500 {
		deep = append(deep, 0x81)
	}
	type nested []nested
	err := decodeValue(Payload{Body: append(deep, 0x80)}, new(nested))
	if errdefs.CodeOf(err) != "E9005" || !strings.Contains(err.Error(), "nested deeper than 1000") {
		t.Errorf("too deep: %v", err)
	}
}

func TestWhatCannotTravel(t *testing.T) {
	type hidden struct {
		A int
		b int //lint:ignore U1000 it is there to be refused
	}
	type skipped struct {
		Password string `json:"-"`
	}
	type twice struct {
		A int `json:"x"`
		B int `cbor:"x"`
	}
	for _, c := range []struct {
		typ  reflect.Type
		want string
	}{
		{reflect.TypeFor[chan int](), "p: type chan int can't be sent"},
		{reflect.TypeFor[any](), "p: type interface {} can't be sent"},
		{reflect.TypeFor[complex128](), "p: type complex128 can't be sent"},
		{reflect.TypeFor[struct{ In map[string][]chan int }](), "p.In[][]: type chan int can't be sent"},
		{reflect.TypeFor[hidden](), "p.b: unexported field of envelope.hidden would be lost"},
		{reflect.TypeFor[*skipped](), `p.Password: tagged json:"-"`},
		{reflect.TypeFor[twice](), `p.B: envelope.twice has two fields that are called "x" on the wire`},
		{reflect.TypeFor[map[[2]int]int](), "p: type map[[2]int]int can't be sent: its keys are not"},
	} {
		err := Args(c.typ, "test", []Param{{Name: "p"}}).Check()
		if errdefs.CodeOf(err) != "E9002" || !strings.Contains(err.Error(), "test: "+c.want) {
			t.Errorf("%s: %v, want E9002 … %s", c.typ, err, c.want)
		}
	}
	// The path belongs to each use, also when the plan of the type is kept.
	for _, name := range []string{"p", "q"} {
		if err := Args(reflect.TypeFor[hidden](), "test", []Param{{Name: name}}).Check(); !strings.Contains(err.Error(), " "+name+".b: ") {
			t.Errorf("path of %s: %v", name, err)
		}
	}
}

// Every error type of the standard library that is known must really travel.
func TestStandardErrorTypesTravel(t *testing.T) {
	for _, typ := range []reflect.Type{
		reflect.TypeFor[fs.PathError](), reflect.TypeFor[os.LinkError](), reflect.TypeFor[os.SyscallError](), reflect.TypeFor[exec.Error](),
		reflect.TypeFor[net.OpError](), reflect.TypeFor[net.DNSError](), reflect.TypeFor[net.AddrError](), reflect.TypeFor[net.ParseError](),
		reflect.TypeFor[url.Error](), reflect.TypeFor[time.ParseError](), reflect.TypeFor[errdefs.Error](),
	} {
		if _, err := planFor(typ); err != nil {
			t.Errorf("%s: %v", typ, err)
		}
	}
}

// urlWire must not forget a field that a later Go adds.
func TestURLFields(t *testing.T) {
	u := reflect.TypeFor[url.URL]()
	w := reflect.TypeFor[urlWire]()
	for i := range u.NumField() {
		if _, ok := w.FieldByName(u.Field(i).Name); !ok {
			t.Errorf("field %s of url.URL is lost", u.Field(i).Name)
		}
	}
	o := reflect.TypeFor[net.OpError]()
	ow := reflect.TypeFor[opErrorWire]()
	for i := range o.NumField() {
		if _, ok := ow.FieldByName(o.Field(i).Name); !ok {
			t.Errorf("field %s of net.OpError is lost", o.Field(i).Name)
		}
	}
}

type failing struct{ V int }

func (failing) MarshalBinary() ([]byte, error) { return nil, errBoom }
func (*failing) UnmarshalBinary([]byte) error  { return errBoom }

type panicking struct{ V int }

func (panicking) MarshalText() ([]byte, error) { panic("boom") }
func (*panicking) UnmarshalText([]byte) error  { panic("boom") }

type badCBOR struct{ V int }

func (badCBOR) MarshalCBOR() ([]byte, error) { return []byte{0x9f}, nil }
func (*badCBOR) UnmarshalCBOR([]byte) error  { return nil }

var errBoom = errors.New("boom")

func TestFailingMarshalers(t *testing.T) {
	for _, v := range []any{&failing{}, &panicking{}, &badCBOR{}} {
		e := newEncoder(nil, math.MaxInt64)
		err := Args(reflect.TypeOf(v).Elem(), "test", []Param{{Name: "p"}}).encode(e, reflect.ValueOf(v).Elem())
		if errdefs.CodeOf(err) != "E9002" {
			t.Errorf("%T: %v", v, err)
		}
		if _, ok := v.(*failing); ok && !errors.Is(err, errBoom) {
			t.Errorf("cause is lost: %v", err)
		}
	}
	for _, v := range []any{&failing{}, &panicking{}} {
		if err := decodeValue(Payload{Body: []byte{0x41, 1}}, v); errdefs.CodeOf(err) != "E9005" {
			t.Errorf("%T: %v", v, err)
		}
	}
}

type rational struct{ num, den int64 }

func (r rational) MarshalCBOR() ([]byte, error) { return cbor.Marshal([]int64{r.num, r.den}) }
func (r *rational) UnmarshalCBOR(b []byte) error {
	var v []int64
	if err := cbor.Unmarshal(b, &v); err != nil {
		return err
	}
	if len(v) != 2 {
		return errBoom
	}
	r.num, r.den = v[0], v[1]
	return nil
}

func TestOwnCBOR(t *testing.T) {
	in := []rational{{1, 2}, {-3, 4}}
	var out []rational
	if err := decodeValue(encodeValue(t, &in), &out); err != nil || !reflect.DeepEqual(in, out) {
		t.Errorf("got %v, %v", out, err)
	}
}

func TestResponseWithoutResult(t *testing.T) {
	errs := testErrors()
	c := Result(reflect.TypeFor[string](), "test")
	long := strings.Repeat("x", 1000)
	r := NewResponse(errs, 100)
	r.Returned(c, &long, io.EOF)
	var got string
	d, err := DecodeResponse(r.Finish(Counters{1, 2}), c, errs, nil, &got)
	if err != nil || d.Err != io.EOF || got != "" || d.Counters != (Counters{1, 2}) {
		t.Errorf("an error beside a result that is too large: %+v, %q, %v", d, got, err)
	}
	r = NewResponse(errs, 100)
	r.Returned(c, &long, nil)
	d, err = DecodeResponse(r.Finish(Counters{}), c, errs, nil, &got)
	if err != nil || d.Outcome != Failed || d.Err == nil {
		t.Errorf("a result that is too large: %+v, %v", d, err)
	}
	r = NewResponse(errs, 100)
	r.Returned(c, new(string), errors.New(long))
	d, err = DecodeResponse(r.Finish(Counters{}), c, errs, nil, &got)
	if err != nil || d.Outcome != Returned || d.Err == nil || d.Err.Error() != long {
		t.Errorf("an error that is too large: %+v, %v", d, err)
	}
}

// What is above the limit must not fill memory before it is refused.
func TestLimitBoundsMemory(t *testing.T) {
	v := make([]int, 20<<20)
	for i := range v {
		v[i] = math.MaxInt64
	}
	c := Args(reflect.TypeFor[[]int](), "test", []Param{{Name: "v"}})
	var err error
	got := testing.Benchmark(func(b *testing.B) {
		for b.Loop() {
			_, err = EncodeRequest(Request{ID: "x"}, c, nil, &v, 1<<20)
		}
	}).AllocedBytesPerOp()
	if errdefs.CodeOf(err) != "E9003" || !strings.Contains(err.Error(), "v has 188743685 bytes, which is over the limit of 1048576") {
		t.Errorf("got %v", err)
	}
	if got > 16<<20 {
		t.Errorf("%d bytes were allocated to find it out", got)
	}
}

func FuzzDecode(f *testing.F) {
	v := sample()
	f.Add(encodeValue(f, &v).Body, []byte(nil))
	big := outer{Raw: make([]byte, SegmentMin), Name: strings.Repeat("x", SegmentMin)}
	p := encodeValue(f, &big)
	f.Add(p.Body, p.Segments[0])
	f.Add([]byte{0x84, 0x1b}, []byte("seg"))
	f.Fuzz(func(t *testing.T, body, segment []byte) {
		var segments [][]byte
		if segment != nil {
			segments = [][]byte{segment}
		}
		for _, into := range []func() any{
			func() any { return new(outer) },
			func() any { return new([]outer) },
			func() any { return new(map[string][]byte) },
			func() any { return new(url.URL) },
			func() any { return new([]*[]int) },
		} {
			got := into()
			if err := decodeValue(Payload{Body: body, Segments: segments}, got); err != nil {
				if errdefs.CodeOf(err) != "E9005" {
					t.Fatalf("not E9005: %v", err)
				}
				continue
			}
			again := into()
			if err := decodeValue(encodeValue(t, got), again); err != nil {
				t.Fatalf("decoded %#v, which does not decode again: %v", got, err)
			}
		}
		if r, err := OpenRequest(Payload{Body: body, Segments: segments}, nil); err == nil {
			r.Args(Args(reflect.TypeFor[outer](), "test", []Param{{Name: "v"}}), new(outer))
		}
		DecodeResponse(Payload{Body: body, Segments: segments}, Result(reflect.TypeFor[outer](), "test"), testErrors(), nil, new(outer))
		DecodeHello(body)
		DecodeCause(body, testErrors())
	})
}

func BenchmarkEncode(b *testing.B) {
	v := sample()
	c := Args(reflect.TypeFor[outer](), "test", []Param{{Name: "v"}})
	errs := testErrors()
	b.ReportAllocs()
	for b.Loop() {
		p, err := EncodeRequest(Request{ID: "x"}, c, errs, &v, 1<<30)
		if err != nil {
			b.Fatal(err)
		}
		p.Release()
	}
}

func BenchmarkDecode(b *testing.B) {
	v := sample()
	c := Args(reflect.TypeFor[outer](), "test", []Param{{Name: "v"}})
	errs := testErrors()
	p, _ := EncodeRequest(Request{ID: "x"}, c, errs, &v, 1<<30)
	b.ReportAllocs()
	for b.Loop() {
		r, err := OpenRequest(p, errs)
		if err == nil {
			err = r.Args(c, new(outer))
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}

type shared []error

func (shared) Error() string     { return "shared" }
func (s shared) Unwrap() []error { return s }

// Errors that share what they wrap are a tree when they are sent: it must not
// grow with each level.
func TestSharedErrors(t *testing.T) {
	begin := time.Now()
	var err error = shared{io.EOF}
	for range 28 {
		err = shared{err, err}
	}
	set := NewErrors(func(_, text string, _, children []error) error { return &tree{text, children} })
	set.AddSentinel("io.EOF", &io.EOF)
	e := &encoder{errors: set, limit: 1 << 40}
	if bad := e.error(err); bad != nil {
		t.Fatal(bad)
	}
	if took := time.Since(begin); took > 10*time.Second || len(e.buf) > 4<<20 {
		t.Errorf("%d bytes in %v", len(e.buf), took)
	}
	d := &decoder{reader: reader{b: e.buf}, errors: set}
	got, bad := d.error()
	if bad != nil || !errors.Is(got, io.EOF) || got.Error() != "shared" {
		t.Errorf("got %v, %v", got, bad)
	}
}
