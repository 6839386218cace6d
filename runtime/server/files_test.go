//go:build linux

package server

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	pb "github.com/agent-sandbox/sandbox-go/internal/pb/filesystem"
	"github.com/agent-sandbox/sandbox-go/runtime/fault"
)

// upload posts content to p and returns status and error code.
func (r *rig) upload(t *testing.T, p string, content io.Reader) string {
	t.Helper()
	resp, err := r.http.Post("http://sandbox/files?path="+url.QueryEscape(p), "application/octet-stream", content)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	io.Copy(io.Discard, resp.Body)
	return strings.TrimSpace(fmt.Sprint(resp.StatusCode, " ", resp.Header.Get(fault.Header)))
}

// download gets p and returns status, error code and content.
func (r *rig) download(t *testing.T, p string, headers ...string) (status, content string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "GET", "http://sandbox/files?path="+url.QueryEscape(p), nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := r.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(fmt.Sprint(resp.StatusCode, " ", resp.Header.Get(fault.Header))), string(b)
}

func (r *rig) stat(ctx context.Context, p string) (*pb.EntryInfo, error) {
	resp, err := r.files.Stat(ctx, connect.NewRequest(&pb.StatRequest{Path: p}))
	if err != nil {
		return nil, err
	}
	return resp.Msg.GetEntry(), nil
}

func (r *rig) ls(ctx context.Context, p string, depth uint32) ([]*pb.EntryInfo, error) {
	resp, err := r.files.ListDir(ctx, connect.NewRequest(&pb.ListDirRequest{Path: p, Depth: depth}))
	if err != nil {
		return nil, err
	}
	return resp.Msg.GetEntries(), nil
}

func (r *rig) remove(ctx context.Context, p string) error {
	_, err := r.files.Remove(ctx, connect.NewRequest(&pb.RemoveRequest{Path: p}))
	return err
}

func (r *rig) move(ctx context.Context, from, to string) error {
	_, err := r.files.Move(ctx, connect.NewRequest(&pb.MoveRequest{Source: from, Destination: to}))
	return err
}

func TestFilesAreByteExact(t *testing.T) {
	r := newRig(t, nil)
	var all bytes.Buffer
	all.WriteString("\xef\xbb\xbfa\r\nb\nc\r\xff\xfe")
	for i := range 256 {
		all.WriteByte(byte(i))
	}
	for name, content := range map[string]string{"bytes": all.String(), "empty": "", "new folder/ü/x": "y"} {
		p := filepath.Join(r.opts.DefaultWorkDir, name)
		if got := r.upload(t, p, strings.NewReader(content)); got != "200" {
			t.Fatalf("%s: upload says %s", name, got)
		}
		if onDisk, err := os.ReadFile(p); err != nil || string(onDisk) != content {
			t.Errorf("%s: on disk %q, %v", name, onDisk, err)
		}
		if got, back := r.download(t, p); got != "200" || back != content {
			t.Errorf("%s: %s, %q", name, got, back)
		}
	}
}

