package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// keyWorld has a profile whose key is what a shell script writes.
func keyWorld(t *testing.T, script string) Options {
	t.Helper()
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return world{files: map[string]string{credsFile: "[default]\napi_key_command = ['" + file + "', 'arg with $HOME']"}}.build(t)
}

func keyOf(o Options) (string, error) {
	c, err := Load(o)
	if err != nil {
		return "", err
	}
	s, err := c.ProviderSettings("e2b")
	return s["api_key"], err
}

func TestCommand(t *testing.T) {
	count := filepath.Join(t.TempDir(), "count")
	o := keyWorld(t, `echo x >> `+count+`; [ "$1" = 'arg with $HOME' ] && echo "  key-of-the-command  "`)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if key, err := keyOf(o); err != nil || key != "key-of-the-command" {
				t.Errorf("got %q, %v", key, err)
			}
		})
	}
	wg.Wait()
	if b, _ := os.ReadFile(count); string(b) != "x\n" {
		t.Errorf("it ran %d times", strings.Count(string(b), "x"))
	}
	// What it starts for later is none of our business.
	if key, err := keyOf(keyWorld(t, "sleep 3 & echo key-of-an-agent")); err != nil || key != "key-of-an-agent" {
		t.Errorf("got %q, %v", key, err)
	}
}

func TestCommandFails(t *testing.T) {
	for _, c := range []struct{ name, script, says string }{
		{"status", "echo first >&2; echo 'last words' >&2; exit 3", `ended with exit status 3; last line: "last words"`},
		{"quiet", "exit 3", "ended with exit status 3"},
		{"nothing", "echo", "it wrote nothing"},
		{"two lines", "echo a-first-line; echo a-second-line", "control character"},
		{"quotes", `echo '"a-key-in-quotes"'`, "quotes"},
		{"too much", "head -c 100000 /dev/zero | tr '\\0' x", "more than 64 KiB"},
		{"its own secret", "echo key-that-is-shown; echo is key-that-is-shown wrong >&2; exit 1", `"is *** wrong"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := keyWorld(t, c.script)
			for range 2 { // a failure is not remembered
				_, err := keyOf(o)
				wantError(t, err, "E1001", "api_key_command", "/key", c.says, credsFile+" line 2", "by hand")
			}
		})
	}
	for words, says := range map[string]string{
		"['no-such-program-anywhere']": "executable file not found",
		"['./relative']":               "depends on the working directory",
	} {
		_, err := keyOf(world{files: map[string]string{credsFile: "[default]\napi_key_command = " + words}}.build(t))
		wantError(t, err, "E1001", says)
	}
	for _, words := range []string{"'a text'", "[]", "['']", "[1]", "[['x']]"} {
		_, err := keyOf(world{files: map[string]string{credsFile: "[default]\napi_key_command = " + words}}.build(t))
		wantError(t, err, "E8007", `as in ["prog", "arg"]`, "line 2")
	}
}

// A command that doesn't end is ended, with all it has started.
func TestCommandLimit(t *testing.T) {
	mark := filepath.Join(t.TempDir(), "mark")
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte("#!/bin/sh\n(sleep 300; echo x > "+mark+") & echo $! > "+mark+"; wait\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	_, err := askCommand([]string{file}, "here", 2*time.Second)
	wantError(t, err, "E1001", "no answer within 2s")
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("took %v", took)
	}
	pid, err := os.ReadFile(mark)
	if err != nil {
		t.Skip("the machine was too slow to start it")
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		b, err := os.ReadFile("/proc/" + strings.TrimSpace(string(pid)) + "/stat")
		if errors.Is(err, os.ErrNotExist) || strings.Contains(string(b), ") Z ") {
			break
		}
		if time.Now().After(end) {
			t.Fatal("what it has started lives on")
		}
	}
}
