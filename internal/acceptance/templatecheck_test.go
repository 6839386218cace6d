package acceptance

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/agent-sandbox/sandbox-go/runtime/code/drivers"
	"github.com/agent-sandbox/sandbox-go/runtime/server"
	"github.com/agent-sandbox/sandbox-go/sandboxfn"
	"github.com/agent-sandbox/sandbox-go/templates"
	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// TestTemplateValues: a value that a sandbox could not start with is refused when the
// template is read, with the place where it stands.
func TestTemplateValues(t *testing.T) {
	for _, c := range []struct {
		text string // after the name; the mistake is in the last line, after the mark
		want string
	}{
		{"policy:\n  commands:\n    max_output: ¦1KiB", "max_output is 1024 bytes"},
		{"policy:\n  commands:\n    max_output: ¦65MiB", "max_output is 68157440 bytes"},
		{"policy:\n  commands:\n    max_output: ¦-1", "below zero"},
		{"policy:\n  commands:\n    max_runtime: ¦0s", "must be above zero"},
		{"policy:\n  commands:\n    max_processes: ¦-1", "must be from 0"},
		{"policy:\n  commands:\n    env_deny: [¦'A[']", "is not a pattern"},
		{"policy:\n  commands:\n    env_deny: [¦'A=B']", "is not a pattern"},
		{"policy:\n  commands:\n    allow: [¦..]", "is not the name of a program"},
		{"policy:\n  commands:\n    deny: [{program: ¦/opt/a b}]", "holds a space"},
		{"policy:\n  commands:\n    deny: [{program: ¦bin/ls}]", "is not the name of a program"},
		{"policy:\n  commands:\n    cwd: [¦work]", "is not an absolute path"},
		{"policy:\n  commands:\n    users: [¦a b]", "is not a user"},
		{"policy:\n  files:\n    read: [¦work]", "is not an absolute path"},
		{"policy:\n  files:\n    write: [¦/a/../b]", "is not in its shortest form"},
		{"policy:\n  files:\n    deny: [¦'/a/[']", "is malformed"},
		{"policy:\n  files:\n    deny: [¦'secret/**']", "is not absolute"},
		{"policy:\n  files:\n    deny: [¦'/a/b**']", "is malformed"},
		{"policy:\n  files:\n    deny: [¦'" + strings.Repeat("/*", 64) + "']", "more than 63 elements"},
		{"policy:\n  files:\n    max_bytes: ¦-5", "below zero"},
		{"policy:\n  files:\n    max_entries: ¦-5", "must be from 0"},
		{"server:\n  enable: [¦process.exce]", `there is no endpoint "process.exce"`},
		{"server:\n  disable: [¦'process.x*']", `there is no endpoint "process.x*"`},
		{"server:\n  disable: [¦proces]", `unknown group "proces"`},
		{"server:\n  disable: [¦core.health]", "core cannot be switched off"},
		{"ports: [¦0]", "port 0 does not exist"},
		{"ports: [80, ¦65536]", "port 65536 does not exist"},
		{"ready: {port: ¦70000}", "port 70000 does not exist"},
		{"ready: {port: 80, timeout: ¦0}", "must be above zero"},
		{"health: {command: x, interval: ¦0}", "must be above zero"},
		{"health: {command: x, retries: ¦-1}", "must be from 0"},
		{"workdir: ¦work", "is not an absolute path"},
		{"shell: ¦bash", "is not an absolute path"},
		{"user: ¦a b", "is not a user"},
		{"env:\n  ¦A-B: x", "is not a name of a variable"},
		{"network: ¦host:x", ""},
		{"requires: [¦/bin/sh]", "is not the name of a program"},
		{"resources: {cpu: ¦0}", "must be above 0"},
		{"resources: {memory: ¦-1}", "must be from 0"},
		{"resources: {lifetime: 1h, idle_timeout: ¦2h}", "longer than the lifetime"},
		{"interpreter: {max_contexts: ¦-1}", "must be from 0"},
		{"interpreter: {idle_timeout: ¦0}", "must be above zero"},
		{"interpreter: {prestart: [¦pyton]}", `no interpreter for "pyton"`},
		{"interpreter: {prestart: [bash, ¦bash]}", "there twice"},
		{"interpreter: {max_contexts: 1, prestart: ¦[bash, js]}", "max_contexts is 1"},
		{"policy: {commands: {max_processes: 1}}\ninterpreter: {prestart: ¦[bash]}", "with max_processes 1 no command"},
		{"policy: {commands: {max_processes: 2}}\ninterpreter: {prestart: ¦[bash, js]}", "with max_processes 2 no command"},
		{"interpreter:\n  programs:\n    ¦r: Rscript", "is not an absolute path"},
		{"custom_commands:\n  a: {run: x, cwd: ¦y}", "is not an absolute path"},
		{"custom_commands:\n  a: {run: x, timeout: ¦0}", "must be above zero"},
		{"custom_commands:\n  a: {run: ¦\"x 'y\"}", "is not closed"},
	} {
		before, _, ok := strings.Cut(c.text, "¦")
		if !ok {
			t.Fatalf("no mark in %q", c.text)
		}
		text := "name: x\n" + strings.Replace(c.text, "¦", "", 1) + "\n"
		place := fmt.Sprintf(":%d:%d: ", 2+strings.Count(before, "\n"), len(before)-strings.LastIndexByte(before, '\n'))
		_, err := templates.LoadFS(fstest.MapFS{"template.yaml": &fstest.MapFile{Data: []byte(text)}}, "x")
		if err == nil || !errors.Is(err, &sandboxfn.Error{Code: "E2004"}) || !strings.Contains(err.Error(), place) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s\ngot %v, want %q at %s", text, err, c.want, place)
		}
	}
}

