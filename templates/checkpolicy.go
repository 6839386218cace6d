package templates

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// Limits of the policy, as the runtime has them.
const (
	maxElements = 63       // of a pattern
	minOutput   = 4 << 10  // bytes kept of an output
	maxOutput   = 64 << 20 // the same
)

var envPattern = regexp.MustCompile(`^[A-Za-z0-9_*?\[\]^-]+$`)

func (c *checker) policy() {
	f, p := &c.t.Policy.Files, &c.t.Policy.Commands
	c.folders("policy.files.read", f.Read)
	c.folders("policy.files.write", f.Write)
	for i, w := range f.Write {
		if f.Read != nil && path.IsAbs(w) && !slices.ContainsFunc(f.Read, func(r string) bool { return inside(w, r) }) {
			c.failf(fmt.Sprintf("policy.files.write[%d]", i), "add it, or a folder above it, to read", "writable folder %q is outside every readable one", w)
		}
	}
	c.unique("policy.files.deny", "pattern", f.Deny)
	for i, pattern := range f.Deny {
		if strings.TrimSpace(pattern) == "" {
			continue
		}
		at := fmt.Sprintf("policy.files.deny[%d]", i)
		if !path.IsAbs(pattern) && !strings.HasPrefix(pattern, "**/") {
			c.failf(at, "begin it with / or **/", "pattern %q is not absolute", pattern)
		}
		clean := path.Clean(pattern)
		if clean != pattern {
			c.failf(at, fmt.Sprintf("write %q", clean), "pattern %q is not in its shortest form", pattern)
		}
		if strings.Count(clean, "/") > maxElements {
			c.failf(at, "", "a pattern has more than %d elements", maxElements)
		}
		for part := range strings.SplitSeq(pattern, "/") {
			if _, err := path.Match(part, ""); err != nil {
				c.failf(at, "close the bracket, or write \\[", "pattern %q is malformed", pattern)
			} else if part != "**" && strings.Contains(part, "**") {
				c.failf(at, "** stands alone between slashes", "pattern %q is malformed", pattern)
			}
		}
	}
	if f.MaxBytes < 0 {
		c.fail("policy.files.max_bytes", "max_bytes is below zero", "")
	}
	if f.MaxEntries < 0 {
		c.fail("policy.files.max_entries", "max_entries is below zero", "")
	}
	c.rules("policy.commands.allow", p.Allow)
	c.rules("policy.commands.deny", p.Deny)
	for i, u := range p.Users {
		at := fmt.Sprintf("policy.commands.users[%d]", i)
		if u == "" {
			c.fail(at, "a user is empty", "")
		}
		c.user(at, u)
	}
	c.folders("policy.commands.cwd", p.Cwd)
	c.unique("policy.commands.env_deny", "variable", p.EnvDeny)
	for i, v := range p.EnvDeny {
		if _, err := path.Match(v, ""); v != "" && (err != nil || !envPattern.MatchString(v)) {
			c.failf(fmt.Sprintf("policy.commands.env_deny[%d]", i), "write a name, with * for any text", "%q is not a pattern of variables", v)
		}
	}
	if p.MaxProcesses < 0 || p.MaxRuntime < 0 {
		c.fail("policy.commands", "a limit of policy.commands is below zero", "")
	}
	if p.MaxOutput != 0 && (p.MaxOutput < minOutput || p.MaxOutput > maxOutput) {
		c.failf("policy.commands.max_output", "write 4KiB to 64MiB", "max_output is %d bytes", p.MaxOutput)
	}
}

func (c *checker) folders(at string, list []string) {
	c.unique(at, "folder", list)
	for i, p := range list {
		c.absolute(fmt.Sprintf("%s[%d]", at, i), "folder", p)
	}
}

// inside reports whether p is root or below it.
func inside(p, root string) bool {
	return p == root || root == "/" || strings.HasPrefix(p, root+"/")
}

