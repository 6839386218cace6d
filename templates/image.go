package templates

import (
	"fmt"
	"maps"
	"runtime"
	"slices"

	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// Builder makes a template in Go, step by step. A Builder is a value that never
// changes: every method returns another one, so that a chain can be continued in
// several ways. Mistakes are kept and told together by Template.
//
//	t, err := templates.Image("debian:12").Name("tools").
//		Apt("git", "make").
//		Copy("src", "/app/").
//		Run("make -C /app").
//		Expose(8080).
//		Template()
//
// The result is what [Parse] gives for a file that says the same.
type Builder struct {
	t  *model.Template
	at map[string]Problem // path in the model → call that said it
}

// Image begins a template on an OCI image.
func Image(ref string) Builder {
	return Builder{}.with("base", func(t *model.Template) { t.Base = model.Base{Image: ref} })
}

// From begins a template on another one, which [Resolve] finds.
func From(ref string) Builder {
	return Builder{}.with("base", func(t *model.Template) { t.Base = model.Base{From: ref} })
}

// with returns b changed by f, which sets the path of the model. Exported functions
// call it: who called them made the mistakes.
func (b Builder) with(path string, f func(*model.Template)) Builder { return b.change(path, 2, f) }

func (b Builder) change(path string, skip int, f func(*model.Template)) Builder {
	out := Builder{t: b.t.Clone(), at: maps.Clone(b.at)}
	if out.at == nil {
		out.at = map[string]Problem{}
	}
	if _, file, line, ok := runtime.Caller(skip + 1); ok {
		out.at[path] = Problem{File: file, Line: line}
	}
	f(out.t)
	return out
}

func (b Builder) step(s model.Step) Builder {
	n := 0
	if b.t != nil {
		n = len(b.t.Build)
	}
	return b.change(fmt.Sprintf("build[%d]", n), 2, func(t *model.Template) { t.Build = append(t.Build, s) })
}

// Name sets the name, which every template has: lower case, with dashes.
func (b Builder) Name(name string) Builder {
	return b.with("name", func(t *model.Template) { t.Name = name })
}

// Version sets the semantic version of the template.
func (b Builder) Version(v string) Builder {
	return b.with("version", func(t *model.Template) { t.Version = v })
}

// Describe sets the description.
func (b Builder) Describe(text string) Builder {
	return b.with("description", func(t *model.Template) { t.Description = text })
}

// Apt adds a step that installs Debian packages.
func (b Builder) Apt(packages ...string) Builder {
	return b.step(model.Step{Apt: append([]string{}, packages...)})
}

// Pip adds a step that installs requirements with pip.
func (b Builder) Pip(requirements ...string) Builder {
	return b.step(model.Step{Pip: append([]string{}, requirements...)})
}

// Npm adds a step that installs packages with npm, globally.
func (b Builder) Npm(packages ...string) Builder {
	return b.step(model.Step{Npm: append([]string{}, packages...)})
}

// Run adds a step that runs a shell line.
func (b Builder) Run(line string) Builder { return b.step(model.Step{Run: line}) }

// Copy adds a step that copies a file or folder of the template's folder. Dest is
// absolute or relative to the working folder; see [model.Copy].
func (b Builder) Copy(src, dest string) Builder {
	return b.step(model.Step{Copy: &model.Copy{Src: src, Dest: dest}})
}

// Env adds variables to the environment of the build and of everything that runs.
// A later call replaces what an earlier one says of the same name.
func (b Builder) Env(env map[string]string) Builder {
	return b.with("env", func(t *model.Template) {
		if t.Env == nil {
			t.Env = map[string]string{}
		}
		maps.Copy(t.Env, env)
	})
}

// Workdir sets the working folder, absolute.
func (b Builder) Workdir(path string) Builder {
	return b.with("workdir", func(t *model.Template) { t.Workdir = path })
}

// User sets the user of everything that runs.
func (b Builder) User(name string) Builder {
	return b.with("user", func(t *model.Template) { t.User = name })
}

// Shell sets the shell of shell lines, an absolute path.
func (b Builder) Shell(path string) Builder {
	return b.with("shell", func(t *model.Template) { t.Shell = path })
}

// Expose adds ports that programs of the template listen on.
func (b Builder) Expose(ports ...int) Builder {
	return b.with("ports", func(t *model.Template) { t.Ports = append(t.Ports, ports...) })
}

// Network sets what a sandbox may reach: none, loopback, host, all, or rules with
// commas between.
func (b Builder) Network(network string) Builder {
	return b.with("network", func(t *model.Template) { t.Network = network })
}

// BuildNetwork is Network for the build.
func (b Builder) BuildNetwork(network string) Builder {
	return b.with("build_network", func(t *model.Template) { t.BuildNetwork = network })
}

// Resources sets what a sandbox gets.
func (b Builder) Resources(r model.Resources) Builder {
	return b.with("resources", func(t *model.Template) { t.Resources = r })
}

// Start sets the shell line that is started with the sandbox.
func (b Builder) Start(line string) Builder {
	return b.with("start", func(t *model.Template) { t.Start = line })
}

// Ready sets when a sandbox is ready.
func (b Builder) Ready(p model.Probe) Builder {
	return b.with("ready", func(t *model.Template) { t.Ready = &p })
}

// Health sets the command that tells whether a sandbox still works.
func (b Builder) Health(h model.Health) Builder {
	return b.with("health", func(t *model.Template) { t.Health = &h })
}

// Requires adds programs that must be found on PATH in the sandbox.
func (b Builder) Requires(programs ...string) Builder {
	return b.with("requires", func(t *model.Template) { t.Requires = append(t.Requires, programs...) })
}

// Capabilities says what the template offers, of shell, files, code, terminal and
// ports. Like Server, it replaces what was said before.
func (b Builder) Capabilities(names ...string) Builder {
	names = slices.Clone(names)
	return b.with("server", func(t *model.Template) { t.Server = Capabilities(names...) })
}

// Server switches groups and single endpoints of the runtime's API.
func (b Builder) Server(s model.Server) Builder {
	return b.with("server", func(t *model.Template) { t.Server = &s })
}

// Policy sets what may be done in a sandbox.
func (b Builder) Policy(p model.Policy) Builder {
	return b.with("policy", func(t *model.Template) { t.Policy = p })
}

// Command adds a named command, or replaces the one of this name.
func (b Builder) Command(name string, c model.Command) Builder {
	return b.with("commands."+name, func(t *model.Template) {
		if t.Commands == nil {
			t.Commands = map[string]model.Command{}
		}
		t.Commands[name] = c
	})
}

// Interpreter configures code contexts.
func (b Builder) Interpreter(i model.Interpreter) Builder {
	return b.with("interpreter", func(t *model.Template) { t.Interpreter = i })
}

// Set changes any other field: f gets a copy, which it may change and must not
// keep.
func (b Builder) Set(f func(*model.Template)) Builder { return b.with("", f) }

// Template returns the template, or an [*Invalid] with every mistake, at the line of
// Go that made it. The result is the caller's own.
func (b Builder) Template() (*model.Template, error) {
	t := b.t.Clone() // also drops what the caller still holds
	tidy(t)
	var problems []Problem
	check(t, func(path, message, hint string) {
		p := Problem{}
		for at := path; ; at = at[:max(lastPart(at), 0)] {
			if q, ok := b.at[at]; ok {
				p = q
				break
			}
			if at == "" {
				break
			}
		}
		p.Message, p.Hint = message, hint
		problems = append(problems, p)
	})
	if err := invalid(problems); err != nil {
		return nil, err
	}
	return t, nil
}
