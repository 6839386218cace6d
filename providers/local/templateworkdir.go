//go:build linux

package local

import (
	"context"
	"slices"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// makeWorkdir makes the working directory that the template names, unless it is
// there. What it makes is kept with the files of the steps.
func (b *templateBuild) makeWorkdir(ctx context.Context) error {
	dir := b.m.Workdir
	if dir == "" || dir == "/" || dir == "/home/user" {
		return nil
	}
	s := buildStep{text: "make the working directory " + dir,
		args: script(`mkdir -p "$1" && { [ "$(id -u)" != 0 ] || chown "$2" "$1"; }`, dir, b.user())}
	if b.host {
		for _, p := range scratchPlaces {
			if dir != p && within(dir, p) && !slices.Contains(keptPlaces(b.mapping), p) {
				return b.badWorkdir("what is in " + p + " is not kept")
			}
		}
		if within(dir, "/root") && b.user() != "root" {
			return b.badWorkdir("only root can be in /root")
		}
		if slices.Contains(scratchPlaces, dir) {
			return nil
		}
		if own := ownAbove(dir, b.p.expose); own != "" {
			return b.needWorkdir(ctx, own)
		}
		if !slices.ContainsFunc(scratchPlaces, func(p string) bool { return within(dir, p) }) {
			s.place = []providers.Place{{Path: dir, Dir: true}}
		}
	}
	key := b.saved.Digest + " workdir" // found only by a build of the same
	return b.do(ctx, &s, "", func(string) {}, key)
}

// ownAbove is what the sandbox has of its own at dir, above it or in it, so that
// nothing can be put there; "" when there is none.
func ownAbove(dir string, expose []string) string {
	for _, own := range append(ownPaths(expose, false), scratchPlaces...) {
		if within(own, dir) || within(dir, own) && !slices.Contains(scratchPlaces, own) {
			return own
		}
	}
	return ""
}

// needWorkdir takes a working directory that must be there.
func (b *templateBuild) needWorkdir(ctx context.Context, own string) error {
	there := false
	s := buildStep{text: "look for the working directory", args: script(`[ ! -d "$1" ] || echo there`, b.m.Workdir)}
	if err := b.do(ctx, &s, "", func(string) { there = true }, ""); err != nil || there {
		return err
	}
	return b.badWorkdir("the sandbox has " + own + " of its own, and this is not in it")
}

func (b *templateBuild) badWorkdir(why string) error {
	return &errdefs.Error{Code: "E2011", Op: opBuild + " " + b.m.Name, Message: "workdir " + b.m.Workdir + " cannot be made: " + why,
		Suggestion: "use a path of your own, /srv/app say, or one below /home/user"}
}

// placesOf are those of a step over the tree of this machine: its own, and the
// folder of packages, unless it is in one of them.
func placesOf(s *buildStep) []providers.Place {
	prefix := providers.Place{Path: templatePrefix, Dir: true}
	for _, p := range s.place {
		if p.Dir && within(templatePrefix, p.Path) {
			return append(slices.Clone(s.place), prefix) // the outer one first
		}
	}
	return append([]providers.Place{prefix}, s.place...)
}
