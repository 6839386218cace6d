package gentest

import "github.com/agent-sandbox/sandbox-go/sandboxfn"

//sandbox:func batch=2 batch_wait=1ms
func halves(numbers ...int) []sandboxfn.Result[Celsius] {
	results := make([]sandboxfn.Result[Celsius], len(numbers))
	for i, n := range numbers {
		results[i].Value = Celsius(n) / 2
		if n < 0 {
			results[i].Err = ErrSentinel
		}
	}
	return results
}

// Tagged has fields that are filled, or kept back.
type Tagged struct {
	Size  int      `sandbox:"default=7"`
	Names []string `sandbox:"default='a,b',name=n"`
	Mode  string   `sandbox:"env=GENTEST_MODE"`
	Kept  string   `sandbox:"-"`
}

//sandbox:func env=GENTEST_MODE=fast
func fillIn(t Tagged, p *Tagged) (Tagged, error) {
	if p != nil {
		t.Names = append(t.Names, p.Names...)
		t.Size += p.Size
	}
	t.Kept = t.Mode // what is filled does not come back
	return Tagged{Size: t.Size, Names: append(t.Names, t.Mode)}, nil
}
