package gen

import "testing"

// TestOddSources: whatever the source, a run ends, and it ends with faults or
// with output that compiles, never with neither.
func TestOddSources(t *testing.T) {
	const directive = "\n//sandbox:func\n"
	sources := map[string]struct {
		src  string
		want string // the first fault; empty: none
	}{
		"endless instances": {"type T[P any] struct{ F *T[[]P] }" + directive + "func f(t T[int]) error { return nil }",
			"m.go:2:8: instantiation cycle:; P instantiated as []P at m.go:2:28 (G050)"},
		"impossible types": {"type T T\ntype A = A\ntype S struct{ S }\ntype R [2]R" + directive + "func f(t T, a A, s S, r R) error { return nil }",
			"m.go:2:6: invalid recursive type: T refers to itself (G050)"},
		"types without base": {"type M map[string]M\ntype L []L\ntype P *P" + directive + "func f(m M, l L, p P) (L, error) { return nil, nil }", ""},
		"function of itself": {"type F func(F)" + directive + "func g(f F) {}",
			"m.go:4:8: parameter 1 of callback f of g has type F, which can't be sent; it can only be a parameter of its own, not part of data (G021)"},
		"huge array":  {directive + "func f(a [1 << 40]struct{}, b [0]int) {}", ""},
		"dot import":  {"import . \"time\"\nimport _ \"io\"" + directive + "func f(d Duration, t Time) (Month, error) { return 0, nil }", ""},
		"constraint":  {"type I interface{ ~int | ~string }" + directive + "func f(i I) {}", "m.go:4:8: parameter i of f has type I, which can't be sent; use a concrete type (G021)"},
		"type of C":   {"import \"C\"" + directive + "func f(i C.int) {}", "m.go:4:6: f has a type of package C in its signature, which can't be sent; use Go types (G021)"},
		"blank names": {"type t struct{}" + directive + "func f(int, string, ...t) (_ int, _ error) { return }", ""},
		"own names":   {directive + "func f(a, b int, _ int, c ...int) (a1, b1 int) { return }\nvar a, ctx, r, err, init2 = 1, 2, 3, 4, 5", ""},
		"main":        {directive + "func main() {}", ""},
		"undefined": {directive + "func f(x Undefined[int]) {}" + directive + "func g(x map[Y]Z) (q *W) { return nil }",
			"m.go:4:10: undefined: Undefined (G050)"},
		"names of packages": {directive + "func f(n int) {}\n//sandbox:func as=context\nfunc g(n int) {}\n//sandbox:func as=time timeout=5s\nfunc h(n int) {}", ""},
		"pointers":          {"type W struct{ Err error; Ptr **int; M map[string]*map[int]*[]string }" + directive + "func f(w W) (w2 *W, err error) { return nil, nil }", ""},
		"no body":           {directive + "func f(a int)", ""},
		"nul":               {directive + "func f(a int) {}\n\x00", "m.go:5:1: expected declaration, found 'ILLEGAL' (G050)"},
	}
	for name, tt := range sources {
		t.Run(name, func(t *testing.T) {
			q := quickly(t, "package m\n"+tt.src)
			got := ""
			if faults := q.g.report.sorted(); len(faults) > 0 {
				got = faults[0].String()
			}
			if got != tt.want {
				t.Errorf("got fault  %s\nwant fault %s", got, tt.want)
			}
			if got == "" {
				q.compile(t)
			}
		})
	}
}
