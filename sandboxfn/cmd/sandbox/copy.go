package main

import (
	"context"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"

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
time are not sent again. A tree or a file makes the directories above it; several
sources, and a DESTINATION that ends with a slash, need one that is there. What the
user of the sandbox may not write is E4002: the home and /tmp can be written.
One file that is copied to this machine goes where links lead, and into a device or
a pipe that is there.

In place of this machine's side, "-" is standard output or standard input, for the
bytes of one file: no archive, as docker cp has there. The file that is called so is
./-. A file that is written from standard input has mode 0644 and appears as a whole
at its end; PATH is then a file, and not a directory.`,
		Example: `  sandbox exec $id -- mkdir -p work
  sandbox cp main.go data $id:work/
  sandbox cp ./site/. $id:www
  sandbox cp $id:results ./results
  sandbox cp $id:report.csv - | head
  sandbox exec $id -- tar -C results -c . | tar -x`,
		Args: arguments(2, -1, "a source, or the destination"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var places []place
			for _, arg := range args {
				places = append(places, parsePlace(arg))
				if arg == stream && len(args) > 2 {
					return usage(cmd, `"-" takes one file, and is one`)
				}
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
			switch stream {
			case args[last]:
				return a.copyOut(cmd.Context(), sb, sources[0].path)
			case args[0]:
				return a.copyIn(cmd.Context(), sb, to.path)
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

// stream stands for standard input and output.
const stream = "-"

// copyOut writes a file of a sandbox to standard output.
func (a *app) copyOut(ctx context.Context, sb *sandboxfn.Sandbox, name string) error {
	f, err := sb.FS(ctx).Open(name)
	if err != nil {
		return coded("copy", name, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && info.IsDir() {
		return &errdefs.Error{Code: "E4003", Op: "copy", Message: name + " is a directory, and standard output takes the bytes of a file",
			Suggestion: "use sandbox exec ID -- tar -C " + name + " -c ."}
	}
	if err == nil {
		_, err = io.Copy(a.stdout, f)
	}
	if err != nil {
		return coded("copy", name, err)
	}
	return nil
}

// copyIn writes what standard input has to a file of a sandbox. The file is only
// there when all of it was read.
func (a *app) copyIn(ctx context.Context, sb *sandboxfn.Sandbox, name string) error {
	wctx, cancel := context.WithCancel(ctx)
	defer cancel()
	f, err := sb.FS(wctx).Create(name)
	if err != nil {
		return elsewhere(coded("copy", name, err))
	}
	copied, gone := make(chan error, 1), make(chan error, 1)
	go func() { // nothing ends a read of a terminal
		_, err := io.Copy(f, a.stdin)
		copied <- err
	}()
	var watch sync.WaitGroup
	watch.Go(func() { gone <- a.awaitEnd(wctx, sb) })
	defer watch.Wait()
	defer cancel()
	select {
	case err = <-copied:
	case err = <-gone: // a sandbox that is gone does not take what has not come yet, and says nothing
	case <-ctx.Done():
	}
	if ctx.Err() != nil { // whatever else came of that
		return context.Cause(ctx)
	}
	if err != nil {
		cancel() // what was sent is no file
		_ = f.Close()
		return elsewhere(coded("copy", name, err))
	}
	if err := f.Close(); err != nil {
		return elsewhere(coded("copy", name, err))
	}
	return nil
}

// awaitEnd returns why the sandbox is gone, or the cause of the end of ctx. Where it
// cannot be asked, it may live.
func (a *app) awaitEnd(ctx context.Context, sb *sandboxfn.Sandbox) error {
	for {
		err := a.attend(ctx, sb)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, sandboxfn.ErrNotFound), errors.Is(err, sandboxfn.ErrExpired), errors.Is(err, sandboxfn.ErrKilled), errors.Is(err, sandboxfn.ErrCrashed):
			return err
		}
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
	dir, there, err := isDir(ctx, sb, to)
	if err != nil {
		return err
	}
	if !dir && (len(sources) > 1 || strings.HasSuffix(to.path, "/")) {
		return &errdefs.Error{Code: "E4003", Op: "copy", Message: to.path + " is not a directory", Suggestion: makeFirst(to, there)}
	}
	for _, from := range sources {
		target := to.path
		if dir && !from.contents() {
			target = strings.TrimSuffix(target, "/") + "/" + path.Base(filepath.ToSlash(from.path))
		}
		if to.id != "" {
			err = elsewhere(sb.CopyTo(ctx, from.path, target))
		} else {
			err = sb.CopyFrom(ctx, from.path, target)
		}
		if err != nil {
			return coded("copy", from.path, err)
		}
	}
	return nil
}

// makeFirst says how a directory is made that is not there.
func makeFirst(p place, there bool) string {
	switch {
	case there:
		return ""
	case p.id == "":
		return "create it first: mkdir -p " + p.path
	}
	return "create it first: sandbox exec " + p.id + " -- mkdir -p " + p.path
}

// elsewhere adds to a refusal of a sandbox, on the way into it, where one can
// write.
func elsewhere(err error) error {
	if sandboxfn.CodeOf(err) != "E4002" || hintOf(err) != "" {
		return err
	}
	return hinted{err, "copy to the home of its user (a relative PATH) or to /tmp; other directories come from a template"}
}

// isDir reports whether a place is a directory, and whether anything is there.
func isDir(ctx context.Context, sb *sandboxfn.Sandbox, p place) (dir, there bool, err error) {
	stat := os.Stat
	if p.id != "" {
		stat = sb.FS(ctx).Stat
	}
	info, err := stat(p.path)
	if errors.Is(err, os.ErrNotExist) {
		return false, false, nil
	}
	if err != nil {
		return false, false, coded("copy", p.path, err)
	}
	return info.IsDir(), true, nil
}

// coded gives errors of this machine's files the codes that those of a sandbox
// have.
func coded(op, name string, err error) error {
	if sandboxfn.CodeOf(err) != "" {
		return err
	}
	switch {
	case errors.Is(err, os.ErrNotExist):
		return errdefs.Wrap("E4001", op, "", err)
	case errors.Is(err, os.ErrPermission):
		return errdefs.Wrap("E4002", op, "", err)
	}
	return errdefs.Wrap("E4000", op, name, err)
}
