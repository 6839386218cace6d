//go:build linux

package httpapi

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"math"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/agent-sandbox/sandbox-go/internal/pb/process"
	"github.com/agent-sandbox/sandbox-go/runtime/endpoint"
	"github.com/agent-sandbox/sandbox-go/runtime/fault"
	"github.com/agent-sandbox/sandbox-go/runtime/process"
)

func (a *API) terminalRows() []endpoint.Endpoint {
	gone := endpoint.Error{Status: 404, Code: "E3010", Summary: "no such session"}
	return []endpoint.Endpoint{
		{
			Name: "terminal.open", Method: http.MethodPost, Path: "/pty/sessions",
			Summary: "Start a shell in a terminal. It lives until it ends, is closed, or nobody was attached to it for 30 minutes.",
			Request: TerminalRequest{}, Response: Terminal{}, Handle: a.openTerminal,
			Errors: append([]endpoint.Error{{Status: 429, Code: "E3000", Summary: "10 sessions are open"}}, startErrors...),
		},
		{
			Name: "terminal.list", Method: http.MethodGet, Path: "/pty/sessions",
			Summary: "List the sessions.", Response: TerminalList{}, Handle: a.listTerminals,
		},
		{
			Name: "terminal.close", Method: http.MethodDelete, Path: "/pty/sessions/{id}",
			Summary: "Kill all that runs in a session.", Response: TerminalClosed{}, Errors: []endpoint.Error{gone}, Handle: a.closeTerminal,
		},
		{
			Name: "terminal.attach", Method: http.MethodGet, Path: "/pty",
			Summary:  "Attach to a session with a WebSocket: output as binary messages, see below.",
			Query:    []endpoint.Param{{Name: "session_id", Type: "string", Required: true}},
			Produces: webSocket, Errors: []endpoint.Error{gone, {Status: 426, Code: "E3006", Summary: "not a WebSocket"}}, Handle: a.attach,
		},
	}
}

// TerminalRequest starts a terminal.
type TerminalRequest struct {
	Shell string            `json:"shell,omitempty" doc:"program, without it the shell of the template, bash or sh"`
	Cols  *int              `json:"cols,omitempty" doc:"1 to 65535" default:"80"`
	Rows  *int              `json:"rows,omitempty" doc:"1 to 65535" default:"24"`
	Cwd   string            `json:"cwd,omitempty"`
	Env   map[string]string `json:"env,omitempty"`
}

// Terminal is a session that was opened.
type Terminal struct {
	SessionID string `json:"session_id"`
	WSURL     string `json:"ws_url" doc:"relative to the address of this API"`
	Pid       int    `json:"pid"`
}

// session is one terminal.
type session struct {
	id    string
	run   *process.Running // not followed, for everything but output
	began time.Time
	idle  time.Duration

	mu         sync.Mutex
	cols, rows int         // guarded by mu
	attached   int         // guarded by mu
	timer      *time.Timer // guarded by mu; runs while nobody is attached; nil once it has ended
}

func (a *API) openTerminal(w http.ResponseWriter, r *http.Request) {
	var req TerminalRequest
	if !endpoint.Decode(w, r, &req) {
		return
	}
	s := &session{cols: 80, rows: 24, began: time.Now(), idle: a.opts.TerminalIdle}
	if req.Cols != nil {
		s.cols = *req.Cols
	}
	if req.Rows != nil {
		s.rows = *req.Rows
	}
	if !validSize(s.cols, s.rows) {
		endpoint.Refuse(w, "cols or rows is not from 1 to %d", math.MaxUint16)
		return
	}
	id := make([]byte, 16)
	_, _ = rand.Read(id) // cannot fail
	s.id = hex.EncodeToString(id)
	// The place is taken before the shell exists, so that no two get the last one.
	if status, text := a.reserve(s.id); status != 0 {
		fault.HTTP(w, status, "E3000", text)
		return
	}
	run, err := a.opts.Process.Begin(r.Context(), &pb.StartRequest{
		Process: &pb.ProcessConfig{Cmd: a.terminalShell(req.Shell), Cwd: proto.String(req.Cwd), Envs: req.Env},
		Pty:     &pb.PTY{Size: &pb.PTY_Size{Cols: uint32(s.cols), Rows: uint32(s.rows)}},
	})
	if err != nil {
		a.forget(s.id)
		fault.Answer(w, err)
		return
	}
	run.Close() // nobody reads yet, and what is printed is kept for whoever comes
	s.run = run
	s.detachOnce(a)
	a.mu.Lock()
	a.sessions[s.id] = s
	a.mu.Unlock()
	a.spawn(func() {
		select {
		case <-run.Done():
		case <-a.ctx.Done():
		}
		s.stopIdle()
		a.forget(s.id)
	})
	endpoint.Answer(w, Terminal{s.id, "/pty?session_id=" + s.id, run.Pid()})
}

