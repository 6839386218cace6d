//go:build linux

package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

func TestPage(t *testing.T) {
	t.Chdir("../..")
	var stderr bytes.Buffer
	if code := run([]string{"-check"}, &stderr); code != 0 {
		t.Fatalf("exit %d: %s", code, stderr.String())
	}
	if page, _ := os.ReadFile(page); !strings.Contains(string(page), "`POST /shell/stream`") {
		t.Error("the page has no POST /shell/stream")
	}
	if code := run([]string{"extra"}, &stderr); code != 2 {
		t.Errorf("wrong use exits %d, want 2", code)
	}
}
