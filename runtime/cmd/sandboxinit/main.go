// Command sandboxinit is pid 1 of local sandboxes: a small program that starts
// faster than the program that creates them. Started by hand it does one thing,
// with the argument install: it puts itself into the cache of this user, where
// programs with the same version of the module find it. SANDBOX_RUNTIME_BINARY
// names one for a single program.
package main

import (
	"fmt"
	"io"
	"os"
	"slices"

	// As pid 1 of a sandbox, this package serves and never returns to main.
	"github.com/agent-sandbox/sandbox-go/providers/local"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	if slices.Equal(args, []string{"install"}) {
		path, err := local.InstallRuntime(os.Getenv("SANDBOX_CACHE_DIR"))
		if err != nil {
			fmt.Fprintln(stderr, "sandboxinit:", err)
			return 1
		}
		fmt.Fprintln(stdout, path)
		return 0
	}
	fmt.Fprintln(stderr, "sandboxinit: this is pid 1 of a sandbox; provider local starts it")
	fmt.Fprintln(stderr, "usage: sandboxinit install")
	fmt.Fprintln(stderr, "       SANDBOX_RUNTIME_BINARY=/path/to/sandboxinit PROGRAM")
	return 2
}
