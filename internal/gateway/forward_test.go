package gateway

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/api"
)

func TestRoutingToTheRuntime(t *testing.T) {
	f := startLocal(t, Options{Domain: "sandboxes.example"})
	sb := f.create(nil)
	if sb.Domain == nil || *sb.Domain != "sandboxes.example" {
		t.Errorf("domain %v", sb.Domain)
	}
	other := f.create(nil)
	id := sb.SandboxID
	host := func(h string) []string { return []string{"Host", h} }
	named := func(id, port string) []string { return []string{"E2b-Sandbox-Id", id, "E2b-Sandbox-Port", port} }
	for _, c := range []struct {
		name    string
		path    string
		headers []string
		status  int
	}{
		{"health by headers", "/health", named(id, "49983"), 204},
		{"health by host", "/health", host("49983-" + id + ".sandboxes.example"), 204},
		{"by host with port, dot and capitals", "/health", host("49983-" + strings.ToUpper(id) + ".Sandboxes.Example.:443"), 204},
		{"by host of any domain", "/health", host("49983-" + id + ".elsewhere"), 204},
		{"by the shared host", "/health", append(named(id, "49983"), host("sandbox.sandboxes.example")...), 204},
		{"no token", "/metrics", named(id, "49983"), 401},
		{"right token", "/metrics", append(named(id, "49983"), "X-Access-Token", sb.EnvdAccessToken), 200},
		{"token of another sandbox", "/metrics", append(named(id, "49983"), "X-Access-Token", other.EnvdAccessToken), 401},
		{"the API key is no token", "/metrics", append(named(id, "49983"), "X-Access-Token", f.key), 401},
		{"API key and no token", "/metrics", append(named(id, "49983"), "X-API-Key", f.key), 401},
		{"unknown sandbox", "/health", named("abcdefghijklmnopqrst", "49983"), 502},
		{"one header", "/health", []string{"E2b-Sandbox-Id", id}, 400},
		{"malformed port", "/health", named(id, "x"), 400},
		{"malformed id", "/health", named("A_B", "49983"), 400},
		{"init", "/init", append(named(id, "49983"), "X-Access-Token", sb.EnvdAccessToken), 404},
		{"init in disguise", "/x/..//%69nit", append(named(id, "49983"), "X-Access-Token", sb.EnvdAccessToken), 404},
		{"freeze by host", "/freeze", host("49983-" + id + ".x"), 404},
		{"no such path", "/nope", append(named(id, "49983"), "X-Access-Token", sb.EnvdAccessToken), 404},
		{"port that nobody serves", "/", named(id, "9999"), 502},
	} {
		r, err := f.try("GET", c.path, nil, c.headers...)
		if err != nil {
			t.Fatal(err)
		}
		if r.StatusCode != c.status {
			t.Errorf("%s: %d, want %d: %s", c.name, r.StatusCode, c.status, r.body)
		}
	}
	// Bodies of errors have the shapes of the protocol.
	r := f.want(f.data(api.Sandbox{SandboxID: "abcdefghijklmnopqrst"}, envdPort, "GET", "/health", nil), 502)
	if r.field(t, "sandboxId") != "abcdefghijklmnopqrst" || r.field(t, "port") != nil {
		t.Errorf("%s", r.body)
	}
	r = f.want(f.data(sb, 9999, "GET", "/", nil), 502)
	if r.field(t, "sandboxId") != id || r.field(t, "port") != 9999.0 {
		t.Errorf("%s", r.body)
	}
	r = f.want(f.data(sb, envdPort, "POST", "/init", "{}"), 404)
	if r.field(t, "path") != "/init" {
		t.Errorf("%s", r.body)
	}
	for _, accept := range [][2]string{{"Accept", "text/html,*/*"}, {"Sec-Fetch-Mode", "navigate"}} {
		r = f.data(sb, 9999, "GET", "/", nil, accept[0], accept[1])
		if r.StatusCode != 502 || !strings.HasPrefix(r.Header.Get("Content-Type"), "text/html") || !strings.Contains(string(r.body), "<h1>") {
			t.Errorf("for a browser: %d %s %s", r.StatusCode, r.Header.Get("Content-Type"), r.body)
		}
	}
	if r = f.data(sb, 9999, "GET", "/", nil, "Sec-Fetch-Mode", "cors", "Accept", "text/html"); r.Header.Get("Content-Type") == "text/html; charset=utf-8" {
		t.Error("a page's own request is answered with HTML")
	}
}

