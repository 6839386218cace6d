// Package nsinit is the first thing that runs in pid 1 of a local sandbox: its
// init function builds the sandbox around the process, before the packages of
// the program that is its executable are initialised. It imports nothing but
// syscall and unsafe, so that only a handful of the Go runtime's own packages
// come before it.
//
// It knows no policy. A client sends a [Program], a list of system calls with
// their arguments, over a socket; this package makes them one after the other
// and reports the first that fails. What the calls are is decided and tested
// in package local.
//
// In every other process the init function looks at three environment
// variables and returns.
package nsinit
