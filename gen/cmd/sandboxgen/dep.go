//go:build sandboxgen_deps

// This file is never built. Its imports are here for go mod tidy and go get -tool, which look at files of every build
// constraint: generated code imports these packages, and a module that has only the tool yet would otherwise not record
// what they need in its go.sum.

package main

import (
	_ "github.com/agent-sandbox/sandbox-go/sandboxfn"
	_ "github.com/agent-sandbox/sandbox-go/sandboxfn/validate"
)