func TestSandboxThatDies(t *testing.T) {
	f := startLocal(t, Options{})
	sb := f.create(nil)
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	res, err := f.stream(ctx, sb, "echo one; sleep 100")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	got := make(chan error, 1)
	first := make(chan struct{})
	go func() {
		_, err := events(res.Body, func([]byte) { close(first) })
		got <- err
	}()
	<-first // each line arrives when it is printed
	// By itself, without the gateway's knowing.
	if err := f.provider.Kill(ctx, sb.SandboxID); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err == nil {
		t.Error("a stream that was cut has an end")
	}
	f.want(f.data(sb, envdPort, "GET", "/health", nil), 502)
	f.want(f.do("GET", "/sandboxes/"+sb.SandboxID, nil), 404)
}

func TestUserPorts(t *testing.T) {
	f := startLocal(t, Options{})
	var sb api.Sandbox
	f.want(f.do("POST", "/v2/sandboxes", `{"templateID":"base"}`), 201).decode(t, &sb)
	f.inside(sb)
	host := fmt.Sprintf("%d-%s.example.com", insidePort, sb.SandboxID)
	r, err := f.try("PUT", "/a%2fb//c?x=1&y=%zz;z", "the body",
		"Host", host, "X-Access-Token", sb.EnvdAccessToken, "X-API-Key", f.key, "Authorization", "Bearer "+f.key,
		"X-Forwarded-For", "6.6.6.6", "X-Forwarded-Host", "evil", "Forwarded", "for=6.6.6.6", "X-Custom", "kept",
		"Connection", "X-Drop", "X-Drop", "dropped")
	if err != nil {
		t.Fatal(err)
	}
	s := ask(t, r)
	if s.Host != host || s.Method != "PUT" || s.Body != "the body" || s.URI != "/a%2fb//c?x=1&y=%zz;z" {
		t.Errorf("%+v", s)
	}
	for name, want := range map[string]string{
		"X-Access-Token": "", "X-Api-Key": "", "Authorization": "", "Forwarded": "", "X-Drop": "", "X-Custom": "kept",
		"X-Forwarded-For": "127.0.0.1", "X-Forwarded-Host": host, "X-Forwarded-Proto": "http",
	} {
		if got := s.Header.Get(name); got != want {
			t.Errorf("%s is %q inside, want %q", name, got, want)
		}
	}
	if r.Header.Get("X-Hop") != "" {
		t.Error("a header between two hops was passed on")
	}
	// By headers; the Host stays as it was sent.
	if s := ask(t, f.data(sb, insidePort, "GET", "/x", nil)); s.Header.Get("E2b-Sandbox-Id") != "" || s.Header.Get("X-Access-Token") != "" || s.Host != f.addr {
		t.Errorf("%+v", s)
	}
	t.Run("streams at once", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
		defer cancel()
		req, _ := http.NewRequestWithContext(ctx, "GET", "http://"+f.addr+"/ticks", nil)
		req.Host = host
		res, err := f.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		lines := bufio.NewScanner(res.Body)
		for i := range 3 {
			if !lines.Scan() || lines.Text() != fmt.Sprint(i) {
				t.Fatalf("%q, %v", lines.Text(), lines.Err())
			}
		}
	})
	t.Run("upgrade", func(t *testing.T) { testUpgrade(t, f, host) })
	t.Run("server that dies", func(t *testing.T) {
		req, _ := http.NewRequest("GET", "http://"+f.addr+"/die", nil)
		req.Host = host
		res, err := f.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if b, err := io.ReadAll(res.Body); err == nil {
			t.Errorf("an answer that was cut off looks whole: %q", b)
		}
		f.want(f.data(sb, insidePort, "GET", "/", nil), 502)
	})
}

