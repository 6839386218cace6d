package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// joinClose adds the error of a clean-up to err.
func joinClose(err error, clean func() error) error { return errors.Join(err, clean()) }

// atOnce is how many sandboxes are dealt with at the same time.
const atOnce = 8

// each does something with every sandbox, a few at a time, and says each failure
// when all are done. What was done is printed, in the order of ids: the ids, or a
// document with done and failed.
func (a *app) each(ids []string, asJSON bool, do func(id string) error) error {
	errs := make([]error, len(ids))
	slots := make(chan struct{}, atOnce)
	var wg sync.WaitGroup
	for i, id := range ids {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			errs[i] = do(id)
		})
	}
	wg.Wait()
	type failure struct {
		ID    string `json:"id"`
		Code  string `json:"code,omitempty"`
		Error string `json:"error"`
	}
	out := struct {
		Done   []string  `json:"done"`
		Failed []failure `json:"failed"`
	}{[]string{}, []failure{}}
	var first error
	for i, err := range errs {
		if err == nil {
			out.Done = append(out.Done, ids[i])
			if !asJSON {
				if _, err := fmt.Fprintln(a.stdout, ids[i]); err != nil {
					return err
				}
			}
			continue
		}
		if first == nil {
			first = err
		}
		out.Failed = append(out.Failed, failure{ids[i], string(sandboxfn.CodeOf(err)), oneLine(err.Error())})
		a.complain(err)
	}
	if asJSON {
		if err := a.printJSON(out); err != nil {
			return err
		}
	}
	if first != nil {
		return exitStatus(statusOf(first))
	}
	return nil
}

func (a *app) killCommand() *cobra.Command {
	var all, yes, asJSON bool
	var metadata []string
	cmd := &cobra.Command{
		Use:   "kill [ID…]",
		Short: "end sandboxes",
		Long: `Kill ends sandboxes, with everything inside, and prints their ids. One that has
ended already counts as done; one that the provider has never had is an error,
and the others are ended all the same. --all asks before, on a terminal, and is
content when there is none.`,
		Example: `  sandbox kill $id
  sandbox kill --all --metadata job=42 --yes
  sandbox ls -q --state paused | xargs -r sandbox kill`,
		Args: func(cmd *cobra.Command, args []string) error {
			if all && len(args) > 0 {
				return usage(cmd, "--all and ids exclude each other")
			}
			if !all && len(metadata) > 0 {
				return usage(cmd, "--metadata goes with --all")
			}
			if !all && len(args) == 0 {
				return &errdefs.Error{Code: "E8007", Op: "read options", Message: "the id of a sandbox is missing",
					Suggestion: "--all is every one, also when there is none; see " + cmd.CommandPath() + " --help"}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, ids []string) error {
			match, err := parsePairs(cmd, "metadata", metadata, false)
			if err != nil {
				return err
			}
			c, err := a.open()
			if err != nil {
				return err
			}
			ctx := cmd.Context()
			if all {
				o := &sandboxfn.ListOptions{Metadata: match}
				for _, s := range states {
					o.States = append(o.States, sandboxfn.State(s))
				}
				for i, err := range c.List(ctx, o) {
					if err != nil {
						return err
					}
					ids = append(ids, i.ID)
				}
				if len(ids) > 0 && !yes && !a.confirm(fmt.Sprintf("kill %d sandboxes of provider %s", len(ids), c.Provider())) {
					return exitStatus(statusError)
				}
			}
			return a.each(ids, asJSON, func(id string) error {
				// Kill takes every id as done; a mistyped one is worth an error here.
				if _, err := c.Inspect(ctx, id); errors.Is(err, sandboxfn.ErrNotFound) && !all {
					return err
				}
				return c.Kill(ctx, id)
			})
		},
		ValidArgsFunction: a.completeSandboxes,
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "every sandbox of the provider")
	cmd.Flags().StringArrayVarP(&metadata, "metadata", "m", nil, "`KEY=VALUE` that they must have, with --all; repeatable")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "don't ask")
	jsonFlag(cmd, &asJSON)
	return cmd
}

