// Package directive reads the //sandbox: lines of Go source: it is the
// compiler of a language that has none. It tells directives from prose and
// from slips of the pen, scans their options with the position of every key
// and value, and turns them into typed option structs.
//
// Start with [Classify] for a comment and [Decode] for the lines of one
// declaration. The package knows nothing about packages or types; where a
// directive may stand is decided by package gen.
package directive

import (
	"go/ast"
	"go/token"
	"slices"
	"strings"
)

// A Kind is the word after "//sandbox:".
type Kind string

// The kinds of directives.
const (
	Func    Kind = "func"    // a function that runs in a sandbox
	Class   Kind = "class"   // a type whose methods run in a sandbox that keeps their state
	Method  Kind = "method"  // a method of a class that runs in a sandbox
	Enter   Kind = "enter"   // a method of a class that runs when a sandbox has it
	Exit    Kind = "exit"    // a method of a class that runs when a sandbox gives it up
	Package Kind = "package" // defaults for the functions and classes of a package
	With    Kind = "with"    // more options for the directive above
)

// kinds lists every kind of the language in the order messages show them.
var kinds = []string{"func", "class", "method", "enter", "exit", "package", "with"}

// notOffered are names of things that need a service which stays up when the
// program is gone. They are refused as such, so that nobody looks for a typing
// mistake.
var notOffered = []string{"schedule", "cron", "web", "endpoint", "durable"}

// A Line is one directive.
type Line struct {
	Kind    Kind
	Pos     token.Pos // of the "//"
	KindEnd token.Pos // just after the kind
	End     token.Pos // just after the last option
	Args    []Arg
}

// An Arg is one option as it was written.
type Arg struct {
	Key      string
	HasValue bool
	Value    string    // decoded; "" when there is none
	Elements []Element // Value cut at its commas; never empty when HasValue
	Pos, End token.Pos // of the whole option
	ValuePos token.Pos // of the value, at its quote if it has one
}

// An Element is a part of a list value.
type Element struct {
	Text string
	Pos  token.Pos
}

// A Problem is a fault in a directive, with the code of docs/directives.md.
type Problem struct {
	Pos, End token.Pos
	Code     string
	Message  string
	Fix      *Fix // nil: nothing obvious repairs it
}

// A Fix replaces the text from Pos to End.
type Fix struct {
	Pos, End token.Pos
	Text     string
}

// Classify looks at one comment, which may be of either form. It returns the
// directive it holds, or the problems that keep it from being one, or neither:
// then it is prose. A line with problems in its options is returned together
// with them, so that a caller can still say where it stands.
func Classify(c *ast.Comment) (*Line, []Problem) {
	if strings.HasPrefix(c.Text, "/*") {
		return nil, classifyBlock(c)
	}
	d, ok := ast.ParseDirective(c.Slash, c.Text)
	if !ok || d.Tool != "sandbox" {
		return nil, nearMiss(c)
	}
	kindPos := c.Slash + token.Pos(len("//sandbox:"))
	line := &Line{Kind: Kind(d.Name), Pos: c.Slash, KindEnd: kindPos + token.Pos(len(d.Name)), End: d.End()}
	if p := checkKind(line, kindPos); p != nil {
		return nil, []Problem{*p}
	}
	var problems []Problem
	line.Args, problems = scan(d.Args, d.ArgsPos)
	return line, problems
}

// checkKind returns the problem with a kind that is not one of the language.
func checkKind(l *Line, pos token.Pos) *Problem {
	name := string(l.Kind)
	p := &Problem{Pos: l.Pos, End: l.KindEnd, Code: "G001"}
	switch {
	case slices.Contains(kinds, name):
		return nil
	case slices.Contains(notOffered, name):
		p.Message = "//sandbox:" + name + " is not supported"
	case slices.Contains(kinds, strings.ToLower(name)):
		return spelling(l.Pos, l.KindEnd, strings.ToLower(name))
	default:
		near := nearest(name, kinds)
		if near == "" {
			p.Message = "unknown directive //sandbox:" + show(name) + "; kinds are " + strings.Join(kinds, ", ")
			break
		}
		p.Message = "unknown directive //sandbox:" + show(name) + "; did you mean //sandbox:" + near + "?"
		p.Fix = &Fix{Pos: pos, End: l.KindEnd, Text: near}
	}
	return p
}

// String prints the line in its canonical form. Classify of what it returns
// gives the same line but for positions.
func (l *Line) String() string {
	var b strings.Builder
	b.WriteString("//sandbox:" + string(l.Kind))
	for _, a := range l.Args {
		b.WriteString(" " + a.Key)
		if a.HasValue {
			b.WriteString("=" + a.printValue())
		}
	}
	return b.String()
}
