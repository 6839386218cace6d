package sandboxfn

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// RemoteError stands for an error of a sandboxed function whose own type could
// not travel: one of a package that the function's file does not import, or
// with data that can't be sent. Its text is that of the original.
type RemoteError struct {
	Type string // of the original: "*example.com/media.parseError"
	Text string

	is       []error
	children []error
}

// Error is the text of the original.
func (e *RemoteError) Error() string { return e.Text }

// Unwrap returns what the original wraps.
func (e *RemoteError) Unwrap() []error { return e.children }

// Is reports what the original's own Is method said of the variables that both
// sides know.
func (e *RemoteError) Is(target error) bool {
	return slices.ContainsFunc(e.is, func(x error) bool { return x == target })
}

func newRemoteError(typ, text string, is, children []error) error {
	return &RemoteError{Type: typ, Text: text, is: is, children: children}
}

// PanicError says that a sandboxed function panicked, E9012. It matches
// [ErrPanic]. The worker in which it happened is not used again.
type PanicError struct {
	Func  string // "media.Describe"
	Value string // what it panicked with, as text
	Stack string // of the goroutine, in the worker
}

// Error is one line, without the stack.
func (e *PanicError) Error() string { return e.coded().Error() }

// Unwrap returns the coded error.
func (e *PanicError) Unwrap() error { return e.coded() }

func (e *PanicError) coded() error { return errdefs.New("E9012", e.Func, "panic: "+e.Value) }

// Format prints the stack too for %+v.
func (e *PanicError) Format(f fmt.State, verb rune) {
	switch {
	case verb == 'v' && f.Flag('+'):
		fmt.Fprintf(f, "%s\n\n%s", e.Error(), e.Stack)
	case verb == 'q':
		fmt.Fprintf(f, "%q", e.Error())
	default:
		fmt.Fprint(f, e.Error())
	}
}

// WorkerLostError says that the worker ended, or the way to it, before the
// call's result came: E9006. It matches [ErrWorkerLost], and [ErrMemoryLimit]
// when OOM is set.
type WorkerLostError struct {
	Func     string // "media.Describe"
	Started  bool   // the function may have run, wholly or in part; false: it has not
	ExitCode int    // of the worker; -1 when it did not exit by itself
	Signal   string // that ended it; empty when none did
	OOM      bool   // the kernel killed it at the memory limit
	Stderr   string // last 8 KiB of what the worker wrote to standard error
	Err      error  // what is known beyond that; may be nil
}

// Error is one line, without Stderr.
func (e *WorkerLostError) Error() string { return e.coded().Error() }

// Unwrap returns the coded errors.
func (e *WorkerLostError) Unwrap() []error {
	if e.OOM {
		return []error{e.coded(), errdefs.ErrMemoryLimit}
	}
	return []error{e.coded()}
}

func (e *WorkerLostError) coded() error {
	var b strings.Builder
	switch {
	case e.OOM:
		b.WriteString("worker was killed at the memory limit")
	case e.Signal != "":
		b.WriteString("worker was ended by signal " + e.Signal)
	case e.ExitCode >= 0:
		fmt.Fprintf(&b, "worker exited with status %d", e.ExitCode)
	default:
		b.WriteString("connection to the worker was lost")
	}
	if e.Started {
		b.WriteString("; the function had been started, its outcome is unknown")
	} else {
		b.WriteString("; the function had not been started")
	}
	lost := errdefs.Wrap("E9006", e.Func, b.String(), e.Err)
	if e.OOM {
		lost.Message += "; raise memory"
		lost.Suggestion = "raise memory"
	}
	return lost
}

// killedAtStart reports whether err says that a worker was ended from outside, or
// the way to it was lost, before it was ready: the next one may fare better. A
// worker that exits, or needs more memory than there is, would do it again.
func killedAtStart(err error) bool {
	l, ok := errors.AsType[*WorkerLostError](err)
	return ok && !l.Started && l.ExitCode < 0 && !l.OOM
}

