//go:build linux

package httpapi

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/agent-sandbox/sandbox-go/runtime/endpoint"
	"github.com/agent-sandbox/sandbox-go/runtime/fault"
	"github.com/agent-sandbox/sandbox-go/runtime/process"
)

const (
	gitTime = 30 * time.Second
	maxDiff = 1 << 20 // bytes of a diff in an answer
)

func (a *API) gitRows() []endpoint.Endpoint {
	where := endpoint.Param{Name: "path", Type: "string", Summary: "folder of the repository, without it the one of the sandbox"}
	refused := []endpoint.Error{
		{Status: 400, Code: "E3012", Summary: "the folder cannot be used"},
		{Status: 403, Code: "E8020", Summary: "the path is refused by the policy"},
		{Status: 404, Code: "E4001", Summary: "no such folder"},
		{Status: 404, Code: "E3007", Summary: "the sandbox has no git"},
		{Status: 409, Code: "E3002", Summary: "git refuses, such as where no repository is"},
		{Status: 408, Code: "E3001", Summary: "git took more than 30 s"},
	}
	return []endpoint.Endpoint{
		{
			Name: "dev_tools.git_status", Method: http.MethodGet, Path: "/git/status", Off: true,
			Summary: "What has changed in a git repository.", Query: []endpoint.Param{where},
			Response: GitStatus{}, Errors: refused, Handle: a.gitStatus,
		},
		{
			Name: "dev_tools.git_diff", Method: http.MethodGet, Path: "/git/diff", Off: true,
			Summary: "The changes themselves.",
			Query: []endpoint.Param{
				where, {Name: "staged", Type: "boolean", Default: "false", Summary: "those of the index"},
				{Name: "file", Type: "string", Summary: "of one path, relative to the folder"},
			},
			Response: GitDiff{}, Errors: refused, Handle: a.gitDiff,
		},
	}
}

// GitStatus is the answer of GET /git/status.
type GitStatus struct {
	Branch string    `json:"branch" doc:"empty where none is checked out"`
	Clean  bool      `json:"clean"`
	Files  []GitFile `json:"files"`
}

// GitFile is one that has changed.
type GitFile struct {
	Path   string `json:"path" doc:"relative to the top of the repository"`
	From   string `json:"from,omitempty" doc:"the path before, of one that was renamed or copied"`
	Status string `json:"status" enum:"modified,added,deleted,renamed,copied,type_changed,untracked,unmerged"`
	Staged bool   `json:"staged" doc:"whether a change of it is in the index"`
}

// GitDiff is the answer of GET /git/diff.
type GitDiff struct {
	Diff      string   `json:"diff"`
	Truncated bool     `json:"truncated" doc:"whether the diff is longer than 1 MiB"`
	Stats     GitStats `json:"stats" doc:"of the whole diff"`
}

// GitStats counts changes. Binary files have no lines.
type GitStats struct {
	FilesChanged int `json:"files_changed"`
	Insertions   int `json:"insertions"`
	Deletions    int `json:"deletions"`
}

