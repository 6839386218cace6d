package sandboxfn

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// envServe makes this test program the server inside.
const envServe = "SANDBOXFN_TEST_SERVE"

func init() {
	if os.Getenv(envServe) != "" {
		fmt.Fprintln(os.Stderr, serveInside())
		os.Exit(1)
	}
}

// serveInside serves HTTP on one port and echoes on another, and prints both.
func serveInside() error {
	web, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	echo, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(web.Addr().(*net.TCPAddr).Port, echo.Addr().(*net.TCPAddr).Port)
	go func() {
		for {
			c, err := echo.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				io.Copy(c, c)
				io.WriteString(c, "end")
			}()
		}
	}()
	return http.Serve(web, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s:", r.Method, r.URL.Path)
		io.Copy(w, r.Body)
	}))
}

// serverInside starts this test program in sb.
func serverInside(t testing.TB, sb *Sandbox) (web, echo int) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if sb.Provider() == "local" {
		f, err := os.Open(exe)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		to, err := sb.FS(t.Context()).OpenFile("/tmp/server", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.Copy(to, f)
		if err := errors.Join(err, to.Close()); err != nil {
			t.Fatal(err)
		}
		exe = "/tmp/server"
	}
	cmd := sb.Command(t.Context(), exe)
	cmd.Env = []string{envServe + "=1"}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	if _, err := fmt.Fscan(bufio.NewReader(out), &web, &echo); err != nil {
		t.Fatal("server inside: ", err)
	}
	return web, echo
}

func local(port int) string { return "localhost:" + strconv.Itoa(port) }

func TestDial(t *testing.T) {
	onEach(t, func(t *testing.T, sb *Sandbox) {
		web, echo := serverInside(t, sb)
		t.Run("http", func(t *testing.T) {
			tr := &http.Transport{DialContext: sb.Dial}
			defer tr.CloseIdleConnections()
			hc := &http.Client{Transport: tr}
			body := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
			var wg sync.WaitGroup
			for i := range 8 {
				wg.Go(func() {
					for range 4 {
						res, err := hc.Post(fmt.Sprintf("http://%s/%d", local(web), i), "", bytes.NewReader(body))
						if err != nil {
							t.Error(err)
							return
						}
						got, err := io.ReadAll(res.Body)
						res.Body.Close()
						if want := fmt.Sprintf("POST /%d:%s", i, body); err != nil || string(got) != want {
							t.Errorf("got %d bytes, want %d, %v", len(got), len(want), err)
						}
					}
				})
			}
			wg.Wait()
		})
		t.Run("connection", func(t *testing.T) {
			c, err := sb.Dial(t.Context(), "tcp", "[::1]:"+strconv.Itoa(echo))
			must(t, err)
			defer c.Close()
			if a := c.RemoteAddr(); a.Network() != "tcp" || a.String() != "127.0.0.1:"+strconv.Itoa(echo) {
				t.Errorf("remote address %v", a)
			}
			must(t, c.SetReadDeadline(time.Now().Add(20*time.Millisecond)))
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("deadline: %v", err)
			}
			must(t, c.SetDeadline(time.Time{}))
			if _, err := io.WriteString(c, "ping "); err != nil {
				t.Fatal(err)
			}
			must(t, c.(interface{ CloseWrite() error }).CloseWrite())
			if got, err := io.ReadAll(c); string(got) != "ping end" || err != nil {
				t.Errorf("got %q, %v", got, err)
			}
			must(t, c.Close())
			must(t, c.Close())
		})
		t.Run("refused", func(t *testing.T) {
			start := time.Now()
			for range 5 {
				_, err := sb.Dial(t.Context(), "tcp", "localhost:1")
				if !errors.Is(err, ErrConnect) || !errors.Is(err, syscall.ECONNREFUSED) || !strings.Contains(err.Error(), "port 1") {
					t.Errorf("got %v", err)
				}
			}
			t.Log("refused after", time.Since(start)/5)
		})
		t.Run("cancelled", func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if _, err := sb.Dial(ctx, "tcp", local(echo)); CodeOf(err) != "E5004" || !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
			// The context of a dial that succeeded has no say any more.
			ctx, cancel = context.WithCancel(t.Context())
			c, err := sb.Dial(ctx, "tcp", local(echo))
			must(t, err)
			defer c.Close()
			cancel()
			if _, err := io.WriteString(c, "x"); err != nil {
				t.Error(err)
			}
			if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
				t.Error(err)
			}
		})
		t.Run("ends with the handle", func(t *testing.T) {
			other, err := sb.client.Connect(t.Context(), sb.ID(), nil)
			must(t, err)
			c, err := other.Dial(t.Context(), "tcp", local(echo))
			must(t, err)
			must(t, other.Close())
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
				t.Errorf("read: %v", err)
			}
			if _, err := other.Dial(t.Context(), "tcp", local(echo)); CodeOf(err) != "E5004" {
				t.Errorf("dial: %v", err)
			}
		})
	})
}

