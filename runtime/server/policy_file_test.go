//go:build linux

package server

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	pb "github.com/agent-sandbox/sandbox-go/internal/pb/filesystem"
	"github.com/agent-sandbox/sandbox-go/runtime/fault"
	"github.com/agent-sandbox/sandbox-go/runtime/httpapi"
	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// fileDoor is one way to reach a path. Do returns what it got of it, or how it is
// refused.
type fileDoor struct {
	name   string
	write  bool // it changes the path
	itself bool // a link is meant itself
	do     func(t *testing.T, r *rig, p string) (string, error)
}

// answered is a refusal of plain HTTP as an error, nil for success.
func answered(status, body string) error {
	if strings.HasPrefix(status, "2") {
		return nil
	}
	return errors.New(status + " " + body)
}

// fileDoors are all ways to a path that a client names. Those that need a file
// beside it find one in "in/file" of the working folder.
var fileDoors = []fileDoor{
	{"stat", false, true, func(t *testing.T, r *rig, p string) (string, error) {
		e, err := r.stat(t.Context(), p)
		return e.String(), coded(err)
	}},
	{"list", false, false, func(t *testing.T, r *rig, p string) (string, error) {
		list, err := r.ls(t.Context(), filepath.Dir(p), 3)
		return fmt.Sprint(list), coded(err)
	}},
	{"download", false, false, func(t *testing.T, r *rig, p string) (string, error) {
		status, body := r.download(t, p)
		return body, answered(status, body)
	}},
	{"watch", false, false, func(t *testing.T, r *rig, p string) (string, error) {
		resp, err := r.files.CreateWatcher(t.Context(), connect.NewRequest(&pb.CreateWatcherRequest{Path: filepath.Dir(p), Recursive: true}))
		if err == nil {
			_, err = r.files.RemoveWatcher(t.Context(), connect.NewRequest(&pb.RemoveWatcherRequest{WatcherId: resp.Msg.WatcherId}))
		}
		return "", coded(err)
	}},
	{"source of compose", true, false, func(t *testing.T, r *rig, p string) (string, error) {
		to := r.opts.DefaultWorkDir + "/in/composed"
		status, body := r.compose(t, `{"source_paths":[`+strconv.Quote(p)+`],"destination":`+strconv.Quote(to)+`}`)
		content, _ := os.ReadFile(to)
		return string(content), answered(status, body)
	}},
	{"destination of compose", true, false, func(t *testing.T, r *rig, p string) (string, error) {
		part := r.opts.DefaultWorkDir + "/in/part"
		check(t, os.WriteFile(part, []byte("new"), 0o644))
		status, body := r.compose(t, `{"source_paths":[`+strconv.Quote(part)+`],"destination":`+strconv.Quote(p)+`}`)
		return "", answered(status, body)
	}},
	{"upload", true, false, func(t *testing.T, r *rig, p string) (string, error) {
		status := r.upload(t, p, strings.NewReader("new"))
		return "", answered(status, "")
	}},
	{"upload below it", true, false, func(t *testing.T, r *rig, p string) (string, error) {
		status := r.upload(t, filepath.Dir(p)+"/new/folder/file", strings.NewReader("new"))
		return "", answered(status, "")
	}},
	{"mkdir", true, false, func(t *testing.T, r *rig, p string) (string, error) {
		_, err := r.files.MakeDir(t.Context(), connect.NewRequest(&pb.MakeDirRequest{Path: filepath.Dir(p) + "/a/b"}))
		return "", coded(err)
	}},
	{"move away", true, true, func(t *testing.T, r *rig, p string) (string, error) {
		return "", coded(r.move(t.Context(), p, r.opts.DefaultWorkDir+"/in/moved"))
	}},
	{"move there", true, true, func(t *testing.T, r *rig, p string) (string, error) {
		check(t, os.WriteFile(r.opts.DefaultWorkDir+"/in/mover", []byte("new"), 0o644))
		return "", coded(r.move(t.Context(), r.opts.DefaultWorkDir+"/in/mover", p))
	}},
	{"remove", true, true, func(t *testing.T, r *rig, p string) (string, error) {
		return "", coded(r.remove(t.Context(), p))
	}},
	{"HTTP stat", false, true, func(t *testing.T, r *rig, p string) (string, error) {
		return r.asked(t, "GET", "/files/stat?path="+url.QueryEscape(p), "")
	}},
	{"HTTP list", false, false, func(t *testing.T, r *rig, p string) (string, error) {
		return r.asked(t, "GET", "/files/list?recursive=true&path="+url.QueryEscape(filepath.Dir(p)), "")
	}},
	{"HTTP search", false, false, func(t *testing.T, r *rig, p string) (string, error) {
		return r.asked(t, "POST", "/files/search", fmt.Sprintf(`{"path":%q,"pattern":"*"}`, filepath.Dir(p)))
	}},
	{"HTTP download", false, false, func(t *testing.T, r *rig, p string) (string, error) {
		body, err := r.asked(t, "GET", "/download?path="+url.QueryEscape(p), "")
		return decoded(body), err
	}},
	{"HTTP download as a stream", false, false, func(t *testing.T, r *rig, p string) (string, error) {
		return r.asked(t, "GET", "/files/download-stream?path="+url.QueryEscape(p), "")
	}},
	{"HTTP archive", false, false, func(t *testing.T, r *rig, p string) (string, error) {
		body, err := r.asked(t, "POST", "/files/archive", fmt.Sprintf(`{"paths":[%q]}`, filepath.Dir(p)))
		return unzipped(body), err
	}},
	{"HTTP upload", true, false, func(t *testing.T, r *rig, p string) (string, error) {
		return r.asked(t, "POST", "/upload", fmt.Sprintf(`{"path":%q,"content_base64":"bmV3"}`, p))
	}},
	{"HTTP upload as a stream", true, false, func(t *testing.T, r *rig, p string) (string, error) {
		return r.asked(t, "POST", "/files/upload-stream?path="+url.QueryEscape(p), "new")
	}},
	{"HTTP mkdir", true, false, func(t *testing.T, r *rig, p string) (string, error) {
		return r.asked(t, "POST", "/files/mkdir", fmt.Sprintf(`{"path":%q}`, filepath.Dir(p)+"/a/b"))
	}},
	{"HTTP move away", true, true, func(t *testing.T, r *rig, p string) (string, error) {
		return r.asked(t, "POST", "/files/move", fmt.Sprintf(`{"source":%q,"destination":%q}`, p, r.opts.DefaultWorkDir+"/in/moved"))
	}},
	{"HTTP move there", true, true, func(t *testing.T, r *rig, p string) (string, error) {
		check(t, os.WriteFile(r.opts.DefaultWorkDir+"/in/mover", []byte("new"), 0o644))
		return r.asked(t, "POST", "/files/move", fmt.Sprintf(`{"source":%q,"destination":%q}`, r.opts.DefaultWorkDir+"/in/mover", p))
	}},
	{"HTTP remove", true, true, func(t *testing.T, r *rig, p string) (string, error) {
		return r.asked(t, "DELETE", "/files?path="+url.QueryEscape(p), "")
	}},
}

