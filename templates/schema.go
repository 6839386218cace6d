package templates

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// draft is a template while its file is read.
type draft struct {
	t     model.Template
	keyed steps
	env   map[string]string // of the section build
}

// steps are those of a build whose kinds have keys of their own.
type steps struct {
	apt, pip, npm, run []string
	copy               []model.Copy
}

// flat is the table of the flat form.
func (d *draft) flat() []field {
	t := &d.t
	return slices.Concat(
		metadata(t),
		[]field{
			d.base(),
			texts("system_packages", "keyed.apt", "Debian packages to install", &d.keyed.apt),
			texts("python_packages", "keyed.pip", "requirements to install with pip", &d.keyed.pip),
			texts("node_packages", "keyed.npm", "packages to install with npm, globally", &d.keyed.npm),
			d.copies("copy_files"),
			d.commands(),
			namedCommands("custom_commands", t),
			d.build(),
			network("build_network", "build_network", "network of the build", &t.BuildNetwork),
			pairs("env", "env", "environment of everything that runs", &t.Env),
			ports("ports", "ports", "ports that programs of the template listen on", &t.Ports),
			boolean("public", "public", "ports can be reached without the sandbox's token", &t.Public),
			network("network", "network", "what a sandbox may reach", &t.Network),
			cores("cpu_count", "resources.cpu", "as resources.cpu", &t.Resources.CPU),
			megabytes("memory_mb", "resources.memory_mb", "as resources.memory", &t.Resources.MemoryMB),
			megabytes("disk_mb", "resources.disk_mb", "as resources.disk", &t.Resources.DiskMB),
		},
		runtimeFields(t),
		shared(t),
	)
}

// nested is the table of the nested form.
func (d *draft) nested() []field {
	t := &d.t
	var format string
	return slices.Concat(
		[]field{
			value("version", `"1"`, "format", "version of the form", &format, func(r *reader, n ast.Node, what string) (string, bool) {
				if s, ok := n.(*ast.StringNode); !ok || s.Value != "1" {
					r.fail(n, `version must be the text "1"`, "the template's own version is metadata.version")
					return "", false
				}
				return "1", true
			}),
			section("metadata", "what the template is", metadata(t)...),
			d.base(),
			d.build(),
			pairs("env", "env", "environment of everything that runs", &t.Env),
			section("network", "ports and what may be reached",
				ports("ports", "ports", "ports that programs of the template listen on", &t.Ports),
				boolean("public", "public", "ports can be reached without the sandbox's token", &t.Public),
				network("reach", "network", "what a sandbox may reach", &t.Network),
			),
			section("sandbox", "how a sandbox runs", runtimeFields(t)...),
			namedCommands("custom_commands", t),
			namedCommands("commands", t),
		},
		shared(t),
	)
}

func metadata(t *model.Template) []field {
	return []field{
		text("name", "name", "required; lower case, with dashes", &t.Name),
		text("display_name", "display_name", "name for people", &t.DisplayName),
		text("version", "version", "semantic version of the template", &t.Version),
		text("description", "description", "one sentence", &t.Description),
		text("author", "author", "who made it", &t.Author),
		text("license", "license", "SPDX identifier", &t.License),
		text("homepage", "homepage", "http or https address", &t.Homepage),
		texts("tags", "tags", "words to find it by", &t.Tags),
		text("category", "category", strings.Join(categories, ", "), &t.Category),
	}
}

// runtimeFields are those of a running sandbox: on the top level of the flat form,
// below "sandbox" in the nested one.
func runtimeFields(t *model.Template) []field {
	probe := func() *model.Probe {
		if t.Ready == nil {
			t.Ready = &model.Probe{}
		}
		return t.Ready
	}
	return []field{
		text("workdir", "workdir", "working folder, absolute", &t.Workdir),
		text("user", "user", "user of everything that runs", &t.User),
		text("shell", "shell", "absolute path of the shell of shell lines", &t.Shell),
		text("start", "start", "shell line that is started with the sandbox", &t.Start),
		text("startup_command", "start", "as start", &t.Start),
		value("mode", "ephemeral or persistent", "persistent", "whether a sandbox outlives its first use", &t.Persistent, func(r *reader, n ast.Node, what string) (bool, bool) {
			s, ok := r.text(n, what)
			if ok && s != "ephemeral" && s != "persistent" {
				r.fail(n, fmt.Sprintf("mode %q is not known", s), "write ephemeral or persistent")
				return false, false
			}
			return s == "persistent", ok
		}),
		boolean("persistent", "persistent", "true: as mode persistent", &t.Persistent),
		probeField("ready", "when a sandbox is ready", probe),
		probeField("readiness_probe", "as ready", probe),
		value("generation", "1 or 2", "generation", "of the platform, where it has several", &t.Generation, func(r *reader, n ast.Node, what string) (int, bool) {
			v, ok := r.integer(n, what)
			if ok && v != 1 && v != 2 {
				r.fail(n, fmt.Sprintf("generation is %d, not 1 or 2", v), "")
				return 0, false
			}
			return int(v), ok
		}),
		texts("requires", "requires", "programs that must be found on PATH in the sandbox", &t.Requires),
	}
}

