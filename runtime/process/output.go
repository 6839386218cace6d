//go:build linux

package process

import (
	"sync"

	pb "github.com/agent-sandbox/sandbox-go/internal/pb/process"
)

// RingSize is how much of each output of a process is kept for those that
// connect later, in bytes. With a subscriber attached it is also how far the
// process may run ahead of the slowest one before it is held back.
const RingSize = 1 << 20

// chunkSize bounds one data event, in bytes.
const chunkSize = 32 << 10

// stdout and stderr index the outputs of a process. What comes from a terminal
// is in the place of stdout.
const (
	stdout = iota
	stderr
	outputs
)

// output is what a process has printed and how it ended. Readers of its pipes
// write, subscribers read at their own speed.
type output struct {
	terminal bool // constant
	size     int  // of the rings; constant

	mu    sync.Mutex
	rings [outputs]ring
	subs  map[*subscription]struct{}
	end   *pb.ProcessEvent_EndEvent // nil until the process ended and its output is complete
	space [outputs]chan struct{}    // tells a held back writer to look again
	quit  chan struct{}             // closed: writers are not held back any more
}

// newOutput returns an output that keeps size bytes of each; 0: [RingSize].
func newOutput(size int) *output {
	if size == 0 {
		size = RingSize
	}
	return &output{
		size: size, rings: [outputs]ring{{size: size}, {size: size}},
		subs:  map[*subscription]struct{}{},
		space: [outputs]chan struct{}{make(chan struct{}, 1), make(chan struct{}, 1)},
		quit:  make(chan struct{}),
	}
}

// write adds p to output i. It returns once all of p is in the ring: at once
// when nobody is attached, as the slowest subscriber reads otherwise.
func (o *output) write(i int, p []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(p) > 0 {
		n := min(len(p), o.roomLocked(i))
		if n == 0 {
			o.mu.Unlock()
			select {
			case <-o.space[i]:
			case <-o.quit:
				o.mu.Lock()
				return
			}
			o.mu.Lock()
			continue
		}
		o.rings[i].write(p[:n])
		p = p[n:]
		o.wakeLocked()
	}
}

// roomLocked is how much can be written to output i without taking away what a
// subscriber has not read.
func (o *output) roomLocked(i int) int {
	room := o.size
	for s := range o.subs {
		room = min(room, o.size-int(o.rings[i].end-s.pos[i]))
	}
	return room
}

func (o *output) wakeLocked() {
	for s := range o.subs {
		notify(s.wake)
	}
}

// finish publishes the end; there is no output after it.
func (o *output) finish(end *pb.ProcessEvent_EndEvent) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.end = end
	o.wakeLocked()
}

// subscribe attaches at the oldest output that is still there.
func (o *output) subscribe() *subscription {
	s := &subscription{o: o, wake: make(chan struct{}, 1)}
	o.mu.Lock()
	defer o.mu.Unlock()
	for i := range o.rings {
		s.pos[i] = o.rings[i].start()
		s.dropped[i] = s.pos[i]
	}
	o.subs[s] = struct{}{}
	return s
}

// kept is how many bytes the rings hold.
func (o *output) kept() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := 0
	for i := range o.rings {
		n += len(o.rings[i].buf)
	}
	return n
}

// forget drops what the rings hold; nobody attached loses anything.
func (o *output) forget() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.subs) > 0 {
		return
	}
	for i := range o.rings {
		o.rings[i] = ring{size: o.size, end: o.rings[i].end, base: o.rings[i].end}
	}
}

// subscription is one reader of an output. Its methods are for one goroutine.
type subscription struct {
	o       *output
	wake    chan struct{}   // there may be something to read
	pos     [outputs]uint64 // guarded by o.mu
	dropped [outputs]uint64 // bytes that were gone when it was made
	last    int             // output that was read last
}

// next reads into buf what comes next of one of the outputs and says of which.
// Without output it returns n == 0, and the end when there is nothing more to
// come.
func (s *subscription) next(buf []byte) (i, n int, end *pb.ProcessEvent_EndEvent) {
	o := s.o
	o.mu.Lock()
	defer o.mu.Unlock()
	for k := 1; k <= outputs; k++ {
		// In turns, so that one busy output does not hide the other.
		i := (s.last + k) % outputs
		if n := o.rings[i].read(s.pos[i], buf); n > 0 {
			s.pos[i] += uint64(n)
			s.last = i
			notify(o.space[i])
			return i, n, nil
		}
	}
	return 0, 0, o.end
}

// pending is how much there is to read now.
func (s *subscription) pending() int {
	s.o.mu.Lock()
	defer s.o.mu.Unlock()
	n := 0
	for i := range s.pos {
		n += int(s.o.rings[i].end - s.pos[i])
	}
	return n
}

// close detaches; a process that was held back by it goes on.
func (s *subscription) close() {
	s.o.mu.Lock()
	defer s.o.mu.Unlock()
	delete(s.o.subs, s)
	for i := range s.o.space {
		notify(s.o.space[i])
	}
}

// notify leaves one token in a channel of capacity one.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// ring keeps the last size bytes of a stream. It grows as it fills, so that
// quiet processes cost little.
type ring struct {
	size int
	buf  []byte // byte x of the stream is buf[x%len(buf)]
	base uint64 // bytes before it were never kept or were forgotten
	end  uint64 // length of the stream so far
}

// start is the position of the oldest byte that is kept.
func (r *ring) start() uint64 {
	if n := uint64(len(r.buf)); r.end > n {
		return max(r.base, r.end-n)
	}
	return r.base
}

// write appends p, at most size bytes, over the oldest ones when it must.
func (r *ring) write(p []byte) {
	if need := int(r.end-r.start()) + len(p); need > len(r.buf) && len(r.buf) < r.size {
		r.grow(min(r.size, max(need, 2*len(r.buf), 4<<10)))
	}
	for len(p) > 0 {
		n := copy(r.buf[r.end%uint64(len(r.buf)):], p)
		r.end += uint64(n)
		p = p[n:]
	}
}

func (r *ring) grow(size int) {
	from := r.start()
	kept := make([]byte, r.end-from)
	r.read(from, kept)
	r.buf = make([]byte, size)
	r.base = from
	for x := from; len(kept) > 0; {
		n := copy(r.buf[x%uint64(size):], kept)
		x += uint64(n)
		kept = kept[n:]
	}
}

// read copies what there is from position pos on.
func (r *ring) read(pos uint64, p []byte) int {
	if room := r.end - pos; uint64(len(p)) > room {
		p = p[:room]
	}
	total := 0
	for len(p) > 0 {
		n := copy(p, r.buf[pos%uint64(len(r.buf)):])
		pos += uint64(n)
		p = p[n:]
		total += n
	}
	return total
}
