package gateway

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// logText keeps what is logged.
type logText struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// answerEarly lets every sandbox of a fake answer the parameter n of a request
// before it reads the body, or after its first byte when there is a parameter
// read.
func answerEarly(t *testing.T, p *fake) {
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait)
	p.dial = func(context.Context) (net.Conn, error) {
		ours, theirs := net.Pipe()
		wg.Go(func() {
			defer theirs.Close()
			br := bufio.NewReader(theirs)
			for {
				r, err := http.ReadRequest(br)
				if err != nil {
					return
				}
				q := r.URL.Query()
				if q.Has("read") {
					r.Body.Read(make([]byte, 1))
				}
				fmt.Fprintf(theirs, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(q.Get("n")), q.Get("n"))
				io.Copy(io.Discard, r.Body)
			}
		})
		return ours, nil
	}
}

// Answers that come before the body was read, or sent, leave the connection in
// order for the next request.
func TestEarlyAnswers(t *testing.T) {
	var logged logText
	p := newFake()
	answerEarly(t, p)
	f := start(t, t.TempDir(), Options{Provider: p,
		Logger: slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	sb := f.create(nil)
	c, err := net.Dial("tcp", f.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Minute))
	br := bufio.NewReader(c)
	bodies := []string{"x", strings.Repeat("y", 1000), strings.Repeat("z", 100_000)}
	for n := range 144 {
		body := bodies[n%len(bodies)]
		query := []string{"", "&read"}[n/3%2]
		length, sent := fmt.Sprintf("Content-Length: %d", len(body)), body
		if n/6%2 == 1 {
			length, sent = "Transfer-Encoding: chunked", fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(body), body)
		}
		half := []int{len(sent), len(sent) - 1, len(sent) / 2}[n/12%3] // before the answer is read
		if query != "" {
			half = max(half, len(sent)/2+1)
		}
		fmt.Fprintf(c, "POST /x?n=%d%s HTTP/1.1\r\nHost: %d-%s.x\r\n%s\r\n\r\n%s", n, query, envdPort, sb.SandboxID, length, sent[:half])
		rest := make(chan error, 1)
		go func() {
			if n%2 == 0 {
				time.Sleep(100 * time.Millisecond) // let the answer overtake it: a transport waits 50 ms
			}
			_, err := io.WriteString(c, sent[half:])
			rest <- err
		}()
		res, err := http.ReadResponse(br, nil)
		if err != nil {
			t.Fatalf("request %d: %v\n%s", n, err, logged.String())
		}
		got, err := io.ReadAll(res.Body)
		if err != nil || string(got) != fmt.Sprint(n) || res.Close {
			t.Fatalf("request %d: %q, %v, close: %v\n%s", n, got, err, res.Close, logged.String())
		}
		if err := <-rest; err != nil {
			t.Fatal(err)
		}
	}
	if s := logged.String(); strings.Contains(s, "panic") {
		t.Error(s)
	}
}

// A client that has its answer and does not send the rest of its body does not hold
// its request for ever, and what it sends later is not taken for another request.
func TestRestOfABodyThatDoesNotCome(t *testing.T) {
	p := newFake()
	answerEarly(t, p)
	f := start(t, t.TempDir(), Options{Provider: p})
	sb := f.create(nil)
	const next = "GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
	for name, body := range map[string]struct{ header, sent string }{
		"length":            {"Content-Length: 100", "x"},
		"chunked":           {"Transfer-Encoding: chunked", "1\r\nx\r\n"},
		"more than is read": {"Content-Length: 10000000", strings.Repeat("x", 2*drainBytes)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, err := net.Dial("tcp", f.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			c.SetDeadline(time.Now().Add(waitLimit))
			go fmt.Fprintf(c, "POST /x HTTP/1.1\r\nHost: %d-%s.x\r\n%s\r\n\r\n%s", envdPort, sb.SandboxID, body.header, body.sent)
			br := bufio.NewReader(c)
			if _, err := http.ReadResponse(br, nil); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the request ends", func() bool { return f.s.forward.carried.Load() == 0 })
			io.WriteString(c, next)
			if res, err := http.ReadResponse(br, nil); err == nil {
				t.Errorf("the rest of a body was answered: %v", res.Status)
			}
		})
	}
}

// What is left of a body is not carried out, whatever it says and wherever the
// server's buffer ends.
func TestRestOfABodyIsNoRequest(t *testing.T) {
	p := newFake()
	answerEarly(t, p)
	f := start(t, t.TempDir(), Options{Provider: p})
	sb := f.create(nil)
	const body = `{"templateID":"base"}`
	evil := fmt.Sprintf("POST /v2/sandboxes HTTP/1.1\r\nHost: x\r\nX-API-Key: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", f.key, len(body), body)
	made := p.count()
	for _, sent := range []string{"1\r\nx\r\nzz\r\n" + evil, "1\r\nxyz" + evil} {
		c, err := net.Dial("tcp", f.addr)
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(waitLimit))
		fmt.Fprintf(c, "POST /x?n=1 HTTP/1.1\r\nHost: %d-%s.x\r\nTransfer-Encoding: chunked\r\n\r\n%s", envdPort, sb.SandboxID, sent)
		_, _ = io.ReadAll(c) // until the gateway closes it
		c.Close()
	}
	if err := f.s.Shutdown(t.Context()); err != nil { // waits for what is being carried out
		t.Error(err)
	}
	if n := p.count() - made; n != 0 {
		t.Errorf("%d sandboxes were made by what was body", n)
	}
}
