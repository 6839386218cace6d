//go:build linux

package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"
	"unicode/utf8"

	pb "github.com/agent-sandbox/sandbox-go/internal/pb/process"
	"github.com/agent-sandbox/sandbox-go/runtime/endpoint"
	"github.com/agent-sandbox/sandbox-go/runtime/fault"
	"github.com/agent-sandbox/sandbox-go/runtime/process"
)

// StartEvent is the first event of a stream, "start".
type StartEvent struct {
	Pid int `json:"pid"`
}

// OutputEvent is a piece of output, "stdout" or "stderr", as it came.
type OutputEvent struct {
	Data   string `json:"data" doc:"as text; bytes that are none are replaced"`
	Base64 []byte `json:"data_base64,omitempty" doc:"the exact bytes, where they are not text"`
}

// LostEvent says that output between two events is not kept any more, "lost".
type LostEvent struct {
	Stdout uint64 `json:"stdout" doc:"bytes"`
	Stderr uint64 `json:"stderr" doc:"bytes"`
}

// ErrorEvent says what is wrong, "error".
type ErrorEvent struct {
	Error string `json:"error"`
	Code  string `json:"code,omitempty" doc:"of docs/errors.md"`
}

// ExitEvent is the last event of a process, "exit".
type ExitEvent struct {
	ExitCode int    `json:"exit_code" doc:"-1 when a signal ended it"`
	Status   string `json:"status"`
}

func (a *API) shellStream(w http.ResponseWriter, r *http.Request) {
	if p, ok := a.shellPlan(w, r); ok {
		a.stream(w, r, p)
	}
}

func (a *API) execStream(w http.ResponseWriter, r *http.Request) {
	if p, ok := execPlan(w, r); ok {
		a.stream(w, r, p)
	}
}

// stream runs p and tells of it while it runs. All that was started is killed
// when the client goes away. A client that comes back, and says with the id of
// the last event what it knows, gets what is left of the same process; nothing
// is started a second time.
func (a *API) stream(w http.ResponseWriter, r *http.Request, p *plan) {
	if id := lastEvent(r); id != "" {
		a.resume(w, r, id)
		return
	}
	run, err := a.begin(r.Context(), p)
	if err != nil {
		fault.Answer(w, err)
		return
	}
	defer run.Close()
	defer p.feed(r.Context(), run)()
	var late atomic.Bool
	timer := time.AfterFunc(p.limit, func() {
		if !run.Exited() { // else it was in time, however late it is told
			late.Store(true)
			a.kill(run)
		}
	})
	defer timer.Stop()
	f := &follower{api: a, run: run, events: endpoint.NewEvents(w), at: run.Position()}
	f.ended = func() error {
		if !late.Load() {
			return nil
		}
		return f.fail(timedOut(p.limit))
	}
	if !f.follow(r.Context()) {
		a.kill(run)
	}
}

// kill ends a tree that nobody asks for any more.
func (a *API) kill(run *process.Running) {
	if err := run.Kill(a.ctx); err != nil {
		a.opts.Logger.Warn("process tree not ended", "pid", run.Pid(), "err", err)
	}
}

// lastEvent is the id of the last event that the client has seen.
func lastEvent(r *http.Request) string {
	if id := r.Header.Get("Last-Event-Id"); id != "" {
		return id
	}
	return r.URL.Query().Get("last_event_id")
}

// resume goes on after the event with this id.
func (a *API) resume(w http.ResponseWriter, r *http.Request, id string) {
	var pid int
	var at process.Position
	if n, err := fmt.Sscanf(id, "%d.%d.%d.%d", &pid, &at.Serial, &at.Stdout, &at.Stderr); n != 4 || err != nil || pid <= 0 || eventID(pid, at) != id {
		endpoint.Refuse(w, "Last-Event-ID is not the id of an event of this server")
		return
	}
	run, lost, err := a.opts.Process.FollowFrom(pid, at)
	if err != nil {
		fault.Answer(w, err)
		return
	}
	defer run.Close()
	f := &follower{api: a, run: run, events: endpoint.NewEvents(w), at: run.Position()}
	f.lost = LostEvent{lost.Stdout, lost.Stderr}
	f.follow(r.Context())
}

