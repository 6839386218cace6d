package drivers

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// puppet is a process without one: the test plays the driver.
type puppet struct {
	output func(stdout, stderr []byte)
	follow chan struct{} // closed when output is set
	done   chan struct{}
	once   sync.Once
	events *io.PipeWriter
	lines  *bufio.Scanner // requests
}

func (p *puppet) Follow(_ context.Context, output func(stdout, stderr []byte)) {
	p.output = output
	close(p.follow)
	<-p.done
	p.events.Close()
}
func (p *puppet) Interrupt(context.Context, bool) {}
func (p *puppet) Kill(context.Context)            { p.once.Do(func() { close(p.done) }) }
func (p *puppet) Done() <-chan struct{}           { return p.done }
func (p *puppet) End() string                     { return "signal: killed" }

// startPuppet makes an engine that is ready.
func startPuppet(t *testing.T) (*Engine, *puppet) {
	t.Helper()
	requests, toDriver := io.Pipe()
	fromDriver, events := io.Pipe()
	p := &puppet{follow: make(chan struct{}), done: make(chan struct{}), events: events, lines: bufio.NewScanner(requests)}
	e := Start(t.Context(), p, Language{Name: "puppet"}, toDriver, fromDriver)
	go fmt.Fprintln(events, `{"event":"ready","pid":42}`)
	if err := e.Ready(t.Context()); err != nil || e.Pid() != 42 {
		t.Fatal(err, e.Pid())
	}
	<-p.follow
	return e, p
}

// request reads one.
func (p *puppet) request() (r request) {
	if p.lines.Scan() {
		_ = json.Unmarshal(p.lines.Bytes(), &r)
	}
	return r
}

// TestSlowClient: when nobody takes what a cell tells, its driver is held up before
// much is kept; when somebody does again, all of it arrives.
func TestSlowClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, p := startPuppet(t)
		const results, size = 120, 1 << 20
		var written atomic.Int64
		go func() {
			r := p.request()
			line := []byte(`{"event":"result","data":{"text/plain":"` + strings.Repeat("x", size) + "\"}}\n")
			for range results {
				p.events.Write(line)
				written.Add(1)
			}
			p.output([]byte("end"+r.Marker), []byte(r.Marker))
			fmt.Fprintf(p.events, "{\"event\":\"end\",\"id\":%q}\n", r.ID)
		}()
		awake, over := make(chan struct{}), make(chan bool)
		seen, out := 0, ""
		go func() {
			over <- e.Run(t.Context(), &Cell{Code: "c"}, func(ev *Event) {
				switch ev.Type {
				case Result:
					<-awake
					seen++
				case Stdout:
					out += ev.Text
				}
			})
		}()
		synctest.Wait()
		// What is being handed on, what waits, and what was being written.
		if n, most := written.Load(), int64(2*maxQueued/size+2); n > most || n < maxQueued/size-1 {
			t.Errorf("%d MiB were taken from the driver, at most %d should be", n, most)
		}
		close(awake)
		if alive := <-over; !alive || seen != results || out != "end" {
			t.Errorf("alive: %v, %d results, output %q", alive, seen, out)
		}
		e.Kill("")
		<-e.Over()
	})
}

// TestSlowNetwork: output that comes long after the end of its cell is still the
// cell's, as long as some keeps coming.
func TestSlowNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, p := startPuppet(t)
		go func() {
			r := p.request()
			fmt.Fprintf(p.events, "{\"event\":\"end\",\"id\":%q}\n", r.ID)
			for range 5 {
				time.Sleep(markerLimit * 3 / 4) // of the clock of this test
				p.output([]byte("."), nil)
			}
			p.output([]byte("last"+r.Marker), []byte(r.Marker))
		}()
		out := ""
		alive := e.Run(t.Context(), &Cell{Code: "c"}, func(ev *Event) { out += ev.Text })
		if !alive || out != ".....last" {
			t.Errorf("alive: %v, output %q", alive, out)
		}
		e.Kill("")
		<-e.Over()
	})
}

// TestEndInTime: a cell that has ended is neither late nor lost, whatever is seen at
// the same moment because a client was slow: its limit, or the end of the process.
func TestEndInTime(t *testing.T) {
	for name, meanwhile := range map[string]func(p *puppet){
		"limit": func(*puppet) { time.Sleep(time.Minute) }, // of the clock of this test
		"death": func(p *puppet) { p.Kill(context.Background()) },
	} {
		synctest.Test(t, func(t *testing.T) {
			for range 30 { // each takes one of the two first
				e, p := startPuppet(t)
				awake := make(chan struct{})
				go func() {
					r := p.request()
					fmt.Fprintf(p.events, "{\"event\":\"count\",\"n\":1}\n")
					synctest.Wait() // its client has the first event
					p.output([]byte("out"+r.Marker), []byte(r.Marker))
					fmt.Fprintf(p.events, "{\"event\":\"end\",\"id\":%q}\n", r.ID)
					synctest.Wait()
					meanwhile(p)
					synctest.Wait()
					close(awake)
				}()
				said := ""
				alive := e.Run(t.Context(), &Cell{Code: "c", Timeout: time.Second}, func(ev *Event) {
					if ev.Type == Count {
						<-awake
					}
					if ev.Type != Keepalive {
						said += ev.Type + ev.Name + ev.Text + " "
					}
				})
				if want := Count + " " + Stdout + "out "; said != want {
					t.Errorf("%s: got %q, want %q", name, said, want)
				}
				if name == "limit" && !alive {
					t.Errorf("%s: it is said to be dead", name)
				}
				e.Kill("")
				<-e.Over()
			}
		})
	}
}
