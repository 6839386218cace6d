package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/agent-sandbox/sandbox-go/providers"
)

func TestDoctor(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	var out, errs bytes.Buffer
	status := run([]string{"doctor", "--json", "--state-dir", state}, &out, &errs)
	var found []providers.Finding
	if err := json.Unmarshal(out.Bytes(), &found); err != nil || len(found) < 3 {
		t.Fatalf("%v: %s%s", err, &out, &errs)
	}
	failed := false
	for _, f := range found {
		failed = failed || f.Level == providers.FindingFailed
	}
	if want := map[bool]int{false: 0, true: 1}[failed]; status != want {
		t.Errorf("status %d, want %d", status, want)
	}
	// A directory that others can write is never used.
	if err := os.Mkdir(state, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(state, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(state, "local"), 0o700); err != nil {
		t.Fatal(err)
	}
	wantStatus := run([]string{"doctor", "--state-dir", state}, &out, &errs)
	if wantStatus != 1 || !bytes.Contains(out.Bytes(), []byte("failed    state")) {
		t.Errorf("status %d: %s", wantStatus, &out)
	}
	wantRun(t, 2, "nothing is expected", "doctor", "now")
	wantRun(t, 0, "sandboxd doctor [--json]", "doctor", "-h")
}

func TestFindingsText(t *testing.T) {
	got := findingsText([]providers.Finding{
		{What: "isolation", Level: providers.FindingFailed, Detail: "refused", Remedy: "one\ntwo"},
		{What: "disk", Level: providers.FindingOK, Detail: "9 MiB"},
	})
	want := "failed    isolation   refused\n          fix: one\n          two\nok        disk        9 MiB\n"
	if got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
