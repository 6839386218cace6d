package sandboxfn

import (
	"io/fs"
	"path"
)

// Root returns the tree below dir as a strict fs.FS: names follow fs.ValidPath
// and are relative to dir. As with os.DirFS, links may lead out of dir. It
// implements ReadFileFS, ReadDirFS, StatFS, ReadLinkFS and SubFS.
func (f *FS) Root(dir string) fs.FS { return &rootFS{f: f, dir: dir} }

type rootFS struct {
	f   *FS
	dir string
}

var (
	_ fs.ReadFileFS = (*rootFS)(nil)
	_ fs.ReadDirFS  = (*rootFS)(nil)
	_ fs.StatFS     = (*rootFS)(nil)
	_ fs.ReadLinkFS = (*rootFS)(nil)
	_ fs.SubFS      = (*rootFS)(nil)
)

// at is the path of name in the sandbox.
func (r *rootFS) at(op, name string) (string, error) {
	if !fs.ValidPath(name) {
		return "", &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	}
	if name == "." {
		return r.dir, nil
	}
	// path.Join would turn "./~" into the home.
	return r.dir + "/" + name, nil
}

// under gives err the name the caller used.
func (r *rootFS) under(name string, err error) error {
	if e, ok := err.(*fs.PathError); ok {
		return &fs.PathError{Op: e.Op, Path: name, Err: e.Err}
	}
	return err
}

func (r *rootFS) Open(name string) (fs.File, error) {
	p, err := r.at("open", name)
	if err != nil {
		return nil, err
	}
	file, err := r.f.open(p)
	if err != nil {
		return nil, r.under(name, err)
	}
	file.name, file.info.name = name, path.Base(name)
	return file, nil
}

func (r *rootFS) ReadFile(name string) ([]byte, error) {
	p, err := r.at("open", name)
	if err != nil {
		return nil, err
	}
	data, err := r.f.ReadFile(p)
	return data, r.under(name, err)
}

func (r *rootFS) ReadDir(name string) ([]fs.DirEntry, error) {
	p, err := r.at("open", name)
	if err != nil {
		return nil, err
	}
	list, err := r.f.ReadDir(p)
	return list, r.under(name, err)
}

func (r *rootFS) Stat(name string) (fs.FileInfo, error) {
	p, err := r.at("stat", name)
	if err != nil {
		return nil, err
	}
	info, _, err := r.f.stat("stat", p)
	if err != nil {
		return nil, r.under(name, err)
	}
	info.name = path.Base(name)
	return info, nil
}

func (r *rootFS) Lstat(name string) (fs.FileInfo, error) {
	p, err := r.at("lstat", name)
	if err != nil {
		return nil, err
	}
	e, err := r.f.lstat("lstat", p)
	if err != nil {
		return nil, r.under(name, err)
	}
	return &fileInfo{name: path.Base(name), e: e}, nil
}

func (r *rootFS) ReadLink(name string) (string, error) {
	p, err := r.at("readlink", name)
	if err != nil {
		return "", err
	}
	target, err := r.f.Readlink(p)
	return target, r.under(name, err)
}

func (r *rootFS) Sub(dir string) (fs.FS, error) {
	p, err := r.at("sub", dir)
	if err != nil {
		return nil, err
	}
	return &rootFS{f: r.f, dir: p}, nil
}
