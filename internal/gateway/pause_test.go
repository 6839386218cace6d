package gateway

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/api"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// detail describes a sandbox.
func (f *fixture) detail(id string) api.SandboxDetail {
	f.t.Helper()
	var d api.SandboxDetail
	f.want(f.do("GET", "/sandboxes/"+id, nil), 200).decode(f.t, &d)
	return d
}

func TestPauseAndResume(t *testing.T) {
	f := startLocal(t, Options{})
	sb := f.create(nil)
	path := "/sandboxes/" + sb.SandboxID
	f.run(sb, "echo kept > file; (while :; do echo >> ticks; sleep 0.05; done) >/dev/null 2>&1 &")
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	res, err := f.stream(ctx, sb, "echo; sleep 1000")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()

	f.want(f.do("POST", path+"/pause", nil), 204)
	if _, err := events(res.Body, func([]byte) {}); err == nil || ctx.Err() != nil {
		t.Errorf("a stream goes on in a paused sandbox: %v", err)
	}
	f.want(f.do("POST", path+"/pause", "{}"), 409)
	f.want(f.do("POST", path+"/timeout", `{"timeout":5}`), 409)
	f.want(f.do("POST", path+"/refreshes", nil), 409)
	d := f.detail(sb.SandboxID)
	if left := time.Until(d.EndAt); d.State != "paused" || left < keepPaused-time.Minute || left > keepPaused {
		t.Errorf("%s, ends in %v", d.State, left)
	}
	r := f.want(f.data(sb, envdPort, "GET", "/health", nil), 502)
	if !strings.Contains(string(r.body), "paused") {
		t.Errorf("%s", r.body)
	}
	f.want(f.data(sb, 8080, "GET", "/", nil), 502)
	for query, want := range map[string]int{"state=paused": 1, "state=running": 0, "": 1} {
		if ids, _, total := f.page(query); len(ids) != want || total != "0" {
			t.Errorf("%s: %d, total %s", query, len(ids), total)
		}
	}
	if r := f.want(f.do("GET", path+"/metrics", nil), 200); r.body[0] != '[' {
		t.Errorf("%s", r.body)
	}

	f.want(f.do("POST", "/v2"+path+"/connect", nil), 201)
	if left := time.Until(f.detail(sb.SandboxID).EndAt); left < 290*time.Second || left > 300*time.Second {
		t.Errorf("after connect it ends in %v", left)
	}
	if got := f.run(sb, "cat file"); got != "kept\n" {
		t.Errorf("%q", got)
	}
	ticks := f.run(sb, "wc -l < ticks")
	eventually(t, "a process of before goes on", func() bool { return f.run(sb, "wc -l < ticks") != ticks })
	f.want(f.do("POST", path+"/resume", nil), 409)

	// The old way to resume: 15 seconds.
	f.want(f.do("POST", path+"/pause", nil), 204)
	f.want(f.do("POST", path+"/resume", nil), 201)
	if left := time.Until(f.detail(sb.SandboxID).EndAt); left > 15*time.Second {
		t.Errorf("after resume it ends in %v", left)
	}
	// A paused one can be killed.
	f.want(f.do("POST", path+"/pause", nil), 204)
	f.want(f.do("DELETE", path, nil), 204)
	f.want(f.do("GET", path, nil), 404)
	for _, text := range []string{"sandbox created", "paused", "resumed", "sandbox killed"} {
		if r := f.want(f.do("GET", path+"/logs", nil), 200); !strings.Contains(string(r.body), text) {
			t.Errorf("logs lack %q: %s", text, r.body)
		}
	}
}

func TestAutoPause(t *testing.T) {
	f := startLocal(t, Options{})
	sb := f.create(map[string]any{"autoPause": true, "timeout": 600})
	if d := f.detail(sb.SandboxID); d.Lifecycle.OnTimeout != "pause" || time.Until(d.EndAt) > 600*time.Second {
		t.Errorf("%+v", d)
	}
	f.run(sb, "echo kept > file")
	f.want(f.do("POST", "/sandboxes/"+sb.SandboxID+"/timeout", `{"timeout":1}`), 204)
	eventually(t, "it is paused at its end", func() bool { return f.detail(sb.SandboxID).State == "paused" })
	f.want(f.do("POST", "/sandboxes/"+sb.SandboxID+"/connect", `{"timeout":60}`), 201)
	if got := f.run(sb, "cat file"); got != "kept\n" {
		t.Errorf("%q", got)
	}
	if left := time.Until(f.detail(sb.SandboxID).EndAt); left > 60*time.Second {
		t.Errorf("it ends in %v", left)
	}
	// Zero pauses now.
	f.want(f.do("POST", "/sandboxes/"+sb.SandboxID+"/timeout", `{"timeout":0}`), 204)
	if d := f.detail(sb.SandboxID); d.State != "paused" {
		t.Errorf("%+v", d)
	}
}

