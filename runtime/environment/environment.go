// Package environment holds the variables that everything started in a sandbox
// gets, beside what a single command brings. There is one rule, for every way of
// starting code: what is nearer to the command wins. From the far end: defaults,
// the template, the sandbox, the call or function, the command. This package
// knows the template and the sandbox; a command's own variables come with its
// start.
package environment

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Options are the levels that are known when a sandbox starts. Maps are copied.
type Options struct {
	Template map[string]string
	Sandbox  map[string]string // wins over Template
	// Secrets are names that are never listed, beside those that [LooksSecret].
	Secrets []string
	// Refused reports whether the policy keeps requests from setting a variable; nil:
	// none. It may be called concurrently.
	Refused func(name string) bool
}

// Environment is the variables of a sandbox. It is safe for concurrent use. A
// nil Environment has none and takes none.
type Environment struct {
	secrets map[string]bool
	refused func(name string) bool // nil: none

	mu  sync.Mutex                        // held by whoever changes all
	all atomic.Pointer[map[string]string] // never changed, only replaced
}

// New returns the variables of o.
func New(o Options) *Environment {
	e := &Environment{secrets: map[string]bool{}, refused: o.Refused}
	for _, name := range o.Secrets {
		e.secrets[name] = true
	}
	all := maps.Clone(o.Template)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, o.Sandbox)
	e.all.Store(&all)
	return e
}

// AddTo sets the variables in env, over what is there.
func (e *Environment) AddTo(env map[string]string) {
	if e != nil {
		maps.Copy(env, *e.all.Load())
	}
}

// Listed returns a copy of the variables that may be shown: all but secrets.
func (e *Environment) Listed() map[string]string {
	out := map[string]string{}
	e.AddTo(out)
	maps.DeleteFunc(out, func(name, _ string) bool { return e.Secret(name) })
	return out
}

// Secret reports whether the value of a variable must not be shown.
func (e *Environment) Secret(name string) bool {
	return LooksSecret(name) || e != nil && e.secrets[name]
}

// Set sets variables, at the level of the sandbox, for what is started from now
// on; what runs keeps what it has. It returns the names, sorted. A name that is
// protected, see [Protected], or refused by the policy is a [*ProtectedError]; one that is malformed, or a
// value that holds a NUL byte, another error. Then nothing is set.
func (e *Environment) Set(vars map[string]string) ([]string, error) {
	names := slices.Sorted(maps.Keys(vars))
	for _, name := range names {
		switch {
		case name == "" || strings.ContainsAny(name, "=\x00"):
			return nil, fmt.Errorf("variable %q is malformed", name)
		case strings.ContainsRune(vars[name], 0):
			return nil, fmt.Errorf("the value of variable %s holds a NUL byte", name)
		case e == nil || Protected(name) || e.refused != nil && e.refused(name):
			return nil, &ProtectedError{name}
		}
	}
	if len(names) == 0 {
		return nil, nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	all := maps.Clone(*e.all.Load())
	maps.Copy(all, vars)
	e.all.Store(&all)
	return names, nil
}

// ProtectedError says that a variable cannot be set in a running sandbox.
type ProtectedError struct{ Name string }

// Error names the variable.
func (e *ProtectedError) Error() string { return "variable " + e.Name + " is protected" }

// Protected reports whether a variable cannot be set in a running sandbox: those
// that say who and where a command is, and our own.
func Protected(name string) bool {
	switch name {
	case "PATH", "HOME", "USER", "LOGNAME", "SHELL", "PWD":
		return true
	}
	return strings.HasPrefix(name, "SANDBOX_") || strings.HasPrefix(name, "E2B_")
}

// secretParts are what the names of secrets hold.
var secretParts = []string{"TOKEN", "SECRET", "KEY", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL"}

// LooksSecret reports whether the name of a variable is one that secrets have.
func LooksSecret(name string) bool {
	upper := strings.ToUpper(name)
	return slices.ContainsFunc(secretParts, func(part string) bool { return strings.Contains(upper, part) })
}