func validSize(cols, rows int) bool {
	return cols >= 1 && cols <= math.MaxUint16 && rows >= 1 && rows <= math.MaxUint16
}

// terminalShell is the program of a terminal.
func (a *API) terminalShell(asked string) string {
	switch {
	case asked != "":
		return asked
	case a.opts.Shell != "":
		return a.opts.Shell
	}
	if _, err := os.Stat("/bin/bash"); err == nil {
		return "/bin/bash"
	}
	return "/bin/sh"
}

// reserve takes the place of one session, or says what is in the way.
func (a *API) reserve(id string) (status int, text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.closed:
		return http.StatusServiceUnavailable, "server is shutting down"
	case len(a.sessions) >= maxTerminals:
		return http.StatusTooManyRequests, fmt.Sprintf("%d terminals are open", maxTerminals)
	}
	a.sessions[id] = nil
	return 0, ""
}

func (a *API) forget(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.sessions, id)
}

// find is the session that id names; nil when there is none.
func (a *API) find(id string) *session {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.sessions[id]
}

// detachOnce starts the time after which a session is ended that nobody is
// attached to.
func (s *session) detachOnce(a *API) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timer = time.AfterFunc(s.idle, func() {
		s.mu.Lock()
		busy := s.attached > 0 || s.timer == nil
		s.mu.Unlock()
		if !busy {
			a.opts.Logger.Info("terminal ended that nobody was attached to", "pid", s.run.Pid())
			a.kill(s.run)
		}
	})
}

// attach counts one more client, detach one less.
func (s *session) attach() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.attached++; s.timer != nil {
		s.timer.Stop()
	}
}

func (s *session) detach() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.attached--; s.attached == 0 && s.timer != nil {
		s.timer.Reset(s.idle)
	}
}

// stopIdle is for a session that has ended, or that something else will end.
func (s *session) stopIdle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
}

// resize sets the size of the terminal.
func (s *session) resize(cols, rows int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.run.Resize(&pb.PTY_Size{Cols: uint32(cols), Rows: uint32(rows)}); err != nil {
		return err
	}
	s.cols, s.rows = cols, rows
	return nil
}

// TerminalInfo is one session.
type TerminalInfo struct {
	ID        string    `json:"id"`
	Pid       int       `json:"pid"`
	CreatedAt time.Time `json:"created_at"`
	Cols      int       `json:"cols"`
	Rows      int       `json:"rows"`
	Alive     bool      `json:"alive"`
	Attached  int       `json:"attached" doc:"WebSockets"`
}

// TerminalList is the answer of GET /pty/sessions.
type TerminalList struct {
	Sessions []TerminalInfo `json:"sessions" doc:"the oldest first"`
}

func (a *API) listTerminals(w http.ResponseWriter, _ *http.Request) {
	a.mu.Lock()
	var all []*session
	for _, s := range a.sessions {
		if s != nil {
			all = append(all, s)
		}
	}
	a.mu.Unlock()
	slices.SortFunc(all, func(x, y *session) int {
		return cmp.Or(x.began.Compare(y.began), cmp.Compare(x.id, y.id))
	})
	l := TerminalList{Sessions: []TerminalInfo{}}
	for _, s := range all {
		s.mu.Lock()
		l.Sessions = append(l.Sessions, TerminalInfo{s.id, s.run.Pid(), s.began.UTC(), s.cols, s.rows, s.run.End() == nil, s.attached})
		s.mu.Unlock()
	}
	endpoint.Answer(w, l)
}

// TerminalClosed is the answer of DELETE /pty/sessions/{id}.
type TerminalClosed struct {
	Status    string `json:"status" enum:"closed"`
	SessionID string `json:"session_id"`
}

func (a *API) closeTerminal(w http.ResponseWriter, r *http.Request) {
	s := a.find(endpoint.Var(r, "id"))
	if s == nil {
		noSession(w)
		return
	}
	err := s.run.Kill(r.Context())
	if err == nil {
		// Its output is complete soon after; then the place is free.
		ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
		defer cancel()
		err = s.run.Wait(ctx)
	}
	if err != nil {
		fault.Answer(w, err)
		return
	}
	a.forget(s.id)
	endpoint.Answer(w, TerminalClosed{"closed", s.id})
}

func noSession(w http.ResponseWriter) {
	fault.HTTP(w, http.StatusNotFound, "E3010", "there is no such session")
}
