//go:build linux

package server

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// TestGitHooks: looking at a repository starts no hook of it, also where an allow
// list takes variables from requests.
func TestGitHooks(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip(err)
	}
	dir := realTempDir(t)
	git := exec.Command("git", "init", "-q", dir)
	check(t, git.Run(), os.WriteFile(dir+"/f", []byte("x\n"), 0o644))
	add := exec.Command("git", "-C", dir, "add", "f")
	ran := filepath.Join(dir, ".git", "ran")
	check(t, add.Run(), os.WriteFile(dir+"/.git/hooks/post-index-change", []byte("#!/bin/sh\n: > "+ran+"\n"), 0o755),
		os.Remove(dir+"/f"), os.WriteFile(dir+"/f", []byte("x\n"), 0o644)) // the same, as another file: the index is looked through
	r := newRig(t, func(o *Options) {
		o.Template = &model.Template{
			Server: &model.Server{Enable: []string{"default", "dev_tools.git_*"}},
			Policy: model.Policy{Commands: model.CommandPolicy{Allow: []model.CommandRule{{Program: "git"}}}},
		}
	})
	if a := r.call(t, "GET", "/git/status?path="+dir, ""); a.status != 200 {
		t.Fatalf("status %d: %s", a.status, a.body)
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("a hook ran")
	}
}
