package envd

import (
	"crypto/sha256"
	"encoding/base64"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// FileAddress says what an address of a file is for.
type FileAddress struct {
	Path  string // as the request will say it; relative to the home of the user
	Write bool   // for an upload; else for a download
	User  string // empty: none is named, the server's default acts

	// Base is the address of the runtime where the client's own does not say which
	// sandbox is meant. Empty: the client's own.
	Base string

	// Expires is when the address stops to work, to the second, rounded up. Zero:
	// never.
	Expires time.Time
}

// Dialed reports whether the client was made with Dial: its connections are its
// own, and no address leads to the runtime.
func (c *Client) Dialed() bool { return c.transport.dial != nil }

// FileURL is an address by which anybody can read or write one file, without the
// token. A sandbox that is reached by a connection of its own and not by an
// address is E8004, as is an expiry where the server asks for no token: then the
// address of every file works for everybody, and this one holds no signature.
func (c *Client) FileURL(a FileAddress) (string, error) {
	const op = "sign file address"
	if c.Dialed() {
		return "", &errdefs.Error{
			Code: "E8004", Op: op,
			Message:    "this sandbox is reached over a connection of this program, so it has no address that others could use",
			Suggestion: "copy the file with FS, or use a provider whose sandboxes have addresses",
		}
	}
	q := url.Values{"path": {a.Path}}
	if a.User != "" {
		q.Set("username", a.User)
	}
	token := c.transport.token
	switch {
	case token == "" && !a.Expires.IsZero():
		return "", errdefs.New("E8004", op, "this sandbox asks for no token, so an address of a file in it cannot expire")
	case token != "":
		expiry := ""
		if !a.Expires.IsZero() {
			expiry = strconv.FormatInt(a.Expires.Add(time.Second-time.Nanosecond).Unix(), 10)
			q.Set("signature_expiration", expiry)
		}
		q.Set("signature", Sign(a.Path, a.Write, a.User, token, expiry))
	}
	base := c.base
	if a.Base != "" {
		base = strings.TrimRight(a.Base, "/")
	}
	return base + "/files?" + q.Encode(), nil
}

// Sign is the signature of a request for a file by the rules of envd: it stands
// for the token, for one path, one direction, one user and until expiry, in
// seconds of Unix time. An empty expiry means that there is none.
func Sign(path string, write bool, user, token, expiry string) string {
	operation := "read"
	if write {
		operation = "write"
	}
	parts := []string{path, operation, user, token}
	if expiry != "" {
		parts = append(parts, expiry)
	}
	sum := sha256.Sum256([]byte(strings.Join(parts, ":")))
	return "v1_" + base64.RawStdEncoding.EncodeToString(sum[:])
}
