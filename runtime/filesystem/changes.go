//go:build linux

package filesystem

import (
	"errors"
	"sync"
	"sync/atomic"

	pb "github.com/agent-sandbox/sandbox-go/internal/pb/filesystem"
)

// Limits of what is kept for clients that are slower than the changes, beside
// the queue of the kernel (fs.inotify.max_queued_events, 16,384).
const (
	maxChanges     = 65_536   // of one watch
	maxChangeBytes = 32 << 20 // of all watches together
	changeBytes    = 64       // of a change beside its name
)

// errMissed is why a watch ends: changes happened that it cannot tell.
var errMissed = errors.New("changes were missed")

// missed says why changes are missing.
type missed struct{ why string }

func (m *missed) Error() string { return errMissed.Error() + ": " + m.why }

func (m *missed) Is(target error) bool { return target == errMissed }

// change is one event of a watch.
type change struct {
	name string // relative to the watched folder, as bytes; "." is that folder
	kind pb.EventType
}

// changes is the queue between a watch and its client. What is in it when the
// watch fails is still delivered, then comes the failure.
type changes struct {
	wake  chan struct{} // holds a token when there is something to take
	bytes *atomic.Int64 // of all queues

	mu     sync.Mutex
	list   []change // guarded by mu
	held   int64    // guarded by mu; bytes of list
	failed error    // guarded by mu
	closed bool     // guarded by mu
}

func newChanges(bytes *atomic.Int64) *changes {
	return &changes{wake: make(chan struct{}, 1), bytes: bytes}
}

// put adds a change, unless it repeats the one before. It fails when there is no
// room.
func (q *changes) put(c change) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if n := len(q.list); n > 0 && q.list[n-1] == c {
		return nil
	}
	size := int64(len(c.name)) + changeBytes
	if len(q.list) >= maxChanges {
		return &missed{"the client does not take them fast enough"}
	}
	if q.closed {
		return nil
	}
	if q.bytes.Add(size) > maxChangeBytes {
		q.bytes.Add(-size)
		return &missed{"the clients of all watches do not take them fast enough"}
	}
	q.list = append(q.list, c)
	q.held += size
	q.signal()
	return nil
}

// fail says why nothing comes any more after what is queued.
func (q *changes) fail(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.failed == nil {
		q.failed = err
	}
	q.signal()
}

// take removes up to n changes from the queue. The failure comes once the queue
// is empty, and then every time.
func (q *changes) take(n int) ([]change, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.list) == 0 {
		return nil, q.failed
	}
	out := q.list[:min(n, len(q.list))]
	q.list = q.list[len(out):]
	freed := int64(0)
	for _, c := range out {
		freed += int64(len(c.name)) + changeBytes
	}
	q.held -= freed
	q.bytes.Add(-freed)
	if len(q.list) > 0 || q.failed != nil {
		q.signal()
	} else {
		q.list = nil // the array behind it is not needed any more
	}
	return out, nil
}

// close drops what nobody will take.
func (q *changes) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.bytes.Add(-q.held)
	q.list, q.held, q.closed = nil, 0, true
}

func (q *changes) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}
