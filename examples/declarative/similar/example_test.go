package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agent-sandbox/sandbox-go/internal/sbtest"
)

func TestMain(m *testing.M) { os.Exit(sbtest.Main(m)) }

func TestSimilar(t *testing.T) {
	sbtest.NeedSandbox(t)
	blank := filepath.Join(t.TempDir(), "blank.txt")
	if err := os.WriteFile(blank, []byte("--\n\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args           []string
		code           int
		stdout, stderr string
	}{
		{[]string{"proverbs.txt", "light work with many hands"}, 0, "Many hands make light work.", ""},
		{[]string{"proverbs.txt", "Rome in a day"}, 0, "Rome was not built in a day.", ""},
		{[]string{"proverbs.txt", "?!"}, 1, "", "similar: question: no words"},
		{[]string{blank, "anything"}, 1, "", "blank.txt: no words"},
		{[]string{"missing.txt", "anything"}, 1, "", "missing.txt: no such file"},
		{nil, 2, "", "usage: similar"},
	} {
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), c.args, &stdout, &stderr)
		if code != c.code || !strings.Contains(stdout.String(), c.stdout) || !strings.Contains(stderr.String(), c.stderr) {
			t.Errorf("%q: exit %d, %q, %q", c.args, code, stdout.String(), stderr.String())
		}
	}
}

// The sandbox and this process agree, and each text has its own error.
func TestEmbed(t *testing.T) {
	sbtest.NeedSandbox(t)
	got, err := EmbedFunc.Collect(t.Context(), []string{"one", "two words", "one"})
	want, _ := vector("one")
	if err != nil || got[0] != want || got[2] != want || got[1] == want {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := Embed(t.Context(), "…"); !errors.Is(err, ErrNoWords) {
		t.Errorf("got %v", err)
	}
}
