//go:build linux

package server

import (
	"net/http"

	"github.com/agent-sandbox/sandbox-go/runtime/process"
)

// withTail lets the last message of a stream, its end and that of the answer
// leave together: each alone would wake the client.
func withTail(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t := &tailWriter{ResponseWriter: w}
		next.ServeHTTP(t, r.WithContext(process.WithLast(r.Context(), func() { t.last = true })))
	})
}

// tailWriter does not flush once the last message is under way. Like every
// ResponseWriter it is for one goroutine.
type tailWriter struct {
	http.ResponseWriter
	last bool
}

// Flush implements http.Flusher.
func (t *tailWriter) Flush() {
	if f, ok := t.ResponseWriter.(http.Flusher); ok && !t.last {
		f.Flush()
	}
}

// Unwrap is what http.ResponseController looks for.
func (t *tailWriter) Unwrap() http.ResponseWriter { return t.ResponseWriter }
