package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

const (
	maxAnswer = 16 << 20 // bytes of an answer; a page of 100 sandboxes has some 100 KiB

	firstPause = 200 * time.Millisecond
	maxPause   = 5 * time.Second
	maxWait    = 30 * time.Second // that a service may ask for
)

// A route is one request and what its failures mean.
type route struct {
	op       string
	method   string
	path     string // of the route; nothing in it needs escaping but the name
	name     string // ends the path, escaped; empty: none
	query    url.Values
	id       string // of the sandbox it is about; empty: none
	template string // for messages
	create   bool   // it makes something
	body     bool   // it carries options that may be refused
	slow     bool   // it waits for a machine to start

	requestID string        // identity of the creation; empty: none
	places    string        // of the creation, as the header says them; empty: none
	grace     time.Duration // for an answer after ctx has ended
}

// answer is what is left of a successful response.
type answer struct {
	status int
	header http.Header
}

// do sends a request, again where that is safe, and decodes the answer into
// out. A nil out wants an empty answer. repeated says that an earlier attempt
// may have had its effect.
func (c *Client) do(ctx context.Context, rt *route, in, out any) (a *answer, repeated bool, err error) {
	var payload []byte
	if in != nil {
		if payload, err = json.Marshal(in); err != nil {
			return nil, false, errdefs.Wrap("E2011", rt.op, "the request cannot be written as JSON", err)
		}
	}
	if ctx.Err() != nil {
		return nil, false, c.broken(ctx, rt, ctx.Err(), false)
	}
	for n := 0; ; n++ {
		if a, err = c.once(ctx, rt, payload, out); err == nil {
			return a, repeated, nil
		}
		wait, ok := c.again(rt, err, n)
		if !ok || ctx.Err() != nil {
			return nil, repeated, err
		}
		repeated = repeated || !Undone(err)
		c.log.DebugContext(ctx, "request repeated", "op", rt.op, "attempt", n+1, "duration", wait, "err", err)
		if perr := c.pause(ctx, wait); perr != nil {
			return nil, repeated, err
		}
	}
}

// again decides whether to repeat a request that failed, and after what wait. What
// may have had an effect is repeated only when a second effect is none.
func (c *Client) again(rt *route, err error, n int) (time.Duration, bool) {
	e, ok := errors.AsType[*Error](err)
	if !ok || n >= c.o.Retries || e.RetryAfter > maxWait {
		return 0, false
	}
	code := errdefs.CodeOf(err)
	switch code {
	case "E5001", "E5003", "E8010", "E8011":
	case "E8000", "E2000", "E5002":
		if e.Status < 500 { // a refusal, or a timeout of ours
			return 0, false
		}
	default:
		return 0, false
	}
	safe := rt.method == http.MethodGet || rt.method == http.MethodDelete
	if !safe && !e.Undone {
		return 0, false
	}
	return max(e.RetryAfter, backoff(n)), true
}

// backoff is a random wait below a bound that doubles, so that clients that
// failed together do not come back together.
func backoff(n int) time.Duration {
	return rand.N(min(firstPause<<min(n, 10), maxPause)) + time.Millisecond
}

func (c *Client) pause(ctx context.Context, d time.Duration) error {
	if c.testOnlyPause != nil {
		return c.testOnlyPause(ctx, d)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// bounded is ctx with the timeout of the route.
func (c *Client) bounded(ctx context.Context, rt *route) (context.Context, context.CancelFunc) {
	d := c.o.Timeout
	if rt.slow {
		d = c.o.SlowTimeout
	}
	if d < 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, d, &requestTimeout{after: d})
}

// held is ctx, but for ending a while later.
func held(ctx context.Context, grace time.Duration) (context.Context, func()) {
	if grace <= 0 {
		return ctx, func() {}
	}
	h, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	late := time.AfterFunc(math.MaxInt64, func() { cancel(context.Cause(ctx)) })
	stop := context.AfterFunc(ctx, func() { late.Reset(grace) })
	return h, func() {
		stop()
		late.Stop()
		cancel(nil)
	}
}

// once sends a request one time.
func (c *Client) once(ctx context.Context, rt *route, payload []byte, out any) (*answer, error) {
	ctx, release := held(ctx, rt.grace)
	defer release()
	ctx, cancel := c.bounded(ctx, rt)
	defer cancel()
	var sent atomic.Bool
	req, err := c.request(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		WroteHeaders: func() { sent.Store(true) },
	}), rt, payload)
	if err != nil {
		return nil, errdefs.Wrap("E8007", rt.op, "the request cannot be made", err)
	}
	if rt.slow && c.o.Timeout > 0 {
		late := time.AfterFunc(c.o.Timeout, func() {
			c.log.WarnContext(ctx, "the service takes long, still waiting", "op", rt.op, "provider", c.o.Provider, "duration", c.o.Timeout)
		})
		defer late.Stop()
	}
	res, err := c.http.Do(req)
	if err != nil {
		return nil, c.broken(ctx, rt, err, sent.Load())
	}
	defer res.Body.Close()
	limit := int64(maxAnswer)
	if res.StatusCode/100 != 2 {
		limit = maxErrors
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, limit+1))
	if res.StatusCode/100 != 2 {
		return nil, c.answered(rt, res, body[:min(int64(len(body)), limit)]) // a cut text is better than none
	}
	if err != nil {
		return nil, c.broken(ctx, rt, err, true)
	}
	if int64(len(body)) > limit {
		return nil, c.invalid(rt, res.StatusCode, fmt.Sprintf("more than %d MiB", limit>>20))
	}
	return &answer{res.StatusCode, res.Header}, c.decode(rt, res, body, out)
}

func (c *Client) request(ctx context.Context, rt *route, payload []byte) (*http.Request, error) {
	u := *c.base
	u.Path += rt.path
	if rt.name != "" {
		u.RawPath = c.base.EscapedPath() + rt.path + url.PathEscape(rt.name)
		u.Path += rt.name
	}
	u.RawQuery = rt.query.Encode()
	var body io.Reader
	if payload != nil {
		body = bytes.NewReader(payload)
	}
	req, err := http.NewRequestWithContext(ctx, rt.method, u.String(), body)
	if err != nil {
		return nil, err
	}
	req.Header.Set(HeaderKey, c.o.Key)
	req.Header.Set("User-Agent", c.o.UserAgent)
	req.Header.Set("Accept", "application/json")
	if payload != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if rt.requestID != "" {
		req.Header.Set(RequestHeader, rt.requestID)
	}
	if rt.places != "" {
		req.Header.Set(PlacesHeader, rt.places)
	}
	return req, nil
}

// decode reads a successful answer. What stands between, such as a login page,
// answers with success too: only what makes sense is one.
func (c *Client) decode(rt *route, res *http.Response, body []byte, out any) error {
	text := strings.TrimSpace(string(body))
	switch {
	case isHTML(res, body):
		return c.invalid(rt, res.StatusCode, "a page of HTML")
	case out == nil && (text == "" || json.Valid(body)):
		return nil
	case out == nil:
		return c.invalid(rt, res.StatusCode, "something that is not JSON")
	case text == "":
		return c.invalid(rt, res.StatusCode, fmt.Sprintf("nothing (%d)", res.StatusCode))
	}
	if err := json.Unmarshal(body, out); err != nil {
		what := "something that is not JSON"
		if json.Valid(body) {
			what = "JSON of another shape: " + c.text(err.Error())
		}
		return c.invalid(rt, res.StatusCode, what)
	}
	return nil
}
