//go:build linux

package server

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// patience bounds what a loaded machine may take.
const patience = 20 * time.Second

// openPort asks r for a connection to port; what follows the answer is read
// from the reader.
func openPort(t testing.TB, r *rig, port string, headers ...string) (net.Conn, *bufio.Reader, *http.Response) {
	t.Helper()
	conn, err := net.Dial("unix", r.socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(patience))
	if len(headers) == 0 {
		headers = []string{"Connection: Upgrade", "Upgrade: sandbox-tcp/1", tokenHeader + ": " + testToken}
	}
	fmt.Fprintf(conn, "POST /sandbox/ports/%s HTTP/1.1\r\nHost: sandbox\r\n%s\r\n\r\n", port, strings.Join(headers, "\r\n"))
	if strings.HasPrefix(headers[0], "Content-Length: 3") {
		io.WriteString(conn, "abc")
	}
	br := bufio.NewReader(conn)
	resp, err := http.ReadResponse(br, nil)
	if err != nil {
		t.Fatal(err)
	}
	return conn, br, resp
}

// listen serves one connection after the other on address until the test ends.
func listen(t testing.TB, address string, serve func(*net.TCPConn)) (port string) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Skipf("%s: %v", address, err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serve(c.(*net.TCPConn))
			c.Close()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	_, port, _ = net.SplitHostPort(l.Addr().String())
	return port
}

// noTunnels waits until r has none.
func noTunnels(t *testing.T, r *rig) {
	t.Helper()
	eventually(t, "all tunnels have ended", func() bool {
		r.tunnels.mu.Lock()
		defer r.tunnels.mu.Unlock()
		return r.tunnels.open == 0
	})
}

// TestPortBothWays: all bytes go in and come out, and the end of the input
// reaches who listens, whose answer still comes.
func TestPortBothWays(t *testing.T) {
	r := newRig(t, nil)
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		t.Run(address, func(t *testing.T) {
			port := listen(t, address, func(c *net.TCPConn) {
				all, err := io.ReadAll(c)
				fmt.Fprintf(c, "%d bytes, %v\n", len(all), err)
				c.Write(all)
			})
			conn, br, resp := openPort(t, r, port)
			if resp.StatusCode != http.StatusSwitchingProtocols || resp.Header.Get("Upgrade") != portProtocol {
				t.Fatalf("got %s", resp.Status)
			}
			sent := strings.Repeat("0123456789abcdef", 1<<16)
			go func() {
				io.WriteString(conn, sent)
				conn.(*net.UnixConn).CloseWrite()
			}()
			got, err := io.ReadAll(br)
			if want := fmt.Sprintf("%d bytes, <nil>\n%s", len(sent), sent); err != nil || string(got) != want {
				t.Errorf("got %d bytes, %v; want %d", len(got), err, len(want))
			}
			noTunnels(t, r)
		})
	}
}

// TestPortEndsFromInside: the other half-close. The client can still send when
// who listens has said all it has to say.
func TestPortEndsFromInside(t *testing.T) {
	r := newRig(t, nil)
	received := make(chan string, 1)
	port := listen(t, "127.0.0.1:0", func(c *net.TCPConn) {
		io.WriteString(c, "bye")
		c.CloseWrite()
		all, _ := io.ReadAll(c)
		received <- string(all)
	})
	conn, br, _ := openPort(t, r, port)
	if got, err := io.ReadAll(br); err != nil || string(got) != "bye" {
		t.Fatalf("got %q, %v", got, err)
	}
	io.WriteString(conn, "late")
	conn.Close()
	select {
	case got := <-received:
		if got != "late" {
			t.Errorf("inside got %q", got)
		}
	case <-time.After(patience):
		t.Error("the input did not end")
	}
	noTunnels(t, r)
}

func TestPortRefusals(t *testing.T) {
	r := newRig(t, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	free := l.Addr().(*net.TCPAddr).Port
	l.Close() // nobody else gets it soon
	upgrade := []string{"Connection: keep-alive, upgrade", "Upgrade: sandbox-tcp/1", tokenHeader + ": " + testToken}
	closed := fmt.Sprint(free)
	for _, c := range []struct {
		name, port string
		headers    []string
		status     int
	}{
		{"no token", closed, upgrade[:2], 401},
		{"wrong token", closed, []string{upgrade[0], upgrade[1], tokenHeader + ": other"}, 401},
		{"zero", "0", upgrade, 400},
		{"too high", "65536", upgrade, 400},
		{"negative", "-1", upgrade, 400},
		{"no number", "http", upgrade, 400},
		{"no upgrade", closed, upgrade[2:], 426},
		{"other protocol", closed, []string{upgrade[0], "Upgrade: sandbox-frames/1", upgrade[2]}, 426},
		{"body", closed, append([]string{"Content-Length: 3"}, upgrade...), 400},
		{"nothing listens", closed, upgrade, 502},
		{"nothing listens, bearer", closed, []string{upgrade[0], upgrade[1], "Authorization: Bearer " + testToken}, 502},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, resp := openPort(t, r, c.port, c.headers...)
			if resp.StatusCode != c.status {
				t.Errorf("got %s, want %d", resp.Status, c.status)
			}
			var body struct {
				Code, Port int
				Message    string
			}
			if err := json.NewDecoder(resp.Body).Decode(&body); err != nil || body.Code != c.status || body.Message == "" {
				t.Errorf("body %+v, %v", body, err)
			}
			if c.status == 502 && body.Port != free {
				t.Errorf("port %d, want %d", body.Port, free)
			}
		})
	}
	noTunnels(t, r)
}

