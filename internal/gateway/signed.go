package gateway

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"net/http"
	"strings"
)

// isSigned reports whether a request for a file carries a signature and names
// no sandbox: what SDKs make of E2B_SANDBOX_URL.
func isSigned(r *http.Request) bool {
	return r.URL.Path == "/files" && (r.Method == http.MethodGet || r.Method == http.MethodPost) && r.URL.Query().Has("signature")
}

// forwardSigned finds the sandbox whose token made the signature.
func (s *Server) forwardSigned(w http.ResponseWriter, r *http.Request) {
	id := s.signer(r)
	if id == "" {
		unread(w, r)
		fail(w, refuse(http.StatusUnauthorized, "E1001", "invalid signature"))
		return
	}
	// The file is shown under the control plane's own origin: it must not act
	// as a page of it.
	w.Header().Set("Content-Security-Policy", "sandbox")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	s.forward.serve(w, r, address{id: id, port: envdPort})
}

// signer compares with the tokens of all living sandboxes, whichever fits, so
// that the duration tells nothing.
func (s *Server) signer(r *http.Request) string {
	q := r.URL.Query()
	operation := "read"
	if r.Method == http.MethodPost {
		operation = "write"
	}
	before := q.Get("path") + ":" + operation + ":" + q.Get("username") + ":"
	after := ""
	if e := q.Get("signature_expiration"); e != "" {
		after = ":" + e
	}
	given := []byte(q.Get("signature"))
	s.mu.Lock()
	all := make([]*box, 0, len(s.boxes))
	for _, b := range s.boxes {
		all = append(all, b)
	}
	s.mu.Unlock()
	found := ""
	var raw strings.Builder
	for _, b := range all {
		token := b.accessToken()
		if token == "" {
			continue
		}
		raw.Reset()
		raw.WriteString(before)
		raw.WriteString(token)
		raw.WriteString(after)
		sum := sha256.Sum256([]byte(raw.String()))
		if subtle.ConstantTimeCompare(given, []byte("v1_"+base64.RawStdEncoding.EncodeToString(sum[:]))) == 1 {
			found = b.id
		}
	}
	return found
}
