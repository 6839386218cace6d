package frame

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func unlimited(Type, uint64) int64 { return 1 << 40 }

func noise(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{1})
	r.Read(b)
	return b
}

func TestRoundTrip(t *testing.T) {
	big := noise(5<<20 + 7)
	messages := []Message{
		{Type: Hello},
		{Type: Call, ID: 1, Body: []byte("body")},
		{Type: Result, ID: 1<<63 + 5, Body: big[:copyMax+1]},
		{Type: Call, ID: 2, Body: big[:MaxPiece]},
		{Type: Call, ID: 3, Body: big[:MaxPiece+1]},
		{Type: Call, ID: 4, Body: big},
		{Type: Call, ID: 5, Body: []byte("b"), Segments: [][]byte{big, {}, big[:3]}},
		{Type: Call, ID: 6, Body: big, Segments: [][]byte{{}, big[:MaxPiece], {1}, big}},
		{Type: Call, ID: 7, Body: []byte{}, Segments: [][]byte{{}}},
		{Type: Cancel, ID: 7},
	}
	for name, wrap := range map[string]func(io.Reader) io.Reader{
		"whole": func(r io.Reader) io.Reader { return r },
		"half":  iotest.HalfReader,
	} {
		t.Run(name, func(t *testing.T) {
			var wire bytes.Buffer
			w := NewWriter(&wire)
			for _, m := range messages {
				if err := w.Write(&m); err != nil {
					t.Fatal(err)
				}
			}
			r := NewReader(wrap(&wire))
			r.Limit = unlimited
			for i, want := range messages {
				got, err := r.Next()
				if err != nil {
					t.Fatalf("message %d: %v", i, err)
				}
				if want.Body == nil {
					want.Body = []byte{}
				}
				if !bytes.Equal(got.Body, want.Body) || len(got.Segments) != len(want.Segments) || got.Type != want.Type || got.ID != want.ID {
					t.Fatalf("message %d differs", i)
				}
				for j := range want.Segments {
					if got.Segments[j] == nil || !bytes.Equal(got.Segments[j], want.Segments[j]) {
						t.Fatalf("message %d: segment %d differs", i, j)
					}
				}
			}
			if _, err := r.Next(); err != io.EOF {
				t.Fatalf("at the end: %v, want EOF", err)
			}
		})
	}
}

// A small message must not wait for the end of a big one.
func TestInterleave(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	w := NewWriter(a)
	go w.Write(&Message{Type: Result, ID: 1, Segments: [][]byte{make([]byte, 64<<20)}})
	r := NewReader(b)
	started := make(chan struct{})
	r.Limit = func(Type, uint64) int64 {
		select {
		case <-started:
		default:
			close(started)
		}
		return 1 << 30
	}
	go func() {
		<-started
		w.Write(&Message{Type: Result, ID: 2, Body: []byte("small")})
	}()
	m, err := r.Next()
	if err != nil || m.ID != 2 {
		t.Fatalf("first message is %d (%v), want the small one", m.ID, err)
	}
	if m, err = r.Next(); err != nil || m.ID != 1 || m.Size() != 64<<20 {
		t.Fatalf("second message is %d of %d bytes (%v)", m.ID, m.Size(), err)
	}
}

func TestUnknownTypeIsSkipped(t *testing.T) {
	var wire bytes.Buffer
	w := NewWriter(&wire)
	w.Write(&Message{Type: 99, ID: 3, Body: noise(100_000)})
	w.Write(&Message{Type: Cancel, ID: 4})
	m, err := NewReader(&wire).Next()
	if err != nil || m.Type != Cancel || m.ID != 4 {
		t.Fatalf("got %v %d (%v), want the message after it", m.Type, m.ID, err)
	}
}

