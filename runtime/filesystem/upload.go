//go:build linux

package filesystem

import (
	"compress/flate"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/runtime/account"
	"github.com/agent-sandbox/sandbox-go/runtime/fault"
)

// maxParts bounds the files of one upload.
const maxParts = 10_000

// uploaded is one file in the answer of an upload.
type uploaded struct {
	Path     string            `json:"path"`
	Name     string            `json:"name"`
	Type     string            `json:"type"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

// badRequest is a failure that the client can mend.
type badRequest struct{ error }

// upload (of a request) stores the body, or the files in it.
func (s *Service) upload(w http.ResponseWriter, r *http.Request, u *account.User) {
	meta, err := metadataFrom(r.Header)
	if err != nil {
		fault.HTTP(w, http.StatusBadRequest, "E4006", "invalid metadata: "+err.Error())
		return
	}
	body, err := decoded(r)
	if err != nil {
		fault.HTTP(w, http.StatusBadRequest, "E3006", "error decompressing request body: "+err.Error())
		return
	}
	up := &upload{svc: s, user: u, meta: meta, files: []uploaded{}}
	contentType, params, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	query := r.URL.Query()
	switch {
	case contentType == "multipart/form-data":
		err = up.multipart(multipart.NewReader(body, params["boundary"]), params["boundary"], query.Get("path"))
	case contentType != "application/octet-stream":
		err = badRequest{fmt.Errorf("unsupported content type: %s, expected multipart/form-data or application/octet-stream", r.Header.Get("Content-Type"))}
	case query.Get("path") == "":
		err = badRequest{errors.New("path query parameter is required for raw body upload")}
	default:
		err = up.file(query.Get("path"), body)
	}
	if err != nil {
		uploadError(w, err)
		return
	}
	answer, err := json.Marshal(up.files)
	if err != nil {
		fault.HTTP(w, http.StatusInternalServerError, "E3006", err.Error())
		return
	}
	// Clients parse it as JSON whatever it is called; envd calls it text.
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Write(answer)
}

// decoded is the body without its Content-Encoding.
func decoded(r *http.Request) (io.Reader, error) {
	switch enc := strings.ToLower(strings.TrimSpace(r.Header.Get("Content-Encoding"))); enc {
	case "", "identity":
		return r.Body, nil
	case "gzip":
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			return nil, fmt.Errorf("failed to create gzip reader: %w", err)
		}
		return z, nil
	default:
		return nil, fmt.Errorf("unsupported Content-Encoding: %s, supported: [gzip]", enc)
	}
}

// upload is one request under way.
type upload struct {
	svc   *Service
	user  *account.User
	meta  map[string]string
	files []uploaded
}

func (up *upload) multipart(r *multipart.Reader, boundary, target string) error {
	if boundary == "" {
		return errors.New("error parsing multipart form: no multipart boundary param in Content-Type")
	}
	for range maxParts {
		part, err := r.NextRawPart()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("error reading form: %w", err)
		}
		field, name, err := disposition(part.Header.Get("Content-Disposition"))
		if err != nil || field != "file" {
			continue
		}
		if target != "" {
			name = target
		}
		if name == "" {
			return badRequest{errors.New("error getting multipart custom part file name: filename not found in Content-Disposition header")}
		}
		if err := up.file(name, part); err != nil {
			return err
		}
	}
	return badRequest{fmt.Errorf("more than %d parts", maxParts)}
}

// disposition reads the field and the full file name of a part. The method of
// package multipart takes the folders off the name; here they say where the
// file goes.
func disposition(header string) (field, filename string, err error) {
	kind, params, err := mime.ParseMediaType(header)
	if err != nil {
		return "", "", err
	}
	if kind != "form-data" {
		return "", "", errors.New("part is not form data")
	}
	return params["name"], params["filename"], nil
}

// file stores one file.
func (up *upload) file(name string, content io.Reader) error {
	p, err := up.user.Path(name, up.svc.opts.WorkDir)
	if err != nil {
		return fmt.Errorf("error resolving path: %w", pathError(up.user, err))
	}
	for _, f := range up.files {
		if f.Path == p {
			return badRequest{fmt.Errorf("you cannot upload multiple files to the same path '%s' in one upload request, only the first specified file was uploaded", p)}
		}
	}
	fill := func(f *os.File, _ *fileID) error { return copyBody(f, up.svc.within()(content)) }
	if err := up.svc.store(up.user, p, up.meta, fill); err != nil {
		return err
	}
	up.files = append(up.files, uploaded{Path: p, Name: path.Base(p), Type: "file", Metadata: up.meta})
	return nil
}

// uploadError answers a failure to store a file.
func uploadError(w http.ResponseWriter, err error) {
	var bad badRequest
	if errors.As(err, &bad) {
		fault.HTTP(w, http.StatusBadRequest, "E3006", bad.Error())
		return
	}
	k := kindOf(err)
	if _, corrupt := errors.AsType[flate.CorruptInputError](err); corrupt || errors.Is(err, gzip.ErrHeader) || errors.Is(err, gzip.ErrChecksum) {
		k.status, k.code = http.StatusBadRequest, "E3006"
	}
	switch {
	case errors.Is(err, errSourceMissing):
		k = kindOf(unix.ENOENT)
	case errors.Is(err, unix.ENOENT):
		// Missing folders are made, so it is the file system that refuses.
		k.status, k.code = http.StatusInternalServerError, "E4000"
	}
	fault.HTTP(w, k.status, k.code, err.Error())
}
