package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
)

func jsonFlag(cmd *cobra.Command, v *bool) {
	cmd.Flags().BoolVar(v, "json", false, "print one JSON document")
}

// printJSON prints the one document of a command.
func (a *app) printJSON(v any) error {
	e := json.NewEncoder(a.stdout)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// printTable prints rows below a header, aligned. Cells are made harmless for
// terminals.
func (a *app) printTable(header []string, rows [][]string) error {
	w := tabwriter.NewWriter(a.stdout, 0, 8, 3, ' ', 0)
	fmt.Fprintln(w, strings.Join(header, "\t"))
	for _, r := range rows {
		for i := range r {
			if r[i] = oneLine(r[i]); r[i] == "" {
				r[i] = "-"
			}
		}
		fmt.Fprintln(w, strings.Join(r, "\t"))
	}
	return w.Flush()
}

// printFields prints names and values, aligned; those without a value are left
// out.
func (a *app) printFields(fields [][2]string) error {
	w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
	for _, f := range fields {
		if f[1] != "" {
			fmt.Fprintf(w, "%s\t%s\n", f[0], oneLine(f[1]))
		}
	}
	return w.Flush()
}

// sandboxJSON is a sandbox as --json prints it. Names are stable; what is not
// known is left out.
type sandboxJSON struct {
	ID             string            `json:"id"`
	Provider       string            `json:"provider"`
	Template       string            `json:"template,omitempty"`
	State          string            `json:"state"`
	CreatedAt      *time.Time        `json:"created_at,omitempty"`
	ExpiresAt      *time.Time        `json:"expires_at,omitempty"`
	Metadata       map[string]string `json:"metadata"`
	CPU            float64           `json:"cpu,omitempty"`
	MemoryBytes    int64             `json:"memory_bytes,omitempty"`
	DiskBytes      int64             `json:"disk_bytes,omitempty"`
	Processes      int               `json:"processes,omitempty"`
	RuntimeVersion string            `json:"runtime_version,omitempty"`
}

func sandboxOf(i *sandboxfn.Info) sandboxJSON {
	return sandboxJSON{
		ID: i.ID, Provider: i.Provider, Template: i.Template, State: string(i.State),
		CreatedAt: moment(i.CreatedAt), ExpiresAt: moment(i.ExpiresAt), Metadata: orEmpty(i.Metadata),
		CPU: i.CPU, MemoryBytes: int64(i.Memory), DiskBytes: int64(i.Disk), Processes: i.Processes, RuntimeVersion: i.RuntimeVersion,
	}
}

func orEmpty(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}

// moment is a time in UTC and without what nobody compares; nil for none.
func moment(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC().Truncate(time.Millisecond)
	return &t
}

// ago is a time that has passed, in words; empty for none.
func ago(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return roughly(time.Since(t)) + " ago"
}

// ahead is a time to come, in words; empty for none.
func ahead(t time.Time) string {
	switch d := time.Until(t); {
	case t.IsZero():
		return ""
	case d <= 0:
		return "now"
	default:
		return "in " + roughly(d)
	}
}

// roughly is a duration in its largest unit.
func roughly(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// pairs is a map as k=v words, sorted.
func pairs(m map[string]string) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, k+"="+m[k])
	}
	return strings.Join(out, " ")
}

func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// colour wraps text in an escape sequence where that is wanted: on a terminal,
// and not with NO_COLOR (no-color.org).
func (a *app) colour(sequence, text string) string {
	if os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" || !isTerminal(a.stdout) {
		return text
	}
	return "\x1b[" + sequence + "m" + text + "\x1b[0m"
}

// progress shows on a terminal that something takes its time, and how long it
// has taken; elsewhere nothing. The line is gone when done returns, which can be
// called again.
func (a *app) progress(text string) (done func()) {
	if !isTerminal(a.stderr) || os.Getenv("TERM") == "dumb" {
		return func() {}
	}
	begin := time.Now()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		shown := false
		for {
			select {
			case <-tick.C: // what is done within a second shows nothing
				shown = true
				fmt.Fprintf(a.stderr, "\r\x1b[K%s… %s", text, roughly(time.Since(begin)))
			case <-stop:
				if shown {
					fmt.Fprint(a.stderr, "\r\x1b[K")
				}
				return
			}
		}
	})
	return sync.OnceFunc(func() {
		close(stop)
		wg.Wait()
	})
}
