//go:build linux

package local

import "github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"

// IsolationError says why this machine cannot isolate a sandbox. It unwraps to
// an errdefs.Error with code E2010; when it is returned, nothing has run.
type IsolationError struct {
	Cause  Cause  // stable
	Step   string // what was attempted: "clone", "mount /proc"
	Remedy string // what to change on this machine
	Err    error  // of the system call
}

// Cause is a stable name of one reason.
type Cause string

// Error is the text of the errdefs.Error.
func (e *IsolationError) Error() string { return e.coded().Error() }

// Unwrap returns the errdefs.Error, so that errors.Is with ErrIsolation holds
// and the cause of the system is found.
func (e *IsolationError) Unwrap() error { return e.coded() }

func (e *IsolationError) coded() *errdefs.Error {
	return &errdefs.Error{
		Code: "E2010", Op: "create sandbox",
		Message:    string(e.Cause) + ": " + e.Step + " is refused on this machine; remedy: " + e.Remedy,
		Suggestion: e.Remedy,
		Err:        e.Err,
	}
}
