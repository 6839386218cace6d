package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestGeneratedIsCurrent compares what the sources give with what is committed.
func TestGeneratedIsCurrent(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skipf("no Go tool to run the plugins with: %v", err)
	}
	t.Chdir("../../..")
	var stderr bytes.Buffer
	if code := run([]string{"-check"}, io.Discard, &stderr); code != 0 {
		t.Errorf("exit %d: %s", code, &stderr)
	}
	for _, args := range [][]string{{"-no-such-flag"}, {"argument"}} {
		if code := run(args, io.Discard, io.Discard); code != 2 {
			t.Errorf("%v: exit %d, want 2", args, code)
		}
	}
}

func TestWriteReplacesOnlyWhatChanged(t *testing.T) {
	root := t.TempDir()
	at := func(name string) string { return filepath.Join(root, filepath.FromSlash(name)) }
	files := map[string][]byte{outputDir + "/a/a.pb.go": []byte("a"), outputDir + "/b/b.pb.go": []byte("b")}
	update := func() {
		t.Helper()
		names, err := differing(files, root)
		if err == nil {
			err = write(names, files, root)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	update()
	before, err := os.Stat(at(outputDir + "/a/a.pb.go"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at(outputDir+"/a/notes.txt"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	delete(files, outputDir+"/b/b.pb.go")
	update()
	after, err := os.Stat(at(outputDir + "/a/a.pb.go"))
	if err != nil || !after.ModTime().Equal(before.ModTime()) {
		t.Errorf("an unchanged file was written again: %v", err)
	}
	if _, err := os.Stat(at(outputDir + "/b/b.pb.go")); err == nil {
		t.Error("a generated file without a source was left")
	}
	if _, err := os.Stat(at(outputDir + "/a/notes.txt")); err != nil {
		t.Error("a file that was not generated was removed")
	}
}

func TestBadSource(t *testing.T) {
	dir := t.TempDir()
	if _, err := generate(t.Context(), dir); err == nil {
		t.Error("no sources: got no error")
	}
	if err := os.WriteFile(filepath.Join(dir, "x.proto"), []byte("syntax = \"proto3\";\nmessage {"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := generate(t.Context(), dir); err == nil || !strings.Contains(err.Error(), "x.proto:2") {
		t.Errorf("got %v, want a position", err)
	}
}
