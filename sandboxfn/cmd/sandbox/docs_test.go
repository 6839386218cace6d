package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

const page = "../../../docs/cli.md"

// TestPage compares docs/cli.md with the commands; -update writes it.
func TestPage(t *testing.T) {
	want := markdown(t)
	if *update {
		if err := os.WriteFile(page, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(page)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("docs/cli.md is stale: go test ./sandboxfn/cmd/sandbox -run TestPage -update (%v)", err)
	}
}

// Every command says what it does, every option has a text, and none of them two
// meanings.
func TestTexts(t *testing.T) {
	kinds := map[string]string{}
	walk((&app{}).root(), func(c *cobra.Command) {
		if c.Short == "" || strings.HasSuffix(c.Short, ".") {
			t.Errorf("%s: short text %q", c.CommandPath(), c.Short)
		}
		if !c.Runnable() || c.Args == nil {
			t.Errorf("%s does not look at its arguments", c.CommandPath())
		}
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.Usage == "" {
				t.Errorf("%s --%s has no text", c.CommandPath(), f.Name)
			}
			if k, ok := kinds[f.Name]; ok && k != f.Value.Type() {
				t.Errorf("%s --%s is a %s, elsewhere a %s", c.CommandPath(), f.Name, f.Value.Type(), k)
			}
			kinds[f.Name] = f.Value.Type()
		})
	})
}

// walk visits what is documented: not what cobra adds.
func walk(c *cobra.Command, visit func(*cobra.Command)) {
	if c.Hidden || c.Name() == "help" || c.Name() == "completion" {
		return
	}
	visit(c)
	for _, sub := range c.Commands() {
		walk(sub, visit)
	}
}

func markdown(t *testing.T) []byte {
	head, err := os.ReadFile("testdata/cli-head.md")
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	b.WriteString("<!-- Written by the tests of sandboxfn/cmd/sandbox, with -update. DO NOT EDIT. -->\n")
	b.WriteString(strings.Replace(string(head), "{{exit}}\n", exitTable(), 1))
	root := (&app{}).root()
	b.WriteString("\n## Options of all commands\n\n")
	flags(&b, root.PersistentFlags())
	b.WriteString("\n## Commands\n")
	walk(root, func(c *cobra.Command) {
		if c == root {
			return
		}
		fmt.Fprintf(&b, "\n### %s\n\n", strings.TrimPrefix(c.CommandPath(), "sandbox "))
		if len(c.Commands()) > 0 {
			fmt.Fprintf(&b, "%s\n", about(c))
			return
		}
		fmt.Fprintf(&b, "```\n%s\n```\n\n%s\n", c.UseLine(), about(c))
		if len(c.Aliases) > 0 {
			fmt.Fprintf(&b, "\nOther names: %s.\n", strings.Join(c.Aliases, ", "))
		}
		if c.Example != "" {
			fmt.Fprintf(&b, "\n```sh\n%s\n```\n", strings.ReplaceAll(c.Example[2:], "\n  ", "\n"))
		}
		if c.LocalNonPersistentFlags().HasFlags() {
			b.WriteString("\n")
			flags(&b, c.LocalNonPersistentFlags())
		}
	})
	return b.Bytes()
}

func about(c *cobra.Command) string {
	if c.Long != "" {
		return c.Long
	}
	return strings.ToUpper(c.Short[:1]) + c.Short[1:] + "."
}

func flags(b *bytes.Buffer, fs *pflag.FlagSet) {
	b.WriteString("| option | meaning |\n|---|---|\n")
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		name := "`--" + f.Name
		kind, text := pflag.UnquoteUsage(f)
		if kind != "" {
			name += " " + kind
		}
		name += "`"
		if f.Shorthand != "" {
			name = "`-" + f.Shorthand + "`, " + name
		}
		if f.Value.Type() == "bool" && f.DefValue == "true" {
			text += " (default)"
		}
		fmt.Fprintf(b, "| %s | %s |\n", name, strings.ReplaceAll(text, "|", "\\|"))
	})
}

// statusTexts say what the statuses of errors mean.
var statusTexts = map[int]string{
	1: "any other failure", 2: "wrong use, or malformed settings", 3: "authentication", 4: "not found, or gone",
	5: "a clock ran out", 6: "quota, or rate of requests", 7: "refused: by a policy or permissions, or for want of a capability",
}

func exitTable() string {
	var b strings.Builder
	b.WriteString("| status | meaning |\n|---|---|\n| 0 | done |\n")
	for _, s := range slices.Sorted(maps.Keys(statusTexts)) {
		fmt.Fprintf(&b, "| %d | %s |\n", s, statusTexts[s])
	}
	b.WriteString("| 128 + n | signal n ended this command, or the one that `exec` ran |\n")
	return b.String()
}

// Every status of an error code is explained.
func TestStatuses(t *testing.T) {
	for _, c := range errdefs.Codes() {
		if statusTexts[c.ExitStatus()] == "" {
			t.Errorf("status %d of %s is not on the page", c.ExitStatus(), c)
		}
	}
}
