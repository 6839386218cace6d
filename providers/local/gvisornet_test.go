//go:build linux

package local

import (
	"io"
	"net"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// A program gets all that it was sent also when it says that it sends no more
// after the client has closed.
func TestCarryEnds(t *testing.T) {
	small := func(_, _ string, c syscall.RawConn) error { // what one side has sent does not fit into both
		return c.Control(func(fd uintptr) {
			unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 4<<10)
			unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, 4<<10)
		})
	}
	l, err := (&net.ListenConfig{Control: small}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	program, err := (&net.Dialer{Control: small}).Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	in, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	out, client := framedPair(t)
	data := make([]byte, 64<<10)
	if _, err := client.Write(data); err != nil {
		t.Fatal(err)
	}
	client.Close()
	program.(*net.TCPConn).CloseWrite()
	carried := make(chan struct{})
	go func() {
		defer close(carried)
		carry(in.(*net.TCPConn), out)
	}()
	eventually(t, "that was read", func() bool {
		out.mu.Lock()
		defer out.mu.Unlock()
		return out.final
	})
	if got, err := io.ReadAll(program); err != nil || len(got) != len(data) {
		t.Errorf("%d of %d bytes, %v", len(got), len(data), err)
	}
	<-carried
}
