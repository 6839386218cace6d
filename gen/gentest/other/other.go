// Package other has types that functions of package gentest take from outside
// their own package.
package other

import "errors"

// Item nests itself in every kind of container.
type Item struct {
	Name string
	Sub  map[string][]*Item
	Deep Deep
}

// Deep is data behind data.
type Deep struct{ Numbers [2][]int }

// Pair is generic.
type Pair[A, B any] struct {
	A A
	B B
}

// Ints is an instance by another name.
type Ints = Pair[int, int64]

// ErrOther is an error of another package.
var ErrOther = errors.New("other")

// Failure is an error type of another package.
type Failure struct {
	Code int
	Err  error
}

func (f *Failure) Error() string { return "failure" }
func (f *Failure) Unwrap() error { return f.Err }
