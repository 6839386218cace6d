package gen

import (
	"cmp"
	"encoding/json"
	"fmt"
	"go/token"
	"path/filepath"
	"slices"
	"strings"

	"github.com/agent-sandbox/sandbox-go/gen/directive"
)

// A Diagnostic is one fault in the user's source.
type Diagnostic struct {
	Pos, End token.Position // End is the zero Position when only a point is known
	Code     string         // Gnnn, documented in docs/directives.md
	Message  string
	Fix      *Edit // nil: nothing obvious repairs it
}

// An Edit replaces the text from Pos to End.
type Edit struct {
	Pos, End token.Position
	Text     string
}

// String prints the diagnostic as "path:line:col: message (Gnnn)".
func (d Diagnostic) String() string {
	if d.Pos.Filename == "" {
		return fmt.Sprintf("%s (%s)", d.Message, d.Code)
	}
	return fmt.Sprintf("%s: %s (%s)", d.Pos, d.Message, d.Code)
}

// MarshalJSON gives the form of sandboxgen -json: pos, end, code, message and,
// where there is one, fix. Positions are path:line:col.
func (d Diagnostic) MarshalJSON() ([]byte, error) {
	type fix struct {
		Pos  string `json:"pos"`
		End  string `json:"end"`
		Text string `json:"text"`
	}
	v := struct {
		Pos     string `json:"pos"`
		End     string `json:"end"`
		Code    string `json:"code"`
		Message string `json:"message"`
		Fix     *fix   `json:"fix,omitempty"`
	}{Pos: d.Pos.String(), End: d.End.String(), Code: d.Code, Message: d.Message}
	if !d.End.IsValid() {
		v.End = v.Pos
	}
	if d.Fix != nil {
		v.Fix = &fix{Pos: d.Fix.Pos.String(), End: d.Fix.End.String(), Text: d.Fix.Text}
	}
	return json.Marshal(v)
}

// reporter gathers the diagnostics of a run.
type reporter struct {
	fset *token.FileSet
	dir  string // absolute; paths are shown relative to it
	list []Diagnostic
}

// position is where pos is in the file on disk; //line comments, which name
// what the file was made from, do not count.
func (r *reporter) position(pos token.Pos) token.Position {
	if !pos.IsValid() {
		return token.Position{}
	}
	p := r.fset.PositionFor(pos, false)
	p.Filename = r.relative(p.Filename)
	return p
}

// relative shortens a path for people, as the go command does.
func (r *reporter) relative(path string) string {
	if rel, err := filepath.Rel(r.dir, path); err == nil && len(rel) < len(path) {
		return rel
	}
	return path
}

// at prints a position for use inside a message.
func (r *reporter) at(pos token.Pos) string { return r.position(pos).String() }

func (r *reporter) add(pos, end token.Pos, code, format string, args ...any) {
	r.list = append(r.list, Diagnostic{
		Pos: r.position(pos), End: r.position(end), Code: code, Message: fmt.Sprintf(format, args...),
	})
}

// add2 is add for positions that are already known.
func (r *reporter) add2(pos, end token.Position, code, message string) {
	r.list = append(r.list, Diagnostic{Pos: pos, End: end, Code: code, Message: message})
}

// addProblems takes over what package directive found.
func (r *reporter) addProblems(ps []directive.Problem) {
	for _, p := range ps {
		d := Diagnostic{Pos: r.position(p.Pos), End: r.position(p.End), Code: p.Code, Message: p.Message}
		if p.Fix != nil {
			d.Fix = &Edit{Pos: r.position(p.Fix.Pos), End: r.position(p.Fix.End), Text: p.Fix.Text}
		}
		r.list = append(r.list, d)
	}
}

// sorted returns the diagnostics by file and position, each once.
func (r *reporter) sorted() []Diagnostic {
	list := slices.Clone(r.list)
	slices.SortStableFunc(list, func(a, b Diagnostic) int {
		return cmp.Or(
			strings.Compare(a.Pos.Filename, b.Pos.Filename),
			cmp.Compare(a.Pos.Line, b.Pos.Line),
			cmp.Compare(a.Pos.Column, b.Pos.Column),
			strings.Compare(a.Code, b.Code),
			strings.Compare(a.Message, b.Message),
		)
	})
	return slices.CompactFunc(list, func(a, b Diagnostic) bool {
		return a.Pos == b.Pos && a.Code == b.Code && a.Message == b.Message
	})
}

// show prints text from the source: names as they are, the rest quoted.
func show(s string) string {
	if token.IsIdentifier(s) {
		return s
	}
	return fmt.Sprintf("%q", s)
}
