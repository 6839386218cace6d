package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
)

// states are what --state takes.
var states = []string{"starting", "running", "paused", "stopped"}

func (a *app) listCommand() *cobra.Command {
	var metadata, only []string
	var all, quiet, asJSON bool
	var limit int
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "list sandboxes",
		Long:    `Ls lists the sandboxes of the provider, newest first: those that run or are paused, unless --state or --all say otherwise.`,
		Example: `  sandbox ls --metadata job=42
  sandbox ls --json | jq -r '.[] | select(.state == "paused") | .id'
  sandbox kill $(sandbox ls -q)`,
		Args: arguments(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var o sandboxfn.ListOptions
			var err error
			if o.Metadata, err = parsePairs(cmd, "metadata", metadata, false); err != nil {
				return err
			}
			if limit < 0 {
				return usage(cmd, "--limit %d is negative", limit)
			}
			if quiet && asJSON {
				return usage(cmd, "--quiet and --json exclude each other")
			}
			if all {
				only = append(only, states...)
			}
			for _, s := range only {
				if !slices.Contains(states, s) {
					return usage(cmd, "--state %q is none of %s", s, strings.Join(states, ", "))
				}
				o.States = append(o.States, sandboxfn.State(s))
			}
			c, err := a.open()
			if err != nil {
				return err
			}
			found := []*sandboxfn.Info{}
			for i, err := range c.List(cmd.Context(), &o) {
				if err != nil {
					return err
				}
				found = append(found, i)
				if limit > 0 && len(found) == limit {
					break
				}
			}
			return a.printSandboxes(found, quiet, asJSON)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := cmd.Flags()
	f.StringArrayVarP(&metadata, "metadata", "m", nil, "`KEY=VALUE` that they must have; repeatable")
	f.StringArrayVar(&only, "state", nil, "`state` that they must be in: "+strings.Join(states, ", ")+"; repeatable")
	f.BoolVarP(&all, "all", "a", false, "those of every state")
	f.IntVarP(&limit, "limit", "n", 0, "`number` of sandboxes at most (default: all)")
	f.BoolVarP(&quiet, "quiet", "q", false, "print ids only")
	jsonFlag(cmd, &asJSON)
	complete(cmd, "state", states)
	return cmd
}

func (a *app) printSandboxes(found []*sandboxfn.Info, quiet, asJSON bool) error {
	switch {
	case quiet:
		for _, i := range found {
			if _, err := fmt.Fprintln(a.stdout, i.ID); err != nil {
				return err
			}
		}
		return nil
	case asJSON:
		out := make([]sandboxJSON, len(found))
		for n, i := range found {
			out[n] = sandboxOf(i)
		}
		return a.printJSON(out)
	}
	var rows [][]string
	for _, i := range found {
		rows = append(rows, []string{i.ID, i.Template, string(i.State), ago(i.CreatedAt), ahead(i.ExpiresAt), pairs(i.Metadata)})
	}
	return a.printTable([]string{"ID", "TEMPLATE", "STATE", "CREATED", "ENDS", "METADATA"}, rows)
}
