//go:build linux

package server

import (
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/agent-sandbox/sandbox-go/runtime/account"
	"github.com/agent-sandbox/sandbox-go/runtime/code"
	"github.com/agent-sandbox/sandbox-go/runtime/command"
	"github.com/agent-sandbox/sandbox-go/runtime/endpoint"
	"github.com/agent-sandbox/sandbox-go/runtime/fault"
	"github.com/agent-sandbox/sandbox-go/runtime/httpapi"
)

// Endpoints lists the rows of the HTTP API of every server, in the order in which
// they are routed. The handlers of these rows cannot be called.
func Endpoints() []endpoint.Endpoint {
	return rowsOf(&httpapi.API{}, &command.Service{}, &code.Service{})
}

// EndpointNames are the names that the switches of a template know, sorted: those of
// [Endpoints] and of what only the protocol of envd has.
func EndpointNames() []string {
	var names []string
	for _, row := range slices.Concat(protocolRows, Endpoints()) {
		names = append(names, row.Name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// rowsOf puts together what the packages of the runtime offer.
func rowsOf(api *httpapi.API, commands *command.Service, cells *code.Service) []endpoint.Endpoint {
	var rows []endpoint.Endpoint
	rows = append(rows, api.Endpoints()...)
	rows = append(rows, commands.Endpoints()...)
	rows = append(rows, cells.Endpoints()...)
	return rows
}

// newAPI makes what serves the HTTP API.
func (s *Server) newAPI() *httpapi.API {
	return httpapi.New(httpapi.Options{
		Process: s.process, Files: s.files, Env: s.env, WorkDir: s.opts.DefaultWorkDir, Shell: s.shell(),
		Usage: func() httpapi.Usage { return httpapi.Usage(s.usage()) },
		Token: s.opts.Token != "", Logger: s.opts.Logger,
		Heartbeat: s.opts.testOnlyHeartbeat, TerminalIdle: s.opts.testOnlyTerminalIdle,
	})
}

// routeAPI makes the handler of the HTTP API.
func (s *Server) routeAPI(users *account.Book) http.Handler {
	rows := rowsOf(s.api, s.commands, s.code)
	s.api.Describe(slices.Concat(protocolRows, rows), s.policy)
	return endpoint.Router(rows, s.policy, func(next http.Handler) http.Handler { return actAs(users, next) })
}

// shell is that of terminals which name none.
func (s *Server) shell() string {
	if s.opts.Template == nil {
		return ""
	}
	return s.opts.Template.Shell
}

// actAs puts the user of a request into its context.
func actAs(users *account.Book, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u, err := users.Lookup(r.Header.Get(httpapi.UserHeader))
		if err != nil {
			status := http.StatusInternalServerError
			if _, ok := errors.AsType[*account.UnavailableError](err); ok {
				status = http.StatusUnauthorized
			}
			fault.HTTP(w, status, "E3008", err.Error())
			return
		}
		next.ServeHTTP(w, r.WithContext(account.NewContext(r.Context(), u)))
	})
}

// protocolPaths are those of the E2B protocol beside its calls.
var protocolPaths = map[string]bool{"/health": true, "/metrics": true, "/envs": true, "/files/compose": true}

// ownRoute reports whether a request is for a route of ours and not of the E2B
// protocol.
func ownRoute(r *http.Request) bool {
	switch p := r.URL.Path; {
	case p == "/files":
		return r.Method == http.MethodDelete
	case protocolPaths[p], isCall(p):
		return false
	}
	return true
}

// tokenProtocol begins the name of a WebSocket subprotocol that carries the token.
// Browsers cannot set headers there, and this one, other than an address, is not
// written to logs.
const tokenProtocol = "sandbox-token."

// ownToken is the token of a request for a route of ours: of the header
// Authorization, of X-Sandbox-Token, or offered as a subprotocol.
func ownToken(r *http.Request) (token string, ok bool) {
	if scheme, value, found := strings.Cut(r.Header.Get("Authorization"), " "); found && strings.EqualFold(scheme, "Bearer") {
		return strings.TrimSpace(value), true
	}
	if v := r.Header.Get("X-Sandbox-Token"); v != "" {
		return v, true
	}
	if strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		for _, line := range r.Header.Values("Sec-Websocket-Protocol") {
			for p := range strings.SplitSeq(line, ",") {
				if v, found := strings.CutPrefix(strings.TrimSpace(p), tokenProtocol); found {
					return v, true
				}
			}
		}
	}
	return "", false
}