// FieldError is one rule that an argument breaks. A call with such an argument
// fails with E9001, which holds one FieldError for each: errors.As finds the
// first, [FieldErrors] all.
type FieldError struct {
	Path  string // "opts.Sizes[2]"
	Rule  string // "min"
	Limit string // "1"; empty for rules without one
	Text  string // "must be at least 1, is 0"
}

// Error has the form "max: must be at least 1, is 0 (min=1)".
func (e *FieldError) Error() string {
	rule := e.Rule
	if e.Limit != "" {
		rule += "=" + e.Limit
	}
	if rule == "" {
		return e.Path + ": " + e.Text
	}
	return e.Path + ": " + e.Text + " (" + rule + ")"
}

// FieldErrors returns every [FieldError] in err's tree, in order.
func FieldErrors(err error) []*FieldError {
	switch x := err.(type) {
	case nil:
		return nil
	case *FieldError:
		return []*FieldError{x}
	case interface{ Unwrap() error }:
		return FieldErrors(x.Unwrap())
	case interface{ Unwrap() []error }:
		var all []*FieldError
		for _, e := range x.Unwrap() {
			all = append(all, FieldErrors(e)...)
		}
		return all
	}
	return nil
}

// fieldErrors joins what a call's arguments break, on one line.
type fieldErrors struct{ Fields []*FieldError }

func (e *fieldErrors) Error() string {
	texts := make([]string, len(e.Fields))
	for i, f := range e.Fields {
		texts[i] = f.Error()
	}
	return strings.Join(texts, "; ")
}

func (e *fieldErrors) Unwrap() []error {
	errs := make([]error, len(e.Fields))
	for i, f := range e.Fields {
		errs[i] = f
	}
	return errs
}

// brokenRule is what package validate reports for one rule. It is found by its
// method, so that programs without rules do not link that package.
type brokenRule interface {
	BrokenRule() (path, rule, limit, text string)
}

// invalid makes what a check returned an E9001 of the function called name.
func invalid(name string, err error) error {
	var fields []*FieldError
	var walk func(error)
	walk = func(err error) {
		switch x := err.(type) {
		case brokenRule:
			path, rule, limit, text := x.BrokenRule()
			fields = append(fields, &FieldError{path, rule, limit, text})
		case interface{ Unwrap() []error }:
			for _, e := range x.Unwrap() {
				walk(e)
			}
		}
	}
	walk(err)
	if len(fields) > 0 {
		err = &fieldErrors{fields}
	}
	return errdefs.Wrap("E9001", name, "", err)
}

// Transient marks err as one that may not happen again: a function marked
// idempotent that returns it is run again, as after a lost worker. The result
// has err's text and wraps it. Transient(nil) is nil.
func Transient(err error) error {
	if err == nil {
		return nil
	}
	return &transient{err}
}

type transient struct{ Err error }

func (t *transient) Error() string { return t.Err.Error() }
func (t *transient) Unwrap() error { return t.Err }

func isTransient(err error) bool {
	_, ok := errors.AsType[*transient](err)
	return ok
}

// ended is the error of a call whose context has ended: E9013 or E9014, which
// wraps both the context's error and its cause.
func ended(ctx context.Context, name, doing string) error {
	err, code, text := ctx.Err(), errdefs.Code("E9014"), "cancelled "+doing
	if errors.Is(err, context.DeadlineExceeded) {
		code, text = "E9013", "the deadline of the context passed "+doing
	}
	if cause := context.Cause(ctx); cause != nil && cause != err {
		err = &causeError{err, cause}
	}
	return errdefs.Wrap(code, name, text, err)
}

// causeError is the end of a context together with why it ended.
type causeError struct{ err, cause error }

func (e *causeError) Error() string   { return e.err.Error() + ": " + e.cause.Error() }
func (e *causeError) Unwrap() []error { return []error{e.err, e.cause} }
