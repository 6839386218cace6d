package gateway

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// raw sends bytes as they are and returns the answer's status, 0 when the
// connection was closed without one.
func (f *fixture) raw(text string) (status int, body string) {
	f.t.Helper()
	c, err := net.Dial("tcp", f.addr)
	if err != nil {
		f.t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(waitLimit))
	_, _ = io.WriteString(c, text) // the answer may come before all of it is taken
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0, ""
	}
	defer res.Body.Close()
	b, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(b)
}

func TestOddRequests(t *testing.T) {
	f := start(t, t.TempDir(), Options{Provider: newFake(), Domain: "example.com"})
	sb := f.create(nil)
	id := sb.SandboxID
	key := "X-API-Key: " + f.key + "\r\n"
	for _, c := range []struct {
		name, request string
		status        int
	}{
		{"as it should be", "GET /v2/sandboxes HTTP/1.1\r\nHost: x\r\n" + key + "\r\n", 200},
		{"no host", "GET /v2/sandboxes HTTP/1.1\r\n" + key + "\r\n", 400},
		{"two hosts", "GET /v2/sandboxes HTTP/1.1\r\nHost: a\r\nHost: b\r\n" + key + "\r\n", 400},
		{"two keys", "GET /v2/sandboxes HTTP/1.1\r\nHost: x\r\n" + key + key + "\r\n", 401},
		{"key and another in Authorization", "GET /v2/sandboxes HTTP/1.1\r\nHost: x\r\nX-API-Key: nope\r\nAuthorization: Bearer " + f.key + "\r\n\r\n", 401},
		{"HTTP/1.0", "GET /v2/sandboxes HTTP/1.0\r\n" + key + "\r\n", 200},
		{"whole address", "GET http://api.example.com/v2/sandboxes HTTP/1.1\r\nHost: ignored\r\n" + key + "\r\n", 200},
		{"whole address of a sandbox", "GET http://49983-" + id + ".example.com/init HTTP/1.1\r\nHost: x\r\n" + key + "\r\n", 404},
		{"whole address with a user", "GET http://user@api.example.com/v2/sandboxes HTTP/1.1\r\nHost: x\r\n" + key + "\r\n", 400},
		{"host with a user", "GET /v2/sandboxes HTTP/1.1\r\nHost: a@b\r\n" + key + "\r\n", 400},
		{"CONNECT", "CONNECT 49983-" + id + ".example.com:443 HTTP/1.1\r\nHost: x\r\n" + key + "\r\n", 400},
		{"asterisk", "OPTIONS * HTTP/1.1\r\nHost: x\r\n" + key + "\r\n", 200},
		{"not HTTP", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400},
		{"two lengths", "POST /v2/sandboxes HTTP/1.1\r\nHost: x\r\n" + key + "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400},
		{"length and chunks", "POST /v2/sandboxes HTTP/1.1\r\nHost: x\r\n" + key + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 201},
		{"malformed chunks", "POST /v2/sandboxes HTTP/1.1\r\nHost: x\r\n" + key + "Transfer-Encoding: chunked\r\n\r\nzz\r\n{}", 400},
		{"a header of two lines", "GET /v2/sandboxes HTTP/1.1\r\nHost: x\r\n" + key + "A: b\r\n c\r\n\r\n", 200},
		{"a header that is too long", "GET /v2/sandboxes HTTP/1.1\r\nHost: x\r\n" + key + "A: " + strings.Repeat("x", 2*maxHeaderBytes) + "\r\n\r\n", 431},
		{"a path that is too long", "GET /" + strings.Repeat("x", 2*maxHeaderBytes) + " HTTP/1.1\r\nHost: x\r\n\r\n", 431},
		{"dots", "GET /../../v2/sandboxes HTTP/1.1\r\nHost: x\r\n" + key + "\r\n", 404},
		{"encoded dots", "GET /%2e%2e/sandboxes HTTP/1.1\r\nHost: x\r\n" + key + "\r\n", 404},
		{"encoded slash", "GET /v2%2fsandboxes HTTP/1.1\r\nHost: x\r\n" + key + "\r\n", 404},
		{"NUL", "GET /sandboxes/%00 HTTP/1.1\r\nHost: x\r\n" + key + "\r\n", 400},
		{"dots to the runtime", "GET /x/../../init HTTP/1.1\r\nHost: 49983-" + id + ".example.com\r\n\r\n", 404},
		{"encoded init", "POST /%69n%69t HTTP/1.1\r\nHost: 49983-" + id + ".example.com\r\nContent-Length: 0\r\n\r\n", 404},
	} {
		status, body := f.raw(c.request)
		if status != c.status {
			t.Errorf("%s: %d, want %d: %s", c.name, status, c.status, body)
		}
	}
	// Bodies that end early or are too large.
	if status, _ := f.raw("POST /v2/sandboxes HTTP/1.1\r\nHost: x\r\n" + key + fmt.Sprintf("Content-Length: %d\r\n\r\n", 10<<20) + strings.Repeat(" ", maxControlBody+1)); status != 413 {
		t.Errorf("a large body: %d", status)
	}
	// A stranger's body is not read: the answer comes at once.
	if status, _ := f.raw("POST /v2/sandboxes HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"); status != 401 && status != 0 {
		t.Errorf("a body that does not come: %d", status)
	}
}

// Clients that are slow or silent keep nobody out, however many they are.
func TestManyConnections(t *testing.T) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	n := 2500 // each is two files in this process
	if limit.Cur < uint64(3*n) {
		n = int(limit.Cur / 3)
		t.Logf("only %d connections: the descriptor limit is %d", n, limit.Cur)
	}
	f := start(t, t.TempDir(), Options{Provider: newFake(), testOnlyClock: time.Minute}) // as long as it takes to make them
	if f.s.limits.conns < n {
		t.Fatalf("the gateway takes %d connections", f.s.limits.conns)
	}
	beginnings := []string{"", "G", "GET /v2/sandboxes HTTP/1.1\r\nHost: x\r\nX-Slow: ", "POST /v2/sandboxes HTTP/1.1\r\nHost: x\r\nX-API-Key: " + f.key + "\r\nContent-Length: 100\r\n\r\n{"}
	conns := make([]net.Conn, n)
	for i := range conns {
		c, err := net.Dial("tcp", f.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		conns[i] = c
		io.WriteString(c, beginnings[i%len(beginnings)])
	}
	eventually(t, "all are there", func() bool {
		f.s.conns.mu.Lock()
		defer f.s.conns.mu.Unlock()
		return len(f.s.conns.all) >= n
	})
	begin := time.Now()
	f.create(nil)
	f.page("")
	if d := time.Since(begin); d > waitLimit/2 {
		t.Errorf("with %d connections open, two requests take %v", n, d)
	}
}

// At the limit the connection that has waited longest gives way, and one that
// is being served does not.
func TestConnectionLimit(t *testing.T) {
	p := newFake()
	f := start(t, t.TempDir(), Options{Provider: p, MaxConnections: 4})
	f.client.CloseIdleConnections()
	started, goOn := make(chan struct{}), make(chan struct{})
	p.onCreate = func() error { close(started); <-goOn; return nil }
	created := make(chan int, 1)
	go func() { created <- f.do("POST", "/v2/sandboxes", `{}`).StatusCode }()
	<-started
	var silent []net.Conn
	for range 8 {
		c, err := net.Dial("tcp", f.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		silent = append(silent, c)
	}
	if status, _ := f.raw("GET /health HTTP/1.1\r\nHost: x\r\n\r\n"); status != 200 {
		t.Errorf("a new one gets %d", status)
	}
	f.s.conns.mu.Lock() // connections are accepted in order: all of before are in
	if n := len(f.s.conns.all); n > 4 {
		t.Errorf("%d connections", n)
	}
	f.s.conns.mu.Unlock()
	for i, c := range silent[:5] {
		c.SetReadDeadline(time.Now().Add(waitLimit))
		if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("silent connection %d was not closed: %v", i, err)
		}
	}
	close(goOn)
	if status := <-created; status != 201 {
		t.Errorf("the one that was served got %d", status)
	}
}

// When all connections are being served, a new one is told so.
func TestNoRoom(t *testing.T) {
	p := newFake()
	f := start(t, t.TempDir(), Options{Provider: p, MaxConnections: 2})
	goOn := make(chan struct{})
	started := make(chan struct{}, 2)
	p.onCreate = func() error { started <- struct{}{}; <-goOn; return nil }
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() { f.do("POST", "/v2/sandboxes", `{}`) })
	}
	<-started
	<-started
	if status, body := f.raw("GET /health HTTP/1.1\r\nHost: x\r\n\r\n"); status != 429 || body != tooMany {
		t.Errorf("%d %q", status, body)
	}
	close(goOn)
	wg.Wait()
}

