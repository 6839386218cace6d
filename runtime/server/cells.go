//go:build linux

package server

import (
	"net/http"

	"github.com/agent-sandbox/sandbox-go/runtime/code"
	"github.com/agent-sandbox/sandbox-go/templates/model"
)

func interpreter(t *model.Template) model.Interpreter {
	if t == nil {
		return model.Interpreter{}
	}
	return t.Interpreter
}

// cells serves requests for the port of the code interpreter, which is the name of
// a route here, and hands all others on.
func (s *Server) cells(next http.Handler) http.Handler {
	h := s.switched(code.EndpointOf, s.code.Handler())
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if code.Routed(r) {
			h.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}
