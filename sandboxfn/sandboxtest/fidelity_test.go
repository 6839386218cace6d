package sandboxtest_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"net/netip"
	"net/url"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/sandboxtest"
)

// echoed is one type with values that must come back as they were.
type echoed struct {
	name string
	run  func(t *testing.T, ctx context.Context)
}

var echoes []echoed

func echo[T any](name string, values ...T) bool { return echoBy(name, reflect.DeepEqual, values...) }

// echoBy is echo for types that reflect.DeepEqual does not compare as we mean.
func echoBy[T any](name string, equal func(a, b any) bool, values ...T) bool {
	f := declare("echo_"+strings.ReplaceAll(name, " ", "_"), func(_ context.Context, v T) (T, error) { return v, nil })
	echoes = append(echoes, echoed{name, func(t *testing.T, ctx context.Context) {
		for i, v := range values {
			got, err := f.Call(ctx, v)
			if err != nil {
				t.Errorf("value %d (%#v): %v", i, v, err)
			} else if !equal(v, got) {
				t.Errorf("value %d: got %#v, want %#v", i, got, v)
			}
		}
	}})
	return true
}

func bits64(a, b any) bool { return math.Float64bits(a.(float64)) == math.Float64bits(b.(float64)) }
func bits32(a, b any) bool { return math.Float32bits(a.(float32)) == math.Float32bits(b.(float32)) }

func ptr[T any](v T) *T { return &v }

type (
	named    string
	namedRaw []byte
	small    uint8
	pointers struct {
		S *string
		I *int
		B *bool
		N **int
	}
	lists struct {
		A []int          `json:",omitempty"`
		B []byte         `json:"b,omitempty"`
		C map[string]int `json:"c,omitempty"`
		D [][]byte
		E []*int
		F map[string][]byte
		G *[]int
		H *map[string]int
	}
	Base struct {
		ID   int
		Name string
	}
	embedded struct {
		Base
		*Extra
		Name string
		base
	}
	Extra struct{ Note string }
	base  struct{ Hid int }
	tree  struct {
		Value    int
		Children []*tree
		ByName   map[string]tree
	}
	page[T any] struct {
		Items []T
		Next  *page[T]
	}
	tagged struct {
		A int    `cbor:"x" json:"y"`
		B int    `json:"b"`
		C int    `sandbox:"name=q"`
		D string `sandbox:"-"`
	}
	shouting struct{ text string } // text only
	secret   struct{ n int }       // binary only
	event    struct {              // gets its methods from time.Time
		time.Time
		What string
	}
)

func (s shouting) MarshalText() ([]byte, error)  { return []byte(strings.ToUpper(s.text)), nil }
func (s *shouting) UnmarshalText(b []byte) error { s.text = strings.ToLower(string(b)); return nil }

func (s secret) MarshalBinary() ([]byte, error)  { return []byte{byte(s.n)}, nil }
func (s *secret) UnmarshalBinary(b []byte) error { s.n = int(b[0]); return nil }

func noise(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*i>>3 ^ i)
	}
	return b
}

var berlin, _ = time.LoadLocation("Europe/Berlin")

