package envd

import (
	"bufio"
	"context"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// echoUpgrade agrees to a protocol, says hello in the same breath when asked
// to, and then sends back what comes.
func echoUpgrade(early string, seen func(*http.Request)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		seen(r)
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+r.Header.Get("Upgrade")+"\r\n\r\n"+early)
		io.Copy(conn, rw)
	}
}

// connectProxy is a proxy that knows CONNECT alone.
func connectProxy(t *testing.T, used *atomic.Int32) *url.URL {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodConnect || r.Header.Get("Proxy-Authorization") == "" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		used.Add(1)
		out, err := net.Dial("tcp", r.Host)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		defer out.Close()
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\n")
		var wg sync.WaitGroup
		wg.Go(func() { io.Copy(out, rw); out.(*net.TCPConn).CloseWrite() })
		io.Copy(conn, out)
		conn.(*net.TCPConn).CloseWrite()
		wg.Wait()
	}))
	t.Cleanup(srv.Close)
	u, err := url.Parse(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword("me", "secret")
	return u
}

func TestUpgradeByAddress(t *testing.T) {
	for _, c := range []struct {
		name       string
		tls, proxy bool
		early      string
	}{
		{name: "http"},
		{name: "https", tls: true},
		{name: "http through a proxy", proxy: true},
		{name: "https through a proxy", tls: true, proxy: true},
		{name: "the server speaks first", tls: true, early: "SSH-2.0\r\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got *http.Request
			srv := httptest.NewUnstartedServer(echoUpgrade(c.early, func(r *http.Request) { got = r }))
			if c.tls {
				srv.EnableHTTP2 = true
				srv.StartTLS()
			} else {
				srv.Start()
			}
			defer srv.Close()
			o := Options{URL: strings.Replace(srv.URL, "://", "://me:secret@", 1) + "/box/1/", Token: "T", Headers: http.Header{"X-Route": {"here"}}}
			if c.tls {
				o.RootCAs = x509.NewCertPool()
				o.RootCAs.AddCert(srv.Certificate())
			}
			ec, err := New(&o)
			if err != nil {
				t.Fatal(err)
			}
			defer ec.Close()
			ec.transport.base.Proxy = nil
			var used atomic.Int32
			if c.proxy {
				ec.transport.base.Proxy = http.ProxyURL(connectProxy(t, &used))
			}
			conn, err := ec.upgrade(t.Context(), "test", "/sandbox/ports/22", "sandbox-tcp/1")
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := io.WriteString(conn, "ping\n"); err != nil {
				t.Fatal(err)
			}
			if err := conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
				t.Fatal(err)
			}
			if b, err := io.ReadAll(conn); string(b) != c.early+"ping\n" || err != nil {
				t.Errorf("read %q, %v", b, err)
			}
			if got.URL.Path != "/box/1/sandbox/ports/22" || got.Header.Get("X-Access-Token") != "T" || got.Header.Get("X-Route") != "here" {
				t.Errorf("the request was %s with %v", got.URL, got.Header)
			}
			if user, password, _ := got.BasicAuth(); user != "me" || password != "secret" {
				t.Errorf("it was from %q, %q", user, password)
			}
			if c.proxy != (used.Load() == 1) {
				t.Errorf("the proxy was used %d times", used.Load())
			}
		})
	}
}

// A server that cannot be trusted sees no token.
func TestUpgradeWithoutTrust(t *testing.T) {
	var seen atomic.Bool
	srv := httptest.NewTLSServer(echoUpgrade("", func(*http.Request) { seen.Store(true) }))
	defer srv.Close()
	srv.Config.ErrorLog = nil
	ec, err := New(&Options{URL: srv.URL, Token: "T"})
	if err != nil {
		t.Fatal(err)
	}
	defer ec.Close()
	ec.transport.base.Proxy = nil
	if _, err := ec.OpenChannel(t.Context(), NewChannelID()); errdefs.CodeOf(err) != "E5001" || seen.Load() {
		t.Errorf("got %v; the request was sent: %v", err, seen.Load())
	}
}

// With Dial the address still names the host, and asks for TLS.
func TestDialWithAddress(t *testing.T) {
	hosts := make(chan string, 8)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		hosts <- r.Host
		if r.Header.Get("Upgrade") != "" {
			echoUpgrade("", func(*http.Request) {})(w, r)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	defer srv.Close()
	for url, want := range map[string]string{"": "sandbox", "http://49983-x.example.dev": "49983-x.example.dev"} {
		ec, err := New(&Options{URL: url, Dial: func(ctx context.Context) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", srv.Listener.Addr().String())
		}})
		if err != nil {
			t.Fatal(err)
		}
		if err := ec.Health(t.Context()); err != nil {
			t.Fatal(err)
		}
		conn, err := ec.OpenChannel(t.Context(), NewChannelID())
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
		ec.Close()
		for range 2 {
			if got := <-hosts; got != want {
				t.Errorf("URL %q: the host was %q, want %q", url, got, want)
			}
		}
	}
}

func TestFeatures(t *testing.T) {
	var asked, down atomic.Int32
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if down.Load() > 0 {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		w.Header().Set("Sandbox-Features", "channels,  input, news")
		w.WriteHeader(http.StatusNoContent)
	})
	c := clientOf(t, h, Options{})
	down.Store(1)
	if _, err := c.Features(t.Context()); errdefs.CodeOf(err) != "E5003" {
		t.Errorf("got %v", err)
	}
	down.Store(0)
	for range 3 {
		if f, err := c.Features(t.Context()); err != nil || (f != Features{Channels: true, Input: true}) {
			t.Errorf("got %+v, %v", f, err)
		}
	}
	if asked.Load() != 2 {
		t.Errorf("asked %d times", asked.Load())
	}
	none := clientOf(t, func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusNoContent) }, Options{})
	if f, err := none.Features(t.Context()); err != nil || f != (Features{}) {
		t.Errorf("got %+v, %v", f, err)
	}
	if f, err := clientOf(t, h, Options{Ours: true}).Features(t.Context()); err != nil || (f != Features{true, true, true, true}) {
		t.Errorf("got %+v, %v", f, err)
	}
}

// A proxy that answers anything but yes is no way to the sandbox.
func TestProxyRefuses(t *testing.T) {
	for _, answer := range []string{"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\nearly", "nonsense\r\n\r\n", ""} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			http.ReadRequest(bufio.NewReader(conn))
			io.WriteString(conn, answer)
		})
		ec, err := New(&Options{URL: "https://127.0.0.1:1"})
		if err != nil {
			t.Fatal(err)
		}
		ec.transport.base.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: l.Addr().String()})
		if _, err := ec.OpenChannel(t.Context(), NewChannelID()); errdefs.CodeOf(err) != "E5001" {
			t.Errorf("%q: %v", answer, err)
		}
		l.Close()
		wg.Wait()
	}
}
