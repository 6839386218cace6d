package gentest

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"math/big"
	"net/netip"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/agent-sandbox/sandbox-go/gen/gentest/helpers"
	"github.com/agent-sandbox/sandbox-go/gen/gentest/other"
	"github.com/agent-sandbox/sandbox-go/gen/gentest/own"
)

// A Case is one call, made plainly and through the wrapper. Both must give the
// same, which [Diff] decides.
type Case struct {
	Name          string
	Plain, Remote func(context.Context) (any, error)
}

// list packs the results of a call.
func list(values ...any) []any { return values }

// only packs a call without results.
func only(err error) (any, error) { return nil, err }

// deadline is what the plain call of a function gets that insists on one.
func deadline(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, time.Minute)
}

// Table returns the cases in a fixed order. They can be run concurrently.
func Table() []Case {
	return slices.Concat(signatures(), data(), errorCases(), live(), streams(), batches(), classes(), paths(), []Case{
		{"predeclared names", func(ctx context.Context) (any, error) { return own.Plain(ctx), nil },
			func(ctx context.Context) (any, error) { return own.Remote(ctx) }},
		{"helpers", func(ctx context.Context) (any, error) { return helpers.Plain(ctx) },
			func(ctx context.Context) (any, error) { return helpers.Remote(ctx) }},
	})
}

func signatures() []Case {
	return []Case{
		{"nothing", func(context.Context) (any, error) { nothing(); return nil, nil },
			func(ctx context.Context) (any, error) { return only(Nothing(ctx)) }},
		{"only context", func(ctx context.Context) (any, error) { onlyContext(ctx); return nil, nil },
			func(ctx context.Context) (any, error) { return only(OnlyContext(ctx)) }},
		{"only error", func(context.Context) (any, error) { return only(onlyError()) },
			func(ctx context.Context) (any, error) { return only(OnlyError(ctx)) }},
		{"only result", func(context.Context) (any, error) { return onlyResult(), nil },
			func(ctx context.Context) (any, error) { return OnlyResult(ctx) }},
		{"result and error", func(context.Context) (any, error) { return resultAndError(1) },
			func(ctx context.Context) (any, error) { return ResultAndError(ctx, 1) }},
		{"error beside result", func(context.Context) (any, error) { return resultAndError(-1) },
			func(ctx context.Context) (any, error) { return ResultAndError(ctx, -1) }},
		{"context and all", func(ctx context.Context) (any, error) {
			ctx, cancel := deadline(ctx)
			defer cancel()
			a, b, err := contextAndAll(ctx, "n", "v", 1, 2, 3)
			return list(a, b), err
		}, func(ctx context.Context) (any, error) {
			a, b, err := ContextAndAll(ctx, "n", "v", 1, 2, 3)
			return list(a, b), err
		}},
		{"many results", func(context.Context) (any, error) {
			a, b, c, d := manyResults(5)
			return list(a, b, c, d), nil
		}, func(ctx context.Context) (any, error) {
			a, b, c, d, err := ManyResults(ctx, 5)
			return list(a, b, c, d), err
		}},
		{"named results", func(context.Context) (any, error) {
			a, b, err := namedResults("Text")
			return list(a, b), err
		}, func(ctx context.Context) (any, error) {
			a, b, err := NamedResults(ctx, "Text")
			return list(a, b), err
		}},
		{"unnamed", func(ctx context.Context) (any, error) { return unnamed(ctx, 1, "x"), nil },
			func(ctx context.Context) (any, error) { return Unnamed(ctx, 1, "x") }},
		{"blank", func(ctx context.Context) (any, error) { return blank(ctx, 1, "x", true, false) },
			func(ctx context.Context) (any, error) { return Blank(ctx, 1, "x", true, false) }},
		{"variadic", func(context.Context) (any, error) { return sum(1, 2, 3), nil },
			func(ctx context.Context) (any, error) { return Sum(ctx, 1, 2, 3) }},
		{"variadic without", func(context.Context) (any, error) { return sum(), nil },
			func(ctx context.Context) (any, error) { return Sum(ctx) }},
		{"variadic after another", func(context.Context) (any, error) { return join("-", "a", "b") },
			func(ctx context.Context) (any, error) { return Join(ctx, "-", "a", "b") }},
		{"renamed", func(context.Context) (any, error) { return original("a", "b", "c"), nil },
			func(ctx context.Context) (any, error) { return Renamed(ctx, "a", "b", "c") }},
		{"exported", func(context.Context) (any, error) { return Exported(7) },
			func(ctx context.Context) (any, error) { return ExportedRemote(ctx, 7) }},
		{"checked", func(context.Context) (any, error) { return checked(9, "x") },
			func(ctx context.Context) (any, error) { return Checked(ctx, 9, "x") }},
		{"handle", func(context.Context) (any, error) { return join(",", "x", "y") },
			func(ctx context.Context) (any, error) {
				return JoinFunc.Call(ctx, JoinArgs{Sep: ",", Parts: []string{"x", "y"}})
			}},
		{"handle here", func(context.Context) (any, error) { return join(",", "x", "y") },
			func(ctx context.Context) (any, error) {
				return JoinFunc.Local(ctx, JoinArgs{Sep: ",", Parts: []string{"x", "y"}})
			}},
	}
}

