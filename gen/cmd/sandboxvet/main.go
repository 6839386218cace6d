// Sandboxvet checks programs with sandboxed functions for what compiles and
// still does something else than it seems to. The go command runs it:
//
//	go vet -vettool=$(go tool -n sandboxvet) ./...
//
// docs/vet.md describes the checks.
package main

import "github.com/agent-sandbox/sandbox-go/gen/vet"

func main() { vet.Main() }
