//go:build linux

package account

import (
	"errors"
	"path"
	"strings"
)

// Errors of [User.Path].
var (
	ErrNUL   = errors.New("path holds a NUL byte")
	ErrTilde = errors.New("cannot expand user-specific home dir")
)

// Path makes p absolute and clean, by the one rule that files and working
// directories share: empty is workDir, or the home when that is empty too; "~"
// and "~/…" are the home; anything relative lies below the home; "." and ".."
// are taken away as text, before links are followed.
func (u *User) Path(p, workDir string) (string, error) {
	if p == "" {
		p = workDir
	}
	switch {
	case strings.IndexByte(p, 0) >= 0:
		return "", ErrNUL
	case p == "", p == "~":
		return path.Clean(u.Home), nil
	case strings.HasPrefix(p, "~/"):
		return path.Join(u.Home, p[2:]), nil
	case p[0] == '~':
		return "", ErrTilde
	case p[0] == '/':
		return path.Clean(p), nil
	}
	return path.Join(u.Home, p), nil
}
