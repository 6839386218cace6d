package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/agent-sandbox/sandbox-go/internal/envelope"
	"github.com/agent-sandbox/sandbox-go/internal/frame"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// running is a call that this worker runs. It is the worker's end of what the
// call has borrowed from its caller, and of what its result lends.
type running struct {
	s     *server
	id    uint64
	turn  uint64 // of the goroutine that reads; 0: the call has one of its own
	ctx   *callContext
	limit int64 // bytes of what it sends at once
	meta  []string

	out *frame.Window // of its streaming result

	// Held for reading while something of the call is sent, so that nothing
	// comes after its result.
	sending sync.RWMutex
	over    bool          // guarded by sending
	gone    chan struct{} // closed with over

	room chan struct{} // one for each upcall that is under way

	mu       sync.Mutex
	returned []func() error // guarded by mu
	ended    []func()       // guarded by mu
}

// Returned implements [envelope.Importer].
func (c *running) Returned(f func() error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.returned = append(c.returned, f)
}

// Ended implements [envelope.Importer].
func (c *running) Ended(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = append(c.ended, f)
}

// After implements [envelope.Exporter]: what a result lends needs nothing more.
func (c *running) After(func(error) error) {}

// relieve lets another goroutine read, before this one waits.
func (c *running) relieve() { c.s.relieve(c.turn) }

