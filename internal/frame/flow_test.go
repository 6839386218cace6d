package frame

import (
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"testing"
)

// TestFlow sends more than a window through one that the consumer grants.
func TestFlow(t *testing.T) {
	w, q := NewWindow(), NewInbox()
	never := make(chan struct{})
	const n = 1000
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range n {
			m := Message{Type: Item, Body: make([]byte, 1+(i%7)*100_000)}
			if !w.Take(m.Size(), never) {
				t.Error("stopped")
			}
			if err := q.Put(m); err != nil {
				t.Error(err)
			}
		}
		q.End()
	})
	got := 0
	for {
		m, credit, ok := q.Next(never)
		if !ok {
			break
		}
		if want := 1 + (got%7)*100_000; len(m.Body) != want {
			t.Fatalf("item %d has %d bytes, want %d", got, len(m.Body), want)
		}
		got++
		if len(credit) > 0 {
			if err := w.Add(credit); err != nil {
				t.Fatal(err)
			}
		}
	}
	wg.Wait()
	if got != n {
		t.Errorf("%d items, want %d", got, n)
	}
}

func TestFlowLimits(t *testing.T) {
	q := NewInbox()
	for range WindowItems {
		if err := q.Put(Message{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := q.Put(Message{}); !errors.Is(err, ErrMalformed) {
		t.Errorf("one above the window: %v", err)
	}
	q = NewInbox()
	q.Put(Message{Body: make([]byte, 2*WindowBytes)})
	if err := q.Put(Message{}); !errors.Is(err, ErrMalformed) {
		t.Errorf("bytes above the window: %v", err)
	}
	stop := make(chan struct{})
	close(stop)
	w := NewWindow()
	if w.Take(1, stop) {
		t.Error("took after the stop")
	}
	for _, body := range [][]byte{nil, {1}, {17, 1}, {1, 1, 1}, {0xff, 0xff}, {1, 1}} {
		if err := w.Add(body); !errors.Is(err, ErrMalformed) {
			t.Errorf("credit %v: %v", body, err)
		}
	}
}

// TestWriteSoon sends messages of many goroutines, small and large ones in
// turns: each goroutine's come in order.
func TestWriteSoon(t *testing.T) {
	a, b := net.Pipe()
	defer b.Close()
	w, r := NewWriter(a), NewReader(b)
	r.Limit = func(Type, uint64) int64 { return 1 << 20 }
	const goroutines, each = 16, 200
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for i := range each {
				m := &Message{Type: Result, ID: uint64(g), Body: binary.LittleEndian.AppendUint32(nil, uint32(i))}
				write := w.WriteSoon
				if i%50 == 49 {
					m.Segments = [][]byte{make([]byte, 100<<10)}
				} else if i%10 == 9 {
					write = w.Write
				}
				if err := write(m); err != nil {
					t.Error(err)
				}
			}
		})
	}
	go func() {
		wg.Wait()
		a.Close()
	}()
	var next [goroutines]uint32
	for {
		m, err := r.Next()
		if err != nil {
			break
		}
		if got := binary.LittleEndian.Uint32(m.Body); got != next[m.ID] {
			t.Fatalf("goroutine %d: message %d, want %d", m.ID, got, next[m.ID])
		}
		next[m.ID]++
	}
	for g, n := range next {
		if n != each {
			t.Errorf("goroutine %d: %d messages", g, n)
		}
	}
	if err := w.WriteSoon(&Message{Type: Bye}); err == nil {
		t.Error("no error on a closed connection")
	}
}
