package envd

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

const (
	codePort   = "49999"
	portHeader = "E2b-Sandbox-Port"
)

// Interpreter is a client of the code interpreter of the same sandbox, with the
// same token. An empty url means the runtime's own connection, which is told by a
// header what is meant; otherwise url and headers are those of port 49999.
func (c *Client) Interpreter(url string, headers http.Header) (*Client, error) {
	o := c.opts
	if url == "" {
		o.Headers = o.Headers.Clone()
	} else {
		o.URL, o.Headers = url, headers.Clone()
	}
	if o.Headers == nil {
		o.Headers = http.Header{}
	}
	o.Headers.Set(portHeader, codePort)
	return New(&o)
}

// Ask sends a request with a JSON body to an interpreter and returns the body of
// the answer. Without stream it has to arrive within the request timeout.
func (c *Client) Ask(ctx context.Context, op, method, path string, body any, headers http.Header, stream bool) (io.ReadCloser, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return nil, errdefs.Wrap("E3011", op, "", err)
	}
	cancel := func() {}
	if !stream {
		ctx, cancel = c.bounded(ctx)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(text))
	if err != nil {
		cancel()
		return nil, errdefs.Wrap("E5001", op, "", err)
	}
	for k, v := range headers {
		req.Header[k] = v
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := c.http.Do(req)
	if err != nil {
		defer cancel() // after the error was explained by ctx
		return nil, wrapTransport(ctx, op, err)
	}
	answer := &answerBody{ctx: ctx, op: op, body: res.Body, done: cancel}
	if res.StatusCode != http.StatusOK {
		defer answer.Close()
		return nil, interpreterError(op, res)
	}
	return answer, nil
}

// interpreterError explains a refusal of an interpreter, ours or not.
func interpreterError(op string, res *http.Response) error {
	_, ours := hinted(res.Header)
	err := httpError(op, res)
	if !ours && res.StatusCode == http.StatusNotFound {
		return errdefs.Wrap("E3010", op, "no such context", err)
	}
	if !ours && res.StatusCode == http.StatusBadGateway {
		return errdefs.Wrap("E8004", op, "the sandbox has no code interpreter", err)
	}
	return err
}

// answerBody is the body of an answer, whose failures have codes.
type answerBody struct {
	ctx  context.Context // of the one request
	op   string
	body io.ReadCloser
	done func()
}

func (b *answerBody) Read(p []byte) (int, error) {
	n, err := b.body.Read(p)
	if err != nil && err != io.EOF {
		err = wrapTransport(b.ctx, b.op, err)
	}
	return n, err
}

// Close ends the request. It is idempotent.
func (b *answerBody) Close() error {
	b.body.Close()
	b.done()
	return nil
}
