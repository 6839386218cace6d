package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// maxFile bounds a file of settings, in bytes.
const maxFile = 256 << 10

// trustedFile says what a file must be like before it is believed.
type trustedFile int

const (
	anyFile     trustedFile = iota // of a project: what it says has no trust
	itself                         // the same, and no link to another
	ownFile                        // nobody else may write it
	secretsFile                    // nor read it
)

// errLink says that a file is a link where it must not be.
var errLink = errors.New("is a link")

// readFile reads a file of settings. One that is not there is no error.
func (l *loader) readFile(file string, must trustedFile) (data []byte, found bool, err error) {
	f, err := openFile(file, must == itself)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil, false, nil
	}
	if errors.Is(err, errLink) {
		return nil, false, wrong(l.show(file)+" is a link; a project has only files of its own folder read", "set SANDBOX_ENV_FILE to the file that is meant, or to none")
	}
	if err != nil {
		return nil, false, unreadable(l.show(file), err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, false, unreadable(l.show(file), err)
	}
	if !info.Mode().IsRegular() {
		return nil, false, wrong(l.show(file)+" is not a file", "")
	}
	if err := l.check(file, info, must); err != nil {
		return nil, false, err
	}
	data, err = io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, false, unreadable(l.show(file), err)
	}
	if len(data) > maxFile {
		return nil, false, wrong(fmt.Sprintf("%s is larger than %d KiB", l.show(file), maxFile>>10), "")
	}
	return data, true, nil
}

func unreadable(file string, err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		err = p.Err // the path is there already
	}
	return &errdefs.Error{Code: "E8007", Op: op, Message: file + " cannot be read", Err: err}
}

// check refuses files that others could have written, or secrets they can read.
func (l *loader) check(file string, info fs.FileInfo, must trustedFile) error {
	if must == anyFile || must == itself {
		return nil
	}
	owner, ours, known := ownerOf(info)
	mode := info.Mode().Perm()
	switch {
	case !known: // a system without owners and modes of this kind
		return nil
	case must == secretsFile && mode&0o077 != 0:
		who := "readable"
		if mode&0o044 == 0 {
			who = "open"
		}
		return &errdefs.Error{Code: "E1007", Op: op,
			Message:    fmt.Sprintf("%s is %s by others (mode %04o)", l.show(file), who, mode),
			Suggestion: "chmod 600 " + l.show(file)}
	case must == secretsFile && !ours:
		return &errdefs.Error{Code: "E1007", Op: op,
			Message:    fmt.Sprintf("%s belongs to user %d, not to user %d, who runs this", l.show(file), owner, os.Geteuid()),
			Suggestion: "chown it to the user who uses it"}
	case mode&0o022 != 0:
		return wrong(fmt.Sprintf("%s can be written by others (mode %04o)", l.show(file), mode), "chmod 644 "+l.show(file))
	case !ours && owner != 0:
		return wrong(fmt.Sprintf("%s belongs to user %d, not to user %d, who runs this", l.show(file), owner, os.Geteuid()), "chown it to the user who uses it")
	}
	return nil
}

// show is a path as errors name it: below the home as ~/…, below the working
// directory as ./…, in a folder around it as ../….
func (l *loader) show(file string) string {
	if rel, ok := below(l.dir, file); ok {
		return "." + string(filepath.Separator) + rel
	}
	if rel, ok := below(l.home, file); ok {
		return "~" + string(filepath.Separator) + rel
	}
	if around, ok := below(filepath.Dir(file), l.dir); ok && strings.Count(around, "/") < 3 {
		return strings.Repeat("../", 1+strings.Count(around, "/")) + filepath.Base(file)
	}
	return file
}

func below(dir, file string) (string, bool) {
	if dir == "" {
		return "", false
	}
	rel, err := filepath.Rel(dir, file)
	return rel, err == nil && rel != "." && filepath.IsLocal(rel)
}

// project finds the folder whose sandbox.toml and .env count: the nearest one
// with a sandbox.toml between the working directory and the root of its
// repository, else the working directory. Outside of a repository nothing above
// the working directory is looked at: it may be anybody's.
func projectDir(dir string) string {
	if dir == "" {
		return ""
	}
	exists := func(parts ...string) bool {
		_, err := os.Lstat(filepath.Join(parts...))
		return err == nil
	}
	found := ""
	for at := dir; ; {
		if found == "" && exists(at, "sandbox.toml") {
			found = at
		}
		if exists(at, ".git") {
			if found == "" {
				found = dir
			}
			return found
		}
		up := filepath.Dir(at)
		if up == at {
			break
		}
		at = up
	}
	return dir
}
