package api

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// TakeSnapshot keeps what a sandbox is now. It is not repeated when the answer is
// lost: there may be a snapshot then.
func (c *Client) TakeSnapshot(ctx context.Context, id string, in *NewSnapshot) (*Snapshot, error) {
	rt, err := idRoute("take snapshot", http.MethodPost, id, "/snapshots")
	if err != nil {
		return nil, err
	}
	rt.body, rt.slow = true, true // files are copied
	var out Snapshot
	a, _, err := c.do(ctx, rt, in, &out)
	if err != nil {
		return nil, err
	}
	if !IsSnapshotID(out.SnapshotID) {
		return nil, c.invalid(rt, a.status, "without a usable snapshotID")
	}
	return &out, nil
}

// SnapshotQuery selects snapshots of a list.
type SnapshotQuery struct {
	SandboxID string // empty: of every sandbox
	Limit     int    // zero: not sent
	Token     string // of the next page
}

// ListSnapshots returns one page, and the token of the next one, which is empty at
// the last page.
func (c *Client) ListSnapshots(ctx context.Context, q *SnapshotQuery) (page []Snapshot, next string, err error) {
	v := url.Values{}
	if q.SandboxID != "" {
		v.Set("sandboxID", q.SandboxID)
	}
	if q.Limit > 0 {
		v.Set("limit", strconv.Itoa(q.Limit))
	}
	if q.Token != "" {
		v.Set("nextToken", q.Token)
	}
	rt := &route{op: "list snapshots", method: http.MethodGet, path: "/snapshots", query: v}
	a, _, err := c.do(ctx, rt, nil, &page)
	if err != nil {
		return nil, "", err
	}
	for i := range page {
		if !IsSnapshotID(page[i].SnapshotID) {
			return nil, "", c.invalid(rt, a.status, "without a usable snapshotID")
		}
	}
	next = a.header.Get(HeaderNextToken)
	if next != "" && next == q.Token {
		return nil, "", c.invalid(rt, a.status, "with the same page again as the next one")
	}
	return page, next, nil
}

// DeleteSnapshot removes a snapshot. One that is not there is E2020, unless an
// earlier attempt of the same call may have removed it.
func (c *Client) DeleteSnapshot(ctx context.Context, id string) error {
	const op = "delete snapshot"
	if !IsSnapshotID(id) {
		return &errdefs.Error{Code: "E2020", Op: op, Message: "no snapshot has the id " + strconv.Quote(cut(id))}
	}
	rt := &route{op: op, method: http.MethodDelete, path: "/templates/", name: id}
	_, repeated, err := c.do(ctx, rt, nil, nil)
	if Status(err) != http.StatusNotFound {
		return err
	}
	if repeated {
		return nil
	}
	return &errdefs.Error{Code: "E2020", Op: op, Message: "no snapshot " + strconv.Quote(cut(id)), Err: err}
}

// IsSnapshotID reports whether a service may have given id to a snapshot: it may
// be a name with the team and a tag.
func IsSnapshotID(id string) bool {
	if id == "" || len(id) > 256 || strings.Trim(id, "./") == "" {
		return false
	}
	return !strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r >= 0x7f })
}
