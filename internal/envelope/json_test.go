package envelope

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"math"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// textKey has a form of its own as a key.
type textKey struct{ a, b int8 }

func (k textKey) MarshalText() ([]byte, error) { return []byte{byte(k.a), '$', byte(k.b)}, nil }
func (k *textKey) UnmarshalText(b []byte) error {
	if len(b) != 3 {
		return errors.New("not three bytes")
	}
	k.a, k.b = int8(b[0]), int8(b[2])
	return nil
}

type jsonAll struct {
	Bool         bool
	I8           int8
	I64          int64
	U64          uint64
	F32          float32
	F64          float64
	Text, Binary string
	Raw, None    []byte
	Array        [3]byte
	List         []int
	PtrPtr       **int
	PtrSlice     *[]int
	ByInt        map[int]string
	ByBool       map[bool]int
	ByText       map[string]float64
	ByKey        map[textKey]uint8
	When         time.Time
	URL          url.URL
	Err          error
	Nested       []map[string][]inner
	Key          textKey
}

func jsonSample() jsonAll {
	n, list := 7, []int(nil)
	p := &n
	return jsonAll{
		Bool: true, I8: -128, I64: math.MinInt64, U64: math.MaxUint64, F32: 0.1, F64: 0.1,
		Text: "line\n\"quoted\" \\ \u2028 \x00\x7f €", Binary: "\xff\xfe", Raw: []byte{0, 1, 255}, Array: [3]byte{1, 2, 3},
		List: []int{0, -1, 1 << 60}, PtrPtr: &p, PtrSlice: &list,
		ByInt: map[int]string{-5: "a", 0: "b", 1 << 40: "c"}, ByBool: map[bool]int{true: 1, false: 0},
		ByText: map[string]float64{"$base64": 1, "$": 2, "$$x": -0.5, "": 1e300, "\xff": 5e-324, "$base64:x": 3},
		ByKey:  map[textKey]uint8{{-1, 2}: 1, {3, 4}: 2},
		When:   time.Date(2026, 1, 2, 3, 4, 5, 6, time.FixedZone("X", 3600)).Round(0),
		URL:    url.URL{Scheme: "https", Host: "h", Path: "/p"},
		Err:    &fs.PathError{Op: "open", Path: "x", Err: io.EOF},
		Nested: []map[string][]inner{{"k": {{1, nil}, {2, []string{}}}}, nil, {}},
		Key:    textKey{-3, 'x'},
	}
}

var jsonCodec = Args(reflect.TypeFor[jsonAll](), "test", []Param{{Name: "v"}})

func encodeJSON(t testing.TB, v *jsonAll) []byte {
	t.Helper()
	p, err := EncodeRequest(Request{ID: "x.y", JSON: true, MaxPayload: 1 << 20, Meta: []string{"a", "b"}}, jsonCodec, testErrors(), v, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Segments) > 0 || !json.Valid(p.Body) {
		t.Fatalf("not JSON alone: %s", p.Body)
	}
	return p.Body
}

func decodeJSON(body []byte, v *jsonAll) (*OpenedRequest, error) {
	r, err := OpenRequest(Payload{Body: body}, testErrors())
	if err == nil {
		err = r.Args(jsonCodec, v)
	}
	return r, err
}

var compareKeys = cmp.AllowUnexported(textKey{})

func TestJSONBringsEverythingBack(t *testing.T) {
	for _, f := range []float64{0.1, 1, -1, 0, math.Copysign(0, -1), math.MaxFloat64, math.SmallestNonzeroFloat64, 1 << 53, 1e21, 123456789.125, math.Nextafter(1, 2)} {
		for _, text := range []string{"", strings.Repeat("x", SegmentMin), strings.Repeat("\xff", SegmentMin)} {
			want := jsonSample()
			want.F64, want.F32, want.Text, want.Raw = f, float32(f), text, []byte(text)
			if math.IsInf(float64(want.F32), 0) {
				want.F32 = math.MaxFloat32
			}
			p := Payload{Body: encodeJSON(t, &want)}
			p.SetTimeout(time.Hour)
			var got jsonAll
			r, err := decodeJSON(p.Body, &got)
			if err != nil {
				t.Fatal(err)
			}
			if r.ID != "x.y" || r.Timeout != time.Hour || r.MaxPayload != 1<<20 || !r.JSON || !reflect.DeepEqual(r.Meta, []string{"a", "b"}) {
				t.Errorf("request %+v", r.Request)
			}
			if math.Float64bits(got.F64) != math.Float64bits(f) || math.Float32bits(got.F32) != math.Float32bits(want.F32) {
				t.Errorf("floats %v, %v became %v, %v", f, want.F32, got.F64, got.F32)
			}
			if diff := cmp.Diff(want, got, compareKeys, cmp.Comparer(func(a, b error) bool { return a.Error() == b.Error() && errors.Is(a, io.EOF) == errors.Is(b, io.EOF) })); diff != "" {
				t.Error("(-want +got):\n" + diff)
			}
		}
	}
}

