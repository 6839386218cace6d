package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// texts collects a flag that may be given several times.
type texts []string

func (t *texts) String() string     { return strings.Join(*t, " ") }
func (t *texts) Set(v string) error { *t = append(*t, v); return nil }

// ports collects a flag with a port that may be given several times.
type ports []int

func (p *ports) String() string { return strings.Trim(fmt.Sprint([]int(*p)), "[]") }

func (p *ports) Set(v string) error {
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 || n > 65535 {
		return errors.New("not a port from 1 to 65535")
	}
	*p = append(*p, n)
	return nil
}

// names collects a flag with the name of a template that may be given several
// times.
type names []string

func (n *names) String() string { return strings.Join(*n, " ") }

var templateName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/:-]{0,127}$`)

func (n *names) Set(v string) error {
	if !templateName.MatchString(v) {
		return errors.New("a name of a template has up to 128 letters, digits and signs of -_./: in it")
	}
	*n = append(*n, v)
	return nil
}

// span is a flag with a duration of one second and more.
type span time.Duration

func (s *span) String() string { return time.Duration(*s).String() }

func (s *span) Set(v string) error {
	if n, err := strconv.Atoi(v); err == nil && n > 0 {
		return fmt.Errorf("a unit is missing: write %ds or %dm", n, n)
	}
	d, err := time.ParseDuration(v)
	if err != nil || d < time.Second {
		return errors.New("not a duration of 1s or more, such as 90s, 30m or 24h")
	}
	*s = span(d)
	return nil
}

// count is a flag with a number from 1 on.
type count int

func (c *count) String() string { return strconv.Itoa(int(*c)) }

func (c *count) Set(v string) error {
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 {
		return errors.New("not a number from 1 on")
	}
	*c = count(n)
	return nil
}

// network is a flag with a mode or rules; the gateway reads the rules.
type network string

func (n *network) String() string { return string(*n) }

func (n *network) Set(v string) error {
	if !slices.Contains([]string{"loopback", "none", "host", "list"}, v) && !strings.ContainsAny(v, ".:") {
		return errors.New("it is loopback, none, host, list, or rules as in example.com,*.example.org:8443")
	}
	*n = network(v)
	return nil
}

// domain is a flag with the name of a host, perhaps with a port.
type domain string

var hostLabels = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*$`)

func (d *domain) String() string { return string(*d) }

func (d *domain) Set(v string) error {
	host := strings.Trim(v, ".")
	if h, port, ok := strings.Cut(host, ":"); ok {
		if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
			return errors.New("not a name of a host, as sandbox.example.com or sandbox.example.com:8443")
		}
		host = h
	}
	// 200 leaves room for {port}-{id} in a name of 253.
	if len(host) > 200 || !hostLabels.MatchString(host) {
		return errors.New("not a name of a host, as sandbox.example.com or sandbox.example.com:8443")
	}
	if net.ParseIP(host) != nil {
		return errors.New("an address has no names below it; give a name of a host")
	}
	*d = domain(v)
	return nil
}

// parse reads options, which may stand anywhere, and returns the other
// arguments. After "--" there are no options. For -h it prints help and returns
// flag.ErrHelp; what else it returns was not printed.
func parse(fs *flag.FlagSet, args []string, help string, stdout io.Writer) ([]string, error) {
	fs.SetOutput(io.Discard)
	var rest []string
	for {
		if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
			fmt.Fprint(stdout, help)
			printOptions(fs, stdout)
			return nil, err
		} else if err != nil {
			return nil, wrongUsage(fs, inOurWords(err))
		}
		if fs.NArg() == 0 {
			return rest, nil
		}
		if done := len(args) - fs.NArg(); done > 0 && args[done-1] == "--" {
			return append(rest, fs.Args()...), nil
		}
		rest, args = append(rest, fs.Arg(0)), fs.Args()[1:]
	}
}

// wrongUsage is an error that ends with where the help is.
func wrongUsage(fs *flag.FlagSet, message string) error {
	return &errdefs.Error{Code: "E8007", Op: "read options", Message: message + "; see " + fs.Name() + " -h"}
}

// inOurWords writes options as the documents do.
func inOurWords(err error) string {
	text := err.Error()
	for _, r := range [][2]string{
		{"flag provided but not defined: -", "there is no option --"},
		{"flag needs an argument: -", "a value is missing after --"},
	} {
		if name, ok := strings.CutPrefix(text, r[0]); ok {
			return r[1] + name
		}
	}
	// Package flag has two forms for a wrong value.
	if rest, ok := strings.CutPrefix(text, "invalid boolean value "); ok {
		return "invalid value " + strings.Replace(rest, " for -", " for --", 1)
	}
	return strings.Replace(text, " for flag -", " for --", 1)
}

// printOptions describes the options, each with two dashes and its default.
func printOptions(fs *flag.FlagSet, w io.Writer) {
	fmt.Fprintln(w, "\noptions:")
	fs.VisitAll(func(f *flag.Flag) {
		kind, text := flag.UnquoteUsage(f)
		if kind != "" {
			kind = " " + kind
		}
		if d := f.DefValue; d != "" && d != "false" {
			text += " (default " + d + ")"
		}
		fmt.Fprintf(w, "  --%s%s\n        %s\n", f.Name, kind, text)
	})
}