// asked is a request of the HTTP API as a door gives it.
func (r *rig) asked(t *testing.T, method, path, body string) (string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://sandbox"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := r.http.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body) // an archive may be cut short
	a := apiAnswer{resp.StatusCode, resp.Header.Get(fault.Header), resp.Header, string(b)}
	if a.status >= 300 {
		return "", a.refusal()
	}
	return a.body, err
}

// decoded is a JSON answer with the content in it as it is.
func decoded(body string) string {
	var d httpapi.Downloaded
	if json.Unmarshal([]byte(body), &d) != nil {
		return body
	}
	return string(d.Content)
}

// unzipped is the content of a compressed answer.
func unzipped(body string) string {
	z, err := gzip.NewReader(strings.NewReader(body))
	if err != nil {
		return body
	}
	b, _ := io.ReadAll(z)
	return string(b)
}

// takesFolder are doors that take the folder of a path.
var takesFolder = map[string]bool{
	"list": true, "watch": true, "mkdir": true, "HTTP list": true, "HTTP search": true, "HTTP archive": true, "HTTP mkdir": true,
}

const secret = "content that nobody may see"

// fileTree makes what the tests of file rules are about.
func fileTree(t *testing.T, dir string) {
	t.Helper()
	for _, d := range []string{"in", "in/sub/.ssh", "ro", "out/sub", "in-side", "in/denied/deep"} {
		check(t, os.MkdirAll(dir+"/"+d, 0o755))
	}
	for _, f := range []string{"in/file", "in/sub/file", "ro/file"} {
		check(t, os.WriteFile(dir+"/"+f, []byte("plain"), 0o644))
	}
	for _, f := range []string{"out/file", "out/sub/file", "in/sub/.ssh/key", "in/denied/file", "in/denied/deep/file", "in-side/file"} {
		check(t, os.WriteFile(dir+"/"+f, []byte(secret), 0o644))
	}
	check(t,
		os.Symlink(dir+"/out/file", dir+"/in/link"), os.Symlink("../out", dir+"/in/way"), os.Symlink("sub", dir+"/in/near"),
		os.Symlink(dir+"/ro", dir+"/in/ro"), os.Symlink(dir+"/out/none", dir+"/in/dangling"))
}