// What people read, and other programs write.
func TestJSONText(t *testing.T) {
	type pair struct {
		Name string
		Size float32
		Data []byte
	}
	c := Args(reflect.TypeFor[struct {
		A pair
		B map[int]bool
	}](), "test", []Param{{Name: "a"}, {Name: "b"}})
	v := struct {
		A pair
		B map[int]bool
	}{pair{"n", 0.1, []byte("hello")}, map[int]bool{7: true}}
	p, err := EncodeRequest(Request{ID: "x", JSON: true, MaxPayload: 5}, c, nil, &v, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"timeout_ns":0                   ,"id":"x","max_payload":5,"shared":false,"meta":[],"args":[{"Name":"n","Size":0.1,"Data":"aGVsbG8="},{"7":true}]}`
	if string(p.Body) != want {
		t.Errorf("got  %s\nwant %s", p.Body, want)
	}
	// Other order, spaces, escapes, integers for floats.
	const other = ` { "id":"x", "args":[{"Size":3e0 ,"Data":null, "\u004eame":"\ud83d\ude00\/"}, {"-1" :false}],
	"shared":true, "max_payload":5,"timeout_ns": 1, "meta":[ ]}` + "\n"
	r, err := OpenRequest(Payload{Body: []byte(other[1:])}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Args(c, &v); err != nil || v.A.Name != "😀/" || v.A.Size != 3 || v.A.Data != nil || len(v.B) != 1 || v.B[-1] {
		t.Errorf("%+v, %v", v, err)
	}
}

func TestJSONRefuses(t *testing.T) {
	type s struct {
		A int
		F []float64
		M map[int]uint8
		B []byte
	}
	c := Args(reflect.TypeFor[s](), "test", []Param{{Name: "v"}})
	body := func(args string) string {
		return `{"timeout_ns":0,"id":"x","max_payload":5,"shared":false,"meta":[],"args":` + args + `}`
	}
	deep := strings.Repeat("[", 5000)
	for _, x := range []struct{ body, want string }{
		{body(`{"A":1,"F":[],"M":{},"C":""}`), `v: unknown field "C"`},
		{body(`{"A":1,"A":2,"F":[],"M":{}}`), "v.A: duplicate field"},
		{body(`{"A":1,"F":[],"M":{"1":1,"1":2},"B":null}`), "v.M[1]: duplicate key"},
		{body(`{"A":1,"F":[],"M":{"01":1},"B":null}`), `v.M[key]: key "01" is no int`},
		{body(`{"A":1,"F":[],"M":{"1":256},"B":null}`), "v.M[1]: 256 overflows uint8"},
		{body(`{"A":1.0,"F":[],"M":{},"B":null}`), "v.A: expected an integer, found a number that is no integer"},
		{body(`{"A":"1","F":[],"M":{},"B":null}`), "v.A: expected an integer, found text"},
		{body(`{"A":18446744073709551615,"F":[],"M":{},"B":null}`), "v.A: integer overflows int64"},
		{body(`{"A":1,"F":["x"],"M":{},"B":null}`), "v.F[0]: expected a number, found text"},
		{body(`{"A":1,"F":[1e999],"M":{},"B":null}`), "v.F[0]: 1e999 is no float of 64 bits"},
		{body(`{"A":1,"F":[],"M":{},"B":"%%"}`), "v.B: not base64"},
		{body(`{"A":1,"F":[],"M":{},"B":{"$base64":"%%"}}`), "args.B.$base64: not base64"},
		{body(`{"A":1,"F":[],"M":{"$x":1},"B":null}`), "args.M.$x: unknown key"},
		{body(`{"A":1,"F":[1,,2]}`), "args.F[1]: expected a value at byte"},
		{body(`{"A":01}`), "args.A: malformed number"},
		{body(`{"A":1.}`), "args.A: malformed number"},
		{body("\"\x01\""), "args: control character"},
		{body("\"\xff\""), "args: text is not UTF-8"},
		{body(`"\ud800x"`), "args: malformed escape"},
		{body(deep), "nested deeper than 1000"},
		{body(`1`), "v: expected a map, found an integer"},
		{body(`1`) + "x", "1 bytes too many"},
		{`{"id":"x"}`, "expected the members timeout_ns, id"},
		{`{"id":"x","id":"y"}`, "id: duplicate member"},
		{`{"what":1}`, "what: unknown member"},
		{`{`, "ends too early"},
		{body(`"x`), "args: text does not end"},
	} {
		r, err := OpenRequest(Payload{Body: []byte(x.body)}, nil)
		if err == nil {
			err = r.Args(c, new(s))
		}
		if errdefs.CodeOf(err) != "E9005" || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%.80s: %v, want E9005 … %s", x.body, err, x.want)
		}
	}
	for _, f := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		_, err := EncodeRequest(Request{JSON: true}, c, nil, &s{F: []float64{0, f}}, 1<<20)
		if errdefs.CodeOf(err) != "E9002" || !strings.Contains(err.Error(), "test: v.F[1]: ") {
			t.Errorf("%v: %v", f, err)
		}
		if _, err := EncodeRequest(Request{}, c, nil, &s{F: []float64{0, f}}, 1<<20); err != nil {
			t.Errorf("%v as CBOR: %v", f, err)
		}
	}
	// A million zeros are as many bytes of CBOR, and twice that of JSON.
	if _, err := EncodeRequest(Request{JSON: true}, Args(reflect.TypeFor[[]int](), "test", []Param{{Name: "v"}}), nil, ptr(make([]int, 1000)), 1500); errdefs.CodeOf(err) != "E9003" || !strings.Contains(err.Error(), "v as JSON has 2001 bytes") {
		t.Errorf("too large: %v", err)
	}
}

