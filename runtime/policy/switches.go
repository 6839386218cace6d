package policy

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/agent-sandbox/sandbox-go/internal/near"
	"github.com/agent-sandbox/sandbox-go/runtime/endpoint"
	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// Variables that switch more off than a template does. Both are lists with
// commas. They only narrow: enable is what is left on of what the template has.
const (
	EnvEnable  = "SANDBOX_SERVER_ENABLE"
	EnvDisable = "SANDBOX_SERVER_DISABLE"
)

// core cannot be switched off: it tells that the sandbox lives, and what is on.
const core = "core"

// absent are groups that only some runtimes have: their names are no mistake.
var absent = []string{"agents"}

// also are endpoints that do by other paths what the key does: who switches that
// off has not left the others open.
var also = map[string][]string{
	"process.exec":      {"process.exec_stream", "process.shell", "process.shell_stream", "process.start"},
	"process.list":      {"process.get", "terminal.list"},
	"terminal.connect":  {"terminal.attach"},
	"terminal.input":    {"terminal.attach"},
	"terminal.resize":   {"terminal.attach"},
	"terminal.signal":   {"terminal.attach", "terminal.close"},
	"file_ops.download": {"file_ops.archive"},
	"file_ops.list":     {"file_ops.search"},
}

// byDefault, in a list of what is on, stands for what is on when nothing is said.
const byDefault = "default"

// capabilities are other names of groups.
var capabilities = map[string]string{
	"shell": "process.*", "files": "file_ops.*", "code": "dev_tools.code_*", "terminal": "terminal.*", "ports": "ports.*",
}

// switches says which endpoints answer.
type switches struct {
	lists []list
	on    map[string]bool // by name; nil before the names are known
}

// list is one list of names.
type list struct {
	from    string // what to call it in an error
	names   []string
	disable bool
}

// declare notes what is said, without knowing what the names mean.
func (s *switches) declare(m *model.Server, lookup func(string) (string, bool)) {
	if m != nil {
		if m.Enable != nil {
			s.lists = append(s.lists, list{"server.enable", m.Enable, false})
		}
		s.lists = append(s.lists, list{"server.disable", m.Disable, true})
	}
	if v, ok := lookup(EnvEnable); ok {
		s.lists = append(s.lists, list{EnvEnable, split(v), false})
	}
	if v, ok := lookup(EnvDisable); ok {
		s.lists = append(s.lists, list{EnvDisable, split(v), true})
	}
}

func split(v string) []string {
	var out []string
	for name := range strings.SplitSeq(v, ",") {
		if name = strings.TrimSpace(name); name != "" {
			out = append(out, name)
		}
	}
	return out
}

// Know says which endpoints there are, and decides which of them answer: those
// that are on by default, or those that the template enables, without those that
// it, or the environment, disables. A name that means none of rows is an error,
// E8007, with the name that it is most like. A nil Policy knows nothing.
func (p *Policy) Know(rows []endpoint.Endpoint) error {
	if p == nil {
		return nil
	}
	s := &p.switches
	on := make(map[string]bool, len(rows))
	for _, r := range rows {
		// A row can share its name with others that do the same.
		on[r.Name] = on[r.Name] || !r.Off
	}
	std := make(map[string]bool, len(on))
	for name, is := range on {
		std[name] = is
	}
	// The template can enable what is off by default, the environment cannot.
	for _, l := range s.lists {
		named, err := l.expand(std)
		if err != nil {
			return err
		}
		for name := range on {
			switch {
			case isCore(name):
			case l.disable:
				on[name] = on[name] && !named[name]
			case l.from == "server.enable":
				on[name] = named[name]
			default:
				on[name] = on[name] && named[name]
			}
		}
	}
	for name := range on {
		on[name] = on[name] || isCore(name)
	}
	s.on = on
	return nil
}

func isCore(name string) bool { return name == core || strings.HasPrefix(name, core+".") }

// expand finds the endpoints that the list means. Std is all there are, and
// whether they are on by default.
func (l list) expand(std map[string]bool) (map[string]bool, error) {
	out := map[string]bool{}
	for _, word := range l.names {
		pattern := word
		if c, ok := capabilities[word]; ok && c != word+".*" {
			pattern = c
		}
		found := false
		for name, is := range std {
			if matches(pattern, name) || pattern == byDefault && !l.disable && is {
				out[name] = true
				found = true
			}
		}
		if l.disable {
			for name, others := range also {
				for _, other := range others {
					out[other] = out[other] || out[name]
				}
			}
		}
		if l.disable && isCore(word) {
			return nil, invalid("%s: %q cannot be switched off", l.from, word)
		}
		if group, _, _ := strings.Cut(word, "."); !found && !slices.Contains(absent, group) {
			return nil, l.unknown(word, std)
		}
	}
	return out, nil
}

// matches reports whether word means the endpoint name: by its name, by that of
// its group, or with stars.
func matches(word, name string) bool {
	if word == name || strings.HasPrefix(name, word+".") {
		return true
	}
	if !strings.Contains(word, "*") {
		return false
	}
	ok, err := path.Match(word, name) // names have no slash, so a star is any text
	return err == nil && ok
}

func (l list) unknown(word string, std map[string]bool) error {
	var names []string
	for name := range std {
		group, _, _ := strings.Cut(name, ".")
		names = append(names, name, group)
	}
	for c := range capabilities {
		names = append(names, c)
	}
	if n := near.Best(word, names); n != "" {
		return invalid("%s: there is no endpoint %q; did you mean %q?", l.from, word, n)
	}
	return invalid("%s: there is no endpoint %q; groups are %s", l.from, word, strings.Join(groups(std), ", "))
}

func groups(std map[string]bool) []string {
	var out []string
	for name := range std {
		group, _, _ := strings.Cut(name, ".")
		out = append(out, group)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// On reports whether the endpoint answers. An endpoint that Know was not told of
// does not.
func (p *Policy) On(name string) bool {
	return p == nil || p.switches.on[name] || p.switches.on == nil && isCore(name)
}

// Endpoint is nil when the endpoint answers, and else a [*Refusal] with E8022.
func (p *Policy) Endpoint(name string) error {
	if p.On(name) {
		return nil
	}
	return &Refusal{Code: "E8022", Rule: fmt.Sprintf("endpoint %s is not enabled in this sandbox", name)}
}
