//go:build linux

package local

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// framedPair has the two ends of a connection.
func framedPair(t testing.TB) (a, b *framedConn) {
	t.Helper()
	ours, theirs, err := controlPair()
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.FileConn(theirs)
	theirs.Close()
	if err != nil {
		t.Fatal(err)
	}
	a, b = &framedConn{UnixConn: ours}, &framedConn{UnixConn: c.(*net.UnixConn)}
	t.Cleanup(func() { a.UnixConn.Close(); b.UnixConn.Close() })
	return a, b
}

// A framed connection has the ends that TCP has: of one direction, of both, and
// resets.
func TestFramedConn(t *testing.T) {
	data := bytes.Repeat([]byte("0123456789"), 50_000)
	t.Run("data and ends", func(t *testing.T) {
		a, b := framedPair(t)
		go func() {
			a.Write(data)
			a.CloseWrite()
		}()
		got, err := io.ReadAll(b)
		if err != nil || !bytes.Equal(got, data) {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
		if _, err := b.Write([]byte("answer")); err != nil {
			t.Fatal(err)
		}
		b.Close()
		if got, err := io.ReadAll(a); err != nil || string(got) != "answer" {
			t.Errorf("%q, %v", got, err)
		}
		if _, err := a.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
			t.Error("written after the end:", err)
		}
	})
	t.Run("reset", func(t *testing.T) {
		a, b := framedPair(t)
		a.Write([]byte("some"))
		a.SetLinger(0)
		a.Close()
		if got, err := io.ReadAll(b); err != io.ErrUnexpectedEOF || string(got) != "some" {
			t.Errorf("%q, %v", got, err)
		}
	})
	t.Run("end within a frame", func(t *testing.T) {
		for _, raw := range []string{"\x00", "\x00\x05abc"} {
			a, b := framedPair(t)
			io.WriteString(a.UnixConn, raw)
			a.UnixConn.Close()
			if _, err := io.ReadAll(b); err != io.ErrUnexpectedEOF {
				t.Errorf("%q: %v", raw, err)
			}
		}
	})
	t.Run("closed when nothing more fits", func(t *testing.T) {
		a, b := framedPair(t)
		raw, err := a.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		frame, sent := []byte("\x00\x01x"), 0
		raw.Control(func(fd uintptr) {
			for ; unix.Send(int(fd), frame, unix.MSG_DONTWAIT) == nil; sent++ {
			}
		})
		a.Close()
		if got, err := io.ReadAll(b); err != nil || sent == 0 || len(got) != sent {
			t.Errorf("%d of %d bytes, %v", len(got), sent, err)
		}
	})
	t.Run("a deadline loses nothing", func(t *testing.T) {
		a, b := framedPair(t)
		io.WriteString(a.UnixConn, "\x00")
		b.SetReadDeadline(time.Now())
		if _, err := b.Read(make([]byte, 8)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
		b.SetReadDeadline(time.Time{})
		io.WriteString(a.UnixConn, "\x03abc\x00\x00")
		if got, err := io.ReadAll(b); err != nil || string(got) != "abc" {
			t.Errorf("%q, %v", got, err)
		}
	})
	t.Run("closed while it writes", func(t *testing.T) {
		a, b := framedPair(t)
		ended := make(chan error)
		go func() {
			for {
				if _, err := a.Write(data); err != nil {
					ended <- err
					return
				}
			}
		}()
		if _, err := io.ReadFull(b, make([]byte, 2*len(data))); err != nil {
			t.Fatal(err)
		}
		a.Close()
		<-ended
		if _, err := io.Copy(io.Discard, b); err != nil && err != io.ErrUnexpectedEOF {
			t.Error(err)
		}
	})
}

func FuzzFramedConn(f *testing.F) {
	f.Add([]byte("\x00\x03abc\x00\x00"))
	f.Add([]byte("\xff\xff"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		a, b := framedPair(t)
		go func() {
			a.UnixConn.Write(raw)
			a.UnixConn.Close()
		}()
		got, err := io.ReadAll(b)
		want, end := unframe(raw)
		if !bytes.Equal(got, want) || (err == nil) != end {
			t.Fatalf("%x is %x, %v", raw, got, err)
		}
	})
}

func unframe(b []byte) (data []byte, end bool) {
	for len(b) >= 2 {
		n := int(b[0])<<8 | int(b[1])
		if b = b[2:]; n == 0 {
			return data, true
		}
		n = min(n, len(b))
		data, b = append(data, b[:n]...), b[n:]
	}
	return data, false
}
