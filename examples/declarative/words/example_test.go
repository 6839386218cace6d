package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/agent-sandbox/sandbox-go/internal/sbtest"
)

func TestMain(m *testing.M) { os.Exit(sbtest.Main(m)) }

func TestMeasure(t *testing.T) {
	sbtest.NeedSandbox(t)
	s, err := Measure(t.Context(), "three small words")
	if err != nil || s.Words != 3 || s.Longest != "three" || !strings.Contains(s.Ran, "uid 1000, host sandbox") {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := Measure(t.Context(), " "); err != ErrNoWords {
		t.Errorf("%v, want ErrNoWords itself", err)
	}
}

// TestReadme keeps the program of the README and this one the same.
func TestReadme(t *testing.T) {
	readme, err := os.ReadFile("../../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile("main.go")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(readme, append([]byte("```go\n"), append(program, "```"...)...)) {
		t.Error("the program in README.md is not examples/declarative/words/main.go")
	}
}
