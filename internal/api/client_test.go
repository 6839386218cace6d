package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testKey = "e2b_0123456789abcdef0123456789abcdef"

// serve runs h and returns a client of it that does not wait between attempts.
func serve(t *testing.T, h http.HandlerFunc, with func(*Options)) (*Client, *httptest.Server) {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	o := &Options{URL: srv.URL, Key: testKey, KeySource: "SANDBOX_API_KEY"}
	if with != nil {
		with(o)
	}
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	c.testOnlyPause = func(context.Context, time.Duration) error { return nil }
	return c, srv
}

func answering(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		io.WriteString(w, body)
	}
}

// ops are one call of each kind.
var ops = map[string]func(context.Context, *Client) error{
	"create": func(ctx context.Context, c *Client) error {
		_, err := c.Create(ctx, &NewSandbox{TemplateID: "base"}, "r1", 0)
		return err
	},
	"get":     func(ctx context.Context, c *Client) error { _, err := c.Get(ctx, "abc"); return err },
	"list":    func(ctx context.Context, c *Client) error { _, _, err := c.List(ctx, &Query{}); return err },
	"connect": func(ctx context.Context, c *Client) error { _, _, err := c.Connect(ctx, "abc", &Connect{}); return err },
	"timeout": func(ctx context.Context, c *Client) error { return c.SetTimeout(ctx, "abc", time.Minute) },
	"kill":    func(ctx context.Context, c *Client) error { return c.Kill(ctx, "abc") },
	"pause":   func(ctx context.Context, c *Client) error { return c.Pause(ctx, "abc") },
	"metrics": func(ctx context.Context, c *Client) error { _, err := c.Metrics(ctx, "abc"); return err },
}

func TestRequests(t *testing.T) {
	type seen struct {
		method, uri, body string
		header            http.Header
	}
	var got seen
	h := func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got = seen{r.Method, r.RequestURI, string(b), r.Header}
		switch {
		case r.Method == "DELETE", strings.HasSuffix(r.URL.Path, "/timeout"), strings.HasSuffix(r.URL.Path, "/pause"):
			w.WriteHeader(204)
		case r.Method == "POST":
			w.WriteHeader(201)
			io.WriteString(w, `{"sandboxID":"abc","templateID":"base","clientID":"x","envdVersion":"0.6.13","domain":null}`)
		case strings.HasSuffix(r.URL.Path, "/abc"):
			io.WriteString(w, `{"sandboxID":"abc","state":"running","startedAt":"2026-01-02T03:04:05.6Z"}`)
		default:
			w.Header().Set("X-Next-Token", "n2")
			io.WriteString(w, `[]`)
		}
	}
	secs := int64(90)
	yes := true
	for _, c := range []struct {
		name    string
		version Version
		call    func(*Client) error
		method  string
		uri     string
		body    string
	}{
		{"create v1", V1, func(c *Client) error {
			_, err := c.Create(t.Context(), &NewSandbox{TemplateID: "base", Timeout: &secs, Secure: &yes}, "", 0)
			return err
		}, "POST", "/sandboxes", `{"templateID":"base","timeout":90,"secure":true}`},
		{"create v2", V2, func(c *Client) error {
			_, err := c.Create(t.Context(), &NewSandbox{TemplateID: "base", Timeout: &secs}, "", 0)
			return err
		}, "POST", "/v2/sandboxes", `{"templateID":"base","timeout":90}`},
		{"connect v1", V1, func(c *Client) error {
			_, resumed, err := c.Connect(t.Context(), "abc", &Connect{Timeout: &secs})
			if !resumed {
				t.Error("201 is not taken as resumed")
			}
			return err
		}, "POST", "/sandboxes/abc/connect", `{"timeout":90}`},
		{"connect v2", V2, func(c *Client) error { _, _, err := c.Connect(t.Context(), "abc", &Connect{}); return err },
			"POST", "/v2/sandboxes/abc/connect", `{}`},
		{"get", V2, func(c *Client) error { _, err := c.Get(t.Context(), "abc"); return err }, "GET", "/sandboxes/abc", ""},
		{"kill", V2, func(c *Client) error { return c.Kill(t.Context(), "abc") }, "DELETE", "/sandboxes/abc", ""},
		{"rounded up", V2, func(c *Client) error { return c.SetTimeout(t.Context(), "abc", time.Second+time.Nanosecond) },
			"POST", "/sandboxes/abc/timeout", `{"timeout":2}`},
		{"pause", V2, func(c *Client) error { return c.Pause(t.Context(), "abc") }, "POST", "/sandboxes/abc/pause", `{}`},
		{"list", V2, func(c *Client) error {
			_, next, err := c.List(t.Context(), &Query{
				Metadata: map[string]string{"a b": "c&d"}, States: []string{"running", "paused"}, Limit: 7, Token: "n1",
			})
			if next != "n2" {
				t.Errorf("next page %q", next)
			}
			return err
		}, "GET", "/v2/sandboxes?limit=7&metadata=a%252520b%3Dc%252526d&nextToken=n1&state=running%2Cpaused", ""},
		{"metrics", V2, func(c *Client) error { _, err := c.Metrics(t.Context(), "abc"); return err }, "GET", "/sandboxes/abc/metrics", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			cl, _ := serve(t, h, func(o *Options) { o.Version = c.version })
			if err := c.call(cl); err != nil {
				t.Fatal(err)
			}
			if got.method != c.method || got.uri != c.uri || got.body != c.body {
				t.Errorf("sent %s %s %s\nwant %s %s %s", got.method, got.uri, got.body, c.method, c.uri, c.body)
			}
			if got.header.Get("X-API-KEY") != testKey || !strings.HasPrefix(got.header.Get("User-Agent"), "sandbox-go/") {
				t.Errorf("header %v", got.header)
			}
		})
	}
}

