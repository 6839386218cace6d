package main

import (
	"context"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/agent-sandbox/sandbox-go/providers"
)

// completeLimit bounds what a key press may take.
const completeLimit = 3 * time.Second

// networks are the words that --network takes.
var networks = []string{"none", "loopback", "host", "all"}

// complete offers fixed words for an option.
func complete(cmd *cobra.Command, flag string, words []string) {
	cmd.RegisterFlagCompletionFunc(flag, func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return words, cobra.ShellCompDirectiveNoFileComp
	})
}

// completeGlobals offers words for options that several commands have.
func (a *app) completeGlobals(root *cobra.Command) {
	complete(root, "provider", providers.Names())
	for _, cmd := range root.Commands() {
		for flag, words := range map[string][]string{
			"network":   networks,
			"isolation": {"container", "gvisor"},
		} {
			if cmd.Flags().Lookup(flag) != nil {
				complete(cmd, flag, words)
			}
		}
		if cmd.Flags().Lookup("template") != nil {
			cmd.RegisterFlagCompletionFunc("template", func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
				return append([]string{"base"}, a.builtNames(cmd.Context())...), cobra.ShellCompDirectiveNoFileComp
			})
		}
		if cmd.Flags().Lookup("snapshot") != nil {
			cmd.RegisterFlagCompletionFunc("snapshot", a.completeSnapshots)
		}
	}
}

// completeSandbox offers sandboxes for the first argument, completeSandboxes for
// every one.
func (a *app) completeSandbox(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.sandboxIDs(cmd.Context(), "")
}

func (a *app) completeSandboxes(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	ids, d := a.sandboxIDs(cmd.Context(), "")
	return slices.DeleteFunc(ids, func(c string) bool { return slices.Contains(args, firstWord(c)) }), d
}

// sandboxIDs are the ids of the provider's sandboxes with what follows them, and
// what they are, for shells that show it. Without an answer there are none: a
// shell that completes is no place for errors.
func (a *app) sandboxIDs(ctx context.Context, after string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(ctx, completeLimit)
	defer cancel()
	c, err := a.open()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	for i, err := range c.List(ctx, nil) {
		if err != nil {
			break
		}
		out = append(out, cobra.CompletionWithDesc(i.ID+after, oneLine(i.Template+", "+string(i.State))))
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

func (a *app) completeSnapshots(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completeLimit)
	defer cancel()
	c, err := a.open()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	for s, err := range c.Snapshots(ctx, nil) {
		if err != nil {
			break
		}
		if !slices.Contains(args, s.ID) {
			out = append(out, cobra.CompletionWithDesc(s.ID, oneLine(s.Name)))
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// firstWord is a completion without its description.
func firstWord(c string) string {
	for i := range len(c) {
		if c[i] == '\t' {
			return c[:i]
		}
	}
	return c
}
