//go:build linux

package server

import (
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/agent-sandbox/sandbox-go/runtime/process"
)

// patient gives up on clients that stop in the middle of a body. Every byte
// buys them more time, and streams that have nothing to say are not bodies
// being read: the deadline is gone once the request has been read.
func patient(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body != nil && r.Body != http.NoBody {
			body := &patientBody{ReadCloser: r.Body, control: http.NewResponseController(w)}
			r = r.WithContext(process.WithBody(r.Context(), body))
			r.Body = body
			next.ServeHTTP(w, r)
			leftUnread(r.Context(), !body.over())
			return
		}
		next.ServeHTTP(w, r)
	})
}

// patientBody is a [process.Body].
type patientBody struct {
	io.ReadCloser
	control *http.ResponseController

	mu      sync.Mutex
	endless bool // guarded by mu
	aborted bool // guarded by mu
	ended   bool // guarded by mu; there is nothing more to read

	deadline time.Time // of the connection, guarded by mu; zero: none
}

func (b *patientBody) Read(p []byte) (int, error) {
	b.wait(bodyTimeout)
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.mu.Lock()
		b.ended = err == io.EOF
		b.mu.Unlock()
		// Also ends the wait for the next request on the connection, which has
		// its own limit.
		b.wait(0)
	}
	return n, err
}

// Close lifts the deadline of a body that was not read to its end.
func (b *patientBody) Close() error {
	b.wait(0)
	return b.ReadCloser.Close()
}

// over reports whether the body was read to its end.
func (b *patientBody) over() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ended
}

// Endless implements [process.Body].
func (b *patientBody) Endless() {
	b.mu.Lock()
	b.endless = true
	b.mu.Unlock()
	b.wait(0)
}

// Abort implements [process.Body].
func (b *patientBody) Abort() {
	b.mu.Lock()
	b.aborted = true
	b.mu.Unlock()
	b.wait(0)
}

// wait lets reads take d, or any time when it is 0. That this fails means that
// the connection is gone; the read will say so.
//
// Moving a deadline costs more than reading a small message, so it is moved when
// that matters: a read may take up to an eighth of d less.
func (b *patientBody) wait(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var deadline time.Time
	switch {
	case b.aborted && !b.ended:
		// With the body read, this would end the connection for the next request.
		deadline = time.Unix(1, 0)
	case d > 0 && !b.endless:
		now := time.Now()
		if b.deadline.Sub(now) > d-d/8 {
			return
		}
		deadline = now.Add(d)
	}
	if deadline.IsZero() && b.deadline.IsZero() {
		return
	}
	b.deadline = deadline
	_ = b.control.SetReadDeadline(deadline)
}