// snapshot is every path below dir with its content.
func snapshot(t *testing.T, dir string) string {
	t.Helper()
	var all []string
	check(t, filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		content := ""
		if err == nil && d.Type().IsRegular() {
			b, e := os.ReadFile(p)
			content, err = string(b), e
		}
		all = append(all, strings.TrimPrefix(p, dir)+"="+content)
		return err
	}))
	return strings.Join(all, "\n")
}

// TestFileRules asks every door for every path.
func TestFileRules(t *testing.T) {
	const read, write, deny = `files.read is`, `files.write is`, `files.deny "`
	for _, c := range []struct {
		path          string
		reads, writes string // the rule that refuses; empty: none
		itself        string // the rule for a link itself, where that is another one
	}{
		{"in/file", "", "", ""},
		{"in/sub/file", "", "", ""},
		{"in/near/file", "", "", ""}, // over a link that stays inside
		{"ro/file", "", write, ""},
		{"in/ro/file", "", write, ""},
		{"out/file", read, read, ""},
		{"in-side/file", read, read, ""}, // begins like a folder that may be read
		{"in/../out/file", read, read, ""},
		{"in/way/file", read, read, ""},
		{"in/way/sub/file", read, read, ""},
		{"out/none", read, read, ""}, // not told apart from what is there
		{"in/sub/.ssh/key", deny, deny, ""},
		{"in/near/.ssh/key", deny, deny, ""},
		{"in/denied/file", deny, deny, ""},
		{"in/denied/deep/file", deny, deny, ""},
		{"in/denied/none", deny, deny, ""},
	} {
		for _, d := range fileDoors {
			t.Run(d.name+" "+c.path, func(t *testing.T) {
				dir := realTempDir(t)
				fileTree(t, dir)
				r := newRig(t, func(o *Options) {
					o.DefaultWorkDir = dir
					o.Template = &model.Template{Policy: model.Policy{Files: model.FilePolicy{
						Read: []string{dir + "/in", dir + "/ro"}, Write: []string{dir + "/in"}, Deny: []string{"**/.ssh/**", dir + "/in/denied"},
					}}}
				})
				want := c.reads
				if d.write {
					want = c.writes
				}
				before := snapshot(t, dir+"/out") + snapshot(t, dir+"/ro") + snapshot(t, dir+"/in/denied") + snapshot(t, dir+"/in/sub/.ssh")
				got, err := d.do(t, r, dir+"/"+c.path)
				switch {
				case want == "" && err != nil:
					t.Errorf("got %v", err)
				case want != "" && err == nil:
					t.Errorf("not refused: %q", got)
				case want != "" && !strings.Contains(err.Error(), "E8020"):
					t.Errorf("got %v, want E8020", err)
				case want != "" && !strings.HasPrefix(err.Error(), "403 E8020") && !says(err, "policy: "+want):
					t.Errorf("got %v, want %s", err, want)
				}
				if strings.Contains(got, secret) || err != nil && strings.Contains(err.Error(), secret) {
					t.Error("it shows what nobody may see")
				}
				after := snapshot(t, dir+"/out") + snapshot(t, dir+"/ro") + snapshot(t, dir+"/in/denied") + snapshot(t, dir+"/in/sub/.ssh")
				if want != "" && before != after {
					t.Errorf("changed from\n%s\nto\n%s", before, after)
				}
			})
		}
	}
}

// TestLinksAtTheEnd: what follows a link is refused what it leads to, what means
// the link itself is not.
func TestLinksAtTheEnd(t *testing.T) {
	for _, name := range []string{"link", "dangling"} {
		for _, d := range fileDoors {
			if takesFolder[d.name] || d.name == "upload below it" {
				continue // these take folders
			}
			t.Run(d.name+" "+name, func(t *testing.T) {
				dir := realTempDir(t)
				fileTree(t, dir)
				r := newRig(t, func(o *Options) {
					o.DefaultWorkDir = dir
					o.Template = &model.Template{Policy: model.Policy{Files: model.FilePolicy{Read: []string{dir + "/in"}}}}
				})
				before := snapshot(t, dir+"/out")
				got, err := d.do(t, r, dir+"/in/"+name)
				missing := name == "dangling" && err != nil && strings.Contains(err.Error(), "E4001") && !d.itself
				if d.itself != (err == nil) || err != nil && !missing && !strings.Contains(err.Error(), "E8020") {
					t.Errorf("got %q, %v", got, err)
				}
				if strings.Contains(got, secret) || strings.Contains(got, dir+"/out") && d.name != "HTTP stat" || // the text of the link is its own
					snapshot(t, dir+"/out") != before {
					t.Errorf("it leads out: %s", got)
				}
			})
		}
	}
}