func data() []Case {
	var cases []Case
	numbersCase := func(name string, n Numbers) {
		cases = append(cases, Case{"numbers " + name,
			func(context.Context) (any, error) { return echoNumbers(n) },
			func(ctx context.Context) (any, error) { return EchoNumbers(ctx, n) }})
	}
	numbersCase("zero", Numbers{})
	numbersCase("low", Numbers{true, math.MinInt, math.MinInt8, math.MinInt16, math.MinInt32, math.MinInt64, 0, 0, 0, 0, 0,
		-math.MaxFloat32, -math.MaxFloat64, "\x00", -1, 0})
	numbersCase("high", Numbers{true, math.MaxInt, math.MaxInt8, math.MaxInt16, math.MaxInt32, math.MaxInt64, math.MaxUint,
		math.MaxUint8, math.MaxUint16, math.MaxUint32, math.MaxUint64, math.MaxFloat32, math.MaxFloat64, "é世界", 0x10ffff, 255})
	numbersCase("odd", Numbers{Int64: 1<<53 + 1, Uint64: 1<<63 + 1, Float32: 0.1, Float64: math.Copysign(0, -1), Int: -1, Int8: -1, Int16: -1, Int32: -1})
	numbersCase("not numbers", Numbers{Float32: float32(math.Inf(-1)), Float64: math.NaN()})
	numbersCase("payload of NaN", Numbers{Float64: math.Float64frombits(0x7ff8000000000123), Float32: float32(math.Inf(1))})

	one, zero, empty, text := 1, 0, "", "text"
	tree := &Tree{Value: "root", Left: &Tree{Value: "left"}, Right: &Tree{Right: &Tree{}}}
	containersCase := func(name string, c *Containers) {
		cases = append(cases, Case{"containers " + name,
			func(context.Context) (any, error) { return echoContainers(c) },
			func(ctx context.Context) (any, error) { return EchoContainers(ctx, c) }})
	}
	containersCase("nil", nil)
	containersCase("zero", &Containers{})
	containersCase("empty", &Containers{Bytes: []byte{}, Strings: []string{}, Matrix: [][]int{}, Map: map[string][]int{}, ByInt: map[int]string{}, Structs: []*Tree{}})
	containersCase("full", &Containers{
		Bytes: []byte{0, 255}, Strings: []string{"", "x"}, Matrix: [][]int{nil, {}, {1, 2}}, Array: [3]int{1, -2, 3}, Bytes4: [4]byte{1, 2, 3, 4},
		Map: map[string][]int{"a": {1}, "": nil, "e": {}}, ByInt: map[int]string{-1: "x"}, ByBool: map[bool]int{true: 1, false: 0},
		ByLevel: map[Level]string{7: "seven"}, ByState: map[State]int{{"on"}: 1}, Pointer: &zero, Structs: []*Tree{nil, tree, {}},
	})
	cases = append(cases, Case{"basics", func(context.Context) (any, error) {
		a, b, c, d, e, f, g, h, i, j := basics(true, -8, 1<<63, 0.5, 1e300, "s", 'é', 'x', 36.6, 3)
		return list(a, b, c, d, e, f, g, h, i, j), nil
	}, func(ctx context.Context) (any, error) {
		a, b, c, d, e, f, g, h, i, j, err := Basics(ctx, true, -8, 1<<63, 0.5, 1e300, "s", 'é', 'x', 36.6, 3)
		return list(a, b, c, d, e, f, g, h, i, j), err
	}})
	bytesCase := func(name string, a []byte, b Blob, c [][]byte) {
		cases = append(cases, Case{"bytes " + name, func(context.Context) (any, error) {
			a, b, c := byteSlices(a, b, c)
			return list(a, b, c), nil
		}, func(ctx context.Context) (any, error) {
			a, b, c, err := ByteSlices(ctx, a, b, c)
			return list(a, b, c), err
		}})
	}
	large := []byte(strings.Repeat("0123456789abcdef", 1<<14))
	bytesCase("nil", nil, nil, nil)
	bytesCase("empty", []byte{}, Blob{}, [][]byte{nil, {}})
	bytesCase("small", []byte{1}, Blob{2}, [][]byte{{3}, {4, 5}})
	bytesCase("large", large, large, [][]byte{large, {}, large[:1<<15], nil})
	pointersCase := func(name string, p *int, s *string, t *Tree, l []*int) {
		cases = append(cases, Case{"pointers " + name, func(context.Context) (any, error) {
			a, b, c, d := pointers(p, s, t, l)
			return list(a, b, c, d), nil
		}, func(ctx context.Context) (any, error) {
			a, b, c, d, err := Pointers(ctx, p, s, t, l)
			return list(a, b, c, d), err
		}})
	}
	pointersCase("nil", nil, nil, nil, nil)
	pointersCase("zero", &zero, &empty, &Tree{}, []*int{})
	pointersCase("full", &one, &text, tree, []*int{nil, &zero, &one})
	return append(cases, structured()...)
}

