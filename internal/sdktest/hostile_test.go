package sdktest

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestHostileClients lets clients that mean harm at a running gateway, and then
// asks whether it still works and has kept nothing of theirs.
func TestHostileClients(t *testing.T) {
	t.Parallel() // it waits most of the time
	if testing.Short() {
		t.Skip("opens thousands of connections")
	}
	g := startGateway(t, "--listen", "127.0.0.1:0")
	sb := g.create(t)
	defer g.do(t, http.MethodDelete, "/sandboxes/"+sb.ID)
	g.works(t)
	before := g.descriptors(t)

	t.Run("idle connections", func(t *testing.T) { idle(t, g) })
	t.Run("half-open connections", func(t *testing.T) { halfOpen(t, g, sb) })
	t.Run("slow headers", func(t *testing.T) { slowHeaders(t, g) })
	t.Run("slow bodies", func(t *testing.T) { slowBodies(t, g, sb) })
	t.Run("oversized headers", func(t *testing.T) { oversizedHeaders(t, g, sb) })
	t.Run("oversized bodies", func(t *testing.T) { oversizedBodies(t, g, sb) })
	t.Run("garbage", func(t *testing.T) { garbage(t, g) })
	t.Run("wrong keys and tokens", func(t *testing.T) { wrongSecrets(t, g, sb) })
	t.Run("tricks with paths and hosts", func(t *testing.T) { tricks(t, g, sb) })

	t.Run("works afterwards", func(t *testing.T) {
		g.works(t)
		// Of the sandbox's own connections some may be kept for reuse.
		const kept = 8
		waitUntil(t, "as few descriptors as before", func() (bool, string) {
			now := g.descriptors(t)
			return now <= before+kept, fmt.Sprintf("%d before, %d now", before, now)
		})
	})
}

// idle opens as many connections as a process may have, or 2,500, and works
// meanwhile.
func idle(t *testing.T, g *gateway) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	want := 2500
	if limit.Cur < uint64(want)+200 {
		want = int(limit.Cur) - 200
		t.Logf("only %d connections: the limit of descriptors is %d", want, limit.Cur)
	}
	conns := make([]net.Conn, 0, want)
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	for range want {
		c, err := net.DialTimeout("tcp", g.addr, patience)
		if err != nil {
			t.Fatalf("connection %d: %v", len(conns), err)
		}
		conns = append(conns, c)
	}
	g.works(t)
}

// halfOpen leaves requests in the middle and closes one direction, or goes
// without a word.
func halfOpen(t *testing.T, g *gateway, sb box) {
	parts := []string{
		"", "G", "GET /", "GET / HTTP/1.1\r\n", "GET / HTTP/1.1\r\nHost: x\r\n",
		"POST /sandboxes HTTP/1.1\r\nHost: x\r\nX-API-Key: " + g.key + "\r\nContent-Length: 100\r\n\r\n{",
		"POST /sandboxes HTTP/1.1\r\nHost: x\r\nX-API-Key: " + g.key + "\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{",
		"POST /files?path=/tmp/half HTTP/1.1\r\n" + sb.lines(49983) + "Content-Type: application/octet-stream\r\nContent-Length: 1000000\r\n\r\nabc",
		"POST /process.Process/Start HTTP/1.1\r\n" + sb.lines(49983) + "Content-Type: application/connect+json\r\nContent-Length: 1000\r\n\r\n\x00\x00\x00\x00\xff{",
		"POST /sandbox/ports/22 HTTP/1.1\r\n" + sb.lines(49983) + "Connection: Upgrade\r\nUpgrade: sandbox-tcp/1\r\n\r\n",
		"GET / HTTP/1.1\r\n" + sb.lines(3000) + "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
	}
	var all sync.WaitGroup
	for i := range 20 * len(parts) {
		all.Go(func() {
			c, err := net.DialTimeout("tcp", g.addr, patience)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			if _, err := io.WriteString(c, parts[i%len(parts)]); err != nil {
				t.Error(err)
				return
			}
			switch tcp := c.(*net.TCPConn); i % 3 {
			case 0: // ends what it says, and listens for a while
				tcp.CloseWrite()
				tcp.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
				io.Copy(io.Discard, tcp)
			case 1: // resets
				tcp.SetLinger(0)
			}
		})
	}
	all.Wait()
	g.works(t)
	if status, _ := g.data(t, sb, http.MethodGet, "/files?path=/tmp/half", nil); status != http.StatusNotFound {
		t.Errorf("an upload that was cut short: status %d, want 404", status)
	}
}