func TestCodes(t *testing.T) {
	for _, c := range []struct {
		status int
		body   string
		want   map[string]string // by call; "" is every other
		text   string
	}{
		{401, `{"code":401,"message":"no"}`, map[string]string{"": "E1001"}, "e2b***ef from SANDBOX_API_KEY"},
		{401, ``, map[string]string{"": "E1001"}, "401"},
		{403, `{"code":403,"message":"team blocked"}`, map[string]string{"": "E1006"}, "team blocked"},
		{403, `{"code":"QuotaExceeded","message":"x"}`, map[string]string{"": "E2002"}, "QuotaExceeded"},
		{404, `{"code":404,"message":"gone"}`, map[string]string{"create": "E2001", "list": "E8000", "": "E2020"}, "gone"},
		{404, `404 page not found`, map[string]string{"": "E8006"}, "page not found"},
		{404, `<html><h1>nothing here</h1></html>`, map[string]string{"": "E8006"}, "HTML"},
		{404, ``, map[string]string{"": "E8006"}, "404"},
		{400, `{"code":400,"message":"Timeout cannot be greater than 1 hours"}`,
			map[string]string{"get": "E2020", "kill": "E2020", "pause": "E2020", "metrics": "E2020", "": "E2011"}, "greater than 1 hours"},
		{409, `{"code":409,"message":"transition"}`, map[string]string{"": "E8000"}, "transition"},
		{413, `{"code":413,"message":"big"}`, map[string]string{"": "E5010"}, "413"},
		{429, `{"code":429,"message":"Rate limit exceeded"}`, map[string]string{"": "E8010"}, "Rate limit"},
		{429, ``, map[string]string{"": "E8010"}, "429"},
		{429, `{"code":429,"message":"you have reached the maximum number of concurrent E2B sandboxes (20)"}`, map[string]string{"": "E2002"}, "nothing was created"},
		{429, `{"code":"ResourceExhausted","message":"x"}`, map[string]string{"": "E2002"}, "ResourceExhausted"},
		{429, `{"code":"Throttling.User","message":"quota of requests"}`, map[string]string{"": "E8010"}, "Throttling"},
		{500, `{"code":500,"message":"boom"}`, map[string]string{"create": "E2000", "": "E8000"}, "boom"},
		{501, `{"code":501,"message":"no"}`, map[string]string{"": "E8004"}, "501"},
		{502, `<html>bad gateway</html>`, map[string]string{"": "E8011"}, "HTML"},
		{503, `{"code":503,"message":"full","error_code":"sandbox_capacity_unavailable"}`, map[string]string{"": "E8011"}, "sandbox_capacity_unavailable"},
		{504, `upstream`, map[string]string{"": "E5002"}, "504"},
		{302, ``, map[string]string{"": "E8006"}, "302"},
		{200, `<!doctype html><title>Login</title>`, map[string]string{"": "E8006"}, "HTML"},
		{200, `garbage`, map[string]string{"": "E8006"}, "not JSON"},
		{200, ``, map[string]string{"kill": "", "timeout": "", "pause": "", "": "E8006"}, "nothing (200)"},
		{200, `"text"`, map[string]string{"kill": "", "timeout": "", "pause": "", "": "E8006"}, "another shape"},
		{200, `[{"sandboxID":"abc"}]`, map[string]string{"kill": "", "timeout": "", "pause": "", "metrics": "", "": "E8006"}, ""},
		{200, `{"sandboxID":"a/../b","state":"running"}`, map[string]string{"kill": "", "timeout": "", "pause": "", "": "E8006"}, ""},
		{200, `{"sandboxID":"other","state":"running"}`, map[string]string{"create": "", "kill": "", "timeout": "", "pause": "", "": "E8006"}, ""},
		{200, `{"sandboxID":"abc","envdAccessToken":"a\nb","state":"running"}`,
			map[string]string{"get": "", "kill": "", "timeout": "", "pause": "", "": "E8006"}, ""},
		{200, `{"sandboxID":"abc"} trailing`, map[string]string{"": "E8006"}, "not JSON"},
	} {
		cl, _ := serve(t, answering(c.status, c.body), func(o *Options) { o.Retries = NoRetries })
		for name, call := range ops {
			want, ok := c.want[name]
			if !ok {
				want = c.want[""]
			}
			err := call(t.Context(), cl)
			if got := string(errdefs.CodeOf(err)); got != want || (want == "") != (err == nil) {
				t.Errorf("%d %q: %s is %q (%v), want %q", c.status, c.body, name, got, err, want)
			}
			if err == nil {
				continue
			}
			if c.text != "" && !strings.Contains(err.Error(), c.text) {
				t.Errorf("%d %q: %s says %q without %q", c.status, c.body, name, err, c.text)
			}
			if Status(err) != c.status {
				t.Errorf("%d %q: status of the error is %d", c.status, c.body, Status(err))
			}
		}
	}
}

