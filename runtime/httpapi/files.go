//go:build linux

package httpapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"path"
	"time"

	"connectrpc.com/connect"

	pb "github.com/agent-sandbox/sandbox-go/internal/pb/filesystem"
	"github.com/agent-sandbox/sandbox-go/runtime/account"
	"github.com/agent-sandbox/sandbox-go/runtime/endpoint"
	"github.com/agent-sandbox/sandbox-go/runtime/fault"
	"github.com/agent-sandbox/sandbox-go/runtime/filesystem"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// Limits of one answer about files.
const (
	defaultEntries = 1000
	maxEntries     = 10_000
	defaultDepth   = 3
	maxDepth       = 256
	searchDepth    = 5
	searchResults  = 100
	searchTime     = 10 * time.Second
	// maxJSONFile bounds a body with a file of maxInlineFile bytes in base64.
	maxJSONFile = maxInlineFile/3*4 + 64<<10
)

const binary = "application/octet-stream"

func (a *API) fileRows() []endpoint.Endpoint {
	where := endpoint.Param{Name: "path", Type: "string", Required: true, Summary: "absolute, or below the home of the user"}
	missing := endpoint.Error{Status: 404, Code: "E4001", Summary: "not there"}
	denied := endpoint.Error{Status: 403, Code: "E4002", Summary: "not allowed to the user"}
	policy := endpoint.Error{Status: 403, Code: "E8020", Summary: "refused by the policy"}
	wrong := endpoint.Error{Status: 409, Code: "E4003", Summary: "another kind of file"}
	full := endpoint.Error{Status: 507, Code: "E4004", Summary: "no space"}
	large := endpoint.Error{Status: 413, Code: "E3006", Summary: "more than 16 MiB; use the stream"}
	return []endpoint.Endpoint{
		{
			Name: "file_ops.upload", Method: http.MethodPost, Path: "/upload",
			Summary: "Write a small file, in base64. Missing folders are made.",
			Request: UploadRequest{}, Response: Uploaded{}, Errors: []endpoint.Error{denied, policy, wrong, large, full}, Handle: a.upload,
		},
		{
			Name: "file_ops.download", Method: http.MethodGet, Path: "/download",
			Summary: "Read a small file, in base64.", Query: []endpoint.Param{where},
			Response: Downloaded{}, Errors: []endpoint.Error{missing, denied, policy, wrong, large}, Handle: a.download,
		},
		{
			Name: "file_ops.upload", Method: http.MethodPost, Path: "/files/upload-stream",
			Summary: "Write a file: the body as it is. Nobody sees a part of it.", Query: []endpoint.Param{where},
			Accepts: binary, Response: Uploaded{}, Errors: []endpoint.Error{denied, policy, wrong, full}, Handle: a.uploadStream,
		},
		{
			Name: "file_ops.download", Method: http.MethodGet, Path: "/files/download-stream",
			Summary: "Read a file as it is, or ranges of it.", Query: []endpoint.Param{where},
			Produces: binary, Errors: []endpoint.Error{missing, denied, policy, {Status: 400, Code: "E4003", Summary: "another kind of file"}}, Handle: a.opts.send,
		},
		{
			Name: "file_ops.list", Method: http.MethodGet, Path: "/files/list",
			Summary: "List a folder.", Response: FileList{}, Handle: a.list,
			Query: []endpoint.Param{
				where, {Name: "recursive", Type: "boolean", Default: "false"},
				{Name: "max_depth", Type: "integer", Default: "3", Summary: "levels of a recursive list, at most 256"},
				{Name: "max_entries", Type: "integer", Default: "1000", Summary: "at most 10000"},
			},
			Errors: []endpoint.Error{missing, denied, policy, wrong},
		},
		{
			Name: "file_ops.stat", Method: http.MethodGet, Path: "/files/stat",
			Summary: "Describe a path; a link is described by itself.", Query: []endpoint.Param{where},
			Response: FileStat{}, Errors: []endpoint.Error{denied, policy}, Handle: a.stat,
		},
		{
			Name: "file_ops.mkdir", Method: http.MethodPost, Path: "/files/mkdir",
			Summary: "Make a folder and the ones above it.",
			Request: PathRequest{}, Response: Made{}, Errors: []endpoint.Error{denied, policy, wrong}, Handle: a.mkdir,
		},
		{
			Name: "file_ops.remove", Method: http.MethodDelete, Path: "/files",
			Summary: "Remove a path and all below it, but not the folder that the sandbox works in.", Query: []endpoint.Param{where},
			Response: Removed{}, Errors: []endpoint.Error{missing, denied, policy}, Handle: a.remove,
		},
		{
			Name: "file_ops.move", Method: http.MethodPost, Path: "/files/move",
			Summary: "Rename. A file at the destination is replaced, a folder is not.",
			Request: MoveRequest{}, Response: Moved{}, Handle: a.move,
			Errors: []endpoint.Error{missing, denied, policy, {Status: 409, Code: "E4005", Summary: "a folder is there"}},
		},
		{
			Name: "file_ops.search", Method: http.MethodPost, Path: "/files/search",
			Summary: "Find names by a pattern, for at most 10 s.",
			Request: SearchRequest{}, Response: SearchResult{}, Errors: []endpoint.Error{missing, denied, policy}, Handle: a.search,
		},
		{
			Name: "file_ops.archive", Method: http.MethodPost, Path: "/files/archive",
			Summary: "Read files and folders as one archive.",
			Request: ArchiveRequest{}, Produces: binary, Handle: a.archive,
			Errors: []endpoint.Error{missing, denied, policy, {Status: 413, Code: "E4000", Summary: "more than 10000 entries"}},
		},
	}
}

