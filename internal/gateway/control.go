package gateway

import (
	"context"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/gorilla/mux"

	"github.com/agent-sandbox/sandbox-go/internal/api"
)

// controlRoutes are the paths of the control plane.
func (s *Server) controlRoutes() http.Handler {
	m := mux.NewRouter().SkipClean(true).UseEncodedPath()
	handle := func(method, path string, h func(http.ResponseWriter, *http.Request) error) {
		m.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			if err := h(w, r); err != nil {
				s.failed(w, r, err)
			}
		}).Methods(method)
	}
	handle("POST", "/sandboxes", s.createV1)
	handle("POST", "/v2/sandboxes", s.createV2)
	handle("GET", "/sandboxes", s.listV1)
	handle("GET", "/v2/sandboxes", s.listV2)
	handle("GET", "/sandboxes/metrics", s.manyMetrics)
	handle("GET", "/sandboxes/{id}", s.get)
	handle("DELETE", "/sandboxes/{id}", s.kill)
	handle("POST", "/sandboxes/{id}/timeout", s.setTimeout)
	handle("POST", "/sandboxes/{id}/refreshes", s.refresh)
	handle("POST", "/sandboxes/{id}/connect", s.connectV1)
	handle("POST", "/v2/sandboxes/{id}/connect", s.connectV2)
	handle("POST", "/sandboxes/{id}/pause", s.pause)
	handle("POST", "/sandboxes/{id}/resume", s.resume)
	handle("GET", "/sandboxes/{id}/metrics", s.metrics)
	handle("GET", "/sandboxes/{id}/logs", s.logsV1)
	handle("GET", "/v2/sandboxes/{id}/logs", s.logsV2)
	handle("POST", "/sandboxes/{id}/fork", s.notOfSandbox("forking is"))
	handle("POST", "/sandboxes/{id}/snapshots", s.takeSnapshot)
	handle("PUT", "/sandboxes/{id}/network", s.notOfSandbox("changing the network is"))
	handle("GET", "/snapshots", s.listSnapshots)
	handle("GET", "/templates", none)
	handle("GET", "/v2/templates", none)
	handle("GET", "/volumes", none)
	handle("GET", "/volumes/{volume}", noVolume)
	handle("DELETE", "/volumes/{volume}", noVolume)
	handle("GET", "/templates/aliases/{template}", s.alias)
	for _, u := range unsupportedRoutes {
		handle(u.method, u.path, notHere(u.what))
	}
	handle("GET", "/templates/{template}", s.describeTemplate)
	handle("GET", "/templates/{template}/tags", s.describeTemplate)
	handle("GET", "/templates/{template}/files/{hash}", s.describeTemplate)
	handle("GET", "/templates/{template}/builds/{build}/status", s.describeTemplate)
	handle("GET", "/templates/{template}/builds/{build}/logs", s.describeTemplate)
	handle("DELETE", "/templates/{template}", s.deleteTemplate)
	m.NotFoundHandler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fail(w, refuse(http.StatusNotFound, "", "no such route"))
	})
	m.MethodNotAllowedHandler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fail(w, refuse(http.StatusMethodNotAllowed, "", "this route does not take %s", r.Method))
	})
	return m
}

// failed answers an error. What is not the client's fault is logged.
func (s *Server) failed(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		return // nobody reads the answer
	}
	f := asRefusal(err)
	if f.status >= 500 && f.status != http.StatusNotImplemented {
		s.log.WarnContext(r.Context(), "request failed", "method", r.Method, "route", routeOf(r), "status", f.status, "err", err)
	}
	fail(w, f)
}

// routeOf is the pattern of a request: paths may hold what clients typed.
func routeOf(r *http.Request) string {
	if route := mux.CurrentRoute(r); route != nil {
		if t, err := route.GetPathTemplate(); err == nil {
			return t
		}
	}
	return ""
}

type ownerKey struct{}

// ownerOf is the id of the key that a request came with.
func ownerOf(r *http.Request) string {
	owner, _ := r.Context().Value(ownerKey{}).(string)
	return owner
}

// authenticate lets requests with a key pass. Open to everybody is GET /health.
func (s *Server) authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body != nil && r.Body != http.NoBody {
			// Also for those who answer without reading it: what follows is
			// read, in part, before the connection can be used again.
			http.NewResponseController(w).SetReadDeadline(time.Now().Add(s.clock(bodyTimeout)))
		}
		if r.URL.Path == "/health" && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			io.WriteString(w, "OK\n")
			return
		}
		secret, problem := keyOf(r)
		if problem != "" {
			deny(w, r, problem)
			return
		}
		owner, ok, err := s.keys.owner(secret)
		if err != nil {
			s.log.ErrorContext(r.Context(), "keys cannot be read", "err", err)
			unread(w, r)
			fail(w, &refusal{status: http.StatusInternalServerError, errorCode: "internal_server_error", message: "the keys cannot be read"})
			return
		}
		if !ok {
			deny(w, r, "the API key is not valid here; `sandboxd key create NAME` makes one")
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), ownerKey{}, owner)))
	})
}

// deny answers 401.
func deny(w http.ResponseWriter, r *http.Request, message string) {
	unread(w, r)
	fail(w, refuse(http.StatusUnauthorized, "E1001", "%s", message))
}

// keyOf takes the key of a request from either header.
func keyOf(r *http.Request) (key, problem string) {
	keys, auths := r.Header.Values(api.HeaderKey), r.Header.Values("Authorization")
	switch {
	case len(keys) > 1 || len(auths) > 1:
		return "", "the API key is given twice"
	case len(keys) == 1:
		key = keys[0]
	case len(auths) == 1:
		scheme, value, _ := strings.Cut(auths[0], " ")
		if !strings.EqualFold(scheme, "Bearer") {
			return "", "Authorization is not a Bearer key"
		}
		key = value
	default:
		return "", "no API key: send it as X-API-Key (the SDKs take it from E2B_API_KEY)"
	}
	return strings.TrimSpace(key), ""
}

// validID accepts what an id of the protocol may be.
func validID(id string) bool {
	if id == "" || len(id) > 64 {
		return false
	}
	return strings.Trim(id, "abcdefghijklmnopqrstuvwxyz0123456789") == ""
}

// boxOf finds the sandbox that the path of a request names. Those of other keys
// do not exist for it.
func (s *Server) boxOf(r *http.Request) (*box, error) {
	id, _, _ := strings.Cut(mux.Vars(r)["id"], "-")
	if !validID(id) {
		return nil, refuse(http.StatusBadRequest, "E2011", "the sandbox id is malformed")
	}
	s.mu.Lock()
	b := s.boxes[id]
	s.mu.Unlock()
	if b == nil || b.owner != ownerOf(r) {
		return nil, refuse(http.StatusNotFound, "E2020", "sandbox %q does not exist", id)
	}
	return b, nil
}
