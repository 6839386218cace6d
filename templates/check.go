package templates

import (
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"golang.org/x/mod/semver"

	"github.com/agent-sandbox/sandbox-go/templates/model"
)

var categories = []string{"language", "data-science", "web", "browser", "ai-ml", "devops", "database", "security"}

var (
	kebab       = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)
	envName     = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	aptPackage  = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]*(:[a-z0-9-]+)?([=/][A-Za-z0-9.+:~_-]+)?$`)
	userName    = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_.-]*\$?|[0-9]+)(:([A-Za-z_][A-Za-z0-9_.-]*|[0-9]+))?$`)
	programName = regexp.MustCompile(`^[^/\s]+$`)
	endpoint    = regexp.MustCompile(`^[a-z*][a-z0-9_*]*(\.[a-z*][a-z0-9_*]*)?$`)
	language    = regexp.MustCompile(`^[a-z][a-z0-9_+#-]*$`)
)

// checker finds what is wrong with a model, whatever it was made from. It names
// places by their path in the model.
type checker struct {
	t    *model.Template
	fail func(path, message, hint string)
}

// Validate reports everything that is wrong with a template that was not read from
// a file, as an [*Invalid]. Problems have no positions.
func Validate(t *model.Template) error {
	var problems []Problem
	check(t, func(_, message, hint string) {
		problems = append(problems, Problem{Message: message, Hint: hint})
	})
	return invalid(problems)
}

func check(t *model.Template, fail func(path, message, hint string)) {
	c := &checker{t: t, fail: fail}
	c.metadata()
	c.base()
	for i := range t.Build {
		c.step(&t.Build[i], fmt.Sprintf("build[%d]", i))
	}
	c.env("env", t.Env)
	c.networks()
	c.runtime()
	c.server()
	c.policy()
	for _, n := range slices.Sorted(maps.Keys(t.Commands)) {
		command := t.Commands[n]
		c.command(n, &command)
	}
	c.interpreter()
}

func (c *checker) failf(path, hint, format string, args ...any) {
	c.fail(path, fmt.Sprintf(format, args...), hint)
}

func (c *checker) metadata() {
	t := c.t
	switch {
	case t.Name == "":
		c.fail("name", "the template has no name", "")
	case !kebab.MatchString(t.Name) || len(t.Name) > 63:
		c.failf("name", "write lower-case letters and digits with dashes between, at most 63", "name %q is not kebab-case", t.Name)
	}
	if t.Version != "" && (!semver.IsValid("v"+t.Version) || semver.Canonical("v"+t.Version) != strings.SplitN("v"+t.Version, "+", 2)[0]) {
		c.failf("version", "write three numbers, for example 1.0.0", "version %q is not a semantic version", t.Version)
	}
	if t.Category != "" && !slices.Contains(categories, t.Category) {
		hint := didYouMean(t.Category, categories)
		if hint == "" {
			hint = "known are " + strings.Join(categories, ", ")
		}
		c.failf("category", hint, "unknown category %q", t.Category)
	}
	if t.Homepage != "" {
		if u, err := url.Parse(t.Homepage); err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" {
			c.failf("homepage", "", "homepage %q is not an http or https address", t.Homepage)
		}
	}
	c.unique("tags", "tag", t.Tags)
}

// unique refuses elements that are empty or there twice.
func (c *checker) unique(path, what string, list []string) {
	for i, s := range list {
		at := fmt.Sprintf("%s[%d]", path, i)
		switch {
		case strings.TrimSpace(s) == "":
			c.failf(at, "", "a %s is empty", what)
		case slices.Contains(list[:i], s):
			c.failf(at, "", "%s %q is there twice", what, s)
		}
	}
}

func (c *checker) base() {
	b := c.t.Base
	if b.Image != "" && b.From != "" {
		c.fail("base.from", "base has an image and a template", "keep one of image and from")
	}
	if b.Host && b.From != "" {
		c.fail("base.host", "base has host and a template", "the other template decides that")
	}
	if b.Image != "" {
		if _, err := name.ParseReference(b.Image); err != nil {
			c.failf("base.image", "write for example debian:12 or ghcr.io/owner/image:tag", "base image %q is not an image reference", b.Image)
		}
	}
	if b.From != "" {
		if _, err := ParseRef(b.From); err != nil {
			c.failf("base.from", "", "base template %q: %v", b.From, err)
		}
	}
}

