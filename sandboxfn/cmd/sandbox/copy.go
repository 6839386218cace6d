package main

import (
	"context"
	"errors"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

func (a *app) copyCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "cp SOURCE… DESTINATION",
		Short: "copy files and directories to or from a sandbox",
		Long: `Cp copies files and trees, with modes and links, from this machine to a sandbox or
the other way. The side of the sandbox is written ID:PATH; a relative PATH begins
in its user's home. A name with a colon of this machine needs a slash before the
colon, as in ./a:b.

A DESTINATION that is a directory takes sources in under their names; else it is
what the one source is afterwards. A source that ends with "/." is what is in
the directory. Files of a tree that are there already in the same size, mode and
time are not sent again.`,
		Example: `  sandbox cp main.go data $id:work/
  sandbox cp $id:results ./results
  sandbox cp ./site/. $id:/srv/www`,
		Args: arguments(2, -1, "a source, or the destination"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var places []place
			for _, arg := range args {
				places = append(places, parsePlace(arg))
			}
			last := len(places) - 1
			sources, to := places[:last], places[last]
			id := to.id
			for _, s := range sources {
				if (s.id == "") == (to.id == "") {
					return usage(cmd, "one side has to be in a sandbox, as ID:PATH, and the other here")
				}
				if id == "" {
					id = s.id
				}
				if s.id != "" && s.id != id {
					return usage(cmd, "the sources are in more than one sandbox")
				}
			}
			sb, err := a.connect(cmd.Context(), id)
			if err != nil {
				return err
			}
			done := a.progress("copying")
			defer done()
			return copyAll(cmd.Context(), sb, sources, to)
		},
		ValidArgsFunction: func(cmd *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
			if strings.ContainsAny(word, ":/") {
				return nil, cobra.ShellCompDirectiveDefault
			}
			ids, _ := a.sandboxIDs(cmd.Context(), ":")
			return ids, cobra.ShellCompDirectiveNoSpace
		},
	}
}

// place is one side of a copy. An empty id is this machine.
type place struct{ id, path string }

func parsePlace(arg string) place {
	id, rest, ok := strings.Cut(arg, ":")
	if !ok || id == "" || strings.Contains(id, "/") {
		return place{path: arg}
	}
	if rest == "" {
		rest = "."
	}
	return place{id, rest}
}

// contents reports whether a source means what is in a directory.
func (p place) contents() bool {
	return p.path == "." || strings.HasSuffix(p.path, "/.") || p.path == ".." || strings.HasSuffix(p.path, "/..") || p.path == "/" || p.path == "~"
}

func copyAll(ctx context.Context, sb *sandboxfn.Sandbox, sources []place, to place) error {
	dir, err := isDir(ctx, sb, to)
	if err != nil {
		return err
	}
	if !dir && (len(sources) > 1 || strings.HasSuffix(to.path, "/")) {
		return errdefs.New("E4003", "copy", to.path+" is not a directory")
	}
	for _, from := range sources {
		target := to.path
		if dir && !from.contents() {
			target = strings.TrimSuffix(target, "/") + "/" + path.Base(filepath.ToSlash(from.path))
		}
		if to.id != "" {
			err = sb.CopyTo(ctx, from.path, target)
		} else {
			err = sb.CopyFrom(ctx, from.path, target)
		}
		if err != nil {
			return coded(from.path, err)
		}
	}
	return nil
}

// isDir reports whether a place is a directory; what is not there is none.
func isDir(ctx context.Context, sb *sandboxfn.Sandbox, p place) (bool, error) {
	stat := os.Stat
	if p.id != "" {
		stat = sb.FS(ctx).Stat
	}
	info, err := stat(p.path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, coded(p.path, err)
	}
	return info.IsDir(), nil
}

// coded gives errors of this machine's files the codes that those of a sandbox
// have.
func coded(name string, err error) error {
	if sandboxfn.CodeOf(err) != "" {
		return err
	}
	switch {
	case errors.Is(err, os.ErrNotExist):
		return errdefs.Wrap("E4001", "copy", "", err)
	case errors.Is(err, os.ErrPermission):
		return errdefs.Wrap("E4002", "copy", "", err)
	}
	return errdefs.Wrap("E4000", "copy", name, err)
}