// A client that sends much when it is turned away is told so all the same.
func TestNoRoomForMuch(t *testing.T) {
	p := newFake()
	f := start(t, t.TempDir(), Options{Provider: p, MaxConnections: 1})
	goOn, started := make(chan struct{}), make(chan struct{})
	p.onCreate = func() error { close(started); <-goOn; return nil }
	var wg sync.WaitGroup
	wg.Go(func() { f.do("POST", "/v2/sandboxes", `{}`) })
	<-started
	for i := range 20 {
		r, err := f.try("POST", "/v2/sandboxes", strings.Repeat("x", 4<<20))
		if err != nil || r.StatusCode != 429 || string(r.body) != tooMany {
			t.Errorf("try %d: %+v, %v", i, r, err)
			break
		}
	}
	close(goOn)
	wg.Wait()
}

func init() { roles["few files"] = serveWithFewFiles }

// serveWithFewFiles runs a gateway in a process that may open few files.
func serveWithFewFiles() error {
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 64, Max: 64}); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "few")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	s, err := New(&Options{Provider: newFake(), StateDir: dir + "/gateway", MaxConnections: 1000})
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	io.Copy(io.Discard, os.Stdin) // until the test ends
	if err := s.Shutdown(context.Background()); err != nil {
		return err
	}
	return <-served
}