// testUpgrade changes to another protocol and uses both directions, each to its
// own end.
func testUpgrade(t *testing.T, f *fixture, host string) {
	for _, protocol := range []string{"websocket", "sandbox-tcp/1"} {
		conn, err := net.Dial("tcp", f.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(waitLimit))
		fmt.Fprintf(conn, "GET /ws HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", host, protocol)
		br := bufio.NewReader(conn)
		res, err := http.ReadResponse(br, nil)
		if err != nil || res.StatusCode != 101 || res.Header.Get("Upgrade") != protocol {
			t.Fatalf("%v %v", res, err)
		}
		big := strings.Repeat("0123456789", 100_000)
		go io.WriteString(conn, big)
		echo := make([]byte, len(big))
		if _, err := io.ReadFull(br, echo); err != nil || string(echo) != big {
			t.Fatalf("%v", err)
		}
		conn.(*net.TCPConn).CloseWrite()
		rest, err := io.ReadAll(br)
		if err != nil || string(rest) != fmt.Sprintf("bye %d", len(big)) {
			t.Errorf("after the half was closed: %q, %v", rest, err)
		}
	}
}

func TestTrafficToken(t *testing.T) {
	f := startLocal(t, Options{})
	sb := f.create(map[string]any{"network": map[string]any{"allowPublicTraffic": false, "maskRequestHost": "localhost:${PORT}"}})
	if sb.TrafficAccessToken == nil || len(*sb.TrafficAccessToken) < 32 {
		t.Fatalf("%+v", sb)
	}
	other := f.create(map[string]any{"network": map[string]any{"allowPublicTraffic": false}})
	f.inside(sb)
	f.want(f.data(sb, insidePort, "GET", "/", nil), 403)
	f.want(f.data(sb, insidePort, "GET", "/", nil, api.HeaderTraffic, *other.TrafficAccessToken), 403)
	f.want(f.data(sb, insidePort, "GET", "/", nil, api.HeaderTraffic, sb.EnvdAccessToken), 403)
	s := ask(t, f.data(sb, insidePort, "GET", "/", nil, api.HeaderTraffic, *sb.TrafficAccessToken))
	if s.Header.Get(api.HeaderTraffic) != "" || s.Host != fmt.Sprintf("localhost:%d", insidePort) {
		t.Errorf("%+v", s)
	}
	// The runtime has its own token.
	f.run(sb, "true")
	// Connecting tells the token again.
	r := f.want(f.do("POST", "/v2/sandboxes/"+sb.SandboxID+"/connect", nil), 200)
	if r.field(t, "trafficAccessToken") != *sb.TrafficAccessToken {
		t.Errorf("%s", r.body)
	}
}

// sign is how SDKs sign.
func sign(path, operation, user, token, expiry string) string {
	raw := path + ":" + operation + ":" + user + ":" + token
	if expiry != "" {
		raw += ":" + expiry
	}
	sum := sha256.Sum256([]byte(raw))
	return "v1_" + base64.RawStdEncoding.EncodeToString(sum[:])
}

