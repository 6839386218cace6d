package sandboxfn

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// joined joins the ends of two connections: what is written to one is read
// from the other.
func joined(a, b *streamConn) *sync.WaitGroup {
	var wg sync.WaitGroup
	for _, x := range [][2]*streamConn{{a, b}, {b, a}} {
		wg.Go(func() {
			var piece []byte
			for {
				if piece = x[0].take(piece, 1000); len(piece) == 0 {
					break
				}
				if !x[1].feed(piece) {
					break
				}
			}
			x[1].end(nil)
		})
	}
	return &wg
}

func TestStreamConnCarries(t *testing.T) {
	a, b := newStreamConn(), newStreamConn()
	wg := joined(a, b)
	data := bytes.Repeat([]byte("0123456789"), streamBuffer/4)
	wg.Go(func() {
		bufs := net.Buffers{data[:1], data[1:17], data[17:]}
		if err := a.WriteBuffers(bufs); err != nil {
			t.Error(err)
		}
		a.Close()
	})
	if got, err := io.ReadAll(b); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	b.Close()
	wg.Wait()
}

func TestStreamConnDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newStreamConn()
		begin := time.Now()
		c.SetReadDeadline(begin.Add(time.Second))
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(begin) != time.Second {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		// What has arrived stays for the time after the deadline.
		c.feed([]byte("x"))
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		c.SetReadDeadline(time.Time{})
		if n, err := c.Read(make([]byte, 9)); n != 1 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
		// A deadline that was moved is not that of before.
		c.SetDeadline(time.Now().Add(time.Second))
		c.SetDeadline(time.Now().Add(time.Hour))
		time.Sleep(2 * time.Second)
		if n, err := c.Write([]byte("x")); n != 1 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
		// A full buffer holds the writer until then, and never all of what it writes.
		c.SetWriteDeadline(time.Now().Add(time.Second))
		n, err := c.Write(make([]byte, streamBuffer))
		if n != streamBuffer-1 || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%d, %v", n, err)
		}
		c.SetWriteDeadline(time.Unix(1, 0))
		if n, err := c.Write([]byte("y")); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%d, %v", n, err)
		}
	})
}

func TestStreamConnEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, why := newStreamConn(), errors.New("why")
		c.feed([]byte("last"))
		c.end(why)
		c.end(nil)
		if b, err := io.ReadAll(c); string(b) != "last" || err != why {
			t.Errorf("%q, %v", b, err)
		}
		if _, err := c.Write([]byte("x")); err == nil {
			t.Error("written to what has ended")
		}
		if b := c.take(nil, 10); len(b) != 0 {
			t.Errorf("taken %q", b)
		}
		// Who waits is woken.
		c = newStreamConn()
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
				t.Errorf("got %v", err)
			}
		})
		wg.Go(func() {
			if _, err := c.Write(make([]byte, 2*streamBuffer)); !errors.Is(err, net.ErrClosed) {
				t.Errorf("got %v", err)
			}
		})
		full := newStreamConn()
		wg.Go(func() {
			if full.feed(make([]byte, streamBuffer)); full.feed([]byte("x")) {
				t.Error("fed though nobody reads")
			}
		})
		synctest.Wait()
		full.Close()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
		if err := c.Close(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("got %v", err)
		}
		// What was written before is still sent.
		if b := c.take(nil, 2*streamBuffer); len(b) != streamBuffer {
			t.Errorf("%d bytes taken", len(b))
		}
		if b := c.take(nil, 10); len(b) != 0 {
			t.Errorf("taken %q", b)
		}
	})
}
