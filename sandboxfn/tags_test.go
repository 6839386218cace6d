package sandboxfn

import (
	"context"
	"reflect"
	"strings"
	"testing"
	"time"
)

type tagged struct {
	Text  string          `sandbox:"default='a, b'"`
	N     int8            `sandbox:"default=-7"`
	Oct   int             `sandbox:"default=010"`
	Hex   uint            `sandbox:"name=hex,default=0x10"`
	On    bool            `sandbox:"default=true"`
	F     float32         `sandbox:"default=0.5"`
	D     time.Duration   `sandbox:"default=1m30s"`
	List  []string        `sandbox:"default='x,y'"`
	Times []time.Duration `sandbox:"default='1s,2s'"`
	Empty []int           `sandbox:"default="`
	Env   []int           `sandbox:"env=LIST"`
	Key   Secret          `sandbox:"secret=KEY"`
	Raw   []byte          `sandbox:"secret=KEY"`
	Both  string          `sandbox:"env=NONE,default=else"`
	Left  string          `sandbox:"-"`
}

type deep struct {
	Name string
	tagged2
	P *tagged
	S []tagged
	A [1]*tagged
	M map[string]tagged
	N *deep
}

type tagged2 struct {
	Embedded int `sandbox:"default=3"`
}

func env(name string) (string, bool) {
	v, ok := map[string]string{"LIST": "1,2", "KEY": "s3cret"}[name]
	return v, ok
}

func TestTags(t *testing.T) {
	ctx := withEnv(context.Background(), env)
	var v tagged
	if err := fillTags(ctx, "f", &v); err != nil {
		t.Fatal(err)
	}
	want := tagged{
		Text: "a, b", N: -7, Oct: 10, Hex: 16, On: true, F: 0.5, D: 90 * time.Second, List: []string{"x", "y"},
		Times: []time.Duration{time.Second, 2 * time.Second}, Empty: []int{}, Env: []int{1, 2}, Raw: []byte("s3cret"), Both: "else",
	}
	if v.Key.Reveal() != "s3cret" {
		t.Error("no secret")
	}
	v.Key = Secret{}
	if !reflect.DeepEqual(v, want) {
		t.Errorf("got  %+v\nwant %+v", v, want)
	}
	v = tagged{Text: "set", N: 1, List: []string{}}
	if err := fillTags(ctx, "f", &v); err != nil || v.Text != "set" || v.N != 1 || len(v.List) != 0 {
		t.Errorf("what is set has changed: %+v, %v", v, err)
	}
}

// The caller fills defaults in a copy, and only where there are tags.
func TestDefaultsInTheCaller(t *testing.T) {
	shared := &tagged{Text: "mine"}
	list, m := []tagged{{}}, map[string]tagged{"k": {}}
	d := deep{P: shared, S: list, A: [1]*tagged{shared}, M: m, N: &deep{}}
	if err := fillDefaults("f", &d); err != nil {
		t.Fatal(err)
	}
	if d.P.N != -7 || d.S[0].N != -7 || d.A[0].N != -7 || d.M["k"].N != -7 || d.Embedded != 3 || d.N.Embedded != 3 || d.P.Text != "mine" {
		t.Errorf("got %+v", d)
	}
	if d.P.Env != nil || d.P.Raw != nil || d.P.Key.Reveal() != "" {
		t.Error("the caller has filled what is the worker's")
	}
	if shared.N != 0 || list[0].N != 0 || m["k"].N != 0 {
		t.Error("the user's own values have changed")
	}
	for _, typ := range []reflect.Type{reflect.TypeFor[string](), reflect.TypeFor[map[string][]int](), reflect.TypeFor[struct{ T *time.Time }]()} {
		if tagPlanOf(typ) != nil {
			t.Errorf("%s has nothing to fill", typ)
		}
	}
	round := &deep{}
	round.N = round
	if err := fillDefaults("f", &round); err != nil { // encoding refuses it
		t.Error(err)
	}
}

func TestBadValues(t *testing.T) {
	type bad struct {
		Inner struct {
			N int `sandbox:"env=KEY"`
		}
	}
	v := make([]bad, 2)
	err := fillTags(withEnv(context.Background(), env), "media.Describe", &v)
	if err == nil || !strings.Contains(err.Error(), "[0].Inner.N: the value of variable KEY is no int") || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("got %v", err)
	}
}
