//go:build linux

package server

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/agent-sandbox/sandbox-go/runtime/httpapi"
	"github.com/agent-sandbox/sandbox-go/templates/model"
)

func TestAPIEnv(t *testing.T) {
	r := newRig(t, func(o *Options) { o.Env = map[string]string{"PLAIN": "1", "API_TOKEN": "s3cret", "OTHER": "x"} })
	a := r.call(t, "GET", "/env", "")
	var e httpapi.Environ
	a.into(t, &e)
	if e.Variables["PLAIN"] != "1" || e.Hidden != 1 || strings.Contains(a.body, "s3cret") {
		t.Errorf("got %+v", e)
	}
	// Our own token is in no environment.
	if b := r.call(t, "POST", "/shell", `{"command":"env; cat /proc/$PPID/environ"}`); strings.Contains(b.body, testToken) {
		t.Error("the token is in the environment")
	}
	e = httpapi.Environ{}
	r.call(t, "GET", "/env?filter=OTHER,%20API_TOKEN,NONE", "").into(t, &e)
	if fmt.Sprint(e.Variables) != "map[OTHER:x]" || e.Hidden != 1 {
		t.Errorf("got %+v", e)
	}
	var u httpapi.EnvUpdated
	r.call(t, "POST", "/env", `{"vars":{"B":"2","A":"1"}}`).into(t, &u)
	if fmt.Sprint(u.Updated) != "[A B]" {
		t.Errorf("got %+v", u)
	}
	for _, c := range []struct {
		body   string
		status int
	}{
		{`{"vars":{"C":"3","PATH":"/evil"}}`, 403}, {`{"vars":{"C":"3","SANDBOX_SERVER_TOKEN":"x"}}`, 403}, {`{"vars":["C"]}`, 400}, {`{"vars":{"C":3}}`, 400},
		{`{"vars":{"C":"3","a=b":""}}`, 400}, {`{"vars":{"C":"3","N":"a\u0000"}}`, 400}, {`{}`, 400}, {`{"vars":null}`, 400},
	} {
		if a := r.call(t, "POST", "/env", c.body); a.status != c.status {
			t.Errorf("%s: got %d %s", c.body, a.status, a.body)
		}
	}
	var res httpapi.RunResult
	r.call(t, "POST", "/shell", `{"command":"echo $A$B$C"}`).into(t, &res)
	if res.Stdout != "12\n" {
		t.Errorf("got %q", res.Stdout)
	}
}

func TestAPIPorts(t *testing.T) {
	r := newRig(t, nil)
	for _, c := range []struct{ network, listen, address string }{{"tcp4", "127.0.0.1:0", "127.0.0.1"}, {"tcp6", "[::1]:0", "::1"}} {
		l, err := net.Listen(c.network, c.listen)
		if err != nil {
			t.Logf("%s: %v", c.network, err) // a machine without it
			continue
		}
		defer l.Close()
		port := l.Addr().(*net.TCPAddr).Port
		var p httpapi.Ports
		r.call(t, "GET", "/ports", "").into(t, &p)
		found := false
		for _, p := range p.Listening {
			if p.Port == port && p.Address == c.address {
				found = p.Pid != nil && *p.Pid == os.Getpid() && p.Protocol == strings.TrimSuffix(c.network, "4")
			}
		}
		if !found {
			t.Errorf("%s: port %d is not in %+v", c.network, port, p)
		}
	}
}

