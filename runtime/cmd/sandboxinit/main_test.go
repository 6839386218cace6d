package main

import (
	"strings"
	"testing"
)

// Started by hand it says what it is for and runs nothing.
func TestRun(t *testing.T) {
	var out, errs strings.Builder
	if code := run(nil, &out, &errs); code != 2 || !strings.Contains(errs.String(), "usage: ") || out.Len() > 0 {
		t.Errorf("status %d, %q, %q", code, out.String(), errs.String())
	}
}

// A program whose version is not known, as tests are, installs nothing.
func TestInstall(t *testing.T) {
	t.Setenv("SANDBOX_CACHE_DIR", t.TempDir())
	var out, errs strings.Builder
	if code := run([]string{"install"}, &out, &errs); code != 1 || !strings.Contains(errs.String(), "version") || out.Len() > 0 {
		t.Errorf("status %d, %q, %q", code, out.String(), errs.String())
	}
}
