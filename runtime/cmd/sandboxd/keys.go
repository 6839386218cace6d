package main

import (
	"flag"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/gateway"
)

// key manages the API keys. A running gateway sees every change at once.
func key(args []string, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("sandboxd key", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() { fmt.Fprint(stderr, usage); fs.PrintDefaults() }
	state := fs.String("state-dir", defaultStateDir(), "`directory` of all state")
	verb := ""
	if len(args) > 0 {
		verb, args = args[0], args[1:]
	}
	if err := fs.Parse(args); err != nil {
		return flagStatus(err)
	}
	want := map[string]int{"create": 1, "list": 0, "revoke": 1}
	if n, ok := want[verb]; !ok || fs.NArg() != n {
		fs.Usage()
		return statusUsage
	}
	keys, err := gateway.OpenKeys(gatewayDir(*state))
	if err != nil {
		return complain(stderr, err)
	}
	switch verb {
	case "create":
		k, err := keys.Create(fs.Arg(0))
		if err != nil {
			return complain(stderr, err)
		}
		fmt.Fprintf(stdout, "E2B_API_KEY=%s\n", k.Secret)
	case "revoke":
		if err := keys.Revoke(fs.Arg(0)); err != nil {
			return complain(stderr, err)
		}
	case "list":
		all, err := keys.List()
		if err != nil {
			return complain(stderr, err)
		}
		t := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "ID\tNAME\tCREATED")
		for _, k := range all {
			fmt.Fprintf(t, "%s\t%s\t%s\n", k.ID, k.Name, k.CreatedAt.Format(time.RFC3339))
		}
		t.Flush()
	}
	return statusOK
}
