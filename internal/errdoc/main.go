// Command errdoc writes docs/errors.md from the table of error codes. With
// -check it only compares and exits 1 when the page is stale. It is run from
// the root of the module by make generate and make check.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

const page = "docs/errors.md"

func main() { os.Exit(run(os.Args[1:], os.Stderr)) }

func run(args []string, stderr io.Writer) int {
	flags := flag.NewFlagSet("errdoc", flag.ContinueOnError)
	flags.SetOutput(stderr)
	check := flags.Bool("check", false, "compare only")
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 {
		return 2
	}
	want := render()
	if *check {
		if got, err := os.ReadFile(page); err != nil || !bytes.Equal(got, want) {
			fmt.Fprintf(stderr, "errdoc: %s is stale: run make generate\n", page)
			return 1
		}
		return 0
	}
	if err := os.WriteFile(page, want, 0o644); err != nil {
		fmt.Fprintln(stderr, "errdoc:", err)
		return 1
	}
	return 0
}

var classes = map[errdefs.Code]string{
	"E1000": "Authentication",
	"E2000": "Creation, templates, sandbox state",
	"E3000": "Commands and code",
	"E4000": "Files",
	"E5000": "Network",
	"E6000": "Sessions",
	"E7000": "Build and deployment",
	"E8000": "Providers, plugins, policy, settings",
	"E9000": "Function calls",
}

// names are those of errors of the standard library.
var names = map[error]string{
	nil: "", fs.ErrNotExist: "`fs.ErrNotExist`", fs.ErrPermission: "`fs.ErrPermission`", fs.ErrExist: "`fs.ErrExist`", fs.ErrInvalid: "`fs.ErrInvalid`",
	errors.ErrUnsupported: "`errors.ErrUnsupported`",
}

func render() []byte {
	var b bytes.Buffer
	b.WriteString(`<!-- Written by internal/errdoc from the table in sandboxfn/errdefs. DO NOT EDIT. -->
# Error codes

Every error of the library that is not your function's own is a ` + "`*sandboxfn.Error`" + ` with one of these codes.
` + "`errors.Is(err, sandboxfn.ErrExec)`" + ` holds for every code of a class, ` + "`errors.Is(err, sandboxfn.ErrCommandTimeout)`" + `
for one code, ` + "`errors.Is(err, sandboxfn.ErrTimeout)`" + ` and ` + "`context.DeadlineExceeded`" + ` for every row with a clock
(` + "`os.ErrDeadlineExceeded`" + ` too), and for errors of the last column what it names, as for those of package os.

What to do about an error is not part of its text. ` + "`Error.Hint`" + ` returns it: the error's own ` + "`Suggestion`" + `, which knows the case,
or else what the table says.

` + "```go" + `
if e, ok := errors.AsType[*sandboxfn.Error](err); ok && e.Hint() != "" {
	fmt.Fprintf(os.Stderr, "%v\nhint: %s\n", err, e.Hint())
}
` + "```" + `
`)
	for _, c := range errdefs.Codes() {
		if c.Class() == c {
			fmt.Fprintf(&b, "\n## %s %s\n\n| code | meaning | what to do | exit status | clock | also |\n|---|---|---|---|---|---|\n", c, classes[c])
		}
		clock := ""
		if c.Timeout() {
			clock = "yes"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %d | %s | %s |\n", c, c.Meaning(), c.Suggestion(), c.ExitStatus(), clock, names[c.Like()])
	}
	return b.Bytes()
}
