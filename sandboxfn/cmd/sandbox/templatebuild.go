package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
	"github.com/agent-sandbox/sandbox-go/templates"
)

// builtJSON is a template that was built.
type builtJSON struct {
	Name      string     `json:"name"`
	Provider  string     `json:"provider"`
	Version   string     `json:"version,omitempty"`
	Digest    string     `json:"digest"`
	CreatedAt *time.Time `json:"created_at,omitempty"`
	SizeBytes int64      `json:"size_bytes"`
}

func builtOf(t *sandboxfn.TemplateInfo) builtJSON {
	out := builtJSON{Name: t.Name, Provider: t.Provider, Digest: t.Digest, CreatedAt: moment(t.CreatedAt), SizeBytes: int64(t.Size)}
	if t.Model != nil {
		out.Version = t.Model.Version
	}
	return out
}

func (a *app) buildCommand() *cobra.Command {
	var f resolveFlags
	var o sandboxfn.BuildOptions
	var verbose, asJSON bool
	cmd := &cobra.Command{
		Use:   "build REF",
		Short: "build a template, so that sandboxes can be made from it",
		Long: `Build finds a template, runs its build steps and keeps what they make under its
name, which it prints: "sandbox create --template NAME" takes it. Steps that were
done before are not run again. When a step fails, its last lines are printed, and
an earlier template of that name stays.

A Dockerfile in the folder of the template is built by podman, buildah or docker,
of which one must be installed. With --engine that is done for every template, by
the Dockerfile that "sandbox template show --dockerfile" prints: from the image of
its base, and from ` + templates.DefaultImage + ` where none is named, as an engine does not
have the files of this machine; that is said on standard error.`,
		Example: `  sandbox template build ./tools
  sandbox template build --engine podman ./tools
  sandbox create --template tools`,
		Args: arguments(1, 1, "the name of a template"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.open()
			if err != nil {
				return err
			}
			from, err := a.compile(cmd.Context(), args[0], &f)
			if err != nil {
				return err
			}
			defer from.Close()
			o.Dir = from.Dir
			if o.Engine != "" && from.Template.Dockerfile == "" {
				if from.Template.Dockerfile, err = templates.Dockerfile(from.Template); err != nil {
					return err
				}
				if from.Template.Base.Image == "" {
					a.notice([]string{"an engine cannot begin with the files of this machine, and the template names no image: it is built from " + templates.DefaultImage})
				}
			}
			news, done := a.buildNews(verbose)
			o.Progress = news
			t, err := c.BuildTemplate(cmd.Context(), from.Template, &o)
			done()
			if err != nil {
				return err
			}
			if asJSON {
				return a.printJSON(builtOf(t))
			}
			_, err = fmt.Fprintln(a.stdout, t.Name)
			return err
		},
		ValidArgsFunction: completeTemplate,
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&o.Fresh, "fresh", false, "run every step, whatever is kept of earlier builds")
	cmd.Flags().StringVar(&o.Engine, "engine", "", "`program` that builds the Dockerfile: podman, buildah, docker, or auto (default: auto for a template that has one)")
	cmd.Flags().StringVar(&o.Network, "network", "", "`what` the steps may reach, as for create (default: what the template says)")
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "print what the steps print to standard error")
	jsonFlag(cmd, &asJSON)
	complete(cmd, "network", networks)
	complete(cmd, "engine", []string{"auto", "podman", "buildah", "docker"})
	return cmd
}

// compile finds a template and what its steps copy.
func (a *app) compile(ctx context.Context, ref string, f *resolveFlags) (*templates.Compiled, error) {
	done := a.progress("looking for " + ref)
	c, err := templates.Compile(ctx, ref, &f.o)
	done()
	if err == nil {
		a.notice(c.Notices)
	}
	return c, err
}

// buildNews shows how a build goes: every line where that is asked for, else on a
// terminal the step that runs and its last line.
func (a *app) buildNews(verbose bool) (news func(sandboxfn.BuildEvent), done func()) {
	if verbose {
		return func(e sandboxfn.BuildEvent) { fmt.Fprintln(a.stderr, eventText(e)) }, func() {}
	}
	if !isTerminal(a.stderr) || os.Getenv("TERM") == "dumb" {
		return nil, func() {}
	}
	step := ""
	return func(e sandboxfn.BuildEvent) {
		text := eventText(e)
		if e.Kind == sandboxfn.BuildOutput {
			text = step + text[2:]
		} else {
			step = text
		}
		if cols, _, err := term.GetSize(int(a.stderr.Fd())); err == nil && cols > 1 {
			if r := []rune(text); len(r) >= cols {
				text = string(r[:cols-1])
			}
		}
		fmt.Fprintf(a.stderr, "\r\x1b[K%s", text)
	}, func() { fmt.Fprint(a.stderr, "\r\x1b[K") }
}

func eventText(e sandboxfn.BuildEvent) string {
	if e.Kind == sandboxfn.BuildOutput {
		return "   | " + oneLine(e.Text)
	}
	text := string(e.Kind)
	if e.Step > 0 {
		text = fmt.Sprintf("step %d of %d: %s: %s", e.Step, e.Steps, text, e.Text)
	}
	if e.Took > 0 {
		text += " (" + e.Took.Round(time.Millisecond).String() + ")"
	}
	return oneLine(text)
}

func (a *app) builtCommand() *cobra.Command {
	var quiet, asJSON bool
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "list the templates that were built",
		Args:    arguments(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if quiet && asJSON {
				return usage(cmd, "--quiet and --json exclude each other")
			}
			c, err := a.open()
			if err != nil {
				return err
			}
			all, err := c.Templates(cmd.Context())
			if err != nil {
				return err
			}
			found := []builtJSON{}
			var rows [][]string
			for _, t := range all {
				b := builtOf(t)
				found = append(found, b)
				rows = append(rows, []string{b.Name, b.Version, ago(t.CreatedAt), byteCount(b.SizeBytes)})
			}
			switch {
			case asJSON:
				return a.printJSON(found)
			case quiet:
				for _, b := range found {
					if _, err := fmt.Fprintln(a.stdout, b.Name); err != nil {
						return err
					}
				}
				return nil
			}
			return a.printTable([]string{"NAME", "VERSION", "BUILT", "SIZE"}, rows)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print names only")
	jsonFlag(cmd, &asJSON)
	return cmd
}

func (a *app) removeCommand() *cobra.Command {
	cmd := a.eachCommand("rm", "remove templates that were built", "Rm removes templates that were built. Sandboxes that were made from them live on.",
		func(ctx context.Context, c *sandboxfn.Client, name string) error { return c.RemoveTemplate(ctx, name) })
	cmd.Use, cmd.Args = "rm NAME…", arguments(1, -1, "the name of a template")
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		return slices.DeleteFunc(a.builtNames(cmd.Context()), func(n string) bool { return slices.Contains(args, n) }), cobra.ShellCompDirectiveNoFileComp
	}
	return cmd
}

// builtNames are the templates that the provider has built.
func (a *app) builtNames(ctx context.Context) (names []string) {
	ctx, cancel := context.WithTimeout(ctx, completeLimit)
	defer cancel()
	c, err := a.open()
	if err != nil {
		return nil
	}
	all, err := c.Templates(ctx)
	if err != nil {
		return nil
	}
	for _, t := range all {
		names = append(names, t.Name)
	}
	return names
}
