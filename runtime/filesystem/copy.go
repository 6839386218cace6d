//go:build linux

package filesystem

import (
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"time"
)

const (
	// stallTimeout ends a download whose client takes less than copySize in so
	// long.
	stallTimeout = 60 * time.Second
	// copySize is how much is moved at a time. With the 32 KiB of package io a
	// transfer over a socket takes about a third longer.
	copySize = 256 << 10
)

var copyBuffers = sync.Pool{New: func() any { return new([copySize]byte) }}

// copyBody writes what r yields to f.
func copyBody(f *os.File, r io.Reader) error {
	buf := copyBuffers.Get().(*[copySize]byte)
	defer copyBuffers.Put(buf)
	_, err := io.CopyBuffer(struct{ io.Writer }{f}, r, buf[:])
	return err
}

// within returns what ends the contents of one file with an error where there is
// no room for them.
func (s *Service) within() func(content io.Reader) io.Reader {
	sized := s.guard.sized()
	return func(content io.Reader) io.Reader {
		content = sized(content)
		if s.opts.Room == nil {
			return content
		}
		return &roomReader{content, s.opts.Room}
	}
}

type roomReader struct {
	r    io.Reader
	room func(n int) error
}

// Read reads what there is room for.
func (r *roomReader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	if n > 0 {
		if full := r.room(n); full != nil {
			return 0, full
		}
	}
	return n, err
}

// patientWriter gives up on a client that stops to take what is sent.
type patientWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	tcp     bool
}

func newPatientWriter(w http.ResponseWriter, r *http.Request) *patientWriter {
	addr, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return &patientWriter{ResponseWriter: w, control: http.NewResponseController(w), tcp: addr != nil && addr.Network() == "tcp"}
}

func (w *patientWriter) Write(p []byte) (int, error) {
	w.extend()
	return w.ResponseWriter.Write(p)
}

// ReadFrom sends r piece by piece. Over TCP the kernel moves the bytes of files
// by itself.
func (w *patientWriter) ReadFrom(r io.Reader) (sent int64, err error) {
	in, limited := r.(*io.LimitedReader)
	from, able := w.ResponseWriter.(io.ReaderFrom)
	if !limited || !able || !w.tcp {
		buf := copyBuffers.Get().(*[copySize]byte)
		defer copyBuffers.Put(buf)
		return io.CopyBuffer(struct{ io.Writer }{w}, r, buf[:])
	}
	for {
		w.extend()
		n, err := from.ReadFrom(&io.LimitedReader{R: in.R, N: min(in.N, copySize)})
		in.N -= n
		sent += n
		if err != nil || n == 0 {
			return sent, err
		}
	}
}

// extend gives the client more time. Not every writer has deadlines; without one
// the server's own limits hold.
func (w *patientWriter) extend() { _ = w.control.SetWriteDeadline(time.Now().Add(stallTimeout)) }

func (w *patientWriter) done() { _ = w.control.SetWriteDeadline(time.Time{}) }