// A process that has no file left for a connection goes on when it has.
func TestNoFilesLeft(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), envRole+"=few files")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	addr, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{t: t, addr: strings.TrimSpace(addr)}
	var conns []net.Conn
	for range 150 {
		c, err := net.Dial("tcp", f.addr)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	time.Sleep(100 * time.Millisecond) // it has met the limit by now, or will
	for _, c := range conns {
		c.Close()
	}
	if status, _ := f.raw("GET /health HTTP/1.1\r\nHost: x\r\n\r\n"); status != 200 {
		t.Errorf("afterwards it answers %d", status)
	}
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// Slow clients are cut off.
func TestSlowClients(t *testing.T) {
	f := start(t, t.TempDir(), Options{Provider: newFake(), testOnlyClock: 100 * time.Millisecond})
	for name, text := range map[string]string{
		"nothing":                 "",
		"half a line":             "GET /hea",
		"half a header":           "GET /health HTTP/1.1\r\nHost: x\r\nA: ",
		"half a body":             "POST /v2/sandboxes HTTP/1.1\r\nHost: x\r\nX-API-Key: " + f.key + "\r\nContent-Length: 100\r\n\r\n{",
		"half a chunk":            "POST /v2/sandboxes HTTP/1.1\r\nHost: x\r\nX-API-Key: " + f.key + "\r\nTransfer-Encoding: chunked\r\n\r\n10\r\n{",
		"half a stranger's body":  "POST /v2/sandboxes HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
		"a body nobody asked for": "GET /v2/sandboxes HTTP/1.1\r\nHost: x\r\nX-API-Key: " + f.key + "\r\nContent-Length: 100\r\n\r\n{",
	} {
		t.Run(name, func(t *testing.T) {
			c, err := net.Dial("tcp", f.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			io.WriteString(c, text)
			c.SetReadDeadline(time.Now().Add(waitLimit))
			if _, err := io.ReadAll(c); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("the connection stays open")
			}
		})
	}
}

// Shutdown cuts what does not end by itself, also connections that changed
// their protocol, and leaves the sandboxes.
func TestShutdown(t *testing.T) {
	f := startLocal(t, Options{})
	sb := f.create(nil)
	f.inside(sb)
	res, err := f.stream(context.Background(), sb, "echo; sleep 1000")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	ws, err := net.Dial("tcp", f.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer ws.Close()
	fmt.Fprintf(ws, "GET /ws HTTP/1.1\r\nHost: %d-%s.x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", insidePort, sb.SandboxID)
	br := bufio.NewReader(ws)
	if r, err := http.ReadResponse(br, nil); err != nil || r.StatusCode != 101 {
		t.Fatal(r, err)
	}
	slow, err := net.Dial("tcp", f.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	io.WriteString(slow, "GET /hea")

	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	begin := time.Now()
	f.s.Shutdown(ctx)
	if d := time.Since(begin); d > waitLimit/2 {
		t.Errorf("shutdown takes %v", d)
	}
	if _, err := events(res.Body, func([]byte) {}); err == nil {
		t.Error("a stream that was cut has an end")
	}
	ws.SetReadDeadline(time.Now().Add(waitLimit))
	if _, err := br.ReadByte(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("an upgraded connection: %v", err)
	}
	if got, err := f.provider.Get(context.Background(), sb.SandboxID); err != nil || got.State != "running" {
		t.Errorf("the sandbox: %v, %v", got, err)
	}
}
