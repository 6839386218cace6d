//go:build linux

package filesystem

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/runtime/account"
	"github.com/agent-sandbox/sandbox-go/runtime/fault"
)

// maxUnsized bounds what is sent of a file that says 0 for its size. Some files
// of /proc, such as pagemap, have no end that anybody would wait for.
const maxUnsized = 16 << 20

// Transfer serves GET and POST of /files.
func (s *Service) Transfer() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		serve := map[string]func(http.ResponseWriter, *http.Request, *account.User){
			http.MethodGet: s.download, http.MethodPost: s.upload,
		}[r.Method]
		if serve == nil {
			w.Header()["Allow"] = []string{http.MethodGet, http.MethodPost}
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		u, err := s.requestUser(r)
		if err != nil {
			userError(w, err)
			return
		}
		serve(w, r, u)
	})
}

// userError answers that the user of a request cannot act.
func userError(w http.ResponseWriter, err error) {
	status := http.StatusInternalServerError
	if _, ok := errors.AsType[*account.UnavailableError](err); ok {
		status = http.StatusUnauthorized
	}
	fault.HTTP(w, status, "E3008", err.Error())
}

// requestUser is the user that the query names. A name that is there but empty
// is a mistake, not the default.
func (s *Service) requestUser(r *http.Request) (*account.User, error) {
	q := r.URL.Query()
	if !q.Has("username") {
		return s.named(nil)
	}
	name := q.Get("username")
	return s.named(&name)
}

// download answers a file, or ranges of it, as it is, whatever compression the
// client offers: compressing large files that do not shrink takes more time than
// it saves. Only a client that refuses identity gets gzip.
func (s *Service) download(w http.ResponseWriter, r *http.Request, u *account.User) {
	identity, zipped := accepted(r.Header)
	if !identity && !zipped {
		fault.HTTP(w, http.StatusNotAcceptable, "E3006", "files are answered as identity or gzip only")
		return
	}
	p, err := u.Path(r.URL.Query().Get("path"), s.opts.WorkDir)
	if err != nil {
		httpError(w, "error resolving path", r.URL.Query().Get("path"), pathError(u, err))
		return
	}
	var f io.ReadSeekCloser
	var st unix.Stat_t
	err = u.Do(func() (err error) {
		f, st, err = s.guard.openRegular(p)
		return err
	})
	switch {
	case errors.Is(err, unix.ENOENT):
		fault.HTTP(w, http.StatusNotFound, "E4001", fmt.Sprintf("path '%s' does not exist", p))
		return
	case errors.Is(err, unix.EISDIR):
		fault.HTTP(w, http.StatusBadRequest, "E4003", fmt.Sprintf("path '%s' is a directory", p))
		return
	case err != nil:
		httpError(w, "error opening file", p, err)
		return
	}
	defer f.Close()
	w.Header().Set("Content-Disposition", mime.FormatMediaType("inline", map[string]string{"filename": path.Base(p)}))
	w.Header().Add("Vary", "Accept-Encoding")
	pw := newPatientWriter(w, r)
	defer pw.done()
	if !identity {
		sendZipped(pw, path.Base(p), f)
		return
	}
	if st.Size == 0 && copyUnsized(pw, f) {
		return
	}
	http.ServeContent(pw, r, path.Base(p), time.Unix(st.Mtim.Unix()), f)
}

// copyUnsized answers files that have content but say 0 for their size, as
// those of /proc do, up to maxUnsized. It reports false when there was nothing to
// read.
func copyUnsized(w http.ResponseWriter, f io.Reader) bool {
	first := make([]byte, 4<<10)
	n, _ := f.Read(first)
	if n == 0 {
		return false
	}
	w.Header().Set("Content-Type", http.DetectContentType(first[:n]))
	if _, err := w.Write(first[:n]); err == nil {
		// The status is sent; what goes wrong now cuts the answer short.
		sent, err := io.Copy(w, io.LimitReader(f, maxUnsized-int64(n)))
		if err == nil && sent == maxUnsized-int64(n) {
			if more, _ := f.Read(first); more > 0 {
				err = errTooLong
			}
		}
		if err != nil {
			panic(http.ErrAbortHandler)
		}
	}
	return true
}

// errTooLong never reaches a client: the answer is cut short.
var errTooLong = errors.New("more content than a file without a size may have")

// sendZipped answers a whole file, without the headers of one that can be had in
// ranges.
func sendZipped(w http.ResponseWriter, name string, f io.Reader) {
	contentType := mime.TypeByExtension(path.Ext(name))
	if contentType == "" {
		contentType = "application/octet-stream"
	}
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Content-Encoding", "gzip")
	z := gzip.NewWriter(w)
	_, err := io.Copy(z, f)
	if err == nil {
		err = z.Close()
	}
	if err != nil {
		panic(http.ErrAbortHandler) // the status is sent
	}
}

// accepted reports which of the two encodings the request allows, RFC 9110
// section 12.5.3.
func accepted(h http.Header) (identity, zipped bool) {
	qualities := map[string]float64{}
	for _, line := range h.Values("Accept-Encoding") {
		for item := range strings.SplitSeq(line, ",") {
			name, params, _ := strings.Cut(item, ";")
			q := 1.0
			if v, ok := strings.CutPrefix(strings.TrimSpace(params), "q="); ok {
				if f, err := strconv.ParseFloat(v, 64); err == nil {
					q = f
				}
			}
			qualities[strings.ToLower(strings.TrimSpace(name))] = q
		}
	}
	quality := func(name string, otherwise float64) float64 {
		for _, n := range []string{name, "*"} {
			if q, ok := qualities[n]; ok {
				return q
			}
		}
		return otherwise
	}
	return quality("identity", 1) > 0, quality("gzip", 0) > 0
}