// A pause that fails leaves the sandbox running, with its end.
func TestPauseThatFails(t *testing.T) {
	p := newFake()
	f := start(t, t.TempDir(), Options{Provider: p})
	sb := f.create(map[string]any{"timeout": 600})
	p.onPause = func() error { return errdefs.New("E8000", "pause", "no") }
	f.want(f.do("POST", "/sandboxes/"+sb.SandboxID+"/pause", nil), 500)
	d := f.detail(sb.SandboxID)
	got, err := p.Get(context.Background(), sb.SandboxID)
	if err != nil {
		t.Fatal(err)
	}
	if d.State != "running" || time.Until(got.ExpiresAt) > 601*time.Second {
		t.Errorf("%s, and it ends in %v", d.State, time.Until(got.ExpiresAt))
	}
}

// While a sandbox changes, others are told so, or wait.
func TestTransition(t *testing.T) {
	p := newFake()
	f := start(t, t.TempDir(), Options{Provider: p})
	sb := f.create(nil)
	path := "/sandboxes/" + sb.SandboxID
	started, goOn := make(chan struct{}), make(chan struct{})
	p.onPause = func() error { close(started); <-goOn; return nil }
	paused := make(chan *reply, 1)
	go func() { paused <- f.do("POST", path+"/pause", nil) }()
	<-started
	f.want(f.do("POST", path+"/pause", nil), 409)
	f.want(f.do("POST", path+"/timeout", `{"timeout":5}`), 409)
	f.want(f.do("POST", path+"/resume", nil), 409)
	f.want(f.data(sb, envdPort, "GET", "/health", nil), 409)
	if s := f.detail(sb.SandboxID).State; s != "running" {
		t.Errorf("state %s", s)
	}
	connected := make(chan *reply, 1)
	go func() { connected <- f.do("POST", path+"/connect", `{"timeout":60}`) }()
	select {
	case r := <-connected:
		t.Errorf("connect did not wait: %d", r.StatusCode)
	case <-time.After(50 * time.Millisecond):
	}
	close(goOn)
	f.want(<-paused, 204)
	f.want(<-connected, 201)
}

// An extension that was granted counts, whenever it comes.
func TestExtensionAtTheLastMoment(t *testing.T) {
	f := startLocal(t, Options{})
	const n = 12
	var ids []string
	for range n {
		ids = append(ids, f.create(map[string]any{"timeout": 300}).SandboxID)
	}
	ends := make(chan string, n)
	begin := time.Now().Add(1100 * time.Millisecond)
	for i, id := range ids {
		f.want(f.do("POST", "/sandboxes/"+id+"/timeout", `{"timeout":1}`), 204)
		go func() {
			time.Sleep(time.Until(begin.Add(time.Duration(i-n/2) * 10 * time.Millisecond)))
			r := f.do("POST", "/sandboxes/"+id+"/timeout", `{"timeout":60}`)
			if r.StatusCode != 204 && r.StatusCode != 404 && r.StatusCode != 409 {
				t.Errorf("%d %s", r.StatusCode, r.body)
			}
			if r.StatusCode == 204 {
				ends <- id
			} else {
				ends <- ""
			}
		}()
	}
	granted := map[string]bool{}
	for range n {
		granted[<-ends] = true
	}
	eventually(t, "those that were not granted more are gone", func() bool {
		list, _, _ := f.page("")
		for _, id := range list {
			if !granted[id] {
				return false
			}
		}
		return true
	})
	for _, id := range ids {
		if r := f.do("GET", "/sandboxes/"+id, nil); granted[id] != (r.StatusCode == 200) {
			t.Errorf("granted: %v, then %d", granted[id], r.StatusCode)
		}
	}
}

func TestProviderErrors(t *testing.T) {
	p := newFake()
	f := start(t, t.TempDir(), Options{Provider: p})
	for code, status := range map[errdefs.Code]int{
		"E2010": 500, "E2000": 500, "E2002": 429, "E2011": 400, "E2001": 404, "E5002": 504, "E8004": 400, "E2009": 500,
	} {
		p.onCreate = func() error { return errdefs.New(code, "create sandbox", "because") }
		r := f.want(f.do("POST", "/v2/sandboxes", `{"templateID":"base"}`), status)
		if r.Header.Get(codeHeader) != string(code) || !strings.Contains(string(r.body), "because") {
			t.Errorf("%s: %s %s", code, r.Header.Get(codeHeader), r.body)
		}
	}
	p.onCreate = func() error { return errors.New("secret path /x/y") }
	if r := f.want(f.do("POST", "/v2/sandboxes", `{"templateID":"base"}`), 500); strings.Contains(string(r.body), "/x/y") {
		t.Errorf("%s", r.body)
	}
}
