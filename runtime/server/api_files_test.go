//go:build linux

package server

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/runtime/httpapi"
)

// plant makes files and links in dir: a name that ends with a slash is a folder,
// "name->target" a link, "name=content" a file.
func plant(t testing.TB, dir string, items ...string) {
	t.Helper()
	for _, item := range items {
		var err error
		if name, target, ok := strings.Cut(item, "->"); ok {
			err = os.Symlink(target, filepath.Join(dir, name))
		} else if name, content, ok := strings.Cut(item, "="); ok {
			err = os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644)
		} else {
			err = os.MkdirAll(filepath.Join(dir, name), 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func at64(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }

func query(pairs ...string) string {
	v := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		v.Set(pairs[i], pairs[i+1])
	}
	return "?" + v.Encode()
}

func TestAPIUploadDownload(t *testing.T) {
	r := newRig(t, nil)
	dir := r.opts.DefaultWorkDir
	p := filepath.Join(dir, "a/b c/ü.bin")
	content := "a\x00\xff\n"
	var up httpapi.Uploaded
	r.call(t, "POST", "/upload", `{"path":`+quote(p)+`,"content_base64":"`+at64(content)+`"}`).into(t, &up)
	if up.Path != p || up.Bytes != 4 {
		t.Errorf("got %+v", up)
	}
	var down httpapi.Downloaded
	r.call(t, "GET", "/download"+query("path", p), "").into(t, &down)
	if string(down.Content) != content || down.Path != p {
		t.Errorf("got %+v", down)
	}
	big := strings.Repeat("0123456789abcdef", 2<<20) // 32 MiB, more than a JSON body may have
	r.call(t, "POST", "/files/upload-stream"+query("path", p), big).into(t, &up)
	if up.Bytes != int64(len(big)) {
		t.Errorf("got %+v", up)
	}
	if a := r.call(t, "GET", "/files/download-stream"+query("path", p), ""); a.body != big {
		t.Errorf("status %d, %d bytes", a.status, len(a.body))
	}
	if a := r.call(t, "GET", "/files/download-stream"+query("path", p), "", "Range", "bytes=16-18"); a.status != 206 || a.body != "012" {
		t.Errorf("range: got %d %q", a.status, a.body)
	}
	if a := r.call(t, "GET", "/download"+query("path", p), ""); a.status != 413 {
		t.Errorf("large by JSON: got %d", a.status)
	}
	plant(t, dir, "d/", "l->a", "dangling->nowhere/x", "loop->loop")
	for _, c := range []struct {
		name, method, path, body string
		status                   int
		code                     string
	}{
		{"no path", "POST", "/upload", `{"content_base64":""}`, 400, "E3011"},
		{"no content", "POST", "/upload", `{"path":"x"}`, 400, "E3011"},
		{"bad base64", "POST", "/upload", `{"path":"x","content_base64":"a!"}`, 400, "E3006"},
		{"NUL", "POST", "/upload", `{"path":"x\u0000y","content_base64":""}`, 400, "E4006"},
		{"other home", "POST", "/upload", `{"path":"~root/x","content_base64":""}`, 400, "E4006"},
		{"folder", "POST", "/upload", `{"path":` + quote(dir+"/d") + `,"content_base64":""}`, 409, "E4003"},
		{"below a file", "POST", "/upload", `{"path":` + quote(p+"/x") + `,"content_base64":""}`, 409, "E4003"},
		{"loop", "POST", "/upload", `{"path":` + quote(dir+"/loop") + `,"content_base64":""}`, 400, "E4006"},
		{"too large", "POST", "/upload", `{"path":"x","content_base64":"` + strings.Repeat("AAAA", 6<<20) + `"}`, 413, "E3006"},
		{"long name", "POST", "/files/upload-stream" + query("path", dir+"/"+strings.Repeat("x", 300)), "", 400, "E4006"},
		{"stream without path", "POST", "/files/upload-stream", "", 400, "E3011"},
		{"download without path", "GET", "/download", "", 400, "E3011"},
		{"download stream without path", "GET", "/files/download-stream", "", 400, "E3011"},
		{"missing", "GET", "/download" + query("path", dir+"/none"), "", 404, "E4001"},
		{"missing stream", "GET", "/files/download-stream" + query("path", dir+"/none"), "", 404, "E4001"},
		{"download folder", "GET", "/download" + query("path", dir), "", 409, "E4003"},
		{"download device", "GET", "/download" + query("path", "/dev/zero"), "", 409, "E4003"},
		{"stream device", "GET", "/files/download-stream" + query("path", "/dev/zero"), "", 400, "E4003"},
		{"descriptor of the server", "GET", "/download" + query("path", "/proc/self/fd/0"), "", 400, "E4006"},
	} {
		if a := r.call(t, c.method, c.path, c.body); a.status != c.status || a.code != c.code {
			t.Errorf("%s: got %d %s %.200s, want %d %s", c.name, a.status, a.code, a.body, c.status, c.code)
		}
	}
	left, err := filepath.Glob(filepath.Join(dir, "a/b c/*"))
	if err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestAPIList(t *testing.T) {
	r := newRig(t, nil)
	dir := r.opts.DefaultWorkDir
	plant(t, dir, "a/b/c/d/", "a/b/c/d/f=x", "a/x=12", "z->a", "up->/etc")
	list := func(args ...string) (names []string, truncated bool) {
		var l httpapi.FileList
		r.call(t, "GET", "/files/list"+query(append([]string{"path", dir}, args...)...), "").into(t, &l)
		for _, e := range l.Entries {
			names = append(names, e.Path+":"+e.Type)
		}
		return names, l.Truncated
	}
	for _, c := range []struct {
		args      []string
		want      string
		truncated bool
	}{
		{nil, "[a:directory up:symlink z:symlink]", false},
		{[]string{"recursive", "true"}, "[a:directory a/b:directory a/b/c:directory a/x:file up:symlink z:symlink]", false},
		{[]string{"recursive", "yes", "max_depth", "9"}, "[a:directory a/b:directory a/b/c:directory a/b/c/d:directory a/b/c/d/f:file a/x:file up:symlink z:symlink]", false},
		{[]string{"recursive", "1", "max_entries", "2"}, "[a:directory a/b:directory]", true},
		{[]string{"max_entries", "3"}, "[a:directory up:symlink z:symlink]", false},
	} {
		names, truncated := list(c.args...)
		if fmt.Sprint(names) != c.want || truncated != c.truncated {
			t.Errorf("%v: got %v %v", c.args, names, truncated)
		}
	}
	for _, c := range []struct {
		query  string
		status int
		code   string
	}{
		{query("path", dir+"/none"), 404, "E4001"}, {query("path", dir+"/a/x"), 409, "E4003"}, {"", 400, "E3011"},
		{query("path", dir, "recursive", "maybe"), 400, "E3011"}, {query("path", dir, "max_entries", "0"), 400, "E3011"},
		{query("path", dir, "max_entries", "10001"), 400, "E3011"}, {query("path", dir, "max_depth", "x"), 400, "E3011"},
	} {
		if a := r.call(t, "GET", "/files/list"+c.query, ""); a.status != c.status || a.code != c.code {
			t.Errorf("%s: got %d %s %s", c.query, a.status, a.code, a.body)
		}
	}
}

func TestAPIStat(t *testing.T) {
	r := newRig(t, nil)
	dir := r.opts.DefaultWorkDir
	plant(t, dir, "f=123", "l->f", "dangling->nowhere", "loop->loop")
	if err := os.Chmod(dir+"/f", 0o4751); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir+"/f", 0o751|os.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, typ, permissions, target string }{
		{"f", "file", "4751", ""}, {"l", "symlink", "0777", "f"}, {"dangling", "symlink", "0777", "nowhere"}, {"loop", "symlink", "0777", "loop"}, {"", "directory", "0755", ""},
	} {
		var s httpapi.FileStat
		r.call(t, "GET", "/files/stat"+query("path", dir+"/"+c.name), "").into(t, &s)
		if !s.Exists || s.Type != c.typ || s.Permissions != c.permissions || s.Target != c.target || s.Modified.IsZero() || s.Changed.IsZero() {
			t.Errorf("%s: got %+v", c.name, s)
		}
	}
	var s httpapi.FileStat
	r.call(t, "GET", "/files/stat"+query("path", dir+"/none"), "").into(t, &s)
	if s.Exists || s.Type != "" || s.Name != "none" {
		t.Errorf("missing: got %+v", s)
	}
	if a := r.call(t, "GET", "/files/stat"+query("path", dir+"/f/x"), ""); a.status != 409 || a.code != "E4003" {
		t.Errorf("below a file: got %+v", a)
	}
	if a := r.call(t, "GET", "/files/stat", ""); a.status != 400 {
		t.Errorf("no path: got %+v", a)
	}
}

func TestAPIMkdirMove(t *testing.T) {
	r := newRig(t, nil)
	dir := r.opts.DefaultWorkDir
	plant(t, dir, "f=1", "g=2", "d/", "e/x/")
	var m httpapi.Made
	for i, created := range []bool{true, false} {
		r.call(t, "POST", "/files/mkdir", `{"path":`+quote(dir+"/new/deep")+`}`).into(t, &m)
		if m.Created != created || m.Path != dir+"/new/deep" {
			t.Errorf("%d: got %+v", i, m)
		}
	}
	var mv httpapi.Moved
	r.call(t, "POST", "/files/move", `{"source":`+quote(dir+"/f")+`,"destination":`+quote(dir+"/q/w/f2")+`}`).into(t, &mv)
	if b, err := os.ReadFile(dir + "/q/w/f2"); err != nil || string(b) != "1" || mv.Destination != dir+"/q/w/f2" {
		t.Errorf("got %+v, %v", mv, err)
	}
	for _, c := range []struct {
		path, body string
		status     int
		code       string
	}{
		{"/files/mkdir", `{}`, 400, "E3011"},
		{"/files/mkdir", `{"path":` + quote(dir+"/g") + `}`, 409, "E4003"},
		{"/files/move", `{"source":` + quote(dir+"/none") + `,"destination":` + quote(dir+"/n") + `}`, 404, "E4001"},
		{"/files/move", `{"source":` + quote(dir+"/g") + `,"destination":` + quote(dir+"/d") + `}`, 409, "E4005"},
		{"/files/move", `{"source":` + quote(dir+"/e") + `,"destination":` + quote(dir+"/d") + `}`, 409, "E4005"},
		{"/files/move", `{"source":` + quote(dir+"/g") + `}`, 400, "E3011"},
		{"/files/move", `[]`, 400, "E3006"},
	} {
		if a := r.call(t, "POST", c.path, c.body); a.status != c.status || a.code != c.code {
			t.Errorf("%s %s: got %d %s %s", c.path, c.body, a.status, a.code, a.body)
		}
	}
}

// TestAPIRemove: nothing takes away the folder that the sandbox works in, however it
// is named, and links are removed and not followed.
func TestAPIRemove(t *testing.T) {
	r := newRig(t, nil)
	dir := r.opts.DefaultWorkDir
	outside := t.TempDir()
	plant(t, outside, "kept=1", "back->"+filepath.Dir(dir))
	plant(t, dir, "d/e/", "d/e/f=1", "d/out->"+outside, "l->"+outside)
	for _, c := range []struct {
		path   string
		status int
		code   string
	}{
		// Not "/": a test must do no harm where it fails, see TestRefuseRoot.
		{dir, 403, "E4002"}, {dir + "/", 403, "E4002"}, {dir + "/d/..", 403, "E4002"},
		{filepath.Dir(dir), 403, "E4002"}, {outside + "/back/" + filepath.Base(dir), 403, "E4002"},
		{"/proc/self/root" + dir, 400, "E4006"},
		{dir + "/none", 404, "E4001"}, {dir + "/none/none", 404, "E4001"}, {"", 400, "E3011"},
		{dir + "/l", 200, ""}, {dir + "/d", 200, ""}, {dir + "/d", 404, "E4001"},
	} {
		if a := r.call(t, "DELETE", "/files"+query("path", c.path), ""); a.status != c.status || a.code != c.code {
			t.Errorf("%q: got %d %s %s", c.path, a.status, a.code, a.body)
		}
	}
	if _, err := os.Stat(outside + "/kept"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Error(err)
	}
}

func TestAPISearch(t *testing.T) {
	r := newRig(t, nil)
	dir := r.opts.DefaultWorkDir
	plant(t, dir, "a/b/c/d/e/", "a/x.go=1", "a/b/y.go=1", "a/b/c/d/e/z.go=1", "a/b/go.go/", "l->a", "link.go->a/x.go")
	search := func(more string) (got []string, res httpapi.SearchResult) {
		r.call(t, "POST", "/files/search", `{"path":`+quote(dir)+more+`}`).into(t, &res)
		for _, e := range res.Results {
			got = append(got, e.Path)
		}
		return got, res
	}
	for _, c := range []struct {
		more, want string
		truncated  bool
	}{
		{`,"pattern":"*.go"`, "[a/b/y.go a/x.go link.go]", false},
		{`,"pattern":"*.go","max_depth":6`, "[a/b/c/d/e/z.go a/b/y.go a/x.go link.go]", false},
		{`,"pattern":"*.go","type":"directory"`, "[a/b/go.go]", false},
		{`,"pattern":"?","type":"any","max_depth":1`, "[a l]", false},
		{`,"pattern":"*.go","max_results":1`, "[a/b/y.go]", true},
		{`,"pattern":"none"`, "[]", false},
	} {
		if got, res := search(c.more); fmt.Sprint(got) != c.want || res.Truncated != c.truncated || res.TimedOut {
			t.Errorf("%s: got %v %+v", c.more, got, res)
		}
	}
	for body, status := range map[string]int{
		`{"path":` + quote(dir) + `,"pattern":"["}`:                  400,
		`{"path":` + quote(dir) + `,"pattern":"x","type":"x"}`:       400,
		`{"path":` + quote(dir) + `,"pattern":"x","max_depth":0}`:    400,
		`{"path":` + quote(dir) + `,"pattern":"x","max_results":-1}`: 400,
		`{"path":` + quote(dir) + `}`:                                400,
		`{"path":` + quote(dir+"/none") + `,"pattern":"x"}`:          404,
	} {
		if a := r.call(t, "POST", "/files/search", body); a.status != status {
			t.Errorf("%s: got %d %s", body, a.status, a.body)
		}
	}
}

func TestAPIArchive(t *testing.T) {
	r := newRig(t, nil)
	dir := r.opts.DefaultWorkDir
	outside := t.TempDir()
	plant(t, outside, "secret=s3cret")
	plant(t, dir, "p/sub/", "p/f=hello", "p/sub/g="+strings.Repeat("x", 100_000), "p/out->"+outside, "q=1")
	want := []string{"p/f=5", "p/out->" + outside, "p/sub/", "p/sub/g=100000", "q=1"}
	body := `{"paths":[` + quote(dir+"/p") + `,` + quote(dir+"/q") + `],"format":"%s"}`
	t.Run("tar.gz", func(t *testing.T) {
		a := r.call(t, "POST", "/files/archive", fmt.Sprintf(body, "tar.gz"))
		if a.status != 200 || a.header.Get("Content-Type") != "application/gzip" {
			t.Fatalf("got %d %v", a.status, a.header)
		}
		z, err := gzip.NewReader(strings.NewReader(a.body))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for tr := tar.NewReader(z); ; {
			h, err := tr.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			n, err := io.Copy(io.Discard, tr)
			if err != nil {
				t.Fatal(err)
			}
			switch h.Typeflag {
			case tar.TypeReg:
				got = append(got, fmt.Sprintf("%s=%d", h.Name, n))
			case tar.TypeSymlink:
				got = append(got, h.Name+"->"+h.Linkname)
			default:
				got = append(got, h.Name)
			}
		}
		sort.Strings(got)
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("got %v", got)
		}
	})
	t.Run("zip", func(t *testing.T) {
		a := r.call(t, "POST", "/files/archive", fmt.Sprintf(body, "zip"))
		z, err := zip.NewReader(bytes.NewReader([]byte(a.body)), int64(len(a.body)))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range z.File {
			in, err := f.Open()
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(in)
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case f.Mode()&os.ModeSymlink != 0:
				got = append(got, f.Name+"->"+string(b))
			case f.Mode().IsDir():
				got = append(got, f.Name)
			default:
				got = append(got, fmt.Sprintf("%s=%d", f.Name, len(b)))
			}
		}
		sort.Strings(got)
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("got %v", got)
		}
	})
	for i := range 10_001 {
		if err := os.WriteFile(fmt.Sprintf("%s/p/sub/n%d", dir, i), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for body, status := range map[string]int{
		`{}`:                                   400,
		`{"paths":["x"],"format":"rar"}`:       400,
		`{"paths":[` + quote(dir+"/no") + `]}`: 404,
		`{"paths":[` + quote(dir) + `]}`:       413,
	} {
		if a := r.call(t, "POST", "/files/archive", body); a.status != status {
			t.Errorf("%s: got %d %.200s", body, a.status, a.body)
		}
	}
}

// TestAPIStalledUpload: a client that goes away in the middle of a file leaves
// nothing.
func TestAPIStalledUpload(t *testing.T) {
	r := newRig(t, nil)
	dir := r.opts.DefaultWorkDir
	plant(t, dir, "f=old")
	in, out := io.Pipe()
	req, err := http.NewRequest("POST", "http://sandbox/files/upload-stream"+query("path", dir+"/f"), in)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		resp, err := r.http.Do(req)
		if err == nil {
			resp.Body.Close()
		}
		done <- err
	}()
	io.WriteString(out, strings.Repeat("new", 1<<20))
	out.CloseWithError(io.ErrUnexpectedEOF)
	if err := <-done; err == nil {
		t.Error("the upload succeeds")
	}
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		names, _ := os.ReadDir(dir)
		b, _ := os.ReadFile(dir + "/f")
		if len(names) == 1 && string(b) == "old" {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("left: %v, %q", names, b)
		}
	}
}