func TestRetries(t *testing.T) {
	for _, c := range []struct {
		name   string
		status int
		body   string
		after  string
		safe   int32 // requests of get
		create int32
	}{
		{"rate limit", 429, `{"code":429,"message":"slow down"}`, "1", 4, 4},
		{"rate limit, long wait", 429, `{"code":429,"message":"slow down"}`, "31", 1, 1},
		{"quota", 429, `{"code":429,"message":"quota"}`, "", 1, 1},
		{"overload", 503, `{"code":503,"message":"later"}`, "", 4, 1},
		{"overload that made nothing", 503, `{"code":503,"message":"later","error_code":"sandbox_no_compatible_node"}`, "", 4, 4},
		{"broken", 500, `{"code":500,"message":"boom"}`, "", 4, 1},
		{"refused", 403, `{"code":403,"message":"no"}`, "", 1, 1},
		{"nonsense", 200, `nonsense`, "", 1, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			var n atomic.Int32
			cl, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
				n.Add(1)
				if c.after != "" {
					w.Header().Set("Retry-After", c.after)
				}
				answering(c.status, c.body)(w, r)
			}, nil)
			var waits []time.Duration
			cl.testOnlyPause = func(_ context.Context, d time.Duration) error { waits = append(waits, d); return nil }
			if err := ops["get"](t.Context(), cl); err == nil || n.Load() != c.safe {
				t.Errorf("get: %d requests, %v, want %d", n.Load(), err, c.safe)
			}
			for i, d := range waits {
				if d > maxPause+time.Second || c.after == "1" && d < time.Second || c.after == "" && d > firstPause<<i+time.Millisecond {
					t.Errorf("wait %d is %v", i, d)
				}
			}
			n.Store(0)
			if err := ops["create"](t.Context(), cl); err == nil || n.Load() != c.create {
				t.Errorf("create: %d requests, %v, want %d", n.Load(), err, c.create)
			}
		})
	}
}