func TestDialTarget(t *testing.T) {
	for _, c := range []struct{ network, address string }{
		{"udp", "localhost:80"}, {"tcp6", "localhost:80"}, {"unix", "/tmp/x"}, {"", "localhost:80"},
		{"tcp", "localhost"}, {"tcp", "example.com:80"}, {"tcp", "10.0.0.1:80"}, {"tcp", "localhost:http"},
		{"tcp", "localhost:0"}, {"tcp", "localhost:65536"}, {"tcp", "localhost:-1"}, {"tcp", ""},
	} {
		if _, err := dialTarget(c.network, c.address); !errors.Is(err, ErrOption) {
			t.Errorf("%s %s: %v", c.network, c.address, err)
		}
	}
	for _, a := range []string{":80", "localhost:80", "127.0.0.1:80", "[::1]:80"} {
		if p, err := dialTarget("tcp", a); p != 80 || err != nil {
			t.Errorf("%s: %d, %v", a, p, err)
		}
	}
}

func TestURL(t *testing.T) {
	onEach(t, func(t *testing.T, sb *Sandbox) {
		web, _ := serverInside(t, sb)
		url, err := sb.URL(web)
		must(t, err)
		if again, err := sb.URL(web); again != url || err != nil {
			t.Errorf("%q, then %q, %v", url, again, err)
		}
		tr := &http.Transport{}
		defer tr.CloseIdleConnections()
		hc := &http.Client{Transport: tr}
		get := func(p string) (string, error) {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+p, nil)
			must(t, err)
			for k, v := range sb.Header(web) {
				req.Header[k] = v
			}
			res, err := hc.Do(req)
			if err != nil {
				return "", err
			}
			defer res.Body.Close()
			b, err := io.ReadAll(res.Body)
			return string(b), err
		}
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				p := path.Join("/", strconv.Itoa(i))
				if got, err := get(p); got != "GET "+p+":" || err != nil {
					t.Errorf("got %q, %v", got, err)
				}
			})
		}
		wg.Wait()
		if h := sb.Header(web); h == nil || len(h) != 0 {
			t.Errorf("header: %v", h)
		}
		nothing, err := sb.URL(1)
		must(t, err)
		if res, err := hc.Get(nothing); err == nil {
			res.Body.Close()
			t.Error("an answer of nobody")
		}
		if _, err := sb.URL(0); !errors.Is(err, ErrOption) {
			t.Errorf("port 0: %v", err)
		}
		// A client that keeps its connection open and says nothing does not hold Close up.
		held, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		must(t, err)
		defer held.Close()
		if _, err := io.WriteString(held, "GET /held HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Error(err)
		}
		if _, err := held.Read(make([]byte, 1)); err != nil {
			t.Error(err)
		}
		start := time.Now()
		must(t, sb.Close())
		if took := time.Since(start); took > killTimeout/2 {
			t.Errorf("close took %v", took)
		}
		if got, err := get("/late"); err == nil {
			t.Errorf("after the end of the handle: %q", got)
		}
		if _, err := sb.URL(web); !errors.Is(err, ErrKilled) || sb.Header(web) != nil {
			t.Errorf("got %v", err)
		}
	})
}

// Providers that cannot pause or measure say so.
func TestNotCapable(t *testing.T) {
	sb := hostSandbox(t)
	_, metricsErr := sb.Metrics(t.Context())
	for _, err := range []error{sb.Pause(t.Context()), sb.Resume(t.Context()), metricsErr} {
		if !errors.Is(err, ErrNotSupported) || !strings.Contains(err.Error(), "capability") {
			t.Errorf("got %v", err)
		}
	}
}

// BenchmarkDial compares a new connection and one request through the tunnel
// with the same on the loopback of this machine.
func BenchmarkDial(b *testing.B) {
	b.Run("loopback", func(b *testing.B) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		defer l.Close()
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() { defer c.Close(); io.Copy(c, c) }()
			}
		}()
		for b.Loop() {
			c, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				b.Fatal(err)
			}
			roundTrip(b, c)
			c.Close()
		}
		kept, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			b.Fatal(err)
		}
		defer kept.Close()
		start := time.Now()
		for range 200 {
			roundTrip(b, kept)
		}
		b.ReportMetric(float64(time.Since(start))/200, "ns/kept")
	})
	sb := localSandbox(b)
	_, echo := serverInside(b, sb)
	b.Run("tunnel", func(b *testing.B) {
		for b.Loop() {
			c, err := sb.Dial(b.Context(), "tcp", local(echo))
			if err != nil {
				b.Fatal(err)
			}
			roundTrip(b, c)
			c.Close()
		}
		kept, err := sb.Dial(b.Context(), "tcp", local(echo))
		if err != nil {
			b.Fatal(err)
		}
		defer kept.Close()
		start := time.Now()
		for range 200 {
			roundTrip(b, kept)
		}
		b.ReportMetric(float64(time.Since(start))/200, "ns/kept")
	})
}

func roundTrip(b *testing.B, c net.Conn) {
	b.Helper()
	if _, err := c.Write([]byte("ping")); err != nil {
		b.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 4)); err != nil {
		b.Fatal(err)
	}
}