// send is that of the file service; of the zero Options it cannot be called.
func (o *Options) send(w http.ResponseWriter, r *http.Request) {
	if pathOf(w, r) != "" {
		o.Files.Send(w, r)
	}
}

// pathOf is the path of the query; when it is empty, pathOf has answered.
func pathOf(w http.ResponseWriter, r *http.Request) string {
	p := r.URL.Query().Get("path")
	if p == "" {
		endpoint.Refuse(w, "path is missing")
	}
	return p
}

// UploadRequest is a small file.
type UploadRequest struct {
	Path    string `json:"path" required:"true"`
	Content []byte `json:"content_base64" required:"true"`
}

// Uploaded says what was written.
type Uploaded struct {
	Path  string `json:"path" doc:"absolute"`
	Bytes int64  `json:"bytes"`
}

func (a *API) upload(w http.ResponseWriter, r *http.Request) {
	var req UploadRequest
	if !endpoint.DecodeMax(w, r, &req, maxJSONFile) {
		return
	}
	switch {
	case req.Path == "":
		endpoint.Refuse(w, "path is missing")
	case req.Content == nil:
		endpoint.Refuse(w, "content_base64 is missing")
	case len(req.Content) > maxInlineFile:
		fault.HTTP(w, http.StatusRequestEntityTooLarge, "E3006", "the file is larger than 16 MiB; use /files/upload-stream")
	default:
		a.receive(w, r, req.Path, bytes.NewReader(req.Content))
	}
}

func (a *API) uploadStream(w http.ResponseWriter, r *http.Request) {
	if p := pathOf(w, r); p != "" {
		a.receive(w, r, p, r.Body)
	}
}

func (a *API) receive(w http.ResponseWriter, r *http.Request, p string, content io.Reader) {
	abs, n, err := a.opts.Files.Receive(r.Context(), p, content)
	if err != nil {
		fault.Answer(w, err)
		return
	}
	endpoint.Answer(w, Uploaded{abs, n})
}

// Downloaded is a small file.
type Downloaded struct {
	Path    string `json:"path"`
	Content []byte `json:"content_base64"`
}

func (a *API) download(w http.ResponseWriter, r *http.Request) {
	p := pathOf(w, r)
	if p == "" {
		return
	}
	f, _, err := a.opts.Files.Open(r.Context(), p)
	if err != nil {
		fault.Answer(w, err)
		return
	}
	defer f.Close()
	// Some files say nothing of their size.
	content, err := io.ReadAll(io.LimitReader(f, maxInlineFile+1))
	switch {
	case err != nil:
		fault.HTTP(w, http.StatusInternalServerError, "E4000", "error reading file: "+err.Error())
	case len(content) > maxInlineFile:
		fault.HTTP(w, http.StatusRequestEntityTooLarge, "E3006", "the file is larger than 16 MiB; use /files/download-stream")
	default:
		endpoint.Answer(w, Downloaded{p, content})
	}
}

// FileEntry is one entry of a list.
type FileEntry struct {
	Name     string    `json:"name"`
	Path     string    `json:"path" doc:"relative to the folder that was asked about"`
	Type     string    `json:"type" enum:"file,directory,symlink,other"`
	Size     int64     `json:"size"`
	Modified time.Time `json:"modified"`
}

func entryOf(f *filesystem.Found) FileEntry {
	d := f.Details
	return FileEntry{d.Name, f.Path, typeOf(d.Mode), d.Size, d.Modified}
}

