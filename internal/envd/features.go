package envd

import (
	"context"
	"net/http"
	"strings"
)

// featuresHeader is what a runtime of ours adds to the answer of GET /health
// (docs/protocol.md, "What we add").
const featuresHeader = "Sandbox-Features"

// Features is what a runtime can do beyond the envd protocol. A runtime that is
// not ours has none of them.
type Features struct {
	Channels bool // a process can be handed a connection of its own
	Ports    bool // connections to ports inside
	Input    bool // streamed input arrives as it is sent
	Code     bool // it has a code interpreter of ours
}

// Features asks the runtime what it can do, once for each client: an answer is
// kept, a failure is not.
func (c *Client) Features(ctx context.Context) (Features, error) {
	if f := c.features.Load(); f != nil {
		return *f, nil
	}
	h, err := c.health(ctx)
	if err != nil {
		return Features{}, err
	}
	f := parseFeatures(h)
	c.features.Store(&f)
	return f, nil
}

func parseFeatures(h http.Header) Features {
	var f Features
	for _, line := range h.Values(featuresHeader) {
		for name := range strings.SplitSeq(line, ",") {
			switch strings.TrimSpace(name) {
			case "channels":
				f.Channels = true
			case "ports":
				f.Ports = true
			case "input":
				f.Input = true
			case "code":
				f.Code = true
			}
		}
	}
	return f
}
