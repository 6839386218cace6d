package gen

import (
	"fmt"
	"go/types"
	"reflect"
	"strings"
	"testing"
)

// source writes a random package: the bytes choose, nothing else does.
type source struct {
	data  []byte
	types int // declared types are T0, T1 …
	b     strings.Builder
}

// pick returns a number below n; when the bytes run out it is 0, which is
// always the simplest choice.
func (s *source) pick(n int) int {
	if len(s.data) == 0 {
		return 0
	}
	x := int(s.data[0])
	s.data = s.data[1:]
	return x % n
}

// plain are types without parts; the later ones don't travel.
var plain = []string{
	"int", "string", "[]byte", "bool", "float64", "uint8", "rune", "time.Time", "time.Duration", "error", "url.URL", "*big.Int",
	"json.RawMessage", "byte", "int64", "struct{}", "Page[int]", "Pair[string, []byte]", "Alias", "Text",
	"any", "chan int", "func()", "func(int) error", "io.Reader", "sync.Mutex", "*sync.WaitGroup", "atomic.Int64", "complex128",
	"uintptr", "iter.Seq[int]", "iter.Seq2[*Page[string], error]", "iter.Seq2[int, int]", "io.ReadCloser", "io.Writer", "Func",
	"func(context.Context, ...string) (int, error)", "Seq", "context.Context", "unsafe.Pointer", "Iface", "interface{ M() }", "<-chan int", "Page[func()]",
}

// typ returns a type; fewer than half of them have parts that don't travel.
func (s *source) typ(depth int) string {
	if depth > 4 {
		return plain[s.pick(20)]
	}
	switch s.pick(12) {
	case 0, 1, 2:
		return plain[s.pick(20)]
	case 3:
		return "[]" + s.typ(depth+1)
	case 4:
		return "*" + s.typ(depth+1)
	case 5:
		keys := []string{"string", "int", "bool", "Text", "uint16", "float64", "[2]int", "struct{ A int }"}
		return "map[" + keys[s.pick(len(keys))] + "]" + s.typ(depth+1)
	case 6:
		return fmt.Sprintf("[%d]%s", s.pick(5), s.typ(depth+1))
	case 7:
		return s.structure(depth + 1)
	case 8:
		return fmt.Sprintf("T%d", s.pick(s.types))
	case 9:
		return fmt.Sprintf("*T%d", s.pick(s.types))
	case 10:
		return "Page[" + s.typ(depth+1) + "]"
	}
	return plain[s.pick(len(plain))]
}

var tags = []string{
	"", "", "", `json:"x"`, `json:"-"`, `cbor:"y,omitempty"`, `sandbox:"-"`, `sandbox:"name=n"`, `validate:"required"`,
	`sandbox:"default=1"`, `sandbox:"env=HOME"`, `sandbox:"file,out"`, `validate:"min=1,max=2"`, `validate:"dive,email"`, `sandbox:"secret=X"`, `json:"-" sandbox:"-"`, `broken`, `validate:"wibble"`,
}

func (s *source) structure(depth int) string {
	var b strings.Builder
	b.WriteString("struct {\n")
	for i := range s.pick(4) {
		names := []string{"F", "G", "_", "hidden"}
		name := names[s.pick(4)]
		if name != "_" {
			name = fmt.Sprintf("%s%d", name, i)
		}
		fmt.Fprintf(&b, "%s %s", name, s.typ(depth+1))
		if tag := tags[s.pick(len(tags))]; tag != "" {
			fmt.Fprintf(&b, " %q", tag)
		}
		b.WriteString("\n")
	}
	return b.String() + "}"
}

// names collide with what generated code could use.
var paramNames = []string{"a", "ctx", "r", "err", "sandboxfn", "_", "time", "context", "string", "Fn0Func", "Fn0Args", "fn0", "A", "名"}

// function writes one annotated function, or a method of receiver.
func (s *source) function(i int, receiver string) {
	line := "func"
	if receiver != "" {
		line = "method"
	} else if s.pick(6) == 5 {
		line = "func batch=2"
	}
	fmt.Fprintf(&s.b, "\n//sandbox:%s\nfunc %s fn%d(", line, receiver, i)
	used := map[string]bool{}
	if s.pick(2) == 1 {
		s.b.WriteString("ctx context.Context, ")
		used["ctx"] = true
	}
	n := s.pick(5)
	for j := range n {
		name := paramNames[s.pick(len(paramNames))]
		if used[name] && name != "_" {
			name = fmt.Sprintf("p%d", j)
		}
		used[name] = true
		if j == n-1 && s.pick(4) == 1 {
			fmt.Fprintf(&s.b, "%s ...%s", name, s.typ(0))
			break
		}
		fmt.Fprintf(&s.b, "%s %s, ", name, s.typ(0))
	}
	s.b.WriteString(") (")
	for j := range s.pick(4) {
		fmt.Fprintf(&s.b, "x%d %s, ", j, s.typ(0))
	}
	if s.pick(2) == 1 {
		s.b.WriteString("failure error")
	}
	s.b.WriteString(") { panic(0) }\n")
}