// finish runs what was registered for the return of the function. An error makes
// the call a failed one.
func (c *running) finish() error {
	c.mu.Lock()
	fs := c.returned
	c.returned = nil
	c.mu.Unlock()
	for _, f := range fs {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

// close ends what the call has borrowed. Nothing of it is sent from then on.
func (c *running) close() {
	c.mu.Lock()
	fs := c.ended
	c.ended = nil
	c.mu.Unlock()
	for i := len(fs) - 1; i >= 0; i-- {
		fs[i]()
	}
	c.sending.Lock()
	c.over = true
	close(c.gone)
	c.sending.Unlock()
}

// send sends a message that belongs to the call.
func (c *running) send(m *frame.Message) error {
	c.sending.RLock()
	defer c.sending.RUnlock()
	if c.over {
		return errOver("send")
	}
	err := c.s.w.Write(m)
	if err != nil {
		c.s.end(err)
	}
	return err
}

func errOver(op string) error {
	return errdefs.New("E9009", op, "the call that it belongs to has ended")
}

// upcall is something that runs at the caller for a call.
type upcall struct {
	c     *running
	id    uint64
	reply chan frame.Message // of one
	items *frame.Inbox       // nil unless it is a stream
}

// MaxUpcalls is how many upcalls of a call are under way at once; others wait
// for them.
const MaxUpcalls = 1000

// start sends an upcall once there is room for it.
func (c *running) start(kind envelope.Upcall, object uint64, stream bool, p envelope.Payload) (*upcall, error) {
	c.relieve()
	select {
	case c.room <- struct{}{}:
	case <-c.gone:
		return nil, errOver("call back")
	}
	u := &upcall{c: c, reply: make(chan frame.Message, 1)}
	if stream {
		u.items = frame.NewInbox()
	}
	u.id = c.s.addUpcall(u)
	if err := c.send(&frame.Message{Type: frame.Upcall, ID: u.id, Body: p.Body, Segments: p.Segments}); err != nil {
		c.s.dropUpcall(u.id)
		return nil, err
	}
	return u, nil
}

// prefix begins the body of an upcall.
func (c *running) prefix(kind envelope.Upcall, object uint64) []byte {
	return envelope.AppendUpcall(nil, c.id, kind, object)
}

// cancel tells the caller that nobody waits for the upcall any more.
func (u *upcall) cancel(cause error) {
	// When it can't be sent, the call is over, and its upcalls with it.
	_ = u.c.send(&frame.Message{Type: frame.Cancel, ID: u.id, Body: envelope.EncodeCause(cause, u.c.s.errors)})
}

// wait waits for the answer. When ctx ends, the caller is told, and its answer is
// still waited for.
func (u *upcall) wait(ctx context.Context) (reply, error) {
	defer u.c.s.dropUpcall(u.id)
	done := ctx.Done()
	for {
		select {
		case m := <-u.reply:
			return u.c.parse(&m)
		case <-done:
			u.cancel(context.Cause(ctx))
			done = nil
		case <-u.c.gone:
			return reply{}, errOver("call back")
		}
	}
}

// reply is the answer to an upcall: nothing else when err, of the call back
// itself, is not nil.
type reply struct {
	envelope.Payload // of which the first byte is the outcome
}

// panicked is the panic of something that ran at the caller.
type panicked struct{ envelope.Panic }

func (p *panicked) Error() string { return p.Value }

// parse reads an answer. A panic is an error of type *panicked.
func (c *running) parse(m *frame.Message) (reply, error) {
	if len(m.Body) == 0 {
		return reply{}, errdefs.New("E9005", "call back", "empty answer")
	}
	switch envelope.Outcome(m.Body[0]) {
	case envelope.Returned:
		return reply{envelope.Payload{Body: m.Body, Segments: m.Segments}}, nil
	case envelope.Failed:
		return reply{}, c.decodeError(m.Body[1:])
	case envelope.Panicked:
		p, err := envelope.DecodePanic(m.Body[1:])
		if err != nil {
			return reply{}, err
		}
		return reply{}, &panicked{p}
	}
	return reply{}, errdefs.New("E9005", "call back", fmt.Sprintf("unknown outcome %d", m.Body[0]))
}

// decodeError reads an error that stands alone.
func (c *running) decodeError(b []byte) error {
	err, bad := envelope.DecodeError(b, c.s.errors)
	if bad != nil {
		return bad
	}
	return err
}

// Panicked makes the value with which a function panics when what it has called
// at its caller has panicked. Package sandboxfn sets it.
var Panicked func(p envelope.Panic) error = func(p envelope.Panic) error { return errors.New(p.Value) }

// PanicText is the text of a panic that Panicked has made. Package sandboxfn
// sets it.
var PanicText func(err error) (string, bool)

// stray tells of an error that nothing can return: of a callback without an
// error result. While the call runs, its context ends with it.
func (c *running) stray(err error) {
	if errdefs.CodeOf(err) == "E9009" {
		fmt.Fprintf(os.Stderr, "sandboxfn: %v\n", err)
		return
	}
	c.ctx.cancel(err)
}

// upcalls are the upcalls that have not been answered.
type upcalls struct {
	mu   sync.Mutex
	last uint64             // guarded by mu
	m    map[uint64]*upcall // guarded by mu
}

// upcallIDs is where the ids of upcalls begin: those of calls are below.
const upcallIDs = 1 << 63

func (s *server) addUpcall(u *upcall) uint64 {
	s.up.mu.Lock()
	defer s.up.mu.Unlock()
	if s.up.m == nil {
		s.up.m = map[uint64]*upcall{}
	}
	s.up.last++
	id := upcallIDs | s.up.last
	s.up.m[id] = u
	return id
}

func (s *server) dropUpcall(id uint64) {
	s.up.mu.Lock()
	defer s.up.mu.Unlock()
	if u := s.up.m[id]; u != nil {
		delete(s.up.m, id)
		<-u.c.room
	}
}

func (s *server) upcall(id uint64) *upcall {
	s.up.mu.Lock()
	defer s.up.mu.Unlock()
	return s.up.m[id]
}

// answered hands an answer to who waits for it. One that nobody waits for is
// dropped: its call is over.
func (s *server) answered(m *frame.Message) {
	u := s.upcall(m.ID)
	if u == nil {
		return
	}
	s.dropUpcall(m.ID)
	u.reply <- *m // there is one answer
	if u.items != nil {
		u.items.End()
	}
}

// item hands an item to the stream it belongs to.
func (s *server) item(m *frame.Message) error {
	if u := s.upcall(m.ID); u != nil && u.items != nil {
		return u.items.Put(*m)
	}
	return nil
}