func TestFileFailuresAreTyped(t *testing.T) {
	r := newRig(t, nil)
	dir := r.opts.DefaultWorkDir
	if err := os.WriteFile(dir+"/file", []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(dir+"/fifo", 0o644); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	short := filepath.Join(filepath.Dir(r.socket), "k")
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: short}); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("loop", dir+"/loop"); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("n", 256)
	for _, c := range []struct{ path, get, post, stat string }{
		{"/none", "404 E4001", "200", "not_found E4001"},
		{"", "400 E4003", "400 E3006", ""},
		{"/fifo", "400 E4003", "400 E4003", ""},
		{"/file/x", "500 E4003", "500 E4003", "internal E4003"},
		{"/loop", "400 E4006", "400 E4006", ""},
		{"/" + long, "400 E4006", "400 E4006", "invalid_argument E4006"},
		{"/" + strings.Repeat("d/", 2100), "400 E4006", "", "invalid_argument E4006"},
		{"/nul\x00x", "500 E4006", "500 E4006", "internal E4006"},
	} {
		name := c.path[:min(len(c.path), 10)]
		if got, _ := r.download(t, dir+c.path); got != c.get {
			t.Errorf("GET %q: got %s, want %s", name, got, c.get)
		}
		if c.post != "" {
			if got := r.upload(t, dir+c.path, strings.NewReader("x")); got != c.post {
				t.Errorf("POST %q: got %s, want %s", name, got, c.post)
			}
		}
		_, err := r.stat(t.Context(), dir+c.path)
		if c.path == "/none" { // the upload has made it
			_, err = r.stat(t.Context(), dir+"/none2")
		}
		if c.stat == "" && err != nil || c.stat != "" && codeOf(err) != c.stat {
			t.Errorf("Stat %q: got %v, want %s", name, err, c.stat)
		}
	}
	for _, p := range []string{short, "/dev/null", "/dev/zero"} {
		if got, _ := r.download(t, p); got != "400 E4003" {
			t.Errorf("GET %s: got %s", p, got)
		}
		if got := r.upload(t, p, strings.NewReader("x")); got != "400 E4003" {
			t.Errorf("POST %s: got %s", p, got)
		}
	}
	for _, p := range []string{"/proc/self/fd/0", "/proc/self/root/etc/passwd", "/proc/self/cwd/x", "/proc/self/exe"} {
		if got, _ := r.download(t, p); got != "400 E4006" {
			t.Errorf("GET %s: got %s", p, got)
		}
	}
	if os.Geteuid() != 0 {
		if err := os.WriteFile(dir+"/closed", nil, 0); err != nil {
			t.Fatal(err)
		}
		if got, _ := r.download(t, dir+"/closed"); got != "403 E4002" {
			t.Errorf("GET of an unreadable file: got %s", got)
		}
		if got := r.upload(t, dir+"/closed", strings.NewReader("x")); got != "403 E4002" {
			t.Errorf("POST to a file that may not be written: got %s", got)
		}
	}
	if err := r.remove(t.Context(), dir+"/no/such"); err != nil {
		t.Errorf("removing what is not there: %v", err)
	}
	if got := codeOf(r.remove(t.Context(), "/")); got != "permission_denied E4002" {
		t.Errorf("removing everything: got %s", got)
	}
	if _, err := os.Stat("/etc"); err != nil {
		t.Error(err)
	}
}