func (c *checker) rules(at string, list []model.CommandRule) {
	for i, r := range list {
		at := fmt.Sprintf("%s[%d]", at, i)
		switch {
		case r.Program == "":
			c.fail(at, "a rule has no program", "")
		case path.IsAbs(r.Program):
			c.absolute(at+".program", "program", r.Program)
			if strings.ContainsAny(r.Program, " \t") && len(r.Args) == 0 {
				c.failf(at+".program", "write arguments into args", "program %q holds a space", r.Program)
			}
		case !programName.MatchString(r.Program) || r.Program == "." || r.Program == "..":
			c.failf(at+".program", "write a name, or an absolute path", "%q is not the name of a program", r.Program)
		}
	}
}

func (c *checker) command(name string, cmd *model.Command) {
	at := "commands." + name
	if !model.IsName(name) || len(name) > 64 {
		c.failf(at, "write letters, digits, _ and -, a letter or _ first", "%q is not a name of a command", name)
	}
	if strings.TrimSpace(cmd.Run) == "" {
		c.failf(at, "write run", "command %s runs nothing", name)
	} else if q := openQuote(cmd.Run); q != "" && !cmd.Shell {
		c.failf(at+".run", "close it, or set shell: true", "command %s: %s", name, q)
	}
	if cmd.Cwd != "" {
		c.absolute(at+".cwd", "cwd", cmd.Cwd)
	}
	c.user(at+".user", cmd.User)
	c.env(at+".env", cmd.Env)
	used := map[string]bool{}
	places := model.Placeholders(cmd.Run)
	const blanks = " \t\r\n"
	if len(places) > 0 && !cmd.Shell && !strings.ContainsAny(strings.TrimLeft(cmd.Run[:places[0].Start], blanks), blanks) {
		c.failf(at+".run", "write the program itself", "command %s: {%s} is part of the program's name, and values can only be arguments", name, places[0].Name)
	}
	for _, p := range places {
		used[p.Name] = true
		if !slices.ContainsFunc(cmd.Args, func(a model.Arg) bool { return a.Name == p.Name }) {
			var names []string
			for _, a := range cmd.Args {
				names = append(names, a.Name)
			}
			hint := didYouMean(p.Name, names)
			if hint == "" {
				hint = "declare it in args"
			}
			c.failf(at+".run", hint, "command %s: placeholder {%s} is not an argument", name, p.Name)
		}
	}
	for i := range cmd.Args {
		c.arg(name, cmd, i, used, fmt.Sprintf("%s.args[%d]", at, i))
	}
}

func (c *checker) arg(name string, cmd *model.Command, i int, used map[string]bool, at string) {
	a := &cmd.Args[i]
	switch {
	case a.Name == "":
		c.failf(at, "", "command %s: an argument has no name", name)
		return
	case !model.IsName(a.Name):
		c.failf(at+".name", "write letters, digits, _ and -, a letter or _ first", "command %s: %q is not a name of an argument", name, a.Name)
		return
	case slices.ContainsFunc(cmd.Args[:i], func(b model.Arg) bool { return a.Name == b.Name }):
		c.failf(at+".name", "", "command %s: argument %s is there twice", name, a.Name)
		return
	case !used[a.Name]:
		c.failf(at, fmt.Sprintf("write {%s} in run, or leave the argument out", a.Name), "command %s: argument %s is not used", name, a.Name)
	}
	if a.Type != "" && !slices.Contains(argTypes, a.Type) {
		hint := didYouMean(a.Type, argTypes)
		if hint == "" {
			hint = "known are " + strings.Join(argTypes, ", ")
		}
		c.failf(at+".type", hint, "command %s: unknown type %q", name, a.Type)
		return
	}
	if a.Default == nil {
		return
	}
	if a.Required {
		c.failf(at+".default", "leave one of the two out", "command %s: argument %s is required and has a default", name, a.Name)
	}
	if p := argProblem(a.Type, *a.Default); p != "" {
		c.failf(at+".default", "", "command %s: default of %s: %s", name, a.Name, p)
	}
}

// openQuote says which quote of a command line is not closed; "" when all are.
func openQuote(s string) string {
	quote := rune(0)
	escaped := false
	for _, c := range s {
		switch {
		case escaped:
			escaped = false
		case c == '\\' && quote != '\'':
			escaped = true
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '\'' || c == '"':
			quote = c
		}
	}
	switch {
	case quote != 0:
		return fmt.Sprintf("quote %c is not closed", quote)
	case escaped:
		return "a backslash ends it"
	}
	return ""
}