func typeOf(m fs.FileMode) string {
	switch m.Type() {
	case 0:
		return "file"
	case fs.ModeDir:
		return "directory"
	case fs.ModeSymlink:
		return "symlink"
	}
	return "other"
}

// FileList is the answer of GET /files/list.
type FileList struct {
	Entries   []FileEntry `json:"entries" doc:"each level sorted by name, a folder before its content"`
	Truncated bool        `json:"truncated" doc:"whether there are more"`
}

func (a *API) list(w http.ResponseWriter, r *http.Request) {
	p := pathOf(w, r)
	if p == "" {
		return
	}
	recursive, ok := endpoint.Bool(w, r, "recursive")
	if !ok {
		return
	}
	depth, ok := endpoint.Int(w, r, "max_depth", defaultDepth, maxDepth)
	if !ok {
		return
	}
	most, ok := endpoint.Int(w, r, "max_entries", defaultEntries, maxEntries)
	if !ok {
		return
	}
	if !recursive {
		depth = 1
	}
	most = a.opts.Files.MaxEntries(most)
	l := FileList{Entries: []FileEntry{}}
	err := a.opts.Files.Walk(r.Context(), p, depth, func(f *filesystem.Found) error {
		if f.Path == "." {
			return fault.New(connect.CodeInvalidArgument, "E4003", "path is not a directory: %s", f.Details.Path)
		}
		if len(l.Entries) == most {
			l.Truncated = true
			return fs.SkipAll
		}
		l.Entries = append(l.Entries, entryOf(f))
		return nil
	})
	if err != nil {
		fault.Answer(w, err)
		return
	}
	endpoint.Answer(w, l)
}

// FileStat is the answer of GET /files/stat.
type FileStat struct {
	Exists      bool       `json:"exists" doc:"false: nothing else is said but name and path"`
	Name        string     `json:"name"`
	Path        string     `json:"path"`
	Type        string     `json:"type,omitempty" enum:"file,directory,symlink,other"`
	Size        int64      `json:"size"`
	Permissions string     `json:"permissions,omitempty" doc:"in octal, such as 0644"`
	Owner       string     `json:"owner,omitempty"`
	Group       string     `json:"group,omitempty"`
	Target      string     `json:"target,omitempty" doc:"of a link"`
	Modified    *time.Time `json:"modified,omitempty"`
	Accessed    *time.Time `json:"accessed,omitempty"`
	Changed     *time.Time `json:"changed,omitempty" doc:"of what is said here"`
	Created     *time.Time `json:"created,omitempty" doc:"where the file system knows"`
}

func (a *API) stat(w http.ResponseWriter, r *http.Request) {
	p := pathOf(w, r)
	if p == "" {
		return
	}
	d, err := a.opts.Files.Describe(r.Context(), p)
	if err != nil {
		if _, code, _ := fault.Of(err); code == "E4001" {
			endpoint.Answer(w, FileStat{Name: path.Base(p), Path: p})
			return
		}
		fault.Answer(w, err)
		return
	}
	s := FileStat{
		Exists: true, Name: d.Name, Path: d.Path, Type: typeOf(d.Mode), Size: d.Size, Owner: d.Owner, Group: d.Group, Target: d.Target,
		Permissions: fmt.Sprintf("%04o", permissions(d.Mode)),
		Modified:    &d.Modified, Accessed: &d.Accessed, Changed: &d.Changed,
	}
	if !d.Created.IsZero() {
		s.Created = &d.Created
	}
	endpoint.Answer(w, s)
}

// permissions is m as chmod(1) takes it.
func permissions(m fs.FileMode) uint32 {
	p := uint32(m.Perm())
	for bit, mode := range map[uint32]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if m&mode != 0 {
			p |= bit
		}
	}
	return p
}

// PathRequest names a path.
type PathRequest struct {
	Path string `json:"path" required:"true"`
}

// Made is the answer of POST /files/mkdir.
type Made struct {
	Path    string `json:"path"`
	Created bool   `json:"created" doc:"false: it was there"`
}

func (a *API) mkdir(w http.ResponseWriter, r *http.Request) {
	var req PathRequest
	if !endpoint.Decode(w, r, &req) {
		return
	}
	if req.Path == "" {
		endpoint.Refuse(w, "path is missing")
		return
	}
	resp, err := a.opts.Files.MakeDir(r.Context(), connect.NewRequest(&pb.MakeDirRequest{Path: req.Path}))
	switch {
	case err == nil:
		endpoint.Answer(w, Made{resp.Msg.GetEntry().GetPath(), true})
	case codeOf(err) == "E4005":
		endpoint.Answer(w, Made{req.Path, false})
	default:
		fault.Answer(w, err)
	}
}