func (c *checker) step(s *model.Step, at string) {
	set := 0
	for kind, list := range map[string][]string{"apt": s.Apt, "pip": s.Pip, "npm": s.Npm} {
		if list == nil {
			continue
		}
		set++
		if len(list) == 0 {
			c.failf(at+"."+kind, "", "no packages for %s", kind)
		}
		for i, p := range list {
			c.pkg(kind, p, fmt.Sprintf("%s.%s[%d]", at, kind, i))
		}
	}
	if s.Run != "" {
		set++
		if strings.TrimSpace(s.Run) == "" {
			c.fail(at+".run", "a run step is empty", "")
		}
	}
	if s.Copy != nil {
		set++
		c.copy(s.Copy, at+".copy")
	}
	if set != 1 {
		c.failf(at, "write one of apt, pip, npm, run, copy for each step", "a step has %d kinds", set)
	}
}

func (c *checker) pkg(kind, p, at string) {
	switch {
	case strings.HasPrefix(p, "-"):
		c.failf(at, "packages only; options go into a run step", "%s package %q is an option", kind, p)
	case kind == "apt" && !aptPackage.MatchString(p):
		c.failf(at, "write name or name=version", "apt package %q is not a package name", p)
	case strings.TrimSpace(p) == "" || strings.ContainsFunc(p, func(r rune) bool { return r < ' ' || r == 0x7f }) || kind == "npm" && strings.Contains(p, " "):
		c.failf(at, "", "%s package %q is not a package", kind, p)
	}
}

func (c *checker) copy(f *model.Copy, at string) {
	switch src := strings.TrimSuffix(f.Src, "/"); {
	case f.Src == "":
		c.fail(at, "a copy step has no src", "")
	case path.IsAbs(f.Src) || !fs.ValidPath(path.Clean(src)):
		c.failf(at+".src", "write a path below the template's folder", "src %q is outside the template's folder", f.Src)
	case strings.ContainsAny(f.Src, "\n\r"):
		c.failf(at+".src", "", "src %q holds a line break", f.Src)
	}
	switch {
	case f.Dest == "":
		c.fail(at, "a copy step has no dest", "")
	case strings.ContainsAny(f.Dest, "\n\r"):
		c.failf(at+".dest", "", "dest %q holds a line break", f.Dest)
	}
}

func (c *checker) env(at string, env map[string]string) {
	for _, k := range slices.Sorted(maps.Keys(env)) {
		if !envName.MatchString(k) {
			c.failf(at+"."+k, "write letters, digits and _, not a digit first", "%q is not a name of a variable", k)
		}
		if strings.ContainsRune(env[k], 0) {
			c.failf(at+"."+k, "", "variable %s holds a NUL character", k)
		}
	}
}

func (c *checker) networks() {
	for i, p := range c.t.Ports {
		at := fmt.Sprintf("ports[%d]", i)
		if p < 1 || p > 65535 {
			c.failf(at, "write 1 to 65535", "port %d does not exist", p)
		} else if slices.Contains(c.t.Ports[:i], p) {
			c.failf(at, "", "port %d is there twice", p)
		}
	}
	for at, s := range map[string]string{"network": c.t.Network, "build_network": c.t.BuildNetwork} {
		if s != "" {
			if message, hint := networkProblem(s); message != "" {
				c.failf(at, hint, "%s: %s", at, message)
			}
		}
	}
}

func (c *checker) runtime() {
	t := c.t
	c.absolute("workdir", "workdir", t.Workdir)
	for _, kernel := range []string{"/proc/", "/sys/", "/dev/"} {
		if strings.HasPrefix(t.Workdir, kernel) {
			c.failf("workdir", "use a path of your own, /srv/app say", "workdir %q: folders below %s are the kernel's, and cannot be made", t.Workdir, strings.TrimSuffix(kernel, "/"))
		}
	}
	c.absolute("shell", "shell", t.Shell)
	c.user("user", t.User)
	c.unique("requires", "program", t.Requires)
	for i, p := range t.Requires {
		if strings.TrimSpace(p) != "" && !programName.MatchString(p) {
			c.failf(fmt.Sprintf("requires[%d]", i), "write a name that is looked up on PATH", "%q is not the name of a program", p)
		}
	}
	if t.Start != "" && strings.TrimSpace(t.Start) == "" {
		c.fail("start", "start is empty", "")
	}
	if p := t.Ready; p != nil {
		if (p.Port != 0) == (p.Command != "") {
			c.fail("ready", "a readiness probe needs exactly one of port and command", "")
		}
		if p.Port < 0 || p.Port > 65535 {
			c.failf("ready.port", "write 1 to 65535", "port %d does not exist", p.Port)
		}
	}
	if t.Health != nil && strings.TrimSpace(t.Health.Command) == "" {
		c.fail("health", "a health check has no command", "")
	}
	for at, v := range map[string]int{"resources.memory_mb": t.Resources.MemoryMB, "resources.disk_mb": t.Resources.DiskMB, "generation": t.Generation} {
		if v < 0 {
			c.failf(at, "", "%s is below zero", at)
		}
	}
	if t.Resources.CPU < 0 {
		c.fail("resources.cpu", "resources.cpu is below zero", "")
	}
	if l, i := t.Resources.Lifetime, t.Resources.IdleTimeout; l > 0 && i > l {
		c.failf("resources.idle_timeout", "", "idle_timeout %v is longer than the lifetime %v", i, l)
	}
}

