// Package command serves the named commands of a sandbox: what its template
// declares, and the functions of a Go program that is its own runtime. Both are
// in one [Registry], take typed arguments, and are listed and run in the same way
// over GET /commands and POST /commands/{name}.
//
// A template author who writes Go calls [Register] and hands the registry to
// server.Main; [Service] is for package server.
package command
