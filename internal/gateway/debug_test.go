package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"testing"

	"github.com/agent-sandbox/sandbox-go/internal/api"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// serveDebug serves one port of the standing sandbox until the gateway stops.
func (f *fixture) serveDebug(port int) string {
	f.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		f.t.Fatal(err)
	}
	done := make(chan error, 1)
	s := f.s
	go func() { done <- s.ServeDebug(l, port) }()
	f.t.Cleanup(func() {
		f.stop()
		if err := <-done; err != nil {
			f.t.Error(err)
		}
	})
	return l.Addr().String()
}

func TestStandingSandbox(t *testing.T) {
	f := startLocal(t, Options{})
	addr := f.serveDebug(envdPort)
	d := &fixture{t: t, addr: addr, client: f.client, s: f.s}
	nobody := api.Sandbox{}
	// No key and no token: as SDKs in debug mode.
	if got := d.run(nobody, "echo hi"); got != "hi\n" {
		t.Errorf("%q", got)
	}
	for _, c := range []struct {
		name    string
		path    string
		headers []string
		status  int
	}{
		{"health", "/health", nil, 204},
		{"by the name", "/metrics", []string{"Host", "localhost:49983"}, 200},
		{"a wrong token is replaced", "/metrics", []string{"X-Access-Token", "x"}, 200},
		{"another name for this machine", "/metrics", []string{"Host", "evil.example"}, 403},
		{"an address of the network", "/metrics", []string{"Host", "192.168.0.1"}, 403},
		{"a page of another site", "/metrics", []string{"Origin", "https://evil.example"}, 403},
		{"a page without an origin", "/metrics", []string{"Origin", "null"}, 403},
		{"a form of another site", "/files?path=x", []string{"Sec-Fetch-Site", "cross-site"}, 403},
		{"a page of this machine", "/metrics", []string{"Origin", "http://localhost:5173", "Sec-Fetch-Site", "same-origin"}, 200},
		{"init", "/init", nil, 404},
	} {
		r, err := d.try("GET", c.path, nil, c.headers...)
		if err != nil {
			t.Fatal(err)
		}
		if r.StatusCode != c.status {
			t.Errorf("%s: %d, want %d: %s", c.name, r.StatusCode, c.status, r.body)
		}
	}
	// It is nobody's: no key sees it.
	if ids, _, total := f.page(""); len(ids) != 0 || total != "0" {
		t.Errorf("%q, %s", ids, total)
	}
	f.s.standing.turn <- struct{}{}
	id := f.s.standing.b.id
	<-f.s.standing.turn
	f.want(f.do("GET", "/sandboxes/"+id, nil), 404)
	// When it ends, the next request makes another.
	if err := f.provider.Kill(context.Background(), id); err != nil {
		t.Fatal(err)
	}
	eventually(t, "there is another", func() bool {
		r, err := d.try("GET", "/metrics", nil)
		return err == nil && r.StatusCode == 200
	})
}

func TestStandingPort(t *testing.T) {
	f := startLocal(t, Options{})
	envd, addr := f.serveDebug(envdPort), f.serveDebug(insidePort)
	d := &fixture{t: t, addr: envd, client: f.client, s: f.s}
	d.inside(api.Sandbox{})
	res, err := f.client.Get("http://" + addr + "/hello")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil || !strings.Contains(string(b), `"URI":"/hello"`) {
		t.Errorf("%s %v", b, err)
	}
	testUpgrade(t, &fixture{t: t, addr: addr}, "localhost")
	f.client.CloseIdleConnections()
}

func TestStandingSandboxIsLocal(t *testing.T) {
	f := start(t, t.TempDir(), Options{Provider: newFake()})
	l, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := f.s.ServeDebug(l, envdPort); errdefs.CodeOf(err) != "E8007" {
		t.Errorf("%v", err)
	}
}

// A big body both ways through all there is in between.
func TestBigBodies(t *testing.T) {
	f := startLocal(t, Options{})
	sb := f.create(nil)
	content := bytes.Repeat([]byte("0123456789abcdef"), 2<<20) // 32 MiB
	r := f.data(sb, envdPort, "POST", "/files?path=big", bytes.NewReader(content), "Content-Type", "application/octet-stream")
	if r.StatusCode != 200 {
		t.Fatalf("%d %s", r.StatusCode, r.body)
	}
	r = f.data(sb, envdPort, "GET", "/files?path=big", nil, "Accept-Encoding", "identity")
	if r.StatusCode != 200 || !bytes.Equal(r.body, content) {
		t.Errorf("%d, %d bytes", r.StatusCode, len(r.body))
	}
	r = f.data(sb, envdPort, "GET", "/files?path=big", nil, "Range", "bytes=5-9")
	if r.StatusCode != http.StatusPartialContent || string(r.body) != "56789" {
		t.Errorf("%d %q", r.StatusCode, r.body)
	}
	if got := f.run(sb, "head -c 1000 big | wc -c"); strings.TrimSpace(got) != fmt.Sprint(1000) {
		t.Errorf("%q", got)
	}
}

// TestStandingInterpreter: the code interpreter of the standing sandbox needs no key
// and no token, as code-interpreter SDKs in debug mode expect; pages of other sites
// get nothing.
func TestStandingInterpreter(t *testing.T) {
	if _, err := exec.LookPath("/bin/bash"); err != nil {
		t.Skip(err)
	}
	f := startLocal(t, Options{})
	d := &fixture{t: t, addr: f.serveDebug(codePort), client: f.client, s: f.s}
	if r := d.want(d.do("GET", "/health", nil), 200); strings.TrimSpace(string(r.body)) != `"OK"` {
		t.Errorf("health: %s", r.body)
	}
	run := func(body string) string {
		t.Helper()
		return string(d.want(d.do("POST", "/execute", body), 200).body)
	}
	run(`{"code":"x=4","language":"bash"}`)
	got := run(`{"code":"echo x is $x","language":"bash"}`)
	if !strings.Contains(got, `"x is 4\n"`) || !strings.HasSuffix(strings.TrimSpace(got), `{"type":"end_of_execution"}`) {
		t.Errorf("got %s", got)
	}
	var c struct{ ID, Language string }
	if err := json.Unmarshal(d.want(d.do("POST", "/contexts", `{"language":"bash"}`), 200).body, &c); err != nil || c.ID == "" || c.Language != "bash" {
		t.Fatalf("got %+v, %v", c, err)
	}
	if got := run(`{"code":"echo [$x]","context_id":"` + c.ID + `"}`); !strings.Contains(got, `"[]\n"`) {
		t.Errorf("two contexts are one: %s", got)
	}
	d.want(d.do("DELETE", "/contexts/"+c.ID, nil), 200)
	if r := d.do("POST", "/execute", `{"code":"1","context_id":"`+c.ID+`"}`); r.StatusCode != 404 {
		t.Errorf("a context that is gone: %d %s", r.StatusCode, r.body)
	}
	for _, headers := range [][]string{{"Origin", "https://evil.example"}, {"Sec-Fetch-Site", "cross-site"}, {"Host", "evil.example"}} {
		d.want(d.do("POST", "/execute", `{"code":"touch /tmp/never","language":"bash"}`, headers...), 403)
		d.want(d.do("GET", "/contexts", nil, headers...), 403)
	}
	if got := run(`{"code":"ls /tmp","language":"bash"}`); strings.Contains(got, "never") {
		t.Errorf("a refused cell ran: %s", got)
	}
}