// TestWithoutLinks: with follow_links false no path leads over one.
func TestWithoutLinks(t *testing.T) {
	no := false
	for _, d := range fileDoors {
		dir := realTempDir(t)
		fileTree(t, dir)
		r := newRig(t, func(o *Options) {
			o.DefaultWorkDir = dir
			o.Template = &model.Template{Policy: model.Policy{Files: model.FilePolicy{FollowLinks: &no}}}
		})
		if _, err := d.do(t, r, dir+"/in/near/file"); err == nil || !strings.Contains(err.Error(), "E8020") {
			t.Errorf("%s: got %v", d.name, err)
		}
		if _, err := d.do(t, r, dir+"/in/sub/file"); err != nil {
			t.Errorf("%s: got %v", d.name, err)
		}
	}
}

// TestDeniedIsNotListed: neither listings nor watches tell what is denied, and a
// tree that holds it cannot be taken away, nor moved to where it would be free.
func TestDeniedIsNotListed(t *testing.T) {
	dir := realTempDir(t)
	fileTree(t, dir)
	r := newRig(t, func(o *Options) {
		o.DefaultWorkDir = dir
		o.Template = &model.Template{Policy: model.Policy{Files: model.FilePolicy{Deny: []string{"**/.ssh/**", dir + "/in/denied"}}}}
	})
	list, err := r.ls(t.Context(), dir+"/in", 5)
	check(t, err)
	if text := fmt.Sprint(list); strings.Contains(text, "ssh") || strings.Contains(text, "denied") || !strings.Contains(text, "in/sub/file") {
		t.Errorf("listed: %s", text)
	}
	w := r.watch(t, &pb.WatchDirRequest{Path: dir + "/in", Recursive: true})
	check(t, os.WriteFile(dir+"/in/sub/.ssh/new", nil, 0o644), os.WriteFile(dir+"/in/denied/new", nil, 0o644),
		os.Mkdir(dir+"/in/sub/.ssh/more", 0o755), os.WriteFile(dir+"/in/sub/last", nil, 0o644))
	w.expect(t, "CREATE sub/last")
	for _, e := range w.all() {
		if strings.Contains(e, "ssh") || strings.Contains(e, "denied") {
			t.Errorf("told: %s", e)
		}
	}
	for _, c := range []struct{ from, to string }{{"in", "elsewhere"}, {"in/denied", "in/free"}, {"in/sub/.ssh", "in/sub/ssh"}} {
		if err := coded(r.move(t.Context(), dir+"/"+c.from, dir+"/"+c.to)); err == nil || !strings.Contains(err.Error(), "E8020 permission_denied") {
			t.Errorf("move %s to %s: %v", c.from, c.to, err)
		}
	}
	// What stays denied where it goes may go there.
	check(t, r.move(t.Context(), dir+"/in/sub", dir+"/in/sub2"))
	if err := coded(r.remove(t.Context(), dir+"/in")); err == nil || !strings.Contains(err.Error(), "E8020") {
		t.Errorf("remove: %v", err)
	}
	if b, err := os.ReadFile(dir + "/in/sub2/.ssh/key"); string(b) != secret {
		t.Errorf("removed: %v", err)
	}
	if b, err := os.ReadFile(dir + "/in/denied/deep/file"); string(b) != secret {
		t.Errorf("removed: %v", err)
	}
}