// A connection that breaks is a lost answer: reads are repeated, creations not.
func TestLostAnswer(t *testing.T) {
	var n atomic.Int32
	cl, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if n.Add(1) == 1 {
			panic(http.ErrAbortHandler)
		}
		if r.Method == http.MethodDelete {
			answering(404, `{"code":404,"message":"gone"}`)(w, r)
			return
		}
		answering(200, `{"sandboxID":"abc","state":"running"}`)(w, r)
	}, nil)
	if err := ops["get"](t.Context(), cl); err != nil || n.Load() != 2 {
		t.Errorf("get: %d requests, %v", n.Load(), err)
	}
	n.Store(0)
	if err := ops["kill"](t.Context(), cl); err != nil || n.Load() != 2 {
		t.Errorf("kill whose first answer was lost: %d requests, %v", n.Load(), err)
	}
	n.Store(0)
	err := ops["create"](t.Context(), cl)
	if !errors.Is(err, errdefs.ErrConnectionLost) || Undone(err) || n.Load() != 1 {
		t.Errorf("create: %d requests, %v", n.Load(), err)
	}
}

func TestNotReached(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln.Close()
	cl, err := New(&Options{URL: "http://" + ln.Addr().String(), Key: testKey})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	cl.testOnlyPause = func(context.Context, time.Duration) error { n++; return nil }
	if err := ops["create"](t.Context(), cl); !errors.Is(err, errdefs.ErrConnect) || !Undone(err) || n != 3 {
		t.Errorf("%v after %d waits", err, n)
	}
}

// Bodies that are cut, stall or never end.
func TestHostileBodies(t *testing.T) {
	for _, c := range []struct {
		name string
		h    http.HandlerFunc
		want string
	}{
		{"cut", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			io.WriteString(w, `{"sandboxID":"abc"`)
			http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, "E5003"},
		{"stalls before the head", func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
		}, "E5002"},
		{"stalls in the body", func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			io.WriteString(w, `{"sandboxID":`)
			http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}, "E5002"},
		{"endless", func(w http.ResponseWriter, _ *http.Request) {
			b := []byte(strings.Repeat(" ", 1<<20))
			for range 64 {
				if _, err := w.Write(b); err != nil {
					return
				}
			}
		}, "E8006"},
		{"endless failure", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(418)
			b := []byte(strings.Repeat("x", 1<<20))
			for range 64 {
				if _, err := w.Write(b); err != nil {
					return
				}
			}
		}, "E8006"},
		{"endless head", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Big", strings.Repeat("x", 1<<20))
		}, "E5003"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cl, _ := serve(t, c.h, func(o *Options) {
				o.Retries = NoRetries
				o.Timeout, o.SlowTimeout = 300*time.Millisecond, 300*time.Millisecond
				if c.want != "E5002" {
					o.Timeout, o.SlowTimeout = 20*time.Second, 20*time.Second
				}
			})
			for name, call := range ops {
				start := time.Now()
				err := call(t.Context(), cl)
				if got := string(errdefs.CodeOf(err)); got != c.want {
					t.Errorf("%s: %v, want %s", name, err, c.want)
				}
				if len(err.Error()) > 2000 {
					t.Errorf("%s: the error has %d bytes", name, len(err.Error()))
				}
				if d := time.Since(start); d > 15*time.Second {
					t.Errorf("%s took %v", name, d)
				}
			}
		})
	}
}

