// Command sandboxd serves sandboxes of this machine to E2B clients:
//
//	sandboxd serve              run the gateway
//	sandboxd key create NAME    make an API key
//	sandboxd key list           show the keys
//	sandboxd key revoke NAME    end a key
//
// docs/gateway.md says how to point an SDK at it. It is also pid 1 of the
// sandboxes it makes.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

const usage = `usage: sandboxd serve [options]        run the gateway (sandboxd serve -h lists the options)
       sandboxd key create NAME       make an API key and print it, this once
       sandboxd key list              show the keys
       sandboxd key revoke NAME|ID    end a key
`

// Exit statuses.
const (
	statusOK    = 0
	statusError = 1
	statusUsage = 2
)

func run(args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		fmt.Fprint(stderr, usage)
		return statusUsage
	}
	switch args[0] {
	case "serve":
		return serve(args[1:], stdout, stderr)
	case "key":
		return key(args[1:], stdout, stderr)
	case "help", "-h", "-help", "--help":
		fmt.Fprint(stdout, usage)
		return statusOK
	}
	fmt.Fprintf(stderr, "sandboxd: no command %q\n%s", args[0], usage)
	return statusUsage
}

// complain prints an error with its hint and returns the exit status.
func complain(stderr io.Writer, err error) int {
	fmt.Fprintln(stderr, "sandboxd:", err)
	var e *errdefs.Error
	if errors.As(err, &e) && e.Suggestion != "" {
		fmt.Fprintln(stderr, "sandboxd: hint:", e.Suggestion)
	}
	if code := errdefs.CodeOf(err); code != "" {
		return code.ExitStatus()
	}
	return statusError
}

// defaultStateDir is where all state of this machine lies.
func defaultStateDir() string {
	if d := os.Getenv("SANDBOX_STATE_DIR"); d != "" {
		return d
	}
	if d := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(d) {
		return filepath.Join(d, "sandbox")
	}
	if os.Geteuid() == 0 {
		return "/var/lib/sandbox"
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "" // refused later, as not absolute
	}
	return filepath.Join(home, ".local", "state", "sandbox")
}

// gatewayDir is the gateway's part of the state directory.
func gatewayDir(state string) string { return filepath.Join(state, "gateway") }