// probeField reads a readiness probe. The key "type" of the older form must agree
// with what is set.
func probeField(key, doc string, dst func() *model.Probe) field {
	fields := func(p *model.Probe, typ *string) []field {
		return []field{
			text("type", "ready.type", "tcp or exec; not needed", typ),
			number("port", "ready.port", "something accepts connections on it", &p.Port),
			text("command", "ready.command", "shell line that ends with 0", &p.Command),
			duration("timeout", "ready.timeout", "default 60s", &p.Timeout, false),
		}
	}
	return field{key: key, typ: "mapping", doc: doc, sub: fields(&model.Probe{}, new(string)), read: func(r *reader, k, n ast.Node) {
		m, ok := r.mapping(n, key)
		if !ok || !r.claim("ready", k) {
			return
		}
		p, typ := dst(), ""
		r.fields(m, key, fields(p, &typ))
		switch {
		case typ != "" && typ != "tcp" && typ != "exec":
			r.failAt("ready.type", fmt.Sprintf("type %q is not known", typ), "write tcp or exec, or leave it out")
		case typ == "tcp" && p.Command != "", typ == "exec" && p.Port != 0:
			r.failAt("ready.type", "type "+typ+" does not fit the key beside it", "leave type out")
		}
	}}
}

// shared are the sections that both forms spell alike.
func shared(t *model.Template) []field {
	health := func() *model.Health {
		if t.Health == nil {
			t.Health = &model.Health{}
		}
		return t.Health
	}
	return []field{
		section("resources", "what a sandbox gets",
			cores("cpu", "resources.cpu", "cores", &t.Resources.CPU),
			megabytes("memory", "resources.memory_mb", "memory", &t.Resources.MemoryMB),
			megabytes("disk", "resources.disk_mb", "disk", &t.Resources.DiskMB),
			text("gpu", "resources.gpu", "kind of GPU", &t.Resources.GPU),
			duration("lifetime", "resources.lifetime", "of a sandbox", &t.Resources.Lifetime, false),
			duration("timeout", "resources.lifetime", "as lifetime", &t.Resources.Lifetime, false),
			duration("idle_timeout", "resources.idle_timeout", "of a sandbox that nobody uses", &t.Resources.IdleTimeout, false),
		),
		capabilities(t),
		server(t),
		policy(t),
		section("interpreter", "code contexts",
			number("max_contexts", "interpreter.max_contexts", "default 32", &t.Interpreter.MaxContexts),
			duration("idle_timeout", "interpreter.idle_timeout", "default 1h", &t.Interpreter.IdleTimeout, false),
			texts("prestart", "interpreter.prestart", "languages whose default context starts with the sandbox; default none", &t.Interpreter.Prestart),
			pairs("programs", "interpreter.programs", "language to the absolute path of an executable that speaks the driver protocol", &t.Interpreter.Programs),
		),
		healthField("health", "whether a sandbox still works", health),
		healthField("healthcheck", "as health", health),
		agent(t),
	}
}

// healthField reads a health check.
func healthField(key, doc string, dst func() *model.Health) field {
	fields := func(h *model.Health) []field {
		return []field{
			text("command", "health.command", "required; shell line that ends with 0", &h.Command),
			duration("interval", "health.interval", "default 30s", &h.Interval, false),
			duration("timeout", "health.timeout", "default 10s", &h.Timeout, false),
			number("retries", "health.retries", "default 3", &h.Retries),
		}
	}
	return field{key: key, typ: "mapping", doc: doc, sub: fields(&model.Health{}), read: func(r *reader, k, n ast.Node) {
		if m, ok := r.mapping(n, key); ok && r.claim("health", k) {
			r.fields(m, key, fields(dst()))
		}
	}}
}

