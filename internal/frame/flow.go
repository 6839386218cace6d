package frame

import (
	"encoding/binary"
	"sync"
)

// What a producer may send of a stream before the consumer grants more: both
// bounds hold, except that the last item may go beyond WindowBytes.
const (
	WindowItems = 16
	WindowBytes = 1 << 20
)

// A Window is what the producer of a stream may still send. It is safe for
// concurrent use.
type Window struct {
	mu           sync.Mutex
	items, bytes int64         // guarded by mu
	more         chan struct{} // of one: credit has come
}

// NewWindow returns the window at the beginning of a stream.
func NewWindow() *Window {
	return &Window{items: WindowItems, bytes: WindowBytes, more: make(chan struct{}, 1)}
}

// Take waits until an item of size bytes may be sent. It reports false when stop
// is closed first. One goroutine at a time may wait.
func (w *Window) Take(size int64, stop <-chan struct{}) bool {
	for {
		select {
		case <-stop:
			return false
		default:
		}
		w.mu.Lock()
		if w.items > 0 && w.bytes > 0 {
			w.items--
			w.bytes -= size
			w.mu.Unlock()
			return true
		}
		w.mu.Unlock()
		select {
		case <-w.more:
		case <-stop:
			return false
		}
	}
}

// Add reads what the body of a Credit message grants.
func (w *Window) Add(body []byte) error {
	items, n := binary.Uvarint(body)
	if n <= 0 || items > WindowItems {
		return malformed("credit")
	}
	bytes, m := binary.Uvarint(body[n:])
	if m <= 0 || n+m != len(body) || bytes > 1<<40 {
		return malformed("credit")
	}
	w.mu.Lock()
	w.items += int64(items)
	w.bytes += int64(bytes)
	over := w.items > WindowItems || w.bytes > WindowBytes
	w.mu.Unlock()
	if over {
		return malformed("more credit than was used")
	}
	select {
	case w.more <- struct{}{}:
	default:
	}
	return nil
}

// An Inbox holds the items of a stream that have arrived and were not consumed.
// What it holds is bounded by what it has granted.
type Inbox struct {
	mu           sync.Mutex
	queue        []Message     // guarded by mu
	items, bytes int64         // guarded by mu; granted and not used
	ended        bool          // guarded by mu
	arrived      chan struct{} // of one: there is something, or the end

	usedItems, usedBytes int64 // by the consumer, and not granted again
}

// NewInbox returns an empty inbox.
func NewInbox() *Inbox {
	return &Inbox{items: WindowItems, bytes: WindowBytes, arrived: make(chan struct{}, 1)}
}

// Put adds an item. More than was granted is ErrMalformed.
func (q *Inbox) Put(m Message) error {
	q.mu.Lock()
	if q.items <= 0 || q.bytes <= 0 {
		q.mu.Unlock()
		return malformed("more of a stream than was granted")
	}
	q.items--
	q.bytes -= m.Size()
	if !q.ended {
		q.queue = append(q.queue, m)
	}
	q.mu.Unlock()
	q.wake()
	return nil
}

// End says that no more comes, or that nobody wants more: what has arrived can
// still be read, what comes is dropped.
func (q *Inbox) End() {
	q.mu.Lock()
	q.ended = true
	q.mu.Unlock()
	q.wake()
}

func (q *Inbox) wake() {
	select {
	case q.arrived <- struct{}{}:
	default:
	}
}

// Next waits for the next item. It reports false at the end of the stream, or
// when stop is closed and there is no item. credit, when it is not empty, is the
// body of a Credit message to send: the item counts as consumed. One goroutine
// at a time may use it.
func (q *Inbox) Next(stop <-chan struct{}) (m Message, credit []byte, ok bool) {
	for {
		q.mu.Lock()
		if len(q.queue) > 0 {
			m = q.queue[0]
			q.queue[0] = Message{}
			q.queue = q.queue[1:]
			ended := q.ended
			if !ended {
				q.usedItems++
				q.usedBytes += m.Size()
				if q.usedItems >= WindowItems/2 || q.usedBytes >= WindowBytes/2 {
					credit = binary.AppendUvarint(nil, uint64(q.usedItems))
					credit = binary.AppendUvarint(credit, uint64(q.usedBytes))
					q.items += q.usedItems
					q.bytes += q.usedBytes
					q.usedItems, q.usedBytes = 0, 0
				}
			}
			q.mu.Unlock()
			return m, credit, true
		}
		ended := q.ended
		q.mu.Unlock()
		if ended {
			return Message{}, nil, false
		}
		select {
		case <-q.arrived:
		case <-stop:
			// What came before the stop is not lost.
			q.mu.Lock()
			left := len(q.queue)
			q.mu.Unlock()
			if left == 0 {
				return Message{}, nil, false
			}
		}
	}
}

// Wait waits until there is an item. It reports false when there is none at the
// end of the stream, or when stop is closed.
func (q *Inbox) Wait(stop <-chan struct{}) bool {
	for {
		q.mu.Lock()
		n, ended := len(q.queue), q.ended
		q.mu.Unlock()
		if n > 0 || ended {
			return n > 0
		}
		select {
		case <-q.arrived:
		case <-stop:
			return false
		}
	}
}

// Empty reports whether no item is there now.
func (q *Inbox) Empty() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.queue) == 0
}
