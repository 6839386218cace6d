package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"text/tabwriter"
	"time"

	"github.com/agent-sandbox/sandbox-go/examples/declarative/internal/where"
	"github.com/agent-sandbox/sandbox-go/sandboxfn"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) != 1 {
		fmt.Fprintln(stderr, "usage: csvstats FILE.csv")
		return 2
	}
	if err := report(ctx, args[0], stdout); err != nil {
		fmt.Fprintln(stderr, "csvstats:", err)
		if e, ok := errors.AsType[*sandboxfn.Error](err); ok && e.Hint() != "" {
			fmt.Fprintln(stderr, "csvstats: hint:", e.Hint())
		}
		return 1
	}
	return 0
}

func report(ctx context.Context, file string, w io.Writer) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	start := time.Now()
	summary, err := Describe(ctx, data) // starts a sandbox, then runs describe in it
	if err != nil {
		return err
	}
	cold := time.Since(start)
	start = time.Now()
	if _, err = Describe(ctx, data); err != nil { // the same worker, now warm
		return err
	}
	warm := time.Since(start)

	if err := printSummary(w, summary); err != nil {
		return err
	}
	inside, err := WhereItRuns(ctx)
	if err != nil {
		return err
	}
	return where.Report(w, inside, cold, warm)
}

func printSummary(w io.Writer, s *Summary) error {
	fmt.Fprintf(w, "%d rows\n", s.Rows)
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(tw, "  column\tmin\tmedian\tmax\tmean\tstddev")
	for _, c := range s.Columns {
		switch {
		case c.Numbers != nil:
			n := c.Numbers
			fmt.Fprintf(tw, "  %s\t%.1f\t%.1f\t%.1f\t%.2f\t%.2f\n", c.Name, n.Min, n.Median, n.Max, n.Mean, n.StdDev)
		case c.Text.Distinct == s.Rows:
			fmt.Fprintf(tw, "  %s\tall different\n", c.Name)
		default:
			fmt.Fprintf(tw, "  %s\t%d different:", c.Name, c.Text.Distinct)
			for _, top := range c.Text.Top {
				fmt.Fprintf(tw, " %s %d×", top.Value, top.Times)
			}
			fmt.Fprintln(tw)
		}
	}
	return tw.Flush()
}
