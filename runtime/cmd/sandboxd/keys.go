package main

import (
	"flag"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/gateway"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

const keyUsage = `usage: sandboxd key create NAME       make an API key and print it, this once
       sandboxd key list              show the keys, without their secrets
       sandboxd key revoke NAME|ID    end a key
`

// key manages the API keys. A running gateway sees every change at once.
func key(args []string, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("sandboxd key", flag.ContinueOnError)
	state := fs.String("state-dir", defaultStateDir(), "`directory` of all state")
	words, err := parse(fs, args, keyUsage, stdout)
	if err == nil {
		err = checkKeyWords(fs, words)
	}
	if err != nil {
		return flagStatus(stderr, err)
	}
	there, err := checkState(*state)
	if err != nil {
		return complain(stderr, err)
	}
	dir := gatewayDir(*state)
	if !there && words[0] != "create" {
		return complain(stderr, &errdefs.Error{Code: "E8007", Op: words[0] + " keys", Message: "no keys were ever made in " + *state,
			Suggestion: "name the directory of your gateway with --state-dir"})
	}
	keys, err := gateway.OpenKeys(dir)
	if err == nil {
		err = keyCommand(keys, words, stdout, stderr, dir)
	}
	if err != nil {
		return complain(stderr, err)
	}
	return statusOK
}

// checkKeyWords checks the command and what it is about.
func checkKeyWords(fs *flag.FlagSet, words []string) error {
	if len(words) == 0 {
		return wrongUsage(fs, "say create, list or revoke")
	}
	want, ok := map[string]int{"create": 2, "list": 1, "revoke": 2}[words[0]]
	switch {
	case !ok:
		return wrongUsage(fs, fmt.Sprintf("%q is none of create, list and revoke", words[0]))
	case len(words) < want:
		return wrongUsage(fs, "the name of the key is missing after "+words[0])
	case len(words) > want:
		return wrongUsage(fs, fmt.Sprintf("unexpected argument %q", words[want]))
	}
	return nil
}

func keyCommand(keys *gateway.Keys, words []string, stdout, stderr io.Writer, dir string) error {
	switch words[0] {
	case "create":
		k, err := keys.Create(words[1])
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(stdout, "E2B_API_KEY=%s\n", k.Secret)
		return err
	case "revoke":
		return keys.Revoke(words[1])
	}
	all, err := keys.List()
	if err != nil {
		return err
	}
	fmt.Fprintln(stderr, "sandboxd: keys in", dir)
	t := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "ID\tNAME\tCREATED")
	for _, k := range all {
		fmt.Fprintf(t, "%s\t%s\t%s\n", k.ID, k.Name, k.CreatedAt.Format(time.RFC3339))
	}
	return t.Flush()
}
