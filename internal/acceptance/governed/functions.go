// Package governed holds functions that run in sandboxes whose templates have a
// policy, for the acceptance tests. A template has the name of its function.
//
//sandbox:package timeout=1m memory=256MiB
package governed

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
)

//go:generate go tool sandboxgen

// switchedOff is in a sandbox without functions.
//
//sandbox:func template=governed-switched-off
func switchedOff() bool { return true }

// noPrograms is in a sandbox in which clients start no programs.
//
//sandbox:func template=governed-no-programs
func noPrograms() bool { return true }

// listed is in a sandbox with a list of allowed programs.
//
//sandbox:func template=governed-listed
func listed() bool { return true }

// wrongUser is in a sandbox in which its user starts nothing.
//
//sandbox:func template=governed-wrong-user
func wrongUser() bool { return true }

// wrongFolder is in a sandbox in which programs begin in one folder only.
//
//sandbox:func template=governed-wrong-folder workdir=/
func wrongFolder() bool { return true }

// Seen is what a function finds in a sandbox with rules.
type Seen struct {
	Secret  string   // a file that is denied to clients
	Entries []string // of its folder
	Denied  string   // what a program that is denied to clients prints
	Wrote   bool     // where clients do not write
	Env     []string
	User    string
}

// look does itself what clients are denied.
//
//sandbox:func template=governed-look env=LOOK_DENIED=a,LOOK_KEPT=b,LD_LOOK=c secrets=LOOK_SECRET
func look() (Seen, error) {
	secret, err := os.ReadFile("/opt/template/vault/secret")
	entries, err2 := os.ReadDir("/opt/template/vault")
	denied, err3 := exec.Command("uname", "-s").Output()
	err4 := os.WriteFile("/tmp/look", nil, 0o600)
	u, err5 := user.Current()
	if err := errors.Join(err, err2, err3, err4, err5); err != nil {
		return Seen{}, err
	}
	s := Seen{Secret: strings.TrimSpace(string(secret)), Denied: strings.TrimSpace(string(denied)), Env: os.Environ(), User: u.Username}
	for _, e := range entries {
		s.Entries = append(s.Entries, e.Name())
	}
	_, err = os.Stat(filepath.Join("/tmp", "look"))
	s.Wrote = !errors.Is(err, fs.ErrNotExist)
	return s, nil
}

// endless runs for longer than its sandbox lets programs.
//
//sandbox:func template=governed-endless
func endless() error { select {} }
