package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/envelope"
	"github.com/agent-sandbox/sandbox-go/internal/frame"
	"github.com/agent-sandbox/sandbox-go/internal/near"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// handoff is how long a function may run in the goroutine that reads before
// another goroutine reads. One whose function looks at its context is relieved
// at once, so that a cancellation gets through. Most functions are done before
// either, and a goroutine, or a timer, for each call would cost more than they
// do: arming a timer of 20 µs alone measured 17 µs on a virtual machine.
const handoff = 5 * time.Millisecond

// quiet is for how many times handoff nothing may happen until nobody looks any
// more whether a function is still running.
const quiet = 20

// maxArgs bounds what a caller may send. The caller has its own, lower limit,
// and refuses what is above before it sends anything.
const maxArgs = 17 << 30

// argsAtOnce is how much memory a worker takes at a caller's word. The caller is
// the one that it works for.
const argsAtOnce = 64 << 20

type server struct {
	r         *frame.Reader
	w         *frame.Writer
	functions map[string]*Function
	errors    *envelope.Errors
	out       *output

	// turn is odd while a function runs in the goroutine that reads: whoever
	// makes it even goes on reading.
	turn     atomic.Uint64
	watching atomic.Bool   // the goroutine that looks for long calls is awake
	wake     chan struct{} // wakes it
	exit     chan int
	quit     chan struct{} // closed at the end
	store    sync.Map      // for Store

	// base is the context from which those of calls come; nil: the background.
	base func(id uint64) context.Context

	mu    sync.Mutex
	calls map[uint64]*running // guarded by mu
	left  bool                // guarded by mu; nobody waits for calls any more
	up    upcalls
}

func newServer(conn io.ReadWriter, out *output) *server {
	s := &server{
		r: frame.NewReader(conn), w: frame.NewWriter(conn), out: out,
		functions: map[string]*Function{}, wake: make(chan struct{}, 1), exit: make(chan int, 1), quit: make(chan struct{}), calls: map[uint64]*running{},
	}
	s.r.Limit = func(frame.Type, uint64) int64 { return maxArgs }
	s.r.AtOnce = argsAtOnce
	return s
}

func (s *server) hello(l settings, fs []Function) error {
	h := envelope.Hello{
		Protocol: envelope.Protocol, Token: l.token, Digest: l.digest, Unit: l.unit,
		Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}
	for _, f := range fs {
		h.Functions = append(h.Functions, envelope.FunctionInfo{ID: f.ID, Schema: f.Schema})
	}
	body, err := h.Encode()
	if err != nil {
		return err
	}
	return s.w.Write(&frame.Message{Type: frame.Hello, Body: body})
}

// serve runs until the caller is gone and returns the exit status. Functions
// that run then end with the process.
func (s *server) serve() int {
	go s.watch()
	go s.read()
	status := <-s.exit
	close(s.quit)
	return status
}

// relieve starts another reader when the function of that turn is still running
// in the goroutine that reads.
func (s *server) relieve(turn uint64) {
	if turn%2 == 1 && s.turn.CompareAndSwap(turn, turn+1) {
		go s.read()
	}
}

// watch relieves readers whose function runs for long. It sleeps while there
// are no calls.
func (s *server) watch() {
	tick := time.NewTimer(handoff)
	defer tick.Stop()
	for {
		select {
		case <-s.wake:
		case <-s.quit:
			return
		}
		last := s.turn.Load()
		for still := 0; still < quiet; {
			tick.Reset(handoff)
			select {
			case <-tick.C:
			case <-s.quit:
				return
			}
			turn := s.turn.Load()
			if turn != last {
				last, still = turn, 0
				continue
			}
			s.relieve(turn)
			still++
		}
		s.watching.Store(false)
		if s.turn.Load() != last { // a call began before it could know
			s.look()
		}
	}
}

// look wakes watch.
func (s *server) look() {
	if !s.watching.Load() && s.watching.CompareAndSwap(false, true) {
		select {
		case s.wake <- struct{}{}:
		case <-s.quit:
		}
	}
}

// read handles messages until the connection ends or another goroutine reads.
func (s *server) read() {
	for {
		m, err := s.r.Next()
		if err != nil {
			s.end(err)
			return
		}
		switch m.Type {
		case frame.Call:
			if !s.call(&m) {
				return
			}
		case frame.Cancel:
			s.cancel(&m)
		case frame.Upresult:
			s.answered(&m)
		case frame.Item:
			err = s.item(&m)
		case frame.Credit:
			err = s.credit(&m)
		case frame.Bye:
			s.end(nil)
			return
		}
		if err != nil {
			s.end(err)
			return
		}
	}
}

func (s *server) end(err error) {
	status := 0
	if errors.Is(err, frame.ErrMalformed) || errors.Is(err, frame.ErrTooLarge) {
		fmt.Fprintf(os.Stderr, "sandboxfn: worker: %v\n", err)
		status = 2
	}
	select {
	case s.exit <- status:
	default:
	}
}

func (s *server) running(id uint64) *running {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[id]
}

func (s *server) cancel(m *frame.Message) {
	if c := s.running(m.ID); c != nil {
		c.ctx.cancel(envelope.DecodeCause(m.Body, s.errors))
	}
}