var _ = []bool{
	echo("bool", true, false),
	echo("int", 0, -1, 23, 24, 255, 256, 65536, 1<<32, math.MinInt64, math.MaxInt64, 1<<53+1),
	echo[int8]("int8", -1, math.MinInt8, math.MaxInt8),
	echo[int16]("int16", -1, math.MinInt16, math.MaxInt16),
	echo[int32]("int32", -1, math.MinInt32, math.MaxInt32),
	echo[int64]("int64", -1, math.MinInt64, math.MaxInt64),
	echo[uint]("uint", 0, math.MaxUint64),
	echo[uint8]("uint8", 0, 255),
	echo[uint16]("uint16", 0, math.MaxUint16),
	echo[uint32]("uint32", 0, math.MaxUint32),
	echo[uint64]("uint64", 0, math.MaxUint64, 1<<53+1),
	echoBy("float64", bits64, 0, math.Copysign(0, -1), 0.1, math.MaxFloat64, math.SmallestNonzeroFloat64, math.Inf(1), math.Inf(-1),
		math.NaN(), math.Float64frombits(0x7ff0000000000001), math.Float64frombits(0xfff8000000000123)),
	echoBy("float32", bits32, float32(0.1), float32(math.Copysign(0, -1)), float32(math.Inf(-1)), float32(math.NaN()), math.Float32frombits(0x7f800001)),
	echo("string", "", "text", "häß\x00", "not \xff UTF-8", strings.Repeat("long ", 20_000), "\xff"+strings.Repeat("x", 40_000)),
	echo[named]("named string", "", "x"),
	echo("rune", 'ä'),
	echo("bytes", nil, []byte{}, []byte("x"), noise(32<<10-1), noise(32<<10), noise(5<<20)),
	echo("named bytes", namedRaw(nil), namedRaw{}, namedRaw{1}),
	echo("bytes of a type", []small(nil), []small{}, []small{1, 2}),
	echo("array", [3]int{1, 2, 3}),
	echo("byte array", [16]byte{1, 15: 2}),
	echo("big array", [40_000]byte{7: 9}),
	echo("slice", []int(nil), []int{}, []int{1, -2}),
	echo("slice of slices", [][]int{nil, {}, {1}}),
	echo("slice of bytes", [][]byte{nil, {}, {1}, noise(40_000), noise(50_000)}),
	echo("slice of pointers", []*int{nil, ptr(0), ptr(1)}),
	echo("slice of structs", []Base{{}, {1, "a"}}),
	echo("slice of empty structs", []struct{}{{}, {}}),
	echo("map", map[string]int(nil), map[string]int{}, map[string]int{"": 0, "a": 1}),
	echo("map of bytes", map[string][]byte{"nil": nil, "empty": {}, "x": {1}}),
	echo("map by int", map[int8]string{-1: "a", 5: "b"}),
	echo("map by bool", map[bool]*int{true: nil, false: ptr(0)}),
	echo("map by text", map[netip.Addr]int{netip.MustParseAddr("::1"): 1}),
	echo("map of maps", map[named]map[string]int{"a": nil, "b": {}, "c": {"x": 1}}),
	echo("pointer", nil, ptr(0), ptr(5)),
	echo("pointer to pointer", nil, ptr((*int)(nil)), ptr(ptr(0))),
	echo("pointer to slice", nil, ptr([]int(nil)), ptr([]int{}), ptr([]int{1})),
	echo("pointers", pointers{}, pointers{ptr(""), ptr(0), ptr(false), ptr(ptr(0))}, pointers{N: ptr((*int)(nil))}),
	echo("slices in a struct", lists{},
		lists{[]int{}, []byte{}, map[string]int{}, [][]byte{}, []*int{}, map[string][]byte{}, ptr([]int{}), ptr(map[string]int{})},
		lists{G: ptr([]int(nil)), H: ptr(map[string]int(nil))}),
	echo("embedded", embedded{}, embedded{Base{1, "inner"}, &Extra{"n"}, "outer", base{3}}, embedded{Extra: &Extra{}}),
	echo("recursive", tree{}, tree{1, []*tree{nil, {Value: 2}}, map[string]tree{"a": {Value: 3, Children: []*tree{}}}}),
	echo("generic", page[Base]{}, page[Base]{[]Base{{1, "a"}}, &page[Base]{}}),
	echo("tags", tagged{A: 1, B: 2, C: 3}),
	echo("empty struct", struct{}{}),
	echo("none", sandboxfn.None{}),
	echo("text marshaler", shouting{"quiet"}),
	echo("pointer to a text marshaler", nil, &shouting{"quiet"}),
	echo("binary marshaler", []secret{{1}, {2}}),
	echo("promoted marshaler", event{time.Unix(5, 6).UTC(), "kept"}),
	echo("duration", time.Duration(0), -time.Second, time.Duration(math.MaxInt64)),
	echoBy("time", sameTime, time.Time{}, time.Unix(1, 999_999_999), time.Unix(-1<<40, 1).UTC(), time.Now(),
		time.Date(2026, 7, 1, 12, 0, 0, 123, time.FixedZone("ABC", -12345)), time.Date(2026, 1, 1, 0, 0, 0, 0, time.FixedZone("", 0)),
		time.Date(2026, 7, 1, 12, 0, 0, 0, berlin), time.Date(2026, 1, 1, 12, 0, 0, 0, berlin)),
	echo("zero time", time.Time{}),
	echo("addresses", struct {
		A netip.Addr
		P netip.AddrPort
		N netip.Prefix
	}{}, struct {
		A netip.Addr
		P netip.AddrPort
		N netip.Prefix
	}{netip.MustParseAddr("fe80::1%eth0"), netip.MustParseAddrPort("1.2.3.4:5"), netip.MustParsePrefix("10.0.0.0/8")}),
	echo("url", nil, mustURL("https://u:p@example.com:8080/a%2Fb?q=1#f"), mustURL("mailto:x@y"), &url.URL{Path: "a:b", ForceQuery: true, User: url.User("u")}, &url.URL{}),
	echoBy("big int", sameText, new(big.Int), new(big.Int).Neg(new(big.Int).Lsh(big.NewInt(7), 200))),
	echoBy("big float", sameText, big.NewFloat(math.Inf(-1)), new(big.Float).SetPrec(300).Quo(big.NewFloat(1), big.NewFloat(3))),
	echoBy("big rat", sameText, big.NewRat(-1, 3)),
	echo("raw JSON", json.RawMessage(nil), json.RawMessage(`{"a": [1,  2]}`)),
	echo("null string", sql.NullString{}, sql.NullString{Valid: true}, sql.NullString{String: "x", Valid: true}),
	echo("null of a type", sql.Null[int64]{V: 1, Valid: true}),
	echoBy("protocol buffer", func(a, b any) bool { return proto.Equal(a.(proto.Message), b.(proto.Message)) },
		wrapperspb.String("x"), wrapperspb.String(""), (*wrapperspb.StringValue)(nil)),
	echoBy("regexp", sameText, regexp.MustCompile(`a+(b|c)`)),
}

