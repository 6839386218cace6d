//go:build linux

package server

import (
	"net/http"
	"sync"
	"time"
)

// later is the handler that build returns, which is called once: by the first
// request, or by Prepare. What RPC handlers are made of takes longer to make than
// the first answer of a server, and who waits for that may not need it.
func (s *Server) later(build func() http.Handler) http.Handler {
	h := sync.OnceValue(build)
	s.prepare = append(s.prepare, func() { h() })
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h().ServeHTTP(w, r) })
}

// Prepare makes what the first calls would have to wait for: what commands and files
// need, and after a pause the HTTP API, which takes longer than a command. It may be
// called while the server serves, and need not be called at all.
func (s *Server) Prepare(pause time.Duration) {
	for i, f := range s.prepare {
		if i == len(s.prepare)-1 {
			time.Sleep(pause)
		}
		f()
	}
}
