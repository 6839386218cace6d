//go:build linux

package local

import (
	"bytes"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// linkTo lets an egress serve a link, and returns the other end.
func linkTo(t *testing.T, e *egress) (l *net.UnixConn, served <-chan struct{}) {
	t.Helper()
	a, b := framedPair(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		e.serveLink(b.UnixConn)
	}()
	return a.UnixConn, done
}

// Whoever is at the other end of a link can do no more than programs of its
// sandbox could, and what it says wrongly ends the link.
func TestHostileLink(t *testing.T) {
	connTo := func(at string) []byte { return linkRequest(linkConn, linkAddressOf(netip.MustParseAddrPort(at))) }
	t.Run("malformed", func(t *testing.T) {
		for _, raw := range [][]byte{
			[]byte("x\x00\x00"), linkRequest(linkConn, nil), linkRequest(linkConn, make([]byte, linkAddress+1)), {linkQuestion, 0xff, 0xff},
			connTo("1.1.1.1:1")[:7], []byte("{\"op\":\"kill\"}\n"), append(connTo("1.1.1.1:1"), connTo("1.1.1.1:1")...),
		} {
			e := testEgress(t, "good.test")
			l, served := linkTo(t, e)
			l.Write(raw)
			l.CloseWrite()
			<-served
			e.close()
		}
	})
	t.Run("what is logged", func(t *testing.T) {
		for want, body := range map[string][]byte{"": linkAddressOf(netip.MustParseAddrPort("127.0.0.1:3128")), errLink.Error(): nil} {
			e := testEgress(t, "good.test")
			var said bytes.Buffer
			e.log = slog.New(slog.NewTextHandler(&said, nil))
			l, served := linkTo(t, e)
			l.Write(linkRequest(linkConn, body))
			f, err := l.File() // killed before it reads the answer
			if err != nil {
				t.Fatal(err)
			}
			unix.Poll([]unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLIN}}, 10_000)
			f.Close()
			l.Close()
			<-served
			if got := said.String(); !strings.Contains(got, want) || (got == "") != (want == "") {
				t.Errorf("%q, want %q", got, want)
			}
		}
	})
	t.Run("answers that are not read", func(t *testing.T) {
		e := testEgress(t, "good.test")
		l, served := linkTo(t, e)
		for range 2 {
			l.Write(connTo("198.18.0.2:443"))
		}
		<-served
		if n := len(e.inSlots); n > 1 {
			t.Errorf("%d connections", n)
		}
	})
	t.Run("more than it may have", func(t *testing.T) {
		e := testEgress(t, "good.test")
		l, _ := linkTo(t, e)
		var held []net.Conn
		defer func() {
			for _, c := range held {
				c.Close()
			}
		}()
		for n := 0; ; n++ {
			l.Write(connTo("127.0.0.1:3128")) // which waits for a first byte
			b, oob := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
			_, oobn, _, _, err := l.ReadMsgUnix(b, oob)
			if err != nil {
				t.Fatal(err)
			}
			if b[0] == linkRefused {
				if n != maxInside {
					t.Errorf("%d connections", n)
				}
				break
			}
			c, err := handedConn(oob[:oobn])
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, c)
		}
	})
	t.Run("what no rule permits", func(t *testing.T) {
		e := testEgress(t, "good.test")
		l, _ := linkTo(t, e)
		for _, at := range []string{"127.0.0.1:443", "169.254.169.254:80", "1.1.1.1:443", "198.18.0.2:22", "198.18.0.9:443", "[::1]:80", "0.0.0.0:443", "[::ffff:127.0.0.1]:80"} {
			l.Write(connTo(at))
			b, oob := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
			_, oobn, _, _, err := l.ReadMsgUnix(b, oob)
			if err != nil || b[0] != linkTaken {
				t.Fatal(b, err)
			}
			c, err := handedConn(oob[:oobn])
			if err != nil {
				t.Fatal(err)
			}
			if _, err := (&framedConn{UnixConn: c.(*net.UnixConn)}).Read(make([]byte, 1)); err != io.ErrUnexpectedEOF {
				t.Errorf("%s: %v", at, err)
			}
			c.Close()
		}
	})
}
