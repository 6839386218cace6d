//go:build linux

package code

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/agent-sandbox/sandbox-go/runtime/account"
	"github.com/agent-sandbox/sandbox-go/runtime/code/drivers"
	"github.com/agent-sandbox/sandbox-go/runtime/fault"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// Port is where clients look for a code interpreter. It is the name of a route:
// nothing listens on it.
const Port = 49999

const portHeader = "E2b-Sandbox-Port"

// Headers of our own that POST /execute understands.
const (
	// TimeoutHeader is the limit of the cell, in seconds; fractions are allowed.
	TimeoutHeader = "Sandbox-Cell-Timeout"
	// EventsHeader lists what the client knows beyond E2B: "context_restarted".
	EventsHeader = "Sandbox-Code-Events"
)

// maxBody bounds the body of a request to [Service.Handler], in bytes.
const maxBody = 32 << 20

// Routed reports whether a request is for the code interpreter: its header or its
// host names [Port], as with every other port of a sandbox.
func Routed(r *http.Request) bool {
	if p := r.Header.Get(portHeader); p != "" {
		return p == strconv.Itoa(Port)
	}
	return strings.HasPrefix(r.Host, strconv.Itoa(Port)+"-")
}

// EndpointOf is the endpoint of the HTTP API that does the same as a request to
// [Service.Handler], and is switched on and off with it.
func EndpointOf(r *http.Request) string {
	switch {
	case r.URL.Path == "/health":
		return "core.health"
	case r.URL.Path == "/execute":
		return "dev_tools.code_run"
	case r.Method == http.MethodDelete:
		return "dev_tools.code_remove"
	case strings.HasSuffix(r.URL.Path, "/restart"):
		return "dev_tools.code_restart"
	case r.Method == http.MethodPost:
		return "dev_tools.code_create"
	}
	return "dev_tools.code_contexts"
}

// contextJSON is a context on the wire.
type contextJSON struct {
	ID       string `json:"id"`
	Language string `json:"language"`
	Dir      string `json:"cwd"`
}

func (c *Context) json() contextJSON { return contextJSON{c.ID, c.Language, c.Dir} }

// Handler serves the API of E2B's code interpreter, of which [Routed] is true.
// Errors are plain text there.
func (s *Service) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", "*")
		w.Header().Set("Cache-Control", "no-store")
		writeJSON(w, "OK")
	})
	mux.HandleFunc("POST /execute", s.executeE2B)
	mux.HandleFunc("POST /contexts", s.createE2B)
	mux.HandleFunc("GET /contexts", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, s.list()) })
	mux.HandleFunc("POST /contexts/{id}/restart", func(w http.ResponseWriter, r *http.Request) { s.restart(w, r, r.PathValue("id"), text) })
	mux.HandleFunc("DELETE /contexts/{id}", func(w http.ResponseWriter, r *http.Request) { s.remove(w, r.PathValue("id"), text) })
	return mux
}

// refuse answers with an error, in the form of one of the two APIs.
type refuse func(w http.ResponseWriter, f *Failure)

func text(w http.ResponseWriter, f *Failure) {
	if f.Code != "" {
		w.Header().Set(fault.Header, f.Code)
	}
	http.Error(w, f.Text, f.Status)
}

func asJSON(w http.ResponseWriter, f *Failure) {
	fault.HTTP(w, f.Status, errdefs.Code(f.Code), f.Text)
}

// failureOf explains err.
func failureOf(err error) *Failure {
	var f *Failure
	switch {
	case errors.As(err, &f):
		return f
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return &Failure{http.StatusServiceUnavailable, "E5004", "the client is gone"}
	}
	return &Failure{http.StatusInternalServerError, "E3003", err.Error()}
}

// as is the context of a request, with the user that it names as clients of E2B do.
func (s *Service) as(r *http.Request) (context.Context, error) {
	name, _, _ := r.BasicAuth()
	u, err := s.opts.Users.Lookup(name)
	if err != nil {
		return nil, fail(http.StatusUnauthorized, "E3008", "%v", err)
	}
	return account.NewContext(r.Context(), u), nil
}

