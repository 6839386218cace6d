package templates

import (
	"fmt"
	"regexp"
	"strings"

	"golang.org/x/mod/semver"
)

var constraintForm = regexp.MustCompile(`^([~^]?)v?(0|[1-9][0-9]*)(\.(0|[1-9][0-9]*))?(\.(0|[1-9][0-9]*)(-[0-9A-Za-z.-]+)?)?$`)

// constraint is a set of versions: exactly low, or from low up to and without high.
type constraint struct {
	low, high string // with the v of package semver; high empty: exactly low
}

// isConstraint reports whether a ref of git asks for a range of versions.
func isConstraint(s string) bool { return strings.HasPrefix(s, "~") || strings.HasPrefix(s, "^") }

// parseConstraint reads 1.2.3 (this one), ~1.2 (1.2.x), ~1.2.3 (1.2.x from 3 on),
// ^1 (1.x.y) and ^0.3 (0.3.x: below 1 the second number breaks). 1 and 1.2 without
// a sign are as with ~.
func parseConstraint(s string) (constraint, error) {
	m := constraintForm.FindStringSubmatch(s)
	if m == nil {
		return constraint{}, fmt.Errorf("version %q is not 1.2.3, ~1.2 or ^1", s)
	}
	op, major, minor, patch, pre := m[1], m[2], m[4], m[6], m[7]
	low := "v" + major + "." + or0(minor) + "." + or0(patch) + pre
	if !semver.IsValid(low) {
		return constraint{}, fmt.Errorf("version %q is not 1.2.3, ~1.2 or ^1", s)
	}
	switch {
	case op == "" && patch != "":
		return constraint{low: low}, nil
	case minor == "", op == "^" && major != "0":
		return constraint{low, "v" + next(major) + ".0.0"}, nil
	case op == "^" && minor == "0" && patch != "":
		return constraint{low, "v0.0." + next(patch)}, nil
	}
	return constraint{low, "v" + major + "." + next(minor) + ".0"}, nil
}

func or0(s string) string {
	if s == "" {
		return "0"
	}
	return s
}

// next adds one to a decimal number of any length.
func next(s string) string {
	b := []byte(s)
	for i := len(b) - 1; i >= 0; i-- {
		if b[i] < '9' {
			b[i]++
			return string(b)
		}
		b[i] = '0'
	}
	return "1" + string(b)
}

// has reports whether a version is in the set. A version before a release, such as
// 2.0.0-rc.1, is only where low is one of the same release.
func (c constraint) has(v string) bool {
	if c.high == "" {
		return semver.Compare(v, c.low) == 0
	}
	if semver.Prerelease(v) != "" && (semver.Prerelease(c.low) == "" || release(v) != release(c.low)) {
		return false
	}
	return semver.Compare(v, c.low) >= 0 && semver.Compare(v, c.high) < 0
}

func release(v string) string { return strings.TrimSuffix(semver.Canonical(v), semver.Prerelease(v)) }

// versionOf is the version that a tag names: 1.2.3 or v1.2.3, in a repository with
// several templates also subdir/v1.2.3; "" when it names none.
func versionOf(tag, subdir string) string {
	if subdir != "" {
		tag = strings.TrimPrefix(tag, subdir+"/")
	}
	v := "v" + strings.TrimPrefix(tag, "v")
	if !semver.IsValid(v) || semver.Canonical(v) != v {
		return ""
	}
	return v
}

// pick chooses the newest tag in the set; "" when none is. Of two tags of one
// version, the one for the folder wins.
func (c constraint) pick(tags []string, subdir string) string {
	best, bestVersion := "", ""
	for _, tag := range tags {
		v := versionOf(tag, subdir)
		if v == "" || !c.has(v) {
			continue
		}
		d := 1
		if best != "" {
			d = semver.Compare(v, bestVersion)
		}
		if d > 0 || d == 0 && len(tag) > len(best) {
			best, bestVersion = tag, v
		}
	}
	return best
}
