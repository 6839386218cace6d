package gateway

import (
	"crypto/subtle"
	"net/http"

	"github.com/agent-sandbox/sandbox-go/internal/envd"
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
	given := []byte(q.Get("signature"))
	s.mu.Lock()
	all := make([]*box, 0, len(s.boxes))
	for _, b := range s.boxes {
		all = append(all, b)
	}
	s.mu.Unlock()
	found := ""
	for _, b := range all {
		token := b.accessToken()
		if token == "" {
			continue
		}
		want := envd.Sign(q.Get("path"), r.Method == http.MethodPost, q.Get("username"), token, q.Get("signature_expiration"))
		if subtle.ConstantTimeCompare(given, []byte(want)) == 1 {
			found = b.id
		}
	}
	return found
}
