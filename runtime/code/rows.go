//go:build linux

package code

import (
	"fmt"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/agent-sandbox/sandbox-go/runtime/endpoint"
)

const (
	defaultRun = 30 * time.Second
	maxRun     = 300 * time.Second
	maxResults = 64 << 20 // bytes of results in one answer
)

// runRequest is the body of POST /code/run.
type runRequest struct {
	Code      string            `json:"code"`
	Language  string            `json:"language,omitempty"`
	ContextID string            `json:"context_id,omitempty"` // runs there; empty: in a context of its own
	Env       map[string]string `json:"env,omitempty"`
	Timeout   float64           `json:"timeout,omitempty"` // seconds, at most 300; zero: 30
}

// runResponse is the answer of POST /code/run.
type runResponse struct {
	Stdout   string           `json:"stdout"`
	Stderr   string           `json:"stderr"`
	ExitCode int              `json:"exit_code"` // 0; 1 when the code failed
	Language string           `json:"language"`
	Millis   int64            `json:"execution_time_ms"`
	Count    int              `json:"execution_count"`
	Results  []map[string]any `json:"results"`
	Error    *runError        `json:"error,omitempty"`

	size int  // of Results
	late bool // its time was over
}

// errResults is that there are more than one answer can hold.
var errResults = fail(http.StatusRequestEntityTooLarge, "E5010", "the results are larger than %d bytes; the cell was interrupted. Ask for text/event-stream", maxResults)

type runError struct {
	Name      string `json:"name"`
	Value     string `json:"value"`
	Traceback string `json:"traceback"`
}

var rowErrors = []endpoint.Error{
	{Status: 400, Code: "E3011", Summary: "malformed, or the language is not known"},
	{Status: 429, Code: "E3000", Summary: "too many contexts"},
	{Status: 500, Code: "E3016", Summary: "the interpreter of the language is not installed"},
}

var unknownContext = []endpoint.Error{{Status: 404, Code: "E3010", Summary: "no such context"}}

// Endpoints are the rows of the HTTP API.
func (s *Service) Endpoints() []endpoint.Endpoint {
	return []endpoint.Endpoint{
		{
			Name: "dev_tools.code_run", Method: http.MethodPost, Path: "/code/run",
			Summary: "Runs code in a context of its own, or in the one that is named; with Accept: text/event-stream, its events come as they happen.",
			Request: runRequest{}, Response: runResponse{},
			Errors: append([]endpoint.Error{
				{Status: 404, Code: "E3010", Summary: "no such context"},
				{Status: 408, Code: "E3001", Summary: "the code took longer than its timeout"},
				{Status: 413, Code: "E5010", Summary: "more than 64 MiB of results; ask for events"},
			}, rowErrors...),
			Handle: s.runRow,
		},
		{
			Name: "dev_tools.code_contexts", Method: http.MethodGet, Path: "/code/contexts",
			Summary: "Lists the code contexts.", Response: []contextJSON{},
			Handle: func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, s.list()) },
		},
		{
			Name: "dev_tools.code_create", Method: http.MethodPost, Path: "/code/contexts",
			Summary: "Makes a code context and starts its interpreter.", Request: createRequest{}, Response: contextJSON{}, Errors: rowErrors,
			Handle: s.createRow,
		},
		{
			Name: "dev_tools.code_restart", Method: http.MethodPost, Path: "/code/contexts/{id}/restart",
			Summary: "Starts the interpreter of a context anew.", Errors: unknownContext,
			Handle: func(w http.ResponseWriter, r *http.Request) { s.restart(w, r, idOf(r, "/restart"), asJSON) },
		},
		{
			Name: "dev_tools.code_remove", Method: http.MethodDelete, Path: "/code/contexts/{id}",
			Summary: "Ends a context.", Errors: unknownContext,
			Handle: func(w http.ResponseWriter, r *http.Request) { s.remove(w, idOf(r, ""), asJSON) },
		},
	}
}

