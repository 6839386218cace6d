package drivers

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// Process is the running process of a driver. Its methods are safe for concurrent
// use.
type Process interface {
	// Follow hands on what is printed, until the process has ended and all of it
	// was read, or ctx ends. It is called once. A callback that waits holds the
	// process up.
	Follow(ctx context.Context, output func(stdout, stderr []byte))
	// Interrupt sends SIGINT to the process, or to all it has started, too.
	Interrupt(ctx context.Context, all bool)
	// Kill ends the process and all that it has started.
	Kill(ctx context.Context)
	// Done is closed when the process has ended.
	Done() <-chan struct{}
	// End says how, after that: "exit code 1", "signal: killed", "out of memory".
	End() string
}

// Defaults of what holds contexts.
const (
	MaxContexts = 32        // at a time
	IdleTimeout = time.Hour // without a cell, after which a context is removed
)

// Limits of a context.
const (
	MaxOutput  = 1 << 20  // bytes of each output of one cell that are kept
	MaxResult  = 10 << 20 // bytes of one form of a result
	MaxLine    = 64 << 20 // bytes of one line of the driver
	maxQueued  = 32 << 20 // bytes of results that wait for a slow client
	stderrTail = 4 << 10  // bytes of stderr in the report of a death
	readyLimit = time.Minute
	lastWords  = time.Second // for events after the end of the process

	// For output after the end, when the cell has taken the descriptors away: how
	// long none may come, and all together.
	markerLimit = time.Second
	outputLimit = 10 * time.Second
)

// message is a line of the driver.
type message struct {
	Event     string                     `json:"event"`
	ID        string                     `json:"id"`
	Pid       int                        `json:"pid"`
	N         int                        `json:"n"`
	Main      bool                       `json:"main"`
	Data      map[string]json.RawMessage `json:"data"`
	Name      string                     `json:"name"`
	Value     string                     `json:"value"`
	Traceback []string                   `json:"traceback"`
}

// request is a line for the driver. The Bash driver counts on the order.
type request struct {
	Code   string            `json:"code"`
	Op     string            `json:"op"`
	ID     string            `json:"id"`
	Marker string            `json:"marker"`
	Env    map[string]string `json:"env"`
}

// Times of an [Engine].
const (
	DefaultGrace = 5 * time.Second // from an interrupt to SIGKILL
	DefaultBeat  = 5 * time.Second // between signs of life
)

// Engine runs cells in the process of a driver, one at a time.
type Engine struct {
	// Grace and Beat may be changed before the first cell.
	Grace, Beat time.Duration

	base    context.Context
	process Process
	lang    Language
	req     io.WriteCloser // requests
	ev      io.ReadCloser  // events
	pid     int            // set by Ready

	mu      sync.Mutex
	out     [2]stream  // guarded by mu
	kept    [2]int     // guarded by mu; bytes of the cell
	cut     [2]int64   // guarded by mu; bytes of the cell that were not kept
	markers int        // guarded by mu; that are still to come
	tail    string     // guarded by mu; of stderr
	queue   []Event    // guarded by mu
	queued  int        // guarded by mu; bytes of results in queue
	room    *sync.Cond // the queue was emptied
	bad     string     // guarded by mu; why it was killed
	given   bool       // guarded by mu; nobody takes events any more

	wake  chan struct{}
	ends  chan string   // ids of cells that ended
	ready chan message  // the first line
	over  chan struct{} // closed: it has ended and all was read
}

// Start makes the engine of a process that was just started, and follows it until
// it has ended. requests and events are the descriptors 3 and 4 of the process.
// base outlives every cell; it is for following and killing. The process is ready
// for cells when [Engine.Ready] says so.
func Start(base context.Context, p Process, l Language, requests io.WriteCloser, events io.ReadCloser) *Engine {
	e := &Engine{
		Grace: DefaultGrace, Beat: DefaultBeat,
		base: base, process: p, lang: l, req: requests, ev: events,
		wake: make(chan struct{}, 1), ends: make(chan string, 1), ready: make(chan message, 1), over: make(chan struct{}),
	}
	e.room = sync.NewCond(&e.mu)
	go e.follow()
	return e
}

