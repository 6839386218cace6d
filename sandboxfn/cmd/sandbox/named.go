package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
)

// namedJSON is a named command as --json prints it.
type namedJSON struct {
	Name        string    `json:"name"`
	Description string    `json:"description,omitempty"`
	Args        []argJSON `json:"args"`
}

type argJSON struct {
	Name        string `json:"name"`
	Type        string `json:"type"` // string, integer, float or boolean
	Required    bool   `json:"required"`
	Default     any    `json:"default,omitempty"`
	Description string `json:"description,omitempty"`
}

func (a *app) commandsCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "commands ID",
		Short: "list what a sandbox offers by name",
		Long:  `Commands lists the named commands of a sandbox, which its template declares. "sandbox run" runs them.`,
		Args:  arguments(1, 1, "the id of a sandbox"),
		RunE: func(cmd *cobra.Command, args []string) error {
			sb, err := a.connect(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			list, err := sb.Commands(cmd.Context())
			if err != nil {
				return err
			}
			if asJSON {
				out := []namedJSON{}
				for _, c := range list {
					n := namedJSON{c.Name, c.Description, []argJSON{}}
					for _, arg := range c.Args {
						n.Args = append(n.Args, argJSON(arg))
					}
					out = append(out, n)
				}
				return a.printJSON(out)
			}
			var rows [][]string
			for _, c := range list {
				rows = append(rows, []string{c.Name, argsText(c.Args), c.Description})
			}
			return a.printTable([]string{"NAME", "ARGUMENTS", "DESCRIPTION"}, rows)
		},
		ValidArgsFunction: a.completeSandbox,
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

// argsText shows how arguments are written; those in brackets can be left out.
func argsText(args []sandboxfn.NamedArg) string {
	var out []string
	for _, arg := range args {
		text := arg.Name + "=" + strings.ToUpper(arg.Type)
		if !arg.Required {
			text = "[" + text + "]"
		}
		out = append(out, text)
	}
	return strings.Join(out, " ")
}

func (a *app) runCommand() *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "run ID NAME [ARG=VALUE…]",
		Short: "run a named command of a sandbox",
		Long: `Run runs a command that the sandbox offers by name, with its output here, and ends
with its status. The result of one that is a function is printed as JSON.`,
		Example: `  sandbox run $id convert input=photo.png width=200`,
		Args:    arguments(2, -1, "the id of a sandbox, or the name of a command"),
		RunE: func(cmd *cobra.Command, args []string) error {
			values, err := parsePairs(cmd, "ARG", args[2:], false)
			if err != nil {
				return usage(cmd, "an argument is not of the form ARG=VALUE")
			}
			sb, err := a.connect(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.invoke(cmd.Context(), sb, args[1], values, timeout)
		},
		ValidArgsFunction: a.completeNamed,
	}
	cmd.Flags().Var(span{&timeout}, "timeout", "`duration` after which it is killed (default: its own)")
	return cmd
}

func (a *app) invoke(ctx context.Context, sb *sandboxfn.Sandbox, name string, values map[string]string, timeout time.Duration) error {
	typed := map[string]any{}
	if len(values) > 0 {
		list, err := sb.Commands(ctx)
		if err != nil {
			return err
		}
		var args []sandboxfn.NamedArg // none of one that is hidden: text, then
		if i := slices.IndexFunc(list, func(c sandboxfn.NamedCommand) bool { return c.Name == name }); i >= 0 {
			args = list[i].Args
		}
		for k, v := range values {
			typed[k] = typedValue(args, k, v)
		}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	res, err := sb.Invoke(ctx, name, typed, &sandboxfn.InvokeOptions{
		Timeout: timeout, Stdout: &output{f: a.stdout, failed: cancel}, Stderr: &output{f: a.stderr, failed: cancel},
	})
	if err != nil {
		return a.ended(err)
	}
	if res.Result == nil {
		return nil
	}
	return a.printJSON(res.Result)
}

// typedValue is the value that JSON has for an argument. What cannot be read as
// its type stays text, which the sandbox refuses with the right words.
func typedValue(args []sandboxfn.NamedArg, name, text string) any {
	i := slices.IndexFunc(args, func(arg sandboxfn.NamedArg) bool { return arg.Name == name })
	if i < 0 {
		return text
	}
	switch args[i].Type {
	case "integer", "float":
		if n := json.Number(text); json.Valid([]byte(text)) {
			if _, err := n.Float64(); err == nil {
				return n
			}
		}
	case "boolean":
		if b, err := strconv.ParseBool(text); err == nil {
			return b
		}
	}
	return text
}

// completeNamed offers sandboxes, then names, then arguments.
func (a *app) completeNamed(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return a.sandboxIDs(cmd.Context(), "")
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completeLimit)
	defer cancel()
	list, err := a.commandsOf(ctx, args[0])
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	for _, c := range list {
		switch {
		case len(args) == 1:
			out = append(out, cobra.CompletionWithDesc(c.Name, oneLine(c.Description)))
		case c.Name == args[1]:
			for _, arg := range c.Args {
				out = append(out, cobra.CompletionWithDesc(arg.Name+"=", oneLine(fmt.Sprint(arg.Type, " ", arg.Description))))
			}
			return out, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// commandsOf asks a sandbox that runs. A key press resumes none.
func (a *app) commandsOf(ctx context.Context, id string) ([]sandboxfn.NamedCommand, error) {
	c, err := a.open()
	if err != nil {
		return nil, err
	}
	if info, err := c.Inspect(ctx, id); err != nil || info.State != "running" {
		return nil, err
	}
	sb, err := a.connect(ctx, id)
	if err != nil {
		return nil, err
	}
	return sb.Commands(ctx)
}
