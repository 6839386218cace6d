//go:build linux

package server

import (
	"net/http"
	"sync"
)

// later is the handler that build returns, which is called once: by the first
// request, or by Prepare. What RPC handlers are made of takes longer to make than
// the first answer of a server, and who waits for that may not need it.
func (s *Server) later(build func() http.Handler) http.Handler {
	h := sync.OnceValue(build)
	s.prepare = append(s.prepare, func() { h() })
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h().ServeHTTP(w, r) })
}

// Prepare makes what the first calls would have to wait for. It may be called while
// the server serves, and need not be called at all.
func (s *Server) Prepare() {
	for _, f := range s.prepare {
		f()
	}
}
