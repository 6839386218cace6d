//go:build linux

package local

import (
	"cmp"
	"encoding/base64"
	"errors"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// pagePosition is a place in the order of a list: newest first, ids decide
// between equal times. The zero value is the start.
type pagePosition struct {
	created int64 // Unix time, ns
	id      string
}

func (p pagePosition) compare(o pagePosition) int {
	return cmp.Or(cmp.Compare(o.created, p.created), cmp.Compare(p.id, o.id))
}

func positionOf(c savedConfig) pagePosition { return pagePosition{c.CreatedAt.UnixNano(), c.ID} }

// pageTokenOf is the token of the page that starts behind c. It stays valid
// whatever is created or ends in between.
func pageTokenOf(c savedConfig) string {
	p := positionOf(c)
	return base64.RawURLEncoding.EncodeToString([]byte(strconv.FormatInt(p.created, 10) + "." + p.id))
}

func parsePageToken(token string) (pagePosition, error) {
	if token == "" {
		return pagePosition{}, nil
	}
	bad := &errdefs.Error{Code: "E2011", Op: "list sandboxes", Message: "page token is malformed",
		Suggestion: "pass Page.Next of the page before, or nothing for the first page"}
	b, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || len(token) > 128 {
		return pagePosition{}, bad
	}
	created, id, _ := strings.Cut(string(b), ".")
	n, err := strconv.ParseInt(created, 10, 64)
	if err != nil || checkID("", id) != nil {
		return pagePosition{}, bad
	}
	return pagePosition{n, id}, nil
}

// list reads what was asked for of all sandboxes, living or not, that have all
// pairs of metadata and come after a position.
func (t *tree) list(metadata map[string]string, after pagePosition) ([]savedConfig, error) {
	names, err := t.boxes.names()
	if err != nil {
		return nil, err
	}
	var found []savedConfig
	for _, id := range names {
		if checkID("", id) != nil {
			continue
		}
		c, err := t.config(id)
		if errors.Is(err, fs.ErrNotExist) {
			continue // ended, or not yet begun
		}
		if err != nil {
			// One that cannot be read must not hide the others.
			t.log.Warn("a sandbox is left out of a list: what was noted of it cannot be read", "sandbox_id", id, "err", err)
			continue
		}
		if after != (pagePosition{}) && positionOf(c).compare(after) <= 0 {
			continue
		}
		if hasAll(c.Metadata, metadata) {
			found = append(found, c)
		}
	}
	slices.SortFunc(found, func(a, b savedConfig) int { return positionOf(a).compare(positionOf(b)) })
	return found, nil
}

func (t *tree) config(id string) (savedConfig, error) {
	e, err := t.openEntry(id)
	if err != nil {
		return savedConfig{}, err
	}
	defer e.close()
	var c savedConfig
	err = e.load(fileConfig, &c)
	c.ID = id
	return c, err
}

func hasAll(have, want map[string]string) bool {
	for k, v := range want {
		if got, ok := have[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// absent turns "no such file" into errGone: the files of a sandbox go with it.
func absent(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return errGone
	}
	return err
}
