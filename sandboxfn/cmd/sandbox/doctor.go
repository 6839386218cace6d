package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
)

// checkup is what doctor found, and prints.
type checkup struct {
	Version  int           `json:"version"` // of this document: 1
	OK       bool          `json:"ok"`
	Provider string        `json:"provider,omitempty"`
	Settings []settingJSON `json:"settings"`
	Checks   []checkJSON   `json:"checks"`
}

type settingJSON struct {
	Name   string `json:"name"`
	Value  string `json:"value"` // of a secret, a hint
	Source string `json:"source"`
}

type checkJSON struct {
	Name  string                 `json:"name"`
	Level sandboxfn.FindingLevel `json:"level"`
	Text  string                 `json:"text"`
	Fix   string                 `json:"fix,omitempty"`
}

func (a *app) doctorCommand() *cobra.Command {
	var online, create, asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "say what works here, and how to get what does not",
		Long: `Doctor prints the settings in force and where they come from, and what the
provider finds: on this machine, what a sandbox can be protected with. Without
--online and --create nothing but this machine is asked.

The levels are ok, info (something optional is absent), degraded (a protection
cannot be enforced) and failed. The status is 1 when something has failed.`,
		Args: arguments(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			r := a.examine(cmd.Context(), online, create)
			if cmd.Context().Err() != nil {
				return context.Cause(cmd.Context())
			}
			var err error
			if asJSON {
				err = a.printJSON(r)
			} else {
				err = a.printCheckup(r)
			}
			if err == nil && !r.OK {
				err = exitStatus(statusError)
			}
			return err
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().BoolVar(&online, "online", false, "ask the service for one sandbox of its list")
	cmd.Flags().BoolVar(&create, "create", false, "make a sandbox, run a command in it and end it")
	jsonFlag(cmd, &asJSON)
	return cmd
}

func (a *app) examine(ctx context.Context, online, create bool) *checkup {
	r := &checkup{Version: 1, Settings: []settingJSON{}, Checks: []checkJSON{}}
	defer func() {
		r.OK = !slices.ContainsFunc(r.Checks, func(c checkJSON) bool { return c.Level == sandboxfn.FindingFailed })
	}()
	c, err := a.open()
	if err != nil {
		r.failed("settings", err)
		return r
	}
	r.Provider = c.Provider()
	for _, s := range c.Settings() {
		if s.Name == "local.pool" && a.ownPool {
			s.Source = "default of this command; SANDBOX_LOCAL_POOL changes it"
		}
		r.Settings = append(r.Settings, settingJSON(s))
	}
	done := a.progress("looking")
	defer done()
	found, err := c.Diagnose(ctx, nil)
	switch {
	case errors.Is(err, sandboxfn.ErrNotSupported) && (online || create): // which say more
	case errors.Is(err, sandboxfn.ErrNotSupported):
		r.add("provider", sandboxfn.FindingInfo, "provider "+c.Provider()+" has nothing to say about this machine", "--online asks the service")
	case err != nil:
		r.failed("provider", err)
	}
	for _, f := range found {
		r.add(f.What, f.Level, f.Detail, inShell(f.Remedy))
	}
	if online {
		r.ask(ctx, c)
	}
	if create {
		r.try(ctx, c)
	}
	return r
}

func (r *checkup) add(name string, level sandboxfn.FindingLevel, text, fix string) {
	r.Checks = append(r.Checks, checkJSON{name, level, text, fix})
}

func (r *checkup) failed(name string, err error) {
	r.add(name, sandboxfn.FindingFailed, err.Error(), hintOf(err))
}

// ask makes one request that changes nothing.
func (r *checkup) ask(ctx context.Context, c *sandboxfn.Client) {
	begin := time.Now()
	for _, err := range c.List(ctx, &sandboxfn.ListOptions{PageSize: 1}) {
		if err != nil {
			r.failed("online", err)
			return
		}
		break
	}
	r.add("online", sandboxfn.FindingOK, fmt.Sprintf("provider %s answered in %v", c.Provider(), time.Since(begin).Round(time.Millisecond)), "")
}

// try makes a sandbox and uses it.
func (r *checkup) try(ctx context.Context, c *sandboxfn.Client) {
	const said = "a sandbox answers"
	begin := time.Now()
	sb, err := c.Create(ctx, nil)
	if err != nil {
		r.failed("create", err)
		return
	}
	out, err := sb.Command(ctx, "echo", said).Output()
	if err == nil && strings.TrimSpace(string(out)) != said {
		err = fmt.Errorf("echo printed %q, not %q", out, said)
	}
	if err = errors.Join(err, sb.Close()); err != nil {
		r.failed("create", err)
		return
	}
	r.add("create", sandboxfn.FindingOK, fmt.Sprintf("a sandbox was made, ran a command and ended, in %v", time.Since(begin).Round(time.Millisecond)), "")
}

// levelColours are SGR parameters.
var levelColours = map[sandboxfn.FindingLevel]string{
	sandboxfn.FindingOK: "32", sandboxfn.FindingDegraded: "33", sandboxfn.FindingFailed: "31",
}

func (a *app) printCheckup(r *checkup) error {
	var b strings.Builder
	wide := 10 // the names' column
	for _, s := range r.Settings {
		wide = max(wide, len(s.Name))
	}
	for _, c := range r.Checks {
		wide = max(wide, len(c.Name))
	}
	for _, s := range r.Settings {
		fmt.Fprintf(&b, "%-8s  %-*s  %s   from: %s\n", "setting", wide, s.Name, s.Value, s.Source)
	}
	for _, c := range r.Checks {
		level := fmt.Sprintf("%-8s", c.Level)
		if sgr := levelColours[c.Level]; sgr != "" {
			level = a.colour(sgr, level)
		}
		fmt.Fprintf(&b, "%s  %-*s  %s\n", level, wide, c.Name, oneLine(c.Text))
		if c.Fix != "" {
			indent := strings.Repeat(" ", 10)
			fmt.Fprintf(&b, "%sfix: %s\n", indent, strings.ReplaceAll(c.Fix, "\n", "\n"+indent))
		}
	}
	_, err := a.stdout.WriteString(b.String())
	return err
}

func (a *app) gcCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "gc",
		Short: "remove what dead sandboxes left on this machine",
		Long: `Gc removes what sandboxes that are dead left on this machine, and executables and
layers of images that were not used for seven days. Living sandboxes, also those
that hibernate, snapshots and volumes stay. Every program that makes sandboxes
does this when it begins. What was removed is printed, by kind: sandbox, snapshot (a
half of one), layer (of files), image, image-layer, executable, and ids (a block of
user ids that was reserved).`,
		Args: arguments(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.open()
			if err != nil {
				return err
			}
			done := a.progress("collecting")
			removed, err := c.Collect(cmd.Context())
			done()
			return errors.Join(err, a.printRemoved(removed, err == nil, asJSON))
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

// gcJSON is what was removed.
type gcJSON struct {
	Removed []sandboxfn.Removed `json:"removed"`
}

// printRemoved prints what gc has removed; all of it when it is whole.
func (a *app) printRemoved(removed []sandboxfn.Removed, whole, asJSON bool) error {
	if asJSON {
		return a.printJSON(gcJSON{append([]sandboxfn.Removed{}, removed...)})
	}
	if len(removed) == 0 {
		if !whole {
			return nil
		}
		_, err := fmt.Fprintln(a.stdout, "nothing to remove")
		return err
	}
	var rows [][]string
	for _, r := range removed {
		rows = append(rows, []string{string(r.Kind), r.ID})
	}
	return a.printTable([]string{"REMOVED", "ID"}, rows)
}
