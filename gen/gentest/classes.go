package gentest

import (
	"context"
	"errors"
	"iter"
	"sync"
)

// counter counts from a start.
//
//sandbox:class env=GENTEST_UNIT=m
type counter struct {
	sync.Mutex
	base
	*Limits
	Start int    `validate:"gte=0"`
	Step  int    `sandbox:"default=2"`
	Unit  string `sandbox:"env=GENTEST_UNIT"`
	Note  string `sandbox:"-"`

	entered bool
}

type base struct {
	// Name is part of what the counter says.
	Name  string `validate:"required"`
	calls int
}

// Limits bound a counter.
type Limits struct{ Max int }

var errOver = errors.New("gentest: over the maximum")

//sandbox:enter
func (c *counter) enter(ctx context.Context) error {
	c.entered = true
	return ctx.Err()
}

//sandbox:exit
func (c *counter) exit() {}

//sandbox:method
func (c *counter) at(ctx context.Context, n int) (int, string, error) {
	v := c.Start + n*c.Step
	switch {
	case !c.entered:
		return 0, "", errors.New("not entered")
	case c.Limits != nil && c.Max > 0 && v > c.Max:
		return v, c.Name, errOver
	}
	c.Lock()
	defer c.Unlock()
	c.calls++
	return v, c.Name + c.Unit + c.Note, ctx.Err()
}

//sandbox:method as=From check.n=lte=100
func (c *counter) from(n int) iter.Seq[int] {
	return func(yield func(int) bool) {
		for i := range 3 {
			if !yield(c.Start + (n+i)*c.Step) {
				return
			}
		}
	}
}

//sandbox:method batch=3 batch_wait=1ms
func (c *counter) all(numbers []int) []int {
	values := make([]int, len(numbers))
	for i, n := range numbers {
		values[i] = c.Start + n*c.Step
	}
	return values
}

// Title has a value receiver.
//
//sandbox:method
func (t title) Title(each func(string)) string {
	each(t.Text)
	return t.Text + "!"
}

//sandbox:class
type title struct{ Text string }
