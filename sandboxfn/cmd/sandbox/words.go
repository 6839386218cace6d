package main

import (
	"errors"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
	"github.com/agent-sandbox/sandbox-go/templates"
)

// flagNames are the options of this command that stand for those of the library.
var flagNames = map[string]string{
	"Template": "--template", "Image": "--image", "Snapshot": "--snapshot", "Lifetime": "--lifetime", "CPU": "--cpu",
	"Memory": "--memory", "Disk": "--disk", "Network": "--network", "Env": "--env", "Metadata": "--metadata", "Volumes": "--volume",
	"User": "--user", "WorkDir": "--workdir", "Isolation": "--isolation", "Require": "--require", "Timeout": "--timeout",
}

// firstWords are the names that what is wrong with options begins with.
var firstWords = regexp.MustCompile(`^(option )?[A-Z][A-Za-z]+( and [A-Z][A-Za-z]+)*\b`)

// inFlags is what is wrong with options, with the names that they have here.
func inFlags(message string) string {
	names := firstWords.FindString(message)
	var out []string
	for name := range strings.SplitSeq(strings.TrimPrefix(names, "option "), " and ") {
		flag, ok := flagNames[name]
		if !ok {
			return message
		}
		out = append(out, flag)
	}
	return strings.Join(out, " and ") + message[len(names):]
}

// goWords are parts of hints that only those who write Go can follow.
var goWords = strings.NewReplacer(
	"raise Timeout", "raise --timeout",
	"with a longer Lifetime", "with a longer --lifetime",
	", or move the end with SetLifetime", "", " and move the end later with SetLifetime", "",
	"import github.com/agent-sandbox/sandbox-go/providers/local/systemd or start the program with", "start it with",
	"sandboxd doctor", "sandbox doctor",
)

var leaveEmpty = regexp.MustCompile(`\bleave ([A-Z][A-Za-z]+) empty`)

// inShell is a hint of the library for who uses it from a shell.
func inShell(hint string) string {
	hint = leaveEmpty.ReplaceAllStringFunc(hint, func(s string) string {
		if flag := flagNames[strings.Fields(s)[1]]; flag != "" {
			return "leave out " + flag
		}
		return s
	})
	return goWords.Replace(hint)
}

// hinted is an error with a hint in place of its own.
type hinted struct {
	error
	hint string
}

func (h hinted) Unwrap() error { return h.error }

// hintOf is what can be done about an error.
func hintOf(err error) string {
	if h, ok := errors.AsType[hinted](err); ok {
		return h.hint
	}
	if e, ok := errors.AsType[*sandboxfn.Error](err); ok {
		return inShell(e.Hint())
	}
	return ""
}

// withBuild adds to an error of a creation how the template is built, where one of
// that name can be found.
func (a *app) withBuild(name string, err error) error {
	if sandboxfn.CodeOf(err) != "E2001" || a.client.Provider() != "local" {
		return err
	}
	switch {
	case slices.Contains(templates.Builtin(), name):
		return hinted{err, "build it first: sandbox template build " + name}
	case name != "" && filepath.IsLocal(name) && templates.InFolder(name):
		return hinted{err, "build it first: sandbox template build ./" + name}
	}
	return err
}
