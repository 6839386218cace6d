package envd

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// Body is the content of a file as it arrives. Reads fail with E5003 where the
// connection breaks, never with a short but regular end.
type Body struct {
	Size int64 // of what follows; -1: unknown

	op    string
	ctx   context.Context // of this one transfer
	alarm *stall
	body  io.ReadCloser
	read  int64
}

// Read implements io.Reader.
func (b *Body) Read(p []byte) (int, error) {
	b.alarm.arm()
	n, err := b.body.Read(p)
	b.alarm.disarm()
	b.read += int64(n)
	if err == nil {
		return n, nil
	}
	if err == io.EOF {
		if b.Size >= 0 && b.read < b.Size {
			return n, wrapTransport(b.ctx, b.op, io.ErrUnexpectedEOF)
		}
		return n, io.EOF
	}
	return n, wrapTransport(b.ctx, b.op, err)
}

// Close ends the transfer. It is idempotent.
func (b *Body) Close() error {
	if b.Size >= 0 && b.read == b.Size {
		drain(b.body)
	} else {
		b.body.Close()
	}
	b.alarm.stop()
	return nil
}

// ReadFile reads path from offset on: length bytes, or to the end when length
// is negative. Reading from an offset at or after the end gives an empty body.
// ctx bounds the whole transfer.
func (c *Client) ReadFile(ctx context.Context, path string, offset, length int64) (*Body, error) {
	const op = "read file"
	if length == 0 {
		return nil, errdefs.New("E4000", op, "a read of no bytes needs no request")
	}
	ctx, alarm := c.watched(ctx)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.fileURL(path), nil)
	if err != nil {
		alarm.stop()
		return nil, errdefs.Wrap("E4006", op, "", err)
	}
	switch {
	case length > 0:
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", offset, offset+length-1))
	case offset > 0:
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", offset))
	}
	alarm.arm()
	res, err := c.http.Do(req)
	alarm.disarm()
	if err != nil {
		defer alarm.stop()
		return nil, wrapTransport(ctx, op, err)
	}
	b := &Body{Size: res.ContentLength, op: op, ctx: ctx, alarm: alarm, body: res.Body}
	ranged := req.Header.Get("Range") != ""
	switch {
	case res.StatusCode == http.StatusRequestedRangeNotSatisfiable && ranged:
		b.Close()
		return &Body{op: op, ctx: ctx, alarm: alarm, body: http.NoBody}, nil
	case res.StatusCode == http.StatusOK && !ranged:
		return b, nil
	case res.StatusCode == http.StatusPartialContent && ranged:
		if !strings.HasPrefix(res.Header.Get("Content-Range"), fmt.Sprintf("bytes %d-", offset)) {
			b.Close()
			return nil, protocolError(op, "the server sent another part of the file than the one asked for")
		}
		return b, nil
	case res.StatusCode == http.StatusOK:
		return c.skip(b, offset, length)
	}
	err = httpError(op, res)
	b.Close()
	return nil, err
}

// skip makes a range of a whole file, for servers without ranges.
func (c *Client) skip(b *Body, offset, length int64) (*Body, error) {
	if _, err := io.CopyN(io.Discard, b, offset); err != nil && err != io.EOF {
		b.Close()
		return nil, err
	}
	rest := &Body{Size: -1, op: b.op, ctx: b.ctx, alarm: b.alarm, body: b}
	if length > 0 {
		rest.body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(b, length), b}
	}
	return rest, nil
}

// WriteFile replaces path by what r yields. size is the number of bytes, or -1.
// headers are added to the request; the head of the answer comes back. ctx
// bounds the whole transfer.
func (c *Client) WriteFile(ctx context.Context, path string, r io.Reader, size int64, headers http.Header) (http.Header, error) {
	return c.upload(ctx, c.fileURL(path), "application/octet-stream", r, size, headers)
}

// Part is one file of a [Client.WriteFiles]. Its path holds no line ends.
type Part struct {
	Path string
	Open func() (io.ReadCloser, error)
}

// WriteFiles writes several files in one request, in order.
func (c *Client) WriteFiles(ctx context.Context, parts []Part) error {
	pr, pw := io.Pipe()
	mw := multipart.NewWriter(pw)
	var wg sync.WaitGroup
	wg.Go(func() { pw.CloseWithError(writeParts(mw, parts)) })
	_, err := c.upload(ctx, c.base+"/files", mw.FormDataContentType(), pr, -1, nil)
	pr.CloseWithError(io.ErrClosedPipe)
	wg.Wait()
	return err
}