func TestCancel(t *testing.T) {
	in := make(chan struct{})
	cl, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body) // only then does the server see that the client left
		in <- struct{}{}
		<-r.Context().Done()
	}, nil)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("the user left")
	go func() { <-in; cancel(why) }()
	err := ops["create"](ctx, cl)
	if errdefs.CodeOf(err) != "E5004" || !errors.Is(err, context.Canceled) || !errors.Is(err, why) || Undone(err) {
		t.Error(err)
	}
	if err := ops["get"](ctx, cl); errdefs.CodeOf(err) != "E5004" || !Undone(err) {
		t.Error(err)
	}
}

// A creation that was under way when its context ended still tells what it made.
func TestGrace(t *testing.T) {
	in, out := make(chan struct{}), make(chan struct{})
	cl, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		in <- struct{}{}
		select {
		case <-out:
			answering(201, `{"sandboxID":"abc"}`)(w, r)
		case <-r.Context().Done():
		}
	}, nil)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-in; cancel(); out <- struct{}{} }()
	sb, err := cl.Create(ctx, &NewSandbox{}, "", 20*time.Second)
	if err != nil || sb.SandboxID != "abc" || ctx.Err() == nil {
		t.Errorf("%+v, %v", sb, err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	go func() { <-in; cancel() }()
	if _, err := cl.Create(ctx, &NewSandbox{}, "", 50*time.Millisecond); !errors.Is(err, context.Canceled) || Undone(err) {
		t.Error(err)
	}
}

// No credential follows a redirect to another origin.
func TestRedirects(t *testing.T) {
	var stolen atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		stolen.Add(1)
		io.WriteString(w, `{"sandboxID":"abc","state":"running"}`)
	}))
	t.Cleanup(other.Close)
	for _, status := range []int{301, 302, 303, 307, 308} {
		cl, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other.URL+r.URL.Path, status)
		}, nil)
		for name, call := range ops {
			if err := call(t.Context(), cl); errdefs.CodeOf(err) != "E8006" {
				t.Errorf("%s, %d: %v", name, status, err)
			}
		}
	}
	if stolen.Load() != 0 {
		t.Errorf("%d requests went to the other host", stolen.Load())
	}

	cl, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/sandboxes/abc" {
			http.Redirect(w, r, "/moved", http.StatusFound)
			return
		}
		io.WriteString(w, `{"sandboxID":"abc","state":"running"}`)
	}, nil)
	if err := ops["get"](t.Context(), cl); err != nil {
		t.Error("within one origin:", err)
	}
}

func TestSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, `{"sandboxID":"abc","state":"running","alias":%q}`, r.Host)
	})}
	go srv.Serve(ln)
	t.Cleanup(func() { srv.Close() })
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1")
	for _, addr := range []string{"unix:" + path, "unix://" + path} {
		cl, err := New(&Options{URL: addr, Key: testKey})
		if err != nil {
			t.Fatal(err)
		}
		d, err := cl.Get(t.Context(), "abc")
		if err != nil || d.Alias != "localhost" {
			t.Errorf("%s: host %+v, %v", addr, d, err)
		}
		cl.Close()
	}
}