func structured() []Case {
	type anonymous = struct {
		X int `json:"x"`
		Y []struct{ Z string }
	}
	outer := Outer{inner: inner{4}, Base: &Base{"id"}, Named: "n", Wire: "w", Renamed: "r"}
	item := &other.Item{Name: "a", Sub: map[string][]*other.Item{"k": {{Name: "b"}, nil}}, Deep: other.Deep{Numbers: [2][]int{{1}, nil}}}
	extra := anonymous{X: 3, Y: []struct{ Z string }{{"z"}}}
	page := Page[int]{Items: []int{1}, Next: &Page[int]{Items: []int{}}}
	pages := Page[Page[string]]{Items: []Page[string]{{Items: []string{"x"}}}}
	pair := other.Pair[string, []byte]{A: "a", B: []byte("b")}
	alias := Alias{"x": {A: 1, B: 2}, "nil": nil}
	state, sealed := State{"on"}, Sealed{[]byte("key")}
	zone := time.FixedZone("HERE", 3600+1800)
	at := time.Date(2024, 2, 29, 23, 59, 59, 123456789, zone)
	stamped := Stamped{Time: at, inner: &inner{5}, Base: Base{"b"}, Name: "n", Tags: []int{}}
	link := url.URL{Scheme: "https", User: url.UserPassword("u", "p"), Host: "h:1", Path: "/a b", RawQuery: "x=1", Fragment: "f"}
	integer, _ := new(big.Int).SetString("-123456789012345678901234567890", 10)
	ratio, float := *big.NewRat(-3, 7), big.NewFloat(1.5)
	return []Case{
		{"structs", func(ctx context.Context) (any, error) {
			a, b, c, d, err := structs(ctx, outer, unexported{1, 2}, item, extra)
			return list(a, b, c, d), err
		}, func(ctx context.Context) (any, error) {
			// What is marked sandbox:"-" stays here, so it must not come back.
			sent := outer
			sent.Secret, sent.cache = "secret", map[string]string{"k": "v"}
			a, b, c, d, err := Structs(ctx, sent, unexported{1, 2}, item, extra)
			return list(a, b, c, d), err
		}},
		{"embedded", func(context.Context) (any, error) {
			a, b, err := embedded(stamped, []Stamped{{}, stamped})
			return list(a, b), err
		}, func(ctx context.Context) (any, error) {
			a, b, err := Embedded(ctx, stamped, []Stamped{{}, stamped})
			return list(a, b), err
		}},
		{"generics", func(context.Context) (any, error) {
			a, b, c, d, e := generics(page, pages, pair, alias, other.Ints{A: 1})
			return list(a, b, c, d, e), nil
		}, func(ctx context.Context) (any, error) {
			a, b, c, d, e, err := Generics(ctx, page, pages, pair, alias, other.Ints{A: 1})
			return list(a, b, c, d, e), err
		}},
		{"marshalers", func(context.Context) (any, error) {
			a, b, c, d, e := marshalers(state, &state, sealed, []Sealed{sealed, {}}, map[State]Sealed{state: sealed})
			return list(a, b, c, d, e), nil
		}, func(ctx context.Context) (any, error) {
			a, b, c, d, e, err := Marshalers(ctx, state, &state, sealed, []Sealed{sealed, {}}, map[State]Sealed{state: sealed})
			return list(a, b, c, d, e), err
		}},
		{"marshalers nil", func(context.Context) (any, error) {
			a, b, c, d, e := marshalers(State{}, nil, Sealed{}, nil, nil)
			return list(a, b, c, d, e), nil
		}, func(ctx context.Context) (any, error) {
			a, b, c, d, e, err := Marshalers(ctx, State{}, nil, Sealed{}, nil, nil)
			return list(a, b, c, d, e), err
		}},
		{"times", func(context.Context) (any, error) {
			a, b, c, d := times(at, time.Nanosecond-time.Hour, &at, []time.Time{{}, at.UTC(), time.Unix(0, 1).UTC()})
			return list(a, b, c, d), nil
		}, func(ctx context.Context) (any, error) {
			a, b, c, d, err := Times(ctx, at, time.Nanosecond-time.Hour, &at, []time.Time{{}, at.UTC(), time.Unix(0, 1).UTC()})
			return list(a, b, c, d), err
		}},
		{"nets", func(context.Context) (any, error) {
			a, b, c, d, e := nets(netip.MustParseAddr("fe80::1%eth0"), netip.MustParsePrefix("10.0.0.0/8"), netip.MustParseAddrPort("[::1]:80"), link, &link)
			return list(a, b, c, d, e), nil
		}, func(ctx context.Context) (any, error) {
			a, b, c, d, e, err := Nets(ctx, netip.MustParseAddr("fe80::1%eth0"), netip.MustParsePrefix("10.0.0.0/8"), netip.MustParseAddrPort("[::1]:80"), link, &link)
			return list(a, b, c, d, e), err
		}},
		{"nets zero", func(context.Context) (any, error) {
			a, b, c, d, e := nets(netip.Addr{}, netip.Prefix{}, netip.AddrPort{}, url.URL{}, nil)
			return list(a, b, c, d, e), nil
		}, func(ctx context.Context) (any, error) {
			a, b, c, d, e, err := Nets(ctx, netip.Addr{}, netip.Prefix{}, netip.AddrPort{}, url.URL{}, nil)
			return list(a, b, c, d, e), err
		}},
		{"bigs", func(context.Context) (any, error) {
			a, b, c, d := bigs(integer, ratio, float, []big.Int{*integer, {}})
			return list(a, b, c, d), nil
		}, func(ctx context.Context) (any, error) {
			a, b, c, d, err := Bigs(ctx, integer, ratio, float, []big.Int{*integer, {}})
			return list(a, b, c, d), err
		}},
		{"library", func(context.Context) (any, error) {
			a, b, c, d := library(json.RawMessage(`{"a":1}`), sql.NullString{String: "x", Valid: true}, sql.Null[int]{V: 3}, regexp.MustCompile("a+"))
			return list(a, b, c, d), nil
		}, func(ctx context.Context) (any, error) {
			a, b, c, d, err := Library(ctx, json.RawMessage(`{"a":1}`), sql.NullString{String: "x", Valid: true}, sql.Null[int]{V: 3}, regexp.MustCompile("a+"))
			return list(a, b, c, d), err
		}},
		{"protos", func(context.Context) (any, error) { return protos(timestamppb.New(at)) },
			func(ctx context.Context) (any, error) { return Protos(ctx, timestamppb.New(at)) }},
		{"validated", func(context.Context) (any, error) {
			return echoValidated(Validated{Name: "abc", Mail: []string{"a@example.com"}})
		},
			func(ctx context.Context) (any, error) {
				return EchoValidated(ctx, Validated{Name: "abc", Mail: []string{"a@example.com"}})
			}},
	}
}

