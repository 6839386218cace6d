package errdefs

import (
	"context"
	"errors"
	"os"
	"strings"
)

// Error is a failure with a stable code. It is immutable once returned and
// safe for concurrent use.
type Error struct {
	Code       Code   // stable, documented in docs/errors.md
	Op         string // what was attempted: "create sandbox", "call thumbs.resize"
	Message    string // what went wrong; lower case, no full stop
	Suggestion string // what the reader can do about it; empty: the table's default
	Err        error  // cause; may be nil
}

// New returns an error of code for op. The suggestion is the table's default.
func New(code Code, op, message string) *Error {
	return &Error{Code: code, Op: op, Message: message}
}

// Wrap is like [New] with a cause that errors.Is and errors.As go on into. A
// nil cause is allowed.
func Wrap(code Code, op, message string, cause error) *Error {
	return &Error{Code: code, Op: op, Message: message, Err: cause}
}

// Error has the form "E2011 create sandbox: lifetime 0s …: cause"; Hint is not in it. A
// cause whose text the message has already is left out.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(string(e.Code))
	if e.Op != "" {
		b.WriteByte(' ')
		b.WriteString(e.Op)
	}
	if e.Message != "" {
		if e.Op != "" {
			b.WriteByte(':')
		}
		b.WriteByte(' ')
		b.WriteString(e.Message)
	}
	if e.Err != nil {
		if cause := e.Err.Error(); !strings.Contains(e.Message, cause) {
			b.WriteString(": ")
			b.WriteString(cause)
		}
	}
	return b.String()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is an [*Error] of the same code, or the sentinel
// of the code's class: errors.Is(err, ErrExec) holds for E3001. A timeout
// also matches [context.DeadlineExceeded], [os.ErrDeadlineExceeded] and
// [ErrTimeout]; a code that has one, the error that [Code.Like] names.
func (e *Error) Is(target error) bool {
	i := e.Code.info()
	if target == context.DeadlineExceeded || target == os.ErrDeadlineExceeded {
		return i.timeout
	}
	if i.like != nil && target == i.like {
		return true
	}
	t, ok := target.(*Error)
	if !ok || t.Op != "" || t.Message != "" || t.Err != nil {
		return false // only sentinels compare by code
	}
	if t == ErrTimeout {
		return i.timeout
	}
	return e.Code == t.Code || t.Code.isClass() && e.Code.Class() == t.Code
}

// Hint is what the reader can do about this error: its own suggestion, or else
// the hint of the [*Error] that caused it, or else the default of its code.
// Empty when there is none.
func (e *Error) Hint() string {
	if e.Suggestion != "" {
		return e.Suggestion
	}
	if cause, ok := errors.AsType[*Error](e.Err); ok {
		if hint := cause.Hint(); hint != "" {
			return hint
		}
	}
	return e.Code.Suggestion()
}

// CodeOf returns the code of the first [*Error] in err's tree, or "" when it
// holds none.
func CodeOf(err error) Code {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return ""
}
