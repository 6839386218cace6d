//go:build linux

package server

import (
	"errors"
	"io"
	"net/http"
	"time"
)

// patient gives up on clients that stop in the middle of a body. Every byte
// buys them more time, and streams that have nothing to say are not bodies
// being read: the deadline is gone once the request has been read.
func patient(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body != nil && r.Body != http.NoBody {
			r.Body = &patientBody{ReadCloser: r.Body, control: http.NewResponseController(w)}
		}
		next.ServeHTTP(w, r)
	})
}

type patientBody struct {
	io.ReadCloser
	control *http.ResponseController
}

func (b *patientBody) Read(p []byte) (int, error) {
	b.deadline(time.Now().Add(bodyTimeout))
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		// Also ends the wait for the next request on the connection, which has
		// its own limit.
		b.deadline(time.Time{})
	}
	return n, err
}

// Close lifts the deadline of a body that was not read to its end.
func (b *patientBody) Close() error {
	b.deadline(time.Time{})
	return b.ReadCloser.Close()
}

func (b *patientBody) deadline(t time.Time) {
	if err := b.control.SetReadDeadline(t); err != nil && !errors.Is(err, http.ErrNotSupported) {
		// The connection is gone; the read will say so.
		return
	}
}