// processStream follows a process that was started before.
func (a *API) processStream(w http.ResponseWriter, r *http.Request) {
	pid, ok := pidOf(w, r)
	if !ok {
		return
	}
	if id := lastEvent(r); id != "" {
		a.resume(w, r, id)
		return
	}
	run, err := a.opts.Process.Follow("connect", byPid(pid))
	if err != nil {
		fault.Answer(w, err)
		return
	}
	defer run.Close()
	f := &follower{api: a, run: run, events: endpoint.NewEvents(w), at: run.Position()}
	f.lost = LostEvent{f.at.Stdout, f.at.Stderr}
	f.follow(r.Context())
}

func byPid(pid int) *pb.ProcessSelector {
	return &pb.ProcessSelector{Selector: &pb.ProcessSelector_Pid{Pid: uint32(pid)}}
}

// follower tells one client what a process prints and how it ends.
type follower struct {
	api    *API
	run    *process.Running
	events *endpoint.Events
	at     process.Position // of what was told
	lost   LostEvent        // what cannot be told
	ended  func() error     // says what is to be told before the end; nil: nothing

	stdout, stderr carry
}

// carry is the beginning of a character of which the rest has not come.
type carry []byte

// follow reports whether the client was there to the end.
func (f *follower) follow(ctx context.Context) bool {
	if f.send("start", StartEvent{f.run.Pid()}) != nil {
		return false
	}
	if f.lost != (LostEvent{}) && f.send("lost", f.lost) != nil {
		return false
	}
	for {
		wait, cancel := context.WithTimeout(ctx, f.api.opts.Heartbeat)
		e, err := f.run.Next(wait)
		quiet := wait.Err() != nil
		cancel()
		switch {
		case err == nil:
			end := e.GetEnd()
			if end != nil {
				return f.finish(end) == nil
			}
			err = f.output(e.GetData())
		case ctx.Err() != nil:
			return false
		case quiet:
			err = f.events.Beat()
		default:
			_ = f.fail(err) // the end of the stream is what counts
			return true
		}
		if err != nil {
			return false
		}
	}
}

func (f *follower) output(d *pb.ProcessEvent_DataEvent) error {
	name, kept, b := "stdout", &f.stdout, d.GetStdout()
	if len(d.GetPty()) > 0 {
		b = d.GetPty()
	}
	count := &f.at.Stdout
	if len(d.GetStderr()) > 0 {
		name, kept, count, b = "stderr", &f.stderr, &f.at.Stderr, d.GetStderr()
	}
	b = append(*kept, b...)
	n := len(b) - unfinished(b)
	*kept = append(carry(nil), b[n:]...)
	return f.piece(name, count, b[:n])
}

func (f *follower) piece(name string, count *uint64, b []byte) error {
	if len(b) == 0 {
		return nil
	}
	*count += uint64(len(b))
	text, exact := asText(b)
	return f.send(name, OutputEvent{text, exact})
}

// finish tells what is left and how the process ended.
func (f *follower) finish(end *pb.ProcessEvent_EndEvent) error {
	if err := f.piece("stdout", &f.at.Stdout, f.stdout); err != nil {
		return err
	}
	if err := f.piece("stderr", &f.at.Stderr, f.stderr); err != nil {
		return err
	}
	if f.ended != nil {
		if err := f.ended(); err != nil {
			return err
		}
	}
	status := end.GetStatus()
	if end.GetError() != "" {
		status = end.GetError()
	}
	return f.send("exit", ExitEvent{int(end.GetExitCode()), status})
}

func (f *follower) fail(err error) error {
	_, code, text := fault.Of(err)
	return f.send("error", ErrorEvent{text, string(code)})
}

func (f *follower) send(name string, v any) error {
	return f.events.Send(name, eventID(f.run.Pid(), f.at), v)
}

// eventID says what was told up to an event: from here on the stream can be
// resumed.
func eventID(pid int, at process.Position) string {
	return fmt.Sprintf("%d.%d.%d.%d", pid, at.Serial, at.Stdout, at.Stderr)
}

// unfinished is how many bytes at the end of b may be the beginning of a
// character.
func unfinished(b []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(b); n++ {
		if c := b[len(b)-n]; utf8.RuneStart(c) {
			if c >= utf8.RuneSelf && !utf8.FullRune(b[len(b)-n:]) {
				return n
			}
			return 0
		}
	}
	return 0
}
