package main

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
)

func (a *app) urlCommand() *cobra.Command {
	var headers, asJSON bool
	cmd := &cobra.Command{
		Use:   "url ID PORT",
		Short: "print the address of a port of a sandbox",
		Long: `Url prints the address by which a TCP port of a sandbox is reached by HTTP.

Where the provider has none, as the local one, the command listens on this
machine's loopback itself: it stays until it is interrupted, and every user and
program of this machine can connect meanwhile.`,
		Args: arguments(2, 2, "the id of a sandbox, or a port"),
		RunE: func(cmd *cobra.Command, args []string) error {
			port, err := strconv.Atoi(args[1])
			if err != nil {
				return usage(cmd, "%q is not a port", args[1])
			}
			sb, err := a.connect(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			address, err := sb.URL(port)
			if err != nil {
				return err
			}
			stays := sb.Forwarded(port)
			needed := sb.Header(port)
			if err := a.printURL(address, needed, headers, stays, asJSON); err != nil {
				return err
			}
			if !stays {
				return nil
			}
			fmt.Fprintln(a.stderr, "sandbox: forwarding until interrupted")
			return a.attend(cmd.Context(), sb)
		},
		ValidArgsFunction: a.completeSandbox,
	}
	cmd.Flags().BoolVar(&headers, "headers", false, "print the headers that requests need as well; they hold secrets")
	jsonFlag(cmd, &asJSON)
	return cmd
}

func (a *app) printURL(address string, needed http.Header, headers, stays, asJSON bool) error {
	names := slices.Sorted(maps.Keys(needed))
	if asJSON {
		out := struct {
			URL       string      `json:"url"`
			Forwarded bool        `json:"forwarded"`         // by this command, as long as it runs
			Needs     []string    `json:"needs"`             // names of headers
			Headers   http.Header `json:"headers,omitempty"` // with --headers
		}{address, stays, append([]string{}, names...), nil}
		if headers {
			out.Headers = needed
		}
		return a.printJSON(out)
	}
	if _, err := fmt.Fprintln(a.stdout, address); err != nil {
		return err
	}
	if !headers {
		if len(names) > 0 {
			fmt.Fprintf(a.stderr, "sandbox: requests need %s; --headers prints them\n", strings.Join(names, ", "))
		}
		return nil
	}
	for _, name := range names {
		for _, v := range needed[name] {
			if _, err := fmt.Fprintf(a.stdout, "%s: %s\n", name, v); err != nil {
				return err
			}
		}
	}
	return nil
}