func TestLinks(t *testing.T) {
	r := newRig(t, nil)
	dir := r.opts.DefaultWorkDir
	for name, to := range map[string]string{
		"dangling": "sub/made", "absolute": dir + "/sub/abs", "chain": "dangling", "loop": "loop", "up": "..", "sub/to-file": "../file",
	} {
		if err := os.MkdirAll(dir+"/sub", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(to, dir+"/"+name); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(dir+"/file", []byte("old"), 0o640); err != nil {
		t.Fatal(err)
	}
	entries, err := r.ls(t.Context(), dir, 10)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 8 {
		t.Errorf("got %d entries, want 8", len(entries))
	}
	for _, e := range entries {
		if isLink := strings.HasPrefix(e.GetPermissions(), "L"); isLink != (e.SymlinkTarget != nil) {
			t.Errorf("%s: permissions %s, target %q", e.GetName(), e.GetPermissions(), e.GetSymlinkTarget())
		}
	}
	// Writing goes where a link leads, and leaves the link.
	for name, lands := range map[string]string{"chain": "sub/made", "absolute": "sub/abs", "sub/to-file": "file"} {
		if got := r.upload(t, dir+"/"+name, strings.NewReader(name)); got != "200" {
			t.Errorf("%s: got %s", name, got)
		}
		if b, err := os.ReadFile(dir + "/" + lands); err != nil || string(b) != name {
			t.Errorf("%s: %q, %v", name, b, err)
		}
		if st, err := os.Lstat(dir + "/" + name); err != nil || st.Mode()&fs.ModeSymlink == 0 {
			t.Errorf("%s is no link any more: %v", name, err)
		}
	}
	if st, err := os.Stat(dir + "/file"); err != nil || st.Mode() != 0o640 {
		t.Errorf("the mode of the file became %v, %v", st.Mode(), err)
	}
	// Removing a link leaves its target.
	if err := r.remove(t.Context(), dir+"/up"); err != nil {
		t.Fatal(err)
	}
	if err := r.remove(t.Context(), dir+"/sub"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir + "/file"); err != nil {
		t.Error(err)
	}
}

// TestSwappedFolder has a folder become a link to a secret and back while files
// below it are read and written: the answer is what either state says.
func TestRemoveDoesNotFollowSwappedFolder(t *testing.T) {
	r := newRig(t, nil)
	dir := r.opts.DefaultWorkDir
	outside := dir + "/outside"
	for i := range 50 {
		if err := os.MkdirAll(fmt.Sprintf("%s/keep%d", outside, i), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			os.MkdirAll(dir+"/tree/a/b", 0o755)
			os.Rename(dir+"/tree/a", dir+"/aside")
			os.Symlink(outside, dir+"/tree/a")
			os.Remove(dir + "/tree/a")
			os.RemoveAll(dir + "/aside")
		}
	})
	for range 300 {
		r.remove(t.Context(), dir+"/tree")
	}
	close(stop)
	wg.Wait()
	if left, err := os.ReadDir(outside); err != nil || len(left) != 50 {
		t.Errorf("%d of 50 folders outside the removed tree are left, %v", len(left), err)
	}
}

func TestRemoveDeepAndWide(t *testing.T) {
	r := newRig(t, nil)
	dir := r.opts.DefaultWorkDir
	// 3,000 levels of 255-byte names: a path far beyond PATH_MAX.
	name := strings.Repeat("d", 255)
	fd, err := unix.Open(dir, unix.O_PATH, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3000 {
		if err := unix.Mkdirat(fd, name, 0o755); err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(fd, name, unix.O_PATH|unix.O_DIRECTORY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if i%100 == 0 {
			if err := unix.Mknodat(fd, "file", unix.S_IFREG|0o644, 0); err != nil {
				t.Fatal(err)
			}
		}
		unix.Close(fd)
		fd = next
	}
	unix.Close(fd)
	if err := r.remove(t.Context(), dir+"/"+name); err != nil {
		t.Fatal(err)
	}
	for i := range 3000 {
		if err := os.MkdirAll(fmt.Sprintf("%s/wide/%d/x", dir, i), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.remove(t.Context(), dir+"/wide"); err != nil {
		t.Fatal(err)
	}
	if err := r.remove(t.Context(), dir+"/file"); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestParallelUploads(t *testing.T) {
	r := newRig(t, nil)
	dir := r.opts.DefaultWorkDir
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			if got := r.upload(t, fmt.Sprintf("%s/new/deep/%d", dir, i), strings.NewReader(strconv.Itoa(i))); got != "200" {
				t.Errorf("upload %d: %s", i, got)
			}
		})
	}
	contents := make([]string, 16)
	for i := range contents {
		contents[i] = strings.Repeat(string(rune('a'+i)), 300<<10)
		wg.Go(func() {
			if got := r.upload(t, dir+"/shared", strings.NewReader(contents[i])); got != "200" {
				t.Errorf("shared %d: %s", i, got)
			}
		})
	}
	wg.Wait()
	shared, err := os.ReadFile(dir + "/shared")
	if err != nil || !slices.Contains(contents, string(shared)) {
		t.Errorf("the shared file holds %d bytes that nobody wrote so, %v", len(shared), err)
	}
	left, err := os.ReadDir(dir + "/new/deep")
	if err != nil || len(left) != 64 {
		t.Errorf("%d files, %v", len(left), err)
	}
	left, err = os.ReadDir(dir)
	if err != nil || len(left) != 2 {
		t.Errorf("something else was left: %v", left)
	}
}

func TestBrokenUploadLeavesOldContent(t *testing.T) {
	r := newRig(t, nil)
	p := r.opts.DefaultWorkDir + "/f"
	if got := r.upload(t, p, strings.NewReader("old")); got != "200" {
		t.Fatal(got)
	}
	_, err := r.http.Post("http://sandbox/files?path="+p, "application/octet-stream",
		io.MultiReader(strings.NewReader("new"), failing{}))
	if err == nil {
		t.Error("a broken upload succeeded")
	}
	eventually(t, "nothing is left of it", func() bool {
		left, err := os.ReadDir(r.opts.DefaultWorkDir)
		return err == nil && len(left) == 1
	})
	if b, err := os.ReadFile(p); err != nil || string(b) != "old" {
		t.Errorf("got %q, %v", b, err)
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("the client fails") }

// zeros is an endless file.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestBigFilesNeedLittleMemory(t *testing.T) {
	r := newRig(t, nil)
	const size = 256 << 20
	p := r.opts.DefaultWorkDir + "/big"
	var before, now runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	if got := r.upload(t, p, io.LimitReader(zeros{}, size)); got != "200" {
		t.Fatal(got)
	}
	resp, err := r.http.Get("http://sandbox/files?path=" + p)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	n, err := io.Copy(sha256.New(), resp.Body)
	if err != nil || n != size {
		t.Fatalf("got %d bytes, %v", n, err)
	}
	runtime.ReadMemStats(&now)
	if allocated := now.TotalAlloc - before.TotalAlloc; allocated > 32<<20 {
		t.Errorf("allocated %d MiB for a file of %d MiB each way", allocated>>20, size>>20)
	}
	_, part := r.download(t, p, "Range", "bytes=-1048576")
	if len(part) != 1<<20 {
		t.Errorf("the last MiB has %d bytes", len(part))
	}
}

func TestLargeDirectory(t *testing.T) {
	r := newRig(t, nil)
	dir := r.opts.DefaultWorkDir
	const many = 50_000
	fd, err := unix.Open(dir, unix.O_PATH, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for i := range many {
		if err := unix.Mknodat(fd, fmt.Sprintf("f%05d", i*7919%many), unix.S_IFREG|0o644, 0); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	entries, err := r.ls(t.Context(), dir, 1)
	took := time.Since(began)
	if err != nil || len(entries) != many {
		t.Fatalf("got %d entries, %v", len(entries), err)
	}
	for i, e := range entries {
		if e.GetName() != fmt.Sprintf("f%05d", i) {
			t.Fatalf("entry %d is %s", i, e.GetName())
		}
	}
	t.Logf("%d entries in %v", many, took)
}

func TestMoveAndMakeDir(t *testing.T) {
	r := newRig(t, nil)
	dir := r.opts.DefaultWorkDir
	if got := r.upload(t, dir+"/a/f", strings.NewReader("x")); got != "200" {
		t.Fatal(got)
	}
	for _, c := range []struct{ from, to, want string }{
		{"/a/f", "/b/c/g", "<nil>"},
		{"/b/c/g", "/b/c/g", "<nil>"},
		{"/none", "/x", "not_found E4001"},
		{"/b/c/g", "/a", "internal E4005"},
		{"/b", "/b/c/d", "internal E4000"},
		{"/b/c/g", "/b/c/g/h", "internal E4003"},
	} {
		if got := codeOf(r.move(t.Context(), dir+c.from, dir+c.to)); got != c.want {
			t.Errorf("%s to %s: got %s, want %s", c.from, c.to, got, c.want)
		}
	}
	for _, c := range []struct{ path, want string }{
		{"/m/n/o", "<nil>"}, {"/m", "already_exists E4005"}, {"/b/c/g", "invalid_argument E4003"}, {"/b/c/g/x", "internal E4003"},
	} {
		_, err := r.files.MakeDir(t.Context(), connect.NewRequest(&pb.MakeDirRequest{Path: dir + c.path}))
		if got := codeOf(err); got != c.want {
			t.Errorf("make %s: got %s, want %s", c.path, got, c.want)
		}
	}
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	if got := r.upload(t, dir+"/masked/f", strings.NewReader("x")); got != "200" {
		t.Fatal(got)
	}
	for p, want := range map[string]fs.FileMode{"/masked": 0o755 | fs.ModeDir, "/masked/f": 0o644} {
		if st, err := os.Stat(dir + p); err != nil || st.Mode() != want {
			t.Errorf("%s has mode %v, %v, want %v", p, st.Mode(), err, want)
		}
	}
}

func TestSeveralFilesAtOnce(t *testing.T) {
	r := newRig(t, nil)
	dir := r.opts.DefaultWorkDir
	var body bytes.Buffer
	w := multipart.NewWriter(&body)
	const many = 2000
	for i := range many {
		h := textproto.MIMEHeader{}
		h.Set("Content-Disposition", fmt.Sprintf(`form-data; name="file"; filename="%s/t/%d/f"`, dir, i%10*1000+i))
		part, err := w.CreatePart(h)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(part, "content of %d", i)
	}
	w.Close()
	resp, err := r.http.Post("http://sandbox/files", w.FormDataContentType(), &body)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Fatal(resp.Status)
	}
	entries, err := r.ls(t.Context(), dir+"/t", 2)
	if err != nil || len(entries) != 2*many {
		t.Errorf("got %d entries, %v", len(entries), err)
	}
}

// TestNoSpace fills a small file system.
func TestNoSpace(t *testing.T) {
	t.Parallel()
	if inNamespace(t, "TestNoSpace") {
		return
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("no file system to fill: %v", err)
	}
	r := newRig(t, func(o *Options) { o.Pid1 = true; o.DefaultWorkDir = dir })
	if got := r.upload(t, dir+"/f", io.LimitReader(zeros{}, 4<<20)); got != "507 E4004" {
		t.Errorf("got %s", got)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
		t.Error(err)
	}
}

func TestFilesOfOtherUsers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can act as other users")
	}
	r := newRig(t, func(o *Options) { o.CanSwitchUser = true; o.DefaultWorkDir = "/" })
	dir := t.TempDir()
	for d := dir; d != "/"; d = filepath.Dir(d) {
		st, err := os.Stat(d)
		if err != nil || os.Chmod(d, st.Mode()|0o111) != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/secret", []byte("s"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir+"/shut", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/shut/open", []byte("old"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir+"/shut/open", 0o666); err != nil {
		t.Fatal(err)
	}
	as := func(p string) string { return "http://sandbox/files?username=nobody&path=" + dir + p }
	for _, c := range []struct {
		method, path string
		want         int
	}{
		{"GET", "/secret", 403}, {"POST", "/secret", 403}, {"POST", "/mine/f", 200}, {"POST", "/shut/new", 403},
		{"POST", "/shut/open", 200}, {"GET", "/shut/open", 200},
	} {
		req, err := http.NewRequest(c.method, as(c.path), strings.NewReader("by nobody"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/octet-stream")
		resp, err := r.http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != c.want {
			t.Errorf("%s %s: got %d, want %d", c.method, c.path, resp.StatusCode, c.want)
		}
	}
	if b, err := os.ReadFile(dir + "/shut/open"); err != nil || string(b) != "by nobody" {
		t.Errorf("a file that may be written in a folder that may not: %q, %v", b, err)
	}
	e, err := r.stat(t.Context(), dir+"/mine/f")
	if err != nil || e.GetOwner() != "nobody" {
		t.Errorf("got %v, %v", e, err)
	}
	if e, err = r.stat(t.Context(), dir+"/mine"); err != nil || e.GetOwner() != "nobody" {
		t.Errorf("got %v, %v", e, err)
	}
}
