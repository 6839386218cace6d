package templates

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// Compiled is a template with its files, ready for a builder.
type Compiled struct {
	Template *model.Template // joined with what it is based on
	Dir      string          // folder that its copy steps or its Dockerfile read; empty when there is none
	Notices  []string        // of [Resolved]

	temporary bool
}

// Compile resolves a template and puts the files that its steps copy into one
// folder: its own where nothing else is needed, or it has a Dockerfile, which sees all
// of it; else a temporary one that Close removes. Options and errors are those of [Resolve].
func Compile(ctx context.Context, ref string, o *ResolveOptions) (*Compiled, error) {
	r, err := Resolve(ctx, ref, o)
	if err != nil {
		return nil, err
	}
	c := &Compiled{Template: r.Template, Notices: r.Notices}
	own, copies := r.Layers[0].Template, 0
	for _, s := range r.Template.Build {
		if s.Copy != nil {
			copies++
		}
	}
	for _, s := range own.Build {
		if s.Copy != nil {
			copies--
		}
	}
	if dir := r.Layers[0].Dir; dir != "" && (copies == 0 || own.Dockerfile != "") {
		c.Dir = dir
		return c, nil
	}
	if c.Dir, err = os.MkdirTemp("", "sandbox-template-"); err != nil {
		return nil, errdefs.Wrap("E7000", "compile template", "no folder for its files", err)
	}
	c.temporary = true
	for _, s := range r.Template.Build {
		if s.Copy == nil {
			continue
		}
		if err := copyTree(ctx, r.FS(), path.Clean(s.Copy.Src), c.Dir); err != nil {
			return nil, errors.Join(errdefs.Wrap("E7000", "compile template", fmt.Sprintf("src %q", s.Copy.Src), err), c.Close())
		}
	}
	return c, nil
}

// Close removes the folder of the files when it is a temporary one. It can be
// called more than once.
func (c *Compiled) Close() error {
	if !c.temporary {
		return nil
	}
	return os.RemoveAll(c.Dir)
}

// copyTree writes a file or folder below dir, under the name that it has.
func copyTree(ctx context.Context, fsys fs.FS, name, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	return fs.WalkDir(fsys, name, func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case d.IsDir():
			return root.MkdirAll(p, 0o755)
		case !d.Type().IsRegular():
			return fmt.Errorf("%s is neither a file nor a folder", filepath.ToSlash(p))
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		f, err := fsys.Open(p)
		if err != nil {
			return err
		}
		defer f.Close()
		if _, err := root.Lstat(p); err == nil {
			return nil // two steps copy it
		}
		return writeMember(root, p, info.Mode()&0o100 != 0, f)
	})
}
