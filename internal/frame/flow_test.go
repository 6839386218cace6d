package frame

import (
	"errors"
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
