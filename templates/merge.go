package templates

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// baseFolder is where, in the files of a resolved template, those of the templates
// below it are: .base/1 is what it is based on, .base/2 what that is based on.
const baseFolder = ".base"

// Merge joins a template with the one it is based on; both are left as they are.
//
//   - what is one value is the child's when it says one, else the base's; the name
//     and the version are always the child's; readiness is one value
//   - lists are the base's followed by the child's, in tags, ports, names of programs
//     and lists of the server and the policy each element once; an empty list of the
//     policy starts over
//   - mappings hold the keys of both; of a key in both, the child's value
//   - build steps of the base come first
//
// The base of the result is the base's.
func Merge(base, child *model.Template) *model.Template {
	b, t := base.Clone(), child.Clone()
	out := b
	out.Name, out.Version = t.Name, t.Version
	replace(&out.DisplayName, t.DisplayName)
	replace(&out.Description, t.Description)
	replace(&out.Author, t.Author)
	replace(&out.License, t.License)
	replace(&out.Homepage, t.Homepage)
	replace(&out.Category, t.Category)
	union(&out.Tags, t.Tags)
	out.Build = append(out.Build, t.Build...)
	replace(&out.BuildNetwork, t.BuildNetwork)
	replace(&out.Dockerfile, t.Dockerfile)
	join(&out.Env, t.Env)
	union(&out.Ports, t.Ports)
	replace(&out.Public, t.Public)
	replace(&out.Network, t.Network)
	union(&out.Requires, t.Requires)
	replace(&out.Generation, t.Generation)
	replace(&out.Resources.CPU, t.Resources.CPU)
	replace(&out.Resources.MemoryMB, t.Resources.MemoryMB)
	replace(&out.Resources.DiskMB, t.Resources.DiskMB)
	replace(&out.Resources.GPU, t.Resources.GPU)
	replace(&out.Resources.Lifetime, t.Resources.Lifetime)
	replace(&out.Resources.IdleTimeout, t.Resources.IdleTimeout)
	replace(&out.Persistent, t.Persistent)
	replace(&out.Workdir, t.Workdir)
	replace(&out.User, t.User)
	replace(&out.Shell, t.Shell)
	replace(&out.Start, t.Start)
	replace(&out.Ready, t.Ready)
	if t.Health != nil {
		if out.Health == nil {
			out.Health = &model.Health{}
		}
		replace(&out.Health.Command, t.Health.Command)
		replace(&out.Health.Interval, t.Health.Interval)
		replace(&out.Health.Timeout, t.Health.Timeout)
		replace(&out.Health.Retries, t.Health.Retries)
	}
	if t.Server != nil {
		if out.Server == nil {
			out.Server = &model.Server{}
		}
		union(&out.Server.Enable, t.Server.Enable)
		union(&out.Server.Disable, t.Server.Disable)
	}
	mergePolicy(&out.Policy, t.Policy)
	join(&out.Commands, t.Commands)
	replace(&out.Interpreter.MaxContexts, t.Interpreter.MaxContexts)
	replace(&out.Interpreter.IdleTimeout, t.Interpreter.IdleTimeout)
	union(&out.Interpreter.Prestart, t.Interpreter.Prestart)
	join(&out.Interpreter.Programs, t.Interpreter.Programs)
	if t.Agent != nil {
		if out.Agent == nil {
			out.Agent = &model.Agent{}
		}
		replace(&out.Agent.Description, t.Agent.Description)
		union(&out.Agent.Triggers, t.Agent.Triggers)
		replace(&out.Agent.Instructions, t.Agent.Instructions)
	}
	return out
}

func mergePolicy(out *model.Policy, t model.Policy) {
	f, c := &out.Files, &out.Commands
	permit(&f.Read, t.Files.Read)
	permit(&f.Write, t.Files.Write)
	permit(&f.Deny, t.Files.Deny)
	replace(&f.FollowLinks, t.Files.FollowLinks)
	replace(&f.MaxBytes, t.Files.MaxBytes)
	replace(&f.MaxEntries, t.Files.MaxEntries)
	rules := func(dst *[]model.CommandRule, more []model.CommandRule) {
		if more != nil && len(more) == 0 {
			*dst = more
			return
		}
		for _, r := range more {
			same := func(o model.CommandRule) bool { return o.Program == r.Program && slices.Equal(o.Args, r.Args) }
			if !slices.ContainsFunc(*dst, same) {
				*dst = append(*dst, r)
			}
		}
	}
	rules(&c.Allow, t.Commands.Allow)
	rules(&c.Deny, t.Commands.Deny)
	replace(&c.Shell, t.Commands.Shell)
	permit(&c.Users, t.Commands.Users)
	permit(&c.Cwd, t.Commands.Cwd)
	permit(&c.EnvDeny, t.Commands.EnvDeny)
	replace(&c.MaxProcesses, t.Commands.MaxProcesses)
	replace(&c.MaxRuntime, t.Commands.MaxRuntime)
	replace(&c.MaxOutput, t.Commands.MaxOutput)
}

func replace[T comparable](dst *T, v T) {
	var zero T
	if v != zero {
		*dst = v
	}
}

func union[T comparable](dst *[]T, more []T) {
	for _, v := range more {
		if !slices.Contains(*dst, v) {
			*dst = append(*dst, v)
		}
	}
}

// permit is union, where an empty list says something.
func permit(dst *[]string, more []string) {
	if more != nil && len(more) == 0 {
		*dst = more
		return
	}
	union(dst, more)
}

func join[V any](dst *map[string]V, more map[string]V) {
	if len(more) == 0 {
		return
	}
	if *dst == nil {
		*dst = map[string]V{}
	}
	maps.Copy(*dst, more)
}

// moveSources moves the sources of copy steps to where the files of the n-th base are.
func moveSources(t *model.Template, n int) *model.Template {
	t = t.Clone()
	for i := range t.Build {
		if c := t.Build[i].Copy; c != nil {
			slash := ""
			if strings.HasSuffix(c.Src, "/") {
				slash = "/"
			}
			c.Src = path.Join(baseFolder, fmt.Sprint(n), c.Src) + slash
		}
	}
	return t
}
