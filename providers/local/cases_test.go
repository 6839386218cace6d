//go:build linux

package local

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// casesPage lists the attacks and abuses that the tests try.
const casesPage = "../../docs/isolation-tests.md"

var caseRow = regexp.MustCompile(`(?m)^\| ([0-9]+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$`)

// TestCases keeps the page true: it has every case once, and each test that it
// names is there.
func TestCases(t *testing.T) {
	page, err := os.ReadFile(casesPage)
	if os.IsNotExist(err) {
		t.Skip("the documentation is not here")
	}
	if err != nil {
		t.Fatal(err)
	}
	rows := caseRow.FindAllSubmatch(page, -1)
	if len(rows) != 45 {
		t.Errorf("%d cases, want 45", len(rows))
	}
	for i, row := range rows {
		if n, _ := strconv.Atoi(string(row[1])); n != i+1 {
			t.Errorf("row %d is case %d", i+1, n)
		}
		names := regexp.MustCompile("`([^`]+)`").FindAllSubmatch(row[3], -1)
		if len(names) == 0 {
			t.Errorf("case %d has no test", i+1)
		}
		for _, name := range names {
			checkTestIsThere(t, i+1, string(name[1]))
		}
	}
	for name := range attacks {
		if !bytes.Contains(page, []byte("/"+strings.ReplaceAll(name, " ", "_")+"`")) && !helpers[name] {
			t.Errorf("no case names the attack %q", name)
		}
	}
}

// helpers are attacks that others start, or that are part of a test by itself.
var helpers = map[string]bool{
	"int80": true, "x32": true, "code of 32 bits": true, "id": true, "end": true, "orphan": true, "daemon": true, "thread bomb": true,
	"daemons": true, "exchange": true, "descriptors out": true, "flood": true, "fill": true, "disk": true, "signals": true,
}

// checkTestIsThere looks for a test by a name like runtime/server.TestX or
// TestX/part; without a package it is of this one.
func checkTestIsThere(t *testing.T, n int, name string) {
	t.Helper()
	dir := "."
	if pkg, test, ok := strings.Cut(name, "."); ok {
		dir, name = filepath.Join("../..", pkg), test
	}
	name, part, _ := strings.Cut(name, "/")
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil || len(files) == 0 {
		t.Errorf("case %d: no tests in %s, %v", n, dir, err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(b, []byte("\nfunc "+name+"(t *testing.T)")) {
			if attack := strings.ReplaceAll(part, "_", " "); part != "" && attacks[attack] == nil {
				t.Errorf("case %d: no attack %q", n, attack)
			}
			return
		}
	}
	t.Errorf("case %d: no %s in %s", n, name, dir)
}