func TestOptions(t *testing.T) {
	dir := t.TempDir()
	noCert := filepath.Join(dir, "ca.pem")
	if err := os.WriteFile(noCert, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		o    Options
		want string
	}{
		{"no scheme", Options{URL: "api.e2b.app", Key: testKey}, "E8007"},
		{"other scheme", Options{URL: "ftp://api.e2b.app", Key: testKey}, "E8007"},
		{"password in the address", Options{URL: "https://u:secretpw@api.e2b.app", Key: testKey}, "E8007"},
		{"relative socket", Options{URL: "unix:run/s", Key: testKey}, "E8007"},
		{"no key", Options{URL: "https://api.e2b.app"}, "E1001"},
		{"quoted key", Options{URL: "https://api.e2b.app", Key: `"e2b_secret"`}, "E1001"},
		{"key with a newline inside", Options{URL: "https://api.e2b.app", Key: "e2b_sec\nret"}, "E1001"},
		{"no CA file", Options{URL: "https://api.e2b.app", Key: testKey, CAFile: filepath.Join(dir, "none")}, "E8007"},
		{"CA file without a certificate", Options{URL: "https://api.e2b.app", Key: testKey, CAFile: noCert}, "E8007"},
		{"version", Options{URL: "https://api.e2b.app", Key: testKey, Version: 3}, "E8007"},
		{"fine", Options{URL: "https://api.e2b.app/", Key: " " + testKey + "\n"}, ""},
	} {
		cl, err := New(&c.o)
		if got := string(errdefs.CodeOf(err)); got != c.want {
			t.Errorf("%s: %v, want %s", c.name, err, c.want)
		}
		if err != nil && (strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), testKey)) {
			t.Errorf("%s: the error shows a secret: %v", c.name, err)
		}
		if err == nil && cl.o.Key != testKey {
			t.Errorf("%s: key %q", c.name, cl.o.Key)
		}
	}
}

func TestTLS(t *testing.T) {
	for _, noHTTP2 := range []bool{false, true} {
		srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, `{"sandboxID":"abc","state":"running","alias":%q}`, r.Proto)
		}))
		srv.EnableHTTP2 = true
		srv.StartTLS()
		t.Cleanup(srv.Close)
		ca := filepath.Join(t.TempDir(), "ca.pem")
		writePEM(t, ca, srv.Certificate().Raw)
		strict, err := New(&Options{URL: srv.URL, Key: testKey, Retries: NoRetries})
		if err != nil {
			t.Fatal(err)
		}
		if err := ops["get"](t.Context(), strict); !errors.Is(err, errdefs.ErrConnect) || !Undone(err) {
			t.Errorf("unknown certificate: %v", err)
		}
		cl, err := New(&Options{URL: srv.URL, Key: testKey, CAFile: ca, NoHTTP2: noHTTP2})
		if err != nil {
			t.Fatal(err)
		}
		d, err := cl.Get(t.Context(), "abc")
		want := "HTTP/2.0"
		if noHTTP2 {
			want = "HTTP/1.1"
		}
		if err != nil || d.Alias != want {
			t.Errorf("no HTTP/2 %v: %+v, %v, want %s", noHTTP2, d, err, want)
		}
		cl.Close()
		strict.Close()
	}
}

func TestKeyNeverShown(t *testing.T) {
	for _, status := range []int{200, 400, 401, 404, 429, 500} {
		cl, _ := serve(t, answering(status, `{"code":1,"message":"bad key `+testKey+`"}`), func(o *Options) { o.Retries = NoRetries })
		for name, call := range ops {
			if err := call(t.Context(), cl); err != nil && strings.Contains(fmt.Sprintf("%v %+v", err, err), testKey) {
				t.Errorf("%s, %d: %v", name, status, err)
			}
		}
	}
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for in, want := range map[string]time.Duration{
		"": 0, "7": 7 * time.Second, "-1": 0, "x": 0, "99999999999999": 0,
		"Fri, 02 Jan 2026 03:04:15 GMT": 10 * time.Second, "Fri, 02 Jan 2026 03:04:00 GMT": 0,
	} {
		if got := retryAfter(in, now); got != want {
			t.Errorf("%q: %v, want %v", in, got, want)
		}
	}
}

