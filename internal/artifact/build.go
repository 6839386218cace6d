package artifact

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// Build returns this program for another platform, GOOS/GOARCH: from folder
// cache when it was built before, else built by the go command from the source
// of the main package, which must be in reach of the working directory. Cgo is
// off. A test executable is built as one.
//
// The source may have changed since this program was built; that the types of
// functions are still the same is for the caller to check.
func Build(ctx context.Context, cache, platform string) (Self, error) {
	own, err := Own()
	if err != nil {
		return Self{}, err
	}
	goos, goarch, ok := strings.Cut(platform, "/")
	if !ok || strings.ContainsAny(goarch, `/\`) {
		return Self{}, fmt.Errorf("%q is no platform", platform)
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return Self{}, errors.New("this program does not say what it was built from")
	}
	args, err := buildArgs(info)
	if err != nil {
		return Self{}, err
	}
	path := filepath.Join(cache, own.Digest+"-"+goos+"-"+goarch)
	if f, err := Open(path); err == nil {
		now := time.Now()
		_ = os.Chtimes(path, now, now) // kept longer
		return f, nil
	}
	if err := os.MkdirAll(cache, 0o700); err != nil {
		return Self{}, err
	}
	dir, err := os.MkdirTemp(cache, ".build-")
	if err != nil {
		return Self{}, err
	}
	defer os.RemoveAll(dir)
	part := filepath.Join(dir, "worker")
	args = slices.Insert(args, len(args)-1, "-o", part)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "GOOS="+goos, "GOARCH="+goarch, "CGO_ENABLED=0")
	cmd.WaitDelay = time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		return Self{}, fmt.Errorf("go %s: %w: %s", strings.Join(args, " "), err, lastLines(stderr.String()))
	}
	if err := os.Rename(part, path); err != nil {
		return Self{}, err
	}
	return Open(path)
}

// lastLines is the end of what a command wrote.
func lastLines(s string) string {
	const most = 1 << 10
	s = strings.TrimSpace(s)
	return s[max(len(s)-most, 0):]
}

// buildArgs is the go command that builds the main package of a program again,
// the package at the end.
func buildArgs(info *debug.BuildInfo) ([]string, error) {
	args, path := []string{"build"}, info.Path
	if pkg, ok := strings.CutSuffix(path, ".test"); ok {
		args, path = []string{"test", "-c", "-vet=off"}, pkg
	}
	if path == "" || strings.HasPrefix(path, "command-line-arguments") {
		return nil, errors.New("this program was built from single files, not from a package")
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "-tags", "-ldflags", "-gcflags":
			args = append(args, s.Key+"="+s.Value)
		case "-trimpath":
			if s.Value == "true" {
				args = append(args, s.Key)
			}
		}
	}
	return append(args, path), nil
}

// Open describes the executable for Linux in a file.
func Open(path string) (Self, error) {
	f, err := os.Open(path)
	if err != nil {
		return Self{}, err
	}
	defer f.Close()
	needs, err := Inspect(f)
	if err != nil {
		return Self{}, fmt.Errorf("%s: %w", path, err)
	}
	digest, size, err := digestOf(path)
	if err != nil {
		return Self{}, err
	}
	return Self{Path: path, Name: path, Digest: digest, Size: size, Platform: needs.Platform}, nil
}

// Trim removes executables that were built more than a month ago and not used
// since, and all but the last used ones of many.
func Trim(cache string, now time.Time) error {
	const (
		most = 16
		age  = 30 * 24 * time.Hour
	)
	entries, err := os.ReadDir(cache)
	if err != nil {
		return err
	}
	type built struct {
		path string
		used time.Time
	}
	var list []built
	for _, e := range entries {
		if digest, _, ok := strings.Cut(e.Name(), "-"); !ok || len(digest) != 64 && digest != ".build" {
			continue
		}
		info, err := e.Info()
		if err != nil {
			continue // gone
		}
		if e.IsDir() && now.Sub(info.ModTime()) < time.Hour {
			continue // a build that may be running
		}
		list = append(list, built{filepath.Join(cache, e.Name()), info.ModTime()})
	}
	slices.SortFunc(list, func(a, b built) int { return cmp.Or(b.used.Compare(a.used), strings.Compare(a.path, b.path)) })
	var errs []error
	for i, b := range list {
		if i >= most || now.Sub(b.used) > age {
			if err := os.RemoveAll(b.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}
