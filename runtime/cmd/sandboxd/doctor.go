package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/providers/local"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

const doctorUsage = `usage: sandboxd doctor [--json]        say what this machine can enforce, and how to get what is missing
`

// doctor prints what the local provider finds. Its status is 1 when no sandbox
// can be made.
func doctor(args []string, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("sandboxd doctor", flag.ContinueOnError)
	state := fs.String("state-dir", defaultStateDir(), "`directory` of all state")
	asJSON := fs.Bool("json", false, "print an array of findings")
	words, err := parse(fs, args, doctorUsage, stdout)
	if err == nil && len(words) > 0 {
		err = wrongUsage(fs, fmt.Sprintf("nothing is expected after the options, not %q", words[0]))
	}
	if err != nil {
		return flagStatus(stderr, err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	found, err := diagnose(ctx, *state)
	if err != nil {
		return complain(stderr, err)
	}
	if *asJSON {
		e := json.NewEncoder(stdout)
		e.SetIndent("", "  ")
		err = e.Encode(found)
	} else {
		_, err = io.WriteString(stdout, findingsText(found))
	}
	if err != nil {
		return complain(stderr, err)
	}
	if slices.ContainsFunc(found, func(f providers.Finding) bool { return f.Level == providers.FindingFailed }) {
		return statusError
	}
	return statusOK
}

func diagnose(ctx context.Context, state string) ([]providers.Finding, error) {
	p, err := providers.Open(local.Name, providers.Config{StateDir: state})
	if err != nil {
		return nil, err
	}
	defer p.Close()
	d, ok := p.(providers.Doctor)
	if !ok {
		return nil, errdefs.New("E8004", "diagnose", "provider "+p.Name()+" says nothing about this machine")
	}
	return d.Diagnose(ctx), nil
}

// findingsText is a line for each finding, and another one for what would change
// it.
func findingsText(found []providers.Finding) string {
	var b strings.Builder
	for _, f := range found {
		fmt.Fprintf(&b, "%-8s  %-10s  %s\n", f.Level, f.What, f.Detail)
		if f.Remedy != "" {
			indent := strings.Repeat(" ", 10)
			fmt.Fprintf(&b, "%sfix: %s\n", indent, strings.ReplaceAll(f.Remedy, "\n", "\n"+indent))
		}
	}
	return b.String()
}
