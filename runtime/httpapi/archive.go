//go:build linux

package httpapi

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"path"
	"strings"

	"connectrpc.com/connect"

	"github.com/agent-sandbox/sandbox-go/runtime/endpoint"
	"github.com/agent-sandbox/sandbox-go/runtime/fault"
	"github.com/agent-sandbox/sandbox-go/runtime/filesystem"
)

// ArchiveRequest names what goes into an archive.
type ArchiveRequest struct {
	Paths  []string `json:"paths" required:"true"`
	Format string   `json:"format,omitempty" enum:"tar.gz,zip" default:"tar.gz"`
}

func (a *API) archive(w http.ResponseWriter, r *http.Request) {
	var req ArchiveRequest
	if !endpoint.Decode(w, r, &req) {
		return
	}
	switch {
	case len(req.Paths) == 0:
		endpoint.Refuse(w, "paths is missing")
		return
	case req.Format != "" && req.Format != "tar.gz" && req.Format != "zip":
		endpoint.Refuse(w, "format is %q, not tar.gz or zip", req.Format)
		return
	}
	// All is looked at before the answer begins, since an answer that has begun
	// can only be cut short.
	count, most := 0, maxEntries
	err := a.each(r, req.Paths, func(_ string, f *filesystem.Found) error {
		count++
		if err := a.opts.Files.CheckEntries(count); err != nil {
			return err
		}
		if count > most {
			return fault.New(connect.CodeResourceExhausted, "E4000", "more than %d entries", most)
		}
		return f.Check()
	})
	if err != nil {
		status, code, text := fault.Of(err)
		if code == "E4000" && count > most {
			status = http.StatusRequestEntityTooLarge
		}
		fault.HTTP(w, status, code, text)
		return
	}
	out := endpoint.NewPatient(w)
	defer out.Done()
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	if req.Format == "zip" {
		h.Set("Content-Type", "application/zip")
		h.Set("Content-Disposition", `attachment; filename="archive.zip"`)
		z := zip.NewWriter(out)
		err = a.each(r, req.Paths, func(name string, f *filesystem.Found) error { return addZip(z, name, f) })
		if err == nil {
			err = z.Close()
		}
	} else {
		h.Set("Content-Type", "application/gzip")
		h.Set("Content-Disposition", `attachment; filename="archive.tar.gz"`)
		z := gzip.NewWriter(out)
		t := tar.NewWriter(z)
		err = a.each(r, req.Paths, func(name string, f *filesystem.Found) error { return addTar(t, name, f) })
		if err == nil {
			err = errors.Join(t.Close(), z.Close())
		}
	}
	if err != nil {
		panic(http.ErrAbortHandler) // the status is sent: only a broken answer tells
	}
}

// each calls fn for all that goes into an archive, with the name that it has
// there: from the last element of the path on that was named.
func (a *API) each(r *http.Request, paths []string, fn func(string, *filesystem.Found) error) error {
	for _, p := range paths {
		base := path.Base(path.Clean("/" + strings.TrimPrefix(p, "~")))
		if base == "/" {
			base = ""
		}
		err := a.opts.Files.Walk(r.Context(), p, maxDepth, func(f *filesystem.Found) error {
			switch f.Details.Mode.Type() {
			case 0, fs.ModeDir, fs.ModeSymlink:
				return fn(path.Join(base, f.Path), f)
			}
			return nil // no archive holds a socket
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func addTar(t *tar.Writer, name string, f *filesystem.Found) error {
	d := f.Details
	h := &tar.Header{
		Name: name, Mode: int64(permissions(d.Mode)), ModTime: d.Modified, Uname: d.Owner, Gname: d.Group, Format: tar.FormatPAX,
	}
	switch d.Mode.Type() {
	case fs.ModeDir:
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
		return t.WriteHeader(h)
	case fs.ModeSymlink:
		h.Typeflag, h.Linkname = tar.TypeSymlink, d.Target
		return t.WriteHeader(h)
	}
	in, err := f.Open()
	if err != nil {
		return err
	}
	defer in.Close()
	st, err := in.Stat()
	if err != nil {
		return err
	}
	h.Typeflag, h.Size = tar.TypeReg, st.Size()
	if err := t.WriteHeader(h); err != nil {
		return err
	}
	// What is added to it now is not part of it; what is taken away is an error.
	_, err = io.CopyN(t, in, h.Size)
	return err
}

func addZip(z *zip.Writer, name string, f *filesystem.Found) error {
	d := f.Details
	h := &zip.FileHeader{Name: name, Modified: d.Modified, Method: zip.Deflate}
	h.SetMode(d.Mode)
	if d.Mode.IsDir() {
		h.Name, h.Method = name+"/", zip.Store
	}
	var in io.Reader = strings.NewReader(d.Target)
	if d.Mode.IsRegular() {
		file, err := f.Open()
		if err != nil {
			return err
		}
		defer file.Close()
		in = file
	}
	w, err := z.CreateHeader(h)
	if err != nil || d.Mode.IsDir() {
		return err
	}
	_, err = io.Copy(w, in)
	return err
}