// TestAPIAsUser: requests act with the rights of the user that they name.
func TestAPIAsUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can act as other users")
	}
	r := newRig(t, func(o *Options) { o.CanSwitchUser = true })
	open, err := os.MkdirTemp("", "open")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(open) })
	if err := os.Chmod(open, 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	plant(t, open, "secret=s3cret", "closed/", "closed/f=1", "tree/in/")
	for p, mode := range map[string]os.FileMode{"/secret": 0o600, "/closed": 0o700, "/tree/in": 0o700} {
		if err := os.Chmod(open+p, mode); err != nil {
			t.Fatal(err)
		}
	}
	as := func(method, path, body string) apiAnswer {
		return r.call(t, method, path, body, httpapi.UserHeader, "nobody")
	}
	var res httpapi.RunResult
	as("POST", "/shell", `{"command":"id -un","cwd":"/"}`).into(t, &res)
	if res.Stdout != "nobody\n" {
		t.Errorf("got %+v", res)
	}
	if a := as("POST", "/files/upload-stream"+query("path", open+"/mine/f"), "x"); a.status != 200 {
		t.Errorf("got %+v", a)
	}
	var s httpapi.FileStat
	as("GET", "/files/stat"+query("path", open+"/mine/f"), "").into(t, &s)
	if s.Owner != "nobody" {
		t.Errorf("got %+v", s)
	}
	for _, c := range []struct{ method, path, body string }{
		{"GET", "/download" + query("path", open+"/secret"), ""},
		{"GET", "/files/download-stream" + query("path", open+"/secret"), ""},
		{"POST", "/files/upload-stream" + query("path", open+"/secret"), "x"},
		{"GET", "/files/list" + query("path", open+"/closed"), ""},
		{"GET", "/files/stat" + query("path", open+"/closed/f"), ""},
		{"DELETE", "/files" + query("path", open+"/secret"), ""},
		{"POST", "/files/move", `{"source":` + quote(open+"/secret") + `,"destination":` + quote(open+"/mine/s") + `}`},
		{"POST", "/files/mkdir", `{"path":` + quote(open+"/closed/d") + `}`},
		{"POST", "/files/search", `{"path":` + quote(open+"/closed") + `,"pattern":"*"}`},
		{"POST", "/files/archive", `{"paths":[` + quote(open+"/mine") + `,` + quote(open+"/secret") + `]}`},
		{"POST", "/files/archive", `{"paths":[` + quote(open+"/closed") + `],"format":"zip"}`},
		{"POST", "/files/archive", `{"paths":[` + quote(open+"/tree") + `]}`},
	} {
		if a := as(c.method, c.path, c.body); a.status != 403 || a.code != "E4002" {
			t.Errorf("%s %s: got %d %s %s", c.method, c.path, a.status, a.code, a.body)
		}
	}
	var l httpapi.FileList // what is closed is seen, what lies in it is not
	as("GET", "/files/list"+query("path", open, "recursive", "true"), "").into(t, &l)
	for _, e := range l.Entries {
		if e.Path == "closed/f" {
			t.Errorf("got %+v", l)
		}
	}
}
