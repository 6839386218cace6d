// Command sandboxinit is pid 1 of local sandboxes and nothing else: a small
// program that starts faster than the program that creates them. Set
// SANDBOX_RUNTIME_BINARY to its path to use it. Started by hand it says so.
package main

import (
	"fmt"
	"io"
	"os"

	// As pid 1 of a sandbox, this package serves and never returns to main.
	_ "github.com/agent-sandbox/sandbox-go/providers/local"
)

func main() { os.Exit(run(os.Args[1:], os.Stderr)) }

func run(_ []string, stderr io.Writer) int {
	fmt.Fprintln(stderr, "sandboxinit: this is pid 1 of a sandbox; provider local starts it, by the name in SANDBOX_RUNTIME_BINARY")
	fmt.Fprintln(stderr, "usage: SANDBOX_RUNTIME_BINARY=/path/to/sandboxinit PROGRAM")
	return 2
}
