//go:build linux

package server

import (
	"encoding/json"
	"net/http"

	"github.com/agent-sandbox/sandbox-go/runtime/environment"
	"github.com/agent-sandbox/sandbox-go/runtime/policy"
)

// only lets requests with one method pass. The patterns of package http would
// let HEAD pass with GET.
func only(method string, next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != method {
			w.Header().Set("Allow", method)
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		next(w, r)
	}
}

// featuresHeader, in the answer of GET /health, says what this server can beyond
// envd, so that a client need not try: channels for workers, tunnels to ports,
// a StreamInput that can be kept open, and the code interpreter.
const (
	featuresHeader = "Sandbox-Features"
	features       = "channels, ports, input, code"
)

// health says that the server runs.
func health(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set(featuresHeader, features)
	w.WriteHeader(http.StatusNoContent)
}

// variables puts the levels of the environment together that o knows.
func variables(o *Options, rules *policy.Policy) *environment.Environment {
	levels := environment.Options{Sandbox: o.Env, Secrets: o.SecretEnv, Refused: func(name string) bool {
		return rules.Commands().Strips(name, policy.OfRequest)
	}}
	if o.Template != nil {
		levels.Template = o.Template.Env
	}
	return environment.New(levels)
}

// envs lists the variables that everything started here gets, without secrets.
func (s *Server) envs(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Type", "application/json")
	// The client may be gone; there is nobody to tell.
	_ = json.NewEncoder(w).Encode(s.env.Listed())
}
