package api

import (
	"cmp"
	"context"
	"maps"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// RequestHeader names a creation. Servers of ours then make no second sandbox
// for it; others ignore it.
const RequestHeader = "Sandbox-Request-Id"

// PlacesHeader holds the places of a creation: paths, percent-encoded and
// joined by commas. Servers of ours, whose sandboxes cannot be written
// everywhere, make them; others ignore it.
const PlacesHeader = "Sandbox-Places"

// joinPlaces writes the header of places.
func joinPlaces(places []string) string {
	var out []string
	for _, p := range places {
		out = append(out, strings.ReplaceAll(url.PathEscape(p), "%2F", "/"))
	}
	return strings.Join(out, ",")
}

// SplitPlaces reads the header of places; empty text has none.
func SplitPlaces(header string) ([]string, error) {
	if header == "" {
		return nil, nil
	}
	var out []string
	for _, p := range strings.Split(header, ",") {
		p, err := url.PathUnescape(p)
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

// Create makes a sandbox. It is repeated only when the service certainly made
// nothing; whether it did is [Undone] of the error. Nothing is sent when ctx has
// ended. When it ends later, the request in flight gets grace to be answered,
// because what it makes must be known to be removed: Create may then succeed
// although ctx has ended. An empty requestID sends none.
func (c *Client) Create(ctx context.Context, in *NewSandbox, requestID string, grace time.Duration) (*Sandbox, error) {
	rt := &route{
		op: "create sandbox", method: http.MethodPost, path: c.versioned("/sandboxes"), template: in.TemplateID,
		create: true, body: true, slow: true, grace: grace, requestID: requestID,
		places: joinPlaces(in.Places),
	}
	var out Sandbox
	a, _, err := c.do(ctx, rt, in, &out)
	if err != nil {
		return nil, err
	}
	if err := c.check(rt, a, &out); err != nil {
		return nil, err
	}
	return &out, nil
}

// Connect resumes a paused sandbox; of a running one it moves the end to the
// timeout, never to sooner. resumed says which it was.
func (c *Client) Connect(ctx context.Context, id string, in *Connect) (sb *Sandbox, resumed bool, err error) {
	rt, err := idRoute("connect to sandbox", http.MethodPost, id, "/connect")
	if err != nil {
		return nil, false, err
	}
	rt.path, rt.body, rt.slow = c.versioned(rt.path), true, true
	var out Sandbox
	a, _, err := c.do(ctx, rt, in, &out)
	if err != nil {
		return nil, false, err
	}
	if err := c.check(rt, a, &out); err != nil {
		return nil, false, err
	}
	if out.SandboxID != id {
		return nil, false, c.invalid(rt, a.status, "with another sandbox than asked for")
	}
	return &out, a.status == http.StatusCreated, nil
}

func (c *Client) check(rt *route, a *answer, sb *Sandbox) error {
	if !IsID(sb.SandboxID) {
		return c.invalid(rt, a.status, "without a usable sandboxID")
	}
	for _, h := range []string{sb.EnvdAccessToken, deref(sb.TrafficAccessToken)} {
		if strings.ContainsFunc(h, func(r rune) bool { return r < ' ' || r >= 0x7f }) {
			return c.invalid(rt, a.status, "with a token that no header can carry")
		}
	}
	return nil
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func (c *Client) versioned(path string) string {
	if c.o.Version == V2 {
		return "/v2" + path
	}
	return path
}

// Get describes a sandbox.
func (c *Client) Get(ctx context.Context, id string) (*SandboxDetail, error) {
	rt, err := idRoute("get sandbox", http.MethodGet, id, "")
	if err != nil {
		return nil, err
	}
	var out SandboxDetail
	a, _, err := c.do(ctx, rt, nil, &out)
	if err != nil {
		return nil, err
	}
	if err := c.checkListed(rt, a, &out.ListedSandbox); err != nil {
		return nil, err
	}
	return &out, nil
}

func (c *Client) checkListed(rt *route, a *answer, sb *ListedSandbox) error {
	switch {
	case !IsID(sb.SandboxID):
		return c.invalid(rt, a.status, "without a usable sandboxID")
	case rt.id != "" && sb.SandboxID != rt.id:
		return c.invalid(rt, a.status, "with another sandbox than asked for")
	case sb.State == "":
		return c.invalid(rt, a.status, "without the state of sandbox "+clean(sb.SandboxID))
	}
	return nil
}

// Query selects sandboxes of a list.
type Query struct {
	Metadata map[string]string
	States   []string // empty: not sent
	Limit    int      // zero: not sent
	Token    string   // of the next page
}

// List returns one page, newest first, and the token of the next one, which is
// empty at the last page.
func (c *Client) List(ctx context.Context, q *Query) (page []ListedSandbox, next string, err error) {
	v := url.Values{}
	if len(q.Metadata) > 0 {
		v.Set("metadata", EncodeMetadata(q.Metadata))
	}
	if len(q.States) > 0 {
		v.Set("state", strings.Join(q.States, ","))
	}
	if q.Limit > 0 {
		v.Set("limit", strconv.Itoa(q.Limit))
	}
	if q.Token != "" {
		v.Set("nextToken", q.Token)
	}
	rt := &route{op: "list sandboxes", method: http.MethodGet, path: "/v2/sandboxes", query: v}
	a, _, err := c.do(ctx, rt, nil, &page)
	if err != nil {
		return nil, "", err
	}
	for i := range page {
		if err := c.checkListed(rt, a, &page[i]); err != nil {
			return nil, "", err
		}
	}
	next = a.header.Get(HeaderNextToken)
	if next != "" && next == q.Token {
		return nil, "", c.invalid(rt, a.status, "with the same page again as the next one")
	}
	return page, next, nil
}

// SetTimeout moves the end to d from now.
func (c *Client) SetTimeout(ctx context.Context, id string, d time.Duration) error {
	rt, err := idRoute("set lifetime", http.MethodPost, id, "/timeout")
	if err != nil {
		return err
	}
	rt.body = true
	_, _, err = c.do(ctx, rt, &Timeout{Timeout: Seconds(d)}, nil)
	return err
}

// Kill ends a sandbox. One that is not there is E2020, unless an earlier attempt
// of the same call may have ended it.
func (c *Client) Kill(ctx context.Context, id string) error {
	rt, err := idRoute("kill sandbox", http.MethodDelete, id, "")
	if err != nil {
		return err
	}
	_, repeated, err := c.do(ctx, rt, nil, nil)
	switch errdefs.CodeOf(err) {
	case "E2021", "E2022", "E2023":
		err = errdefs.Wrap("E2020", rt.op, "sandbox "+id+" is not there any more", err)
	case "E2020":
	default:
		return err
	}
	if repeated {
		return nil
	}
	return err
}

// Pause stops a sandbox and keeps it.
func (c *Client) Pause(ctx context.Context, id string) error {
	rt, err := idRoute("pause sandbox", http.MethodPost, id, "/pause")
	if err != nil {
		return err
	}
	rt.slow = true // its memory is written to a disk
	_, _, err = c.do(ctx, rt, &Pause{}, nil)
	return err
}

// Metrics returns what a sandbox took, oldest first; there may be nothing yet.
func (c *Client) Metrics(ctx context.Context, id string) ([]Metric, error) {
	rt, err := idRoute("measure sandbox", http.MethodGet, id, "/metrics")
	if err != nil {
		return nil, err
	}
	var out []Metric
	if _, _, err := c.do(ctx, rt, nil, &out); err != nil {
		return nil, err
	}
	slices.SortStableFunc(out, func(a, b Metric) int {
		return cmp.Or(a.Timestamp.Compare(b.Timestamp), cmp.Compare(a.TimestampUnix, b.TimestampUnix))
	})
	return out, nil
}

func idRoute(op, method, id, rest string) (*route, error) {
	if !IsID(id) {
		return nil, &errdefs.Error{Code: "E2020", Op: op, Message: "no sandbox has the id " + strconv.Quote(cut(id))}
	}
	return &route{op: op, method: method, path: "/sandboxes/" + id + rest, id: id}, nil
}

// IsID reports whether a service may have given id to a sandbox. It is part of
// paths and of host names.
func IsID(id string) bool {
	if id == "" || len(id) > 128 || id[0] == '-' {
		return false
	}
	for _, r := range id {
		if (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_' {
			return false
		}
	}
	return true
}

// Seconds is d on the wire: whole seconds, rounded up.
func Seconds(d time.Duration) int64 { return int64(math.Ceil(d.Seconds())) }

// EncodeMetadata is the value of the query parameter metadata. Keys and values
// are escaped twice in it, and once more with the query.
func EncodeMetadata(m map[string]string) string {
	v := url.Values{}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		v.Set(escape(k), escape(m[k]))
	}
	return v.Encode()
}

// escape is encodeURIComponent of the SDKs, as far as decoders can tell: a blank
// is %20, not a plus.
func escape(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "+", "%20") }

// DecodeMetadata is the inverse of EncodeMetadata, for servers. A malformed text
// is an error.
func DecodeMetadata(s string) (map[string]string, error) {
	v, err := url.ParseQuery(s)
	if err != nil {
		return nil, err
	}
	m := map[string]string{}
	for k, vals := range v {
		key, err := url.PathUnescape(k)
		if err != nil {
			return nil, err
		}
		if m[key], err = url.PathUnescape(vals[len(vals)-1]); err != nil {
			return nil, err
		}
	}
	return m, nil
}
