package frame

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
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
		{"empty segments", parts(append([]byte{0, 0x81, 0x80, 1}, make([]byte, 16<<10+1)...)...), ErrMalformed},
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

// announce is the beginning of a message in parts whose body is to have size
// bytes.
func announce(id uint64, size int, begin ...byte) []byte {
	b := binary.AppendUvarint(nil, uint64(size))
	b = append(append(b, 0), begin...)
	return append(header{length: uint32(len(b)), typ: Upcall, flags: flagParts, id: id}.append(nil), b...)
}

func piece(id uint64, n int) []byte {
	return append(header{length: uint32(n), typ: Segment, id: id}.append(nil), make([]byte, n)...)
}

// held is what r keeps of messages that are not complete.
func held(r *Reader) (n int) {
	for _, a := range r.open {
		n += cap(a.buf)
		for _, s := range a.msg.Segments {
			n += cap(s)
		}
		if a.part > 0 {
			n += cap(a.msg.Body)
		}
	}
	return n
}

// What is announced and does not come takes no memory.
func TestAllocatesWhatComes(t *testing.T) {
	const size = 512 << 20
	var wire bytes.Buffer
	wire.Write(announce(1, size, 'x'))
	r := NewReader(&wire)
	r.Limit = unlimited
	for came := 0; came < 20<<20; came += MaxPiece {
		if _, err := r.Next(); err != io.ErrUnexpectedEOF {
			t.Fatal(err)
		}
		if n := held(r); n > max(MaxPiece, growth*(came+1)) {
			t.Fatalf("%d bytes are held of %d that came", n, came)
		}
		wire.Write(piece(1, MaxPiece))
	}
}

// A part of a sender that is believed is held once.
func TestAtOnce(t *testing.T) {
	const size = 20 << 20
	var wire bytes.Buffer
	if err := NewWriter(&wire).Write(&Message{Type: Call, ID: 1, Segments: [][]byte{make([]byte, size)}}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		atOnce uint64
		least  uint64
		most   uint64
	}{{0, size * 5 / 4, size * 3 / 2}, {size - 1, size * 5 / 4, size * 3 / 2}, {size, size, size * 21 / 20}} {
		r := NewReader(bytes.NewReader(wire.Bytes()))
		r.Limit, r.AtOnce = unlimited, c.atOnce
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if _, err := r.Next(); err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n < c.least || n > c.most {
			t.Errorf("at once %d: %d bytes allocated for %d", c.atOnce, n, size)
		}
	}
}

func TestOpenMessagesAreBounded(t *testing.T) {
	one := announce(1, 300<<20)
	for _, c := range []struct {
		name string
		size int
		n    int
		ok   bool
	}{
		{"small", 100, maxOpen, true},
		{"many", 100, maxOpen + 1, false},
		{"large", 8 << 20, 1, true},
		{"two large", 8 << 20, 2, false},
		{"as large", 300 << 20, 1, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			wire := bytes.Clone(one)
			for i := range c.n {
				wire = append(wire, announce(uint64(2+i), c.size)...)
			}
			r := NewReader(bytes.NewReader(wire))
			r.Limit = unlimited
			_, err := r.Next()
			if refused := errors.Is(err, ErrTooLarge) || errors.Is(err, ErrMalformed); refused == c.ok {
				t.Errorf("got %v", err)
			}
		})
	}
}

// A message that nobody waits for takes no memory, and those after it come.
func TestSkipsWhatNobodyWaitsFor(t *testing.T) {
	for _, first := range []bool{false, true} {
		var wire bytes.Buffer
		wire.Write(announce(1, 3<<20, 'x'))
		wire.Write(piece(1, MaxPiece))
		r := NewReader(&wire)
		r.Limit = unlimited
		live := first
		r.Live = func(m *Message) bool { return live || m.ID != 1 || m.Type != Upcall || m.Body[0] != 'x' }
		next := func(want error) Message {
			t.Helper()
			m, err := r.Next()
			if err != want {
				t.Fatalf("got %v, want %v", err, want)
			}
			return m
		}
		next(io.ErrUnexpectedEOF)
		if n := held(r); (n > 0) != first {
			t.Fatalf("%d bytes are held", n)
		}
		live = false
		r.Sweep()
		if n := held(r); n != 0 {
			t.Fatalf("%d bytes are held", n)
		}
		wire.Write(piece(1, MaxPiece))
		next(io.ErrUnexpectedEOF)
		wire.Write(piece(1, MaxPiece-1))
		NewWriter(&wire).Write(&Message{Type: Upcall, ID: 1, Body: []byte("y")})
		if m := next(nil); string(m.Body) != "y" {
			t.Fatalf("got %d bytes", len(m.Body))
		}
		next(io.EOF)
	}
}

// Sweep may run beside Next.
func TestSweepWhileReading(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	go func() {
		w := NewWriter(a)
		for id := uint64(1); w.Write(&Message{Type: Result, ID: id, Segments: [][]byte{make([]byte, 3<<20)}}) == nil; id++ {
		}
	}()
	r := NewReader(b)
	r.Limit = unlimited
	var dead atomic.Bool
	r.Live = func(m *Message) bool { return m.ID%2 == 0 || !dead.Load() }
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				dead.Store(!dead.Load())
				r.Sweep()
				time.Sleep(50 * time.Microsecond)
			}
		}
	}()
	for seen := 0; seen < 20; {
		m, err := r.Next()
		if err != nil || m.Size() != 3<<20 {
			t.Fatalf("%d bytes, %v", m.Size(), err)
		}
		if m.ID%2 == 0 {
			seen++
		}
	}
	close(stop)
	<-stopped
}

// Any number of messages of any size may be written at once.
func TestManyWriters(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	w := NewWriter(a)
	const n = 60
	for i := range n {
		go w.Write(&Message{Type: Upcall, ID: uint64(i), Body: make([]byte, []int{100, MaxPiece + 1, 2 << 20, 9 << 20}[i%4])})
	}
	r := NewReader(b)
	r.Limit = unlimited
	for range n {
		if _, err := r.Next(); err != nil {
			t.Fatal(err)
		}
	}
}

// Writes that wait for others end with the connection.
func TestWaitingWritersEnd(t *testing.T) {
	a, b := net.Pipe()
	defer b.Close()
	w := NewWriter(a)
	done := make(chan error)
	const n = 20
	for i := range n {
		go func() { done <- w.Write(&Message{Type: Upcall, ID: uint64(i), Body: make([]byte, 12<<20)}) }()
	}
	time.Sleep(10 * time.Millisecond)
	a.Close()
	for range n {
		if err := <-done; err == nil {
			t.Error("a write has succeeded")
		}
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