func errorCases() []Case {
	var cases []Case
	for _, name := range slices.Sorted(maps.Keys(failures)) {
		cases = append(cases, Case{"error " + name,
			func(context.Context) (any, error) { return fail(name) },
			func(ctx context.Context) (any, error) { return Fail(ctx, name) }})
	}
	rep := Report{Err: ErrSentinel, Errs: []error{nil, io.EOF, ValueError("v")}, By: map[string]error{"p": &PointerError{Line: 2, Err: errHidden}}}
	return append(cases, Case{"errors as data", func(context.Context) (any, error) {
		a, b, err := echoReport(rep, io.EOF, errHidden, nil)
		return list(a, b), err
	}, func(ctx context.Context) (any, error) {
		a, b, err := EchoReport(ctx, rep, io.EOF, errHidden, nil)
		return list(a, b), err
	}})
}

// Diff says how the outcome of a sandboxed call differs from the plain one's,
// "" when it does not. Errors are the same when their text, their types and
// what they wrap are, and sentinels only when they are the very same value.
func Diff(remote any, remoteErr error, plain any, plainErr error) string {
	if d := diffErrors(remoteErr, plainErr); d != "" {
		return d
	}
	return cmp.Diff(remote, plain,
		cmp.Exporter(func(reflect.Type) bool { return true }),
		cmp.Comparer(func(a, b error) bool { return diffErrors(a, b) == "" }),
		// Going through large slices element by element takes most of the time of the tests.
		cmp.Comparer(func(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }),
		cmp.Comparer(func(a, b float64) bool { return math.Float64bits(a) == math.Float64bits(b) }),
		cmp.Comparer(func(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) }),
		cmp.Comparer(func(a, b time.Time) bool {
			an, ao := a.Zone()
			bn, bo := b.Zone()
			return a.Equal(b) && an == bn && ao == bo
		}),
		cmp.Comparer(func(a, b *big.Int) bool { return a == b || a != nil && b != nil && a.Cmp(b) == 0 }),
		cmp.Comparer(func(a, b big.Int) bool { return a.Cmp(&b) == 0 }),
		cmp.Comparer(func(a, b big.Rat) bool { return a.Cmp(&b) == 0 }),
		cmp.Comparer(func(a, b *big.Float) bool { return a == b || a != nil && b != nil && a.Cmp(b) == 0 }),
		cmp.Comparer(func(a, b *regexp.Regexp) bool { return a == b || a != nil && b != nil && a.String() == b.String() }),
		cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
		cmp.Comparer(func(a, b *timestamppb.Timestamp) bool { return proto.Equal(a, b) }),
	)
}