// TestTemplateLikeRuntime: what a runtime would refuse of a template, its reader
// refuses, and the other way round where the runtime has a say.
func TestTemplateLikeRuntime(t *testing.T) {
	if got, want := templates.Endpoints(), server.EndpointNames(); !slices.Equal(got, want) {
		t.Errorf("endpoints that templates know:\n%q\nof the runtime:\n%q", got, want)
	}
	for _, name := range append(drivers.Names(), "py", "python3", "js", "node", "ts", "sh", "ruby") {
		_, want := drivers.Find(drivers.Canonical(name))
		err := templates.Validate(&model.Template{Name: "x", Interpreter: model.Interpreter{Prestart: []string{name}}})
		if (err == nil) != want {
			t.Errorf("prestart of %s: there is a driver %v, %v", name, want, err)
		}
	}
	no := false
	commands := func(c model.CommandPolicy) model.Template { return model.Template{Policy: model.Policy{Commands: c}} }
	files := func(f model.FilePolicy) model.Template { return model.Template{Policy: model.Policy{Files: f}} }
	starting := func(most int, languages ...string) model.Template {
		m := commands(model.CommandPolicy{MaxProcesses: most})
		m.Interpreter.Prestart = languages
		return m
	}
	rule := func(program string, args ...string) model.Template {
		return commands(model.CommandPolicy{Deny: []model.CommandRule{{Program: program, Args: args}}})
	}
	on := func(names ...string) model.Template { return model.Template{Server: &model.Server{Enable: names}} }
	off := func(names ...string) model.Template { return model.Template{Server: &model.Server{Disable: names}} }
	for i, c := range []struct {
		m    model.Template
		fine bool
	}{
		{commands(model.CommandPolicy{MaxOutput: 4 << 10}), true},
		{commands(model.CommandPolicy{MaxOutput: 64 << 20}), true},
		{commands(model.CommandPolicy{MaxOutput: 4<<10 - 1}), false},
		{commands(model.CommandPolicy{MaxOutput: 64<<20 + 1}), false},
		{commands(model.CommandPolicy{MaxOutput: -1}), false},
		{commands(model.CommandPolicy{MaxProcesses: -1}), false},
		{starting(1, "bash"), false}, {starting(2, "bash"), true}, {starting(2, "bash", "js", "python"), false},
		{starting(0, "bash", "js", "python"), true}, {starting(1), true},
		{commands(model.CommandPolicy{EnvDeny: []string{"A["}}), false},
		{commands(model.CommandPolicy{EnvDeny: []string{"A*", "B?"}}), true},
		{commands(model.CommandPolicy{Cwd: []string{"a"}}), false},
		{commands(model.CommandPolicy{Shell: &no}), true},
		{rule("ls"), true}, {rule("ls", "-a b"), true}, {rule("/opt/a b", "c"), true}, {rule("/opt/a b"), false},
		{rule("."), false}, {rule(".."), false}, {rule("a/b"), false}, {rule("/a/../b"), false}, {rule(""), false}, {rule("a b"), false},
		{files(model.FilePolicy{Read: []string{"/a"}, Write: []string{"/b"}}), false},
		{files(model.FilePolicy{Deny: []string{"/a/[b"}}), false},
		{files(model.FilePolicy{Deny: []string{"a"}}), false},
		{files(model.FilePolicy{Deny: []string{"**/a", "/b/**/c*"}}), true},
		{files(model.FilePolicy{MaxBytes: -1}), false},
		{on("process", "file_ops.*", "dev_tools.git_*", "shell", "default"), true}, {on("*"), true}, {on("agents.start"), true},
		{on("process.exce"), false}, {on("x*"), false}, {off("*.exec", "ports"), true}, {off("core"), false}, {off("core.health"), false},
		{model.Template{Commands: map[string]model.Command{"a": {Run: "x {b}"}}}, false},
		{model.Template{Commands: map[string]model.Command{"a": {Run: "x '"}}}, false},
		{model.Template{Commands: map[string]model.Command{"a": {Run: "x {b}", Args: []model.Arg{{Name: "b", Type: "float"}}}}}, true},
		{model.Template{Commands: map[string]model.Command{"a": {Run: "x {b}", Args: []model.Arg{{Name: "b", Type: "number"}}}}}, false},
	} {
		c.m.Name = "x"
		read := templates.Validate(&c.m)
		s, run := server.New(&server.Options{Template: &c.m, AllowNoToken: true})
		if s != nil {
			s.Shutdown(t.Context())
		}
		if (read == nil) != c.fine || (run == nil) != c.fine {
			t.Errorf("%d: %+v: fine %v; the reader says %v, the runtime %v", i, c.m, c.fine, read, run)
		}
	}
}