// Ready waits until the driver takes cells. A *[Refused] is why it does not.
// After an error nothing is left of the process.
func (e *Engine) Ready(ctx context.Context) error {
	timer := time.NewTimer(readyLimit)
	defer timer.Stop()
	refused := func(m message) error {
		e.Kill("")
		<-e.over
		return &Refused{m.Value}
	}
	select {
	case m := <-e.ready:
		if m.Event != "ready" {
			return refused(m)
		}
		e.pid = m.Pid
		return nil
	case <-e.over:
		select {
		case m := <-e.ready:
			if m.Event == "refused" {
				return refused(m)
			}
		default:
		}
		return errors.New(e.lang.Name + " ended at its start: " + e.death())
	case <-timer.C:
		e.Kill("")
		<-e.over
		return fmt.Errorf("%s is not ready after %v", e.lang.Name, readyLimit)
	case <-ctx.Done():
		e.Kill("")
		<-e.over
		return context.Cause(ctx)
	}
}

// Refused is why a driver does not start, in its own words.
type Refused struct{ Text string }

func (r *Refused) Error() string { return r.Text }

// Pid is the id of the process as it knows itself, once it is ready.
func (e *Engine) Pid() int { return e.pid }

// Over is closed when the process has ended and all was read.
func (e *Engine) Over() <-chan struct{} { return e.over }

// Dead reports whether the process has ended; it waits then until all was read.
func (e *Engine) Dead() bool {
	select {
	case <-e.over:
		return true
	case <-e.process.Done():
		<-e.over
		return true
	default:
		return false
	}
}

// follow reads everything until the process has ended.
func (e *Engine) follow() {
	var wg sync.WaitGroup
	wg.Go(e.readEvents)
	e.process.Follow(e.base, func(stdout, stderr []byte) {
		e.add(0, stdout)
		e.add(1, stderr)
	})
	// What was said before the end is read at once; a child that holds the
	// descriptor does not keep us.
	late := time.AfterFunc(lastWords, func() { e.ev.Close() })
	e.give()
	wg.Wait()
	late.Stop()
	e.ev.Close()
	e.req.Close()
	e.mu.Lock()
	for i := range e.out {
		e.textLocked(i, e.out[i].flush())
	}
	e.mu.Unlock()
	close(e.over)
}

// add takes output.
func (e *Engine) add(i int, p []byte) {
	if len(p) == 0 {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	text, ended := e.out[i].feed(p)
	e.textLocked(i, text)
	if ended {
		e.markers--
		// What follows belongs to the next cell.
		more, _ := e.out[i].feed(nil)
		e.textLocked(i, more)
	}
	notify(e.wake)
}

func (e *Engine) textLocked(i int, text string) {
	if i == 1 {
		e.tail = tail(e.tail+text, stderrTail)
	}
	kept := head(text, MaxOutput-e.kept[i])
	e.kept[i] += len(kept)
	e.cut[i] += int64(len(text) - len(kept))
	if kept == "" {
		return
	}
	kind := [2]string{Stdout, Stderr}[i]
	if n := len(e.queue); n > 0 && e.queue[n-1].Type == kind && len(e.queue[n-1].Text) < 32<<10 {
		e.queue[n-1].Text += kept
		return
	}
	e.queue = append(e.queue, Event{Type: kind, Text: kept, Time: time.Now()})
}

// readEvents reads the lines of the driver.
func (e *Engine) readEvents() {
	r := bufio.NewReaderSize(e.ev, 64<<10)
	first := true
	for {
		line, err := readLine(r)
		if errors.Is(err, errLong) {
			e.Kill(fmt.Sprintf("a line of the driver is longer than %d bytes", MaxLine))
			_, _ = io.Copy(io.Discard, r)
			return
		}
		if err != nil {
			return
		}
		var m message
		if json.Unmarshal(line, &m) != nil {
			e.Kill("the driver said something that is not of its protocol")
			_, _ = io.Copy(io.Discard, r)
			return
		}
		if first {
			first = false
			e.ready <- m
			continue
		}
		e.take(m, len(line))
	}
}

func (e *Engine) take(m message, size int) {
	var ev Event
	switch m.Event {
	case "count":
		ev = Event{Type: Count, Count: m.N}
	case "result":
		ev = result(m.Data, m.Main)
	case "error":
		ev = Failure(m.Name, m.Value, m.Traceback...)
	case "end":
		select {
		case e.ends <- m.ID:
		default: // a second one for the same cell says nothing new
		}
		return
	default:
		return // of a newer protocol
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for e.queued > 0 && e.queued+size > maxQueued && !e.given {
		e.room.Wait()
	}
	e.queued += size
	e.queue = append(e.queue, ev)
	notify(e.wake)
}

// give ends every wait for room.
func (e *Engine) give() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.given = true
	e.room.Broadcast()
}

// drain takes what is queued.
func (e *Engine) drain() []Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	q := e.queue
	e.queue, e.queued = nil, 0
	e.room.Broadcast()
	return q
}

