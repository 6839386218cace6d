package templates

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// Problem is one mistake in a template.
type Problem struct {
	File    string // as the reader was given it; a Go file for a template made in Go
	Line    int    // from 1; zero: the whole file
	Col     int    // from 1, in characters; zero: the whole line
	Message string // lower case, no full stop
	Hint    string // what to write instead; may be empty
}

// String has the form "template.yaml:3:5: message; hint".
func (p Problem) String() string {
	var b strings.Builder
	if p.File != "" {
		b.WriteString(p.File)
		if p.Line > 0 {
			fmt.Fprintf(&b, ":%d", p.Line)
			if p.Col > 0 {
				fmt.Fprintf(&b, ":%d", p.Col)
			}
		}
		b.WriteString(": ")
	}
	b.WriteString(p.Message)
	if p.Hint != "" {
		b.WriteString("; ")
		b.WriteString(p.Hint)
	}
	return b.String()
}

// Invalid says what is wrong with a template: everything that is, in the order of
// the file. It wraps an [*errdefs.Error] with code E2004; E2007 for a catalog.
type Invalid struct {
	Problems []Problem // at least one
	err      *errdefs.Error
}

// Error has one line for each problem.
func (e *Invalid) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.String()
	}
	return string(e.err.Code) + " " + e.err.Op + ": " + strings.Join(lines, "\n")
}

// Unwrap returns the coded error, whose message is the first problem.
func (e *Invalid) Unwrap() error { return e.err }

// invalid makes the error of problems; nil when there are none.
func invalid(problems []Problem) error { return invalidAs("E2004", "read template", problems) }

func invalidAs(code errdefs.Code, op string, problems []Problem) error {
	if len(problems) == 0 {
		return nil
	}
	problems = slices.Clone(problems)
	slices.SortStableFunc(problems, func(a, b Problem) int {
		return cmp.Or(strings.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Col, b.Col))
	})
	problems = slices.Compact(problems)
	message := problems[0].String()
	if n := len(problems); n > 1 {
		message += fmt.Sprintf(" (and %d more)", n-1)
	}
	return &Invalid{Problems: problems, err: errdefs.New(code, op, message)}
}

// nearest is the word of known that s was probably meant to be; "" when none is
// near.
func nearest(s string, known []string) string {
	for _, k := range known {
		if len(s) > 2 && (strings.HasPrefix(k, s+"_") || strings.HasSuffix(k, "_"+s)) {
			return k
		}
	}
	best, limit := "", len([]rune(s))/3+1
	for _, k := range known {
		if d := distance(strings.ToLower(s), k); d <= limit && (best == "" || d < limit) {
			best, limit = k, d
		}
	}
	return best
}

// distance is how many letters must be put in, taken out, changed or swapped
// with their neighbour to get from a to b.
func distance(a, b string) int {
	x, y := []rune(a), []rune(b)
	if len(x) > 64 || len(y) > 64 {
		return max(len(x), len(y))
	}
	rows := make([][]int, len(x)+1)
	for i := range rows {
		rows[i] = make([]int, len(y)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(x); i++ {
		for j := 1; j <= len(y); j++ {
			d := rows[i-1][j-1]
			if x[i-1] != y[j-1] {
				d++
			}
			d = min(d, rows[i-1][j]+1, rows[i][j-1]+1)
			if i > 1 && j > 1 && x[i-1] == y[j-2] && x[i-2] == y[j-1] {
				d = min(d, rows[i-2][j-2]+1)
			}
			rows[i][j] = d
		}
	}
	return rows[len(x)][len(y)]
}

// didYouMean is the hint for an unknown word.
func didYouMean(s string, known []string) string {
	if n := nearest(s, known); n != "" {
		return fmt.Sprintf("did you mean %q?", n)
	}
	return ""
}