func randomPackage(data []byte) string {
	s := &source{data: data, types: 1}
	s.types += s.pick(4)
	s.b.WriteString("package m\n\nimport (\n")
	packages := []string{"context", "encoding/json", "io", "iter", "math/big", "net/url", "sync", "sync/atomic", "time", "unsafe"}
	for _, p := range packages {
		fmt.Fprintf(&s.b, "\t%q\n", p)
	}
	s.b.WriteString(`)

var _ context.Context
var _ json.RawMessage
var _ io.Reader
var _ iter.Seq[int]
var _ big.Int
var _ url.URL
var _ sync.Mutex
var _ atomic.Int64
var _ time.Time
var _ unsafe.Pointer

type Page[T any] struct { Items []T; Next *Page[T] }
type Pair[A, B any] struct { A A; B B }
type Alias = map[string]*Page[int]
type Iface interface{ M() }
type Func func(done, total int) bool
type Seq = iter.Seq2[Alias, error]
type Text struct{ s string }

func (t Text) MarshalText() ([]byte, error) { return nil, nil }
func (t *Text) UnmarshalText([]byte) error { return nil }
`)
	for i := range s.types {
		// A struct, so that recursion is always through something finite.
		fmt.Fprintf(&s.b, "\ntype T%d struct {\n\tSelf *T%d\n\tMore %s\n}\n", i, i, s.flat())
	}
	for i := range 1 + s.pick(3) {
		s.function(i, "")
	}
	if s.pick(3) == 2 {
		s.class()
	}
	return s.b.String()
}

// class writes an annotated type with its methods.
func (s *source) class() {
	s.b.WriteString("\n//sandbox:class\ntype cls struct {\n")
	for i := range s.pick(4) {
		fields := []string{"F%d %s", "hidden%d %s", "Embedded%[1]d", "*embedded%[1]d"}
		fmt.Fprintf(&s.b, fields[s.pick(4)], i, s.flat())
		if tag := tags[s.pick(len(tags))]; tag != "" {
			fmt.Fprintf(&s.b, " %q", tag)
		}
		s.b.WriteString("\n")
	}
	s.b.WriteString("}\n")
	for i := range 4 {
		fmt.Fprintf(&s.b, "type Embedded%d struct { E%d %s }\ntype embedded%d struct { D%d %s; x int }\n", i, i, s.flat(), i, i, s.flat())
	}
	hooks := []string{"()", "(context.Context)", "() error", "(context.Context) error", "(int)"}
	fmt.Fprintf(&s.b, "//sandbox:enter\nfunc (c *cls) in%s { panic(0) }\n", hooks[s.pick(5)])
	receivers := []string{"(c *cls)", "(cls)"}
	for i := range s.pick(3) {
		s.function(10+i, receivers[s.pick(2)])
	}
}

// flat is a type that can't contain a declared one by value.
func (s *source) flat() string {
	if s.pick(2) == 0 {
		return plain[s.pick(len(plain))]
	}
	return "[]" + s.typ(2)
}

// FuzzSignatures: whatever the signature, the generator neither panics nor
// blames the compiler, and what it writes compiles.
func FuzzSignatures(f *testing.F) {
	for i := range 40 {
		data := make([]byte, 48)
		for j := range data {
			data[j] = byte(i*31 + j*j*17 + i*j)
		}
		f.Add(data)
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 400 {
			return
		}
		src := randomPackage(data)
		q := quickly(t, src)
		diagnostics := q.g.report.sorted()
		for _, d := range diagnostics {
			if d.Code == "G050" {
				t.Skip("not valid Go: ", d) // such as a type of infinite size
			}
			if !d.Pos.IsValid() || d.Message == "" || strings.ContainsAny(d.Message, "\r") {
				t.Fatalf("%v\n%s", d, src)
			}
		}
		if q.pkg == nil || q.pkg.Output() == nil {
			if len(diagnostics) == 0 {
				t.Fatalf("neither output nor faults\n%s", src)
			}
			return
		}
		q.compile(t)
	})
}

// FuzzTags: no tag makes the readers of tags panic, and a sandbox tag that is
// read well prints as it was.
func FuzzTags(f *testing.F) {
	for _, tag := range tags {
		f.Add(tag)
		f.Add(reflect.StructTag(tag).Get("sandbox"))
		f.Add(reflect.StructTag(tag).Get("validate"))
	}
	f.Add("name='a,b',-,x=y")
	f.Add("required,dive,keys,min=1,endkeys,max=x|len=2,eqfield=A")
	fields := quickly(f, "package m\n//sandbox:func\nfunc f(s string, n int, l []string, m map[string]int, e error, b bool) error { return nil }\n")
	c, err := fields.g.loader.check(f.Context(), fields.info, nil)
	if err != nil {
		f.Fatal(err)
	}
	fn := c.pkg.Scope().Lookup("f")
	f.Fuzz(func(t *testing.T, tag string) {
		tagKeys(tag)
		if items, err := parseSandboxTag(tag); err == nil {
			var parts []string
			for _, it := range items {
				p := it.key
				if it.hasValue {
					p += "=" + it.value
					if strings.Contains(it.value, ",") {
						p = it.key + "='" + it.value + "'"
					}
				}
				parts = append(parts, p)
			}
			again, err := parseSandboxTag(strings.Join(parts, ","))
			if err != nil || !reflect.DeepEqual(again, items) {
				// A quote inside an unquoted value is the one thing that
				// can't be printed back.
				if !strings.Contains(tag, "'") {
					t.Fatalf("%q reads as %v, printed as %v (%v)", tag, items, again, err)
				}
			}
		}
		params := fn.(*types.Func).Signature().Params()
		for i := range params.Len() {
			ruleFaults(tag, params.At(i).Type(), "x", nil)
			if items, err := parseSandboxTag(tag); err == nil {
				itemsFault(params.At(i), items, map[string]bool{"out": true})
			}
			if fillable(params.At(i).Type()) {
				fits(params.At(i).Type(), tag)
			}
		}
	})
}
