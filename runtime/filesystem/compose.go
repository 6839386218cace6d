//go:build linux

package filesystem

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/runtime/account"
	"github.com/agent-sandbox/sandbox-go/runtime/fault"
)

const (
	maxComposeBody    = 4 << 20 // of the request
	maxComposeSources = 10_000
)

// composeRequest is the body of a request to join files.
type composeRequest struct {
	Sources     []string `json:"source_paths"`
	Destination string   `json:"destination"`
	Username    *string  `json:"username"`
}

// Compose serves POST /files/compose: it joins files into one and removes them.
// When it fails before the new file is complete, nothing has changed.
func (s *Service) Compose() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			w.Header().Set("Allow", http.MethodPost)
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		var req composeRequest
		body := http.MaxBytesReader(w, r.Body, maxComposeBody)
		if err := json.NewDecoder(body).Decode(&req); err != nil {
			status := http.StatusBadRequest
			if _, large := errors.AsType[*http.MaxBytesError](err); large {
				status = http.StatusRequestEntityTooLarge
			}
			fault.HTTP(w, status, "E3006", "invalid request body: "+err.Error())
			return
		}
		u, err := s.named(req.Username)
		if err != nil {
			userError(w, err)
			return
		}
		file, err := s.compose(u, &req)
		if err != nil {
			uploadError(w, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		// A struct of strings always encodes; the client may be gone.
		_ = json.NewEncoder(w).Encode(file)
	})
}

// named is the user of that name; nil: the default one.
func (s *Service) named(name *string) (*account.User, error) {
	if name == nil {
		return s.opts.Users.Lookup("")
	}
	if *name == "" {
		return nil, &account.UnavailableError{}
	}
	return s.opts.Users.Lookup(*name)
}

func (s *Service) compose(u *account.User, req *composeRequest) (*uploaded, error) {
	switch {
	case len(req.Sources) == 0:
		return nil, badRequest{errors.New("source_paths must not be empty")}
	case len(req.Sources) > maxComposeSources:
		return nil, badRequest{fmt.Errorf("source_paths must not have more than %d elements", maxComposeSources)}
	case req.Destination == "":
		return nil, badRequest{errors.New("destination must not be empty")}
	}
	to, err := u.Path(req.Destination, s.opts.WorkDir)
	if err != nil {
		return nil, pathError(u, err)
	}
	sources := make([]*source, len(req.Sources))
	for i, name := range req.Sources {
		p, err := u.Path(name, s.opts.WorkDir)
		if err != nil {
			return nil, pathError(u, err)
		}
		if sources[i], err = s.guard.findSource(u, p); err != nil {
			return nil, err
		}
	}
	within := s.within()
	err = s.store(u, to, nil, func(f *os.File, over *fileID) error {
		for _, src := range sources {
			if over != nil && src.file == *over {
				return badRequest{fmt.Errorf("source %s is the destination, which can only be written over", src.path)}
			}
			if err := src.appendTo(f, u, s.guard, within); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, src := range sources {
		if err := src.remove(u, s.guard); err != nil {
			return nil, fmt.Errorf("%s is complete, but its source was not removed: %s: %w", to, src.path, err)
		}
	}
	return &uploaded{Path: to, Name: path.Base(to), Type: "file"}, nil
}

// source is a file to be joined: what its name stood for when it was looked at.
type source struct {
	path string
	name fileID // of the name itself, which may be a link
	file fileID
}

type fileID struct{ dev, ino uint64 }

func idOf(st *unix.Stat_t) fileID { return fileID{uint64(st.Dev), st.Ino} }

// errSourceMissing is a source that is not there; a destination cannot be missing.
var errSourceMissing = errors.New("source file not found")

var errSourceChanged = errors.New("source was replaced while it was read")

// findSource checks that p can be read and removed.
func (g guard) findSource(u *account.User, p string) (*source, error) {
	src := &source{path: p}
	err := u.Do(func() error {
		f, st, err := g.openRegular(p)
		if err != nil {
			return err
		}
		f.Close()
		src.file = idOf(&st)
		dir, name, err := g.openParent(p)
		if err != nil {
			return err
		}
		defer unix.Close(dir)
		if err := g.writeIn(dir, name); err != nil { // it will be removed
			return err
		}
		if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
		src.name = idOf(&st)
		return unix.Faccessat2(dir, ".", unix.W_OK|unix.X_OK, unix.AT_EACCESS)
	})
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil, fmt.Errorf("%w: %s", errSourceMissing, p)
	case err != nil:
		return nil, fmt.Errorf("source file %s: %w", p, err)
	}
	return src, nil
}

// appendTo writes the content to f, as far as within lets it.
func (src *source) appendTo(f *os.File, u *account.User, g guard, within func(io.Reader) io.Reader) error {
	var in *os.File
	err := u.Do(func() error {
		var st unix.Stat_t
		var err error
		if in, st, err = g.openRegular(src.path); err != nil {
			return err
		}
		if idOf(&st) != src.file {
			in.Close()
			return errSourceChanged
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("source file %s: %w", src.path, err)
	}
	defer in.Close()
	_, err = io.Copy(f, within(in))
	return err
}

// remove removes the name, unless it stands for something else by now: the
// destination may have taken it.
func (src *source) remove(u *account.User, g guard) error {
	return u.Do(func() error {
		dir, name, err := g.openParent(src.path)
		if err != nil {
			return err
		}
		defer unix.Close(dir)
		if err := g.writeIn(dir, name); err != nil {
			return err
		}
		var st unix.Stat_t
		switch err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); {
		case err == unix.ENOENT:
			return nil
		case err != nil:
			return err
		case idOf(&st) != src.name:
			return nil
		}
		return unix.Unlinkat(dir, name, 0)
	})
}