func writeParts(mw *multipart.Writer, parts []Part) error {
	quote := strings.NewReplacer("\\", "\\\\", `"`, "\\\"")
	for _, p := range parts {
		h := textproto.MIMEHeader{}
		h.Set("Content-Disposition", `form-data; name="file"; filename="`+quote.Replace(p.Path)+`"`)
		h.Set("Content-Type", "application/octet-stream")
		w, err := mw.CreatePart(h)
		if err != nil {
			return err
		}
		if err := copyPart(w, p); err != nil {
			return err
		}
	}
	return mw.Close()
}

func copyPart(w io.Writer, p Part) error {
	f, err := p.Open()
	if err != nil {
		return &localError{err}
	}
	defer f.Close()
	if _, err := io.Copy(w, localReader{f}); err != nil {
		return err
	}
	return nil
}

func (c *Client) upload(ctx context.Context, to, contentType string, r io.Reader, size int64, headers http.Header) (http.Header, error) {
	const op = "write file"
	ctx, alarm := c.watched(ctx)
	defer alarm.stop()
	body := &progress{r: r, alarm: alarm}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to, body)
	if err != nil {
		return nil, errdefs.Wrap("E4006", op, "", err)
	}
	req.ContentLength = size
	if size == 0 {
		req.Body = http.NoBody
	}
	for k, v := range headers {
		req.Header[k] = v
	}
	req.Header.Set("Content-Type", contentType)
	alarm.arm()
	res, err := c.http.Do(req)
	alarm.disarm()
	if err != nil {
		// The reader's own failure is the caller's, not the connection's.
		if rerr := body.failure(); rerr != nil && ctx.Err() == nil {
			return nil, rerr
		}
		return nil, wrapTransport(ctx, op, err)
	}
	defer drain(res.Body)
	if res.StatusCode != http.StatusOK {
		return nil, httpError(op, res)
	}
	var written []json.RawMessage
	if err := json.NewDecoder(io.LimitReader(res.Body, maxAnswer)).Decode(&written); err != nil {
		return nil, wrapAnswer(ctx, op, err)
	}
	if len(written) == 0 {
		return nil, protocolError(op, "the server wrote nothing")
	}
	return res.Header, nil
}

func wrapAnswer(ctx context.Context, op string, err error) error {
	if isIO(err) || ctx.Err() != nil {
		return wrapTransport(ctx, op, err)
	}
	return protocolError(op, "the server's answer is not the list of files written")
}

func (c *Client) fileURL(path string) string {
	return c.base + "/files?" + url.Values{"path": {path}}.Encode()
}

// localError marks a failure of the caller's own reader.
type localError struct{ err error }

func (e *localError) Error() string { return e.err.Error() }
func (e *localError) Unwrap() error { return e.err }

type localReader struct{ r io.Reader }

func (l localReader) Read(p []byte) (int, error) {
	n, err := l.r.Read(p)
	if err != nil && err != io.EOF {
		err = &localError{err}
	}
	return n, err
}

// progress feeds a request. While the reader makes us wait the clock stands;
// while the server does, it runs.
type progress struct {
	r     io.Reader
	alarm *stall

	mu  sync.Mutex
	err error // guarded by mu; of the reader
}

func (p *progress) Read(b []byte) (int, error) {
	p.alarm.disarm()
	n, err := p.r.Read(b)
	p.alarm.arm()
	if err != nil && err != io.EOF {
		p.mu.Lock()
		p.err = err
		p.mu.Unlock()
	}
	return n, err
}

func (p *progress) failure() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// stall ends a transfer that makes no progress for the request timeout.
type stall struct {
	after  time.Duration
	timer  *time.Timer
	cancel context.CancelCauseFunc
}

// watched is ctx with an alarm for pauses. The alarm must be stopped.
func (c *Client) watched(ctx context.Context) (context.Context, *stall) {
	ctx, cancel := context.WithCancelCause(ctx)
	s := &stall{after: c.timeout, cancel: cancel}
	s.timer = time.AfterFunc(time.Hour, func() { cancel(&requestTimeout{after: s.after}) })
	s.timer.Stop()
	return ctx, s
}

func (s *stall) arm() {
	if s.after > 0 {
		s.timer.Reset(s.after)
	}
}

func (s *stall) disarm() { s.timer.Stop() }

func (s *stall) stop() {
	s.timer.Stop()
	s.cancel(context.Canceled)
}