// TestFileLimits: the size of what is written, and the length of answers.
func TestFileLimits(t *testing.T) {
	r := newRig(t, func(o *Options) {
		o.Template = &model.Template{Policy: model.Policy{Files: model.FilePolicy{MaxBytes: 10, MaxEntries: 3}}}
	})
	dir := r.opts.DefaultWorkDir
	if got := r.upload(t, dir+"/fits", strings.NewReader("0123456789")); got != "200" {
		t.Errorf("what fits: %s", got)
	}
	if got := r.upload(t, dir+"/fits", strings.NewReader("0123456789a")); got != "413 E8020" {
		t.Errorf("what does not: %s", got)
	}
	check(t, os.WriteFile(dir+"/a", []byte("01234"), 0o644), os.WriteFile(dir+"/b", []byte("567890"), 0o644))
	if got, body := r.compose(t, fmt.Sprintf(`{"source_paths":[%q,%q],"destination":%q}`, dir+"/a", dir+"/b", dir+"/all")); got != "413 E8020" || !strings.Contains(body, "policy: files.max_bytes 10") {
		t.Errorf("together: %s %s", got, body)
	}
	if b, err := os.ReadFile(dir + "/fits"); string(b) != "0123456789" {
		t.Errorf("%q, %v", b, err)
	}
	if list, err := r.ls(t.Context(), dir, 1); err != nil || len(list) != 3 {
		t.Errorf("three: %v, %v", list, err)
	}
	check(t, os.WriteFile(dir+"/c", nil, 0o644))
	if _, err := r.ls(t.Context(), dir, 1); err == nil || !strings.Contains(coded(err).Error(), "E8020 resource_exhausted") {
		t.Errorf("four: %v", err)
	}
}

// TestFileRulesInARace has somebody exchange a folder and a link that leads out, all
// the time: whatever a door finds, it never is what lies outside.
func TestFileRulesInARace(t *testing.T) {
	dir := realTempDir(t)
	fileTree(t, dir)
	r := newRig(t, func(o *Options) {
		o.DefaultWorkDir = dir
		o.Template = &model.Template{Policy: model.Policy{Files: model.FilePolicy{Read: []string{dir + "/in"}}}}
	})
	check(t, os.RemoveAll(dir+"/in/sub/.ssh")) // may be read here
	before := snapshot(t, dir+"/out")
	var over atomic.Bool
	var swapper sync.WaitGroup
	swapper.Go(func() {
		for !over.Load() {
			_ = unix.Renameat2(unix.AT_FDCWD, dir+"/in/sub", unix.AT_FDCWD, dir+"/in/way", unix.RENAME_EXCHANGE)
		}
	})
	defer swapper.Wait()
	defer over.Store(true)
	rounds, ok, refused := 150, 0, 0
	for i := range rounds {
		for _, d := range fileDoors {
			if (d.name == "watch" || strings.HasPrefix(d.name, "HTTP")) && i%10 > 0 {
				continue // a watch costs most, and HTTP has the same code below
			}
			got, err := d.do(t, r, dir+"/in/sub/file")
			if strings.Contains(got, secret) || err != nil && strings.Contains(err.Error(), secret) {
				t.Fatalf("%s: %.200q, %v", d.name, got, err)
			}
			if err == nil {
				ok++
			} else if strings.Contains(err.Error(), "E8020") {
				refused++
			}
		}
	}
	over.Store(true)
	swapper.Wait()
	if after := snapshot(t, dir+"/out"); before != after {
		t.Errorf("changed from\n%s\nto\n%s", before, after)
	}
	if ok == 0 || refused == 0 {
		t.Errorf("%d calls did something, %d were refused: nothing was tested", ok, refused)
	}
}

// TestUploadIntoAMovedFolder moves the folder of an upload out of where it may be
// written, while the content is on its way.
func TestUploadIntoAMovedFolder(t *testing.T) {
	dir := realTempDir(t)
	fileTree(t, dir)
	r := newRig(t, func(o *Options) {
		o.DefaultWorkDir = dir
		o.Template = &model.Template{Policy: model.Policy{Files: model.FilePolicy{Read: []string{dir + "/in"}}}}
	})
	pr := &movingReader{move: func() { check(t, os.Rename(dir+"/in/sub", dir+"/out/taken")) }}
	if got := r.upload(t, dir+"/in/sub/late", pr); got != "403 E8020" {
		t.Errorf("got %s", got)
	}
	names, err := os.ReadDir(dir + "/out/taken")
	if err != nil || slices.ContainsFunc(names, func(e fs.DirEntry) bool {
		return strings.HasPrefix(e.Name(), "late") || strings.HasPrefix(e.Name(), ".upload")
	}) {
		t.Errorf("%v, %v", names, err)
	}
}

// movingReader calls move when the first of its content was taken.
type movingReader struct {
	move func()
	step int
}

func (m *movingReader) Read(p []byte) (int, error) {
	m.step++
	switch {
	case m.step <= 40: // more than what lies between here and the server
		return len(p), nil
	case m.step == 41:
		m.move()
		return len(p), nil
	}
	return 0, io.EOF
}