// credit lets a streaming result go on.
func (s *server) credit(m *frame.Message) error {
	if c := s.running(m.ID); c != nil {
		return c.out.Add(m.Body)
	}
	return nil
}

// call runs one call: in this goroutine, unless the caller says that others may
// run meanwhile, or one has come already. It reports whether the goroutine still
// reads: not, when the function took so long that another does.
func (s *server) call(m *frame.Message) (reading bool) {
	in, err := envelope.OpenRequest(envelope.Payload{Body: m.Body, Segments: m.Segments}, s.errors)
	id := m.ID
	m.Body, m.Segments = nil, nil
	if in.Shared || s.r.Buffered() {
		// It is known from now on, so that what comes next for it finds it.
		c := s.begin(id, 0, in)
		go s.run(c, in, err)
		return true
	}
	turn := s.turn.Load() + 1
	s.turn.Store(turn)
	s.look()
	returned := false
	defer func() {
		reading = s.turn.CompareAndSwap(turn, turn+1)
		if !returned && reading { // runtime.Goexit: this goroutine is ending
			go s.read()
		}
	}()
	s.run(s.begin(id, turn, in), in, err)
	returned = true
	return reading
}

// begin makes a call known.
func (s *server) begin(id, turn uint64, in *envelope.OpenedRequest) *running {
	c := &running{
		s: s, id: id, turn: turn, limit: max(in.MaxPayload, 0), meta: in.Meta,
		out: frame.NewWindow(), gone: make(chan struct{}), room: make(chan struct{}, MaxUpcalls),
	}
	c.ctx = newCallContext(in.Timeout, c)
	if s.base == nil {
		records.begin(in.Meta)
	}
	s.mu.Lock()
	s.calls[id] = c
	left := s.left
	s.mu.Unlock()
	if left {
		c.ctx.cancel(errLeft)
	}
	return c
}

var errLeft = errors.New("the caller is gone")

// leave ends the contexts of the calls that run, and of those that begin.
func (s *server) leave() {
	s.mu.Lock()
	s.left = true
	calls := slices.Collect(maps.Values(s.calls))
	s.mu.Unlock()
	for _, c := range calls {
		c.ctx.cancel(errLeft)
	}
}

// forget makes a call unknown, and ends what it has borrowed.
func (s *server) forget(c *running) {
	c.close()
	s.mu.Lock()
	delete(s.calls, c.id)
	s.mu.Unlock()
	c.ctx.release()
}

// run runs the function and sends what came of it. bad is why its request can't
// be read.
func (s *server) run(c *running, in *envelope.OpenedRequest, bad error) {
	out := envelope.NewResponse(s.errors, c.limit)
	if in.JSON {
		out.JSON()
	}
	out.Lend(c)
	in.Borrow(c)
	returned := false
	defer func() {
		if !returned {
			p := envelope.Panic{Value: "the function called runtime.Goexit", Stack: userStack()}
			if v := recover(); v != nil {
				p.Value = valueText(v)
			}
			out.Panicked(p)
		}
		s.forget(c)
		s.answer(c, out)
	}()
	f := s.functions[in.ID]
	switch {
	case bad != nil:
		out.Failed(bad)
	case f == nil:
		out.Failed(s.unknown(in.ID))
	default:
		f.Run(joined(c.ctx), in, out)
	}
	returned = true
}

// answer sends a response, with how much has been written to the standard
// streams.
func (s *server) answer(c *running, out *envelope.Response) {
	p := out.Finish(s.out.counters())
	records.flush(s) // before the result of the call
	write := s.w.Write
	if c.turn == 0 { // others may be ready to answer, too
		write = s.w.WriteSoon
	}
	if err := write(&frame.Message{Type: frame.Result, ID: c.id, Body: p.Body, Segments: p.Segments}); err != nil {
		s.end(err)
	}
	p.Release()
}

func (s *server) unknown(id string) error {
	like, best := "", len(id)/2+1
	for _, k := range slices.Sorted(func(yield func(string) bool) {
		for k := range s.functions {
			if !yield(k) {
				return
			}
		}
	}) {
		if d := near.Distance(id, k); d < best {
			like, best = k, d
		}
	}
	msg := fmt.Sprintf("%s is not known to the worker of %s", id, launch.unit)
	if like != "" {
		msg += "; did you mean " + like + "?"
	}
	return errdefs.New("E9008", "call", msg)
}

func valueText(v any) (s string) {
	if p, ok := v.(error); ok && PanicText != nil {
		if text, ok := PanicText(p); ok {
			return text
		}
	}
	defer func() {
		if r := recover(); r != nil {
			s = fmt.Sprintf("%T", v)
		}
	}()
	if err, ok := v.(error); ok {
		return err.Error()
	}
	return fmt.Sprint(v)
}

// userStack is the stack of a panic, without the frames that recovered it.
func userStack() string {
	s := string(debug.Stack())
	if _, after, ok := strings.Cut(s, "\npanic("); ok {
		if _, after, ok = strings.Cut(after, "\n\t"); ok {
			if _, after, ok = strings.Cut(after, "\n"); ok {
				head, _, _ := strings.Cut(s, "\n")
				return head + "\n" + after
			}
		}
	}
	return s
}