func TestAPIPackages(t *testing.T) {
	bin := t.TempDir()
	for name, script := range map[string]string{
		"python3": `echo '[{"name":"numpy","version":"2.1"},{"name":"attrs","version":"24"}]'`,
		"npm":     `echo '{"dependencies":{"npm":{"version":"10.1.0"}}}'; exit 1`,
	} {
		if err := os.WriteFile(bin+"/"+name, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, func(o *Options) { o.Env = map[string]string{"PATH": bin} })
	var p httpapi.Packages
	r.call(t, "GET", "/packages?manager=pip", "").into(t, &p)
	if fmt.Sprint(p.Packages) != "[{attrs 24} {numpy 2.1}]" {
		t.Errorf("got %+v", p)
	}
	r.call(t, "GET", "/packages?manager=npm", "").into(t, &p)
	if fmt.Sprint(p.Packages) != "[{npm 10.1.0}]" {
		t.Errorf("got %+v", p)
	}
	if a := r.call(t, "GET", "/packages?manager=cargo", ""); a.status != 400 {
		t.Errorf("got %+v", a)
	}
	if err := os.WriteFile(bin+"/npm", []byte("#!/bin/sh\necho no >&2; exit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if a := r.call(t, "GET", "/packages?manager=npm", ""); a.status != 502 || a.code != "E3002" || !strings.Contains(a.body, "no") {
		t.Errorf("got %+v", a)
	}
	if err := os.Remove(bin + "/npm"); err != nil {
		t.Fatal(err)
	}
	if a := r.call(t, "GET", "/packages?manager=npm", ""); a.status != 404 || a.code != "E3007" {
		t.Errorf("got %+v", a)
	}
}

func TestAPIGit(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip(err)
	}
	off := newRig(t, nil)
	for _, path := range []string{"/git/status", "/git/diff"} {
		if a := off.call(t, "GET", path, ""); a.status != 404 || a.code != "E8022" {
			t.Errorf("off by default: got %+v", a)
		}
	}
	r := newRig(t, func(o *Options) {
		o.Template = &model.Template{Server: &model.Server{Enable: []string{"default", "dev_tools.git_*"}}}
	})
	dir := r.opts.DefaultWorkDir
	run := func(script string) {
		t.Helper()
		var res httpapi.RunResult
		r.call(t, "POST", "/shell", `{"command":`+quote(script)+`,"env":{"HOME":`+quote(t.TempDir())+`,"GIT_CONFIG_NOSYSTEM":"1"}}`).into(t, &res)
		if res.ExitCode != 0 {
			t.Fatalf("%s: %+v", script, res)
		}
	}
	run(`git init -q -b trunk . && git config user.email a@b && git config user.name n && printf '1\n2\n3\n' >f && printf 'x\n' >"sp ace" && printf 'long content of some lines\nmore\n' >old && git add . && git commit -qm one`)
	var s httpapi.GitStatus
	r.call(t, "GET", "/git/status", "").into(t, &s)
	if !s.Clean || s.Branch != "trunk" || len(s.Files) != 0 {
		t.Errorf("got %+v", s)
	}
	run(`git mv old new && printf '1\n3\n4\n' >f && rm "sp ace" && echo n >"ü new" && echo a >added && git add added`)
	r.call(t, "GET", "/git/status?path="+dir, "").into(t, &s)
	want := "[{added  added true} {f  modified false} {new old renamed true} {sp ace  deleted false} {ü new  untracked false}]"
	if s.Clean || fmt.Sprint(s.Files) != want {
		t.Errorf("got %v", s.Files)
	}
	var d httpapi.GitDiff
	r.call(t, "GET", "/git/diff?file=f", "").into(t, &d)
	if d.Stats != (httpapi.GitStats{FilesChanged: 1, Insertions: 1, Deletions: 1}) || !strings.Contains(d.Diff, "\n-2\n 3\n+4\n") || d.Truncated {
		t.Errorf("got %+v", d)
	}
	r.call(t, "GET", "/git/diff?staged=true", "").into(t, &d)
	if d.Stats.FilesChanged != 2 || !strings.Contains(d.Diff, "rename from old") {
		t.Errorf("got %+v", d)
	}
	run(`head -c 3000000 /dev/zero | tr '\0' 'y' | fold -w 80 >f`)
	r.call(t, "GET", "/git/diff?file=f", "").into(t, &d)
	if !d.Truncated || len(d.Diff) > 1<<20 || d.Stats.Insertions != 37500 {
		t.Errorf("truncated %v, %d bytes, %+v", d.Truncated, len(d.Diff), d.Stats)
	}
	plain := t.TempDir()
	for query, want := range map[string]string{
		"?path=" + plain: "409 E3002", "?path=" + dir + "/none": "404 E4001", "?path=" + dir + "/f": "400 E3012", "?path=~nobody/x": "400 E4006",
	} {
		a := r.call(t, "GET", "/git/status"+query, "")
		if got := strconv.Itoa(a.status) + " " + a.code; got != want {
			t.Errorf("%s: got %s %s, want %s", query, got, a.body, want)
		}
	}
	if a := r.call(t, "GET", "/git/diff?staged=perhaps", ""); a.status != 400 {
		t.Errorf("got %+v", a)
	}
	// No option hides in a file name, and no other path is reached by one.
	for _, file := range []string{"--output=/tmp/x", "../../../etc/passwd", ":(glob)**"} {
		if a := r.call(t, "GET", "/git/diff"+query("file", file), ""); a.status == 200 && !strings.Contains(a.body, `"diff":""`) {
			t.Errorf("%s: got %+v", file, a)
		}
	}
	// A diff program of the repository is not started.
	run(`git config diff.external 'touch ran; true' && git config core.fsmonitor 'touch ran; false'`)
	r.call(t, "GET", "/git/diff", "")
	r.call(t, "GET", "/git/status", "")
	if _, err := os.Stat(dir + "/ran"); err == nil {
		t.Error("a program of the repository has run")
	}
}