// slowHeaders sends a request byte by byte and expects to be cut off.
func slowHeaders(t *testing.T, g *gateway) {
	c, err := net.DialTimeout("tcp", g.addr, patience)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	start := time.Now()
	for time.Since(start) < time.Minute {
		if _, err := io.WriteString(c, "X"); err != nil {
			break
		}
		c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		if _, err := c.Read(make([]byte, 1)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
	}
	if waited := time.Since(start); waited >= time.Minute {
		t.Error("a client may take a minute and more for a header")
	}
}

// slowBodies starts many requests whose bodies do not come, and works meanwhile.
func slowBodies(t *testing.T, g *gateway, sb box) {
	for i := range 200 {
		c, err := net.DialTimeout("tcp", g.addr, patience)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		head := "POST /v2/sandboxes HTTP/1.1\r\nHost: x\r\nX-API-Key: " + g.key + "\r\n"
		if i%2 == 1 {
			head = "POST /files?path=/tmp/slow" + fmt.Sprint(i) + " HTTP/1.1\r\n" + sb.lines(49983) + "Content-Type: application/octet-stream\r\n"
		}
		if _, err := io.WriteString(c, head+"Content-Length: 1000\r\n\r\n{"); err != nil {
			t.Fatal(err)
		}
	}
	g.works(t)
}

func oversizedHeaders(t *testing.T, g *gateway, sb box) {
	big := strings.Repeat("a", 8<<20)
	for name, head := range map[string]string{
		"path":          "GET /" + big + " HTTP/1.1\r\nHost: x\r\n\r\n",
		"header":        "GET /v2/sandboxes HTTP/1.1\r\nHost: x\r\nX-API-Key: " + big + "\r\n\r\n",
		"many headers":  "GET / HTTP/1.1\r\nHost: x\r\n" + strings.Repeat("A: b\r\n", 1<<20) + "\r\n",
		"host":          "GET / HTTP/1.1\r\nHost: 3000-" + big + ".x\r\n\r\n",
		"to a sandbox":  "GET /health HTTP/1.1\r\n" + sb.lines(49983) + "X-Own: " + big + "\r\n\r\n",
		"to its server": "GET / HTTP/1.1\r\n" + sb.lines(3000) + "X-Own: " + big + "\r\n\r\n",
	} {
		if status := g.raw(t, head); status != 431 && status != 414 && status != 400 && status != 0 {
			t.Errorf("%s: status %d", name, status)
		}
	}
	g.works(t)
}

// oversizedBodies sends more than a request can need; the gateway must refuse
// it, not keep it.
func oversizedBodies(t *testing.T, g *gateway, sb box) {
	before := g.memory(t)
	many := func(prefix string) io.Reader {
		return io.MultiReader(strings.NewReader(prefix), io.LimitReader(endless('a'), 200<<20))
	}
	for _, path := range []string{"/sandboxes", "/v2/sandboxes", "/sandboxes/" + sb.ID + "/timeout", "/v2/sandboxes/" + sb.ID + "/connect"} {
		req, err := http.NewRequest(http.MethodPost, g.url()+path, many(`{"templateID":"`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-API-Key", g.key)
		if status, _, err := g.send(req); err == nil && (status < 400 || status >= 500) {
			t.Errorf("%s: status %d", path, status)
		}
	}
	for _, rpc := range []string{"/process.Process/List", "/filesystem.Filesystem/Stat"} {
		if status, _ := g.data(t, sb, http.MethodPost, rpc, many(`{"path":"`)); status != 0 && status < 400 {
			t.Errorf("%s: status %d", rpc, status)
		}
	}
	if grown := g.memory(t) - before; grown > 150<<20 {
		t.Errorf("the gateway grew by %d MiB", grown>>20)
	}
	g.works(t)
}

// garbage sends what is no HTTP.
func garbage(t *testing.T, g *gateway) {
	noise := make([]byte, 64<<10)
	rand.Read(noise)
	for _, b := range [][]byte{
		noise, []byte("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"), []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), []byte("\r\n\r\n\r\n"),
		[]byte("GET / HTTP/9.9\r\n\r\n"), []byte("GET http://169.254.169.254/ HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n"),
		[]byte("CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: 127.0.0.1:22\r\n\r\n"), []byte("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"),
		[]byte("POST /sandboxes HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
		[]byte("POST /sandboxes HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n"),
	} {
		if status := g.rawConn(t, string(b), true); status >= 200 && status < 400 || status >= 500 && status != 505 {
			t.Errorf("%.40q: status %d", b, status)
		}
	}
	g.works(t)
}

// wrongSecrets tries keys and tokens that are close to right ones.
func wrongSecrets(t *testing.T, g *gateway, sb box) {
	other := g.create(t)
	defer g.do(t, http.MethodDelete, "/sandboxes/"+other.ID)
	last := g.key[:len(g.key)-1]
	for _, key := range []string{"", " ", last, last + "g", g.key + "0", strings.ToUpper(g.key), "Bearer " + g.key, sb.Token, "e2b_" + strings.Repeat("0", 40), "*", "' OR 1=1"} {
		for _, path := range []string{"/v2/sandboxes", "/sandboxes", "/sandboxes/" + sb.ID, "/sandboxes/" + sb.ID + "/metrics", "/v2/sandboxes/" + sb.ID + "/logs"} {
			req, _ := http.NewRequest(http.MethodGet, g.url()+path, nil)
			req.Header.Set("X-API-Key", key)
			if status, body, err := g.send(req); err != nil || status != http.StatusUnauthorized {
				t.Errorf("key %q: %s: status %d, %v: %s", key, path, status, err, body)
			}
		}
	}
	for _, token := range []string{"", sb.Token[:len(sb.Token)-1], sb.Token + "0", other.Token, g.key, strings.ToUpper(sb.Token) + "x"} {
		stranger := box{ID: sb.ID, Token: token}
		for _, path := range []string{"/files?path=/etc/hostname", "/envs", "/metrics", "/process.Process/List"} {
			if status, body := g.data(t, stranger, http.MethodPost, path, nil); status != http.StatusUnauthorized {
				t.Errorf("token %q: %s: status %d: %s", token, path, status, body)
			}
		}
	}
	g.works(t)
}

// tricks tries to reach what is not for the client by odd paths, hosts and ids.
func tricks(t *testing.T, g *gateway, sb box) {
	for _, path := range []string{
		"/init", "//init", "/./init", "/files/../init", "/%69nit", "/init/", "/init?x", "/freeze", "/unfreeze", "/collapse", "/upgrade",
		"/fsfreeze", "/fsthaw",
	} {
		if status, body := g.data(t, sb, http.MethodPost, path, strings.NewReader("{}")); status < 300 || status >= 500 {
			t.Errorf("envd %s: status %d: %s", path, status, body)
		}
	}
	// Without a key, no spelling of a path opens the control plane.
	for _, path := range []string{
		"/v2/sandboxes", "//v2/sandboxes", "/v2//sandboxes", "/v2/sandboxes/", "/x/../v2/sandboxes", "/v2/%73andboxes", "/./v2/sandboxes",
		"/sandboxes/../v2/sandboxes", "/V2/sandboxes", "/v2/sandboxes;x", "/health/../v2/sandboxes", "/v2/sandboxes%00", "/files?signature=x",
		"/sandboxes/../../../../etc/passwd", "/..%2f..%2fetc%2fpasswd",
	} {
		raw := "GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
		if status := g.raw(t, raw); status >= 200 && status < 300 || status >= 500 {
			t.Errorf("%s without a key: status %d", path, status)
		}
	}
	for _, id := range []string{"..", "%2e%2e", "../" + sb.ID, sb.ID + "/..", strings.ToUpper(sb.ID) + "X", "a b", "%00", strings.Repeat("a", 5000), "*", "i;rm"} {
		if status, body := g.do(t, http.MethodGet, "/sandboxes/"+strings.ReplaceAll(id, " ", "%20")); status < 300 || status >= 500 {
			t.Errorf("id %.40q: status %d: %.200s", id, status, body)
		}
	}
	for _, host := range []string{
		"49983-.x", "-" + sb.ID + ".x", "0-" + sb.ID + ".x", "65536-" + sb.ID + ".x", "99999999999999999999-" + sb.ID + ".x", "+80-" + sb.ID + ".x",
		"49983-../../x.y", "49983-" + sb.ID + "%00.x", "49983-nosuchsandbox.x", "22-" + sb.ID + ".x", "[::1]", "a..b", "49983-" + sb.ID + "@evil",
	} {
		raw := "GET /envs HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n"
		if status := g.raw(t, raw); status < 300 || status >= 500 && status != 502 {
			t.Errorf("host %q: status %d", host, status)
		}
	}
	for _, port := range []string{"", "0", "-1", "65536", "80x", "8 0", "1e3", "49983, 80", "99999999999999999999"} {
		raw := "GET /envs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nE2b-Sandbox-Id: " + sb.ID + "\r\nE2b-Sandbox-Port: " + port + "\r\n\r\n"
		if status := g.raw(t, raw); status < 300 || status >= 500 {
			t.Errorf("port %q: status %d", port, status)
		}
	}
	g.works(t)
}

// A box is a sandbox that a test has made.
type box struct {
	ID    string `json:"sandboxID"`
	Token string `json:"envdAccessToken"`
}

// lines are the headers of a request to a port of the sandbox.
func (sb box) lines(port int) string {
	return fmt.Sprintf("Host: localhost\r\nE2b-Sandbox-Id: %s\r\nE2b-Sandbox-Port: %d\r\nX-Access-Token: %s\r\n", sb.ID, port, sb.Token)
}

// create makes a sandbox.
func (g *gateway) create(t *testing.T) box {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, g.url()+"/v2/sandboxes", strings.NewReader(`{"templateID":"base"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-API-Key", g.key)
	status, body, err := g.send(req)
	var sb box
	if err != nil || status != http.StatusCreated || json.Unmarshal(body, &sb) != nil {
		t.Fatalf("create: status %d, %v: %s", status, err, body)
	}
	return sb
}

// works creates a sandbox, runs a command in it and kills it.
func (g *gateway) works(t *testing.T) {
	t.Helper()
	sb := g.create(t)
	request := `{"process":{"cmd":"/bin/echo","args":["it works"]},"stdin":false}`
	envelope := append([]byte{0, 0, 0, 0, byte(len(request))}, request...)
	status, body := g.data(t, sb, http.MethodPost, "/process.Process/Start", bytes.NewReader(envelope))
	// "it works\n" in base64, and the exit of the command.
	if status != http.StatusOK || !bytes.Contains(body, []byte("aXQgd29ya3MK")) || !bytes.Contains(body, []byte("exit status 0")) {
		t.Errorf("command: status %d: %s", status, body)
	}
	if status, body := g.do(t, http.MethodDelete, "/sandboxes/"+sb.ID); status != http.StatusNoContent {
		t.Errorf("kill: status %d: %s", status, body)
	}
}

// data sends a request to envd in a sandbox. A connection that the gateway cut
// has status 0.
func (g *gateway) data(t *testing.T, sb box, method, path string, body io.Reader) (int, []byte) {
	t.Helper()
	req, err := http.NewRequest(method, g.url()+path, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("E2b-Sandbox-Id", sb.ID)
	req.Header.Set("E2b-Sandbox-Port", "49983")
	req.Header.Set("X-Access-Token", sb.Token)
	req.Header.Set("Content-Type", "application/json")
	if strings.HasSuffix(path, "/Start") {
		req.Header.Set("Content-Type", "application/connect+json")
	}
	status, b, err := g.send(req)
	if err != nil {
		t.Logf("%s %s: %v", method, path, err)
	}
	return status, b
}

// raw sends bytes and returns the status of the answer, 0 if there is none.
func (g *gateway) raw(t *testing.T, b string) int {
	t.Helper()
	return g.rawConn(t, b, false)
}

// rawConn is raw; with end nothing more can follow, which to the gateway is a
// client that has gone away.
func (g *gateway) rawConn(t *testing.T, b string, end bool) int {
	t.Helper()
	c, err := net.DialTimeout("tcp", g.addr, patience)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	io.WriteString(c, b) // may be cut off before its end
	if end {
		c.(*net.TCPConn).CloseWrite()
	}
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%.60q: no answer and no end", b)
		}
		return 0
	}
	res.Body.Close()
	return res.StatusCode
}

// endless reads as one byte for ever.
type endless byte

func (e endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(e)
	}
	return len(p), nil
}