func TestMetadata(t *testing.T) {
	for _, m := range []map[string]string{
		{"a b": "c&d"}, {"%": "%25", "+": "a+b", "ü": "日本", "=": "&", "empty": ""}, {},
	} {
		got, err := DecodeMetadata(EncodeMetadata(m))
		if err != nil || fmt.Sprint(got) != fmt.Sprint(m) {
			t.Errorf("%v became %v, %v", m, got, err)
		}
	}
	if _, err := DecodeMetadata("a=%25zz"); err == nil {
		t.Error("a malformed escape is accepted")
	}
}

// FuzzAnswers: whatever a server says, there is a sandbox with usable fields or
// an error with a code, on one line and without the key.
func FuzzAnswers(f *testing.F) {
	f.Add(201, `{"sandboxID":"abc","templateID":"t","clientID":"c","envdVersion":"0.6.13","domain":"e2b.app"}`, "text/html")
	f.Add(401, `{"code":"x","message":"`+testKey+`"}`, "application/json")
	f.Add(429, `{"code":429,"message":7}`, "")
	f.Add(200, "[[[[", "")
	c, err := New(&Options{URL: "https://api.e2b.app", Key: testKey})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, status int, body, kind string) {
		if status < 200 || status > 999 {
			return
		}
		res := &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {kind}, "Retry-After": {body}, "X-Request-Id": {body}}}
		for _, rt := range []*route{{op: "create sandbox", create: true, body: true, template: body}, {op: "get sandbox", id: "abc"}} {
			var err error
			if status/100 == 2 {
				var sb Sandbox
				if err = c.decode(rt, res, []byte(body), &sb); err == nil {
					if err = c.check(rt, &answer{status: status}, &sb); err == nil {
						if !IsID(sb.SandboxID) {
							t.Fatalf("accepted %+v", sb)
						}
						continue
					}
				}
			} else {
				err = c.answered(rt, res, []byte(body))
			}
			if errdefs.CodeOf(err).Meaning() == "" || strings.ContainsAny(err.Error(), "\n\r\x00\x1b") || len(err.Error()) > 3000 {
				t.Fatalf("%q", err)
			}
			if e, ok := errors.AsType[*Error](err); !ok || strings.Contains(e.Message, testKey) {
				t.Fatalf("%q", err)
			}
		}
	})
}

func FuzzMetadata(f *testing.F) {
	f.Add("a b", "c&d")
	f.Add("%zz", "\x00\xff+")
	f.Fuzz(func(t *testing.T, k, v string) {
		got, err := DecodeMetadata(EncodeMetadata(map[string]string{k: v}))
		if err != nil || len(got) != 1 || got[k] != v {
			t.Fatalf("%q=%q became %q, %v", k, v, got, err)
		}
		if m, err := DecodeMetadata(k); err == nil && m == nil {
			t.Fatal("nil without an error")
		}
	})
}

// The shapes have the fields of the wire and omit what is not set.
func TestShapes(t *testing.T) {
	for _, c := range []struct {
		v    any
		want string
	}{
		{NewSandbox{TemplateID: "t"}, `{"templateID":"t"}`},
		{Sandbox{SandboxID: "a"}, `{"sandboxID":"a","templateID":"","clientID":"","envdVersion":""}`},
		{ListedSandbox{CPUCount: 2, StartedAt: time.Unix(0, 0).UTC(), EndAt: time.Unix(1, 0).UTC()},
			`{"sandboxID":"","templateID":"","clientID":"","startedAt":"1970-01-01T00:00:00Z","endAt":"1970-01-01T00:00:01Z","cpuCount":2,"memoryMB":0,"diskSizeMB":0,"state":"","envdVersion":""}`},
		{ErrorBody{Code: 404, Message: "x"}, `{"code":404,"message":"x"}`},
		{Connect{}, `{}`},
	} {
		b, err := json.Marshal(c.v)
		if err != nil || string(b) != c.want {
			t.Errorf("%T: %s, %v\nwant %s", c.v, b, err, c.want)
		}
	}
}
