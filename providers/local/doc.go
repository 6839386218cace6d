// Package local is the provider that makes sandboxes on this machine, with
// nothing installed and without root: Linux namespaces, an allowlisted view of
// the file system, seccomp, Landlock and control groups, driven from Go.
//
// A sandbox's pid 1 is the caller's own executable, started again. Package
// nsinit builds the sandbox before anything else of that program is
// initialised, and the init function of this package then runs the runtime
// server and never returns, so neither main nor the initialisers of packages
// that import the client run in there.
//
// Importing the package registers the provider "local" and does nothing else.
// It never runs anything unsandboxed: what cannot be isolated is an
// [*IsolationError]. docs/rationale.md says why each layer is there.
package local