func sameText(a, b any) bool {
	return fmt.Sprint(a) == fmt.Sprint(b) && reflect.TypeOf(a) == reflect.TypeOf(b)
}

func sameTime(a, b any) bool {
	x, y := a.(time.Time), b.(time.Time)
	xn, xo := x.Zone()
	yn, yo := y.Zone()
	return x.Equal(y) && xn == yn && xo == yo && x.Location().String() == y.Location().String() &&
		!strings.Contains(y.String(), "m=")
}

func mustURL(s string) *url.URL {
	u, err := url.Parse(s)
	if err != nil {
		panic(err)
	}
	return u
}

func TestFidelity(t *testing.T) {
	for mode, begin := range map[string]func(testing.TB) context.Context{"in process": sandboxtest.InProcess, "process": sandboxtest.Process} {
		t.Run(mode, func(t *testing.T) {
			ctx := begin(t)
			for _, e := range echoes {
				t.Run(e.name, func(t *testing.T) { e.run(t, ctx) })
			}
		})
	}
}

type manyArgs struct {
	A []byte
	B string
	C *int
}

var many = declareDecl(sandboxfn.Decl{Name: "many", Params: []sandboxfn.Param{{Name: "a"}, {Name: "b"}, {Name: "c"}}},
	func(_ context.Context, a manyArgs) (manyArgs, error) {
		a.A[0]++ // the function's own copy
		return a, nil
	})

func TestArgumentsAreCopies(t *testing.T) {
	for mode, begin := range map[string]func(testing.TB) context.Context{"in process": sandboxtest.InProcess, "process": sandboxtest.Process} {
		t.Run(mode, func(t *testing.T) {
			for _, size := range []int{1, 100_000} {
				in := manyArgs{make([]byte, size), strings.Repeat("s", size), ptr(3)}
				out, err := many.Call(begin(t), in)
				if err != nil {
					t.Fatal(err)
				}
				if in.A[0] != 0 || out.A[0] != 1 || out.B != in.B || *out.C != 3 {
					t.Errorf("size %d: in[0] = %d, out[0] = %d", size, in.A[0], out.A[0])
				}
			}
		})
	}
}

var loops = declare("loops", func(_ context.Context, v *tree) (int, error) { return v.Value, nil })

func TestCycleIsRefused(t *testing.T) {
	v := &tree{}
	v.Children = []*tree{v}
	_, err := loops.Call(sandboxtest.InProcess(t), v)
	want := "v.Children[0].Children[0].Children[0].Children[0].Children[0]…: nested deeper than 1000; the value may contain itself"
	if sandboxfn.CodeOf(err) != "E9002" || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v\nwant E9002 with %q", err, want)
	}
}

var sized = declareDecl(sandboxfn.Decl{Name: "sized", Params: []sandboxfn.Param{{Name: "img"}, {Name: "n"}}, Options: sandboxfn.Options{MaxPayload: 100 * sandboxfn.KiB}},
	func(_ context.Context, a struct {
		Img []byte
		N   int
	}) ([]byte, error) {
		return make([]byte, a.N), nil
	})

func TestMaxPayload(t *testing.T) {
	ctx := sandboxtest.Process(t)
	type args = struct {
		Img []byte
		N   int
	}
	if _, err := sized.Call(ctx, args{make([]byte, 90_000), 90_000}); err != nil {
		t.Error(err)
	}
	_, err := sized.Call(ctx, args{Img: make([]byte, 200_000)})
	if sandboxfn.CodeOf(err) != "E9003" || !strings.Contains(err.Error(), "img has 200004 bytes, which is over the limit of 102400") {
		t.Errorf("big argument: %v", err)
	}
	_, err = sized.Call(ctx, args{N: 200_000})
	if sandboxfn.CodeOf(err) != "E9003" || !strings.Contains(err.Error(), "result has 200004 bytes") {
		t.Errorf("big result: %v", err)
	}
}
