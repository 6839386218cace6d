//go:build linux

package server

import (
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
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/runtime/fault"
)

// compose joins files and returns status and code.
func (r *rig) compose(t *testing.T, body string) (status, answer string) {
	t.Helper()
	resp, err := r.http.Post("http://sandbox/files/compose", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(fmt.Sprint(resp.StatusCode, " ", resp.Header.Get(fault.Header))), strings.TrimSpace(string(b))
}

func TestCompose(t *testing.T) {
	r := newRig(t, nil)
	dir := r.opts.DefaultWorkDir
	fill := func() {
		t.Helper()
		for name, content := range map[string]string{"1": "AA", "2": "BB", "3": "", "old": "old"} {
			check(t, write(dir+"/"+name, content))
		}
		check(t, os.MkdirAll(dir+"/folder", 0o755), unix.Mkfifo(dir+"/fifo", 0o644))
	}
	fill()
	q := func(names ...string) string {
		for i, n := range names {
			names[i] = strconv.Quote(dir + "/" + n)
		}
		return "[" + strings.Join(names, ",") + "]"
	}
	for _, c := range []struct{ name, sources, to, want string }{
		{"missing source", q("1", "none"), "x/out", "404 E4001"},
		{"no sources", "[]", "x/out", "400 E3006"},
		{"null", "null", "x/out", "400 E3006"},
		{"folder", q("1", "folder"), "x/out", "400 E4003"},
		{"FIFO", q("1", "fifo"), "x/out", "400 E4003"},
		{"onto a folder", q("1", "2"), "folder", "400 E3006"},
		{"below a file", q("1", "2"), "old/x", "500 E4003"},
		{"NUL", `["a\u0000b"]`, "x/out", "500 E4006"},
	} {
		status, answer := r.compose(t, fmt.Sprintf(`{"source_paths":%s,"destination":%q}`, c.sources, dir+"/"+c.to))
		if status != c.want || !strings.Contains(answer, `"message"`) {
			t.Errorf("%s: got %s, %s", c.name, status, answer)
		}
	}
	for body, want := range map[string]string{
		``: "400 E3006", `{`: "400 E3006", `[]`: "400 E3006", `{"source_paths":"x"}`: "400 E3006",
		fmt.Sprintf(`{"source_paths":%s}`, q("1")):                                             "400 E3006",
		fmt.Sprintf(`{"source_paths":%s,"destination":"/x","username":""}`, q("1")):            "401 E3008",
		fmt.Sprintf(`{"source_paths":%s,"destination":"/x","username":"nobody-such"}`, q("1")): "401 E3008",
		`{"source_paths":["` + strings.Repeat("x", 5<<20) + `"],"destination":"/x"}`:           "413 E3006",
		`{"destination":"/x","source_paths":["a"` + strings.Repeat(`,"a"`, 10_000) + `]}`:      "400 E3006",
		fmt.Sprintf(`{"source_paths":["~other/x"],"destination":%q}`, dir+"/out"):              "400 E4006",
	} {
		if status, answer := r.compose(t, body); status != want {
			t.Errorf("%.80s: got %s, %s, want %s", body, status, answer, want)
		}
	}
	want := []string{"1", "2", "3", "fifo", "folder", "old"}
	if got := tree(t, dir); !slices.Equal(got, want) {
		t.Errorf("what failed left %q, want %q", got, want)
	}
	for _, c := range []struct {
		sources, to, content string
		left                 []string
	}{
		{q("2", "1", "3"), "deep/out", "BBAA", []string{"deep", "deep/out", "old"}},
		{q("1", "2"), "old", "AABB", []string{"3", "old"}},
		{q("1", "2"), "1", "AABB", []string{"1", "3", "old"}},
		{q("1", "1"), "out", "AAAA", []string{"2", "3", "old", "out"}},
	} {
		check(t, os.RemoveAll(dir), os.Mkdir(dir, 0o755))
		fill()
		check(t, os.Remove(dir+"/fifo"), os.Remove(dir+"/folder"))
		status, answer := r.compose(t, fmt.Sprintf(`{"source_paths":%s,"destination":%q}`, c.sources, dir+"/"+c.to))
		if wantAnswer := fmt.Sprintf(`{"path":%q,"name":%q,"type":"file"}`, dir+"/"+c.to, filepath.Base(c.to)); status != "200" || answer != wantAnswer {
			t.Errorf("%s: got %s, %s", c.to, status, answer)
		}
		if b, err := os.ReadFile(dir + "/" + c.to); err != nil || string(b) != c.content {
			t.Errorf("%s: got %q, %v", c.to, b, err)
		}
		if got := tree(t, dir); !slices.Equal(got, c.left) {
			t.Errorf("%s: left %q, want %q", c.to, got, c.left)
		}
	}
	// A link is removed, not what it leads to.
	check(t, write(dir+"/target", "T"), os.Symlink("target", dir+"/link"))
	if status, answer := r.compose(t, fmt.Sprintf(`{"source_paths":%s,"destination":%q}`, q("link"), dir+"/joined")); status != "200" {
		t.Errorf("got %s, %s", status, answer)
	}
	if _, err := os.Lstat(dir + "/link"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the link is left: %v", err)
	}
	if b, err := os.ReadFile(dir + "/target"); err != nil || string(b) != "T" {
		t.Errorf("the target: %q, %v", b, err)
	}
	resp, err := r.http.Get("http://sandbox/files/compose")
	check(t, err)
	resp.Body.Close()
	if resp.StatusCode != 405 || resp.Header.Get("Allow") != "POST" {
		t.Errorf("GET: %v, %v", resp.Status, resp.Header)
	}
}

// A source in a folder that may not be written cannot be removed: nothing happens.
func TestComposeKeepsWhatItCannotRemove(t *testing.T) {
	r := newRig(t, func(o *Options) {
		if os.Geteuid() == 0 {
			o.CanSwitchUser, o.DefaultUser = true, "nobody"
		}
	})
	dir := r.opts.DefaultWorkDir
	openWay(t, dir)
	check(t, os.Chmod(dir, 0o777), os.Mkdir(dir+"/closed", 0o755), write(dir+"/closed/1", "AA"), os.Chmod(dir+"/closed", 0o555))
	t.Cleanup(func() { os.Chmod(dir+"/closed", 0o755) })
	status, answer := r.compose(t, fmt.Sprintf(`{"source_paths":[%q],"destination":%q}`, dir+"/closed/1", dir+"/out"))
	if got := tree(t, dir); status != "403 E4002" || !slices.Equal(got, []string{"closed", "closed/1"}) {
		t.Errorf("got %s, %s, %q", status, answer, got)
	}
}

// Where only the file may be written and not its folder, it is written over: all
// of it, or nothing has changed.
func TestComposeOver(t *testing.T) {
	r := newRig(t, func(o *Options) {
		if os.Geteuid() == 0 {
			o.CanSwitchUser, o.DefaultUser = true, "nobody"
		}
	})
	dir := r.opts.DefaultWorkDir
	openWay(t, dir)
	out := dir + "/closed/out"
	check(t, os.Chmod(dir, 0o777), os.Mkdir(dir+"/closed", 0o755), write(out, "what was there before"), os.Chmod(out, 0o666), os.Chmod(dir+"/closed", 0o555))
	t.Cleanup(func() { os.Chmod(dir+"/closed", 0o755) })
	check(t, write(dir+"/1", "AA"), write(dir+"/2", "BB"), os.Symlink("closed/out", dir+"/link"), os.Link(out, dir+"/hard"))
	join := func(sources ...string) string {
		for i, s := range sources {
			sources[i] = dir + "/" + s
		}
		body, err := json.Marshal(map[string]any{"source_paths": sources, "destination": out})
		check(t, err)
		status, _ := r.compose(t, string(body))
		return status
	}
	for _, same := range []string{"link", "hard"} {
		if got := join("1", same, "2"); got != "400 E3006" {
			t.Errorf("%s: got %s", same, got)
		}
	}
	if b, err := os.ReadFile(out); err != nil || string(b) != "what was there before" {
		t.Errorf("what failed left %q, %v", b, err)
	}
	if got := tree(t, dir); !slices.Equal(got, []string{"1", "2", "closed", "closed/out", "hard", "link"}) {
		t.Errorf("what failed left %q", got)
	}
	if got := join("1", "2"); got != "200" {
		t.Errorf("got %s", got)
	}
	if b, err := os.ReadFile(dir + "/hard"); err != nil || string(b) != "AABB" {
		t.Errorf("got %q, %v", b, err)
	}
	if got := tree(t, dir); !slices.Equal(got, []string{"closed", "closed/out", "hard", "link"}) {
		t.Errorf("left %q", got)
	}
}

func TestNoSpaceToCompose(t *testing.T) {
	t.Parallel()
	if inNamespace(t, "TestNoSpaceToCompose") {
		return
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("no file system to fill: %v", err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	r := newRig(t, func(o *Options) { o.Pid1, o.DefaultWorkDir = true, dir })
	check(t, write(dir+"/1", strings.Repeat("x", 400<<10)), write(dir+"/2", strings.Repeat("x", 400<<10)))
	if got, answer := r.compose(t, fmt.Sprintf(`{"source_paths":[%q,%q],"destination":%q}`, dir+"/1", dir+"/2", dir+"/out")); got != "507 E4004" {
		t.Errorf("got %s, %s", got, answer)
	}
	if got := tree(t, dir); !slices.Equal(got, []string{"1", "2"}) {
		t.Errorf("left: %q", got)
	}
}

// A client that refuses identity gets gzip, whatever the file; one that offers
// both does not.
func TestZippedOnDemand(t *testing.T) {
	r := newRig(t, nil)
	p := r.opts.DefaultWorkDir + "/f.txt"
	content := strings.Repeat("text ", 10_000)
	check(t, write(p, content))
	for accept, zipped := range map[string]bool{"gzip": false, "gzip, identity;q=0": true, "*, identity;q=0": true} {
		req, err := http.NewRequestWithContext(t.Context(), "GET", "http://sandbox/files?path="+url.QueryEscape(p), nil)
		check(t, err)
		req.Header.Set("Accept-Encoding", accept)
		resp, err := r.http.Do(req)
		check(t, err)
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		check(t, err)
		if (resp.Header.Get("Content-Encoding") == "gzip") != zipped || zipped == (resp.Header.Get("Accept-Ranges") != "") {
			t.Errorf("%q: %v", accept, resp.Header)
		}
		if zipped {
			b = gunzip(b)
		}
		if string(b) != content {
			t.Errorf("%q: got %d bytes", accept, len(b))
		}
	}
	if got, _ := r.download(t, p, "Accept-Encoding", "br, identity;q=0"); got != "406 E3006" {
		t.Errorf("neither: got %s", got)
	}
}
