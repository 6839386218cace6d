package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/api"
)

const insidePort = 8080

func init() { roles["inside"] = serveInside }

// seen is what the server inside was asked.
type seen struct {
	Host, URI, Method, Body string
	Header                  http.Header
}

// serveInside is a user's server in a sandbox.
func serveInside() error {
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", insidePort))
	if err != nil {
		return err
	}
	handlers := map[string]http.HandlerFunc{}
	handlers["/"] = func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		w.Header().Set("Connection", "X-Hop")
		w.Header().Set("X-Hop", "one")
		json.NewEncoder(w).Encode(seen{r.Host, r.RequestURI, r.Method, string(b), r.Header})
	}
	handlers["/ticks"] = func(w http.ResponseWriter, r *http.Request) {
		for i := 0; ; i++ {
			if _, err := fmt.Fprintln(w, i); err != nil || http.NewResponseController(w).Flush() != nil {
				return
			}
			select {
			case <-r.Context().Done():
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
	handlers["/die"] = func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, "part")
		http.NewResponseController(w).Flush()
		os.Exit(0)
	}
	handlers["/ws"] = func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", r.Header.Get("Upgrade"))
		n, _ := io.Copy(conn, rw.Reader) // until the client has ended its half
		fmt.Fprintf(conn, "bye %d", n)
	}
	fmt.Println("ready")
	return http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := handlers[r.URL.Path]
		if h == nil {
			h = handlers["/"]
		}
		h(w, r)
	}))
}

var testProgram = sync.OnceValues(func() ([]byte, error) { return os.ReadFile("/proc/self/exe") })

// inside starts the server in a sandbox. It ends with the test.
func (f *fixture) inside(sb api.Sandbox) {
	f.t.Helper()
	program, err := testProgram()
	if err != nil {
		f.t.Fatal(err)
	}
	r := f.data(sb, envdPort, "POST", "/files?path=inside", bytes.NewReader(program), "Content-Type", "application/octet-stream")
	if r.StatusCode != 200 {
		f.t.Fatalf("upload: %d %s", r.StatusCode, r.body)
	}
	f.run(sb, "chmod +x inside")
	ctx, cancel := context.WithCancel(context.Background())
	res, err := f.stream(ctx, sb, "exec env "+envRole+"=inside ./inside")
	if err != nil {
		cancel()
		f.t.Fatal(err)
	}
	ready, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		var out bytes.Buffer
		status, err := events(res.Body, func(b []byte) {
			before := strings.Contains(out.String(), "ready\n")
			out.Write(b)
			if !before && strings.Contains(out.String(), "ready\n") {
				close(ready)
			}
		})
		if !strings.Contains(out.String(), "ready\n") {
			f.t.Errorf("the server inside: %s, %v: %s", status, err, out.Bytes())
			close(ready)
		}
	}()
	f.t.Cleanup(func() {
		cancel()
		res.Body.Close()
		<-done
	})
	select {
	case <-ready:
	case <-time.After(waitLimit):
		f.t.Fatal("the server inside does not start")
	}
}

// ask sends a request to the server inside and returns what it saw.
func ask(t testing.TB, r *reply) seen {
	t.Helper()
	if r.StatusCode != 200 {
		t.Fatalf("%d %s", r.StatusCode, r.body)
	}
	var s seen
	r.decode(t, &s)
	return s
}
