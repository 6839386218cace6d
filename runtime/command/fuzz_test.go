package command

import (
	"slices"
	"strings"
	"testing"

	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// FuzzWords: whatever line and value are, the value changes neither the number of
// words nor anything but the words that ask for it, where it stands whole.
func FuzzWords(f *testing.F) {
	for _, line := range []string{"echo {a}", `x '{a}' "b{a}c" \{a}`, "{a}", `a "`, "a\\", "é {a}{a}", "p {b} {{a}} ${a}"} {
		for _, v := range hostile {
			f.Add(line, v)
		}
	}
	f.Fuzz(func(t *testing.T, line, value string) {
		e, err := compile("c", model.Command{Run: line, Args: textArgs("a")}, "")
		if err != nil {
			return
		}
		const other = "\x01other\x01"
		if strings.Contains(line, "\x01") {
			return
		}
		want := e.program.arguments(map[string]any{"a": other})
		for i := range want {
			want[i] = strings.ReplaceAll(want[i], other, value)
		}
		if got := e.program.arguments(map[string]any{"a": value}); !slices.Equal(got, want) {
			t.Errorf("%q with %q: %q, want %q", line, value, got, want)
		}
	})
}
