//go:build linux

package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	pb "github.com/agent-sandbox/sandbox-go/internal/pb/filesystem"
)

// TestWatchRecordings does what was done while envd 0.6.13 watched, in turns
// with our server, and compares what is reported. How often a write is reported
// depends on the moment, so repetitions count once.
func TestWatchRecordings(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("the recordings act as several users, which takes root")
	}
	if inNamespace(t, "TestWatchRecordings") {
		return
	}
	recordedHost(t)
	for name, play := range map[string]func(*watchReplay){
		"fs-watch": func(p *watchReplay) {
			p.setup(0)
			p.stream(0, func(w *watched) { p.steps(w, 1, 8) })
			p.setup(9)
			p.stream(1, func(w *watched) { p.steps(w, 10, 17) })
		},
		"fs-watch-recursive-entry": func(p *watchReplay) {
			p.setup(0)
			p.stream(0, func(w *watched) { p.steps(w, 1, 9) })
		},
		"fs-watch-upload": func(p *watchReplay) {
			p.setup(0)
			p.stream(0, func(w *watched) { p.calls(w, 1, 4) })
		},
		"fs-watch-errors-keepalive": func(p *watchReplay) {
			p.setup(0)
			p.setup(1)
			for i := range 3 {
				p.stream(i, func(*watched) {})
			}
			p.stream(3, func(w *watched) { p.steps(w, 2, 2) })
		},
		"fs-polling-watcher": func(p *watchReplay) {
			for i := range p.rec.Exchanges {
				switch i {
				case 0:
					p.setup(0)
				case 2:
					p.setup(1)
				case 7:
					p.setup(2)
				case 9:
					p.setup(3)
				}
				p.poll(i)
			}
		},
		"sdk251-watch": sdkWatch,
		"sdk231-watch": sdkWatch,
	} {
		t.Run(name, func(t *testing.T) {
			play(&watchReplay{replay: newReplay(t, loadRecording(t, "testdata/watches/"+name+".json"))})
		})
	}
}

func sdkWatch(p *watchReplay) {
	p.setup(0)
	p.call(0)
	p.stream(1, func(w *watched) { p.calls(w, 2, 4) })
	p.stream(5, func(*watched) {})
}

// watchReplay is a recorded session in the order in which it has to be played.
type watchReplay struct {
	*replay
	ourID, theirID string // of the polled watcher
}

func (p *watchReplay) setup(i int) { p.replay.setup(p.rec.Setup[i]) }

// steps runs setup steps from first to last, each when the one before has shown.
func (p *watchReplay) steps(w *watched, first, last int) {
	for i := first; i <= last; i++ {
		before := w.count()
		p.setup(i)
		if strings.Contains(p.rec.Setup[i], "/sub/in") && !strings.Contains(p.rec.Setup[i], "rm") && !w.recursive {
			continue // out of sight
		}
		last := lastEvent(p.rec.Setup[i])
		w.until(p.t, p.rec.Setup[i], func() bool { return w.shows(before, last) })
	}
}

// lastEvent is how the last event of a setup step begins that tells of a file which
// is there: the next step may take it away.
func lastEvent(step string) string {
	args := strings.Fields(step)
	name := path.Base(args[len(args)-1])
	switch {
	case strings.Contains(step, ">"):
		return "WRITE " + name
	case strings.Contains(step, "mv "):
		return "CREATE " + name
	}
	return ""
}

// calls makes the recorded calls from first to last.
func (p *watchReplay) calls(w *watched, first, last int) {
	for i := first; i <= last; i++ {
		before := w.count()
		p.call(i)
		w.until(p.t, p.rec.Exchanges[i].Path, func() bool { return w.count() > before })
	}
}

// call sends exchange i and compares the answer.
func (p *watchReplay) call(i int) {
	p.send(i)
	p.compare(i, nil)
}

// poll is call for the methods of polled watchers, whose id is our own.
func (p *watchReplay) poll(i int) {
	e := p.rec.Exchanges[i]
	raw := e.Request.bytes()
	if p.theirID != "" {
		raw = bytes.ReplaceAll(raw, []byte(p.theirID), []byte(p.ourID))
		if header(e.RequestHeaders).Get("Content-Type") == "application/proto" && bytes.HasSuffix(raw, []byte(p.ourID)) {
			raw = append([]byte{0x0a, byte(len(p.ourID))}, p.ourID...)
		}
	}
	want := polled(p.t, e.Path, header(e.ResponseHeaders), e.Response.bytes())
	var got []string
	w := &watched{}
	w.until(p.t, fmt.Sprintf("exchange %d is answered as recorded (%q)", i, want), func() bool {
		status, h, body := p.request(e, raw)
		if status != *e.Status {
			p.t.Fatalf("exchange %d: got status %d, %s", i, status, body)
		}
		got = once(append(got, polled(p.t, e.Path, h, body)...))
		if strings.HasSuffix(e.Path, "/CreateWatcher") && status == 200 {
			p.ourID, p.theirID = watcherID(h, body), watcherID(header(e.ResponseHeaders), e.Response.bytes())
		}
		return slices.Equal(got, once(want)) || len(got) > len(want)
	})
	if !slices.Equal(got, once(want)) {
		p.t.Errorf("exchange %d: got %q, want %q", i, got, once(want))
	}
}

func (p *watchReplay) request(e *exchange, raw []byte) (int, http.Header, []byte) {
	p.t.Helper()
	req, err := http.NewRequestWithContext(p.t.Context(), e.Method, "http://localhost"+e.Path, bytes.NewReader(raw))
	if err != nil {
		p.t.Fatal(err)
	}
	req.Header = header(e.RequestHeaders)
	req.Header.Del("Content-Length")
	resp, err := p.client.Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, body
}

