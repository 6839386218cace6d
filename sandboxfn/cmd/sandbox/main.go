// Command sandbox makes and uses sandboxes from a shell:
//
//	id=$(sandbox create)
//	sandbox exec $id -- uname -a
//	sandbox cp ./src $id:src
//	sandbox shell $id
//	sandbox kill $id
//
// docs/cli.md describes every command, what is printed with --json, and exit
// statuses. Which provider is used, and where settings come from, is as for
// programs: docs/configuration.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/agent-sandbox/sandbox-go/internal/version"
	_ "github.com/agent-sandbox/sandbox-go/providers/local/image" // create --image
	"github.com/agent-sandbox/sandbox-go/sandboxfn"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// Exit statuses beside those of error codes.
const (
	statusOK    = 0
	statusError = 1
	statusUsage = 2
)

// app is one run of the command.
type app struct {
	stdin, stdout, stderr *os.File

	settings sandboxfn.ClientOptions // of the options for all commands
	client   *sandboxfn.Client       // nil until open
	signals  *signals
	ownPool  bool // SANDBOX_LOCAL_POOL is set by this command, not by the user
}

func run(args []string, stdin, stdout, stderr *os.File) int {
	a := &app{stdin: stdin, stdout: stdout, stderr: stderr}
	// One command makes few sandboxes: none is built in advance, unless the user
	// says so.
	if _, set := os.LookupEnv("SANDBOX_LOCAL_POOL"); !set {
		os.Setenv("SANDBOX_LOCAL_POOL", "0")
		a.ownPool = true
	}
	ctx, stop := a.watchSignals(context.Background())
	defer stop()
	root := a.root()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if a.client != nil {
		err = errors.Join(err, a.client.Close())
	}
	return a.status(ctx, err)
}

// exitStatus is an error that was said already, or needs no words.
type exitStatus int

func (e exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// status says what went wrong and returns the exit status for it.
func (a *app) status(ctx context.Context, err error) int {
	if s, ok := errors.AsType[signalError](context.Cause(ctx)); ok && err != nil {
		return s.status()
	}
	if s, ok := errors.AsType[exitStatus](err); ok {
		return int(s)
	}
	switch {
	case err == nil:
		return statusOK
	case errors.Is(err, syscall.EPIPE): // as programs end that the signal ends
		return signalError{syscall.SIGPIPE}.status()
	}
	a.complain(err)
	return statusOf(err)
}

func statusOf(err error) int {
	if code := sandboxfn.CodeOf(err); code != "" {
		return code.ExitStatus()
	}
	return statusError
}

// complain prints an error on one line, with what can be done about it.
func (a *app) complain(err error) {
	text := err.Error()
	if code := string(sandboxfn.CodeOf(err)); !strings.HasPrefix(text, code) { // those of package fs begin with a path
		text = code + " " + strings.Replace(text, code+" ", "", 1)
	}
	if step, ok := errors.AsType[*sandboxfn.BuildStepError](err); ok { // its last lines have lines of their own
		for _, line := range step.Last {
			fmt.Fprintln(a.stderr, "   |", oneLine(line))
		}
		text, _, _ = strings.Cut(text, "\n")
	}
	if e, ok := errors.AsType[*sandboxfn.Error](err); ok && e.Code == "E2011" {
		text = strings.Replace(text, e.Message, inFlags(e.Message), 1)
	}
	if hint := hintOf(err); hint != "" {
		text += " (hint: " + hint + ")"
	}
	fmt.Fprintln(a.stderr, "sandbox:", oneLine(text))
}

// oneLine is text without line breaks, and without what could move the cursor of
// a terminal: parts of it come from sandboxes and services.
func oneLine(text string) string {
	text = strings.NewReplacer("\r\n", "; ", "\n", "; ").Replace(strings.TrimSpace(text))
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return '?'
		}
		return r
	}, text)
}

// usage is an error of a wrong command line.
func usage(cmd *cobra.Command, format string, args ...any) error {
	return &errdefs.Error{
		Code: "E8007", Op: "read options", Message: fmt.Sprintf(format, args...),
		Suggestion: "see " + cmd.CommandPath() + " --help",
	}
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "sandbox",
		Short: "make and use sandboxes",
		Long: `Sandbox makes and uses sandboxes: on this machine, or at a service.

Results go to standard output, everything else to standard error.`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.ArbitraryArgs, // so that RunE says what is wrong with them
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				cmd.SetOut(a.stderr)
				if err := cmd.Help(); err != nil {
					return err
				}
				return exitStatus(statusUsage)
			}
			text := fmt.Sprintf("there is no command %q", args[0])
			if like := cmd.SuggestionsFor(args[0]); len(like) > 0 {
				text += "; did you mean " + strings.Join(like, " or ") + "?"
			}
			return usage(cmd, "%s", text)
		},
	}
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.SuggestionsMinimumDistance = 2
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return usage(cmd, "%v", err) })
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.Version = version.String()
	f := root.PersistentFlags()
	f.StringVar(&a.settings.Provider, "provider", "", "`name` of what makes the sandboxes (default: as SANDBOX_PROVIDER and the files of settings say, else local)")
	f.StringVar(&a.settings.Profile, "profile", "", "`name` of a profile of the files of settings")
	f.StringVar(&a.settings.Region, "region", "", "`id` of a region of the service")
	f.StringVar(&a.settings.StateDir, "state-dir", "", "`directory` of what is kept on this machine")
	root.AddCommand(
		a.createCommand(), a.listCommand(), a.infoCommand(), a.execCommand(), a.shellCommand(), a.commandsCommand(), a.runCommand(), a.copyCommand(), a.killCommand(),
		a.pauseCommand(), a.resumeCommand(), a.hibernateCommand(), a.snapshotCommand(), a.forkCommand(), a.urlCommand(),
		a.templateCommand(), a.gcCommand(), a.doctorCommand(), a.versionCommand(),
	)
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	root.InitDefaultVersionFlag()
	for _, c := range root.Commands() {
		if c.Name() == "completion" { // a group, as ours are
			group(c)
		}
	}
	a.completeGlobals(root)
	return root
}

// group makes a command that only has commands below it say so.
func group(c *cobra.Command) *cobra.Command {
	c.Args = cobra.ArbitraryArgs
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return usage(cmd, "there is no command %q", args[0])
		}
		return usage(cmd, "a command is missing")
	}
	return c
}

// open makes the client.
func (a *app) open() (*sandboxfn.Client, error) {
	if a.client == nil {
		c, err := sandboxfn.NewClient(&a.settings)
		if err != nil {
			return nil, err
		}
		a.client = c
	}
	return a.client, nil
}

// connect opens the client and a sandbox of it.
func (a *app) connect(ctx context.Context, id string) (*sandboxfn.Sandbox, error) {
	c, err := a.open()
	if err != nil {
		return nil, err
	}
	return c.Connect(ctx, id, nil)
}

func (a *app) versionCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "print which build this is",
		Args:  arguments(0, 0, ""),
		RunE: func(*cobra.Command, []string) error {
			if asJSON {
				return a.printJSON(struct {
					Version string `json:"version"`
				}{version.String()})
			}
			_, err := fmt.Fprintln(a.stdout, "sandbox", version.String())
			return err
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}