func ptr[T any](v T) *T { return &v }

func TestJSONResponse(t *testing.T) {
	errs := testErrors()
	c := Result(reflect.TypeFor[[]float64](), "test")
	answer := func(limit int64, fill func(*Response)) (Decoded, []float64, string) {
		t.Helper()
		r := NewResponse(errs, limit)
		r.JSON()
		fill(r)
		p := r.Finish(Counters{3, 4})
		if !json.Valid(p.Body) || !isJSON(p.Body) {
			t.Fatalf("not JSON: %s", p.Body)
		}
		var got []float64
		d, err := DecodeResponse(p, c, errs, nil, &got)
		if err != nil {
			t.Fatal(err)
		}
		if d.Counters != (Counters{3, 4}) {
			t.Errorf("counters %v", d.Counters)
		}
		return d, got, string(p.Body)
	}
	v := []float64{1, 0.5}
	if d, got, text := answer(100, func(r *Response) { r.Returned(c, &v, io.EOF) }); d.Outcome != Returned || d.Err != io.EOF || !reflect.DeepEqual(got, v) {
		t.Errorf("%+v, %v, %s", d, got, text)
	} else if want := `{"outcome":"returned","result":[1.0,0.5],"error":[0,"io.EOF"],"stdout":3,"stderr":4}`; text != want {
		t.Errorf("got %s, want %s", text, want)
	}
	if d, _, text := answer(100, func(r *Response) { r.Panicked(Panic{"v\xff", "s"}) }); d.Outcome != Panicked || d.Panic != (Panic{"v\xff", "s"}) {
		t.Errorf("%+v, %s", d, text)
	}
	if d, _, text := answer(100, func(r *Response) { r.Failed(io.EOF) }); d.Outcome != Failed || d.Err != io.EOF {
		t.Errorf("%+v, %s", d, text)
	}
	bad := []float64{1, math.NaN()}
	if d, _, text := answer(100, func(r *Response) { r.Returned(c, &bad, nil) }); d.Outcome != Failed || !strings.Contains(d.Err.Error(), "result[1]: NaN has no form in JSON") {
		t.Errorf("%+v, %s", d, text)
	}
	long := []float64{1.0 / 3, 1.0 / 7} // 19 bytes of CBOR
	if d, _, text := answer(30, func(r *Response) { r.Returned(c, &long, nil) }); d.Outcome != Failed || !strings.Contains(d.Err.Error(), "result as JSON has 40 bytes") {
		t.Errorf("%+v, %s", d, text)
	}
	if d, got, text := answer(30, func(r *Response) { r.Returned(c, &long, io.EOF) }); d.Outcome != Returned || d.Err != io.EOF || got != nil {
		t.Errorf("%+v, %v, %s", d, got, text)
	}
	for _, body := range []string{`{"outcome":"lost","result":null,"error":null,"stdout":0,"stderr":0}`, `{"outcome":"panicked","result":1,"error":null,"stdout":0,"stderr":0}`, `{}`} {
		if _, err := DecodeResponse(Payload{Body: []byte(body)}, c, errs, nil, new([]float64)); errdefs.CodeOf(err) != "E9005" {
			t.Errorf("%s: %v", body, err)
		}
	}
}