// TestPortClientGone: a client that closes its connection ends the tunnel, also
// when who listens pays no heed; one that only stops sending does not.
func TestPortClientGone(t *testing.T) {
	r := newRig(t, nil)
	inside := make(chan *net.TCPConn)
	quit := make(chan struct{})
	port := listen(t, "127.0.0.1:0", func(c *net.TCPConn) {
		inside <- c
		<-quit
	})
	defer close(quit)
	conn, br, _ := openPort(t, r, port)
	c := <-inside
	conn.(*net.UnixConn).CloseWrite()
	if _, err := c.Read(make([]byte, 1)); err != io.EOF {
		t.Fatalf("inside got %v, want EOF", err)
	}
	io.WriteString(c, "answer")
	if _, err := io.ReadFull(br, make([]byte, len("answer"))); err != nil {
		t.Fatalf("after the end of the input: %v", err)
	}
	conn.Close()
	noTunnels(t, r)
	c.SetReadDeadline(time.Now().Add(patience))
	eventually(t, "the connection inside is closed", func() bool {
		_, err := c.Write([]byte("x"))
		return errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET)
	})
}

// TestPortDialGivenUp: whoever listens has a full queue, so that dialing waits;
// the client goes away meanwhile.
func TestPortDialGivenUp(t *testing.T) {
	r := newRig(t, nil)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	port := sa.(*unix.SockaddrInet4).Port
	// A queue of length 0 takes one connection, the next ones are left waiting.
	for range 4 {
		c, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", port), 100*time.Millisecond)
		if err != nil {
			break
		}
		defer c.Close()
	}
	conn, err := net.Dial("unix", r.socket)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "POST /sandbox/ports/%d HTTP/1.1\r\nHost: s\r\nConnection: Upgrade\r\nUpgrade: sandbox-tcp/1\r\n%s: %s\r\n\r\n", port, tokenHeader, testToken)
	eventually(t, "a tunnel is being opened", func() bool {
		r.tunnels.mu.Lock()
		defer r.tunnels.mu.Unlock()
		return r.tunnels.open == 1
	})
	conn.Close()
	began := time.Now()
	noTunnels(t, r)
	if took := time.Since(began); took > portTimeout/2 {
		t.Errorf("the dial went on for %v", took)
	}
}

func TestTooManyPorts(t *testing.T) {
	r := newRig(t, nil)
	quit := make(chan struct{})
	port := listen(t, "127.0.0.1:0", func(c *net.TCPConn) { <-quit })
	r.tunnels.mu.Lock()
	r.tunnels.open += maxTunnels - 1
	r.tunnels.mu.Unlock()
	_, _, first := openPort(t, r, port)
	_, _, second := openPort(t, r, port)
	if first.StatusCode != http.StatusSwitchingProtocols || second.StatusCode != http.StatusTooManyRequests {
		t.Errorf("got %s and %s", first.Status, second.Status)
	}
	r.tunnels.mu.Lock()
	r.tunnels.open -= maxTunnels - 1
	r.tunnels.mu.Unlock()
	// The end of the server ends what is open and refuses what comes.
	r.tunnels.close()
	noTunnels(t, r)
	_, _, third := openPort(t, r, port)
	if third.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("got %s", third.Status)
	}
	close(quit)
}

// TestPortsLeaveNoDescriptors opens and ends tunnels in every way.
func TestPortsLeaveNoDescriptors(t *testing.T) {
	r := newRig(t, nil)
	port := listen(t, "127.0.0.1:0", func(c *net.TCPConn) { io.CopyN(c, c, 1) })
	round := func(i int) {
		conn, br, _ := openPort(t, r, port)
		if i%2 == 0 {
			io.WriteString(conn, "x")
			io.ReadAll(br)
		}
		conn.Close()
		openConn, _, _ := openPort(t, r, "1")
		openConn.Close()
	}
	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	round(0)
	noTunnels(t, r)
	before := count()
	for i := range 50 {
		round(i)
	}
	noTunnels(t, r)
	eventually(t, "all descriptors are closed", func() bool { return count() <= before+2 })
}

func TestHealthNamesFeatures(t *testing.T) {
	r := newRig(t, nil)
	resp, err := r.http.Get("http://sandbox/health")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if got := resp.Header.Get("Sandbox-Features"); resp.StatusCode != http.StatusNoContent || got != "channels, ports, input, code" {
		t.Errorf("got %s, %q", resp.Status, got)
	}
}
