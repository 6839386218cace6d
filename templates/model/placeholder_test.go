package model

import (
	"slices"
	"testing"
)

func TestPlaceholders(t *testing.T) {
	for line, want := range map[string][]string{
		"":                      nil,
		"grep {pattern} {file}": {"{pattern}", "{file}"},
		"--n={n}{n}":            {"{n}", "{n}"},
		"{_a-1}":                {"{_a-1}"},
		"${HOME}/{x}":           {"{x}"},
		"awk '{print $1}'":      nil,
		"{1} {} {a b} {a":       nil,
		"{{a}}":                 {"{a}"},
		"{ä}":                   nil,
		"{{{":                   nil,
	} {
		var got []string
		for _, p := range Placeholders(line) {
			got = append(got, line[p.Start:p.End])
			if line[p.Start:p.End] != "{"+p.Name+"}" {
				t.Errorf("%q: placeholder %q at %q", line, p.Name, line[p.Start:p.End])
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("Placeholders(%q) = %q, want %q", line, got, want)
		}
	}
	for s, want := range map[string]bool{"a": true, "_": true, "a-1": true, "": false, "1": false, "-a": false, "a b": false} {
		if IsName(s) != want {
			t.Errorf("IsName(%q) = %v", s, !want)
		}
	}
}
