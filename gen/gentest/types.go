package gentest

import (
	"context"
	"database/sql"
	"encoding/json"
	"math/big"
	"net/netip"
	"net/url"
	"regexp"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/agent-sandbox/sandbox-go/gen/gentest/other"
)

// Numbers has every basic kind.
type Numbers struct {
	Bool    bool
	Int     int
	Int8    int8
	Int16   int16
	Int32   int32
	Int64   int64
	Uint    uint
	Uint8   uint8
	Uint16  uint16
	Uint32  uint32
	Uint64  uint64
	Float32 float32
	Float64 float64
	String  string
	Rune    rune
	Byte    byte
}

// Named types over basic kinds.
type (
	Celsius float32
	Level   uint8
	Text    string
	Blob    []byte
)

// Containers nests containers in one another.
type Containers struct {
	Bytes   []byte
	Strings []string
	Matrix  [][]int
	Array   [3]int
	Bytes4  [4]byte
	Map     map[string][]int
	ByInt   map[int]string
	ByBool  map[bool]int
	ByLevel map[Level]string
	ByState map[State]int
	Pointer *int
	Structs []*Tree
}

// Tree refers to itself.
type Tree struct {
	Left, Right *Tree
	Value       Text
}

// Page is generic and refers to itself.
type Page[T any] struct {
	Items []T
	Next  *Page[T]
}

type inner struct{ Promoted int }

// Base is embedded by pointer.
type Base struct{ ID string }

// Outer embeds, leaves out and renames.
type Outer struct {
	inner
	*Base
	Named   string            `json:"name"`
	Wire    string            `cbor:"w"`
	Renamed string            `sandbox:"name=r" json:"other"`
	Secret  string            `sandbox:"-"`
	cache   map[string]string `sandbox:"-"`
	_       int
}

// Stamped embeds a type that encodes itself, which says nothing of the rest.
type Stamped struct {
	time.Time
	*inner
	Base
	Name string `json:",omitempty"`
	Tags []int  `json:"tags,omitempty"`
}

// State travels as text.
type State struct{ name string }

// MarshalText implements encoding.TextMarshaler.
func (s State) MarshalText() ([]byte, error) { return []byte("state:" + s.name), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *State) UnmarshalText(text []byte) error {
	s.name = strings.TrimPrefix(string(text), "state:")
	return nil
}

// Sealed travels in its own binary form.
type Sealed struct{ key []byte }

// MarshalBinary implements encoding.BinaryMarshaler.
func (s Sealed) MarshalBinary() ([]byte, error) { return append([]byte{1}, s.key...), nil }

// UnmarshalBinary implements encoding.BinaryUnmarshaler.
func (s *Sealed) UnmarshalBinary(data []byte) error {
	s.key = append([]byte(nil), data[1:]...)
	return nil
}

type unexported struct{ A, B int }

// Alias is spelled as it is in signatures.
type Alias = map[string]*other.Ints

//sandbox:func
func echoNumbers(n Numbers) (Numbers, error) { return n, nil }

//sandbox:func
func basics(a bool, b int8, c uint64, d float32, e float64, f string, g rune, h byte, i Celsius, j Level) (bool, int8, uint64, float32, float64, string, rune, byte, Celsius, Level) {
	return a, b, c, d, e, f, g, h, i, j
}

//sandbox:func
func byteSlices(a []byte, b Blob, c [][]byte) ([]byte, Blob, [][]byte) { return a, b, c }

//sandbox:func
func echoContainers(c *Containers) (*Containers, error) { return c, nil }

//sandbox:func
func pointers(a *int, b *string, c *Tree, d []*int) (*int, *string, *Tree, []*int) { return a, b, c, d }

//sandbox:func
func structs(ctx context.Context, o Outer, u unexported, l *other.Item, anonymous struct {
	X int `json:"x"`
	Y []struct{ Z string }
}) (Outer, unexported, *other.Item, struct{ N int }, error) {
	return o, u, l, struct{ N int }{anonymous.X + len(anonymous.Y)}, nil
}

//sandbox:func
func embedded(s Stamped, l []Stamped) (Stamped, []Stamped, error) { return s, l, nil }

//sandbox:func
func generics(a Page[int], b Page[Page[string]], c other.Pair[string, []byte], d Alias, e other.Ints) (Page[int], Page[Page[string]], other.Pair[string, []byte], Alias, other.Ints) {
	return a, b, c, d, e
}

//sandbox:func
func marshalers(a State, b *State, c Sealed, d []Sealed, e map[State]Sealed) (State, *State, Sealed, []Sealed, map[State]Sealed) {
	return a, b, c, d, e
}

//sandbox:func
func times(a time.Time, b time.Duration, c *time.Time, d []time.Time) (time.Time, time.Duration, *time.Time, []time.Time) {
	return a, b, c, d
}

//sandbox:func
func nets(a netip.Addr, b netip.Prefix, c netip.AddrPort, d url.URL, e *url.URL) (netip.Addr, netip.Prefix, netip.AddrPort, url.URL, *url.URL) {
	return a, b, c, d, e
}

//sandbox:func
func bigs(a *big.Int, b big.Rat, c *big.Float, d []big.Int) (*big.Int, big.Rat, *big.Float, []big.Int) {
	return a, b, c, d
}

//sandbox:func
func library(a json.RawMessage, b sql.NullString, c sql.Null[int], d *regexp.Regexp) (json.RawMessage, sql.NullString, sql.Null[int], *regexp.Regexp) {
	return a, b, c, d
}

//sandbox:func
func protos(t *timestamppb.Timestamp) (*timestamppb.Timestamp, error) { return t, nil }

// Validated has rules.
type Validated struct {
	Name string   `validate:"required,max=5"`
	Mail []string `validate:"dive,email"`
}

//sandbox:func
func echoValidated(v Validated) (string, error) { return v.Name, nil }
