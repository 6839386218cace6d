// Command sandboxd serves sandboxes of this machine to E2B clients, and is the
// runtime of a sandbox that somebody else has made:
//
//	sandboxd serve              run the gateway
//	sandboxd runtime            serve the sandbox that it is in
//	sandboxd key create NAME    make an API key
//	sandboxd key list           show the keys
//	sandboxd key revoke NAME    end a key
//	sandboxd doctor             say what this machine can enforce
//	sandboxd version            say which build this is
//
// An option in place of a command is one of runtime. docs/gateway.md says how to
// point an SDK at it. It is also pid 1 of the sandboxes it makes.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/agent-sandbox/sandbox-go/internal/version"
	"github.com/agent-sandbox/sandbox-go/runtime/server"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

const usage = `usage: sandboxd serve [options]        run the gateway (sandboxd serve -h lists the options)
       sandboxd [runtime] [options]   serve the sandbox that this is in (sandboxd runtime -h lists the options)
       sandboxd key create NAME       make an API key and print it, this once
       sandboxd key list              show the keys
       sandboxd key revoke NAME|ID    end a key
       sandboxd doctor [--json]       say what this machine can enforce, and how to get the rest
       sandboxd version               say which build this is
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
	case "runtime":
		return server.Run(nil, "sandboxd runtime", args[1:], stderr)
	case "serve":
		return serve(args[1:], stdout, stderr)
	case "key":
		return key(args[1:], stdout, stderr)
	case "doctor":
		return doctor(args[1:], stdout, stderr)
	case "version", "-version", "--version":
		fmt.Fprintln(stdout, "sandboxd", version.String())
		return statusOK
	case "help", "-h", "-help", "--help":
		fmt.Fprint(stdout, usage)
		return statusOK
	}
	if strings.HasPrefix(args[0], "-") {
		return server.Run(nil, "sandboxd", args, stderr)
	}
	fmt.Fprintf(stderr, "%s\nsandboxd: no command %q\n", usage, args[0])
	return statusUsage
}

// complain prints an error with its hint and returns the exit status.
func complain(stderr io.Writer, err error) int {
	fmt.Fprintln(stderr, "sandboxd:", err)
	if e, ok := errors.AsType[*errdefs.Error](err); ok && e.Hint() != "" {
		fmt.Fprintln(stderr, "sandboxd: hint:", e.Hint())
	}
	if code := errdefs.CodeOf(err); code != "" {
		return code.ExitStatus()
	}
	return statusError
}