func agent(t *model.Template) field {
	fields := func(a *model.Agent) []field {
		return []field{
			text("description", "agent.description", "what the template is good for", &a.Description),
			texts("triggers", "agent.triggers", "words that speak for it", &a.Triggers),
			text("instructions", "agent.instructions", "how an agent works in it", &a.Instructions),
		}
	}
	return field{key: "agent", typ: "mapping", doc: "for agents that choose a template", sub: fields(&model.Agent{}), read: func(r *reader, _, n ast.Node) {
		if m, ok := r.mapping(n, "agent"); ok {
			t.Agent = &model.Agent{}
			r.fields(m, "agent", fields(t.Agent))
		}
	}}
}

// base is an OCI reference, or a mapping that can also name another template.
func (d *draft) base() field {
	b := &d.t.Base
	sub := []field{
		text("image", "base.image", "OCI reference", &b.Image),
		text("from", "base.from", "another template", &b.From),
		boolean("host", "base.host", "the machine's own files where the provider can show them", &b.Host),
	}
	return field{key: "base", typ: "image, or a mapping", doc: "what the template starts from; default: the template base", sub: sub, read: func(r *reader, k, n ast.Node) {
		if n.Type() == ast.MappingType {
			if m, ok := r.mapping(n, "base"); ok {
				r.at["base"] = position(k)
				r.fields(m, "base", sub)
			}
			return
		}
		if s, ok := r.text(n, "base"); ok {
			r.at["base.image"] = position(n)
			b.Image = s
		}
	}}
}

// build is a list of steps in their order, or a mapping with a key for each kind.
func (d *draft) build() field {
	list := d.stepList("build")
	list.sub = nil
	sub := []field{
		d.stepList("steps"),
		texts("apt_install", "keyed.apt", "Debian packages", &d.keyed.apt),
		texts("pip_install", "keyed.pip", "requirements for pip", &d.keyed.pip),
		texts("npm_install", "keyed.npm", "packages for npm, globally", &d.keyed.npm),
		d.copies("copy"),
		texts("run", "keyed.run", "shell lines, one step each", &d.keyed.run),
		pairs("env", "build.env", "as env of the template", &d.env),
		network("network", "build_network", "network of the build", &d.t.BuildNetwork),
	}
	return field{key: "build", typ: "list of steps, or a mapping", doc: "how the template is built", sub: sub, read: func(r *reader, k, n ast.Node) {
		if n.Type() == ast.SequenceType {
			list.read(r, k, n)
		} else if m, ok := r.mapping(n, "build"); ok {
			r.fields(m, "build", sub)
		}
	}}
}

func (d *draft) stepList(key string) field {
	return items(key, "build", "steps in their order, one key each", &d.t.Build, nil, func(s *model.Step, path string) []field {
		return []field{
			texts("apt", path+".apt", "Debian packages", &s.Apt),
			texts("pip", path+".pip", "requirements for pip", &s.Pip),
			texts("npm", path+".npm", "packages for npm, globally", &s.Npm),
			text("run", path+".run", "shell line", &s.Run),
			value("copy", "SRC:DEST, or a mapping", path+".copy", "file or folder of the template's folder", &s.Copy, func(r *reader, n ast.Node, what string) (*model.Copy, bool) {
				if n.Type() == ast.StringType {
					c, ok := shortCopy(r, n, n.(*ast.StringNode).Value)
					return &c, ok
				}
				m, ok := r.mapping(n, what)
				c := new(model.Copy)
				if ok {
					r.fields(m, what, copyFields(c, path+".copy"))
				}
				return c, ok
			}),
		}
	})
}

func (d *draft) copies(key string) field {
	return items(key, "keyed.copy", "files and folders of the template's folder", &d.keyed.copy, shortCopy, copyFields)
}

func copyFields(c *model.Copy, path string) []field {
	return []field{
		text("src", path+".src", "relative to the template's folder", &c.Src),
		text("dest", path+".dest", "absolute, or relative to the working folder", &c.Dest),
	}
}