func TestSignedAddresses(t *testing.T) {
	f := startLocal(t, Options{})
	one, two := f.create(nil), f.create(nil)
	const name = "a b+%ü.txt"
	address := func(token, operation, expiry string) string {
		q := url.Values{"path": {name}, "signature": {sign(name, operation, "", token, expiry)}}
		if expiry != "" {
			q.Set("signature_expiration", expiry)
		}
		return "/files?" + q.Encode()
	}
	for _, sb := range []api.Sandbox{one, two} {
		r, err := f.try("POST", address(sb.EnvdAccessToken, "write", ""), sb.SandboxID, "Content-Type", "application/octet-stream")
		if err != nil || r.StatusCode != 200 {
			t.Fatalf("%v %s", err, r.body)
		}
	}
	later, before := fmt.Sprint(time.Now().Add(time.Hour).Unix()), fmt.Sprint(time.Now().Add(-time.Hour).Unix())
	good := address(one.EnvdAccessToken, "read", later)
	for _, c := range []struct {
		name, method, path string
		status             int
		content            string
	}{
		{"of one", "GET", address(one.EnvdAccessToken, "read", ""), 200, one.SandboxID},
		{"of the other", "GET", address(two.EnvdAccessToken, "read", ""), 200, two.SandboxID},
		{"before its end", "GET", good, 200, one.SandboxID},
		{"after its end", "GET", address(one.EnvdAccessToken, "read", before), 401, ""},
		{"made for writing", "GET", address(one.EnvdAccessToken, "write", ""), 401, ""},
		{"made for reading", "POST", address(one.EnvdAccessToken, "read", ""), 401, ""},
		{"without a token", "GET", address("", "read", ""), 401, ""},
		{"another path", "GET", strings.Replace(good, "path=a", "path=b", 1), 401, ""},
		{"another end", "GET", strings.Replace(good, later, later+"0", 1), 401, ""},
		{"another user", "GET", good + "&username=root", 401, ""},
		{"an end that is no number", "GET", good + "x", 401, ""},
		{"empty", "GET", "/files?path=x&signature=", 401, ""},
	} {
		r, err := f.try(c.method, c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if r.StatusCode != c.status || c.content != "" && string(r.body) != c.content {
			t.Errorf("%s: %d %s", c.name, r.StatusCode, r.body)
		}
		if c.status == 200 && r.Header.Get("Content-Security-Policy") != "sandbox" {
			t.Errorf("%s: a file is shown as a page of the control plane", c.name)
		}
	}
	// Each character of a signature counts.
	i := strings.Index(good, "signature=") + len("signature=v1_")
	for j := range 40 {
		c := byte('A')
		if good[i+j] == c {
			c = 'B'
		}
		if good[i+j] == '%' || good[i+j-1] == '%' || good[i+j-2] == '%' {
			continue
		}
		r, err := f.try("GET", good[:i+j]+string(c)+good[i+j+1:], nil)
		if err != nil || r.StatusCode != 401 {
			t.Errorf("altered at %d: %v %d", j, err, r.StatusCode)
		}
	}
	// Without a signature it is a route of the control plane that is not there.
	r, err := f.try("GET", "/files?path=x", nil)
	if err != nil || r.StatusCode != 401 {
		t.Errorf("%v %d", err, r.StatusCode)
	}
}

// A sandbox that hangs up does not leave us waiting for the body of a client
// that takes its time.
func TestSandboxThatHangsUp(t *testing.T) {
	for name, answer := range map[string]string{"without an answer": "", "with an answer": "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno"} {
		t.Run(name, func(t *testing.T) {
			p := newFake()
			p.dial = func(context.Context) (net.Conn, error) {
				ours, theirs := net.Pipe()
				go func() {
					defer theirs.Close()
					br := bufio.NewReader(theirs)
					for line := ""; line != "\r\n"; {
						var err error
						if line, err = br.ReadString('\n'); err != nil {
							return
						}
					}
					io.WriteString(theirs, answer)
				}()
				return ours, nil
			}
			f := start(t, t.TempDir(), Options{Provider: p})
			sb := f.create(nil)
			in, w := io.Pipe()
			defer w.Close()
			r := f.data(sb, envdPort, "POST", "/files?path=slow", in)
			if want := map[bool]int{true: 502, false: 403}[answer == ""]; r.StatusCode != want {
				t.Errorf("%d, want %d: %s", r.StatusCode, want, r.body)
			}
		})
	}
}

func TestCrowd(t *testing.T) {
	f := startLocal(t, Options{})
	f.s.limits.perSandbox = 2
	sb := f.create(nil)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for range 2 {
		res, err := f.stream(ctx, sb, "echo; sleep 100")
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
	}
	r := f.want(f.data(sb, envdPort, "GET", "/health", nil), 429)
	if r.field(t, "connectionLimit") != 2.0 || r.field(t, "sandboxId") != sb.SandboxID {
		t.Errorf("%s", r.body)
	}
	// Other sandboxes are not concerned.
	other := f.create(nil)
	f.run(other, "true")
	cancel()
	eventually(t, "there is room again", func() bool { return f.data(sb, envdPort, "GET", "/health", nil).StatusCode == 204 })
}

// A client that goes away ends its request inside.
func TestClientThatLeaves(t *testing.T) {
	f := startLocal(t, Options{})
	sb := f.create(nil)
	ctx, cancel := context.WithCancel(context.Background())
	res, err := f.stream(ctx, sb, "echo; sleep 100")
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := io.ReadAll(res.Body); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	res.Body.Close()
	eventually(t, "the request ends", func() bool { return f.s.forward.carried.Load() == 0 })
}
