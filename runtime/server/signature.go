//go:build linux

package server

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// checkExpiry refuses an expiry that is no number; envd looks at it before
// anything else.
func checkExpiry(r *http.Request) error {
	q := r.URL.Query()
	if !q.Has("signature_expiration") {
		return nil
	}
	if _, err := strconv.ParseInt(q.Get("signature_expiration"), 10, 64); err != nil {
		return fmt.Errorf("signature_expiration is not a number: %w", err)
	}
	return nil
}

// checkSignature accepts a request whose query is signed with the token: the
// signature covers path, direction, user and expiry. It returns what is wrong,
// "" when nothing is.
func checkSignature(r *http.Request, token string) string {
	q := r.URL.Query()
	given := q.Get("signature")
	if given == "" {
		return "missing signature query parameter"
	}
	operation := "read"
	if r.Method == http.MethodPost {
		operation = "write"
	}
	expiry := ""
	expires := int64(0)
	if q.Has("signature_expiration") {
		var err error
		if expires, err = strconv.ParseInt(q.Get("signature_expiration"), 10, 64); err != nil {
			return "invalid signature"
		}
		// Only the usual spelling: what is signed must be what is sent.
		if expiry = q.Get("signature_expiration"); expiry != strconv.FormatInt(expires, 10) {
			return "invalid signature"
		}
	}
	if !sameSecret(given, sign(q.Get("path"), operation, q.Get("username"), token, expiry)) {
		return "invalid signature"
	}
	if expiry != "" && expires < time.Now().Unix() {
		return "signature is already expired"
	}
	return ""
}

// sign is the signature of envd; an empty expiry means never.
func sign(path, operation, user, token, expiry string) string {
	raw := []string{path, operation, user, token}
	if expiry != "" {
		raw = append(raw, expiry)
	}
	sum := sha256.Sum256([]byte(strings.Join(raw, ":")))
	return "v1_" + base64.RawStdEncoding.EncodeToString(sum[:])
}
