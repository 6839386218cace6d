//go:build linux

package server

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"

	"github.com/agent-sandbox/sandbox-go/runtime/fault"
)

// tokenHeader is where envd clients put the access token.
const tokenHeader = "X-Access-Token"

const unauthorized = "unauthorized access, please provide a valid access token or method signing if supported"

// authenticate lets a request pass that carries the token. Open to everybody
// are only the probe GET /health, and /files for requests with a signature
// that is right. An empty token lets everything pass.
func authenticate(token string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		transfer := r.URL.Path == "/files" && (r.Method == http.MethodGet || r.Method == http.MethodPost)
		if transfer {
			if err := checkExpiry(r); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
		}
		why := ""
		switch {
		case token == "", r.Method == http.MethodGet && r.URL.Path == "/health", hasToken(r, token):
		case !transfer:
			why = unauthorized
		case r.Header.Get(tokenHeader) != "":
			why = "access token present in header but does not match"
		default:
			why = checkSignature(r, token)
		}
		if why != "" {
			fault.HTTP(w, http.StatusUnauthorized, "E1001", why)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// hasToken looks where envd clients put the token and, for our own routes,
// where ours may put it.
func hasToken(r *http.Request, token string) bool {
	if ownRoute(r) {
		if given, ok := ownToken(r); ok && sameSecret(given, token) {
			return true
		}
	}
	return sameSecret(r.Header.Get(tokenHeader), token)
}

// sameSecret compares in a time that depends on neither text, not even on
// their lengths.
func sameSecret(got, want string) bool {
	a, b := sha256.Sum256([]byte(got)), sha256.Sum256([]byte(want))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}