// idOf is the id in a path, whatever router has matched it.
func idOf(r *http.Request, suffix string) string {
	return path.Base(strings.TrimSuffix(r.URL.Path, suffix))
}

func (s *Service) createRow(w http.ResponseWriter, r *http.Request) {
	var req createRequest
	if endpoint.Decode(w, r, &req) {
		s.create(r.Context(), w, &req, asJSON)
	}
}

func (s *Service) runRow(w http.ResponseWriter, r *http.Request) {
	var req runRequest
	if !endpoint.Decode(w, r, &req) {
		return
	}
	if !(req.Timeout >= 0 && req.Timeout <= maxRun.Seconds()) {
		endpoint.Refuse(w, "timeout is not between 0 and %v seconds", maxRun.Seconds())
		return
	}
	if req.ContextID != "" && req.Language != "" {
		endpoint.Refuse(w, "only one of context_id and language can be given")
		return
	}
	ctx := r.Context() // with the user that acts
	timeout := time.Duration(req.Timeout * float64(time.Second))
	if timeout == 0 {
		timeout = defaultRun
	}
	id := req.ContextID
	if id == "" {
		c, err := s.Create(ctx, req.Language, "")
		if err != nil {
			asJSON(w, failureOf(err))
			return
		}
		defer s.drop(c, "")
		id = c.ID
	}
	c, err := s.get(id)
	if err != nil {
		asJSON(w, failureOf(err))
		return
	}
	cell := &Cell{Code: req.Code, ContextID: id, Env: req.Env, Timeout: timeout}
	began := time.Now()
	if strings.Contains(r.Header.Get("Accept"), "text/event-stream") {
		out := &sse{lines: lines{w: w, control: http.NewResponseController(w)}}
		switch err := s.Execute(ctx, cell, out.write); {
		case err == nil:
		case out.begun:
			waitedInVain(err, out.write)
		default:
			asJSON(w, failureOf(err))
		}
		return
	}
	res := runResponse{Language: c.Language, Results: []map[string]any{}}
	if err := s.Execute(ctx, cell, res.add); err != nil {
		asJSON(w, failureOf(err))
		return
	}
	if res.size > maxResults {
		asJSON(w, failureOf(errResults))
		return
	}
	if res.late {
		asJSON(w, &Failure{http.StatusRequestTimeout, "E3001", res.Error.Value})
		return
	}
	res.Millis = time.Since(began).Milliseconds()
	writeJSON(w, res)
}

// add collects an event. When it fails, the cell is interrupted.
func (res *runResponse) add(e *Event) error {
	switch e.Type {
	case eventStdout:
		res.Stdout += e.Text
	case eventStderr:
		res.Stderr += e.Text
	case eventResult:
		if res.size += len(e.Line()); res.size > maxResults {
			res.Results = nil
			return errResults
		}
		res.Results = append(res.Results, e.Result)
	case eventCount:
		res.Count = e.Count
	case eventError:
		res.ExitCode, res.Error, res.late = 1, &runError{e.Name, e.Value, e.Traceback}, e.Late
	}
	return nil
}

// sse writes events in the form of server-sent events.
type sse struct{ lines }

func (s *sse) write(e *Event) error {
	if !s.begun {
		s.begun = true
		s.w.Header().Set("Content-Type", "text/event-stream")
		s.w.Header().Set("Cache-Control", "no-store")
		s.w.WriteHeader(http.StatusOK)
	}
	_ = s.control.SetWriteDeadline(time.Now().Add(writeLimit))
	_, err := fmt.Fprintf(s.w, "event: %s\ndata: %s\n", e.Type, e.Line())
	if err == nil {
		_, err = s.w.Write([]byte("\n"))
	}
	if err == nil {
		err = s.control.Flush()
	}
	_ = s.control.SetWriteDeadline(time.Time{})
	return err
}