// absolute refuses a path that is not absolute and clean; empty is nothing said.
func (c *checker) absolute(at, what, p string) {
	switch {
	case p == "":
	case !path.IsAbs(p):
		c.failf(at, "", "%s %q is not an absolute path", what, p)
	case path.Clean(p) != p:
		c.failf(at, fmt.Sprintf("write %q", path.Clean(p)), "%s %q is not in its shortest form", what, p)
	case strings.ContainsAny(p, "\x00\n\r"):
		c.failf(at, "", "%s %q holds a control character", what, p)
	}
}

func (c *checker) user(at, u string) {
	if u != "" && (!userName.MatchString(u) || len(u) > 64) {
		c.failf(at, "write a name or a number", "%q is not a user", u)
	}
}

// groups are the groups of the runtime's API that a template can switch; core is
// always on. "ports" is the routing of ports.
// The last ones stand for others, as in a list of capabilities, and for what is on
// when nothing is said.
var groups = []string{"core", "commands", "file_ops", "process", "terminal", "system", "dev_tools", "agents", "functions", "ports", "shell", "files", "code", "default"}

func (c *checker) server() {
	if c.t.Server == nil {
		return
	}
	for at, list := range map[string][]string{"server.enable": c.t.Server.Enable, "server.disable": c.t.Server.Disable} {
		c.unique(at, "name", list)
		for i, s := range list {
			at := fmt.Sprintf("%s[%d]", at, i)
			group, _, _ := strings.Cut(s, ".")
			switch {
			case strings.TrimSpace(s) == "":
			case !endpoint.MatchString(s):
				c.failf(at, "write group, group.* or group.endpoint", "%q is not a name of endpoints", s)
			case !slices.Contains(groups, group) && !strings.Contains(group, "*"):
				hint := didYouMean(group, groups)
				if hint == "" {
					hint = "known are " + strings.Join(groups, ", ")
				}
				c.failf(at, hint, "unknown group %q", group)
			case s == "default" && strings.HasPrefix(at, "server.disable"):
				c.fail(at, "default stands for what is on, and belongs to enable", "")
			case group == "core" && strings.HasPrefix(at, "server.disable"):
				c.fail(at, "core cannot be switched off", "")
			case !meansEndpoint(s):
				hint := didYouMean(s, endpoints)
				if hint == "" {
					hint = "docs/http-api.md lists them"
				}
				c.failf(at, hint, "there is no endpoint %q", s)
			}
		}
	}
}

// languages are the names that the runtime has drivers for, as it knows them; a test
// compares.
var languages = []string{"bash", "javascript", "js", "node", "py", "python", "python3", "sh", "ts", "typescript"}

func (c *checker) interpreter() {
	in := c.t.Interpreter
	c.unique("interpreter.prestart", "language", in.Prestart)
	known := slices.Concat(languages, slices.Sorted(maps.Keys(in.Programs)))
	for i, l := range in.Prestart {
		if strings.TrimSpace(l) == "" || slices.Contains(known, l) {
			continue
		}
		hint := didYouMean(l, known)
		if hint == "" {
			hint = "known are " + strings.Join(known, ", ") + ", and those of programs"
		}
		c.failf(fmt.Sprintf("interpreter.prestart[%d]", i), hint, "there is no interpreter for %q", l)
	}
	if in.MaxContexts > 0 && len(in.Prestart) > in.MaxContexts {
		c.failf("interpreter.prestart", "", "prestart has %d languages, and max_contexts is %d", len(in.Prestart), in.MaxContexts)
	}
	if most := c.t.Policy.Commands.MaxProcesses; most > 0 && len(in.Prestart) >= most {
		c.failf("interpreter.prestart", "name fewer languages, or raise max_processes", "prestart has %d languages, and with max_processes %d no command can run beside them", len(in.Prestart), most)
	}
	for _, l := range slices.Sorted(maps.Keys(c.t.Interpreter.Programs)) {
		at := "interpreter.programs." + l
		if !language.MatchString(l) {
			c.failf(at, "", "%q is not a name of a language", l)
		}
		if p := c.t.Interpreter.Programs[l]; p == "" {
			c.failf(at, "", "language %s has no program", l)
		} else {
			c.absolute(at, "program", p)
		}
	}
}