// decodeE2B reads a body as E2B's server does: an empty one is {}, and keys that are not
// known are left alone, for clients that are newer.
func decodeE2B(w http.ResponseWriter, r *http.Request, v any) error {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var long *http.MaxBytesError
	switch {
	case errors.As(err, &long):
		return fail(http.StatusRequestEntityTooLarge, "E5010", "the body is larger than %d bytes", maxBody)
	case err != nil:
		return fail(http.StatusBadRequest, "E3011", "the body cannot be read")
	case len(body) == 0:
		return nil
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fail(http.StatusBadRequest, "E3011", "malformed body: %v", err)
	}
	return nil
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	// The client may be gone; there is nobody to tell.
	_ = json.NewEncoder(w).Encode(v)
}

// executeRequest is the body of POST /execute.
type executeRequest struct {
	Code      string            `json:"code"`
	ContextID *string           `json:"context_id"`
	Language  *string           `json:"language"`
	Env       map[string]string `json:"env_vars"`
}

func (s *Service) executeE2B(w http.ResponseWriter, r *http.Request) {
	var req executeRequest
	ctx, err := s.as(r)
	if err == nil {
		err = decodeE2B(w, r, &req)
	}
	if err != nil {
		text(w, failureOf(err))
		return
	}
	cell := &Cell{Code: req.Code, Env: req.Env}
	if req.ContextID != nil {
		cell.ContextID = *req.ContextID
	}
	if req.Language != nil {
		cell.Language = *req.Language
	}
	if t := r.Header.Get(TimeoutHeader); t != "" {
		seconds, err := strconv.ParseFloat(t, 64)
		if err != nil || !(seconds > 0 && seconds < 1e9) {
			text(w, &Failure{http.StatusBadRequest, "E3011", TimeoutHeader + " is not a number of seconds"})
			return
		}
		cell.Timeout = time.Duration(seconds * float64(time.Second))
	}
	known := strings.Contains(r.Header.Get(EventsHeader), eventRestarted)
	out := &lines{w: w, control: http.NewResponseController(w)}
	err = s.Execute(ctx, cell, func(e *Event) error {
		if e.Type == eventRestarted && !known {
			return nil
		}
		return out.write(e)
	})
	switch {
	case err == nil:
	case out.begun: // it waited for its turn
		waitedInVain(err, out.write)
	default:
		text(w, failureOf(err))
	}
}

// waitedInVain ends the stream of a cell that was told to wait and then not run.
func waitedInVain(err error, write func(*Event) error) {
	ev := drivers.Failure("ContextError", failureOf(err).Text)
	// The client may be gone; there is nobody to tell.
	_ = write(&ev)
	_ = write(&Event{Type: eventEnd})
}

// lines writes events as lines of JSON, each at once.
type lines struct {
	w       http.ResponseWriter
	control *http.ResponseController
	begun   bool
}

// writeLimit is how long a client may take no byte before it counts as gone.
const writeLimit = time.Minute

func (l *lines) write(e *Event) error {
	if !l.begun {
		l.begun = true
		l.w.Header().Set("Content-Type", "application/json")
		l.w.Header().Set("Cache-Control", "no-store")
		l.w.WriteHeader(http.StatusOK)
	}
	_ = l.control.SetWriteDeadline(time.Now().Add(writeLimit))
	_, err := l.w.Write(e.Line())
	if err == nil {
		err = l.control.Flush()
	}
	_ = l.control.SetWriteDeadline(time.Time{})
	return err
}

// createRequest is the body that makes a context.
type createRequest struct {
	Language string `json:"language"`
	Dir      string `json:"cwd"`
}

func (s *Service) createE2B(w http.ResponseWriter, r *http.Request) {
	var req createRequest
	ctx, err := s.as(r)
	if err == nil {
		err = decodeE2B(w, r, &req)
	}
	if err != nil {
		text(w, failureOf(err))
		return
	}
	s.create(ctx, w, &req, text)
}

func (s *Service) create(ctx context.Context, w http.ResponseWriter, req *createRequest, no refuse) {
	c, err := s.Create(ctx, req.Language, req.Dir)
	if err != nil {
		no(w, failureOf(err))
		return
	}
	writeJSON(w, c.json())
}

func (s *Service) list() []contextJSON {
	out := []contextJSON{}
	for _, c := range s.List() {
		out = append(out, c.json())
	}
	return out
}

func (s *Service) restart(w http.ResponseWriter, r *http.Request, id string, no refuse) {
	if err := s.Restart(r.Context(), id); err != nil {
		no(w, failureOf(err))
		return
	}
	writeJSON(w, nil)
}

func (s *Service) remove(w http.ResponseWriter, id string, no refuse) {
	if err := s.Remove(id); err != nil {
		no(w, failureOf(err))
		return
	}
	writeJSON(w, nil)
}