// polled is what the answer of a polled watcher says: its events, or the code of
// its error.
func polled(t *testing.T, path string, h http.Header, body []byte) []string {
	t.Helper()
	var failure struct{ Code string }
	if json.Unmarshal(body, &failure); failure.Code != "" {
		return []string{failure.Code}
	}
	if !strings.HasSuffix(path, "/GetWatcherEvents") {
		return nil
	}
	m := &pb.GetWatcherEventsResponse{}
	decode(t, h, body, m)
	var out []string
	for _, e := range m.GetEvents() {
		out = append(out, eventText(e))
	}
	return out
}

func watcherID(h http.Header, body []byte) string {
	m := &pb.CreateWatcherResponse{}
	if strings.HasSuffix(h.Get("Content-Type"), "json") {
		protojson.Unmarshal(body, m)
	} else {
		proto.Unmarshal(body, m)
	}
	return m.GetWatcherId()
}

func decode(t *testing.T, h http.Header, body []byte, m proto.Message) {
	t.Helper()
	if h.Get("Content-Encoding") == "gzip" {
		body = gunzip(body)
	}
	var err error
	if strings.HasSuffix(h.Get("Content-Type"), "json") {
		err = protojson.Unmarshal(body, m)
	} else {
		err = proto.Unmarshal(body, m)
	}
	if err != nil {
		t.Errorf("%q: %v", body, err)
	}
}

func eventText(e *pb.FilesystemEvent) string {
	text := strings.TrimPrefix(e.GetType().String(), "EVENT_TYPE_") + " " + e.GetName()
	if x := e.GetEntry(); x != nil {
		// Size and time are those of another moment.
		text += fmt.Sprint(" ", x.GetName(), x.GetType(), x.GetPath(), x.GetMode(), x.GetPermissions(), x.GetOwner(), x.GetGroup())
	}
	return text
}

// once removes repetitions that follow each other.
func once(events []string) []string { return slices.Compact(slices.Clone(events)) }

// watched is what a stream has brought so far.
type watched struct {
	recursive bool
	mu        sync.Mutex
	events    []string // guarded by mu
	ended     bool     // guarded by mu
}

func (w *watched) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.events)
}

// shows reports whether, after the first n, there is an event, and one that begins
// with text, folders of its name aside.
func (w *watched) shows(n int, text string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	kind, name, _ := strings.Cut(text, " ")
	return slices.ContainsFunc(w.events[n:], func(e string) bool {
		f := strings.Fields(e)
		return text == "" || len(f) > 1 && f[0] == kind && path.Base(f[1]) == name
	})
}

// until waits for what has to come.
func (w *watched) until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			w.mu.Lock()
			defer w.mu.Unlock()
			t.Fatalf("waited too long for: %s; got %q", what, w.events)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// stream opens the recorded watch i, does what happened during it, and compares.
func (p *watchReplay) stream(i int, during func(*watched)) {
	p.t.Helper()
	e := p.rec.Exchanges[i]
	want := &watched{}
	want.read(p.t, header(e.ResponseHeaders), e.Response.bytes())
	ctx, cancel := context.WithCancel(p.t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, e.Method, "http://localhost"+e.Path, bytes.NewReader(e.Request.bytes()))
	if err != nil {
		p.t.Fatal(err)
	}
	req.Header = header(e.RequestHeaders)
	req.Header.Del("Content-Length")
	resp, err := p.client.Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	got := &watched{recursive: bytes.Contains(e.Request.bytes(), []byte(`"recursive":true`))}
	var wg sync.WaitGroup
	wg.Go(func() { got.follow(p.t, ctx, resp) })
	got.until(p.t, "the first event", func() bool { return got.count() > 0 || got.over() })
	during(got)
	got.until(p.t, fmt.Sprintf("%q", once(want.events)), func() bool {
		got.mu.Lock()
		defer got.mu.Unlock()
		return slices.Equal(once(got.events), once(want.events)) || got.ended && want.ended
	})
	cancel()
	wg.Wait()
	if !slices.Equal(once(got.events), once(want.events)) {
		p.t.Errorf("exchange %d: got %q, want %q", i, once(got.events), once(want.events))
	}
}

func (w *watched) over() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ended
}

// follow reads the stream until it ends or ctx does.
func (w *watched) follow(t *testing.T, ctx context.Context, resp *http.Response) {
	var raw []byte
	buf := make([]byte, 32<<10)
	for {
		n, err := resp.Body.Read(buf)
		raw = w.read(t, resp.Header, append(raw, buf[:n]...))
		if err != nil {
			if !errors.Is(err, io.EOF) && ctx.Err() == nil {
				t.Errorf("watch: %v", err)
			}
			return
		}
	}
}

// read takes whole envelopes off raw and returns the rest.
func (w *watched) read(t *testing.T, h http.Header, raw []byte) (rest []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		flags, payload, rest, ok := cutEnvelope(raw)
		if !ok {
			return raw
		}
		raw = rest
		if flags&2 != 0 {
			var end struct{ Error struct{ Code string } }
			if err := json.Unmarshal(payload, &end); err != nil {
				t.Error(err)
			}
			w.events = append(w.events, "end "+end.Error.Code)
			w.ended = true
			continue
		}
		m := &pb.WatchDirResponse{}
		decode(t, http.Header{"Content-Type": {path.Base(h.Get("Content-Type"))}}, payload, m)
		switch e := m.GetEvent().(type) {
		case *pb.WatchDirResponse_Start:
			w.events = append(w.events, "start")
		case *pb.WatchDirResponse_Keepalive:
			w.events = append(w.events, "keepalive")
		case *pb.WatchDirResponse_Filesystem:
			w.events = append(w.events, eventText(e.Filesystem))
		}
	}
}