// confirm asks on a terminal. Where nobody can answer the answer is yes: a
// program has said what it wants.
func (a *app) confirm(what string) bool {
	if !isTerminal(a.stdin) || !isTerminal(a.stderr) {
		return true
	}
	fmt.Fprintf(a.stderr, "%s? [y/N] ", what)
	answer, _ := bufio.NewReader(a.stdin).ReadString('\n')
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return true
	}
	return false
}

// eachCommand is a command that does one thing with sandboxes.
func (a *app) eachCommand(use, short, long string, do func(ctx context.Context, c *sandboxfn.Client, id string) error) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: use + " ID…", Short: short, Long: long,
		Args: arguments(1, -1, "the id of a sandbox"),
		RunE: func(cmd *cobra.Command, ids []string) error {
			c, err := a.open()
			if err != nil {
				return err
			}
			return a.each(ids, asJSON, func(id string) error { return do(cmd.Context(), c, id) })
		},
		ValidArgsFunction: a.completeSandboxes,
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func (a *app) pauseCommand() *cobra.Command {
	return a.eachCommand("pause", "stop everything in sandboxes, and keep it",
		`Pause stops everything in sandboxes and keeps it. Their lifetime goes on. Every
command that uses a sandbox lets it go on, as "sandbox resume" does.`,
		func(ctx context.Context, c *sandboxfn.Client, id string) error { return c.Pause(ctx, id) })
}

func (a *app) resumeCommand() *cobra.Command {
	return a.eachCommand("resume", "let sandboxes go on that are paused or hibernate",
		`Resume lets sandboxes go on that are paused, and starts those that hibernate. One that runs is left as it is.`,
		func(ctx context.Context, c *sandboxfn.Client, id string) error {
			_, err := c.Connect(ctx, id, nil)
			return err
		})
}

func (a *app) hibernateCommand() *cobra.Command {
	return a.eachCommand("hibernate", "end the processes of sandboxes, and keep their files",
		`Hibernate ends every process of sandboxes and keeps their files. Every command
that uses a sandbox starts it again, as "sandbox resume" does.`,
		func(ctx context.Context, c *sandboxfn.Client, id string) error { return c.Hibernate(ctx, id) })
}

func (a *app) forkCommand() *cobra.Command {
	var f createFlags
	var asJSON bool
	n := 1
	cmd := &cobra.Command{
		Use:   "fork ID",
		Short: "make sandboxes with the files of another",
		Long: `Fork makes sandboxes that begin with the files of another, which goes on, and
prints their ids. Processes and environment are not taken along; limits and
metadata are, unless options say otherwise.`,
		Args: arguments(1, 1, "the id of a sandbox"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := f.options(cmd)
			if err != nil {
				return err
			}
			return a.fork(cmd.Context(), args[0], n, o, asJSON)
		},
		ValidArgsFunction: a.completeSandbox,
	}
	f.add(cmd)
	cmd.Flags().IntVarP(&n, "count", "n", 1, "`number` of forks")
	jsonFlag(cmd, &asJSON)
	return cmd
}

func (a *app) fork(ctx context.Context, id string, n int, o sandboxfn.CreateOptions, asJSON bool) error {
	sb, err := a.connect(ctx, id)
	if err != nil {
		return err
	}
	info, err := sb.Info(ctx)
	if err != nil {
		return err
	}
	o.Detached = true // this command ends at once
	if o.Metadata == nil {
		o.Metadata = info.Metadata
	}
	if o.CPU == 0 {
		o.CPU = info.CPU
	}
	if o.Memory == 0 {
		o.Memory = info.Memory
	}
	if o.Disk == 0 {
		o.Disk = info.Disk
	}
	o.Processes = info.Processes
	done := a.progress("forking sandbox " + id)
	forks, err := sb.Fork(ctx, n, &sandboxfn.ForkOptions{Create: &o})
	done()
	if err != nil {
		return err
	}
	made := []sandboxJSON{}
	for _, fork := range forks {
		if !asJSON {
			if _, err := fmt.Fprintln(a.stdout, fork.ID()); err != nil {
				return err
			}
			continue
		}
		info, err := fork.Info(ctx)
		if err != nil {
			return err
		}
		made = append(made, sandboxOf(info))
	}
	if asJSON {
		return a.printJSON(made)
	}
	return nil
}