// FuzzJSONDecode: what is accepted is the same after another way there and back.
func FuzzJSONDecode(f *testing.F) {
	v := jsonSample()
	f.Add(encodeJSON(f, &v))
	f.Add([]byte(`{"timeout_ns":0,"id":"x","max_payload":5,"shared":false,"meta":[],"args":{"$tag":[24,"AA=="]}}`))
	f.Add([]byte(`{"outcome":"panicked","panic":"x","stack":"y","stdout":0,"stderr":0}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		DecodeResponse(Payload{Body: body}, Result(reflect.TypeFor[jsonAll](), "test"), testErrors(), nil, new(jsonAll))
		var first, second jsonAll
		if !isJSON(body) {
			return
		}
		if _, err := decodeJSON(body, &first); err != nil {
			if errdefs.CodeOf(err) != "E9005" {
				t.Errorf("not coded: %v", err)
			}
			return
		}
		if !json.Valid(body) {
			t.Errorf("accepted what is not JSON: %s", body)
		}
		p, err := EncodeRequest(Request{JSON: true, MaxPayload: 1}, jsonCodec, testErrors(), &first, 1<<30)
		if err != nil {
			t.Skip(err) // a time in a zone whose name is not text
		}
		if _, err := decodeJSON(p.Body, &second); err != nil {
			t.Fatalf("%v: %s", err, p.Body)
		}
		again, err := EncodeRequest(Request{JSON: true, MaxPayload: 1}, jsonCodec, testErrors(), &second, 1<<30)
		if err != nil || len(again.Body) != len(p.Body) { // maps have no order
			t.Errorf("%v\n%s\n%s", err, p.Body, again.Body)
		}
	})
}

// FuzzJSONEncode: both forms bring the same value.
func FuzzJSONEncode(f *testing.F) {
	f.Add(int64(1), 0.1, float32(0.1), "text", []byte("bytes"), true)
	f.Add(int64(math.MinInt64), math.Copysign(0, -1), float32(1e-45), "\xff$", []byte(nil), false)
	f.Fuzz(func(t *testing.T, i int64, d float64, s float32, text string, raw []byte, b bool) {
		in := jsonAll{
			Bool: b, I64: i, U64: uint64(i), I8: int8(i), F64: d, F32: s, Text: text, Raw: raw,
			ByInt: map[int]string{int(i): text}, ByText: map[string]float64{text: d}, ByBool: map[bool]int{b: int(i)},
			PtrSlice: &[]int{int(i)}, Nested: []map[string][]inner{{text: {{int(i), []string{text}}}}}, Err: errors.New(text),
		}
		if d != d || math.IsInf(d, 0) || s != s || math.IsInf(float64(s), 0) {
			_, err := EncodeRequest(Request{JSON: true}, jsonCodec, testErrors(), &in, 1<<20)
			if errdefs.CodeOf(err) != "E9002" {
				t.Fatalf("%v", err)
			}
			return
		}
		p, err := EncodeRequest(Request{}, jsonCodec, testErrors(), &in, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		var cbor, viaJSON jsonAll
		if _, err := decodeJSON(p.Body, &cbor); err != nil {
			t.Fatal(err)
		}
		body := encodeJSON(t, &in)
		if _, err := decodeJSON(bytes.Clone(body), &viaJSON); err != nil {
			t.Fatalf("%v: %s", err, body)
		}
		if diff := cmp.Diff(cbor, viaJSON, compareKeys, cmp.Comparer(func(a, b error) bool { return a.Error() == b.Error() })); diff != "" {
			t.Errorf("%s\n(-cbor +json):\n%s", body, diff)
		}
	})
}
