package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agent-sandbox/sandbox-go/internal/sbtest"
)

func TestMain(m *testing.M) { os.Exit(sbtest.Main(m)) }

// files writes n files of many lines, each with one that is found.
func files(t *testing.T, n int) []string {
	dir := t.TempDir()
	var names []string
	for i := range n {
		name := filepath.Join(dir, fmt.Sprintf("log%02d.txt", i))
		text := strings.Repeat("nothing here\n", 1000) + fmt.Sprintf("needle %d\n", i) + strings.Repeat("nor here\n", 1000)
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}
	return names
}

func TestGrep(t *testing.T) {
	sbtest.NeedSandbox(t)
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), append([]string{`needle \d+`}, files(t, 30)...), &stdout, &stderr)
	lines := strings.Split(strings.TrimSpace(stdout.String()), "\n")
	if code != 0 || len(lines) != 30 || lines[7] != "log07.txt:1001: needle 7" {
		t.Errorf("exit %d, %d lines, %q; %s", code, len(lines), lines[0], stderr.String())
	}
}

func TestGrepFails(t *testing.T) {
	sbtest.NeedSandbox(t)
	name := files(t, 1)[0]
	for _, c := range []struct {
		args   []string
		code   int
		stderr string
	}{
		{nil, 2, "usage: grep"},
		{[]string{"haystack", name}, 1, ""},
		{[]string{"(", name}, 2, "missing closing )"},
		{[]string{"x", name, filepath.Join(t.TempDir(), "missing.txt")}, 2, "missing.txt: no such file"},
	} {
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), c.args, &stdout, &stderr); code != c.code || !strings.Contains(stderr.String(), c.stderr) || stdout.Len() > 0 {
			t.Errorf("%q: exit %d, %q, %q", c.args, code, stdout.String(), stderr.String())
		}
	}
}

// Leaving the loop is no error, and the next search works.
func TestLeft(t *testing.T) {
	sbtest.NeedSandbox(t)
	names := files(t, 3)
	for range 3 {
		for m, err := range Search(t.Context(), "here", names...) {
			if err != nil || m.Line != 1 {
				t.Errorf("got %+v, %v", m, err)
			}
			break
		}
	}
}

type full struct{}

var errFull = errors.New("full")

func (full) Write([]byte) (int, error) { return 0, errFull }

func TestOutputFails(t *testing.T) {
	sbtest.NeedSandbox(t)
	if code := run(t.Context(), append([]string{"here"}, files(t, 2)...), full{}, &bytes.Buffer{}); code != 2 {
		t.Errorf("exit %d", code)
	}
}
