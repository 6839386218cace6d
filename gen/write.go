package gen

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// groupImports puts the standard library's imports before the others, as
// goimports does. The input is what jennifer rendered: one block, sorted.
func groupImports(src []byte) []byte {
	const start, end = "\nimport (\n", "\n)\n"
	i := bytes.Index(src, []byte(start))
	if i < 0 {
		return src
	}
	i += len(start)
	j := bytes.Index(src[i:], []byte(end))
	if j < 0 {
		return src
	}
	var std, other []string
	for line := range strings.SplitSeq(string(src[i:i+j]), "\n") {
		path := line[strings.Index(line, `"`)+1:]
		first, _, _ := strings.Cut(path, "/")
		if strings.Contains(first, ".") {
			other = append(other, line)
		} else {
			std = append(std, line)
		}
	}
	block := strings.Join(std, "\n")
	if len(std) > 0 && len(other) > 0 {
		block += "\n\n"
	}
	block += strings.Join(other, "\n")
	return slices.Concat(src[:i], []byte(block), src[i+j:])
}

// Changed reports whether Commit would change the package on disk.
func (p *Package) Changed() bool {
	return len(p.Remove) > 0 || slices.ContainsFunc(p.Files, File.changed)
}

func (f File) changed() bool { return !bytes.Equal(f.Content, f.previous) }

// Commit writes the output of every package whose bytes differ and removes
// output that has no source any more. Each file is written to a temporary one
// first and renamed, so that a reader, or a crash, finds the old content or
// the new. A result with diagnostics changes nothing.
func (r *Result) Commit() error {
	if len(r.Diagnostics) > 0 {
		return errors.New("there are faults in the source; nothing was written")
	}
	for _, p := range r.Packages {
		for _, f := range p.Files {
			if !f.changed() {
				continue
			}
			if err := writeFile(filepath.Join(p.Dir, f.Name), f.Content); err != nil {
				return err
			}
		}
		for _, path := range p.Remove {
			if err := removeOurs(path); err != nil {
				return err
			}
		}
	}
	return nil
}

// removeOurs removes a file unless it has become somebody else's.
func removeOurs(path string) error {
	src, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) || err == nil && !isOurs(src) {
		return nil
	}
	if err != nil {
		return err
	}
	return os.Remove(path)
}

// writeFile replaces a file in one step. The temporary name starts with a
// dot, so that the go command never reads it.
func writeFile(path string, content []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".sandboxgen-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(content)
	if err == nil {
		err = f.Chmod(0o644)
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