var errLong = errors.New("line too long")

func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if err == nil && line == nil {
			return part, nil
		}
		line = append(line, part...)
		switch {
		case err == nil:
			return line, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		case len(line) > MaxLine:
			return nil, errLong
		}
	}
}

// send hands a cell to the driver.
func (e *Engine) send(r *request) error {
	e.mu.Lock()
	for i := range e.out {
		e.out[i].marker = []byte(r.Marker)
		e.kept[i], e.cut[i] = 0, 0
	}
	// What was written since the last cell counts for this one.
	for _, ev := range e.queue {
		switch ev.Type {
		case Stdout:
			e.kept[0] += len(ev.Text)
		case Stderr:
			e.kept[1] += len(ev.Text)
		}
	}
	e.markers = len(e.out)
	e.mu.Unlock()
	select {
	case <-e.ends: // of a cell before
	default:
	}
	// The Bash driver reads strings as formats of printf, where a % has a meaning.
	line := bytes.ReplaceAll(encode(r), []byte("%"), []byte(`\u0025`))
	_, err := e.req.Write(append(line, '\n'))
	return err
}

// settled reports whether all output of the cell was read, and how much of it was
// cut.
func (e *Engine) settled() (done bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.markers == 0
}

// cuts are the lines that say how much of the output was cut.
func (e *Engine) cuts() []Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []Event
	for i, n := range e.cut {
		if n > 0 {
			text := fmt.Sprintf("\n[%d bytes more were cut: at most %d of a cell's %s are kept]\n", n, MaxOutput, [2]string{Stdout, Stderr}[i])
			out = append(out, Event{Type: [2]string{Stdout, Stderr}[i], Text: text, Time: time.Now()})
			e.cut[i] = 0
		}
	}
	return out
}

// Kill ends the process and all it started. The first reason that is not empty is
// what the cell that runs is told.
func (e *Engine) Kill(why string) {
	e.mu.Lock()
	if e.bad == "" {
		e.bad = why
	}
	e.mu.Unlock()
	e.give()
	e.process.Kill(e.base)
}

// death says how the process ended.
func (e *Engine) death() string {
	e.mu.Lock()
	bad, last := e.bad, e.tail
	e.mu.Unlock()
	text := bad
	if text == "" {
		text = e.process.End()
	}
	if text == "" {
		text = "the process is gone"
	}
	if last = strings.TrimSpace(last); last != "" && bad == "" {
		text += "\n" + last
	}
	return text
}

func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// markerOf makes a marker that output does not hold by accident. JSON has no
// escape for any of its bytes.
func markerOf(id string) string { return "\x7f" + id + "\x7f" }