func TestRefused(t *testing.T) {
	parts := func(body ...byte) []byte {
		return append(header{length: uint32(len(body)), typ: Call, flags: flagParts, id: 1}.append(nil), body...)
	}
	segment := func(n uint32) []byte { return header{length: n, typ: Segment, id: 1}.append(nil) }
	cat := func(bs ...[]byte) []byte { return bytes.Join(bs, nil) }
	for _, c := range []struct {
		name string
		wire []byte
		want error
	}{
		{"unknown flag", header{typ: Call, flags: 2}.append(nil), ErrMalformed},
		{"flag on a segment", header{typ: Segment, flags: 1}.append(nil), ErrMalformed},
		{"length", header{typ: Call, length: maxBody + 1}.append(nil), ErrMalformed},
		{"segment of nothing", segment(1), ErrMalformed},
		{"segment too long", cat(parts(4, 0), segment(5)), ErrMalformed},
		{"no table", parts(), ErrMalformed},
		{"short table", parts(0, 3, 1), ErrMalformed},
		{"huge count", parts(0, 0xff, 0xff, 0xff, 0xff, 0x0f), ErrMalformed},
		{"body longer than said", parts(1, 0, 'a', 'b'), ErrMalformed},
		{"twice", cat(parts(4, 0), parts(4, 0)), ErrMalformed},
		{"over the limit", parts(0, 2, 0xff, 0xff, 0x7f, 0xff, 0xff, 0x7f), ErrTooLarge},
		{"overflow", parts(0, 2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x3f, 1), ErrTooLarge},
		{"end in header", segment(0)[:7], io.ErrUnexpectedEOF},
		{"end in body", header{typ: Call, length: 3}.append(nil), io.ErrUnexpectedEOF},
		{"end between parts", parts(4, 0), io.ErrUnexpectedEOF},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := NewReader(bytes.NewReader(c.wire)).Next(); !errors.Is(err, c.want) {
				t.Fatalf("got %v, want %v", err, c.want)
			}
		})
	}
}

// A message that may have nothing is refused before anything is kept of it.
func TestRefusedAtOnce(t *testing.T) {
	wire := header{length: maxBody, typ: Result, flags: flagParts, id: 7}.append(nil)
	r := NewReader(bytes.NewReader(wire))
	r.Limit = func(_ Type, id uint64) int64 { return int64(id - 7) }
	if _, err := r.Next(); !errors.Is(err, ErrTooLarge) {
		t.Fatalf("got %v, want %v", err, ErrTooLarge)
	}
}

// A deadline in the middle of a message must lose nothing.
func TestNextGoesOnAfterTimeout(t *testing.T) {
	var wire bytes.Buffer
	seg := noise(300_000)
	NewWriter(&wire).Write(&Message{Type: Call, ID: 9, Body: []byte("x"), Segments: [][]byte{seg}})
	a, b := net.Pipe()
	defer b.Close()
	go func() {
		defer a.Close()
		for p := range bytes.SplitSeq(wire.Bytes(), seg[1000:1004]) {
			a.Write(p)
			time.Sleep(5 * time.Millisecond)
			if p := wire.Bytes(); len(p) > 0 {
				a.Write(seg[1000:1004])
				wire.Reset()
			}
		}
	}()
	r := NewReader(b)
	for range 1000 {
		b.SetReadDeadline(time.Now().Add(time.Millisecond))
		m, err := r.Next()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(seg, m.Segments[0]); diff != "" {
			t.Fatal("segment differs")
		}
		return
	}
	t.Fatal("message did not come")
}

func TestBrokenWriterStaysBroken(t *testing.T) {
	w := NewWriter(&failing{})
	m := &Message{Type: Call, Segments: [][]byte{make([]byte, 3<<20)}}
	first := w.Write(m)
	if first == nil || !strings.Contains(first.Error(), "full") {
		t.Fatalf("got %v", first)
	}
	if err := w.Write(&Message{Type: Bye}); err != first {
		t.Fatalf("later write: %v, want %v", err, first)
	}
}

type failing struct{ n int }

func (f *failing) Write(p []byte) (int, error) {
	if f.n++; f.n > 2 {
		return 0, errors.New("full")
	}
	return len(p), nil
}

func FuzzReader(f *testing.F) {
	var wire bytes.Buffer
	w := NewWriter(&wire)
	for _, m := range []Message{
		{Type: Hello, Body: []byte("hello")},
		{Type: Call, ID: 1, Body: []byte("b"), Segments: [][]byte{[]byte("one"), {}, []byte("three")}},
		{Type: 77, Body: []byte("later")},
	} {
		w.Write(&m)
		f.Add(wire.Bytes())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		const limit = 1 << 16
		r := NewReader(bytes.NewReader(b))
		r.Limit = func(Type, uint64) int64 { return limit }
		var again bytes.Buffer
		w := NewWriter(&again)
		var got []Message
		for {
			m, err := r.Next()
			if err != nil {
				break
			}
			if m.Size() > limit {
				t.Fatalf("message of %d bytes is above the limit", m.Size())
			}
			got = append(got, m)
			if err := w.Write(&m); err != nil {
				t.Fatal(err)
			}
		}
		r = NewReader(&again)
		for i, want := range got {
			m, err := r.Next()
			if err != nil {
				t.Fatalf("message %d again: %v", i, err)
			}
			if diff := cmp.Diff(want, m); diff != "" {
				t.Fatalf("message %d again (-want +got):\n%s", i, diff)
			}
		}
	})
}
