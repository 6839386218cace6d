package main

import (
	"strings"
	"testing"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// What the library says about its options is said with the names that they have
// in a shell.
func TestWords(t *testing.T) {
	for in, want := range map[string]string{
		"CPU -1 is not a number of processors":          "--cpu -1 is not a number of processors",
		"Template and Image exclude each other":         "--template and --image exclude each other",
		`option Volumes: "a/b" is not a name`:           `--volume: "a/b" is not a name`,
		"Template and RootDir exclude each other":       "Template and RootDir exclude each other",
		"Env: \"1\" is not a name of a variable, Image": "--env: \"1\" is not a name of a variable, Image",
		"the template has no name":                      "the template has no name",
	} {
		if got := inFlags(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
	for in, want := range map[string]string{
		"ask for 24h0m0s and move the end later with SetLifetime": "ask for 24h0m0s",
		"leave Volumes empty, or name a provider that has them":   "leave out --volume, or name a provider that has them",
		"leave Scratch empty, so that files are kept in memory":   "leave Scratch empty, so that files are kept in memory",
		string(errdefs.Code("E2021").Suggestion()):                "create it with a longer --lifetime",
		string(errdefs.Code("E3001").Suggestion()):                "raise --timeout, or look for what the command waits for",
		"with systemd, import github.com/agent-sandbox/sandbox-go/providers/local/systemd or start the program with systemd-run X; sandboxd doctor prints": "with systemd, start it with systemd-run X; sandbox doctor prints",
	} {
		if got := inShell(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
	err := error(&errdefs.Error{Code: "E4002", Suggestion: "raise Timeout"})
	if got := hintOf(hinted{err, "another"}); got != "another" {
		t.Errorf("hint %q", got)
	}
	if got := hintOf(err); got != "raise --timeout" {
		t.Errorf("hint %q", got)
	}
}

// The hints of this machine's provider name no package of Go.
func TestFixes(t *testing.T) {
	needSandbox(t)
	a := &app{}
	r := a.examine(t.Context(), false, false)
	if a.client != nil {
		defer a.client.Close()
	}
	for _, c := range r.Checks {
		if strings.Contains(c.Fix, "github.com/") || strings.Contains(c.Fix, "sandboxd") {
			t.Errorf("%s: fix %q", c.Name, c.Fix)
		}
	}
}
