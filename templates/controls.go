package templates

import (
	"fmt"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// capabilityGroups says which endpoints of the runtime's API a capability is.
var capabilityGroups = []struct{ name, group string }{
	{"shell", "process"}, {"files", "file_ops"}, {"code", "dev_tools.code_*"}, {"terminal", "terminal"}, {"ports", "ports"},
}

// capabilities is another spelling of server: what is not in the list is off. Groups
// that no capability names keep their defaults.
func capabilities(t *model.Template) field {
	names := make([]string, len(capabilityGroups))
	for i, c := range capabilityGroups {
		names[i] = c.name
	}
	return field{key: "capabilities", typ: "list of " + strings.Join(names, ", "), doc: "what the template offers; excludes server", read: func(r *reader, k, n ast.Node) {
		if !r.claim("server", k) {
			return
		}
		nodes, ok := r.list(n, "capabilities")
		if !ok {
			return
		}
		var on []string
		for _, e := range nodes {
			s, ok := r.text(e, "a capability")
			switch {
			case !ok:
			case !slices.Contains(names, s):
				hint := didYouMean(s, names)
				if hint == "" {
					hint = "known are " + strings.Join(names, ", ")
				}
				r.fail(e, fmt.Sprintf("unknown capability %q", s), hint)
			case slices.Contains(on, s):
				r.fail(e, fmt.Sprintf("capability %q is there twice", s), "")
			default:
				on = append(on, s)
			}
		}
		t.Server = Capabilities(on...)
	}}
}

// Capabilities is the server section that a list of capabilities means: shell,
// files, code, terminal, ports. Names that are not known count for nothing.
func Capabilities(names ...string) *model.Server {
	s := &model.Server{}
	for _, c := range capabilityGroups {
		if !slices.Contains(names, c.name) {
			s.Disable = append(s.Disable, c.group)
		}
	}
	return s
}

func server(t *model.Template) field {
	fields := func(s *model.Server) []field {
		return []field{
			texts("enable", "server.enable", "only these are on, beside core", &s.Enable),
			texts("disable", "server.disable", "these are off, whatever enable says", &s.Disable),
		}
	}
	return field{key: "server", typ: "mapping", doc: "groups and endpoints of the runtime's API, by name: process, process.*, process.exec", sub: fields(&model.Server{}), read: func(r *reader, k, n ast.Node) {
		if m, ok := r.mapping(n, "server"); ok && r.claim("server", k) {
			t.Server = &model.Server{}
			r.fields(m, "server", fields(t.Server))
		}
	}}
}

func policy(t *model.Template) field {
	f, c := &t.Policy.Files, &t.Policy.Commands
	return section("policy", "what may be done in a sandbox, over every protocol",
		section("files", "paths are absolute",
			texts("read", "policy.files.read", "folders that may be read; default all", &f.Read),
			texts("write", "policy.files.write", "folders that may be changed, each in a readable one; default all that may be read", &f.Write),
			texts("deny", "policy.files.deny", "patterns of path.Match, ** for any depth", &f.Deny),
			optionalBool("follow_links", "policy.files.follow_links", "whether links are followed", &f.FollowLinks),
			size("max_bytes", "policy.files.max_bytes", "of one file that is written; default no limit", &f.MaxBytes),
			number("max_entries", "policy.files.max_entries", "of one listing, search or archive; default the limit of each", &f.MaxEntries),
		),
		section("commands", "a guard rail: an allowed interpreter can do what its user can",
			rules("allow", "policy.commands.allow", "only these; default all", &c.Allow),
			rules("deny", "policy.commands.deny", "not these, whatever allow says", &c.Deny),
			optionalBool("shell", "policy.commands.shell", "false refuses shell lines", &c.Shell),
			texts("users", "policy.commands.users", "users that commands run as; default all", &c.Users),
			texts("cwd", "policy.commands.cwd", "working folders; default the readable ones", &c.Cwd),
			texts("env_deny", "policy.commands.env_deny", "patterns of variables that are taken out", &c.EnvDeny),
			number("max_processes", "policy.commands.max_processes", "at once; default no limit", &c.MaxProcesses),
			duration("max_runtime", "policy.commands.max_runtime", "of one command; default no limit", &c.MaxRuntime, false),
			size("max_output", "policy.commands.max_output", "bytes kept of each output, 4 KiB to 64 MiB; default 1 MiB", &c.MaxOutput),
		),
	)
}

// rules are programs with the beginning of their arguments. A short rule is words
// with spaces between them.
func rules(key, path, doc string, dst *[]model.CommandRule) field {
	short := func(r *reader, n ast.Node, s string) (model.CommandRule, bool) {
		words := strings.Fields(s)
		if len(words) == 0 || strings.ContainsAny(s, `'"\`) {
			r.fail(n, fmt.Sprintf("rule %q is not words with spaces between them", s), "write program and args for anything else")
			return model.CommandRule{}, false
		}
		rule := model.CommandRule{Program: words[0]}
		if len(words) > 1 {
			rule.Args = words[1:]
		}
		return rule, true
	}
	return items(key, path, doc, dst, short, func(v *model.CommandRule, path string) []field {
		return []field{
			text("program", path+".program", "name, or absolute path", &v.Program),
			texts("args", path+".args", "beginning of its arguments", &v.Args),
		}
	})
}
