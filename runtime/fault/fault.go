// Package fault turns what went wrong in the runtime into what the wire says:
// a Connect error for calls, a JSON body for plain HTTP, and beside both, in
// the header [Header], the code of errdefs, so that our client need not guess
// it from text.
package fault

import (
	"encoding/json"
	"fmt"
	"net/http"

	"connectrpc.com/connect"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// Header carries the code of errdefs: as a response header of failed unary
// calls and HTTP requests, as trailing metadata of streams. Servers that are not
// ours do not send it.
const Header = "Sandbox-Error-Code"

// New returns a Connect error of kind c that carries code; an empty code
// carries none.
func New(c connect.Code, code errdefs.Code, format string, args ...any) *connect.Error {
	e := connect.NewError(c, fmt.Errorf(format, args...))
	if code != "" {
		e.Meta().Set(Header, string(code))
	}
	return e
}

// HTTP answers a plain request with status and the JSON body that envd clients
// read. An empty code sends no [Header].
func HTTP(w http.ResponseWriter, status int, code errdefs.Code, message string) {
	body, err := json.Marshal(struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	}{status, message})
	if err != nil {
		// A struct of an int and a string always encodes.
		panic(err)
	}
	h := w.Header()
	h.Set("Content-Type", "application/json; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Del("Content-Length")
	if code != "" {
		h.Set(Header, string(code))
	}
	w.WriteHeader(status)
	w.Write(append(body, '\n'))
}
