//go:build linux

package server

import (
	"context"
	"net/http"
	"strings"

	"connectrpc.com/connect"

	"github.com/agent-sandbox/sandbox-go/runtime/fault"
)

const sandboxPaused = "the sandbox is paused"

// whilePaused refuses requests while the sandbox is paused, but for those that
// touch neither a process nor a file. Connect calls are left to refuseCalls,
// which knows how to say it.
func whilePaused(paused func() bool, next http.Handler) http.Handler {
	if paused == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/health", "/metrics", "/envs", "/capabilities", "/openapi.json":
		default:
			if !isCall(r.URL.Path) && paused() {
				fault.HTTP(w, http.StatusConflict, "E2024", sandboxPaused)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// isCall reports whether a path is one of a Connect service: "/package.Service/Method".
func isCall(path string) bool {
	service, _, method := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	return method && strings.Contains(service, ".")
}

// refuseCalls refuses Connect calls while the sandbox is paused.
type refuseCalls struct{ paused func() bool }

func (p refuseCalls) check() error {
	if p.paused != nil && p.paused() {
		return fault.New(connect.CodeFailedPrecondition, "E2024", sandboxPaused)
	}
	return nil
}

// WrapUnary implements connect.Interceptor.
func (p refuseCalls) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		if err := p.check(); err != nil {
			return nil, err
		}
		return next(ctx, req)
	}
}

// WrapStreamingClient implements connect.Interceptor.
func (p refuseCalls) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler implements connect.Interceptor.
func (p refuseCalls) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		if err := p.check(); err != nil {
			return err
		}
		return next(ctx, conn)
	}
}
