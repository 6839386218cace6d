package sandboxfn

import (
	"reflect"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/worker"
)

// ErrorEntry is something error identity needs to know: a sentinel or a type.
type ErrorEntry struct {
	name     string
	sentinel *error
	typ      reflect.Type
}

// Sentinel describes a package-level error variable. name is its import path, a
// dot and its identifier. A function that returns the variable's value gives
// the caller the variable's value, so == and errors.Is hold.
func Sentinel(name string, v *error) ErrorEntry { return ErrorEntry{name: name, sentinel: v} }

// ErrorType describes an error type, as functions return it: *PathErr when the
// method has a pointer receiver. Errors of the type arrive as that type.
func ErrorType[T error]() ErrorEntry { return ErrorEntry{typ: reflect.TypeFor[T]()} }

// Errors makes the errors of a package known on both sides of a call. Generated
// code calls it from init, before [Takeover].
func Errors(pkg string, es ...ErrorEntry) {
	errorEntries = append(errorEntries, es...)
}

var errorEntries []ErrorEntry

// Takeover turns the process into a worker when it was started as the worker of
// unit: it then serves calls and never returns, so main does not run and no
// flag is parsed. Otherwise it returns at once. Generated code calls it at the
// end of the package's last init; unit is the import path, with ".test" or
// "_test" for what _test.go files declare.
func Takeover(unit string) {
	functions.takeover(unit)
	if unit == "" || worker.Unit() != unit {
		return
	}
	var fs []worker.Function
	for _, f := range functions.ofUnit(unit) {
		fs = append(fs, f.guest())
	}
	worker.Main(fs, knownErrors())
}
