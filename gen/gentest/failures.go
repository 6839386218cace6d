package gentest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/agent-sandbox/sandbox-go/gen/gentest/other"
)

// PointerError is an error by its pointer.
type PointerError struct {
	Line int
	Err  error
}

func (e *PointerError) Error() string { return fmt.Sprintf("line %d: %v", e.Line, e.Err) }

// Unwrap returns the cause.
func (e *PointerError) Unwrap() error { return e.Err }

// ValueError is an error by its value.
type ValueError string

func (e ValueError) Error() string { return string(e) }

type unexportedError struct{ Code int }

func (e unexportedError) Error() string { return fmt.Sprint("code ", e.Code) }

// Report carries errors as data.
type Report struct {
	Err  error
	Errs []error
	By   map[string]error
}

// failures are the errors that function fail returns, by name.
var failures = map[string]error{
	"sentinel":        ErrSentinel,
	"hidden sentinel": errHidden,
	"other sentinel":  other.ErrOther,
	"library":         io.ErrUnexpectedEOF,
	"wrapped":         fmt.Errorf("open: %w", fs.ErrNotExist),
	"twice wrapped":   fmt.Errorf("a: %w", fmt.Errorf("b: %w", ErrSentinel)),
	"two wrapped":     fmt.Errorf("%w and %w", io.EOF, errHidden),
	"pointer":         &PointerError{Line: 3, Err: ErrSentinel},
	"value":           ValueError("value"),
	"pointer to value": func() error {
		v := ValueError("pointer")
		return &v
	}(),
	"unexported":   unexportedError{Code: 7},
	"other type":   &other.Failure{Code: 5, Err: io.EOF},
	"joined":       errors.Join(ErrSentinel, &PointerError{Line: 1, Err: io.EOF}, errors.New("plain")),
	"path":         &fs.PathError{Op: "open", Path: "/x", Err: fs.ErrPermission},
	"context":      context.Canceled,
	"deep in join": fmt.Errorf("all: %w", errors.Join(fmt.Errorf("x: %w", io.EOF), ValueError("v"))),
}

//sandbox:func
func fail(name string) (int, error) { return len(name), failures[name] }

//sandbox:func
func echoReport(r Report, err error, more ...error) (Report, []error, error) {
	return r, append(more, err), nil
}