// git runs git in the folder of the query; when ok is false, it has answered.
func (a *API) git(w http.ResponseWriter, r *http.Request, args ...string) (out string, lost bool, ok bool) {
	dir := r.URL.Query().Get("path")
	// The folder is a path as any other: what reads files must allow it, too.
	if _, err := a.opts.Files.Describe(r.Context(), dir); err != nil {
		fault.Answer(w, err)
		return "", false, false
	}
	res, err := a.run(process.Declared(r.Context()), &plan{
		// No monitor, hook, pager or differ that a repository names is started.
		argv: append([]string{"git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "core.quotePath=false", "--no-pager"}, args...),
		RunOptions: RunOptions{Cwd: dir, Env: map[string]string{
			"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C.UTF-8",
		}},
		limit: gitTime,
	})
	if err == nil && res.ExitCode != 0 {
		fault.HTTP(w, http.StatusConflict, "E3002", "git: "+tailOf(strings.TrimSpace(res.Stderr)))
		return "", false, false
	}
	if err != nil {
		fault.Answer(w, err)
		return "", false, false
	}
	return res.Stdout, res.StdoutLost > 0, true
}

func (a *API) gitStatus(w http.ResponseWriter, r *http.Request) {
	out, _, ok := a.git(w, r, "status", "--porcelain=v2", "--branch", "-z", "--untracked-files=all")
	if !ok {
		return
	}
	s, err := readStatus(out)
	if err != nil {
		fault.HTTP(w, http.StatusBadGateway, "E3002", err.Error())
		return
	}
	endpoint.Answer(w, s)
}

// gitWords are the letters of git-status(1).
var gitWords = map[byte]string{'M': "modified", 'A': "added", 'D': "deleted", 'R': "renamed", 'C': "copied", 'T': "type_changed"}

// readStatus reads what git-status(1) calls porcelain format version 2, with NUL.
func readStatus(out string) (GitStatus, error) {
	s := GitStatus{Files: []GitFile{}}
	bad := errors.New("git said something that is not a status")
	items := strings.Split(strings.TrimSuffix(out, "\x00"), "\x00")
	for i := 0; i < len(items); i++ {
		kind, rest, _ := strings.Cut(items[i], " ")
		f := GitFile{}
		n := 0 // of the fields before the path
		switch kind {
		case "#":
			if head, ok := strings.CutPrefix(rest, "branch.head "); ok && head != "(detached)" {
				s.Branch = head
			}
			continue
		case "":
			continue
		case "?":
			f.Status = "untracked"
		case "1":
			n = 7
		case "2":
			n = 8
		case "u":
			n, f.Status = 9, "unmerged"
		default:
			return s, bad
		}
		fields := strings.SplitN(rest, " ", n+1)
		if len(fields) != n+1 || n > 0 && len(fields[0]) != 2 {
			return s, bad
		}
		f.Path = fields[n]
		if kind == "1" || kind == "2" {
			index, tree := fields[0][0], fields[0][1]
			f.Staged = index != '.'
			if f.Status = gitWords[index]; f.Status == "" {
				f.Status = gitWords[tree]
			}
		}
		if kind == "2" {
			if i++; i == len(items) {
				return s, bad
			}
			f.From = items[i]
		}
		s.Files = append(s.Files, f)
	}
	s.Clean = len(s.Files) == 0
	return s, nil
}

func (a *API) gitDiff(w http.ResponseWriter, r *http.Request) {
	staged, ok := endpoint.Bool(w, r, "staged")
	if !ok {
		return
	}
	args := []string{"diff", "--no-ext-diff", "--no-textconv", "--no-color"}
	if staged {
		args = append(args, "--cached")
	}
	var paths []string
	if file := r.URL.Query().Get("file"); file != "" {
		paths = []string{"--", ":(literal)" + file}
	}
	counts, _, ok := a.git(w, r, append(append(args, "--numstat", "-z"), paths...)...)
	if !ok {
		return
	}
	diff, lost, ok := a.git(w, r, append(args, paths...)...)
	if !ok {
		return
	}
	d := GitDiff{Stats: readNumstat(counts), Truncated: lost || len(diff) > maxDiff}
	if len(diff) > maxDiff {
		diff = diff[:maxDiff-unfinished([]byte(diff[:maxDiff]))]
	}
	d.Diff = diff
	endpoint.Answer(w, d)
}

// readNumstat counts what git-diff(1) lists as "1\t2\tpath"; of a renamed file the
// two paths follow by themselves.
func readNumstat(out string) (s GitStats) {
	for item := range strings.SplitSeq(out, "\x00") {
		f := strings.SplitN(item, "\t", 3)
		if len(f) != 3 {
			continue
		}
		s.FilesChanged++
		added, _ := strconv.Atoi(f[0]) // "-" of a binary file is 0
		deleted, _ := strconv.Atoi(f[1])
		s.Insertions += added
		s.Deletions += deleted
	}
	return s
}