func shortCopy(r *reader, n ast.Node, s string) (model.Copy, bool) {
	src, dest, ok := strings.Cut(s, ":")
	if !ok {
		r.fail(n, fmt.Sprintf("%q does not say where to", s), "write SRC:DEST, or src and dest")
	}
	return model.Copy{Src: src, Dest: dest}, ok
}

// commands of the flat form are build steps when a list, named commands when a
// mapping.
func (d *draft) commands() field {
	run := texts("commands", "keyed.run", "", &d.keyed.run)
	byName := namedCommands("commands", &d.t)
	return field{key: "commands", typ: "list of shell lines, or a mapping by name", doc: "a list: build steps that come last; a mapping: as custom_commands",
		read: func(r *reader, k, n ast.Node) {
			if n.Type() == ast.MappingType {
				byName.read(r, k, n)
				return
			}
			run.read(r, k, n)
		}}
}

func namedCommands(key string, t *model.Template) field {
	return named(key, "commands", "named commands", &t.Commands, func(c *model.Command, path string) []field {
		return []field{
			text("description", path+".description", "one sentence", &c.Description),
			text("run", path+".run", "required; program and arguments, with {name} for values", &c.Run),
			text("cmd", path+".run", "as run", &c.Run),
			boolean("shell", path+".shell", "run is a shell line; values are quoted", &c.Shell),
			boolean("hidden", path+".hidden", "can be run, is not listed", &c.Hidden),
			text("cwd", path+".cwd", "working folder", &c.Cwd),
			text("user", path+".user", "user", &c.User),
			duration("timeout", path+".timeout", "default 60s", &c.Timeout, true),
			pairs("env", path+".env", "environment", &c.Env),
			items("args", path+".args", "arguments", &c.Args, nil, func(a *model.Arg, path string) []field {
				return []field{
					text("name", path+".name", "required", &a.Name),
					text("type", path+".type", strings.Join(argTypes, ", ")+"; default string", &a.Type),
					boolean("required", path+".required", "it must be given", &a.Required),
					value("default", "text or number", path+".default", "value when it is not given", &a.Default, func(r *reader, n ast.Node, what string) (*string, bool) {
						s, ok := r.scalar(n, what)
						return &s, ok
					}),
					text("description", path+".description", "one sentence", &a.Description),
				}
			}),
		}
	})
}

// finish puts the steps of kinds with keys of their own in their fixed order, and
// joins the two places of environment.
func (d *draft) finish(r *reader) {
	if _, ok := r.at["build"]; ok {
		for _, kind := range []string{"apt", "pip", "npm", "copy", "run"} {
			if p, ok := r.at["keyed."+kind]; ok {
				r.problems = append(r.problems, Problem{File: r.file, Line: p.line, Col: p.col,
					Message: "steps are given as a list and by kind", Hint: "put all of them into the list"})
			}
		}
	}
	add := func(from string, s model.Step) {
		to := fmt.Sprintf("build[%d]", len(d.t.Build))
		d.t.Build = append(d.t.Build, s)
		for path, p := range maps.Clone(r.at) {
			if rest, ok := strings.CutPrefix(path, "keyed."+from); ok && (rest == "" || rest[0] == '.' || rest[0] == '[') {
				kind, _, _ := strings.Cut(from, "[")
				r.at[to+"."+kind+rest] = p
			}
		}
	}
	k := d.keyed
	if len(k.apt) > 0 {
		add("apt", model.Step{Apt: k.apt})
	}
	if len(k.pip) > 0 {
		add("pip", model.Step{Pip: k.pip})
	}
	if len(k.npm) > 0 {
		add("npm", model.Step{Npm: k.npm})
	}
	for i := range k.copy {
		add(fmt.Sprintf("copy[%d]", i), model.Step{Copy: &k.copy[i]})
	}
	for i, line := range k.run {
		add(fmt.Sprintf("run[%d]", i), model.Step{Run: line})
	}
	for name, v := range d.env {
		if p, ok := r.at["env."+name]; ok {
			r.failAt("build.env."+name, fmt.Sprintf("env %s is already said at line %d", name, p.line), "keep one of the two")
			continue
		}
		if d.t.Env == nil {
			d.t.Env = map[string]string{}
		}
		d.t.Env[name] = v
		r.at["env."+name] = r.at["build.env."+name]
	}
}
