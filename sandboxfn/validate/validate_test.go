package validate

import (
	"errors"
	"strings"
	"testing"
	"time"
)

type item struct {
	Name string `validate:"required"`
	N    int    `validate:"min=1,max=3"`
}

type order struct {
	Items []item `validate:"min=1,dive"`
	Note  string
	Next  *order
}

func (o *order) Validate() error {
	if o.Note == "bad" {
		return errors.New("the note is bad")
	}
	return nil
}

type even int

func (e even) Validate() error {
	if e%2 != 0 {
		return errOdd
	}
	return nil
}

var errOdd = errors.New("odd")

type args struct {
	Img  []byte
	Max  int
	Opts order
}

func good() order { return order{Items: []item{{"a", 1}}} }

func TestArgs(t *testing.T) {
	loop := good()
	loop.Next = &loop
	deep := good()
	deep.Next = &order{Note: "bad", Items: []item{{"a", 1}}}
	for _, c := range []struct {
		name  string
		rules []string
		arg   any
		want  string // texts joined by newlines; empty: valid
	}{
		{"number", []string{"max", "min=1"}, 0, "max: must be at least 1, is 0 (min=1)"},
		{"number, valid", []string{"max", "min=1"}, 1, ""},
		{"duration", []string{"d", "max=1s"}, time.Minute, "d: must be at most 1s, is 1m0s (max=1s)"},
		{"string", []string{"s", "min=3"}, "äö", "s: must have at least 3 characters, has 2 (min=3)"},
		{"slice", []string{"s", "min=1"}, []int{}, "s: must have at least 1 element, has 0 (min=1)"},
		{"elements", []string{"s", "dive,gt=0"}, []int{1, 0}, "s[1]: must be more than 0, is 0 (gt=0)"},
		{"one of", []string{"s", "oneof=a b"}, "c", `s: must be one of a b, is "c" (oneof=a b)`},
		{"pattern", []string{"s", "email"}, "c", `s: must be an e-mail address, is "c" (email)`},
		{"rule without a text", []string{"s", "alpha"}, "1", `s: breaks the rule alpha, is "1" (alpha)`},
		{"secret is not shown", []string{"s", "alpha"}, strings.Repeat("1", 100), `s: breaks the rule alpha (alpha)`},
		{"struct", []string{"it", ""}, item{N: 9}, "it.Name: is required (required)\nit.N: must be at most 3, is 9 (max=3)"},
		{"pointer", []string{"it", ""}, &item{"a", 0}, "it.N: must be at least 1, is 0 (min=1)"},
		{"nil pointer", []string{"it", ""}, (*item)(nil), ""},
		{"nil pointer, required", []string{"it", "required"}, (*item)(nil), "it: is required (required)"},
		{"structs in a slice", []string{"its", ""}, []item{{"a", 1}, {}}, "its[1].Name: is required (required)\nits[1].N: must be at least 1, is 0 (min=1)"},
		{"structs in a map, with a rule", []string{"its", "max=5"}, map[string]*item{"k": {"", 1}}, "its[k].Name: is required (required)"},
		{"time", []string{"t", ""}, time.Now(), ""},
		{"nested", []string{"o", ""}, order{Items: []item{{}}}, "o.Items[0].Name: is required (required)\no.Items[0].N: must be at least 1, is 0 (min=1)"},
		{"method", []string{"n", ""}, even(3), "n: odd (Validate)"},
		{"method of a pointer", []string{"o", ""}, deep, "o.Next: the note is bad (Validate)"},
		{"methods in a slice", []string{"ns", ""}, []*even{nil, new(even)}, ""},
		{"several", []string{"img", "min=1", "max", "min=1,max=5", "opts", ""}, args{Max: 7, Opts: good()},
			"img: must have at least 1 element, has 0 (min=1)\nmax: must be at most 5, is 7 (max=5)"},
		{"value that contains itself", []string{"o", ""}, &loop, ""},
		{"rule that does not exist", []string{"n", "mni=1"}, 1, "n: can't be checked: Undefined validation function 'mni' on field '' (mni=1)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := Args(c.rules...)(c.arg)
			got := ""
			if err != nil {
				got = err.Error()
			}
			if got != c.want {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
		})
	}
}

func TestFailure(t *testing.T) {
	err := Args("n", "")(even(1))
	if !errors.Is(err, errOdd) {
		t.Errorf("%v does not wrap what the method returned", err)
	}
	var f *Failure
	if !errors.As(Args("max", "min=1")(0), &f) || f.Path != "max" || f.Rule != "min" || f.Limit != "1" {
		t.Errorf("failure is %+v", f)
	}
}

func BenchmarkArgs(b *testing.B) {
	check := Args("img", "min=1", "max", "min=1,max=5", "opts", "")
	a := args{Img: make([]byte, 100), Max: 3, Opts: good()}
	b.ReportAllocs()
	for b.Loop() {
		if err := check(a); err != nil {
			b.Fatal(err)
		}
	}
}
