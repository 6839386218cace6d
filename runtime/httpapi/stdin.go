//go:build linux

package httpapi

import (
	"net/http"

	"connectrpc.com/connect"

	"github.com/agent-sandbox/sandbox-go/runtime/endpoint"
	"github.com/agent-sandbox/sandbox-go/runtime/fault"
	"github.com/agent-sandbox/sandbox-go/runtime/process"
)

// InputRequest is what a process is to read.
type InputRequest struct {
	Data  string `json:"data,omitempty" doc:"text"`
	Bytes []byte `json:"data_base64,omitempty" doc:"bytes, in place of data"`
	Close bool   `json:"close,omitempty" doc:"ends the input after that"`
}

// Written is the answer of POST /process/{pid}/stdin.
type Written struct {
	Pid    int  `json:"pid"`
	Bytes  int  `json:"bytes" doc:"written by this request"`
	Closed bool `json:"closed" doc:"whether this request has ended the input"`
}

func (a *API) processInput(w http.ResponseWriter, r *http.Request) {
	pid, ok := pidOf(w, r)
	if !ok {
		return
	}
	var req InputRequest
	if !endpoint.Decode(w, r, &req) {
		return
	}
	if req.Data != "" && req.Bytes != nil {
		endpoint.Refuse(w, "only one of data and data_base64 can be given")
		return
	}
	b := req.Bytes
	if b == nil {
		b = []byte(req.Data)
	}
	run, err := a.opts.Process.Follow("input", byPid(pid))
	if err == nil {
		run.Close()
		err = feed(r, run, b, req.Close)
	}
	if err != nil {
		fault.Answer(w, err)
		return
	}
	endpoint.Answer(w, Written{pid, len(b), req.Close})
}

// feed writes b, and ends the input where end says so.
func feed(r *http.Request, run *process.Running, b []byte, end bool) error {
	select {
	case <-run.Done():
		return fault.New(connect.CodeNotFound, "E3010", "process with pid %d has ended", run.Pid())
	default:
	}
	if !run.TakesInput() {
		return fault.New(connect.CodeInternal, "E3013", "process with pid %d has no standard input, or it is closed", run.Pid())
	}
	if end && run.Terminal() {
		return fault.New(connect.CodeInvalidArgument, "E3011", "the input of a terminal has no end; send Ctrl-D, %q, instead", "\x04")
	}
	var err error
	if len(b) > 0 {
		err = run.Write(r.Context(), b)
	}
	if err == nil && end {
		err = run.CloseInput(r.Context())
	}
	return err
}
