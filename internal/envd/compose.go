package envd

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// Compose joins files, in order, into destination and removes them. Servers
// that cannot do it fail in ways of their own: another way must be at hand.
func (c *Client) Compose(ctx context.Context, sources []string, destination string) error {
	const op = "join files"
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	body, err := json.Marshal(map[string]any{"source_paths": sources, "destination": destination})
	if err != nil {
		return errdefs.Wrap("E4006", op, "", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+"/files/compose", bytes.NewReader(body))
	if err != nil {
		return errdefs.Wrap("E5001", op, "", err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := c.http.Do(req)
	if err != nil {
		return wrapTransport(ctx, op, err)
	}
	defer drain(res.Body)
	if res.StatusCode != http.StatusOK {
		return httpError(op, res)
	}
	var made struct {
		Path string `json:"path"`
	}
	answer, err := io.ReadAll(io.LimitReader(res.Body, maxHeader))
	if err != nil {
		return wrapTransport(ctx, op, err)
	}
	if json.Unmarshal(answer, &made) != nil || made.Path == "" {
		return protocolError(op, "the server's answer does not name the file")
	}
	return nil
}