func diffErrors(remote, plain error) string {
	switch {
	case remote == nil && plain == nil:
		return ""
	case remote == nil || plain == nil:
		return fmt.Sprintf("error %v, want %v", remote, plain)
	case remote.Error() != plain.Error():
		return fmt.Sprintf("error %q, want %q", remote, plain)
	case fmt.Sprintf("%T", remote) != fmt.Sprintf("%T", plain) && !formatted(plain):
		return fmt.Sprintf("error of type %T, want %T", remote, plain)
	}
	for _, s := range []error{ErrSentinel, errHidden, other.ErrOther, io.EOF, io.ErrUnexpectedEOF, context.Canceled} {
		if (remote == s) != (plain == s) || errors.Is(remote, s) != errors.Is(plain, s) {
			return fmt.Sprintf("%v is the sentinel %v: %v and %v", remote, s, errors.Is(remote, s), errors.Is(plain, s))
		}
	}
	if (errors.As(remote, new(*PointerError))) != errors.As(plain, new(*PointerError)) ||
		errors.As(remote, new(ValueError)) != errors.As(plain, new(ValueError)) ||
		errors.As(remote, new(*other.Failure)) != errors.As(plain, new(*other.Failure)) {
		return fmt.Sprintf("%v is of other types", remote)
	}
	return ""
}

// formatted reports whether an error is of a type of the standard library that
// only holds text and causes; such a type need not come back.
func formatted(err error) bool {
	t := fmt.Sprintf("%T", err)
	return strings.HasPrefix(t, "*fmt.") || strings.HasPrefix(t, "*errors.")
}
