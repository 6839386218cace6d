package command

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// DefaultTimeout is the limit of a command that says nothing about it.
const DefaultTimeout = 60 * time.Second

// NoTimeout is the Timeout of a command that may run for ever.
const NoTimeout time.Duration = -1

// Info describes a command to those who run it.
type Info struct {
	Name        string `json:"name"`
	Description string `json:"description"`
	Args        []Arg  `json:"args"`
}

// Registry holds commands by name. The zero Registry is empty and can be used.
// It is safe for concurrent use.
type Registry struct {
	mu       sync.Mutex // guards the following
	commands map[string]*entry
	frozen   bool
}

// entry is one command: either call or program is set.
type entry struct {
	info    Info
	hidden  bool
	timeout time.Duration // zero: the default; negative: none
	call    func(ctx context.Context, values map[string]any) (any, error)
	program *program
}

func (e *entry) limit() time.Duration {
	if e.timeout == 0 {
		return DefaultTimeout
	}
	return max(e.timeout, 0)
}

// NewRegistry returns an empty registry.
func NewRegistry() *Registry { return &Registry{} }

// names are those that need no escaping in an address.
var names = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$`)
})

const opRegister = "register command"

// add puts e in, unless its name is malformed or taken, or the registry frozen.
func (r *Registry) add(e *entry) error {
	if !names().MatchString(e.info.Name) {
		return errdefs.New("E3011", opRegister, fmt.Sprintf("the name %q is not of 1 to 64 letters, digits, '_', '-' and '.', or begins with one of the last two", e.info.Name))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.frozen:
		return errdefs.New("E3011", opRegister, "command "+e.info.Name+" comes too late: the server has started")
	case r.commands[e.info.Name] != nil:
		return errdefs.New("E3011", opRegister, "there are two commands "+e.info.Name)
	case r.commands == nil:
		r.commands = map[string]*entry{}
	}
	r.commands[e.info.Name] = e
	return nil
}

// Freeze ends the time in which commands can be registered.
func (r *Registry) Freeze() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.frozen = true
}

// With freezes r and returns a frozen registry that holds in addition what t
// declares. Either may be nil. A declaration that is malformed, or has the name of
// a registered function, is E2004.
func (r *Registry) With(t *model.Template) (*Registry, error) {
	out := NewRegistry()
	if r != nil {
		r.Freeze()
		out.commands = maps.Clone(r.commands)
	}
	if t != nil {
		for _, name := range slices.Sorted(maps.Keys(t.Commands)) {
			e, err := compile(name, t.Commands[name], t.Shell)
			if err == nil {
				err = out.add(e)
			}
			if err != nil {
				return nil, errdefs.Wrap("E2004", "read template "+t.Name, "command "+name, err)
			}
		}
	}
	out.Freeze()
	return out, nil
}

// List describes the commands that are not hidden, by name.
func (r *Registry) List() []Info {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := []Info{}
	for _, name := range slices.Sorted(maps.Keys(r.commands)) {
		if e := r.commands[name]; !e.hidden {
			out = append(out, e.info)
		}
	}
	return out
}

// find returns the command called name, E3005 where there is none.
func (r *Registry) find(name string) (*entry, error) {
	r.mu.Lock()
	e := r.commands[name]
	r.mu.Unlock()
	if e != nil {
		return e, nil
	}
	var have []string
	for _, c := range r.List() {
		have = append(have, c.Name)
	}
	text := "there are none"
	if len(have) > 0 {
		text = "there are " + strings.Join(have, ", ")
	}
	return nil, errdefs.New("E3005", "", fmt.Sprintf("no command %q; %s", name, text))
}
