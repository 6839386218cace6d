package sandboxfn

import (
	"reflect"
	"sync/atomic"

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
// code calls it from init, before [Takeover]; later is too late.
func Errors(pkg string, es ...ErrorEntry) {
	errorEntries = append(errorEntries, es...)
}

// errorEntries is complete when the program is initialised, and then only read.
var errorEntries []ErrorEntry

// Takeover turns the process into a worker when it was started as the worker of
// unit: it then serves calls and never returns, so main does not run and no
// flag is parsed. Otherwise it returns at once. Generated code calls it at the
// end of the package's last init; unit is the import path, with ".test" or
// "_test" for what _test.go files declare.
//
// What is initialised in a worker is the package and everything it imports. A
// program that needs more calls [Main].
func Takeover(unit string) {
	functions.takeover(unit)
	if unit != "" && worker.Unit() == unit {
		serve(unit)
	}
}

// everything is the unit of a program that calls Main.
const everything = "*"

// calledMain is set once the program has called Main.
var calledMain atomic.Bool

// Main is for programs whose functions need packages that only main imports,
// such as image formats or database drivers registered by a blank import. Called
// first in main, or in TestMain, it turns the process into a worker there, when
// it was started as one: with all packages initialised, and for the functions
// of all of them. Otherwise it returns at once, and workers of this program are
// of that kind from then on.
func Main() {
	if worker.Unit() == everything {
		serve(everything)
	}
	calledMain.Store(true)
}

func serve(unit string) {
	var fs []worker.Function
	for _, f := range functions.ofUnit(unit) {
		fs = append(fs, f.guest())
	}
	worker.Main(fs, knownErrors())
}
