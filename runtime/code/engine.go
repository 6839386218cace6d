//go:build linux

package code

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	pb "github.com/agent-sandbox/sandbox-go/internal/pb/process"
	"github.com/agent-sandbox/sandbox-go/runtime/process"
)

// Limits of a context.
const (
	maxOutput   = 1 << 20  // bytes of each output of one cell that are kept
	maxResult   = 10 << 20 // bytes of one form of a result
	maxLine     = 64 << 20 // bytes of one line of the driver
	maxQueued   = 32 << 20 // bytes of results that wait for a slow client
	stderrTail  = 4 << 10  // bytes of stderr in the report of a death
	readyLimit  = time.Minute
	markerLimit = time.Second // for output after the end, when the cell has taken the descriptors away
)

// message is a line of the driver.
type message struct {
	Event     string                     `json:"event"`
	ID        string                     `json:"id"`
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

// engine is the process of a context.
type engine struct {
	run *process.Running
	req *os.File // requests
	ev  *os.File // events

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

// start starts a process and waits until it is ready. ctx has the user.
func (s *Service) start(ctx context.Context, l language, id, cwd string) (*engine, error) {
	args := append([]string(nil), l.args...)
	if l.driver != "" {
		file, err := s.folder.file(l.driver)
		if err != nil {
			return nil, fmt.Errorf("write driver: %w", err)
		}
		args = append(append(args, file), l.rest...)
	}
	reqR, reqW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer reqR.Close()
	evR, evW, err := os.Pipe()
	if err != nil {
		reqW.Close()
		return nil, err
	}
	defer evW.Close()
	reqR.Fd() // both ends of the process block
	evW.Fd()
	tag, no := "code-"+id, false
	run, err := s.opts.Process.Begin(ctx, &pb.StartRequest{
		Process: &pb.ProcessConfig{Cmd: l.program, Args: args, Cwd: &cwd}, Tag: &tag, Stdin: &no,
	}, reqR, evW)
	if err != nil {
		reqW.Close()
		evR.Close()
		return nil, err
	}
	e := &engine{
		run: run, req: reqW, ev: evR, wake: make(chan struct{}, 1), ends: make(chan string, 1),
		ready: make(chan message, 1), over: make(chan struct{}),
	}
	e.room = sync.NewCond(&e.mu)
	s.wg.Go(func() { e.follow(s.ctx) })
	timer := time.NewTimer(readyLimit)
	defer timer.Stop()
	select {
	case m := <-e.ready:
		if m.Event != "ready" {
			e.kill(s.ctx, "")
			return nil, &refused{m.Value}
		}
		return e, nil
	case <-e.over:
		select {
		case m := <-e.ready:
			if m.Event == "refused" {
				return nil, &refused{m.Value}
			}
		default:
		}
		return nil, errors.New(l.name + " ended at its start: " + e.death())
	case <-timer.C:
		e.kill(s.ctx, "")
		return nil, fmt.Errorf("%s is not ready after %v", l.name, readyLimit)
	case <-ctx.Done():
		e.kill(s.ctx, "")
		return nil, context.Cause(ctx)
	}
}

// refused is why a driver does not start.
type refused struct{ text string }

func (r *refused) Error() string { return r.text }

// follow reads everything until the process has ended.
func (e *engine) follow(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { e.readEvents(ctx) })
	for {
		ev, err := e.run.Next(ctx)
		if err != nil {
			break
		}
		if d := ev.GetData(); d != nil {
			e.add(0, d.GetStdout())
			e.add(1, d.GetStderr())
		}
	}
	e.run.Close()
	// What was said before the end is read at once; a child that holds the
	// descriptor does not keep us.
	_ = e.ev.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
	e.give()
	wg.Wait()
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
func (e *engine) add(i int, p []byte) {
	if len(p) == 0 {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if i == 1 {
		e.tail = tail(e.tail+valid(p), stderrTail)
	}
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

func (e *engine) textLocked(i int, text string) {
	kept := head(text, maxOutput-e.kept[i])
	e.kept[i] += len(kept)
	e.cut[i] += int64(len(text) - len(kept))
	if kept == "" {
		return
	}
	kind := [2]string{eventStdout, eventStderr}[i]
	if n := len(e.queue); n > 0 && e.queue[n-1].Type == kind && len(e.queue[n-1].Text) < 32<<10 {
		e.queue[n-1].Text += kept
		return
	}
	e.queue = append(e.queue, Event{Type: kind, Text: kept, Time: time.Now()})
}

// readEvents reads the lines of the driver.
func (e *engine) readEvents(ctx context.Context) {
	r := bufio.NewReaderSize(e.ev, 64<<10)
	first := true
	for {
		line, err := readLine(r)
		if errors.Is(err, errLong) {
			e.kill(ctx, fmt.Sprintf("a line of the driver is longer than %d bytes", maxLine))
			_, _ = io.Copy(io.Discard, r)
			return
		}
		if err != nil {
			return
		}
		var m message
		if json.Unmarshal(line, &m) != nil {
			e.kill(ctx, "the driver said something that is not of its protocol")
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

func (e *engine) take(m message, size int) {
	var ev Event
	switch m.Event {
	case "count":
		ev = Event{Type: eventCount, Count: m.N}
	case "result":
		ev = result(m.Data, m.Main)
	case "error":
		ev = failure(m.Name, m.Value, m.Traceback...)
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
func (e *engine) give() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.given = true
	e.room.Broadcast()
}

// drain takes what is queued.
func (e *engine) drain() []Event {
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
		case len(line) > maxLine:
			return nil, errLong
		}
	}
}

// send hands a cell to the driver.
func (e *engine) send(r *request) error {
	e.mu.Lock()
	for i := range e.out {
		e.out[i].marker = []byte(r.Marker)
		e.kept[i], e.cut[i] = 0, 0
	}
	// What was written since the last cell counts for this one.
	for _, ev := range e.queue {
		switch ev.Type {
		case eventStdout:
			e.kept[0] += len(ev.Text)
		case eventStderr:
			e.kept[1] += len(ev.Text)
		}
	}
	e.markers = len(e.out)
	e.mu.Unlock()
	select {
	case <-e.ends: // of a cell before
	default:
	}
	_, err := e.req.Write(append(encode(r), '\n'))
	return err
}

// settled reports whether all output of the cell was read, and how much of it was
// cut.
func (e *engine) settled() (done bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.markers == 0
}

// cuts are the lines that say how much of the output was cut.
func (e *engine) cuts() []Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []Event
	for i, n := range e.cut {
		if n > 0 {
			text := fmt.Sprintf("\n[%d bytes more were cut: at most %d of a cell's %s are kept]\n", n, maxOutput, [2]string{eventStdout, eventStderr}[i])
			out = append(out, Event{Type: [2]string{eventStdout, eventStderr}[i], Text: text, Time: time.Now()})
			e.cut[i] = 0
		}
	}
	return out
}

// kill ends the process and all it started. A reason is told by death.
func (e *engine) kill(ctx context.Context, why string) {
	e.mu.Lock()
	if e.bad == "" {
		e.bad = why
	}
	e.mu.Unlock()
	e.give()
	_ = e.run.Kill(ctx)
}

// death says how the process ended.
func (e *engine) death() string {
	e.mu.Lock()
	bad, last := e.bad, e.tail
	e.mu.Unlock()
	text := bad
	if end := e.run.End(); text == "" && end != nil {
		switch {
		case strings.Contains(end.GetError(), "memory limit"):
			text = "out of memory"
		case end.GetExited():
			text = fmt.Sprintf("exit code %d", end.GetExitCode())
		default:
			text = end.GetStatus()
		}
	}
	if text == "" {
		text = "the process is gone"
	}
	if last = strings.TrimSpace(last); last != "" && bad == "" {
		text += "\n" + last
	}
	return text
}

func (e *engine) dead() bool {
	select {
	case <-e.over:
		return true
	case <-e.run.Done():
		<-e.over
		return true
	default:
		return false
	}
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
