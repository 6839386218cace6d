package main

import (
	"strings"
	"testing"
)

// Started by hand it says what it is for and runs nothing.
func TestRun(t *testing.T) {
	var out strings.Builder
	if code := run(nil, &out); code != 2 || !strings.Contains(out.String(), "usage: ") {
		t.Errorf("status %d, %q", code, out.String())
	}
}
