package envelope

import (
	"fmt"
	"strings"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// fault is what went wrong at one place of a value. The places are added from
// the inside out, while the recursion unwinds.
type fault struct {
	code  errdefs.Code
	text  string
	cause error
	path  []string // innermost first
}

func (f *fault) Error() string { return f.text }

func malformed(format string, args ...any) error {
	return &fault{code: "E9005", text: fmt.Sprintf(format, args...)}
}

func unencodable(format string, args ...any) error {
	return &fault{code: "E9002", text: fmt.Sprintf(format, args...)}
}

// at adds a place: ".Field", "[3]".
func at(err error, place string) error {
	if f, ok := err.(*fault); ok {
		f.path = append(f.path, place)
	}
	return err
}

// maxPath is how many places of a path an error shows.
const maxPath = 10

// coded makes err, of a value that errors call root, an error with a code.
func coded(err error, op, root string) error {
	f, ok := err.(*fault)
	if !ok {
		return err
	}
	var b strings.Builder
	b.WriteString(root)
	for i := range f.path {
		if i == maxPath {
			b.WriteString("…")
			break
		}
		place := f.path[len(f.path)-1-i]
		if b.Len() == 0 {
			place = strings.TrimPrefix(place, ".")
		}
		b.WriteString(place)
	}
	text := f.text
	if b.Len() > 0 {
		text = b.String() + ": " + text
	}
	return errdefs.Wrap(f.code, op, text, f.cause)
}
