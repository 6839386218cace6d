// Package placed holds functions whose directives say where they run, and with
// what, for the acceptance tests.
//
//sandbox:package timeout=1m memory=256MiB
package placed

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

//go:generate go tool sandboxgen

// words reads the files that its directive puts into the sandbox.
//
//sandbox:func files=data:/opt/words,data/words.txt:/words.txt
func words() ([]string, error) {
	var all []string
	for _, root := range []string{"/opt/words", "/words.txt"} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			b, err := os.ReadFile(path)
			all = append(all, path+" "+strings.TrimSpace(string(b)))
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// login returns what it is given in secret.
//
//sandbox:func secrets=TOKEN=PLACED_TOKEN,PLACED_PLAIN
func login() string { return os.Getenv("TOKEN") + " " + os.Getenv("PLACED_PLAIN") }

// remember adds a line to a volume and returns what is there.
//
//sandbox:func volumes=placed-memory:/memory fresh
func remember(line string) (string, error) {
	f, err := os.OpenFile("/memory/lines", os.O_APPEND|os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if _, err := fmt.Fprintln(f, line); err != nil {
		return "", err
	}
	b, err := os.ReadFile("/memory/lines")
	return string(b), err
}

// recall cannot change what it reads.
//
//sandbox:func volumes=placed-memory:/memory:ro
func recall() (string, error) {
	if err := os.WriteFile("/memory/lines", nil, 0o600); err == nil {
		return "", errors.New("a read-only volume was written")
	}
	b, err := os.ReadFile("/memory/lines")
	return string(b), err
}

// once reports whether nobody was here before.
//
//sandbox:func fresh
func once() (bool, error) {
	_, err := os.Stat("/tmp/been")
	return err != nil, os.WriteFile("/tmp/been", nil, 0o600)
}

var here struct {
	sync.Mutex
	in   int
	full chan struct{}
}

// together returns when four calls are in one worker.
//
//sandbox:func workers=1 concurrency=4
func together(ctx context.Context) (int, error) {
	here.Lock()
	if here.full == nil {
		here.full = make(chan struct{})
	}
	if here.in++; here.in == 4 {
		close(here.full)
	}
	full := here.full
	here.Unlock()
	select {
	case <-full:
		return os.Getpid(), nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// where tells its user and directory.
//
//sandbox:func user=root workdir=/tmp
func where() (int, string, error) {
	dir, err := os.Getwd()
	return os.Getuid(), dir, err
}

// pictured cannot run here.
//
//sandbox:func image=ghcr.io/team/torch:2
func pictured() error { return nil }

// built runs a program of its template.
//
//sandbox:func template=placed-tools
func built() (string, error) {
	out, err := exec.Command("greet").Output()
	return string(out) + os.Getenv("PLACED_TEMPLATE"), err
}

// inImage looks for what the Dockerfile of its template has made.
//
//sandbox:func template=placed-image
func inImage() (string, error) {
	made, err := os.ReadFile("/opt/tool/made")
	dir, derr := os.Getwd()
	return string(made) + " " + os.Getenv("PLACED_IMAGE") + " " + dir, errors.Join(err, derr)
}

// drawn cannot run here either.
//
//sandbox:func gpu=A10
func drawn() error { return nil }