func codeOf(err error) errdefs.Code {
	_, code, _ := fault.Of(err)
	return code
}

// Removed is the answer of DELETE /files.
type Removed struct {
	Path    string `json:"path"`
	Deleted bool   `json:"deleted"`
}

func (a *API) remove(w http.ResponseWriter, r *http.Request) {
	p := pathOf(w, r)
	if p == "" {
		return
	}
	keep := []string{account.FromContext(r.Context()).Home}
	if a.opts.WorkDir != "" {
		keep = append(keep, a.opts.WorkDir)
	}
	if err := a.opts.Files.Delete(r.Context(), p, keep...); err != nil {
		fault.Answer(w, err)
		return
	}
	endpoint.Answer(w, Removed{p, true})
}

// MoveRequest renames.
type MoveRequest struct {
	Source      string `json:"source" required:"true"`
	Destination string `json:"destination" required:"true"`
}

// Moved is the answer of POST /files/move.
type Moved struct {
	Source      string `json:"source"`
	Destination string `json:"destination" doc:"absolute"`
}

func (a *API) move(w http.ResponseWriter, r *http.Request) {
	var req MoveRequest
	if !endpoint.Decode(w, r, &req) {
		return
	}
	if req.Source == "" || req.Destination == "" {
		endpoint.Refuse(w, "source or destination is missing")
		return
	}
	resp, err := a.opts.Files.Move(r.Context(), connect.NewRequest(&pb.MoveRequest{Source: req.Source, Destination: req.Destination}))
	if err != nil {
		fault.Answer(w, err)
		return
	}
	endpoint.Answer(w, Moved{req.Source, resp.Msg.GetEntry().GetPath()})
}

// SearchRequest looks for names.
type SearchRequest struct {
	Path       string `json:"path" required:"true"`
	Pattern    string `json:"pattern" required:"true" doc:"of a name, with * ? and [abc]"`
	Type       string `json:"type,omitempty" doc:"file: all but folders" enum:"file,directory,any" default:"file"`
	MaxDepth   *int   `json:"max_depth,omitempty" doc:"levels, at most 256" default:"5"`
	MaxResults *int   `json:"max_results,omitempty" doc:"at most 10000" default:"100"`
}

// SearchResult is the answer of POST /files/search.
type SearchResult struct {
	Results   []FileEntry `json:"results"`
	Truncated bool        `json:"truncated" doc:"whether there may be more"`
	TimedOut  bool        `json:"timed_out" doc:"whether the time was over before the end"`
}

func (a *API) search(w http.ResponseWriter, r *http.Request) {
	var req SearchRequest
	if !endpoint.Decode(w, r, &req) {
		return
	}
	depth, most := searchDepth, searchResults
	if req.MaxDepth != nil {
		depth = *req.MaxDepth
	}
	if req.MaxResults != nil {
		most = *req.MaxResults
	}
	_, bad := path.Match(req.Pattern, "")
	switch {
	case req.Path == "" || req.Pattern == "":
		endpoint.Refuse(w, "path or pattern is missing")
		return
	case bad != nil:
		endpoint.Refuse(w, "pattern is malformed")
		return
	case depth < 1 || depth > maxDepth || most < 1 || most > maxEntries:
		endpoint.Refuse(w, "max_depth is not from 1 to %d, or max_results not from 1 to %d", maxDepth, maxEntries)
		return
	case req.Type != "" && req.Type != "file" && req.Type != "directory" && req.Type != "any":
		endpoint.Refuse(w, "type is %q, not file, directory or any", req.Type)
		return
	}
	most = a.opts.Files.MaxEntries(most)
	ctx, cancel := context.WithTimeout(r.Context(), searchTime)
	defer cancel()
	res := SearchResult{Results: []FileEntry{}}
	err := a.opts.Files.Walk(ctx, req.Path, depth, func(f *filesystem.Found) error {
		folder := f.Details.Mode.IsDir()
		if req.Type == "directory" && !folder || (req.Type == "" || req.Type == "file") && folder {
			return nil
		}
		if ok, _ := path.Match(req.Pattern, f.Details.Name); !ok {
			return nil
		}
		if len(res.Results) == most {
			res.Truncated = true
			return fs.SkipAll
		}
		res.Results = append(res.Results, entryOf(f))
		return nil
	})
	if err != nil && r.Context().Err() == nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		res.TimedOut, res.Truncated, err = true, true, nil
	}
	if err != nil {
		fault.Answer(w, err)
		return
	}
	endpoint.Answer(w, res)
}
